//! From an image to machine code, through Cranelift: a function for each event of the system.
//!
//! A function holds its event and those that it Calls. It begins with the event's first command, or
//! where the program stands, and keeps Calls as the interpreter does, so that either can go on
//! where the other stopped. Commands that run together are charged together, where the first of
//! them begins. Whether the budget is enough is looked at where the event begins, at the head of a
//! loop and behind what the interpreter ran, for all that may run until it is looked at again; if
//! not, the interpreter runs what is left. Before a command that it leaves to the interpreter
//! nothing of it was done, and what was charged for it and those behind it is given back.
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I32, I64};
use cranelift_codegen::ir::{
    AbiParam, AliasRegionData, Block, BlockArg, Function, InstBuilder, JumpTableData, MemFlagsData,
    Signature, Type, Value,
};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::native::GOES_ON;
use crate::image::{Image, Registers};
use crate::pages::{
    AFTER, BEFORE, FRONT, GIVEN_UP, HOME, LEN, LOOSE, MODIFIED, ORDERED, REFERENCED,
};
use crate::program::{Arithmetic, Bit, Command, End, EventNumber, Index, Logical, Relation};

/// Bytes of a node.
const ROW: i64 = 16;
/// The same, as a shift.
const ROW_SHIFT: i64 = 4;

const fn field(field: usize) -> i32 {
    field as i32 * 4
}

/// How a program's code is cut into blocks, by places in the code.
pub(super) struct Layout {
    /// Where a block begins.
    is_leader: Vec<bool>,
    /// Leaders at which the interpreter may hand over, and the budget is looked at: every loop has
    /// one.
    pub(super) entries: Vec<bool>,
    /// Of entries: the most that is charged from there on until another, or the event's end.
    needs: Vec<i64>,
    /// Leaders that a Call goes back to.
    is_return: Vec<bool>,
    /// Whether a Jump goes there.
    is_jumped_to: Vec<bool>,
    /// Whether a test may have been true since the last Jump.
    may_be_true: Vec<bool>,
    /// Where an event begins.
    is_first: Vec<bool>,
    /// Where Calls of each event go back to.
    returns: Vec<Vec<u32>>,
    /// The event of each place.
    events: Vec<EventNumber>,
}

/// Whether the interpreter runs it always.
fn is_interpreted(image: &Image, command: Command) -> bool {
    match command {
        Command::DeQueue { queue, .. } | Command::EnQueue { queue, .. } => {
            image.is_ordered[usize::from(queue.0)]
        }
        Command::Request { .. }
        | Command::Flush { .. }
        | Command::FindVA { .. }
        | Command::FindPA { .. }
        | Command::Map { .. }
        | Command::UnMap { .. }
        | Command::Prefetch { .. } => true,
        _ => false,
    }
}

impl Layout {
    pub(super) fn of(image: &Image) -> Self {
        let len = image.code.len();
        let mut layout = Self {
            is_leader: vec![false; len],
            entries: vec![false; len],
            needs: vec![0; len],
            is_return: vec![false; len],
            is_jumped_to: vec![false; len],
            may_be_true: vec![false; len],
            is_first: vec![false; len],
            returns: vec![Vec::new(); 256],
            events: (0..len as u32).map(|at| image.spot(at).0).collect(),
        };
        for entry in image.entries.iter().filter(|entry| **entry != u32::MAX) {
            let at = *entry as usize;
            layout.is_first[at] = true;
            layout.is_leader[at] = true;
            layout.entries[at] = true;
        }
        for (at, step) in image.code.iter().enumerate() {
            let next = at + 1;
            match step.command {
                Command::Jump { to } => {
                    let to = usize::from(to);
                    layout.is_leader[to] = true;
                    layout.is_jumped_to[to] = true;
                    // Loops, so that one that the interpreter has a part of comes back.
                    layout.entries[to] |= to <= at;
                }
                Command::Call { event } if next < len => {
                    layout.returns[usize::from(event.0)].push(next as u32);
                    layout.is_return[next] = true;
                }
                Command::Return { .. } => {}
                command if is_interpreted(image, command) && next < len => {
                    layout.entries[next] = true;
                }
                _ => continue,
            }
            if next < len {
                layout.is_leader[next] = true;
            }
        }
        for at in 1..len {
            let before = image.code[at - 1].command;
            layout.may_be_true[at] = !layout.is_first[at]
                && match before {
                    Command::Jump { .. } | Command::Call { .. } | Command::Return { .. } => false,
                    before => before.is_test() || layout.may_be_true[at - 1],
                };
        }
        let mut known = vec![None; len];
        for at in (0..len).filter(|at| layout.entries[*at]) {
            layout.needs[at] = layout.need(image, at, &mut known);
        }
        layout
    }

    /// The most that is charged from a leader on until an entry, or the event's end.
    fn need(&self, image: &Image, leader: usize, known: &mut [Option<i64>]) -> i64 {
        if let Some(need) = known[leader] {
            return need;
        }
        // No cycle is without an entry: a loop jumps back, and an event that is Called begins.
        let mut behind = |at: usize| match self.entries.get(at) {
            Some(false) => self.need(image, at, known),
            _ => 0,
        };
        let last = (leader..).find(|at| self.ends(image, *at)).unwrap_or(leader);
        let most = match image.code[last].command {
            Command::Jump { to } => behind(to.into()).max(behind(last + 1)),
            Command::Call { .. } => 0,
            Command::Return { .. } => {
                let returns = &self.returns[usize::from(self.events[last].0)];
                returns.iter().map(|at| behind(*at as usize)).max().unwrap_or(0)
            }
            command if is_interpreted(image, command) => 0,
            _ => behind(last + 1),
        };
        let need = self.cost(image, leader) + most;
        known[leader] = Some(need);
        need
    }

    /// An event, and those that it Calls.
    fn reached(&self, image: &Image, root: EventNumber) -> Vec<EventNumber> {
        let mut reached = vec![root];
        let mut place = 0;
        while let Some(from) = reached.get(place).copied() {
            for (step, event) in std::iter::zip(&image.code, &self.events) {
                if let Command::Call { event: called } = step.command
                    && *event == from
                    && !reached.contains(&called)
                {
                    reached.push(called);
                }
            }
            place += 1;
        }
        reached
    }

    /// Whether any event Calls another.
    fn calls(&self) -> bool {
        self.returns.iter().any(|returns| !returns.is_empty())
    }

    /// Whether the command is the last of its block.
    fn ends(&self, image: &Image, at: usize) -> bool {
        self.is_leader.get(at + 1).is_none_or(|is_leader| *is_leader)
            || matches!(
                image.code[at].command,
                Command::Jump { .. } | Command::Call { .. } | Command::Return { .. }
            )
    }

    /// What a block costs: its commands up to one for the interpreter.
    fn cost(&self, image: &Image, leader: usize) -> i64 {
        let mut cost = 0;
        for (at, step) in image.code.iter().enumerate().skip(leader) {
            if is_interpreted(image, step.command) {
                break;
            }
            cost += i64::from(step.cost);
            if self.ends(image, at) {
                break;
            }
        }
        cost
    }
}

/// Memory that never overlaps, for the compiler's knowledge of loads and stores.
#[derive(Clone, Copy)]
enum Region {
    /// `depth` and callers.
    Calls,
    /// Links, fronts and backs.
    Links,
    Lens,
    /// The number of loose pages.
    Loose,
    Homes,
    Ordered,
    Bits,
    Numbers,
    Int(Index),
    Page(Index),
    Queue(Index),
    /// What the interpreter finds when it takes over.
    Place,
    /// The page that Replace gave up.
    Named,
}

impl Region {
    fn id(self) -> u32 {
        match self {
            Region::Calls => 0,
            Region::Links => 1,
            Region::Lens => 2,
            Region::Loose => 3,
            Region::Homes => 4,
            Region::Ordered => 5,
            Region::Bits => 6,
            Region::Numbers => 7,
            Region::Place => 8,
            Region::Named => 9,
            Region::Int(index) => 0x100 + u32::from(index.0),
            Region::Page(index) => 0x200 + u32::from(index.0),
            Region::Queue(index) => 0x300 + u32::from(index.0),
        }
    }
}

/// What the next Jump acts on.
#[derive(Clone, Copy)]
enum Test {
    False,
    /// Of any integer type; true if not 0.
    Value(Value),
}

/// A queue in a command.
#[derive(Clone, Copy)]
enum Queue {
    Known(u32),
    Home(Value),
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

    fn flags(&mut self, region: Region) -> MemFlagsData {
        let region = self
            .builder
            .func
            .dfg
            .alias_regions
            .insert(AliasRegionData { user_id: region.id(), description: "".into() });
        MemFlagsData::trusted().with_alias_region(Some(region))
    }

    fn load(&mut self, ty: Type, region: Region, base: Value, offset: i32) -> Value {
        let flags = self.flags(region);
        self.builder.ins().load(ty, flags, base, offset)
    }

    fn store(&mut self, region: Region, value: Value, base: Value, offset: i32) {
        let flags = self.flags(region);
        self.builder.ins().store(flags, value, base, offset);
    }

    fn int(&mut self, index: Index) -> Value {
        match self.image.constants[usize::from(index.0)] {
            Some(value) => self.builder.ins().iconst(I64, value),
            None => {
                let offset = offset_of!(Registers, ints) as i32 + i32::from(index.0) * 8;
                self.load(I64, Region::Int(index), self.registers, offset)
            }
        }
    }

    fn set_int(&mut self, index: Index, value: Value) {
        let offset = offset_of!(Registers, ints) as i32 + i32::from(index.0) * 8;
        self.store(Region::Int(index), value, self.registers, offset);
    }

    /// The link of the page in an operand, or 0.
    fn link(&mut self, index: Index) -> Value {
        let offset = offset_of!(Registers, pages) as i32 + i32::from(index.0) * 4;
        self.load(I32, Region::Page(index), self.registers, offset)
    }

    /// The link of the page in an operand, which holds one.
    fn page(&mut self, index: Index) -> Value {
        let link = self.link(index);
        if !self.facts.holding.contains(&index) {
            let is_none = self.builder.ins().icmp_imm_s(IntCC::Equal, link, 0);
            self.leave_if(is_none);
            self.facts.hold(index);
        }
        link
    }

    fn set_page(&mut self, index: Index, link: Value) {
        let offset = offset_of!(Registers, pages) as i32 + i32::from(index.0) * 4;
        self.store(Region::Page(index), link, self.registers, offset);
        self.facts.forget(index);
    }

    fn set_queue(&mut self, index: Index, home: Value) {
        let offset = offset_of!(Registers, queues) as i32 + i32::from(index.0) * 4;
        self.store(Region::Queue(index), home, self.registers, offset);
    }

    fn queue(&mut self, index: Index) -> Queue {
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

    fn home(&mut self, queue: Queue) -> Value {
        match queue {
            Queue::Known(home) => self.builder.ins().iconst(I32, i64::from(home)),
            Queue::Home(home) => home,
        }
    }

    /// Where the node of a queue is.
    fn queue_row(&mut self, queue: Queue) -> Value {
        match queue {
            Queue::Known(home) => self.builder.ins().iadd_imm_s(self.nodes, i64::from(home) * ROW),
            Queue::Home(home) => self.node(home),
        }
    }

    /// Where the node of a link is.
    fn node(&mut self, link: Value) -> Value {
        let number = self.builder.ins().uextend(I64, link);
        let offset = self.builder.ins().ishl_imm_u(number, ROW_SHIFT);
        self.builder.ins().iadd(self.nodes, offset)
    }

    /// What the links of pages begin at.
    fn homes(&self) -> i32 {
        self.image.pages.homes() as i32
    }

    fn bits_of(&mut self, link: Value) -> Value {
        let link = self.builder.ins().uextend(I64, link);
        self.builder.ins().iadd(self.bits, link)
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

    fn load_loose(&mut self) {
        let row = self.queue_row(Queue::Known(LOOSE));
        let loose = self.load(I32, Region::Loose, row, field(LEN));
        self.builder.def_var(self.loose, loose);
    }

    fn store_loose(&mut self) {
        let row = self.queue_row(Queue::Known(LOOSE));
        let loose = self.builder.use_var(self.loose);
        self.store(Region::Loose, loose, row, field(LEN));
    }

    /// Puts a page that is in no place at an end of a queue that is not ordered.
    fn put(&mut self, link: Value, node: Value, queue: Queue, end: End) {
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
    fn take(&mut self, page: Index, node: Value) {
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

    fn dequeue(&mut self, page: Index, queue: Queue, end: End) {
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

    fn give_up(&mut self, page: Index) {
        let link = self.page(page);
        let node = self.node(link);
        self.take(page, node);
        self.put(link, node, Queue::Known(GIVEN_UP), End::Tail);
        let none = self.builder.ins().iconst(I32, 0);
        self.set_page(page, none);
    }

    /// Gives up the page that leaves next, with the event's end: unless others do before it, it is
    /// named, and on no list. Nothing sees its home and operand any more.
    fn name(&mut self, page: Index) {
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

    /// One command; whether the next one belongs to the same block or is gone on to.
    fn command(&mut self, command: Command) -> bool {
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

    /// Where one of a page's own integers is, unless it is always 0.
    fn number(&mut self, link: Value, slot: u8) -> Option<(Value, i32)> {
        let (column, stride) = self.image.pages.column(slot)?;
        let link = self.builder.ins().uextend(I64, link);
        let offset = self.builder.ins().imul_imm_s(link, stride as i64 * 8);
        let place = self.builder.ins().iadd(self.numbers, offset);
        Some((place, (column as i32 - stride as i32 * self.homes()) * 8))
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
