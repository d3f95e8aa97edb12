//! From words to a tree. A mistake ends its statement, not the parsing.

use chumsky::error::{Rich, RichPattern, RichReason};
use chumsky::extra;
use chumsky::input::ValueInput;
use chumsky::pratt::{infix, left, postfix, prefix};
use chumsky::prelude::*;

use super::depth;
use super::diagnostic::{Code, Diagnostic, meant};
use super::token::{self, KEYWORDS, Token};
use super::tree::{Binary, Declaration, Doing, Expression, Item, Name, Statement, Type, Value};

type At<'t, 'b, 's, I> = chumsky::input::MapExtra<'t, 'b, I, Extra<'t, 's>>;
type Extra<'t, 's> = extra::Err<Rich<'t, Token<'s>, SimpleSpan>>;

/// What the text says, or all that is wrong with its form.
pub(super) fn parse(text: &str) -> Result<Vec<Item<'_>>, Vec<Diagnostic>> {
    let (words, errors) = token::words(text);
    if !errors.is_empty() {
        return Err(errors);
    }
    if let Some(error) = depth::check(&words) {
        return Err(vec![error]);
    }
    let words: Vec<(Token<'_>, SimpleSpan)> =
        words.into_iter().map(|(token, span)| (token, span.into())).collect();
    let end = SimpleSpan::from(text.len()..text.len());
    let input = words.as_slice().map(end, |(token, span)| (token, span));
    let (items, found) = program().parse(input).into_output_errors();
    match items {
        Some(items) if found.is_empty() => Ok(items),
        _ => {
            let mut errors: Vec<_> = found.iter().map(|error| explain(error, &words)).collect();
            errors.sort_by_key(|error| error.span.start);
            errors.dedup();
            Err(errors)
        }
    }
}

fn name<'t, 's: 't, I>() -> impl Parser<'t, I, Name<'s>, Extra<'t, 's>> + Clone
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    select! { Token::Name(text) => text }
        .map_with(|text, e| Name { text, span: range(e.span()) })
        .labelled("a name")
}

fn range(span: SimpleSpan) -> std::ops::Range<usize> {
    span.start..span.end
}

fn expression<'t, 's: 't, I>() -> impl Parser<'t, I, Expression<'s>, Extra<'t, 's>> + Clone
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    recursive(|expression| {
        let number = select! { Token::Number(digits) => Value::Number(digits) };
        let arguments = expression
            .clone()
            .separated_by(just(Token::Comma))
            .collect::<Vec<_>>()
            .delimited_by(just(Token::OpenParen), just(Token::CloseParen));
        let call_or_name =
            name().then(arguments.or_not()).map(|(function, arguments)| match arguments {
                Some(arguments) => Value::Call { function, arguments },
                None => Value::Name(function.text),
            });
        let plain =
            number.or(call_or_name).map_with(|what, e| Expression { what, span: range(e.span()) });
        let within = expression
            .clone()
            .delimited_by(just(Token::OpenParen), just(Token::CloseParen))
            .map_with(|inner: Expression<'s>, e| Expression { span: range(e.span()), ..inner });
        let element = expression.delimited_by(just(Token::OpenBracket), just(Token::CloseBracket));
        let field = just(Token::Dot).ignore_then(name());
        let one_of = |pairs: &'static [(Token<'static>, Binary)]| {
            select! { token if pairs.iter().any(|pair| pair.0 == token) => token }.map(
                move |token| {
                    pairs.iter().find(|pair| pair.0 == token).map_or(Binary::Or, |pair| pair.1)
                },
            )
        };
        let binary = |left: Expression<'s>, operator, right: Expression<'s>| Expression {
            span: left.span.start..right.span.end,
            what: Value::Binary { operator, left: Box::new(left), right: Box::new(right) },
        };
        let not = |_, inner: Expression<'s>, e: &mut At<'t, '_, 's, I>| Expression {
            what: Value::Not(Box::new(inner)),
            span: range(e.span()),
        };
        let negative = |_, inner: Expression<'s>, e: &mut At<'t, '_, 's, I>| Expression {
            what: Value::Negative(Box::new(inner)),
            span: range(e.span()),
        };
        plain
            .or(within)
            .labelled("a value")
            .pratt((
                postfix(9, element, |array: Expression<'s>, index, e: &mut At<'t, '_, 's, I>| {
                    Expression {
                        what: Value::Element { array: Box::new(array), index: Box::new(index) },
                        span: range(e.span()),
                    }
                }),
                postfix(9, field, |page: Expression<'s>, field, e: &mut At<'t, '_, 's, I>| {
                    Expression {
                        what: Value::Field { page: Box::new(page), field },
                        span: range(e.span()),
                    }
                }),
                prefix(8, just(Token::Not), not),
                prefix(8, just(Token::Minus), negative),
                infix(
                    left(7),
                    one_of(&[
                        (Token::Star, Binary::Multiply),
                        (Token::Slash, Binary::Divide),
                        (Token::Percent, Binary::Remainder),
                    ]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
                infix(
                    left(6),
                    one_of(&[(Token::Plus, Binary::Add), (Token::Minus, Binary::Subtract)]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
                infix(
                    left(5),
                    one_of(&[
                        (Token::Less, Binary::Less),
                        (Token::LessEqual, Binary::LessEqual),
                        (Token::Greater, Binary::Greater),
                        (Token::GreaterEqual, Binary::GreaterEqual),
                    ]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
                infix(
                    left(4),
                    one_of(&[(Token::Equal, Binary::Equal), (Token::NotEqual, Binary::NotEqual)]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
                infix(
                    left(3),
                    one_of(&[(Token::And, Binary::And)]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
                infix(
                    left(2),
                    one_of(&[(Token::Or, Binary::Or)]),
                    move |l, op, r, _: &mut At<'t, '_, 's, I>| binary(l, op, r),
                ),
            ))
            .labelled("a value")
            .boxed()
    })
}

/// `Int a, b = 2;`, `*Queue q;`, `Queue *q;`, `Queue level[26];`. Queues and pages are pointers
/// with or without the star: Figure 3 writes it before the type.
fn declaration<'t, 's: 't, I>() -> impl Parser<'t, I, Vec<Declaration<'s>>, Extra<'t, 's>> + Clone
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    let star = just(Token::Star).or_not();
    let kind = select! {
        Token::Int => Type::Int,
        Token::Page => Type::Page,
        Token::Queue => Type::Queue,
    }
    .labelled("a type");
    let length = expression().delimited_by(just(Token::OpenBracket), just(Token::CloseBracket));
    let one = star
        .ignore_then(name())
        .then(length.or_not())
        .then(just(Token::Name("by")).ignore_then(name()).or_not())
        .then(just(Token::Assign).ignore_then(expression()).or_not());
    star.ignore_then(kind)
        .then(one.separated_by(just(Token::Comma)).at_least(1).collect::<Vec<_>>())
        .then_ignore(just(Token::Semicolon))
        .map(|(kind, all)| {
            all.into_iter()
                .map(|(((name, length), ordered_by), initial)| Declaration {
                    kind,
                    name,
                    length,
                    initial,
                    ordered_by,
                })
                .collect()
        })
        .boxed()
}

/// What may stand in the head of a `for`, and before a `;`.
fn simple<'t, 's: 't, I>() -> impl Parser<'t, I, Statement<'s>, Extra<'t, 's>> + Clone
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    enum Tail<'s> {
        Assign(Option<Binary>, Expression<'s>),
        Step(bool),
    }
    let step = select! { Token::Increment => true, Token::Decrement => false };
    let assign = select! {
        Token::Assign => None,
        Token::AddAssign => Some(Binary::Add),
        Token::SubAssign => Some(Binary::Subtract),
        Token::MulAssign => Some(Binary::Multiply),
        Token::DivAssign => Some(Binary::Divide),
        Token::RemAssign => Some(Binary::Remainder),
    };
    let before = step.then(expression()).map(|(up, target)| Doing::Step { target, up });
    let after = expression()
        .then(
            assign
                .then(expression())
                .map(|(operator, value)| Tail::Assign(operator, value))
                .or(step.map(Tail::Step))
                .or_not(),
        )
        .map(|(target, tail)| match tail {
            Some(Tail::Assign(operator, value)) => Doing::Assign { target, operator, value },
            Some(Tail::Step(up)) => Doing::Step { target, up },
            None => Doing::Evaluate(target),
        });
    before.or(after).map_with(|what, e| Statement { what, span: range(e.span()) }).boxed()
}

fn statements<'t, 's: 't, I>() -> impl Parser<'t, I, Vec<Statement<'s>>, Extra<'t, 's>> + Clone
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    let statement = recursive(|statement| {
        let semicolon = just(Token::Semicolon);
        let condition = expression().delimited_by(just(Token::OpenParen), just(Token::CloseParen));
        let branch = just(Token::If).ignore_then(condition.clone()).then(statement.clone());
        let more = just(Token::Else).ignore_then(branch.clone());
        let choice_ = branch
            .then(more.repeated().collect::<Vec<_>>())
            .then(just(Token::Else).ignore_then(statement.clone()).or_not())
            .map(|((first, mut branches), otherwise)| {
                branches.insert(0, first);
                Doing::If { branches, otherwise: otherwise.map(Box::new) }
            });
        let while_ = just(Token::While)
            .ignore_then(condition.clone())
            .then(statement.clone())
            .map(|(condition, body)| Doing::While { condition, body: Box::new(body) });
        let do_while = just(Token::Do)
            .ignore_then(statement.clone())
            .then_ignore(just(Token::While))
            .then(condition)
            .then_ignore(semicolon)
            .map(|(body, condition)| Doing::DoWhile { body: Box::new(body), condition });
        let head = simple()
            .or_not()
            .then_ignore(semicolon)
            .then(expression().or_not())
            .then_ignore(semicolon)
            .then(simple().or_not())
            .delimited_by(just(Token::OpenParen), just(Token::CloseParen));
        let for_ = just(Token::For).ignore_then(head).then(statement.clone()).map(
            |(((first, condition), next), body)| Doing::For {
                first: first.map(Box::new),
                condition,
                next: next.map(Box::new),
                body: Box::new(body),
            },
        );
        let block = statement
            .repeated()
            .collect::<Vec<_>>()
            .delimited_by(just(Token::OpenBrace), just(Token::CloseBrace))
            .map(Doing::Block);
        let jump = just(Token::Break)
            .to(Doing::Break)
            .or(just(Token::Continue).to(Doing::Continue))
            .or(just(Token::Return).ignore_then(expression().or_not()).map(Doing::Return))
            .or(just(Token::Goto).ignore_then(name()).map(Doing::Goto))
            .then_ignore(semicolon);
        let label = name().then_ignore(just(Token::Colon)).map(Doing::Label);
        let plain = simple().then_ignore(semicolon).map(|statement| statement.what);
        // A statement that cannot be read ends at its `;`, or with the block that it opens.
        let sign = any().filter(|token| {
            !matches!(token, Token::Semicolon | Token::OpenBrace | Token::CloseBrace | Token::Event)
        });
        let braces = recursive(|braces| {
            braces
                .or(none_of([Token::OpenBrace, Token::CloseBrace]).ignored())
                .repeated()
                .delimited_by(just(Token::OpenBrace), just(Token::CloseBrace))
        });
        let broken = sign
            .repeated()
            .at_least(1)
            .then(choice((semicolon.ignored(), braces, just(Token::CloseBrace).rewind().ignored())))
            .to(Doing::Broken);
        choice((
            semicolon.to(Doing::Empty),
            block,
            declaration().map(Doing::Declare),
            choice_,
            while_,
            do_while,
            for_,
            jump,
            label,
            plain,
        ))
        .recover_with(via_parser(broken))
        .map_with(|what, e| Statement { what, span: range(e.span()) })
        .labelled("a statement")
        .boxed()
    });
    statement.repeated().collect()
}

fn program<'t, 's: 't, I>() -> impl Parser<'t, I, Vec<Item<'s>>, Extra<'t, 's>>
where
    I: ValueInput<'t, Token = Token<'s>, Span = SimpleSpan>,
{
    let event = just(Token::Event)
        .or_not()
        .ignore_then(name().labelled("an event's name"))
        .then_ignore(just(Token::OpenParen))
        .then_ignore(just(Token::CloseParen))
        .then_ignore(just(Token::OpenBrace))
        .then(statements())
        .then(just(Token::CloseBrace).map_with(|_, e| range(e.span())))
        .map(|((name, body), end)| Item::Event { name, body, end });
    let fields = just(Token::Int)
        .ignore_then(name().separated_by(just(Token::Comma)).at_least(1).collect::<Vec<_>>())
        .then_ignore(just(Token::Semicolon))
        .repeated()
        .collect::<Vec<_>>()
        .delimited_by(just(Token::OpenBrace), just(Token::CloseBrace));
    let page = just(Token::Struct)
        .ignore_then(just(Token::Page))
        .ignore_then(fields)
        .then_ignore(just(Token::Semicolon).or_not())
        .map(|fields| Item::PageFields(fields.into_iter().flatten().collect()));
    // Up to where the next event seems to begin.
    let broken = any()
        .then(any().filter(|token| !matches!(token, Token::Event)).repeated())
        .to(Item::Broken);
    choice((page, declaration().map(Item::Declare), event))
        .recover_with(via_parser(broken))
        .repeated()
        .collect()
        .then_ignore(end())
}

/// An error of the parser in the reader's words.
fn explain(
    error: &Rich<'_, Token<'_>, SimpleSpan>,
    words: &[(Token<'_>, SimpleSpan)],
) -> Diagnostic {
    let span = range(*error.span());
    let RichReason::ExpectedFound { expected, found } = error.reason() else {
        return Diagnostic::new(Code::Syntax, span, error.to_string());
    };
    let here = words.partition_point(|word| word.1.start < span.start);
    let before = here.checked_sub(1).map(|at| &words[at]);
    let is_expected = |wanted: Token<'_>| {
        expected.iter().any(|e| matches!(e, RichPattern::Token(token) if **token == wanted))
    };
    // `Whlie (x) {` reads as a call that lacks its `;`.
    if let Some(error) = misspelt_keyword(found.as_deref(), here, words) {
        return error;
    }
    let found_words = match found {
        Some(token) => format!("`{}`", **token),
        None => "the end of the program".to_string(),
    };
    if found.as_deref() == Some(&Token::Else) {
        return lost_else(span, here, words);
    }
    if let (true, Some(&(token, before))) = (is_expected(Token::Semicolon), before) {
        return Diagnostic::new(
            Code::Syntax,
            before.end..before.end,
            format!("a `;` is missing after `{token}`"),
        )
        .suggest(";", "end the statement");
    }
    if matches!(found.as_deref(), None | Some(Token::Event)) && is_expected(Token::CloseBrace) {
        let error = Diagnostic::new(Code::Syntax, span, "a `}` is missing before this");
        let words = &words[..here];
        return match unclosed(words) {
            Some(open) => error.related(range(open), "the block that it would end").help("add `}`"),
            None => error.help("add `}`"),
        };
    }
    for (close, name) in [(Token::CloseParen, ")"), (Token::CloseBracket, "]")] {
        if let (true, Some(&(token, before))) = (is_expected(close), before) {
            return Diagnostic::new(
                Code::Syntax,
                before.end..before.end,
                format!("a `{name}` is missing after `{token}`"),
            )
            .suggest(name, format!("add `{name}`"));
        }
    }
    let wants_value =
        expected.iter().any(|e| matches!(e, RichPattern::Label(label) if label == "a value"));
    let mut wanted: Vec<String> = expected
        .iter()
        .filter_map(|pattern| match pattern {
            // These begin a value, too.
            RichPattern::Token(token)
                if wants_value && matches!(**token, Token::Not | Token::Minus) =>
            {
                None
            }
            RichPattern::Token(token) => Some(format!("`{}`", **token)),
            RichPattern::Label(label) => Some(label.to_string()),
            RichPattern::EndOfInput => Some("the end".to_string()),
            _ => None,
        })
        .collect();
    wanted.sort();
    wanted.dedup();
    let list = match wanted.as_slice() {
        [] => {
            return Diagnostic::new(Code::Syntax, span, format!("{found_words} cannot stand here"))
                .help("remove it");
        }
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    };
    let diagnostic =
        Diagnostic::new(Code::Syntax, span, format!("{found_words} stands where {list} belongs"));
    match (found.as_deref(), wanted.as_slice()) {
        (Some(Token::CloseBrace), _) if before.is_some_and(|b| b.0 == Token::CloseBrace) => {
            diagnostic.help("there is a `}` too many before it")
        }
        (_, [one]) if one.starts_with('`') => diagnostic.help(format!("write {one}")),
        _ => diagnostic,
    }
}

/// An `else` that no `if` stands before.
fn lost_else(
    span: std::ops::Range<usize>,
    here: usize,
    words: &[(Token<'_>, SimpleSpan)],
) -> Diagnostic {
    let error = Diagnostic::new(Code::Syntax, span, "this `else` has no `if` before it");
    match words[..here] {
        [.., (Token::CloseBrace, _), (Token::Semicolon, stray)] => {
            error.suggest_at(range(stray), "", "the `;` ended the `if`: remove it")
        }
        _ => error.help("put the statements between `if (…)` and `else` in `{` and `}`"),
    }
}

/// The innermost block without an end.
fn unclosed(words: &[(Token<'_>, SimpleSpan)]) -> Option<SimpleSpan> {
    let mut open = Vec::new();
    for (token, span) in words {
        match token {
            Token::OpenBrace => open.push(*span),
            Token::CloseBrace => {
                open.pop();
            }
            _ => {}
        }
    }
    open.pop()
}

fn misspelt_keyword(
    found: Option<&Token<'_>>,
    here: usize,
    words: &[(Token<'_>, SimpleSpan)],
) -> Option<Diagnostic> {
    let suspect = |at: usize| match words.get(at) {
        Some(&(Token::Name(name), span)) => meant(name, KEYWORDS.iter().copied()).map(|keyword| {
            Diagnostic::new(
                Code::Syntax,
                range(span),
                format!("`{name}` is no word that can begin a statement here"),
            )
            .suggest(keyword, format!("did you mean `{keyword}`?"))
        }),
        _ => None,
    };
    match (found, here.checked_sub(1).map(|at| words[at].0)) {
        // `Whlie (…) {`, `esle {`, `retrun x`, `Itn x`.
        (_, Some(Token::CloseParen)) => {
            let mut depth = 0_usize;
            let open = words[..here].iter().rposition(|(token, _)| {
                match token {
                    Token::CloseParen => depth += 1,
                    Token::OpenParen => depth -= 1,
                    _ => {}
                }
                depth == 0
            })?;
            suspect(open.checked_sub(1)?)
        }
        (_, Some(Token::Name(_))) => suspect(here - 1),
        _ => None,
    }
}
