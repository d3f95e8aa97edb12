//! A parsed program.

use std::ops::Range;

/// Where something stands in the text, in bytes.
pub(super) type Span = Range<usize>;

/// A name and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Name<'s> {
    pub(super) text: &'s str,
    pub(super) span: Span,
}

/// What stands outside of all others.
#[derive(Clone, Debug)]
pub(super) enum Item<'s> {
    /// `Event PageFault() { … }`; the word `Event` may be left out.
    Event { name: Name<'s>, body: Vec<Statement<'s>>, end: Span },
    /// Variables. Declared here or in Init, they are the whole program's.
    Declare(Vec<Declaration<'s>>),
    /// `struct Page { Int level; }`: integers that each page has.
    PageFields(Vec<Name<'s>>),
    /// What could not be read, and was reported.
    Broken,
}

/// A type's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Type {
    Int,
    Page,
    Queue,
}

/// One variable.
#[derive(Clone, Debug)]
pub(super) struct Declaration<'s> {
    pub(super) kind: Type,
    pub(super) name: Name<'s>,
    /// The number of elements of an array.
    pub(super) length: Option<Expression<'s>>,
    pub(super) initial: Option<Expression<'s>>,
    /// `by` a page's integer: pages are kept in its order.
    pub(super) ordered_by: Option<Name<'s>>,
}

/// A statement and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Statement<'s> {
    pub(super) what: Doing<'s>,
    pub(super) span: Span,
}

/// What a statement does.
#[derive(Clone, Debug)]
pub(super) enum Doing<'s> {
    Declare(Vec<Declaration<'s>>),
    /// `target = value`, or `target += value` with the operator.
    Assign {
        target: Expression<'s>,
        operator: Option<Binary>,
        value: Expression<'s>,
    },
    /// `target++` and `target--`, before or after.
    Step {
        target: Expression<'s>,
        up: bool,
    },
    /// An expression by itself: a call, if it is to have an effect.
    Evaluate(Expression<'s>),
    /// `if … else if … else …`: the conditions with their branches, and what is left.
    If {
        branches: Vec<(Expression<'s>, Statement<'s>)>,
        otherwise: Option<Box<Statement<'s>>>,
    },
    While {
        condition: Expression<'s>,
        body: Box<Statement<'s>>,
    },
    DoWhile {
        body: Box<Statement<'s>>,
        condition: Expression<'s>,
    },
    For {
        first: Option<Box<Statement<'s>>>,
        condition: Option<Expression<'s>>,
        next: Option<Box<Statement<'s>>>,
        body: Box<Statement<'s>>,
    },
    Break,
    Continue,
    Return(Option<Expression<'s>>),
    Goto(Name<'s>),
    Label(Name<'s>),
    Block(Vec<Statement<'s>>),
    /// A `;` by itself.
    Empty,
    /// What could not be read, and was reported.
    Broken,
}

/// An expression and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Expression<'s> {
    pub(super) what: Value<'s>,
    pub(super) span: Span,
}

/// What an expression is.
#[derive(Clone, Debug)]
pub(super) enum Value<'s> {
    Number(&'s str),
    Name(&'s str),
    Call { function: Name<'s>, arguments: Vec<Expression<'s>> },
    Element { array: Box<Expression<'s>>, index: Box<Expression<'s>> },
    Field { page: Box<Expression<'s>>, field: Name<'s> },
    Not(Box<Expression<'s>>),
    Negative(Box<Expression<'s>>),
    Binary { operator: Binary, left: Box<Expression<'s>>, right: Box<Expression<'s>> },
}

/// An operator between two values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
}

impl Binary {
    /// As it is written.
    pub(super) fn sign(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Subtract => "-",
            Binary::Multiply => "*",
            Binary::Divide => "/",
            Binary::Remainder => "%",
            Binary::Equal => "==",
            Binary::NotEqual => "!=",
            Binary::Less => "<",
            Binary::LessEqual => "<=",
            Binary::Greater => ">",
            Binary::GreaterEqual => ">=",
            Binary::And => "&&",
            Binary::Or => "||",
        }
    }
}
