//! Values: integers, pages and queues.

use super::super::diagnostic::{Code, Diagnostic};
use super::super::names::{self, Function, Gives};
use super::super::tree::{Binary, Expression, Value};
use super::{Done, Generator, Reported, Sort};
use crate::program::{Arithmetic, Command, Index, Kind, System};

/// Queues that are known by number, as in Figure 9.
const NUMBERED_QUEUES: u16 = 256;

impl<'s> Generator<'s> {
    pub(super) fn sort(&mut self, value: &Expression<'s>) -> Done<Sort> {
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

    pub(super) fn wrong_type(
        &mut self,
        value: &Expression<'s>,
        is: Sort,
        wanted: &str,
    ) -> Reported {
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
    pub(super) fn int(&mut self, value: &Expression<'s>) -> Done<Index> {
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

    pub(super) fn int_into(&mut self, value: &Expression<'s>, target: Index) -> Done {
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

    pub(super) fn copy(&mut self, target: Index, source: Index) {
        self.out().push(Command::Arith { target, source, operation: Arithmetic::Assign });
    }

    /// Whether the value depends on what the operand holds.
    pub(super) fn mentions(&self, value: &Expression<'s>, index: Index) -> bool {
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

    pub(super) fn page(&mut self, value: &Expression<'s>) -> Done<Index> {
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

    pub(super) fn null(&mut self, value: &Expression<'s>) -> Reported {
        self.error(
            Diagnostic::new(Code::Type, value.span.clone(), "NULL is only compared with")
                .help("write `page == NULL` or `page != NULL`"),
        )
    }

    pub(super) fn page_into(&mut self, value: &Expression<'s>, target: Index) -> Done {
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

    pub(super) fn queue(&mut self, value: &Expression<'s>) -> Done<Index> {
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
}
