//! Runs a verified program, command by command, within a budget counted in commands.
//!
//! No clock is looked at: the same events end after the same commands, on any machine. What the
//! verifier could not decide is decided here, with a defined result: a [`Misuse`] ends the event
//! at that command, and what was done before it stays done.
use pagekeeper_policy::Page;

use crate::pages::{MODIFIED, Pages, QueueNumber, REFERENCED};
use crate::program::{
    Arithmetic, Bit, Command, EventNumber, Index, Kind, Logical, Relation, System,
};
use crate::verify::Verified;

/// Commands that taking from, or putting on, an Ordered queue counts as.
pub const ORDERED_COMMANDS: u64 = 8;

/// Most hints that are kept for the host until it takes them; later ones are dropped.
pub const HINTS_MAX: usize = 1024;

const NO_PAGE: u32 = u32::MAX;
const NO_QUEUE: QueueNumber = QueueNumber::MAX;

/// What a program asks of its host beyond choosing pages. The program goes on without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// Flush of a modified page.
    Flush(Page),
    /// Map.
    Map(Page),
    /// UnMap.
    UnMap(Page),
    /// Prefetch.
    Prefetch {
        /// Address of the first page, in pages.
        address: i64,
        /// How many.
        pages: i64,
    },
    /// Request, of so many frames.
    Request(i64),
}

/// What a command could not be done for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// A Page operand holds none.
    #[error("the operand holds no page; test it with Has, or the queue with EmptQ")]
    NoPage,
    /// The page was given up.
    #[error("the page was given up before; give a page up once, and last")]
    GivenUp,
    /// A QueueRef refers to no queue.
    #[error("the operand refers to no queue; Pick one before")]
    NoQueue,
    /// The array has no queue of this number.
    #[error("the array has no queue of this number; compare it with the length before")]
    NoSuchQueue,
    /// A division by zero.
    #[error("this divides by zero; compare the divisor with 0 before")]
    DividesByZero,
    /// A page is mapped where it does not belong.
    #[error("a page can be mapped at its own address only; take it from FindVA")]
    NotItsAddress,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With Return.
    Returned,
    /// The budget was used up before the command that would be next. A further run goes on there.
    OverBudget,
    /// At a command that could not be done.
    Misused {
        /// The event that the command is in.
        event: EventNumber,
        /// Its word.
        word: u16,
        /// Why.
        why: Misuse,
    },
}

/// A number to a system operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) page: Option<Page>,
    pub(crate) prefetched: bool,
    pub(crate) frames: u32,
    pub(crate) free_frames: u32,
    pub(crate) now: u64,
}

/// A program that runs: its operands, its pages and where it stopped.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    code: Vec<Command>,
    /// Where each event begins in `code`; `u32::MAX` where there is none.
    entries: Box<[u32; 256]>,
    ints: Box<[i64; 256]>,
    page_operands: Box<[u32; 256]>,
    queues: Box<[QueueNumber; 256]>,
    /// Of arrays: the number of queues.
    lengths: Box<[u16; 256]>,
    /// Operands that are emptied when an event begins.
    emptied_pages: Vec<u8>,
    emptied_queues: Vec<u8>,
    is_ordered: Vec<bool>,
    systems: Vec<(System, u8)>,
    pub(crate) pages: Pages,
    uses_places: bool,
    finds_pages: bool,
    // Where it is.
    at: u32,
    test: bool,
    callers: Vec<u32>,
    hints: Vec<Hint>,
}

impl Machine {
    pub(crate) fn new(verified: &Verified) -> Self {
        let program = verified.program();
        let mut machine = Self {
            code: Vec::new(),
            entries: Box::new([u32::MAX; 256]),
            ints: Box::new([0; 256]),
            page_operands: Box::new([NO_PAGE; 256]),
            queues: Box::new([NO_QUEUE; 256]),
            lengths: Box::new([0; 256]),
            emptied_pages: Vec::new(),
            emptied_queues: Vec::new(),
            is_ordered: vec![false],
            systems: Vec::new(),
            pages: Pages::new(),
            uses_places: verified.uses_places(),
            finds_pages: verified.finds_pages(),
            at: 0,
            test: false,
            callers: Vec::with_capacity(verified.calls_deep()),
            hints: Vec::new(),
        };
        machine.queues[usize::from(Index::FREE_QUEUE.0)] = 0;
        for (place, operand) in program.operands.iter().enumerate() {
            let index = Index::declared(place).0;
            let at = usize::from(index);
            match operand.kind {
                Kind::Int { initial } => machine.ints[at] = initial.into(),
                Kind::Queue => machine.queues[at] = machine.add_queue(None),
                Kind::Ordered { slot } => machine.queues[at] = machine.add_queue(Some(slot)),
                Kind::Queues { len } => {
                    let numbers: Vec<_> = (0..len).map(|_| machine.add_queue(None)).collect();
                    machine.queues[at] = numbers[0];
                    machine.lengths[at] = len;
                }
                Kind::Page => machine.emptied_pages.push(index),
                Kind::QueueRef => machine.emptied_queues.push(index),
                Kind::System(system) => machine.systems.push((system, index)),
            }
        }
        for event in &program.events {
            let base = machine.code.len() as u32;
            machine.entries[usize::from(event.number.0)] = base;
            machine.code.extend(event.commands.iter().map(|command| match *command {
                // From words of the event to places in the code, of which there are few enough.
                Command::Jump { to } => Command::Jump { to: (base + u32::from(to) - 1) as u16 },
                Command::Return { .. } if event.number != EventNumber::REPLACE => {
                    Command::Return { page: None }
                }
                command => command,
            }));
        }
        machine
    }

    fn add_queue(&mut self, slot: Option<u8>) -> QueueNumber {
        self.is_ordered.push(slot.is_some());
        self.pages.add_queue(slot)
    }

    pub(crate) fn has_event(&self, event: EventNumber) -> bool {
        self.entries[usize::from(event.0)] != u32::MAX
    }

    pub(crate) const fn uses_places(&self) -> bool {
        self.uses_places
    }

    pub(crate) const fn finds_pages(&self) -> bool {
        self.finds_pages
    }

    pub(crate) fn take_hints(&mut self) -> Vec<Hint> {
        std::mem::take(&mut self.hints)
    }

    /// Stands before the first command of an event, with what the system tells.
    pub(crate) fn begin(&mut self, event: EventNumber, told: Told) {
        self.at = self.entries[usize::from(event.0)];
        self.test = false;
        self.callers.clear();
        for operand in &self.emptied_pages {
            self.page_operands[usize::from(*operand)] = NO_PAGE;
        }
        for operand in &self.emptied_queues {
            self.queues[usize::from(*operand)] = NO_QUEUE;
        }
        let free = i64::from(told.free_frames) + i64::from(self.pages.free());
        self.ints[usize::from(Index::FREE_COUNT.0)] = free;
        let place = match told.page {
            Some(page) if self.uses_places => Some(self.pages.place(page)),
            _ => None,
        };
        for (system, operand) in &self.systems {
            let at = usize::from(*operand);
            self.ints[at] = match system {
                System::FaultedPage => {
                    self.page_operands[at] = told.page.map_or(NO_PAGE, |page| page.0);
                    0
                }
                System::FaultedAddress => told.page.map_or(-1, |page| self.pages.address(page)),
                System::FaultedSegment => place.map_or(-1, |place| place.segment.0.into()),
                System::FaultedIndex => place.map_or(-1, |place| place.index as i64),
                System::Frames => told.frames.into(),
                System::Resident => self.pages.resident().into(),
                System::Now => told.now as i64,
                System::Prefetched => told.prefetched.into(),
            };
        }
    }

    /// Runs from where it stands for at most `budget` commands. Gives back how many it ran too.
    pub(crate) fn run(&mut self, program: &Verified, budget: u64) -> (Ended, u64) {
        let mut left = budget;
        let ended = self.steps(program, &mut left);
        (ended, budget - left)
    }

    fn steps(&mut self, program: &Verified, left: &mut u64) -> Ended {
        loop {
            let command = self.code[self.at as usize];
            let cost = self.cost(command);
            if cost > *left {
                return Ended::OverBudget;
            }
            *left -= cost;
            match self.step(command) {
                Ok(true) => {}
                Ok(false) => return Ended::Returned,
                Err(why) => {
                    let (event, word) = self.spot(program);
                    return Ended::Misused { event, word, why };
                }
            }
        }
    }

    #[inline]
    fn cost(&self, command: Command) -> u64 {
        match command {
            Command::DeQueue { queue, .. } | Command::EnQueue { queue, .. } => {
                let number = self.queues[usize::from(queue.0)];
                match self.is_ordered.get(usize::from(number)) {
                    Some(true) => ORDERED_COMMANDS,
                    _ => 1,
                }
            }
            _ => 1,
        }
    }

    /// The event and word of the command that it stands before.
    fn spot(&self, program: &Verified) -> (EventNumber, u16) {
        let mut base = 0;
        for event in &program.program().events {
            let end = base + event.commands.len() as u32;
            if self.at < end {
                return (event.number, (self.at - base + 1) as u16);
            }
            base = end;
        }
        (EventNumber::INIT, 0)
    }

    #[inline]
    fn int(&self, index: Index) -> i64 {
        self.ints[usize::from(index.0)]
    }

    #[inline]
    fn set_int(&mut self, index: Index, value: i64) {
        self.ints[usize::from(index.0)] = value;
    }

    /// The page in an operand.
    #[inline]
    fn page(&self, index: Index) -> Result<Page, Misuse> {
        match self.page_operands[usize::from(index.0)] {
            NO_PAGE => Err(Misuse::NoPage),
            page => Ok(Page(page)),
        }
    }

    /// The page in an operand, if it was not given up.
    #[inline]
    fn kept(&self, index: Index) -> Result<Page, Misuse> {
        let page = self.page(index)?;
        if self.pages.is_given_up(page) { Err(Misuse::GivenUp) } else { Ok(page) }
    }

    #[inline]
    fn set_page(&mut self, index: Index, page: Option<Page>) {
        self.page_operands[usize::from(index.0)] = page.map_or(NO_PAGE, |page| page.0);
    }

    #[inline]
    fn queue(&self, index: Index) -> Result<QueueNumber, Misuse> {
        match self.queues[usize::from(index.0)] {
            NO_QUEUE => Err(Misuse::NoQueue),
            queue => Ok(queue),
        }
    }

    fn hint(&mut self, hint: Hint) {
        if self.hints.len() < HINTS_MAX {
            self.hints.push(hint);
        }
    }

    fn release(&mut self, index: Index) -> Result<(), Misuse> {
        let page = self.kept(index)?;
        self.pages.release(page);
        self.set_page(index, None);
        Ok(())
    }

    /// One command; false when the event has ended.
    #[inline]
    fn step(&mut self, command: Command) -> Result<bool, Misuse> {
        match command {
            Command::Return { page } => {
                // Only Replace's are left here: elsewhere the page says nothing.
                if let Some(page) = page {
                    self.release(page)?;
                }
                match self.callers.pop() {
                    Some(caller) => self.at = caller,
                    None => return Ok(false),
                }
                self.test = false;
                return Ok(true);
            }
            Command::Arith { target, source, operation } => {
                let (left, right) = (self.int(target), self.int(source));
                let value = match operation {
                    Arithmetic::Add => left.wrapping_add(right),
                    Arithmetic::Subtract => left.wrapping_sub(right),
                    Arithmetic::Multiply => left.wrapping_mul(right),
                    Arithmetic::Divide | Arithmetic::Remainder if right == 0 => {
                        return Err(Misuse::DividesByZero);
                    }
                    Arithmetic::Divide => left.wrapping_div(right),
                    Arithmetic::Remainder => left.wrapping_rem(right),
                    Arithmetic::Increment => left.wrapping_add(1),
                    Arithmetic::Decrement => left.wrapping_sub(1),
                    Arithmetic::Assign => right,
                };
                self.set_int(target, value);
            }
            Command::Comp { left, right, relation } => {
                let (left, right) = (self.int(left), self.int(right));
                self.test = match relation {
                    Relation::Greater => left > right,
                    Relation::Less => left < right,
                    Relation::Equal => left == right,
                    Relation::LessOrEqual => left <= right,
                    Relation::GreaterOrEqual => left >= right,
                    Relation::NotEqual => left != right,
                };
            }
            Command::Logic { left, right, operation } => {
                let (left, right) = (self.int(left) != 0, self.int(right) != 0);
                self.test = match operation {
                    Logical::And => left && right,
                    Logical::Or => left || right,
                    Logical::Not => !left,
                    Logical::Xor => left != right,
                };
            }
            Command::EmptQ { queue } => self.test = self.pages.len(self.queue(queue)?) == 0,
            Command::InQ { page, queue } => {
                self.test = self.pages.is_on(self.page(page)?, self.queue(queue)?);
            }
            Command::Jump { to } => {
                if !std::mem::take(&mut self.test) {
                    self.at = to.into();
                    return Ok(true);
                }
            }
            Command::DeQueue { page, queue, end } => {
                let queue = self.queue(queue)?;
                let taken = self.pages.dequeue(queue, end);
                self.set_page(page, taken);
            }
            Command::EnQueue { page, queue, end } => {
                let (page, queue) = (self.kept(page)?, self.queue(queue)?);
                self.pages.enqueue(page, queue, end);
            }
            Command::Request { frames } => {
                self.hint(Hint::Request(self.int(frames)));
                self.test = false;
            }
            Command::Release { page } => self.release(page)?,
            Command::Flush { page } => {
                let page = self.page(page)?;
                if self.pages.has_bit(page, MODIFIED) {
                    self.pages.set_bit(page, MODIFIED, false);
                    self.hint(Hint::Flush(page));
                }
            }
            Command::Set { page, bit, to } => {
                let page = self.page(page)?;
                let bit = match bit {
                    Bit::Modified => MODIFIED,
                    Bit::Referenced => REFERENCED,
                };
                self.pages.set_bit(page, bit, to);
            }
            Command::Ref { page } => {
                self.test = self.pages.has_bit(self.page(page)?, REFERENCED);
            }
            Command::Mod { page } => self.test = self.pages.has_bit(self.page(page)?, MODIFIED),
            Command::FindVA { address, page } => {
                let found = self.pages.address(self.page(page)?);
                self.set_int(address, found);
            }
            Command::FindPA { page, address } => {
                let found = self.pages.at_address(self.int(address));
                self.set_page(page, found);
            }
            Command::Map { page, address } => {
                let page = self.page(page)?;
                if self.pages.address(page) != self.int(address) {
                    return Err(Misuse::NotItsAddress);
                }
                self.hint(Hint::Map(page));
            }
            Command::UnMap { page } => {
                let page = self.page(page)?;
                self.hint(Hint::UnMap(page));
            }
            Command::Call { event } => {
                self.callers.push(self.at + 1);
                self.test = false;
                self.at = self.entries[usize::from(event.0)];
                return Ok(true);
            }
            Command::Pick { queue, array, at } => {
                let at = self.int(at);
                if !(0..i64::from(self.lengths[usize::from(array.0)])).contains(&at) {
                    return Err(Misuse::NoSuchQueue);
                }
                let picked = self.queues[usize::from(array.0)] + at as QueueNumber;
                self.queues[usize::from(queue.0)] = picked;
            }
            Command::Count { count, queue } => {
                let len = self.pages.len(self.queue(queue)?);
                self.set_int(count, len.into());
            }
            Command::Load { target, page, slot } => {
                let value = self.pages.load(self.page(page)?, slot);
                self.set_int(target, value);
            }
            Command::Store { page, slot, source } => {
                self.pages.store(self.page(page)?, slot, self.int(source));
            }
            Command::Copy { target, source } => {
                let page = self.page(source)?;
                self.set_page(target, Some(page));
            }
            Command::Has { page } => self.test = self.page(page).is_ok(),
            Command::Prefetch { address, pages } => {
                let (address, pages) = (self.int(address), self.int(pages));
                self.hint(Hint::Prefetch { address, pages });
            }
        }
        self.at += 1;
        Ok(true)
    }
}
