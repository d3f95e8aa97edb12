//! OPT-WB: faults and write-backs together, knowing the future.
//!
//! The cost is `faults + cost · (write_backs + dirty_at_end)`: a page that is dirty at the end is
//! written then, as [`CostModel`](crate::CostModel) has it by default. A page that was written
//! costs one write-back at least, and one more for every time that it is evicted between two of
//! its writes; so evicting it costs a write-back only while it is dirty *and* will be written
//! again.
//!
//! # What this is, and what not
//! The optimum is NP-complete to find, even where all costs are 1 (N. Beckmann, P. B. Gibbons,
//! B. Haeupler, C. McGuffey: Writeback-Aware Caching, APOCS 2020; in other words V. Liberatore,
//! M. Farach, U. Kremer: Hardness and Algorithms for Local Register Allocation, 1997), and OPT,
//! which looks at faults alone, may cost 1 + `cost` times as much. So `opt-wb` is **not** the
//! optimum: it is the cheaper of two schedules that can be had, OPT's and that of [`OptWb`]. It
//! bounds the optimum from above; [`opt_wb_bound`] does from below, and the truth is in between.
//! Where all schedules can be tried, on short random strings, it costs one to two percent more
//! than the cheapest on average (`tests/write_backs.rs`).
use std::collections::BinaryHeap;

use pagekeeper_policy::flat::Flat;
use pagekeeper_policy::{Admission, Page, Policy};

use crate::opt::NEVER;
use crate::{Counts, Fault, NextUses, Opt, References, SimError, replay};

/// For every reference, the next write to the same page, and how many references to the page come
/// until then, that one included. 8 bytes per reference.
#[derive(Clone, Debug)]
pub struct NextWrites {
    next: Vec<u32>,
    references: Vec<u32>,
}

impl NextWrites {
    /// Looks ahead through the whole string, which is no longer than [`NextUses`] takes.
    pub fn of(references: &References) -> Self {
        let mut ahead = vec![(NEVER, 0); references.pages() as usize];
        let mut all =
            Self { next: vec![NEVER; references.len()], references: vec![0; references.len()] };
        for (position, (page, is_write)) in references.iter().enumerate().rev() {
            let (next, count) = &mut ahead[page.index()];
            (all.next[position], all.references[position]) = (*next, *count);
            if is_write {
                (*next, *count) = (position as u32, 0);
            }
            *count += 1;
        }
        all
    }
}

/// What `opt-wb` minimises.
pub fn write_back_cost(counts: &Counts, cost: f64) -> f64 {
    counts.faults as f64 + cost * (counts.write_backs + counts.dirty_at_end) as f64
}

/// Replays the cheaper of OPT's schedule and [`OptWb`]'s.
///
/// # Errors
/// As [`replay`].
pub fn replay_opt_wb(
    references: &References,
    next_uses: &NextUses,
    next_writes: &NextWrites,
    cost: f64,
    frames: u32,
    on_fault: impl FnMut(Fault),
) -> Result<Counts, SimError> {
    let mut cheaper = cheaper_opt_wb(references, next_uses, next_writes, cost, frames)?;
    replay(references, &mut cheaper, frames, on_fault)
}

/// [`Opt`] or [`OptWb`], whichever costs less in so many frames.
pub(crate) fn cheaper_opt_wb<'a>(
    references: &'a References,
    next_uses: &'a NextUses,
    next_writes: &'a NextWrites,
    cost: f64,
    frames: u32,
) -> Result<Box<dyn Policy + 'a>, SimError> {
    let weighing = || OptWb::new(references, next_uses, next_writes, cost);
    let plain = replay(references, &mut Opt::new(next_uses), frames, |_| ())?;
    let weighed = replay(references, &mut weighing(), frames, |_| ())?;
    if write_back_cost(&weighed, cost) < write_back_cost(&plain, cost) {
        Ok(Box::new(weighing()))
    } else {
        Ok(Box::new(Opt::new(next_uses)))
    }
}

/// Classes of pages by how much keeping them saves: one for pages whose eviction costs no
/// write-back, and one for each power of two of references until the next write.
const CLASSES: usize = 34;

/// Weighs what keeping a page saves against how long it takes a frame.
///
/// A page whose eviction costs no write-back saves a fault if it stays until its next reference. A
/// dirty page that will be written again saves `cost` and a fault for every reference up to that
/// write if it stays until then. The victim is the page that saves least per reference of time.
/// Within a class only the page that has farthest to go is looked at, so that a victim costs
/// O(log frames).
///
/// As [`Opt`], it must be told of every reference of its string, in order.
#[derive(Clone, Debug)]
pub struct OptWb<'a> {
    references: &'a References,
    next_uses: &'a NextUses,
    next_writes: &'a NextWrites,
    cost: f64,
    position: usize,
    /// (end of the time to stay, page, 1 + position of the reference that made the entry).
    classes: Vec<BinaryHeap<(u32, u32, u32)>>,
    /// 1 + position of the last reference; 0 while not resident.
    stamps: Flat<u32>,
    is_dirty: Flat<u8>,
    resident: u32,
}

impl<'a> OptWb<'a> {
    /// Starts before the first reference. `cost` is a write-back's, in faults.
    pub fn new(
        references: &'a References,
        next_uses: &'a NextUses,
        next_writes: &'a NextWrites,
        cost: f64,
    ) -> Self {
        Self {
            references,
            next_uses,
            next_writes,
            cost,
            position: 0,
            classes: vec![BinaryHeap::new(); CLASSES],
            stamps: Flat::new(),
            is_dirty: Flat::new(),
            resident: 0,
        }
    }

    fn referenced_now(&mut self, page: Page) {
        let at = self.position;
        self.position += 1;
        let is_write = (self.references.packed()[at] & 1) as u8;
        *self.is_dirty.slot(page.index()) |= is_write;
        let stamp = self.position as u32;
        *self.stamps.slot(page.index()) = stamp;
        let next_write = self.next_writes.next[at];
        let (class, until) = if self.is_dirty.get(page.index()) != 0 && next_write != NEVER {
            (1 + self.next_writes.references[at].ilog2() as usize, next_write)
        } else {
            (0, self.next_uses.next(at))
        };
        let heap = &mut self.classes[class];
        heap.push((until, page.0, stamp));
        // Room for as many stale entries as there can be valid ones.
        if heap.len() > 2 * self.resident as usize + 1024 {
            let stamps = &self.stamps;
            heap.retain(|(_, page, stamp)| stamps.get(*page as usize) == *stamp);
        }
    }

    /// What the top of a class saves per reference of time; entries that have passed are dropped.
    fn least_in_class(&mut self, class: usize) -> Option<(f64, Page)> {
        let heap = &mut self.classes[class];
        while let Some((until, page, stamp)) = heap.peek().copied() {
            if self.stamps.get(page as usize) != stamp {
                heap.pop();
                continue;
            }
            if until == NEVER {
                return Some((0.0, Page(page)));
            }
            let saved = match class {
                0 => 1.0,
                _ => self.cost + f64::from(self.next_writes.references[stamp as usize - 1]),
            };
            return Some((saved / (f64::from(until) - self.position as f64), Page(page)));
        }
        None
    }

    fn leave(&mut self, page: Page) {
        *self.stamps.at(page.index()) = 0;
        *self.is_dirty.at(page.index()) = 0;
        self.resident -= 1;
    }
}

impl Policy for OptWb<'_> {
    fn admitted(&mut self, page: Page, how: Admission) {
        assert!(how == Admission::Demand, "OPT-WB is for demand paging");
        self.resident += 1;
        self.referenced_now(page);
    }

    fn referenced(&mut self, page: Page) {
        self.referenced_now(page);
    }

    fn removed(&mut self, page: Page) {
        self.leave(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let (_, page) = (0..CLASSES)
            .filter_map(|class| self.least_in_class(class))
            .min_by(|left, right| left.0.total_cmp(&right.0))?;
        self.leave(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.resident
    }
}

/// No schedule costs less.
///
/// The larger of two bounds. The one: OPT's faults, and a write-back for every page written. The
/// other relaxes the problem as PFOO-L does (D. S. Berger, N. Beckmann, M. Harchol-Balter:
/// Practical Bounds on Optimal Caching with Variable Object Sizes, SIGMETRICS 2018): the frames,
/// less the one that the page just referenced has, are given to the times between references as a
/// total over the whole string, dearest first. A write-back between two writes is charged to the
/// longest of the times between them, so none is charged twice.
///
/// Of files: heap memory may be freed before it has to be written, and begins without a read.
///
/// # Errors
/// As [`replay`].
pub fn opt_wb_bound(
    references: &References,
    next_uses: &NextUses,
    frames: u32,
    cost: f64,
) -> Result<f64, SimError> {
    let opt = replay(references, &mut Opt::new(next_uses), frames, |_| ())?;
    let mut is_written = vec![false; references.pages() as usize];
    // Per page: the longest time since its last write, as a place in `gaps`.
    let mut longest: Vec<Option<usize>> = vec![None; references.pages() as usize];
    // How long, what losing the page costs.
    let mut gaps: Vec<(u32, f64)> = Vec::new();
    let mut last = vec![NEVER; references.pages() as usize];
    for (position, (page, is_write)) in references.iter().enumerate() {
        let before = std::mem::replace(&mut last[page.index()], position as u32);
        let longest = &mut longest[page.index()];
        if before != NEVER {
            let length = position as u32 - before - 1;
            gaps.push((length, 1.0));
            if is_written[page.index()] && longest.is_none_or(|at| gaps[at].0 < length) {
                *longest = Some(gaps.len() - 1);
            }
        }
        if is_write {
            if let Some(at) = longest.take() {
                gaps[at].1 += cost;
            }
            is_written[page.index()] = true;
        }
    }
    let written = is_written.into_iter().filter(|is| *is).count() as f64 * cost;
    let mut room = references.len() as f64 * f64::from(frames - 1);
    gaps.sort_by(|left, right| {
        (right.1 * f64::from(left.0)).total_cmp(&(left.1 * f64::from(right.0)))
    });
    let mut relaxed = f64::from(references.pages());
    for (length, saved) in gaps {
        let kept = if length == 0 { 1.0 } else { (room / f64::from(length)).clamp(0.0, 1.0) };
        room -= kept * f64::from(length);
        relaxed += saved * (1.0 - kept);
    }
    Ok(written + relaxed.max(opt.faults as f64))
}
