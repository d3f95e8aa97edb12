//! Conditions: where they lead if they hold, and if not.

use super::super::commands::Label;
use super::super::diagnostic::{Code, Diagnostic};
use super::super::names;
use super::super::tree::{Binary, Expression, Value};
use super::{Done, Generator, Sort};
use crate::program::{Command, Relation};

impl<'s> Generator<'s> {
    /// Goes to the label if the condition is as `wanted`, or else on.
    pub(super) fn go_if(&mut self, condition: &Expression<'s>, wanted: bool, label: Label) -> Done {
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

    pub(super) fn go_if_compares(
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

    pub(super) fn go_if_test(&mut self, test: Command, wanted: bool, label: Label) {
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
