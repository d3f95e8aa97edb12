//! Runs a verified program, command by command, within a budget counted in commands.
//!
//! No clock is looked at: the same events end after the same commands, on any machine. What the
//! verifier could not decide is decided here, with a defined result: a [`Misuse`] ends the event
//! at that command, and what was done before it stays done.
use std::sync::Arc;

use pagekeeper_policy::{Hint, Page, Place, Segment};

use crate::compile::Native;
pub use crate::image::ORDERED_COMMANDS;
use crate::image::{CALLS_MAX, Image, Registers, SYSTEM_EVENTS, Start, system_place};
use crate::pages::{GIVEN_UP, Home, INDEX_BITS, MODIFIED, Pages, REFERENCED};
use crate::program::{Arithmetic, Bit, Command, EventNumber, Index, Logical, Relation, System};

/// Most hints that are kept for the host until it takes them; later ones are dropped.
pub const HINTS_MAX: usize = 1024;

/// What a command could not be done for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// A Page operand holds none.
    #[error(
        "the operand holds no page; look first, by `page != NULL` or EmptyQ (as commands, Has or EmptQ)"
    )]
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

/// What the system tells an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The link of its page, or 0.
    pub(crate) link: u32,
    pub(crate) prefetched: bool,
    pub(crate) free_frames: u32,
    pub(crate) now: u64,
}

/// A program that runs.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    image: Arc<Image>,
    /// Of this image.
    native: Option<Arc<Native>>,
    /// Of each event of the system: whether it is to be told more than compiled code asks for.
    is_told_more: [bool; SYSTEM_EVENTS.len()],
    pub(crate) state: State,
}

/// A program's operands, its pages, where it stopped, and what it asked for.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) registers: Box<Registers>,
    pub(crate) pages: Pages,
    hints: Vec<Hint>,
    pub(crate) frames: u32,
}

/// Where a command leads.
enum Next {
    /// To the command after it.
    On,
    /// To the one that was set.
    There,
    /// To the event's end.
    End,
}

impl Machine {
    /// The program at its beginning. Its machine code is of the same image, if there is any.
    pub(crate) fn new(image: Arc<Image>, native: Option<Arc<Native>>, frames: u32) -> Self {
        let (registers, pages) = (image.registers.clone(), image.pages.clone());
        let is_told_more = SYSTEM_EVENTS.map(|event| {
            native.is_none() || image.start_of(event).is_some_and(|start| start.has_more)
        });
        let state = State { registers, pages, hints: Vec::new(), frames };
        Self { image, native, is_told_more, state }
    }

    pub(crate) const fn is_compiled(&self) -> bool {
        self.native.is_some()
    }

    pub(crate) fn has_event(&self, event: EventNumber) -> bool {
        self.image.start_of(event).is_some()
    }

    pub(crate) fn uses_places(&self) -> bool {
        self.image.uses_places
    }

    pub(crate) fn take_hints(&mut self, hints: &mut Vec<Hint>) {
        hints.append(&mut self.state.hints);
    }

    /// Whether [`tell`](Self::tell) comes before each such event.
    #[inline(always)]
    pub(crate) fn is_told_more(&self, event: EventNumber) -> bool {
        system_place(event).is_some_and(|place| self.is_told_more[place])
    }

    /// Stands before the first command of an event of the system, with what that tells.
    pub(crate) fn tell(&mut self, event: EventNumber, told: Told) {
        let Some(start) = self.image.start_of(event) else { return };
        self.state.tell(start, told);
    }

    /// Runs an event of the system from its first command, as far as compiled code comes; `link` is
    /// its page's, or 0. At most `left` commands, of which it gives back what is left: as it is if
    /// the event has ended, with Return, else its complement.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        event: EventNumber,
        link: u32,
        prefetched: bool,
        left: i64,
    ) -> i64 {
        let Some(native) = &self.native else { return !left };
        let told = i64::from(link) | i64::from(prefetched) << 32;
        native.run(event, &mut self.state, told, left)
    }

    /// The same, from where the event stands, off `left`; whether it has ended.
    pub(crate) fn go_on(&mut self, event: EventNumber, left: &mut u64) -> bool {
        self.native.as_ref().is_some_and(|native| native.go_on(event, &mut self.state, left))
    }

    /// Runs on from where the event stands, of which compiled code runs no more.
    pub(crate) fn run_on(&mut self, event: EventNumber, left: &mut u64) -> Ended {
        let Self { image, native, state, .. } = self;
        match native {
            Some(native) => state.run_on(event, image, native, left),
            None => state.interpret(image, left, |_| false).unwrap_or(Ended::Returned),
        }
    }

    /// The page that the last Replace gave up, unless it is among those that were given up.
    #[inline]
    pub(crate) fn take_named(&mut self) -> Option<Page> {
        match std::mem::take(&mut self.state.registers.named) {
            0 => None,
            link => self.state.pages.page_at(link),
        }
    }
}

impl State {
    fn tell(&mut self, start: &Start, told: Told) {
        let Self { registers, pages, .. } = self;
        registers.at = start.entry;
        registers.test = 0;
        registers.depth = 0;
        let page = pages.page_at(told.link);
        registers.pages[usize::from(start.faulted_page)] = told.link;
        registers.ints[usize::from(start.prefetched)] = told.prefetched.into();
        registers.ints[usize::from(start.now)] = told.now as i64;
        for operand in &start.pages {
            registers.pages[usize::from(*operand)] = 0;
        }
        for operand in &start.queues {
            registers.queues[usize::from(*operand)] = 0;
        }
        if start.has_free_count {
            registers.ints[usize::from(Index::FREE_COUNT.0)] =
                i64::from(told.free_frames) + i64::from(pages.free());
        }
        for (system, operand) in &start.systems {
            if *system == System::FaultedPage {
                registers.pages[usize::from(*operand)] = told.link;
                continue;
            }
            let place = || page.map(|page| pages.place(page));
            registers.ints[usize::from(*operand)] = match system {
                System::FaultedPage => 0,
                System::FaultedAddress => page.map_or(-1, |page| pages.address(page)),
                System::FaultedSegment => place().map_or(-1, |place| place.segment.0.into()),
                System::FaultedIndex => place().map_or(-1, |place| place.index as i64),
                System::Frames => self.frames.into(),
                System::Resident => pages.resident().into(),
                System::Now => told.now as i64,
                System::Prefetched => told.prefetched.into(),
            };
        }
    }

    /// Compiled code stopped before what it leaves to the interpreter: commands that are rare or
    /// long, those that cannot be done, and the last ones of a budget.
    fn run_on(
        &mut self,
        event: EventNumber,
        image: &Image,
        native: &Native,
        left: &mut u64,
    ) -> Ended {
        loop {
            if let Some(ended) = self.interpret(image, left, |at| native.is_entry(at)) {
                return ended;
            }
            if native.go_on(event, self, left) {
                return Ended::Returned;
            }
        }
    }

    /// One command at least, and on to the event's end, that of the budget, or a place to stop at.
    fn interpret(
        &mut self,
        image: &Image,
        left: &mut u64,
        stops: impl Fn(u32) -> bool,
    ) -> Option<Ended> {
        loop {
            let step = image.code[self.registers.at as usize];
            let cost = u64::from(step.cost);
            if cost > *left {
                return Some(Ended::OverBudget);
            }
            *left -= cost;
            match self.step(image, step.command) {
                Ok(Next::On) => self.registers.at += 1,
                Ok(Next::There) => {}
                Ok(Next::End) => return Some(Ended::Returned),
                Err(why) => {
                    let (event, word) = image.spot(self.registers.at);
                    return Some(Ended::Misused { event, word, why });
                }
            }
            if stops(self.registers.at) {
                return None;
            }
        }
    }

    #[inline]
    fn int(&self, index: Index) -> i64 {
        self.registers.ints[usize::from(index.0)]
    }

    #[inline]
    fn set_int(&mut self, index: Index, value: i64) {
        self.registers.ints[usize::from(index.0)] = value;
    }

    #[inline]
    fn set_test(&mut self, test: bool) {
        self.registers.test = test.into();
    }

    /// The page in an operand.
    #[inline]
    fn page(&self, index: Index) -> Result<Page, Misuse> {
        self.pages.page_at(self.registers.pages[usize::from(index.0)]).ok_or(Misuse::NoPage)
    }

    /// The page in an operand, if it was not given up.
    #[inline]
    fn kept(&self, index: Index) -> Result<Page, Misuse> {
        let page = self.page(index)?;
        if self.pages.home(page) == GIVEN_UP { Err(Misuse::GivenUp) } else { Ok(page) }
    }

    #[inline]
    fn set_page(&mut self, index: Index, page: Option<Page>) {
        let link = page.map_or(0, |page| self.pages.link_to(page));
        self.registers.pages[usize::from(index.0)] = link;
    }

    #[inline]
    fn queue(&self, index: Index) -> Result<Home, Misuse> {
        match self.registers.queues[usize::from(index.0)] {
            0 => Err(Misuse::NoQueue),
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

    /// One command, and where it leads.
    #[inline]
    fn step(&mut self, image: &Image, command: Command) -> Result<Next, Misuse> {
        match command {
            Command::Return { page } => {
                // In Replace the page is given up; elsewhere the image says nothing of it.
                if let Some(page) = page {
                    self.release(page)?;
                }
                self.registers.test = 0;
                let Some(depth) = self.registers.depth.checked_sub(1) else {
                    return Ok(Next::End);
                };
                self.registers.depth = depth;
                self.registers.at = self.registers.callers[depth as usize % CALLS_MAX];
                return Ok(Next::There);
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
                let test = match relation {
                    Relation::Greater => left > right,
                    Relation::Less => left < right,
                    Relation::Equal => left == right,
                    Relation::LessOrEqual => left <= right,
                    Relation::GreaterOrEqual => left >= right,
                    Relation::NotEqual => left != right,
                };
                self.set_test(test);
            }
            Command::Logic { left, right, operation } => {
                let (left, right) = (self.int(left) != 0, self.int(right) != 0);
                let test = match operation {
                    Logical::And => left && right,
                    Logical::Or => left || right,
                    Logical::Not => !left,
                    Logical::Xor => left != right,
                };
                self.set_test(test);
            }
            Command::EmptQ { queue } => {
                let is_empty = self.pages.len(self.queue(queue)?) == 0;
                self.set_test(is_empty);
            }
            Command::InQ { page, queue } => {
                let (page, queue) = (self.page(page)?, self.queue(queue)?);
                let is_on = self.pages.home(page) == queue;
                self.set_test(is_on);
            }
            Command::Jump { to } => {
                if std::mem::take(&mut self.registers.test) == 0 {
                    self.registers.at = to.into();
                    return Ok(Next::There);
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
                let unused_frames = self.frames.saturating_sub(self.pages.resident());
                let given = self.int(frames) <= unused_frames.into();
                self.set_test(given);
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
                let is_referenced = self.pages.has_bit(self.page(page)?, REFERENCED);
                self.set_test(is_referenced);
            }
            Command::Mod { page } => {
                let is_modified = self.pages.has_bit(self.page(page)?, MODIFIED);
                self.set_test(is_modified);
            }
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
                self.hint(Hint::Unmap(page));
            }
            Command::Call { event } => {
                let registers = &mut *self.registers;
                registers.callers[registers.depth as usize % CALLS_MAX] = registers.at + 1;
                registers.depth += 1;
                registers.test = 0;
                registers.at = image.entries[usize::from(event.0)];
                return Ok(Next::There);
            }
            Command::Pick { queue, array, at } => {
                let at = self.int(at);
                if !(0..i64::from(image.lengths[usize::from(array.0)])).contains(&at) {
                    return Err(Misuse::NoSuchQueue);
                }
                let picked = self.registers.queues[usize::from(array.0)] + at as Home;
                self.registers.queues[usize::from(queue.0)] = picked;
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
            Command::Has { page } => {
                let has = self.page(page).is_ok();
                self.set_test(has);
            }
            Command::Prefetch { address, pages } => {
                let (address, pages) = (self.int(address), self.int(pages));
                let segment = u32::try_from(address >> INDEX_BITS);
                // No page is at any other address, and none comes of less than one.
                if let (Ok(segment), 1..) = (segment, pages) {
                    let index = (address & ((1 << INDEX_BITS) - 1)) as u64;
                    let place = Place { segment: Segment(segment), index };
                    let pages = u32::try_from(pages).unwrap_or(u32::MAX);
                    self.hint(Hint::Prefetch { place, pages });
                }
            }
        }
        Ok(Next::On)
    }
}
