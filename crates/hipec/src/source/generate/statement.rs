//! Statements.

use super::super::commands::Label;
use super::super::diagnostic::{Code, Diagnostic, meant};
use super::super::tree::{Binary, Doing, Expression, Statement, Value};
use super::{Done, Generator, Loop, Sort};
use crate::program::{Arithmetic, Command, Index, Kind};

impl<'s> Generator<'s> {
    pub(super) fn find_labels(&mut self, body: &[Statement<'s>]) {
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

    pub(super) fn statements(&mut self, all: &[Statement<'s>]) {
        for statement in all {
            let _ = self.statement(statement);
            (self.ints_used, self.pages_used, self.queues_used) = (0, 0, 0);
        }
    }

    pub(super) fn statement(&mut self, statement: &Statement<'s>) -> Done {
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
                self.loop_("while", None, Some(condition), None, body);
                Ok(())
            }
            Doing::DoWhile { body, condition } => {
                self.loop_("do", None, Some(condition), None, body);
                Ok(())
            }
            Doing::For { first, condition, next, body } => {
                let (first, next) = (first.as_deref(), next.as_deref());
                self.loop_("for", first, condition.as_ref(), next, body);
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
    pub(super) fn way_out(&mut self, statement: &Statement<'s>) -> Done<Option<Label>> {
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
    pub(super) fn body(&mut self, word: &str, body: &Statement<'s>) {
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

    pub(super) fn if_(
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

    pub(super) fn loop_(
        &mut self,
        word: &str,
        first: Option<&Statement<'s>>,
        condition: Option<&Expression<'s>>,
        next: Option<&Statement<'s>>,
        body: &Statement<'s>,
    ) {
        let is_tested_last = word == "do";
        if let Some(first) = first {
            self.statements(std::slice::from_ref(first));
        }
        let out = self.out();
        let (begin, continue_to, break_to) = (out.label(), out.label(), out.label());
        // A label in the loop may be the only way in.
        out.place_reachable(begin);
        if let (Some(condition), false) = (condition, is_tested_last) {
            self.out().span = condition.span.clone();
            let _ = self.go_if(condition, false, break_to);
        }
        self.loops.push(Loop { break_to, continue_to });
        // A `for` may do all in its head.
        if next.is_none() {
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

    pub(super) fn assign(
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

    pub(super) fn step(&mut self, target: &Expression<'s>, up: bool) -> Done {
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

    pub(super) fn arith(&mut self, target: Index, source: Index, operator: Binary) {
        let operation = match operator {
            Binary::Add => Arithmetic::Add,
            Binary::Subtract => Arithmetic::Subtract,
            Binary::Multiply => Arithmetic::Multiply,
            Binary::Divide => Arithmetic::Divide,
            _ => Arithmetic::Remainder,
        };
        self.out().push(Command::Arith { target, source, operation });
    }
}
