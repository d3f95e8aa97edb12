//! Calls: the operations of Table I, ours, and other events.

use std::ops::Range;

use super::super::diagnostic::{Code, Diagnostic, meant};
use super::super::names::{self, Function, Gives};
use super::super::tree::{Expression, Name, Value};
use super::{Done, Generator, Reported};
use crate::program::{Command, End, EventNumber, Kind};

impl<'s> Generator<'s> {
    pub(super) fn evaluate(&mut self, value: &Expression<'s>) -> Done {
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
            (_, Gives::Nothing) => self.effect(what, function, arguments, &value.span),
            _ => Err(self.error(
                Diagnostic::new(
                    Code::NoEffect,
                    value.span.clone(),
                    format!("nothing uses what {} answers", function.text),
                )
                .help("assign it, use it in an `if`, or remove the statement"),
            )),
        }
    }

    pub(super) fn call(&mut self, event: EventNumber, span: &Range<usize>) -> Done {
        if event == EventNumber::INIT {
            return Err(self.error(
                Diagnostic::new(Code::Event, span.clone(), "Init is no event to call")
                    .help("assign the variables"),
            ));
        }
        self.called.insert(event);
        self.out().push(Command::Call { event });
        Ok(())
    }

    pub(super) fn function(&mut self, name: &Name<'s>) -> Done<(Function, &'static str, Gives)> {
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

    pub(super) fn arguments<'a, const N: usize>(
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
    pub(super) fn word<T>(
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

    pub(super) fn effect(
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
                    Command::EnQueue { page, queue, end: End::Tail }
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
    pub(super) fn test(
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
}
