//! Queues: how pages are put on them and taken off, and given up.
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I32;
use cranelift_codegen::ir::{Block, InstBuilder, Value};

use super::memory::{ROW, Region, field};
use super::{Test, Translator};
use crate::image::Registers;
use crate::pages::{AFTER, BEFORE, FRONT, GIVEN_UP, HOME, LEN, LOOSE, ORDERED};
use crate::program::{Command, End, Index};

/// A queue in a command.
#[derive(Clone, Copy)]
pub(super) enum Queue {
    Known(u32),
    Home(Value),
}

/// Fields of a node: towards the inside of a queue from a page at this end, and from its home to
/// that page; and the other way.
const fn sides(end: End) -> (usize, usize) {
    match end {
        End::Tail => (BEFORE, AFTER),
        End::Head => (AFTER, BEFORE),
    }
}

/// Whether a command cannot be done if the operand holds no page.
fn needs(command: Command, page: Index) -> bool {
    match command {
        Command::Return { page: Some(it) }
        | Command::Release { page: it }
        | Command::EnQueue { page: it, .. }
        | Command::InQ { page: it, .. }
        | Command::Set { page: it, .. }
        | Command::Ref { page: it }
        | Command::Mod { page: it }
        | Command::Load { page: it, .. }
        | Command::Store { page: it, .. }
        | Command::Copy { source: it, .. } => it == page,
        _ => false,
    }
}

impl Translator<'_> {
    pub(super) fn set_queue(&mut self, index: Index, home: Value) {
        let offset = offset_of!(Registers, queues) as i32 + i32::from(index.0) * 4;
        self.store(Region::Queue(index), home, self.registers, offset);
    }

    pub(super) fn queue(&mut self, index: Index) -> Queue {
        match self.image.registers.queues[usize::from(index.0)] {
            0 => {
                let offset = offset_of!(Registers, queues) as i32 + i32::from(index.0) * 4;
                let home = self.load(I32, Region::Queue(index), self.registers, offset);
                let is_none = self.builder.ins().icmp_imm_s(IntCC::Equal, home, 0);
                self.leave_if(is_none);
                Queue::Home(home)
            }
            home => Queue::Known(home),
        }
    }

    pub(super) fn home(&mut self, queue: Queue) -> Value {
        match queue {
            Queue::Known(home) => self.builder.ins().iconst(I32, i64::from(home)),
            Queue::Home(home) => home,
        }
    }

    /// Where the node of a queue is.
    pub(super) fn queue_row(&mut self, queue: Queue) -> Value {
        match queue {
            Queue::Known(home) => self.builder.ins().iadd_imm_s(self.nodes, i64::from(home) * ROW),
            Queue::Home(home) => self.node(home),
        }
    }

    /// Adds to a number of pages.
    fn count(&mut self, region: Region, row: Value, by: i64) {
        let len = self.load(I32, region, row, field(LEN));
        let len = self.builder.ins().iadd_imm_s(len, by);
        self.store(region, len, row, field(LEN));
    }

    fn count_loose(&mut self, by: i64) {
        let loose = self.builder.use_var(self.loose);
        let loose = self.builder.ins().iadd_imm_s(loose, by);
        self.builder.def_var(self.loose, loose);
    }

    pub(super) fn load_loose(&mut self) {
        let row = self.queue_row(Queue::Known(LOOSE));
        let loose = self.load(I32, Region::Loose, row, field(LEN));
        self.builder.def_var(self.loose, loose);
    }

    pub(super) fn store_loose(&mut self) {
        let row = self.queue_row(Queue::Known(LOOSE));
        let loose = self.builder.use_var(self.loose);
        self.store(Region::Loose, loose, row, field(LEN));
    }

    /// Puts a page that is in no place at an end of a queue that is not ordered.
    pub(super) fn put(&mut self, link: Value, node: Value, queue: Queue, end: End) {
        let row = self.queue_row(queue);
        self.count(Region::Lens, row, 1);
        let home = self.home(queue);
        self.store(Region::Homes, home, node, field(HOME));
        let (inner, outer) = sides(end);
        let neighbour = self.load(I32, Region::Links, row, field(inner));
        self.store(Region::Links, neighbour, node, field(inner));
        self.store(Region::Links, home, node, field(outer));
        let beside = self.node(neighbour);
        self.store(Region::Links, link, beside, field(outer));
        self.store(Region::Links, link, row, field(inner));
    }

    /// Takes the page of an operand from where it is. Leaves if it was given up or is on an Ordered
    /// queue.
    pub(super) fn take(&mut self, page: Index, node: Value) {
        let is_loose = self.facts.loose.contains(&page);
        // Another operand may hold the same page.
        self.facts.loose.clear();
        if is_loose {
            self.count_loose(-1);
            return;
        }
        let home = self.load(I32, Region::Homes, node, field(HOME));
        let (nowhere, loose) = (self.builder.create_block(), self.builder.create_block());
        let (linked, taken) = (self.builder.create_block(), self.builder.create_block());
        let above = i64::from(LOOSE.max(GIVEN_UP));
        let is_linked = self.builder.ins().icmp_imm_s(IntCC::UnsignedGreaterThan, home, above);
        self.builder.ins().brif(is_linked, linked, &[], nowhere, &[]);
        self.builder.switch_to_block(nowhere);
        let is_loose = self.builder.ins().icmp_imm_s(IntCC::Equal, home, i64::from(LOOSE));
        let leaves = self.builder.create_block();
        self.builder.set_cold_block(leaves);
        self.builder.ins().brif(is_loose, loose, &[], leaves, &[]);
        self.builder.switch_to_block(leaves);
        self.leave();
        self.builder.switch_to_block(linked);
        let row = self.node(home);
        if self.image.pages.has_ordered_queues() {
            let ordered = self.load(I32, Region::Ordered, row, field(ORDERED));
            self.leave_if(ordered);
        }
        self.count(Region::Lens, row, -1);
        let before = self.load(I32, Region::Links, node, field(BEFORE));
        let after = self.load(I32, Region::Links, node, field(AFTER));
        let beside = self.node(before);
        self.store(Region::Links, after, beside, field(AFTER));
        let beside = self.node(after);
        self.store(Region::Links, before, beside, field(BEFORE));
        self.builder.ins().jump(taken, &[]);
        self.builder.switch_to_block(loose);
        self.count_loose(-1);
        self.builder.ins().jump(taken, &[]);
        self.builder.switch_to_block(taken);
    }

    pub(super) fn dequeue(&mut self, page: Index, queue: Queue, end: End) {
        let (inner, outer) = sides(end);
        let row = self.queue_row(queue);
        let home = self.home(queue);
        let link = self.load(I32, Region::Links, row, field(inner));
        let (some, none) = (self.builder.create_block(), self.builder.create_block());
        let is_empty = self.builder.ins().icmp(IntCC::Equal, link, home);
        self.builder.ins().brif(is_empty, none, &[], some, &[]);
        self.builder.switch_to_block(none);
        self.builder.set_cold_block(none);
        let zero = self.builder.ins().iconst(I32, 0);
        self.set_page(page, zero);
        let done = self.without(page);
        self.builder.switch_to_block(some);
        self.set_page(page, link);
        let node = self.node(link);
        let next = self.load(I32, Region::Links, node, field(inner));
        self.store(Region::Links, next, row, field(inner));
        let beside = self.node(next);
        self.store(Region::Links, home, beside, field(outer));
        self.count(Region::Lens, row, -1);
        let loose = self.builder.ins().iconst(I32, i64::from(LOOSE));
        self.store(Region::Homes, loose, node, field(HOME));
        self.count_loose(1);
        match done {
            Some(done) => {
                self.builder.ins().jump(done, &[]);
                self.builder.switch_to_block(done);
            }
            None => {
                self.facts.hold(page);
                self.facts.loose.push(page);
            }
        }
        if self.done > 0 {
            self.at += self.done;
            self.test = Test::False;
            self.go_on(self.at + 1);
        }
    }

    /// Goes on from a DeQueue that found no page: where a test of that, which comes next, leads, or
    /// leaves before a command that needs a page. In these cases the others have one; else it gives
    /// the block where both go on.
    fn without(&mut self, page: Index) -> Option<Block> {
        let in_block = |at: usize| self.layout.is_leader.get(at) == Some(&false);
        let next = self.at + 1;
        if in_block(next) {
            let tests =
                matches!(self.image.code[next].command, Command::Has { page: it } if it == page);
            if tests
                && in_block(next + 1)
                && let Command::Jump { to } = self.image.code[next + 1].command
            {
                self.done = 2;
                self.jump_to(to.into());
                return None;
            }
            if needs(self.image.code[next].command, page) {
                let (at, charged) = (self.at, self.charged);
                self.charged -= i64::from(self.image.code[at].cost);
                self.at = next;
                self.leave();
                (self.at, self.charged) = (at, charged);
                return None;
            }
        }
        let done = self.builder.create_block();
        self.builder.ins().jump(done, &[]);
        Some(done)
    }

    pub(super) fn give_up(&mut self, page: Index) {
        let link = self.page(page);
        let node = self.node(link);
        self.take(page, node);
        self.put(link, node, Queue::Known(GIVEN_UP), End::Tail);
        let none = self.builder.ins().iconst(I32, 0);
        self.set_page(page, none);
    }

    /// Gives up the page that leaves next, with the event's end: unless others do before it, it is
    /// named, and on no list. Nothing sees its home and operand any more.
    pub(super) fn name(&mut self, page: Index) {
        let link = self.page(page);
        let node = self.node(link);
        self.take(page, node);
        let given_up = self.queue_row(Queue::Known(GIVEN_UP));
        let front = self.load(I32, Region::Links, given_up, field(FRONT));
        let others = self.builder.ins().icmp_imm_s(IntCC::NotEqual, front, i64::from(GIVEN_UP));
        let (behind, alone) = (self.builder.create_block(), self.builder.create_block());
        let done = self.builder.create_block();
        self.builder.ins().brif(others, behind, &[], alone, &[]);
        self.builder.switch_to_block(behind);
        self.builder.set_cold_block(behind);
        self.put(link, node, Queue::Known(GIVEN_UP), End::Tail);
        self.builder.ins().jump(done, &[]);
        self.builder.switch_to_block(alone);
        self.store(Region::Named, link, self.registers, offset_of!(Registers, named) as i32);
        self.builder.ins().jump(done, &[]);
        self.builder.switch_to_block(done);
    }
}
