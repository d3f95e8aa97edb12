//! From a tree to commands: names, types, and what each statement becomes.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::commands::{Commands, Label};
use super::diagnostic::{Code, Diagnostic};
use super::tree::{Item, Name, Statement};
use crate::program::{Event, EventNumber, Index, Kind, Program};
use crate::verify::Spot;

mod call;
mod condition;
mod declare;
mod operand;
mod statement;
mod value;

/// A program, and where its commands come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The program, not yet verified.
    pub program: Program,
    /// For each event, for each command, the part of the text that it comes from, in bytes.
    pub command_spans: Vec<Vec<Range<usize>>>,
    /// For each event, its name in the text.
    pub event_spans: Vec<Range<usize>>,
    /// For each operand, where it is declared or, having no declaration, needed first.
    pub operand_spans: Vec<Range<usize>>,
}

impl Compiled {
    /// The part of the text that a finding of the verifier is about, in bytes. A finding about the
    /// whole program is at its beginning.
    pub fn span(&self, spot: Spot) -> Range<usize> {
        let span = match spot {
            Spot::Program => None,
            Spot::Operand(operand) => self.operand_spans.get(operand),
            Spot::Event(event) => self.event_spans.get(event),
            Spot::Command { event, command } => {
                self.command_spans.get(event).and_then(|spans| spans.get(command))
            }
        };
        span.cloned().unwrap_or(0..0)
    }
}

/// Compiles a parsed program of `text_len` bytes.
pub(super) fn generate(items: &[Item<'_>], text_len: usize) -> Result<Compiled, Vec<Diagnostic>> {
    let mut generator = Generator::default();
    let mut bodies = Vec::new();
    for item in items {
        match item {
            Item::Event { name, body, .. } if name.text == "Init" => {
                generator.add_event(name);
                generator.init(body);
            }
            Item::Event { name, body, end } => {
                if let Some(number) = generator.add_event(name) {
                    bodies.push((number, name, body, end));
                }
            }
            Item::Declare(all) => generator.globals(all),
            Item::PageFields(fields) => generator.page_fields(fields),
            Item::Broken => {}
        }
    }
    for (number, name, body, end) in bodies {
        generator.event(number, name, body, end);
    }
    generator.events_are_complete(text_len);
    generator.program.events.sort_by_key(|event| event.number);
    generator.finish()
}

/// What a name stands for.
#[derive(Clone, Debug)]
struct Symbol {
    index: Index,
    kind: Kind,
    span: Range<usize>,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Int,
    Test,
    Page,
    Queue,
    Nothing,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Sort::Int => "an Int",
            Sort::Test => "a test",
            Sort::Page => "a Page",
            Sort::Queue => "a Queue",
            Sort::Nothing => "no value",
        }
    }
}

#[derive(Default)]
struct Generator<'s> {
    program: Program,
    spans: HashMap<EventNumber, Vec<Range<usize>>>,
    operand_spans: Vec<Range<usize>>,
    errors: Vec<Diagnostic>,
    events: HashMap<&'s str, (EventNumber, Range<usize>)>,
    /// Events that some other calls.
    called: HashSet<EventNumber>,
    fields: Vec<Name<'s>>,
    globals: HashMap<&'s str, Symbol>,
    constants: HashMap<i32, Index>,
    /// Operands for what lies between, by kind, and how many of them are in use.
    ints: Vec<Index>,
    pages: Vec<Index>,
    queues: Vec<Index>,
    ints_used: usize,
    pages_used: usize,
    queues_used: usize,
    numbered: Option<Index>,

    // Of the event that is written.
    event_name: &'s str,
    locals: HashMap<&'s str, Symbol>,
    commands: Option<Commands>,
    loops: Vec<Loop>,
    labels: HashMap<&'s str, (Label, Range<usize>)>,
}

#[derive(Clone, Copy)]
struct Loop {
    break_to: Label,
    continue_to: Label,
}

/// A wrong part was reported, and nothing can be written for it.
struct Reported;

type Done<T = ()> = Result<T, Reported>;

impl<'s> Generator<'s> {
    fn error(&mut self, error: Diagnostic) -> Reported {
        self.errors.push(error);
        Reported
    }

    fn finish(mut self) -> Result<Compiled, Vec<Diagnostic>> {
        if !self.errors.is_empty() {
            self.errors.sort_by_key(|error| error.span.start);
            self.errors.dedup();
            return Err(self.errors);
        }
        let (mut command_spans, mut event_spans) = (Vec::new(), Vec::new());
        for event in &self.program.events {
            command_spans.push(self.spans.remove(&event.number).unwrap_or_default());
            event_spans.push(self.events[event.name.as_str()].1.clone());
        }
        let operand_spans = self.operand_spans;
        Ok(Compiled { program: self.program, command_spans, event_spans, operand_spans })
    }

    fn event(
        &mut self,
        number: EventNumber,
        name: &Name<'s>,
        body: &[Statement<'s>],
        end: &Range<usize>,
    ) {
        self.event_name = name.text;
        self.locals.clear();
        self.labels.clear();
        self.loops.clear();
        self.commands = Some(Commands::new(name.span.clone()));
        self.find_labels(body);
        self.statements(body);
        let commands = self.commands.take().and_then(|commands| commands.finish(end.clone()));
        let Some((commands, spans)) = commands else {
            self.error(
                Diagnostic::new(
                    Code::TooLarge,
                    name.span.clone(),
                    format!("event `{}` has too many commands", name.text),
                )
                .help("move some to an event of their own and call it"),
            );
            return;
        };
        self.program.events.push(Event { number, name: name.text.to_string(), commands });
        self.spans.insert(number, spans);
    }

    fn out(&mut self) -> &mut Commands {
        self.commands.as_mut().expect("an event is being written")
    }
}
