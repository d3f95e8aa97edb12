//! From an image to machine code, through Cranelift: a function for each event of the system.
//!
//! A function holds its event and those that it Calls. It begins with the event's first command, or
//! where the program stands, and keeps Calls as the interpreter does, so that either can go on
//! where the other stopped. Commands that run together are charged together, where the first of
//! them begins. Whether the budget is enough is looked at where the event begins, at the head of a
//! loop and behind what the interpreter ran, for all that may run until it is looked at again; if
//! not, the interpreter runs what is left. Before a command that it leaves to the interpreter
//! nothing of it was done, and what was charged for it and those behind it is given back.
mod commands;
mod memory;
mod queues;

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, BlockArg, Function, InstBuilder, JumpTableData, Signature, Value,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::layout::{Layout, is_interpreted};
use super::native::GOES_ON;
use crate::image::{Image, Registers};
use crate::program::{Command, EventNumber, Index};
use memory::Region;

/// What the next Jump acts on.
#[derive(Clone, Copy)]
enum Test {
    False,
    /// Of any integer type; true if not 0.
    Value(Value),
}

/// What is known of page operands.
#[derive(Clone, Default)]
struct Facts {
    /// They hold a page.
    holding: Vec<Index>,
    /// Those among them whose page is on no queue.
    loose: Vec<Index>,
}

impl Facts {
    fn hold(&mut self, page: Index) {
        if !self.holding.contains(&page) {
            self.holding.push(page);
        }
    }

    fn forget(&mut self, page: Index) {
        self.holding.retain(|it| *it != page);
        self.loose.retain(|it| *it != page);
    }

    /// What is known on either way.
    fn meet(&mut self, other: &Facts) {
        self.holding.retain(|it| other.holding.contains(it));
        self.loose.retain(|it| other.loose.contains(it));
    }
}

struct Translator<'a> {
    image: &'a Image,
    layout: &'a Layout,
    /// The event of the system that this function is of.
    root: EventNumber,
    builder: FunctionBuilder<'a>,
    blocks: Vec<Option<Block>>,
    leave: Block,
    left: Variable,
    /// The number of loose pages, which is written where the function ends.
    loose: Variable,
    registers: Value,
    nodes: Value,
    bits: Value,
    numbers: Value,
    told: Value,
    /// What is known where a block begins, by those that go there so far.
    known: Vec<Option<Facts>>,
    // Of the command at hand.
    at: usize,
    /// What the block was charged for this command and those behind it.
    charged: i64,
    test: Test,
    facts: Facts,
    /// Commands behind this one that it did already.
    done: usize,
}

/// Makes the function of an event. It takes and gives what `Entry` in [`native`](super::native)
/// says.
pub(super) fn translate(
    image: &Image,
    layout: &Layout,
    root: EventNumber,
    function: &mut Function,
    isa: &dyn TargetIsa,
) {
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.extend([AbiParam::new(I64); 6]);
    signature.returns.push(AbiParam::new(I64));
    function.signature = signature;
    let mut context = FunctionBuilderContext::new();
    let mut builder = FunctionBuilder::new(function, &mut context);
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let params = builder.block_params(entry).to_vec();
    let left = builder.declare_var(I64);
    builder.def_var(left, params[4]);
    let loose = builder.declare_var(I32);
    let reached = layout.reached(image, root);
    let blocks = std::iter::zip(&layout.is_leader, &layout.events)
        .map(|(is_leader, event)| {
            (*is_leader && reached.contains(event)).then(|| builder.create_block())
        })
        .collect();
    let leave = builder.create_block();
    builder.set_cold_block(leave);
    for ty in [I32, I32, I64] {
        builder.append_block_param(leave, ty);
    }
    let mut translator = Translator {
        image,
        layout,
        root,
        builder,
        blocks,
        leave,
        left,
        loose,
        registers: params[0],
        nodes: params[1],
        bits: params[2],
        numbers: params[3],
        told: params[5],
        known: vec![None; layout.is_leader.len()],
        at: 0,
        charged: 0,
        test: Test::False,
        facts: Facts::default(),
        done: 0,
    };
    translator.load_loose();
    translator.dispatch();
    translator.commands();
    translator.leaving();
    translator.builder.seal_all_blocks();
    translator.builder.finalize(isa.frontend_config());
}

impl Translator<'_> {
    /// Goes to the event's first command, or to the one where the program stands.
    fn dispatch(&mut self) {
        let first = self.image.entries[usize::from(self.root.0)] as usize;
        let (begins, goes_on) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(goes_on);
        let is_on = self.builder.ins().icmp_imm_s(IntCC::Equal, self.told, GOES_ON);
        self.builder.ins().brif(is_on, goes_on, &[], begins, &[]);
        self.builder.switch_to_block(begins);
        self.begins(first);
        self.builder.switch_to_block(goes_on);
        let at = self.load(I32, Region::Place, self.registers, offset_of!(Registers, at) as i32);
        let left = self.builder.use_var(self.left);
        let other = self.builder.create_block();
        self.builder.set_cold_block(other);
        let other_call = self.builder.func.dfg.block_call(other, &[]);
        let mut table = Vec::with_capacity(self.layout.entries.len());
        for (at, is_entry) in self.layout.entries.iter().enumerate() {
            let is_entry = *is_entry && (at != first || self.layout.is_jumped_to[at]);
            table.push(match self.blocks[at] {
                Some(block) if is_entry => self.builder.func.dfg.block_call(block, &[]),
                _ => other_call,
            });
        }
        let table = self.builder.create_jump_table(JumpTableData::new(other_call, &table));
        self.builder.ins().br_table(at, table);
        self.builder.switch_to_block(other);
        let test = offset_of!(Registers, test) as i32;
        let test = self.load(I32, Region::Place, self.registers, test);
        let args = [at, test, left].map(BlockArg::Value);
        self.builder.ins().jump(self.leave, &args);
    }

    /// Sets what the event's commands are to find, as the interpreter is told it.
    fn begins(&mut self, first: usize) {
        if let Some(start) = self.image.start_of(self.root) {
            let none = self.builder.ins().iconst(I32, 0);
            for page in &start.pages {
                self.set_page(Index(*page), none);
            }
            for queue in &start.queues {
                self.set_queue(Index(*queue), none);
            }
            if start.faulted_page != 0 {
                let link = self.builder.ins().ireduce(I32, self.told);
                self.set_page(Index(start.faulted_page), link);
            }
            if start.prefetched != 0 {
                let prefetched = self.builder.ins().ushr_imm_u(self.told, 32);
                self.set_int(Index(start.prefetched), prefetched);
            }
            // One that was ended before may have stood in an event that it Called, where the
            // interpreter would go back to from this one.
            if self.layout.calls() {
                let depth = offset_of!(Registers, depth) as i32;
                self.store(Region::Calls, none, self.registers, depth);
            }
        }
        if let Some(block) = self.blocks[first] {
            self.builder.ins().jump(block, &[]);
        }
    }

    /// Stands before a command for the interpreter.
    fn leaving(&mut self) {
        self.builder.switch_to_block(self.leave);
        let [at, test, left] = *self.builder.block_params(self.leave) else { return };
        self.store(Region::Place, at, self.registers, offset_of!(Registers, at) as i32);
        self.store(Region::Place, test, self.registers, offset_of!(Registers, test) as i32);
        self.store_loose();
        let left = self.builder.ins().bnot(left);
        self.builder.ins().return_(&[left]);
    }

    fn commands(&mut self) {
        let mut is_open = false;
        for at in 0..self.image.code.len() {
            if is_open && self.layout.is_leader[at] {
                self.go_on(at);
                is_open = false;
            }
            if let Some(block) = self.blocks[at] {
                self.begin(at, block);
                is_open = true;
            }
            if !is_open {
                continue;
            }
            let step = self.image.code[at];
            if self.done > 0 {
                self.done -= 1;
                is_open = is_open && !matches!(step.command, Command::Jump { .. });
                self.charged -= i64::from(step.cost);
                continue;
            }
            self.at = at;
            if is_interpreted(self.image, step.command) {
                self.leave();
                is_open = false;
                continue;
            }
            is_open = self.command(step.command);
            self.charged -= i64::from(step.cost);
        }
        if is_open {
            self.at = self.image.code.len();
            self.leave();
        }
    }

    /// A block begins.
    fn begin(&mut self, at: usize, block: Block) {
        self.builder.switch_to_block(block);
        let is_known = !self.layout.entries[at] && !self.layout.is_return[at];
        self.facts = match self.known[at].take() {
            Some(facts) if is_known => facts,
            _ => self.facts_at_start(at),
        };
        self.at = at;
        self.test = if self.layout.may_be_true[at] {
            let offset = offset_of!(Registers, test) as i32;
            Test::Value(self.load(I32, Region::Place, self.registers, offset))
        } else {
            Test::False
        };
        self.charged = 0;
        let cost = self.layout.cost(self.image, at);
        let left = self.builder.use_var(self.left);
        let need = self.layout.needs[at];
        if self.layout.entries[at] && need > 0 {
            let is_over = self.builder.ins().icmp_imm_s(IntCC::SignedLessThan, left, need);
            self.leave_if(is_over);
        }
        let rest = self.builder.ins().iadd_imm_s(left, -cost);
        self.builder.def_var(self.left, rest);
        self.charged = cost;
    }

    /// Where the function's event begins, and nothing jumps back to, the event's page is what it
    /// was told: all but Replace have one. That of PageFault is on no queue.
    fn facts_at_start(&self, at: usize) -> Facts {
        let mut facts = Facts::default();
        let is_start = at == self.image.entries[usize::from(self.root.0)] as usize;
        let start = self.image.start_of(self.root).filter(|start| start.faulted_page != 0);
        if let Some(start) = start
            && is_start
            && !self.layout.is_jumped_to[at]
            && self.root != EventNumber::REPLACE
        {
            facts.hold(Index(start.faulted_page));
            if self.root == EventNumber::PAGE_FAULT {
                facts.loose.push(Index(start.faulted_page));
            }
        }
        facts
    }

    /// What is known here is what is known there, as far as it is known on all ways there.
    fn goes_to(&mut self, at: usize) {
        match &mut self.known[at] {
            Some(known) => known.meet(&self.facts),
            none => *none = Some(self.facts.clone()),
        }
    }

    /// Goes to the next command, which begins a block.
    fn go_on(&mut self, next: usize) {
        match self.blocks.get(next).copied().flatten() {
            Some(block) if !self.layout.is_first[next] => {
                if self.layout.may_be_true[next] {
                    let test = self.test_value();
                    self.store_test(test);
                }
                self.goes_to(next);
                self.builder.ins().jump(block, &[]);
            }
            // No path comes here.
            _ => {
                self.at = next;
                self.charged = 0;
                self.leave();
            }
        }
    }

    fn jump_to(&mut self, to: usize) {
        if self.layout.may_be_true[to] {
            let zero = self.builder.ins().iconst(I32, 0);
            self.store_test(zero);
        }
        if let Some(block) = self.blocks[to] {
            self.goes_to(to);
            self.builder.ins().jump(block, &[]);
        }
    }

    fn test_value(&mut self) -> Value {
        match self.test {
            Test::False => self.builder.ins().iconst(I32, 0),
            Test::Value(test) => match self.builder.func.dfg.value_type(test) {
                I8 => self.builder.ins().uextend(I32, test),
                _ => test,
            },
        }
    }

    fn store_test(&mut self, test: Value) {
        self.store(Region::Place, test, self.registers, offset_of!(Registers, test) as i32);
    }

    /// Leaves the command at hand, and all behind it, to the interpreter.
    fn leave(&mut self) {
        let at = self.builder.ins().iconst(I32, self.at as i64);
        let test = self.test_value();
        let left = self.builder.use_var(self.left);
        let left = match self.charged {
            0 => left,
            charged => self.builder.ins().iadd_imm_s(left, charged),
        };
        self.builder.ins().jump(self.leave, &[at, test, left].map(BlockArg::Value));
    }

    /// The same, if a condition holds; nothing of the command was done yet.
    fn leave_if(&mut self, condition: Value) {
        let (leaves, goes_on) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(leaves);
        self.builder.ins().brif(condition, leaves, &[], goes_on, &[]);
        self.builder.switch_to_block(leaves);
        self.leave();
        self.builder.switch_to_block(goes_on);
    }
}
