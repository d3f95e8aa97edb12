//! From a tree to commands: names, types, and what each statement becomes.

use std::collections::HashMap;
use std::ops::Range;

use super::commands::{Commands, Label};
use super::diagnostic::{Code, Diagnostic, meant};
use super::names::{self, Function, Gives};
use super::tree::{Binary, Declaration, Doing, Expression, Item, Name, Statement, Type, Value};
use crate::program::{
    Arithmetic, Command, Event, EventNumber, Index, Kind, NAME_BYTES_MAX, OPERANDS_MAX, Operand,
    PAGE_SLOTS, Program, Relation, System,
};

/// Queues that [`Function::CreateQ`] and others know by number.
const NUMBERED_QUEUES: u16 = 256;

/// A program, and where its commands come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The program, not yet verified.
    pub program: Program,
    /// For each event, for each command, the part of the text that it comes from, in bytes.
    pub command_spans: Vec<Vec<Range<usize>>>,
}

/// Compiles a parsed program of `text_len` bytes.
pub(super) fn generate(items: &[Item<'_>], text_len: usize) -> Result<Compiled, Vec<Diagnostic>> {
    let mut generator = Generator::default();
    let mut bodies = Vec::new();
    for item in items {
        match item {
            Item::Event { name, body, end } if name.text == "Init" => {
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
    for required in ["PageFault", "Replace"] {
        if !generator.events.contains_key(required) {
            generator.error(
                Diagnostic::new(
                    Code::Event,
                    text_len..text_len,
                    format!("the program has no event `{required}`"),
                )
                .help(format!("add `Event {required}() {{ … }}`")),
            );
        }
    }
    for (number, name, body, end) in bodies {
        generator.event(number, name, body, end);
    }
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
    errors: Vec<Diagnostic>,
    events: HashMap<&'s str, (EventNumber, Range<usize>)>,
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
        let command_spans = self
            .program
            .events
            .iter()
            .map(|event| self.spans.remove(&event.number).unwrap_or_default())
            .collect();
        Ok(Compiled { program: self.program, command_spans })
    }

    // Declarations.

    fn add_event(&mut self, name: &Name<'s>) -> Option<EventNumber> {
        if let Some((_, first)) = self.events.get(name.text) {
            let first = first.clone();
            self.error(
                Diagnostic::new(
                    Code::Event,
                    name.span.clone(),
                    format!("there is an event `{}` already", name.text),
                )
                .related(first, "the first one")
                .help("put both in one, or name this one otherwise"),
            );
            return None;
        }
        if self.name_is_taken(name) {
            return None;
        }
        const SYSTEM: [EventNumber; 5] = [
            EventNumber::INIT,
            EventNumber::PAGE_FAULT,
            EventNumber::REPLACE,
            EventNumber::REFERENCE,
            EventNumber::REMOVED,
        ];
        let system = SYSTEM.into_iter().find(|number| number.system_name() == Some(name.text));
        let number = match system {
            Some(number) => number,
            None => {
                let used = self.events.values().map(|(number, _)| number.0);
                let called = used
                    .filter(|number| {
                        (EventNumber::FIRST_CALLED.0..=EventNumber::LAST_CALLED.0).contains(number)
                    })
                    .count();
                let number = usize::from(EventNumber::FIRST_CALLED.0) + called;
                match u8::try_from(number) {
                    Ok(number) if number <= EventNumber::LAST_CALLED.0 => EventNumber(number),
                    _ => {
                        self.error(
                            Diagnostic::new(
                                Code::TooLarge,
                                name.span.clone(),
                                "there are too many events",
                            )
                            .help("put some of them together"),
                        );
                        return None;
                    }
                }
            }
        };
        self.events.insert(name.text, (number, name.span.clone()));
        (system != Some(EventNumber::INIT)).then_some(number)
    }

    /// Reports a name that cannot be declared.
    fn name_is_taken(&mut self, name: &Name<'s>) -> bool {
        let why = if names::function(name.text).is_some() {
            "is a function of the language"
        } else if names::system(name.text).is_some() {
            "is what the system tells by this name, and needs no declaration"
        } else if names::WORDS.contains(&name.text) {
            "is a word of the language"
        } else if name.text.starts_with('_') {
            "begins with `_`, as the language's own names do"
        } else if name.text.len() > NAME_BYTES_MAX - EVENT_PREFIX_BYTES {
            "is too long"
        } else {
            return false;
        };
        let name_ = name.text;
        self.error(
            Diagnostic::new(Code::Redeclared, name.span.clone(), format!("`{name_}` {why}"))
                .help("choose another name"),
        );
        true
    }

    fn page_fields(&mut self, fields: &[Name<'s>]) {
        for field in fields {
            if let Some(first) = self.fields.iter().find(|known| known.text == field.text) {
                let first = first.span.clone();
                self.error(
                    Diagnostic::new(
                        Code::Redeclared,
                        field.span.clone(),
                        format!("pages have a `{}` already", field.text),
                    )
                    .related(first, "declared here")
                    .help("remove one of them"),
                );
            } else if self.fields.len() == usize::from(PAGE_SLOTS) {
                self.error(
                    Diagnostic::new(
                        Code::TooLarge,
                        field.span.clone(),
                        format!("a page has at most {PAGE_SLOTS} integers of its own"),
                    )
                    .help("remove one, or keep two small numbers in one"),
                );
            } else {
                self.fields.push(field.clone());
            }
        }
    }

    fn globals(&mut self, all: &[Declaration<'s>]) {
        for declaration in all {
            let _ = self.declare(declaration, true);
        }
    }

    /// Init only says what operands hold at first.
    fn init(&mut self, body: &[Statement<'s>]) {
        for statement in body {
            match &statement.what {
                Doing::Declare(all) => self.globals(all),
                Doing::Empty | Doing::Broken => {}
                Doing::Block(inner) => self.init(inner),
                Doing::Assign { target, operator: None, value } => {
                    let _ = self.init_assign(target, value);
                }
                Doing::Evaluate(Expression {
                    what: Value::Call { function, arguments }, ..
                }) if function.text == "CreateQ" => {
                    // Queues are there from the beginning.
                    if let [Expression { what: Value::Name(_), .. }] = arguments.as_slice() {
                        continue;
                    }
                    self.error(
                        Diagnostic::new(
                            Code::Arguments,
                            statement.span.clone(),
                            "CreateQ takes one queue",
                        )
                        .help("write `CreateQ(queue)`"),
                    );
                }
                _ => {
                    self.error(
                        Diagnostic::new(
                            Code::Init,
                            statement.span.clone(),
                            "Init only says what variables there are and what they hold at first",
                        )
                        .help("do this in PageFault, behind a test of a variable if it is to be done once"),
                    );
                }
            }
        }
    }

    fn init_assign(&mut self, target: &Expression<'s>, value: &Expression<'s>) -> Done {
        let Value::Name(name) = target.what else {
            return Err(self.not_assignable(target));
        };
        let symbol = self.symbol(name, &target.span)?;
        let value = self.constant(value)?;
        let place = usize::from(symbol.index.0)
            .checked_sub(crate::program::PRESET_OPERANDS)
            .and_then(|place| self.program.operands.get_mut(place));
        match place {
            Some(Operand { kind: Kind::Int { initial }, .. }) => {
                *initial = value;
                Ok(())
            }
            _ => Err(self.not_assignable(target)),
        }
    }

    fn declare(&mut self, declaration: &Declaration<'s>, is_global: bool) -> Done<Symbol> {
        let Declaration { kind, name, length, initial, ordered_by } = declaration;
        if self.name_is_taken(name) {
            return Err(Reported);
        }
        let known = self.locals.get(name.text).or_else(|| self.globals.get(name.text));
        let known = known.map(|known| known.span.clone());
        let known = known.or_else(|| self.events.get(name.text).map(|event| event.1.clone()));
        if let Some(first) = known {
            return Err(self.error(
                Diagnostic::new(
                    Code::Redeclared,
                    name.span.clone(),
                    format!("`{}` is declared already", name.text),
                )
                .related(first, "here")
                .help("remove one of the declarations, or choose another name"),
            ));
        }
        if let (Type::Int | Type::Page, Some(odd)) = (kind, length) {
            return Err(self.error(
                Diagnostic::new(Code::Type, odd.span.clone(), "only queues come in arrays")
                    .help("give pages integers of their own: `struct Page { Int level; }`"),
            ));
        }
        if let (Type::Page | Type::Queue, Some(odd)) = (kind, initial) {
            return Err(self.error(
                Diagnostic::new(
                    Code::Type,
                    odd.span.clone(),
                    "only an Int has a value from the beginning",
                )
                .help("queues are empty and pages none at first"),
            ));
        }
        let operand = match (kind, length, ordered_by) {
            (Type::Int, ..) => {
                let value = match initial {
                    Some(value) if is_global => self.constant(value)?,
                    _ => 0,
                };
                Kind::Int { initial: value }
            }
            (Type::Page, ..) => Kind::Page,
            (Type::Queue, None, None) => Kind::Queue,
            (Type::Queue, None, Some(field)) => Kind::Ordered { slot: self.slot(field)? },
            (Type::Queue, Some(length), _) => {
                let len = self.constant(length)?;
                match u16::try_from(len) {
                    Ok(len) if len > 0 && ordered_by.is_none() => Kind::Queues { len },
                    _ => {
                        return Err(self.error(
                            Diagnostic::new(
                                Code::Type,
                                length.span.clone(),
                                "an array has 1 to 65535 queues, none of them ordered",
                            )
                            .help("write a number, as in `Queue level[26];`"),
                        ));
                    }
                }
            }
        };
        let is_free = self.program.find(name.text).is_none();
        let text = if is_global || is_free {
            name.text.to_string()
        } else {
            // Another event has a variable of this name.
            let event = &self.event_name[..self.event_name.len().min(EVENT_PREFIX_BYTES - 2)];
            format!("_{event}_{}", name.text)
        };
        let index = self.operand(&text, operand, &name.span)?;
        let symbol = Symbol { index, kind: operand, span: name.span.clone() };
        let scope = if is_global { &mut self.globals } else { &mut self.locals };
        scope.insert(name.text, symbol.clone());
        Ok(symbol)
    }

    fn operand(&mut self, name: &str, kind: Kind, span: &Range<usize>) -> Done<Index> {
        if self.program.operands.len() == OPERANDS_MAX {
            return Err(self.error(
                Diagnostic::new(
                    Code::TooLarge,
                    span.clone(),
                    format!("the program has more than {OPERANDS_MAX} variables and numbers"),
                )
                .help("use some of them twice"),
            ));
        }
        self.program.operands.push(Operand { name: name.to_string(), kind });
        Ok(Index::declared(self.program.operands.len() - 1))
    }

    /// The operand that holds a number.
    fn number(&mut self, value: i32, span: &Range<usize>) -> Done<Index> {
        if let Some(&index) = self.constants.get(&value) {
            return Ok(index);
        }
        let sign = if value < 0 { "minus_" } else { "" };
        let name = format!("_{sign}{}", value.unsigned_abs());
        let index = self.operand(&name, Kind::Int { initial: value }, span)?;
        self.constants.insert(value, index);
        Ok(index)
    }

    fn system(&mut self, system: System, span: &Range<usize>) -> Done<Index> {
        match self.program.find(system.name()) {
            Some(index) => Ok(index),
            None => self.operand(system.name(), Kind::System(system), span),
        }
    }

    fn between(&mut self, sort: Sort, span: &Range<usize>) -> Done<Index> {
        let (all, used, name, kind) = match sort {
            Sort::Page => (&self.pages, &mut self.pages_used, "_page", Kind::Page),
            Sort::Queue => (&self.queues, &mut self.queues_used, "_queue", Kind::QueueRef),
            _ => (&self.ints, &mut self.ints_used, "_int", Kind::Int { initial: 0 }),
        };
        *used += 1;
        if let Some(&index) = all.get(*used - 1) {
            return Ok(index);
        }
        let name = format!("{name}{}", *used);
        let index = self.operand(&name, kind, span)?;
        match sort {
            Sort::Page => self.pages.push(index),
            Sort::Queue => self.queues.push(index),
            _ => self.ints.push(index),
        }
        Ok(index)
    }

    /// A number that is known now.
    fn constant(&mut self, value: &Expression<'s>) -> Done<i32> {
        let fits = |value: i64| i32::try_from(value).ok();
        let folded = match &value.what {
            Value::Number(digits) => return self.digits(digits, false, &value.span),
            Value::Name(name) => names::truth(name).map(i32::from),
            Value::Negative(inner) => match inner.what {
                Value::Number(digits) => return self.digits(digits, true, &value.span),
                _ => self.constant(inner)?.checked_neg(),
            },
            Value::Binary { operator, left, right } => {
                let (a, b) = (i64::from(self.constant(left)?), i64::from(self.constant(right)?));
                match operator {
                    Binary::Add => fits(a + b),
                    Binary::Subtract => fits(a - b),
                    Binary::Multiply => fits(a * b),
                    Binary::Divide => a.checked_div(b).and_then(fits),
                    Binary::Remainder => a.checked_rem(b).and_then(fits),
                    _ => None,
                }
            }
            _ => None,
        };
        match folded {
            Some(value) => Ok(value),
            None => Err(self.error(
                Diagnostic::new(
                    Code::Number,
                    value.span.clone(),
                    "this must be a number that is known before the program runs",
                )
                .help("write a number of 32 bits, as in `Int target = 8;`"),
            )),
        }
    }

    fn digits(&mut self, digits: &str, is_negative: bool, span: &Range<usize>) -> Done<i32> {
        let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => digits.parse::<i64>(),
        };
        let value = value.ok().map(|value| if is_negative { -value } else { value });
        match value.map(i32::try_from) {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(self.error(
                Diagnostic::new(Code::Number, span.clone(), "this number is too large")
                    .help(format!("write one from {} to {}", i32::MIN, i32::MAX)),
            )),
            None => Err(self.error(
                Diagnostic::new(Code::Number, span.clone(), format!("`{digits}` is no number"))
                    .help("write digits, or 0x and hexadecimal ones"),
            )),
        }
    }

    // Names.

    fn symbol(&mut self, name: &str, span: &Range<usize>) -> Done<Symbol> {
        if let Some(symbol) = self.locals.get(name).or_else(|| self.globals.get(name)) {
            return Ok(symbol.clone());
        }
        let preset = match name {
            "_free_queue" => Some((Index::FREE_QUEUE, Kind::Queue)),
            "_free_count" => Some((Index::FREE_COUNT, Kind::Int { initial: 0 })),
            _ => None,
        };
        if let Some((index, kind)) = preset {
            return Ok(Symbol { index, kind, span: 0..0 });
        }
        if let Some(system) = names::system(name) {
            let index = self.system(system, span)?;
            return Ok(Symbol { index, kind: Kind::System(system), span: 0..0 });
        }
        Err(self.undeclared(name, span))
    }

    fn undeclared(&mut self, name: &str, span: &Range<usize>) -> Reported {
        let error =
            Diagnostic::new(Code::Undeclared, span.clone(), format!("`{name}` is not declared"));
        let mut known: Vec<&str> = self.locals.keys().chain(self.globals.keys()).copied().collect();
        known.sort_unstable();
        known.extend(["_free_queue", "_free_count"]);
        known.extend(System::ALL.iter().map(|system| system.name()));
        let error = match meant(name, known) {
            Some(known) => error.suggest(known, format!("did you mean `{known}`?")),
            None => error.help(format!("declare it in Init: `Int {name};`, or Page or Queue")),
        };
        self.error(error)
    }

    fn slot(&mut self, field: &Name<'s>) -> Done<u8> {
        if let Some(slot) = self.fields.iter().position(|known| known.text == field.text) {
            return Ok(slot as u8);
        }
        let error = Diagnostic::new(
            Code::Undeclared,
            field.span.clone(),
            format!("pages have no integer `{}`", field.text),
        );
        let known = meant(field.text, self.fields.iter().map(|known| known.text));
        let error = match known {
            Some(known) => error.suggest(known, format!("did you mean `{known}`?")),
            None => error.help(format!(
                "declare it before the events: `struct Page {{ Int {}; }}`",
                field.text
            )),
        };
        Err(self.error(error))
    }

    fn not_assignable(&mut self, target: &Expression<'s>) -> Reported {
        self.error(
            Diagnostic::new(Code::Assignment, target.span.clone(), "this cannot be changed")
                .help("only variables and the integers of pages can"),
        )
    }

    // Statements.

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

    fn find_labels(&mut self, body: &[Statement<'s>]) {
        for statement in body {
            match &statement.what {
                Doing::Label(name) => {
                    let label = self.out().label();
                    let known = self.labels.insert(name.text, (label, name.span.clone()));
                    if let Some((_, first)) = known {
                        self.error(
                            Diagnostic::new(
                                Code::Label,
                                name.span.clone(),
                                format!("this event has a label `{}` already", name.text),
                            )
                            .related(first, "the first one")
                            .help("choose another name"),
                        );
                    }
                }
                Doing::Block(inner) => self.find_labels(inner),
                Doing::If { branches, otherwise } => {
                    for (_, body) in branches {
                        self.find_labels(std::slice::from_ref(body));
                    }
                    if let Some(body) = otherwise {
                        self.find_labels(std::slice::from_ref(body));
                    }
                }
                Doing::While { body, .. }
                | Doing::DoWhile { body, .. }
                | Doing::For { body, .. } => {
                    self.find_labels(std::slice::from_ref(body));
                }
                _ => {}
            }
        }
    }

    fn out(&mut self) -> &mut Commands {
        self.commands.as_mut().expect("an event is being written")
    }

    fn statements(&mut self, all: &[Statement<'s>]) {
        for statement in all {
            let _ = self.statement(statement);
            (self.ints_used, self.pages_used, self.queues_used) = (0, 0, 0);
        }
    }

    fn statement(&mut self, statement: &Statement<'s>) -> Done {
        self.out().span = statement.span.clone();
        match &statement.what {
            Doing::Declare(all) => {
                for declaration in all {
                    let symbol = self.declare(declaration, false)?;
                    if let (Some(value), Kind::Int { .. }) = (&declaration.initial, symbol.kind) {
                        self.int_into(value, symbol.index)?;
                    }
                }
                Ok(())
            }
            Doing::Assign { target, operator, value } => self.assign(target, *operator, value),
            Doing::Step { target, up } => self.step(target, *up),
            Doing::Evaluate(value) => self.evaluate(value),
            Doing::If { branches, otherwise } => {
                self.if_(branches, otherwise.as_deref());
                Ok(())
            }
            Doing::While { condition, body } => {
                self.loop_(None, Some(condition), None, body, false);
                Ok(())
            }
            Doing::DoWhile { body, condition } => {
                self.loop_(None, Some(condition), None, body, true);
                Ok(())
            }
            Doing::For { first, condition, next, body } => {
                self.loop_(first.as_deref(), condition.as_ref(), next.as_deref(), body, false);
                Ok(())
            }
            Doing::Break | Doing::Continue => {
                let word =
                    if matches!(statement.what, Doing::Break) { "break" } else { "continue" };
                match self.way_out(statement)? {
                    Some(label) => {
                        self.out().jump(label);
                        Ok(())
                    }
                    None => Err(self.error(
                        Diagnostic::new(
                            Code::OutsideLoop,
                            statement.span.clone(),
                            format!("`{word}` is in no loop"),
                        )
                        .suggest("return;", "to end the event, use `return`"),
                    )),
                }
            }
            Doing::Goto(_) => {
                if let Some(label) = self.way_out(statement)? {
                    self.out().jump(label);
                }
                Ok(())
            }
            Doing::Return(None) => {
                self.out().push(Command::Return { page: None });
                Ok(())
            }
            Doing::Return(Some(value)) => {
                let page = self.page(value)?;
                self.out().push(Command::Return { page: Some(page) });
                Ok(())
            }
            Doing::Label(name) => {
                if let Some(&(label, _)) = self.labels.get(name.text) {
                    self.out().place_reachable(label);
                }
                Ok(())
            }
            Doing::Block(inner) => {
                self.statements(inner);
                Ok(())
            }
            Doing::Empty | Doing::Broken => Ok(()),
        }
    }

    /// Where a statement leads that does nothing but go elsewhere.
    fn way_out(&mut self, statement: &Statement<'s>) -> Done<Option<Label>> {
        match &statement.what {
            Doing::Break => Ok(self.loops.last().map(|it| it.break_to)),
            Doing::Continue => Ok(self.loops.last().map(|it| it.continue_to)),
            Doing::Goto(name) => match self.labels.get(name.text) {
                Some(&(label, _)) => Ok(Some(label)),
                None => {
                    let error = Diagnostic::new(
                        Code::Label,
                        name.span.clone(),
                        format!("this event has no label `{}`", name.text),
                    );
                    let known = meant(name.text, self.labels.keys().copied());
                    let error = match known {
                        Some(known) => error.suggest(known, format!("did you mean `{known}`?")),
                        None => error.help(format!("write `{}:` before a statement", name.text)),
                    };
                    Err(self.error(error))
                }
            },
            Doing::Block(inner) => match inner.as_slice() {
                [one] => self.way_out(one),
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// A `;` that is all of a body is a slip.
    fn body(&mut self, word: &str, body: &Statement<'s>) {
        if matches!(body.what, Doing::Empty) {
            self.error(
                Diagnostic::new(
                    Code::NoEffect,
                    body.span.clone(),
                    format!("this `;` is all that the `{word}` does"),
                )
                .suggest("", "remove it; where nothing is to be done, write `{ }`"),
            );
            return;
        }
        self.statements(std::slice::from_ref(body));
    }

    fn if_(
        &mut self,
        branches: &[(Expression<'s>, Statement<'s>)],
        otherwise: Option<&Statement<'s>>,
    ) {
        let end = self.out().label();
        for (at, (condition, body)) in branches.iter().enumerate() {
            let is_last = at + 1 == branches.len() && otherwise.is_none();
            self.out().span = condition.span.clone();
            // `if (…) break;` goes at once.
            if matches!(
                body.what,
                Doing::Break | Doing::Continue | Doing::Goto(_) | Doing::Block(_)
            ) && let Ok(Some(label)) = self.way_out(body)
            {
                let _ = self.go_if(condition, true, label);
                continue;
            }
            let next = if is_last { end } else { self.out().label() };
            let _ = self.go_if(condition, false, next);
            self.body("if", body);
            if !is_last {
                self.out().jump(end);
                self.out().place(next);
            }
        }
        if let Some(body) = otherwise {
            self.body("else", body);
        }
        self.out().place(end);
    }

    fn loop_(
        &mut self,
        first: Option<&Statement<'s>>,
        condition: Option<&Expression<'s>>,
        next: Option<&Statement<'s>>,
        body: &Statement<'s>,
        is_tested_last: bool,
    ) {
        if let Some(first) = first {
            self.statements(std::slice::from_ref(first));
        }
        let out = self.out();
        let (begin, continue_to, break_to) = (out.label(), out.label(), out.label());
        out.place(begin);
        if let (Some(condition), false) = (condition, is_tested_last) {
            self.out().span = condition.span.clone();
            let _ = self.go_if(condition, false, break_to);
        }
        self.loops.push(Loop { break_to, continue_to });
        // `while (…);` may wait for nothing, but a `for` may do all in its head.
        if next.is_none() {
            let word = if is_tested_last { "do" } else { "while" };
            self.body(word, body);
        } else {
            self.statements(std::slice::from_ref(body));
        }
        self.loops.pop();
        self.out().place(continue_to);
        if let Some(next) = next {
            self.statements(std::slice::from_ref(next));
        }
        match (condition, is_tested_last) {
            (Some(condition), true) => {
                self.out().span = condition.span.clone();
                let _ = self.go_if(condition, true, begin);
            }
            _ => self.out().jump(begin),
        }
        self.out().place(break_to);
    }

    fn assign(
        &mut self,
        target: &Expression<'s>,
        operator: Option<Binary>,
        value: &Expression<'s>,
    ) -> Done {
        match &target.what {
            Value::Name(name) => {
                let symbol = self.symbol(name, &target.span)?;
                match (symbol.kind, operator) {
                    (Kind::Int { .. }, None) => self.int_into(value, symbol.index),
                    (Kind::Int { .. }, Some(operator)) => {
                        let source = self.int(value)?;
                        self.arith(symbol.index, source, operator);
                        Ok(())
                    }
                    (Kind::Page, None) => self.page_into(value, symbol.index),
                    (Kind::System(_), _) => Err(self.error(
                        Diagnostic::new(
                            Code::Assignment,
                            target.span.clone(),
                            format!("`{name}` is the system's, and only read"),
                        )
                        .help("copy it to a variable of your own"),
                    )),
                    (Kind::Page, Some(_)) => Err(self.wrong_type(target, Sort::Page, "an Int")),
                    _ => Err(self.error(
                        Diagnostic::new(
                            Code::Assignment,
                            target.span.clone(),
                            "a queue is not assigned",
                        )
                        .help("move its pages with DeQueue and EnQueue"),
                    )),
                }
            }
            Value::Field { page, field } => {
                let slot = self.slot(field)?;
                let page = self.page(page)?;
                let source = match operator {
                    None => self.int(value)?,
                    Some(operator) => {
                        let held = self.between(Sort::Int, &target.span)?;
                        self.out().push(Command::Load { target: held, page, slot });
                        let source = self.int(value)?;
                        self.arith(held, source, operator);
                        held
                    }
                };
                self.out().push(Command::Store { page, slot, source });
                Ok(())
            }
            _ => Err(self.not_assignable(target)),
        }
    }

    fn step(&mut self, target: &Expression<'s>, up: bool) -> Done {
        let operation = if up { Arithmetic::Increment } else { Arithmetic::Decrement };
        let source = Index::FREE_QUEUE;
        match &target.what {
            Value::Name(name) => {
                let symbol = self.symbol(name, &target.span)?;
                if !matches!(symbol.kind, Kind::Int { .. }) {
                    return Err(self.not_assignable(target));
                }
                let target = symbol.index;
                self.out().push(Command::Arith { target, source, operation });
            }
            Value::Field { page, field } => {
                let slot = self.slot(field)?;
                let page = self.page(page)?;
                let held = self.between(Sort::Int, &target.span)?;
                self.out().push(Command::Load { target: held, page, slot });
                self.out().push(Command::Arith { target: held, source, operation });
                self.out().push(Command::Store { page, slot, source: held });
            }
            _ => return Err(self.not_assignable(target)),
        }
        Ok(())
    }

    fn arith(&mut self, target: Index, source: Index, operator: Binary) {
        let operation = match operator {
            Binary::Add => Arithmetic::Add,
            Binary::Subtract => Arithmetic::Subtract,
            Binary::Multiply => Arithmetic::Multiply,
            Binary::Divide => Arithmetic::Divide,
            _ => Arithmetic::Remainder,
        };
        self.out().push(Command::Arith { target, source, operation });
    }

    fn evaluate(&mut self, value: &Expression<'s>) -> Done {
        let Value::Call { function, arguments } = &value.what else {
            return Err(self.error(
                Diagnostic::new(Code::NoEffect, value.span.clone(), "this does nothing")
                    .help("assign it to a variable, or remove it"),
            ));
        };
        if let Some(&(event, _)) = self.events.get(function.text) {
            if !arguments.is_empty() {
                return Err(self.error(
                    Diagnostic::new(
                        Code::Arguments,
                        value.span.clone(),
                        "an event takes no arguments",
                    )
                    .help("put them in variables"),
                ));
            }
            return self.call(event, &function.span);
        }
        let (what, _, gives) = self.function(function)?;
        match (what, gives) {
            (Function::Request, _) => {
                let test = self.test(what, function, arguments, &value.span)?;
                // Its answer does not matter, but the next Jump would act on it.
                let next = self.out().label();
                self.out().jump_unless(test, next);
                self.out().place(next);
                Ok(())
            }
            (Function::DeQueue, _) => {
                let page = self.between(Sort::Page, &value.span)?;
                self.page_into(value, page)
            }
            (_, Gives::Nothing) => self.effect(what, function, arguments, &value.span),
            _ => Err(self.error(
                Diagnostic::new(
                    Code::NoEffect,
                    value.span.clone(),
                    format!("{} only answers, and nothing uses the answer", function.text),
                )
                .help("use it in an `if` or assign it, or remove it"),
            )),
        }
    }

    fn call(&mut self, event: EventNumber, span: &Range<usize>) -> Done {
        if event == EventNumber::INIT {
            return Err(self.error(
                Diagnostic::new(Code::Event, span.clone(), "Init is no event to call")
                    .help("assign the variables"),
            ));
        }
        self.out().push(Command::Call { event });
        Ok(())
    }

    fn function(&mut self, name: &Name<'s>) -> Done<(Function, &'static str, Gives)> {
        if let Some(known) = names::function(name.text) {
            return Ok(known);
        }
        let error = Diagnostic::new(
            Code::Undeclared,
            name.span.clone(),
            format!("there is no function or event `{}`", name.text),
        );
        let mut known: Vec<&str> = self.events.keys().copied().collect();
        known.sort_unstable();
        let known = known.into_iter().chain(names::function_names());
        let error = match meant(name.text, known) {
            Some(known) => error.suggest(known, format!("did you mean `{known}`?")),
            None => error.help(format!("write it as an event: `Event {}() {{ … }}`", name.text)),
        };
        Err(self.error(error))
    }

    fn arguments<'a, const N: usize>(
        &mut self,
        function: &Name<'s>,
        arguments: &'a [Expression<'s>],
        span: &Range<usize>,
    ) -> Done<[&'a Expression<'s>; N]> {
        let all: Vec<&Expression<'s>> = arguments.iter().collect();
        let form = names::function(function.text).map_or("", |it| it.1);
        all.try_into().map_err(|_| {
            let (given, wanted) = (arguments.len(), N);
            let s = if wanted == 1 { "" } else { "s" };
            self.error(
                Diagnostic::new(
                    Code::Arguments,
                    span.clone(),
                    format!("{} takes {wanted} argument{s}, and here has {given}", function.text),
                )
                .help(format!("write `{form}`")),
            )
        })
    }

    /// An argument that is one of the language's words.
    fn word<T>(
        &mut self,
        argument: &Expression<'s>,
        read: fn(&str) -> Option<T>,
        words: [&'static str; 2],
    ) -> Done<T> {
        if let Value::Name(name) = argument.what
            && let Some(read) = read(name)
        {
            return Ok(read);
        }
        let [one, other] = words;
        let error = Diagnostic::new(
            Code::Type,
            argument.span.clone(),
            format!("{one} or {other} belongs here"),
        );
        let near = match argument.what {
            Value::Name(name) => meant(name, words),
            _ => None,
        };
        let error = match near {
            Some(near) => error.suggest(near, format!("did you mean `{near}`?")),
            None => error.help(format!("write {one} or {other}")),
        };
        Err(self.error(error))
    }

    fn effect(
        &mut self,
        what: Function,
        function: &Name<'s>,
        arguments: &[Expression<'s>],
        span: &Range<usize>,
    ) -> Done {
        let command = match what {
            Function::EnQueue => {
                if let [queue, end] = arguments
                    && matches!(end.what, Value::Name("HEAD" | "TAIL"))
                {
                    // Figure 9 does this.
                    return Err(self.error(
                        Diagnostic::new(
                            Code::Arguments,
                            span.clone(),
                            "EnQueue is not told which page",
                        )
                        .suggest_at(
                            queue.span.start..queue.span.start,
                            "page, ",
                            "name the page first",
                        ),
                    ));
                }
                // In an ordered queue the page finds its own place.
                if let [page, queue] = arguments
                    && let Value::Name(name) = queue.what
                    && let Kind::Ordered { .. } = self.symbol(name, &queue.span)?.kind
                {
                    let (page, queue) = (self.page(page)?, self.queue(queue)?);
                    Command::EnQueue { page, queue, end: crate::program::End::Tail }
                } else {
                    let [page, queue, end] = self.arguments(function, arguments, span)?;
                    let page = self.page(page)?;
                    let queue = self.queue(queue)?;
                    let end = self.word(end, names::end, ["HEAD", "TAIL"])?;
                    Command::EnQueue { page, queue, end }
                }
            }
            Function::Release => {
                let [page] = self.arguments(function, arguments, span)?;
                Command::Release { page: self.page(page)? }
            }
            Function::Flush => {
                let [page] = self.arguments(function, arguments, span)?;
                Command::Flush { page: self.page(page)? }
            }
            Function::Set => {
                let [page, bit, to] = self.arguments(function, arguments, span)?;
                let page = self.page(page)?;
                let bit = self.word(bit, names::bit, ["REFERENCE", "MODIFY"])?;
                let to = self.word(to, names::setting, ["SET", "RESET"])?;
                Command::Set { page, bit, to }
            }
            Function::Map => {
                let [page, address] = self.arguments(function, arguments, span)?;
                Command::Map { page: self.page(page)?, address: self.int(address)? }
            }
            Function::UnMap => {
                let [page] = self.arguments(function, arguments, span)?;
                Command::UnMap { page: self.page(page)? }
            }
            Function::Prefetch => {
                let [address, pages] = self.arguments(function, arguments, span)?;
                Command::Prefetch { address: self.int(address)?, pages: self.int(pages)? }
            }
            Function::CreateQ => {
                let [queue] = self.arguments(function, arguments, span)?;
                // All queues are there from the beginning: only the name is looked at.
                return match queue.what {
                    Value::Name(name) => self.symbol(name, &queue.span).map(|_| ()),
                    _ => self.int(queue).map(|_| ()),
                };
            }
            _ => {
                let [event] = self.arguments(function, arguments, span)?;
                let Value::Name(name) = event.what else {
                    return Err(self.error(
                        Diagnostic::new(
                            Code::Type,
                            event.span.clone(),
                            "Call takes an event's name",
                        )
                        .help("write `Call(event)` or `event()`"),
                    ));
                };
                return match self.events.get(name) {
                    Some(&(number, _)) => self.call(number, &event.span),
                    None => {
                        let name = Name { text: name, span: event.span.clone() };
                        Err(self.function(&name).map_or_else(|it| it, |_| Reported))
                    }
                };
            }
        };
        self.out().push(command);
        Ok(())
    }

    /// The command of a function that answers a test.
    fn test(
        &mut self,
        what: Function,
        function: &Name<'s>,
        arguments: &[Expression<'s>],
        span: &Range<usize>,
    ) -> Done<Command> {
        Ok(match what {
            Function::EmptyQ => {
                let [queue] = self.arguments(function, arguments, span)?;
                Command::EmptQ { queue: self.queue(queue)? }
            }
            Function::InQ => {
                let [page, queue] = self.arguments(function, arguments, span)?;
                Command::InQ { page: self.page(page)?, queue: self.queue(queue)? }
            }
            Function::Request => {
                let [frames] = self.arguments(function, arguments, span)?;
                Command::Request { frames: self.int(frames)? }
            }
            Function::Ref => {
                let [page] = self.arguments(function, arguments, span)?;
                Command::Ref { page: self.page(page)? }
            }
            _ => {
                let [page] = self.arguments(function, arguments, span)?;
                Command::Mod { page: self.page(page)? }
            }
        })
    }

    // Values.

    fn sort(&mut self, value: &Expression<'s>) -> Done<Sort> {
        Ok(match &value.what {
            Value::Number(_) | Value::Negative(_) | Value::Field { .. } => Sort::Int,
            Value::Not(_) => Sort::Test,
            Value::Element { .. } => Sort::Queue,
            Value::Binary { operator, .. } => match operator {
                Binary::Add
                | Binary::Subtract
                | Binary::Multiply
                | Binary::Divide
                | Binary::Remainder => Sort::Int,
                _ => Sort::Test,
            },
            Value::Name("NULL") => Sort::Page,
            Value::Name(name) if names::truth(name).is_some() => Sort::Int,
            Value::Name(name) => match self.symbol(name, &value.span)?.kind {
                Kind::Page | Kind::System(System::FaultedPage) => Sort::Page,
                Kind::Int { .. } | Kind::System(_) => Sort::Int,
                _ => Sort::Queue,
            },
            Value::Call { function, .. } => {
                if self.events.contains_key(function.text) {
                    return Ok(Sort::Nothing);
                }
                match self.function(function)?.2 {
                    Gives::Nothing => Sort::Nothing,
                    Gives::Test => Sort::Test,
                    Gives::Int => Sort::Int,
                    Gives::Page => Sort::Page,
                }
            }
        })
    }

    fn wrong_type(&mut self, value: &Expression<'s>, is: Sort, wanted: &str) -> Reported {
        let error = Diagnostic::new(
            Code::Type,
            value.span.clone(),
            format!("this is {}, and {wanted} belongs here", is.name()),
        );
        let help = match (is, wanted) {
            (Sort::Page, "an Int") => "FindVA(page) is a page's address",
            (Sort::Int, "a Page") => "FindPA(address) is the page at an address",
            (Sort::Queue, "a Page") => "DeQueue(queue, HEAD) takes a page from a queue",
            (Sort::Queue, "an Int") => "Count(queue) is the number of its pages",
            (Sort::Page, "a Queue") => "name the queue itself",
            (Sort::Nothing, _) => "write the call as a statement of its own",
            _ => "use another value",
        };
        self.error(error.help(help))
    }

    /// An operand with the value.
    fn int(&mut self, value: &Expression<'s>) -> Done<Index> {
        match &value.what {
            Value::Number(digits) => {
                let number = self.digits(digits, false, &value.span)?;
                self.number(number, &value.span)
            }
            Value::Negative(inner) if matches!(inner.what, Value::Number(_)) => {
                let number = self.constant(value)?;
                self.number(number, &value.span)
            }
            Value::Name(name) => match names::truth(name) {
                Some(truth) => self.number(truth.into(), &value.span),
                None => match self.sort(value)? {
                    Sort::Int => Ok(self.symbol(name, &value.span)?.index),
                    other => Err(self.wrong_type(value, other, "an Int")),
                },
            },
            _ => {
                let held = self.between(Sort::Int, &value.span)?;
                self.int_into(value, held)?;
                Ok(held)
            }
        }
    }

    fn int_into(&mut self, value: &Expression<'s>, target: Index) -> Done {
        match &value.what {
            Value::Binary { operator, left, right } if self.sort(value)? == Sort::Int => {
                if self.mentions(right, target) {
                    let held = self.between(Sort::Int, &value.span)?;
                    self.int_into(value, held)?;
                    self.copy(target, held);
                    return Ok(());
                }
                self.int_into(left, target)?;
                let source = self.int(right)?;
                self.arith(target, source, *operator);
            }
            Value::Negative(inner) if !matches!(inner.what, Value::Number(_)) => {
                let source = self.int(inner)?;
                let held = self.between(Sort::Int, &value.span)?;
                let zero = self.number(0, &value.span)?;
                self.copy(held, zero);
                self.arith(held, source, Binary::Subtract);
                self.copy(target, held);
            }
            Value::Field { page, field } => {
                let slot = self.slot(field)?;
                let page = self.page(page)?;
                self.out().push(Command::Load { target, page, slot });
            }
            Value::Call { function, arguments } if self.sort(value)? == Sort::Int => {
                let (what, ..) = self.function(function)?;
                let command = if what == Function::Count {
                    let [queue] = self.arguments(function, arguments, &value.span)?;
                    Command::Count { count: target, queue: self.queue(queue)? }
                } else {
                    let [page] = self.arguments(function, arguments, &value.span)?;
                    Command::FindVA { address: target, page: self.page(page)? }
                };
                self.out().push(command);
            }
            _ => match self.sort(value)? {
                Sort::Test => {
                    let (one, zero) = (self.number(1, &value.span)?, self.number(0, &value.span)?);
                    let (otherwise, end) = (self.out().label(), self.out().label());
                    self.go_if(value, false, otherwise)?;
                    self.copy(target, one);
                    self.out().jump(end);
                    self.out().place(otherwise);
                    self.copy(target, zero);
                    self.out().place(end);
                }
                Sort::Int => {
                    let source = self.int(value)?;
                    if source != target {
                        self.copy(target, source);
                    }
                }
                other => return Err(self.wrong_type(value, other, "an Int")),
            },
        }
        Ok(())
    }

    fn copy(&mut self, target: Index, source: Index) {
        self.out().push(Command::Arith { target, source, operation: Arithmetic::Assign });
    }

    /// Whether the value depends on what the operand holds.
    fn mentions(&self, value: &Expression<'s>, index: Index) -> bool {
        match &value.what {
            Value::Number(_) => false,
            Value::Name(name) => {
                let symbol = self.locals.get(name).or_else(|| self.globals.get(name));
                let is_count = *name == "_free_count" && index == Index::FREE_COUNT;
                is_count || symbol.is_some_and(|symbol| symbol.index == index)
            }
            Value::Call { arguments, .. } => {
                arguments.iter().any(|argument| self.mentions(argument, index))
            }
            Value::Element { array, index: at } => {
                self.mentions(array, index) || self.mentions(at, index)
            }
            Value::Field { page, .. } => self.mentions(page, index),
            Value::Not(inner) | Value::Negative(inner) => self.mentions(inner, index),
            Value::Binary { left, right, .. } => {
                self.mentions(left, index) || self.mentions(right, index)
            }
        }
    }

    fn page(&mut self, value: &Expression<'s>) -> Done<Index> {
        match (&value.what, self.sort(value)?) {
            (Value::Name("NULL"), _) => Err(self.null(value)),
            (Value::Name(name), Sort::Page) => Ok(self.symbol(name, &value.span)?.index),
            (_, Sort::Page) => {
                let held = self.between(Sort::Page, &value.span)?;
                self.page_into(value, held)?;
                Ok(held)
            }
            (_, other) => Err(self.wrong_type(value, other, "a Page")),
        }
    }

    fn null(&mut self, value: &Expression<'s>) -> Reported {
        self.error(
            Diagnostic::new(Code::Type, value.span.clone(), "NULL is only compared with")
                .help("write `page == NULL` or `page != NULL`"),
        )
    }

    fn page_into(&mut self, value: &Expression<'s>, target: Index) -> Done {
        match &value.what {
            Value::Call { function, arguments } if self.sort(value)? == Sort::Page => {
                let (what, ..) = self.function(function)?;
                let command = if what == Function::DeQueue {
                    let [queue, end] = self.arguments(function, arguments, &value.span)?;
                    let queue = self.queue(queue)?;
                    let end = self.word(end, names::end, ["HEAD", "TAIL"])?;
                    Command::DeQueue { page: target, queue, end }
                } else {
                    let [address] = self.arguments(function, arguments, &value.span)?;
                    Command::FindPA { page: target, address: self.int(address)? }
                };
                self.out().push(command);
            }
            _ => {
                let source = self.page(value)?;
                self.out().push(Command::Copy { target, source });
            }
        }
        Ok(())
    }

    fn queue(&mut self, value: &Expression<'s>) -> Done<Index> {
        match &value.what {
            Value::Element { array, index } => {
                let array_index = match array.what {
                    Value::Name(name) => {
                        let symbol = self.symbol(name, &array.span)?;
                        match symbol.kind {
                            Kind::Queues { .. } => Some(symbol.index),
                            _ => None,
                        }
                    }
                    _ => None,
                };
                let Some(array) = array_index else {
                    return Err(self.error(
                        Diagnostic::new(
                            Code::Type,
                            array.span.clone(),
                            "this is no array of queues",
                        )
                        .help("declare one: `Queue level[26];`"),
                    ));
                };
                let at = self.int(index)?;
                let queue = self.between(Sort::Queue, &value.span)?;
                self.out().push(Command::Pick { queue, array, at });
                Ok(queue)
            }
            Value::Name(name) if self.sort(value)? == Sort::Queue => {
                let symbol = self.symbol(name, &value.span)?;
                if let Kind::Queues { .. } = symbol.kind {
                    let name = name.to_string();
                    return Err(self.error(
                        Diagnostic::new(
                            Code::Type,
                            value.span.clone(),
                            format!("`{name}` is an array of queues, and one queue belongs here"),
                        )
                        .help(format!("say which: `{name}[0]`")),
                    ));
                }
                Ok(symbol.index)
            }
            _ => match self.sort(value)? {
                // Figure 9: queues known by a number.
                Sort::Int => {
                    let at = self.int(value)?;
                    let array = match self.numbered {
                        Some(array) => array,
                        None => {
                            let kind = Kind::Queues { len: NUMBERED_QUEUES };
                            let array = self.operand("_queues", kind, &value.span)?;
                            *self.numbered.insert(array)
                        }
                    };
                    let queue = self.between(Sort::Queue, &value.span)?;
                    self.out().push(Command::Pick { queue, array, at });
                    Ok(queue)
                }
                other => Err(self.wrong_type(value, other, "a Queue")),
            },
        }
    }

    /// Goes to the label if the condition is as `wanted`, or else on.
    fn go_if(&mut self, condition: &Expression<'s>, wanted: bool, label: Label) -> Done {
        match &condition.what {
            Value::Not(inner) => self.go_if(inner, !wanted, label),
            Value::Binary { operator: operator @ (Binary::And | Binary::Or), left, right } => {
                // The left one decides alone if it is true for `||`, false for `&&`.
                let decides = *operator == Binary::Or;
                if decides == wanted {
                    self.go_if(left, wanted, label)?;
                    self.go_if(right, wanted, label)
                } else {
                    let past = self.out().label();
                    self.go_if(left, decides, past)?;
                    self.go_if(right, wanted, label)?;
                    self.out().place(past);
                    Ok(())
                }
            }
            Value::Binary { operator, left, right } if self.sort(condition)? == Sort::Test => {
                self.go_if_compares(*operator, left, right, wanted, label)
            }
            Value::Name(name) if names::truth(name).is_some() => {
                if names::truth(name) == Some(wanted) {
                    self.out().jump(label);
                }
                Ok(())
            }
            Value::Number(digits) => {
                if (self.digits(digits, false, &condition.span)? != 0) == wanted {
                    self.out().jump(label);
                }
                Ok(())
            }
            Value::Call { function, arguments } if self.sort(condition)? == Sort::Test => {
                let (what, ..) = self.function(function)?;
                let test = self.test(what, function, arguments, &condition.span)?;
                self.go_if_test(test, wanted, label);
                Ok(())
            }
            _ => match self.sort(condition)? {
                Sort::Page => {
                    let page = self.page(condition)?;
                    self.go_if_test(Command::Has { page }, wanted, label);
                    Ok(())
                }
                Sort::Int => {
                    let left = self.int(condition)?;
                    let right = self.number(0, &condition.span)?;
                    let relation = if wanted { Relation::Equal } else { Relation::NotEqual };
                    self.out().jump_unless(Command::Comp { left, right, relation }, label);
                    Ok(())
                }
                other => Err(self.wrong_type(condition, other, "a condition")),
            },
        }
    }

    fn go_if_compares(
        &mut self,
        operator: Binary,
        left: &Expression<'s>,
        right: &Expression<'s>,
        wanted: bool,
        label: Label,
    ) -> Done {
        let is_equality = matches!(operator, Binary::Equal | Binary::NotEqual);
        let is_null = |value: &Expression<'_>| matches!(value.what, Value::Name("NULL"));
        if is_equality && (is_null(left) || is_null(right)) {
            let page = self.page(if is_null(left) { right } else { left })?;
            let has = (operator == Binary::NotEqual) == wanted;
            self.go_if_test(Command::Has { page }, has, label);
            return Ok(());
        }
        if is_equality && self.sort(left)? == Sort::Page && self.sort(right)? == Sort::Page {
            let span = left.span.start..right.span.end;
            return Err(self.error(
                Diagnostic::new(Code::Type, span, "pages are not compared themselves").help(
                    format!("compare their addresses: `FindVA(a) {} FindVA(b)`", operator.sign()),
                ),
            ));
        }
        let (left, right) = (self.int(left)?, self.int(right)?);
        // The Jump goes if the test is false, so what is asked is the opposite.
        let relation = match (operator, !wanted) {
            (Binary::Equal, true) | (Binary::NotEqual, false) => Relation::Equal,
            (Binary::Equal, false) | (Binary::NotEqual, true) => Relation::NotEqual,
            (Binary::Less, true) | (Binary::GreaterEqual, false) => Relation::Less,
            (Binary::Less, false) | (Binary::GreaterEqual, true) => Relation::GreaterOrEqual,
            (Binary::Greater, true) | (Binary::LessEqual, false) => Relation::Greater,
            _ => Relation::LessOrEqual,
        };
        self.out().jump_unless(Command::Comp { left, right, relation }, label);
        Ok(())
    }

    fn go_if_test(&mut self, test: Command, wanted: bool, label: Label) {
        if wanted {
            let past = self.out().label();
            self.out().jump_unless(test, past);
            self.out().jump(label);
            self.out().place(past);
        } else {
            self.out().jump_unless(test, label);
        }
    }
}

/// What the name of an event adds to the name of one of its variables, at most.
const EVENT_PREFIX_BYTES: usize = 64;
