//! What is wrong with a program, where, and what to do.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Patch, Renderer, Snippet};

/// A mistake in a program's text, as plain data, so that every face can show it in its own way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// What kind of mistake it is.
    pub code: Code,
    /// Where it is, in bytes of the text.
    pub span: Range<usize>,
    /// What is wrong, in a sentence without a full stop.
    pub message: String,
    /// What to do, if there is something to say.
    pub help: Option<String>,
    /// What to put in the place of a part of the text, if that would mend it.
    pub replacement: Option<(Range<usize>, String)>,
    /// Another place that it has to do with, and why.
    pub related: Option<(Range<usize>, String)>,
}

/// The kinds of mistakes. The number stays with its kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Code {
    /// A sign that the language does not have.
    UnknownSign,
    /// A comment without an end.
    Comment,
    /// Words in an order that the language does not have.
    Syntax,
    /// Statements or expressions within each other too deeply.
    TooDeep,
    /// A number that is none, or too large.
    Number,
    /// A name that nothing was declared by.
    Undeclared,
    /// A name declared twice, or one that the language uses.
    Redeclared,
    /// A value of one type where another belongs.
    Type,
    /// A call with too few or too many arguments.
    Arguments,
    /// Something that cannot be assigned to.
    Assignment,
    /// A statement that does nothing, such as a stray `;`.
    NoEffect,
    /// An event missing, twice, or unknown.
    Event,
    /// A label missing or twice.
    Label,
    /// `break` or `continue` outside of a loop.
    OutsideLoop,
    /// A statement in Init that does not initialise.
    Init,
    /// More variables or commands than a program may have.
    TooLarge,
    /// Something that the verifier does not let run, see [`verify`](mod@crate::verify).
    Unverified,
}

impl Code {
    /// Its number, as it is printed.
    pub fn id(self) -> &'static str {
        match self {
            Code::UnknownSign => "H001",
            Code::Comment => "H002",
            Code::Syntax => "H003",
            Code::TooDeep => "H004",
            Code::Number => "H005",
            Code::Undeclared => "H010",
            Code::Redeclared => "H011",
            Code::Type => "H012",
            Code::Arguments => "H013",
            Code::Assignment => "H014",
            Code::NoEffect => "H015",
            Code::Event => "H016",
            Code::Label => "H017",
            Code::OutsideLoop => "H018",
            Code::Init => "H019",
            Code::TooLarge => "H020",
            Code::Unverified => "H030",
        }
    }
}

impl Diagnostic {
    pub(crate) fn new(code: Code, span: Range<usize>, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, span, message, help: None, replacement: None, related: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Suggests other text in the mistake's own place.
    pub(super) fn suggest(self, text: impl Into<String>, help: impl Into<String>) -> Self {
        let span = self.span.clone();
        self.suggest_at(span, text, help)
    }

    pub(super) fn suggest_at(
        mut self,
        span: Range<usize>,
        text: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        self.replacement = Some((span, text.into()));
        self.help(help)
    }

    pub(super) fn related(mut self, span: Range<usize>, why: impl Into<String>) -> Self {
        self.related = Some((span, why.into()));
        self
    }

    /// The line of `text` that it is in, from 1.
    pub fn line(&self, text: &str) -> usize {
        1 + text.bytes().take(self.span.start).filter(|&byte| byte == b'\n').count()
    }

    /// The mistake with its lines of `text`, a caret below, and the suggestion, without colours.
    /// `name` is what the reader knows the text by.
    pub fn render(&self, name: &str, text: &str) -> String {
        let span = within(text, &self.span);
        let mut snippet =
            Snippet::source(text).path(name).annotation(AnnotationKind::Primary.span(span));
        if let Some((span, why)) = &self.related {
            let span = within(text, span);
            snippet = snippet.annotation(AnnotationKind::Context.span(span).label(why.as_str()));
        }
        let mut groups = vec![
            Level::ERROR.primary_title(self.message.as_str()).id(self.code.id()).element(snippet),
        ];
        match (&self.help, &self.replacement) {
            (Some(help), Some((span, with))) => groups.push(
                Level::HELP.secondary_title(help.as_str()).element(
                    Snippet::source(text)
                        .path(name)
                        .patch(Patch::new(within(text, span), with.as_str())),
                ),
            ),
            (Some(help), None) => {
                let first = groups.remove(0);
                groups.push(first.element(Level::HELP.message(help.as_str())));
            }
            _ => {}
        }
        Renderer::plain().render(&groups)
    }
}

/// The renderer must not be asked for what is not in the text.
fn within(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start.min(text.len()));
    let end = text.floor_char_boundary(span.end.clamp(start, text.len()));
    start..end
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.id())?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

/// The name that was meant, if one of `known` is near enough to `written`.
pub(super) fn meant<'k>(
    written: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let lower = written.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_ascii_lowercase()), name))
        .filter(|&(distance, name)| distance <= (name.len().min(written.len()) / 3).max(1))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}
