//! A bound on nesting, so that no text can exhaust the parser's stack.

use std::ops::Range;

use super::diagnostic::{Code, Diagnostic};
use super::token::Token;

/// The sum of weights within each other, at most: 20 brackets or statements, or 60 operators.
pub(super) const MOST: usize = 60;

/// What takes the parser deeper weighs more than what only makes the tree deeper.
const DEEP: usize = 3;

/// Counts, at each word, at least as many levels as the parser will have entered there: open
/// brackets, and the words since the last end of a statement that each take another statement or
/// value behind them.
pub(super) fn check(words: &[(Token<'_>, Range<usize>)]) -> Option<Diagnostic> {
    // For each open bracket around the word, the words before it that lead on.
    let mut around: Vec<usize> = Vec::new();
    let mut leading = 0;
    let mut depth = 0;
    for (at, (token, span)) in words.iter().enumerate() {
        let next = words.get(at + 1).map(|word| word.0);
        let previous = at.checked_sub(1).map(|at| words[at].0);
        let weight = match token {
            // `else if` is one more branch of the same statement.
            Token::Else if next != Some(Token::If) => DEEP,
            Token::If if previous != Some(Token::Else) => DEEP,
            Token::While | Token::Do | Token::For | Token::Not | Token::Minus => DEEP,
            Token::Plus
            | Token::Star
            | Token::Slash
            | Token::Percent
            | Token::And
            | Token::Or
            | Token::Equal
            | Token::NotEqual
            | Token::Less
            | Token::LessEqual
            | Token::Greater
            | Token::GreaterEqual
            | Token::Dot
            | Token::OpenBracket => 1,
            _ => 0,
        };
        leading += weight;
        depth += weight;
        match token {
            Token::OpenParen | Token::OpenBrace | Token::OpenBracket => {
                around.push(std::mem::take(&mut leading));
                depth += DEEP;
            }
            Token::CloseParen | Token::CloseBrace | Token::CloseBracket => {
                if let Some(outer) = around.pop() {
                    depth -= DEEP + std::mem::replace(&mut leading, outer);
                }
            }
            _ => {}
        }
        // The statement is over, unless the next word takes it up.
        if matches!(token, Token::Semicolon | Token::CloseBrace | Token::Comma)
            && next != Some(Token::Else)
        {
            depth -= std::mem::take(&mut leading);
        }
        if depth > MOST {
            return Some(
                Diagnostic::new(
                    Code::TooDeep,
                    span.clone(),
                    "too many statements, brackets or operators within each other",
                )
                .help("use a variable for a part of it"),
            );
        }
    }
    None
}
