//! What a program declares: events, variables, integers of pages.

use super::super::diagnostic::{Code, Diagnostic, meant};
use super::super::names;
use super::super::tree::{Declaration, Doing, Expression, Name, Statement, Type, Value};
use super::{Done, Generator, Reported, Symbol};
use crate::program::{EventNumber, Kind, NAME_BYTES_MAX, Operand, PAGE_SLOTS};

/// Of an event's name, what its variables' names begin with where they would else be the same.
const EVENT_PREFIX_BYTES: usize = 64;

/// What remains for a name of one's own: room for the event's and what sets them apart.
const OWN_NAME_BYTES: usize = NAME_BYTES_MAX - EVENT_PREFIX_BYTES - 16;

impl<'s> Generator<'s> {
    /// Events that must be there are, and none that nothing runs has nearly a system event's name.
    pub(super) fn events_are_complete(&mut self, text_len: usize) {
        let names = || EventNumber::SYSTEM.into_iter().filter_map(EventNumber::system_name);
        let mut idle: Vec<_> = self
            .events
            .iter()
            .filter(|(_, (number, _))| {
                number.system_name().is_none() && !self.called.contains(number)
            })
            .map(|(name, (_, span))| (span.clone(), *name))
            .collect();
        idle.sort_by_key(|(span, _)| span.start);
        let mut misspelt = Vec::new();
        for (span, name) in idle {
            let known = meant(name, names());
            if let Some(known) = known.filter(|known| !self.events.contains_key(*known)) {
                misspelt.push(known);
                self.error(
                    Diagnostic::new(Code::Event, span, format!("nothing runs the event `{name}`"))
                        .suggest(known, format!("did you mean `{known}`?")),
                );
            }
        }
        for required in ["PageFault", "Replace"] {
            if !self.events.contains_key(required) && !misspelt.contains(&required) {
                self.error(
                    Diagnostic::new(
                        Code::Event,
                        text_len..text_len,
                        format!("the program has no event `{required}`"),
                    )
                    .help(format!("add `Event {required}() {{ … }}`")),
                );
            }
        }
    }

    pub(super) fn add_event(&mut self, name: &Name<'s>) -> Option<EventNumber> {
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
        let system = EventNumber::of_system(name.text);
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
    pub(super) fn name_is_taken(&mut self, name: &Name<'s>) -> bool {
        let why = if names::function(name.text).is_some() {
            "is a function of the language"
        } else if names::system(name.text).is_some() {
            "is what the system tells by this name, and needs no declaration"
        } else if names::WORDS.contains(&name.text) {
            "is a word of the language"
        } else if name.text.starts_with('_') {
            "begins with `_`, as the language's own names do"
        } else if name.text.len() > OWN_NAME_BYTES {
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

    pub(super) fn page_fields(&mut self, fields: &[Name<'s>]) {
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

    pub(super) fn globals(&mut self, all: &[Declaration<'s>]) {
        for declaration in all {
            let _ = self.declare(declaration, true);
        }
    }

    /// Init only says what operands hold at first.
    pub(super) fn init(&mut self, body: &[Statement<'s>]) {
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

    pub(super) fn init_assign(&mut self, target: &Expression<'s>, value: &Expression<'s>) -> Done {
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

    pub(super) fn declare(
        &mut self,
        declaration: &Declaration<'s>,
        is_global: bool,
    ) -> Done<Symbol> {
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
            let event = &self.event_name[..self.event_name.len().min(EVENT_PREFIX_BYTES)];
            let mut text = format!("_{event}_{}", name.text);
            while self.program.find(&text).is_some() {
                text.push('_');
            }
            text
        };
        let index = self.operand(&text, operand, &name.span)?;
        let symbol = Symbol { index, kind: operand, span: name.span.clone() };
        let scope = if is_global { &mut self.globals } else { &mut self.locals };
        scope.insert(name.text, symbol.clone());
        Ok(symbol)
    }
}
