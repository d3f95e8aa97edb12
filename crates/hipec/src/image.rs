//! A program made ready to run: what is the same for all policies that run it.
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::compile::{CompileError, Native};
use crate::pages::{FIRST_QUEUE, NO_COLUMN, Pages};
use crate::program::{
    Command, Event, EventNumber, Index, Kind, PAGE_SLOTS, PRESET_OPERANDS, Program, System,
};

/// Commands that taking from, or putting on, an Ordered queue counts as.
pub const ORDERED_COMMANDS: u64 = 8;

/// Most nested Calls: an event on the way is not entered twice, and two are never called.
pub(crate) const CALLS_MAX: usize = 256;

/// What the operands hold, and where the program stands.
///
/// A page is written as its link, a queue as the home of its pages (see [`pages`](crate::pages)); 0
/// is none. So an operand holds a page that was admitted, or none.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Registers {
    pub(crate) ints: [i64; 256],
    pub(crate) pages: [u32; 256],
    pub(crate) queues: [u32; 256],
    /// Where Calls go back to; the first `depth` are in use.
    pub(crate) callers: [u32; CALLS_MAX],
    pub(crate) depth: u32,
    /// The place in the code of the command that is next.
    pub(crate) at: u32,
    /// Whether a test was true since the last Jump: 0 or 1.
    pub(crate) test: u32,
    /// The page that compiled Replace gave up while no other was given up: it is in no place, its
    /// home is as it was, and it leaves next. So it is never linked only to be taken off again.
    pub(crate) named: u32,
}

/// A command as it is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Jumps go to places in the code.
    pub(crate) command: Command,
    /// What it counts as.
    pub(crate) cost: u8,
}

/// What is set before an event of the system: no more than its commands can see.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// The place of its first command.
    pub(crate) entry: u32,
    /// Page operands and queue references that are empty when it begins, unless all its paths
    /// write them before they read them.
    pub(crate) pages: Vec<u8>,
    pub(crate) queues: Vec<u8>,
    /// Operands that are the event's page, whether it came ahead, and the references seen; 0, which
    /// is a queue's, where its commands see none.
    pub(crate) faulted_page: u8,
    pub(crate) prefetched: u8,
    pub(crate) now: u8,
    /// The others that the system sets.
    pub(crate) systems: Vec<(System, u8)>,
    pub(crate) has_free_count: bool,
    /// Whether anything is set that compiled code does not set when it begins.
    pub(crate) has_more: bool,
}

/// A program's code and what its policies begin with.
pub(crate) struct Image {
    pub(crate) code: Vec<Step>,
    /// Where each event begins in `code`; `u32::MAX` where there is none.
    pub(crate) entries: Box<[u32; 256]>,
    /// Event, and where it ends in `code`.
    ends: Vec<(EventNumber, u32)>,
    /// Of arrays: the number of queues.
    pub(crate) lengths: Box<[u16; 256]>,
    /// Ints that no command changes, but for `_free_count`.
    pub(crate) constants: Box<[Option<i64>; 256]>,
    /// Operands that are Ordered queues.
    pub(crate) is_ordered: Box<[bool; 256]>,
    pub(crate) registers: Box<Registers>,
    pub(crate) pages: Pages,
    pub(crate) uses_places: bool,
    starts: [Option<Start>; SYSTEM_EVENTS.len()],
    native: OnceLock<Result<Arc<Native>, CompileError>>,
}

/// Events that the system runs.
pub(crate) const SYSTEM_EVENTS: [EventNumber; 5] = [
    EventNumber::PAGE_FAULT,
    EventNumber::REPLACE,
    EventNumber::REFERENCE,
    EventNumber::REMOVED,
    EventNumber::SAMPLE,
];

/// The place in them.
#[inline]
pub(crate) const fn system_place(event: EventNumber) -> Option<usize> {
    match event {
        EventNumber::PAGE_FAULT => Some(0),
        EventNumber::REPLACE => Some(1),
        EventNumber::REFERENCE => Some(2),
        EventNumber::REMOVED => Some(3),
        EventNumber::SAMPLE => Some(4),
        _ => None,
    }
}

impl Image {
    pub(crate) fn new(program: &Program, uses_places: bool) -> Self {
        let mut image = Self {
            code: Vec::new(),
            entries: Box::new([u32::MAX; 256]),
            ends: Vec::new(),
            lengths: Box::new([0; 256]),
            constants: Box::new([None; 256]),
            is_ordered: Box::new([false; 256]),
            registers: Box::new(Registers {
                ints: [0; 256],
                pages: [0; 256],
                queues: [0; 256],
                callers: [0; CALLS_MAX],
                depth: 0,
                at: 0,
                test: 0,
                named: 0,
            }),
            pages: Pages::new(columns(program)),
            uses_places,
            starts: Default::default(),
            native: OnceLock::new(),
        };
        image.operands(program);
        image.events(program);
        image.starts = SYSTEM_EVENTS.map(|event| image.start(program, event));
        image
    }

    fn operands(&mut self, program: &Program) {
        self.registers.queues[usize::from(Index::FREE_QUEUE.0)] = FIRST_QUEUE;
        for (place, operand) in program.operands.iter().enumerate() {
            let at = place + PRESET_OPERANDS;
            match operand.kind {
                Kind::Int { initial } => {
                    self.registers.ints[at] = initial.into();
                    self.constants[at] = Some(initial.into());
                }
                Kind::Queue => self.registers.queues[at] = self.pages.add_queue(None),
                Kind::Ordered { slot } => {
                    self.registers.queues[at] = self.pages.add_queue(Some(slot));
                    self.is_ordered[at] = true;
                }
                Kind::Queues { len } => {
                    let homes: Vec<_> = (0..len).map(|_| self.pages.add_queue(None)).collect();
                    self.registers.queues[at] = homes[0];
                    self.lengths[at] = len;
                }
                Kind::Page | Kind::QueueRef | Kind::System(_) => {}
            }
        }
    }

    fn events(&mut self, program: &Program) {
        for event in &program.events {
            let base = self.code.len() as u32;
            self.entries[usize::from(event.number.0)] = base;
            for command in &event.commands {
                let command = match *command {
                    // From words of the event to places, of which there are few enough.
                    Command::Jump { to } => Command::Jump { to: (base + u32::from(to) - 1) as u16 },
                    Command::Return { .. } if event.number != EventNumber::REPLACE => {
                        Command::Return { page: None }
                    }
                    command => command,
                };
                if let Some(changed) = changed_int(command) {
                    self.constants[usize::from(changed.0)] = None;
                }
                let cost = match command {
                    Command::DeQueue { queue, .. } | Command::EnQueue { queue, .. }
                        if self.is_ordered[usize::from(queue.0)] =>
                    {
                        ORDERED_COMMANDS as u8
                    }
                    _ => 1,
                };
                self.code.push(Step { command, cost });
            }
            self.ends.push((event.number, self.code.len() as u32));
        }
    }

    fn start(&self, program: &Program, event: EventNumber) -> Option<Start> {
        let first_read = first_read(program.event(event)?);
        let named = named(program, event);
        let mut start = Start { entry: self.entries[usize::from(event.0)], ..Start::default() };
        start.has_free_count = named[usize::from(Index::FREE_COUNT.0)];
        for (place, operand) in program.operands.iter().enumerate() {
            let index = Index::declared(place).0;
            if !named[usize::from(index)] {
                continue;
            }
            match operand.kind {
                Kind::Page if first_read[usize::from(index)] => start.pages.push(index),
                Kind::QueueRef if first_read[usize::from(index)] => start.queues.push(index),
                Kind::System(System::FaultedPage) if start.faulted_page == 0 => {
                    start.faulted_page = index;
                }
                Kind::System(System::Prefetched) if start.prefetched == 0 => {
                    start.prefetched = index;
                }
                Kind::System(System::Now) if start.now == 0 => start.now = index,
                Kind::System(system) => start.systems.push((system, index)),
                _ => {}
            }
        }
        start.has_more = start.has_free_count || start.now != 0 || !start.systems.is_empty();
        Some(start)
    }

    /// What precedes an event of the system, if the program has it.
    pub(crate) fn start_of(&self, event: EventNumber) -> Option<&Start> {
        self.starts[system_place(event)?].as_ref()
    }

    /// The event and word of a place in the code.
    pub(crate) fn spot(&self, at: u32) -> (EventNumber, u16) {
        let mut base = 0;
        for (number, end) in &self.ends {
            if at < *end {
                return (*number, (at - base + 1) as u16);
            }
            base = *end;
        }
        (EventNumber::INIT, 0)
    }

    /// The machine code, made when it is first asked for.
    pub(crate) fn native(&self) -> Result<Arc<Native>, CompileError> {
        self.native.get_or_init(|| Native::compile(self).map(Arc::new)).clone()
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("code", &self.code).finish_non_exhaustive()
    }
}

/// Where each of the pages' own integers that some command writes is kept; all others stay 0.
fn columns(program: &Program) -> [u8; PAGE_SLOTS as usize] {
    let mut columns = [NO_COLUMN; PAGE_SLOTS as usize];
    let mut next = 0;
    for command in program.events.iter().flat_map(|event| &event.commands) {
        if let Command::Store { slot, .. } = *command
            && columns[usize::from(slot)] == NO_COLUMN
        {
            columns[usize::from(slot)] = next;
            next += 1;
        }
    }
    columns
}

/// Operands that an event names, or one that it Calls.
fn named(program: &Program, event: EventNumber) -> [bool; 256] {
    let mut named = [false; 256];
    let mut reached = vec![event];
    let mut place = 0;
    while let Some(event) = reached.get(place).and_then(|number| program.event(*number)) {
        for command in &event.commands {
            if let Command::Call { event } = *command {
                if !reached.contains(&event) {
                    reached.push(event);
                }
                continue;
            }
            for operand in operands(*command) {
                named[usize::from(operand.0)] = true;
            }
        }
        place += 1;
    }
    named
}

fn operands(command: Command) -> Vec<Index> {
    crate::verify::roles(command).into_iter().map(|(operand, _)| operand).collect()
}

/// The Int that a command changes.
fn changed_int(command: Command) -> Option<Index> {
    match command {
        Command::Arith { target, .. } | Command::Load { target, .. } => Some(target),
        Command::FindVA { address, .. } => Some(address),
        Command::Count { count, .. } => Some(count),
        _ => None,
    }
}

/// Operands that some path through an event reads, or an event that it Calls may read, before it
/// wrote them.
fn first_read(event: &Event) -> [bool; 256] {
    let len = event.commands.len();
    let mut is_read = [false; 256];
    // Operands that all paths to a command have written; none was found before the first.
    let mut written: Vec<Option<[bool; 256]>> = vec![None; len];
    let mut to_do = vec![(0, [false; 256])];
    while let Some((at, came)) = to_do.pop() {
        if at >= len {
            continue;
        }
        let mut now = match written[at] {
            None => came,
            Some(before) => {
                let both = std::array::from_fn(|operand| before[operand] && came[operand]);
                if both == before {
                    continue;
                }
                both
            }
        };
        written[at] = Some(now);
        let command = event.commands[at];
        let roles = crate::verify::roles(command);
        for (operand, role) in &roles {
            let operand = usize::from(operand.0);
            is_read[operand] |= !role.is_write() && !now[operand];
        }
        for (operand, role) in roles {
            now[usize::from(operand.0)] |= role.is_write();
        }
        match command {
            Command::Return { .. } => continue,
            Command::Jump { to } => to_do.push((usize::from(to) - 1, now)),
            Command::Call { .. } => {
                for (operand, is_read) in is_read.iter_mut().enumerate() {
                    *is_read |= !now[operand];
                }
            }
            _ => {}
        }
        to_do.push((at + 1, now));
    }
    is_read
}
