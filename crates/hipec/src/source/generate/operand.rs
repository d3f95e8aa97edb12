//! Operands: of variables, of numbers, and for what lies between.

use std::num::IntErrorKind;
use std::ops::Range;

use super::super::diagnostic::{Code, Diagnostic, meant};
use super::super::names;
use super::super::tree::{Binary, Expression, Name, Value};
use super::{Done, Generator, Reported, Sort, Symbol};
use crate::program::{Index, Kind, OPERANDS_MAX, Operand, System};

impl<'s> Generator<'s> {
    pub(super) fn operand(&mut self, name: &str, kind: Kind, span: &Range<usize>) -> Done<Index> {
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
        self.operand_spans.push(span.clone());
        Ok(Index::declared(self.program.operands.len() - 1))
    }

    /// The operand that holds a number.
    pub(super) fn number(&mut self, value: i32, span: &Range<usize>) -> Done<Index> {
        if let Some(&index) = self.constants.get(&value) {
            return Ok(index);
        }
        let sign = if value < 0 { "minus_" } else { "" };
        let name = format!("_{sign}{}", value.unsigned_abs());
        let index = self.operand(&name, Kind::Int { initial: value }, span)?;
        self.constants.insert(value, index);
        Ok(index)
    }

    pub(super) fn system(&mut self, system: System, span: &Range<usize>) -> Done<Index> {
        match self.program.find(system.name()) {
            Some(index) => Ok(index),
            None => self.operand(system.name(), Kind::System(system), span),
        }
    }

    pub(super) fn between(&mut self, sort: Sort, span: &Range<usize>) -> Done<Index> {
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
    pub(super) fn constant(&mut self, value: &Expression<'s>) -> Done<i32> {
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

    pub(super) fn digits(
        &mut self,
        digits: &str,
        is_negative: bool,
        span: &Range<usize>,
    ) -> Done<i32> {
        let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => digits.parse::<i64>(),
        };
        let value = match value {
            Ok(value) => i32::try_from(if is_negative { -value } else { value }).ok(),
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => None,
            Err(_) => {
                let message = format!("`{digits}` is no number");
                return Err(self.error(
                    Diagnostic::new(Code::Number, span.clone(), message)
                        .help("write digits, or 0x and hexadecimal ones"),
                ));
            }
        };
        value.ok_or_else(|| {
            self.error(
                Diagnostic::new(Code::Number, span.clone(), "this number is too large")
                    .help(format!("write one from {} to {}", i32::MIN, i32::MAX)),
            )
        })
    }

    pub(super) fn symbol(&mut self, name: &str, span: &Range<usize>) -> Done<Symbol> {
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

    pub(super) fn undeclared(&mut self, name: &str, span: &Range<usize>) -> Reported {
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

    pub(super) fn slot(&mut self, field: &Name<'s>) -> Done<u8> {
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

    pub(super) fn not_assignable(&mut self, target: &Expression<'s>) -> Reported {
        self.error(
            Diagnostic::new(Code::Assignment, target.span.clone(), "this cannot be changed")
                .help("only variables and the integers of pages can"),
        )
    }
}
