//! What each command becomes.
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value};

use super::memory::{Region, field};
use super::{Test, Translator};
use crate::image::Registers;
use crate::pages::{HOME, LEN, MODIFIED, REFERENCED};
use crate::program::{Arithmetic, Bit, Command, EventNumber, Index, Logical, Relation};

impl Translator<'_> {
    /// One command; whether the next one belongs to the same block or is gone on to.
    pub(super) fn command(&mut self, command: Command) -> bool {
        match command {
            Command::Return { page } => {
                match page {
                    Some(page) if self.layout.events[self.at] == self.root => self.name(page),
                    Some(page) => self.give_up(page),
                    None => {}
                }
                self.go_back();
                return false;
            }
            Command::Jump { to } => {
                self.jump(to.into());
                return false;
            }
            Command::Call { event } => {
                self.call(event);
                return false;
            }
            Command::Arith { target, source, operation } => self.arith(target, source, operation),
            Command::Comp { left, right, relation } => {
                let (left, right) = (self.int(left), self.int(right));
                let relation = match relation {
                    Relation::Greater => IntCC::SignedGreaterThan,
                    Relation::Less => IntCC::SignedLessThan,
                    Relation::Equal => IntCC::Equal,
                    Relation::LessOrEqual => IntCC::SignedLessThanOrEqual,
                    Relation::GreaterOrEqual => IntCC::SignedGreaterThanOrEqual,
                    Relation::NotEqual => IntCC::NotEqual,
                };
                let test = self.builder.ins().icmp(relation, left, right);
                self.test = Test::Value(test);
            }
            Command::Logic { left, right, operation } => {
                let left = self.int(left);
                let left = self.builder.ins().icmp_imm_s(IntCC::NotEqual, left, 0);
                let test = if operation == Logical::Not {
                    self.builder.ins().bxor_imm_u(left, 1)
                } else {
                    let right = self.int(right);
                    let right = self.builder.ins().icmp_imm_s(IntCC::NotEqual, right, 0);
                    match operation {
                        Logical::And => self.builder.ins().band(left, right),
                        Logical::Or => self.builder.ins().bor(left, right),
                        Logical::Xor | Logical::Not => self.builder.ins().bxor(left, right),
                    }
                };
                self.test = Test::Value(test);
            }
            Command::EmptQ { queue } => {
                let len = self.len(queue);
                let test = self.builder.ins().icmp_imm_s(IntCC::Equal, len, 0);
                self.test = Test::Value(test);
            }
            Command::InQ { page, queue } => {
                let link = self.page(page);
                let queue = self.queue(queue);
                let node = self.node(link);
                let home = self.load(I32, Region::Homes, node, field(HOME));
                let queue = self.home(queue);
                let test = self.builder.ins().icmp(IntCC::Equal, home, queue);
                self.test = Test::Value(test);
            }
            Command::DeQueue { page, queue, end } => {
                let queue = self.queue(queue);
                self.dequeue(page, queue, end);
            }
            Command::EnQueue { page, queue, end } => {
                let link = self.page(page);
                let queue = self.queue(queue);
                let node = self.node(link);
                self.take(page, node);
                self.put(link, node, queue, end);
            }
            Command::Release { page } => self.give_up(page),
            Command::Set { page, bit, to } => {
                let link = self.page(page);
                let place = self.bits_of(link);
                let bits = self.load(I8, Region::Bits, place, -self.homes());
                let bit = i64::from(match bit {
                    Bit::Modified => MODIFIED,
                    Bit::Referenced => REFERENCED,
                });
                let bits = match to {
                    true => self.builder.ins().bor_imm_s(bits, bit),
                    false => self.builder.ins().band_imm_s(bits, !bit),
                };
                self.store(Region::Bits, bits, place, -self.homes());
            }
            Command::Ref { page } => self.test_bit(page, REFERENCED),
            Command::Mod { page } => self.test_bit(page, MODIFIED),
            Command::Pick { queue, array, at } => {
                let at = self.int(at);
                let len = i64::from(self.image.lengths[usize::from(array.0)]);
                // Negative ones are high as unsigned numbers.
                let is_none =
                    self.builder.ins().icmp_imm_s(IntCC::UnsignedGreaterThanOrEqual, at, len);
                self.leave_if(is_none);
                let at = self.builder.ins().ireduce(I32, at);
                let first = i64::from(self.image.registers.queues[usize::from(array.0)]);
                let home = self.builder.ins().iadd_imm_s(at, first);
                self.set_queue(queue, home);
            }
            Command::Count { count, queue } => {
                let len = self.len(queue);
                let len = self.builder.ins().uextend(I64, len);
                self.set_int(count, len);
            }
            Command::Load { target, page, slot } => {
                let link = self.page(page);
                let value = match self.number(link, slot) {
                    Some((place, offset)) => self.load(I64, Region::Numbers, place, offset),
                    None => self.builder.ins().iconst(I64, 0),
                };
                self.set_int(target, value);
            }
            Command::Store { page, slot, source } => {
                let link = self.page(page);
                let value = self.int(source);
                if let Some((place, offset)) = self.number(link, slot) {
                    self.store(Region::Numbers, value, place, offset);
                }
            }
            Command::Copy { target, source } => {
                let link = self.page(source);
                let is_loose = self.facts.loose.contains(&source);
                self.set_page(target, link);
                self.facts.hold(target);
                if is_loose && !self.facts.loose.contains(&target) {
                    self.facts.loose.push(target);
                }
            }
            Command::Has { page } => {
                let link = self.link(page);
                let test = self.builder.ins().icmp_imm_s(IntCC::NotEqual, link, 0);
                self.test = Test::Value(test);
            }
            // `is_interpreted`.
            Command::Request { .. }
            | Command::Flush { .. }
            | Command::FindVA { .. }
            | Command::FindPA { .. }
            | Command::Map { .. }
            | Command::UnMap { .. }
            | Command::Prefetch { .. } => {
                self.leave();
                return false;
            }
        }
        true
    }

    fn len(&mut self, queue: Index) -> Value {
        let queue = self.queue(queue);
        let row = self.queue_row(queue);
        self.load(I32, Region::Lens, row, field(LEN))
    }

    fn test_bit(&mut self, page: Index, bit: u8) {
        let link = self.page(page);
        let place = self.bits_of(link);
        let bits = self.load(I8, Region::Bits, place, -self.homes());
        let test = self.builder.ins().band_imm_s(bits, i64::from(bit));
        self.test = Test::Value(test);
    }

    fn arith(&mut self, target: Index, source: Index, operation: Arithmetic) {
        let left = match operation {
            Arithmetic::Assign => None,
            _ => Some(self.int(target)),
        };
        let right = if operation.is_unary() { None } else { Some(self.int(source)) };
        let divisor = self.image.constants[usize::from(source.0)];
        let value = match (operation, left, right) {
            (Arithmetic::Add, Some(left), Some(right)) => self.builder.ins().iadd(left, right),
            (Arithmetic::Subtract, Some(left), Some(right)) => self.builder.ins().isub(left, right),
            (Arithmetic::Multiply, Some(left), Some(right)) => self.builder.ins().imul(left, right),
            (Arithmetic::Divide, Some(left), Some(right)) => {
                self.divided(left, right, divisor, false)
            }
            (Arithmetic::Remainder, Some(left), Some(right)) => {
                self.divided(left, right, divisor, true)
            }
            (Arithmetic::Increment, Some(left), _) => self.builder.ins().iadd_imm_s(left, 1),
            (Arithmetic::Decrement, Some(left), _) => self.builder.ins().iadd_imm_s(left, -1),
            (_, _, Some(right)) => right,
            (_, _, None) => return,
        };
        self.set_int(target, value);
    }

    /// A quotient or remainder that wraps around. Leaves if it divides by zero.
    fn divided(&mut self, left: Value, right: Value, known: Option<i64>, rest: bool) -> Value {
        let plain = |it: &mut Self| match rest {
            false => it.builder.ins().sdiv(left, right),
            true => it.builder.ins().srem(left, right),
        };
        if known.is_some_and(|divisor| divisor > 0) {
            return plain(self);
        }
        let is_zero = self.builder.ins().icmp_imm_s(IntCC::Equal, right, 0);
        self.leave_if(is_zero);
        // The machine's division does not wrap around, which only one by -1 would.
        let (by_minus_one, by_other) = (self.builder.create_block(), self.builder.create_block());
        let done = self.builder.create_block();
        let result = self.builder.append_block_param(done, I64);
        let is_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, right, -1);
        self.builder.ins().brif(is_minus_one, by_minus_one, &[], by_other, &[]);
        self.builder.switch_to_block(by_minus_one);
        let value = match rest {
            false => self.builder.ins().ineg(left),
            true => self.builder.ins().iconst(I64, 0),
        };
        self.builder.ins().jump(done, &[BlockArg::Value(value)]);
        self.builder.switch_to_block(by_other);
        let value = plain(self);
        self.builder.ins().jump(done, &[BlockArg::Value(value)]);
        self.builder.switch_to_block(done);
        result
    }

    fn jump(&mut self, to: usize) {
        let Test::Value(test) = self.test else {
            self.jump_to(to);
            return;
        };
        let (goes, stays) = (self.builder.create_block(), self.builder.create_block());
        self.builder.ins().brif(test, stays, &[], goes, &[]);
        self.builder.switch_to_block(goes);
        self.jump_to(to);
        self.builder.switch_to_block(stays);
        self.test = Test::False;
        // A test of a page that goes on has found one.
        let at = self.at;
        if let Some(Command::Has { page }) =
            at.checked_sub(1).map(|before| self.image.code[before].command)
            && !self.layout.is_leader[at]
        {
            self.facts.hold(page);
        }
        self.go_on(at + 1);
    }

    fn call(&mut self, event: EventNumber) {
        let depth_at = offset_of!(Registers, depth) as i32;
        let depth = self.load(I32, Region::Calls, self.registers, depth_at);
        let wide = self.builder.ins().uextend(I64, depth);
        let offset = self.builder.ins().ishl_imm_u(wide, 2);
        let caller = self.builder.ins().iadd(self.registers, offset);
        let back = self.builder.ins().iconst(I32, self.at as i64 + 1);
        self.store(Region::Calls, back, caller, offset_of!(Registers, callers) as i32);
        let depth = self.builder.ins().iadd_imm_s(depth, 1);
        self.store(Region::Calls, depth, self.registers, depth_at);
        self.jump_to(self.image.entries[usize::from(event.0)] as usize);
    }

    /// Ends the event, or goes back to the caller.
    fn go_back(&mut self) {
        let event = self.layout.events[self.at];
        let left = self.builder.use_var(self.left);
        if event == self.root {
            // No event is entered twice on the way, so this is not a Call's.
            self.store_loose();
            self.builder.ins().return_(&[left]);
            return;
        }
        let returns: Vec<u32> = self.layout.returns[usize::from(event.0)]
            .iter()
            .copied()
            .filter(|at| self.blocks[*at as usize].is_some())
            .collect();
        let depth_at = offset_of!(Registers, depth) as i32;
        let depth = self.load(I32, Region::Calls, self.registers, depth_at);
        let depth = self.builder.ins().iadd_imm_s(depth, -1);
        self.store(Region::Calls, depth, self.registers, depth_at);
        if let [only] = returns[..] {
            self.jump_to(only as usize);
            return;
        }
        let wide = self.builder.ins().uextend(I64, depth);
        let offset = self.builder.ins().ishl_imm_u(wide, 2);
        let caller = self.builder.ins().iadd(self.registers, offset);
        let offset = offset_of!(Registers, callers) as i32;
        let back = self.load(I32, Region::Calls, caller, offset);
        let mut switch = cranelift_frontend::Switch::new();
        for at in returns {
            if let Some(block) = self.blocks[at as usize] {
                switch.set_entry(u128::from(at), block);
            }
        }
        let other = self.builder.create_block();
        self.builder.set_cold_block(other);
        switch.emit(&mut self.builder, back, other);
        self.builder.switch_to_block(other);
        // Not a place that a Call goes back to: no path comes here.
        let zero = self.builder.ins().iconst(I32, 0);
        self.builder.ins().jump(self.leave, &[back, zero, left].map(BlockArg::Value));
    }
}
