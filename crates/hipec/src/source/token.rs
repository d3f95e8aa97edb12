//! The words of the language.

use std::fmt;
use std::ops::Range;

use logos::Logos;

use super::diagnostic::{Code, Diagnostic};

/// A word or sign. Comments in the manner of C and C++ are left out.
#[derive(Logos, Clone, Copy, PartialEq, Eq, Debug)]
#[logos(skip r"[ \t\r\n\f]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub(super) enum Token<'s> {
    #[regex(r"[A-Za-z_][A-Za-z0-9_]*")]
    Name(&'s str),
    /// Digits, not yet read as a number.
    #[regex(r"[0-9][A-Za-z0-9_]*")]
    Number(&'s str),
    /// A comment without an end.
    #[token("/*")]
    OpenComment,

    // Figure 3 writes `For` and `Event`, Figure 9 `if` and `while`: either way is right.
    #[token("event")]
    #[token("Event")]
    Event,
    #[token("int")]
    #[token("Int")]
    Int,
    #[token("Page")]
    Page,
    #[token("Queue")]
    Queue,
    #[token("struct")]
    Struct,
    #[token("if")]
    #[token("If")]
    If,
    #[token("else")]
    #[token("Else")]
    Else,
    #[token("while")]
    #[token("While")]
    While,
    #[token("do")]
    #[token("Do")]
    Do,
    #[token("for")]
    #[token("For")]
    For,
    #[token("break")]
    Break,
    #[token("continue")]
    Continue,
    #[token("return")]
    #[token("Return")]
    Return,
    #[token("goto")]
    Goto,

    #[token("(")]
    OpenParen,
    #[token(")")]
    CloseParen,
    #[token("{")]
    OpenBrace,
    #[token("}")]
    CloseBrace,
    #[token("[")]
    OpenBracket,
    #[token("]")]
    CloseBracket,
    #[token(";")]
    Semicolon,
    #[token(",")]
    Comma,
    #[token(":")]
    Colon,
    #[token(".")]
    Dot,
    #[token("++")]
    Increment,
    #[token("--")]
    Decrement,
    #[token("=")]
    Assign,
    #[token("+=")]
    AddAssign,
    #[token("-=")]
    SubAssign,
    #[token("*=")]
    MulAssign,
    #[token("/=")]
    DivAssign,
    #[token("%=")]
    RemAssign,
    #[token("==")]
    Equal,
    #[token("!=")]
    NotEqual,
    #[token("<")]
    Less,
    #[token("<=")]
    LessEqual,
    #[token(">")]
    Greater,
    #[token(">=")]
    GreaterEqual,
    #[token("&&")]
    And,
    #[token("||")]
    Or,
    #[token("!")]
    Not,
    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    #[token("*")]
    Star,
    #[token("/")]
    Slash,
    #[token("%")]
    Percent,
}

/// The keywords, for suggestions.
pub(super) const KEYWORDS: &[&str] = &[
    "if", "else", "while", "do", "for", "break", "continue", "return", "goto", "Int", "Page",
    "Queue", "Event", "struct",
];

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::Name(name) | Token::Number(name) => name,
            Token::OpenComment => "/*",
            Token::Event => "Event",
            Token::Int => "Int",
            Token::Page => "Page",
            Token::Queue => "Queue",
            Token::Struct => "struct",
            Token::If => "if",
            Token::Else => "else",
            Token::While => "while",
            Token::Do => "do",
            Token::For => "for",
            Token::Break => "break",
            Token::Continue => "continue",
            Token::Return => "return",
            Token::Goto => "goto",
            Token::OpenParen => "(",
            Token::CloseParen => ")",
            Token::OpenBrace => "{",
            Token::CloseBrace => "}",
            Token::OpenBracket => "[",
            Token::CloseBracket => "]",
            Token::Semicolon => ";",
            Token::Comma => ",",
            Token::Colon => ":",
            Token::Dot => ".",
            Token::Increment => "++",
            Token::Decrement => "--",
            Token::Assign => "=",
            Token::AddAssign => "+=",
            Token::SubAssign => "-=",
            Token::MulAssign => "*=",
            Token::DivAssign => "/=",
            Token::RemAssign => "%=",
            Token::Equal => "==",
            Token::NotEqual => "!=",
            Token::Less => "<",
            Token::LessEqual => "<=",
            Token::Greater => ">",
            Token::GreaterEqual => ">=",
            Token::And => "&&",
            Token::Or => "||",
            Token::Not => "!",
            Token::Plus => "+",
            Token::Minus => "-",
            Token::Star => "*",
            Token::Slash => "/",
            Token::Percent => "%",
        })
    }
}

/// Splits a program's text. What is no word of the language is reported and left out.
pub(super) fn words(text: &str) -> (Vec<(Token<'_>, Range<usize>)>, Vec<Diagnostic>) {
    let mut words = Vec::new();
    let mut errors = Vec::new();
    for (token, span) in Token::lexer(text).spanned() {
        match token {
            Ok(Token::OpenComment) => {
                errors.push(
                    Diagnostic::new(Code::Comment, span, "this comment has no end")
                        .help("end it with `*/`"),
                );
                break;
            }
            Ok(token) => words.push((token, span)),
            Err(()) => errors.push(unknown(&text[span.clone()], span)),
        }
    }
    (words, errors)
}

fn unknown(sign: &str, span: Range<usize>) -> Diagnostic {
    let error = Diagnostic::new(
        Code::UnknownSign,
        span,
        format!("`{}` is no sign of the language", sign.escape_debug()),
    );
    match sign {
        "&" => error.suggest("&&", "write `&&` for \"and\""),
        "|" => error.suggest("||", "write `||` for \"or\""),
        _ => error.help("remove it"),
    }
}
