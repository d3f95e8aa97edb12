//! Several programs in one pool of frames.
//!
//! Each program is a recorded reference string. A [`Schedule`] says whose reference comes next, an
//! [`Allocation`] says who gives up a frame when one is needed: one policy over everybody's pages,
//! fixed shares, automatic working-set trimming between bounds, or shares by marginal gain.
//!
//! What policies ask for is done after the reference: dirty pages are written, and absent ones
//! fetched, which nobody waits for but those who read after it. Every touch is seen.
//! A first touch of heap memory is a fault that reads nothing, what is freed leaves at once and
//! unwritten, and what is dirty when a process forks is written then.
//!
//! ```
//! use pagekeeper_policy::PolicySpec;
//! use pagekeeper_sim::{Allocation, PoolOptions, PoolProgram, References, Schedule, simulate_pool};
//!
//! let scan = References::from_blocks(0..3000)?;
//! let hot = References::from_blocks((0..3000).map(|step| step % 50))?;
//! let lru = PolicySpec::parse("lru")?;
//! let programs = [
//!     PoolProgram::new("scan", &scan, lru.clone()),
//!     PoolProgram::new("hot", &hot, lru.clone()),
//! ];
//! let schedule = Schedule::RoundRobin { quantum_ns: 100_000 };
//! let options = PoolOptions::new(60, Allocation::Fixed, schedule);
//! let fixed = simulate_pool(&programs, &options)?;
//! // Half of the frames are not enough for the hot pages; by gain they get what they need.
//! assert_eq!(fixed.programs[1].faults, 3000);
//! let options = PoolOptions { allocation: Allocation::gain(60), ..options };
//! assert!(simulate_pool(&programs, &options)?.programs[1].faults < 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod frames;
mod gain;
mod schedule;

use pagekeeper_policy::{Admission, Page, PolicySpec};
use pagekeeper_trace::ExtentEvent;
use serde::Serialize;

pub use schedule::{PoolCost, Schedule};

use crate::heap::WrittenPages;
use crate::{HeapChange, References, Regions, SegmentOutcome, SimError};
use frames::{Frames, Room, Wish};
use schedule::Machine;

/// A program in the pool.
#[derive(Clone, Debug)]
pub struct PoolProgram<'a> {
    /// Its name in the outcome.
    pub name: String,
    /// What it references.
    pub references: &'a References,
    /// Which of its pages leave, where the allocation does not decide that itself.
    pub policy: PolicySpec,
    /// Frames that nobody takes from it; one in any case. Default 0.
    pub least_frames: u32,
    /// Frames that it may have at the most; for [`Allocation::Fixed`], its share. Default: all, or
    /// an equal share.
    pub most_frames: Option<u32>,
}

impl<'a> PoolProgram<'a> {
    /// A program without bounds.
    pub fn new(name: impl Into<String>, references: &'a References, policy: PolicySpec) -> Self {
        Self { name: name.into(), references, policy, least_frames: 0, most_frames: None }
    }

    /// The same program with bounds on its frames.
    pub fn bounded(self, least_frames: u32, most_frames: u32) -> Self {
        Self { least_frames, most_frames: Some(most_frames), ..self }
    }
}

/// Who gives up a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Allocation {
    /// One policy over the pages of all programs; it knows nothing of programs.
    Global {
        /// The policy.
        policy: PolicySpec,
    },
    /// Everyone has its share, and pages of its own leave: equal parts unless bounds say otherwise.
    Fixed,
    /// Automatic working-set trimming (Windows NT; HiPEC, "The HiPEC profiler"): a program takes
    /// free frames up to its most; when there are none, who is farthest above its least gives.
    /// With different bounds for each program this is the paper's dynamic AWST; HiPEC's takes
    /// pages first in, first out within each program: give `fifo` as their policy.
    Awst,
    /// Shares that make the hits of all programs together the most, from their hits by size.
    MarginalGain {
        /// References between two splits.
        period_refs: u64,
    },
}

impl Allocation {
    /// [`Allocation::MarginalGain`] with a period that suits so many frames.
    pub fn gain(frames: u32) -> Self {
        Self::MarginalGain { period_refs: (2 * u64::from(frames)).max(1000) }
    }

    /// Its name: `global`, `fixed`, `awst` or `gain`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Global { .. } => "global",
            Self::Fixed => "fixed",
            Self::Awst => "awst",
            Self::MarginalGain { .. } => "gain",
        }
    }

    fn period_refs(&self) -> u64 {
        match self {
            Self::MarginalGain { period_refs } => (*period_refs).max(1),
            _ => u64::MAX,
        }
    }

    /// Everyone's least and most frames.
    fn bounds(
        &self,
        programs: &[PoolProgram<'_>],
        total: u32,
    ) -> Result<Vec<(u32, u32)>, SimError> {
        let count = programs.len() as u32;
        let bounds: Vec<(u32, u32)> = programs
            .iter()
            .map(|p| match self {
                Self::Fixed => {
                    let share = p.most_frames.unwrap_or(total / count.max(1));
                    (share, share)
                }
                Self::Global { .. } => (0, total),
                // Without a frame nobody gets anywhere.
                _ => (p.least_frames.max(1), p.most_frames.unwrap_or(total).min(total)),
            })
            .collect();
        for ((least, most), program) in bounds.iter().zip(programs) {
            if *most == 0 || least > most {
                return Err(SimError::Bounds {
                    program: program.name.clone(),
                    least: *least,
                    most: *most,
                });
            }
        }
        let promised: u64 = bounds.iter().map(|(least, _)| u64::from(*least)).sum();
        if promised > u64::from(total) {
            return Err(SimError::Promised { promised, total });
        }
        Ok(bounds)
    }
}

/// How to simulate a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOptions {
    /// Frames of all programs together.
    pub frames: u32,
    /// Who gives them up.
    pub allocation: Allocation,
    /// Who runs.
    pub schedule: Schedule,
    /// What work takes.
    pub cost: PoolCost,
    /// Feeds policies that are random.
    pub seed: u64,
    /// Points of the timeline, at most.
    pub points: u32,
    /// Parts that each segment is cut into to count faults by region.
    pub regions_per_segment: u32,
}

impl PoolOptions {
    /// With the default costs, 200 points of time, and faults counted by whole segments.
    pub fn new(frames: u32, allocation: Allocation, schedule: Schedule) -> Self {
        let cost = PoolCost::default();
        Self { frames, allocation, schedule, cost, seed: 0, points: 200, regions_per_segment: 1 }
    }
}

/// What happened to a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramOutcome {
    /// Its name.
    pub name: String,
    /// References it made.
    pub references: u64,
    /// Those that had to wait for a page.
    pub faults: u64,
    /// Faults on pages that were never in memory before.
    pub cold_faults: u64,
    /// Faults on pages of heaps that nobody had written out: zeros, without a read.
    pub zero_faults: u64,
    /// Its dirty pages written to make room, before forks, or since a policy asked for that.
    pub write_backs: u64,
    /// Its pages fetched since a policy asked for them.
    pub prefetched_pages: u64,
    /// Those among them that left without being used.
    pub prefetch_wasted_pages: u64,
    /// When it ended, in nanoseconds from the start of all.
    pub ended_ns: u64,
    /// Its frames, averaged over its references.
    pub mean_frames: f64,
    /// Its faults by segment and region.
    pub segments: Vec<SegmentOutcome>,
}

/// The pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolPoint {
    /// References of all programs so far.
    pub at_refs: u64,
    /// Time, in nanoseconds from the start.
    pub at_ns: u64,
    /// Frames of each program.
    pub frames: Vec<u32>,
    /// Faults of each program so far.
    pub faults: Vec<u64>,
}

/// What happened to all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PoolOutcome {
    /// Each program, in the order given.
    pub programs: Vec<ProgramOutcome>,
    /// When the last one ended.
    pub elapsed_ns: u64,
    /// Moments at equal numbers of references.
    pub timeline: Vec<PoolPoint>,
}

impl PoolOutcome {
    /// Faults of all programs.
    pub fn faults(&self) -> u64 {
        self.programs.iter().map(|p| p.faults).sum()
    }
}

const RESIDENT: u8 = 1;
const DIRTY: u8 = 2;
const SEEN: u8 = 4;
/// Asked for, and not used since.
const ASKED: u8 = 8;
/// Its content is on storage: without this, a page of a heap is zeros.
const STORED: u8 = 16;

/// A program on its way through its references.
struct Running<'a> {
    at: usize,
    /// What becomes of heaps from there on.
    changes: &'a [HeapChange],
    state: Vec<u8>,
    written: WrittenPages,
    region_faults: Vec<u64>,
    segment_references: Vec<u64>,
    frames_sum: u64,
    outcome: ProgramOutcome,
}

/// Runs programs together. Every program starts cold, at time 0; the frames of one that has ended
/// are free.
///
/// # Errors
/// No program or no frames; bounds that cannot be kept; a policy that cannot be built or breaks its
/// contract; [`Schedule::ByTime`] for a string without times.
pub fn simulate_pool(
    programs: &[PoolProgram<'_>],
    options: &PoolOptions,
) -> Result<PoolOutcome, SimError> {
    if options.frames == 0 || programs.is_empty() {
        return Err(SimError::NoFrames);
    }
    let frames = Frames::new(programs, &options.allocation, options.frames, options.seed)?;
    let quantum_ns = match options.schedule {
        Schedule::RoundRobin { quantum_ns } => quantum_ns,
        Schedule::ByTime => u64::MAX >> 1,
    };
    let total: u64 = programs.iter().map(|p| p.references.len() as u64).sum();
    let regions: Vec<Regions> =
        programs.iter().map(|p| p.references.regions(options.regions_per_segment)).collect();
    let mut pool = Pool {
        programs,
        running: programs.iter().zip(&regions).map(|(p, r)| Running::new(p, r)).collect(),
        regions,
        frames,
        machine: Machine::new(programs.len(), quantum_ns, options.cost),
        wishes: Vec::new(),
        refs: 0,
        point_every: total.div_ceil(u64::from(options.points.max(1))).max(1),
        timeline: Vec::new(),
    };
    match options.schedule {
        Schedule::ByTime => pool.by_time()?,
        Schedule::RoundRobin { .. } => pool.in_turn()?,
    }
    Ok(pool.finish())
}

struct Pool<'p, 'a> {
    programs: &'p [PoolProgram<'a>],
    regions: Vec<Regions>,
    running: Vec<Running<'a>>,
    frames: Frames<'a>,
    machine: Machine,
    wishes: Vec<Wish>,
    refs: u64,
    point_every: u64,
    timeline: Vec<PoolPoint>,
}

impl<'a> Running<'a> {
    fn new(program: &PoolProgram<'a>, regions: &Regions) -> Self {
        let references = program.references;
        let pages = (0..references.pages()).map(Page);
        let state = pages.map(|page| if references.begins_as_zeros(page) { 0 } else { STORED });
        Running {
            at: 0,
            changes: references.heap_changes(),
            state: state.collect(),
            written: WrittenPages::of(references),
            region_faults: vec![0; regions.total()],
            segment_references: vec![0; references.segments().len()],
            frames_sum: 0,
            outcome: ProgramOutcome {
                name: program.name.clone(),
                references: references.len() as u64,
                faults: 0,
                cold_faults: 0,
                zero_faults: 0,
                write_backs: 0,
                prefetched_pages: 0,
                prefetch_wasted_pages: 0,
                ended_ns: 0,
                mean_frames: 0.0,
                segments: Vec::new(),
            },
        }
    }
}

impl Pool<'_, '_> {
    fn in_turn(&mut self) -> Result<(), SimError> {
        while let Some(program) = self.machine.next() {
            loop {
                if self.running[program].at == self.programs[program].references.len() {
                    self.end(program);
                    break;
                }
                let goes_on = self.machine.worked();
                if self.step(program)? {
                    self.machine.faulted(program);
                    break;
                }
                if !goes_on {
                    self.machine.yielded(program);
                    break;
                }
            }
        }
        Ok(())
    }

    fn by_time(&mut self) -> Result<(), SimError> {
        let times: Vec<&[u64]> = self
            .programs
            .iter()
            .map(|p| match p.references.times_ns() {
                Some(times) => Ok(times),
                None if p.references.is_empty() => Ok(&[][..]),
                None => Err(SimError::NoTimes { program: p.name.clone() }),
            })
            .collect::<Result<_, _>>()?;
        let mut next: std::collections::BinaryHeap<_> = (0..times.len())
            .filter_map(|p| Some(std::cmp::Reverse((*times[p].first()?, p))))
            .collect();
        // Recordings may tell the time of day.
        let start_ns = next.peek().map_or(0, |std::cmp::Reverse((first_ns, _))| *first_ns);
        while let Some(std::cmp::Reverse((time_ns, program))) = next.pop() {
            // Recorded times of one program may repeat, and never run backwards here.
            self.machine.now_ns = self.machine.now_ns.max(time_ns - start_ns);
            self.step(program)?;
            match times[program].get(self.running[program].at) {
                Some(then_ns) => next.push(std::cmp::Reverse((*then_ns, program))),
                None => self.end(program),
            }
        }
        Ok(())
    }

    /// A program's next reference; whether it waits for storage.
    fn step(&mut self, program: usize) -> Result<bool, SimError> {
        let references = self.programs[program].references;
        self.follow_heaps(program);
        let running = &mut self.running[program];
        let packed = references.packed()[running.at];
        let (page, write) = (Page(packed >> 1), (packed & 1) as u8 * DIRTY);
        running.at += 1;
        running.segment_references[references.place(page).0] += 1;
        self.frames.observe(program, page);
        let state = &mut running.state[page.index()];
        let faulted = *state & RESIDENT == 0;
        let is_zeros = *state & STORED == 0;
        if faulted {
            running.outcome.faults += 1;
            running.outcome.cold_faults += u64::from(*state & SEEN == 0);
            running.outcome.zero_faults += u64::from(is_zeros);
            running.region_faults[self.regions[program].of(page)] += 1;
            let position = running.at as u64 - 1;
            let room = self.frames.make_room(program, Some(page), position)?;
            self.leave(room, position)?;
            let state = &mut self.running[program].state[page.index()];
            *state = *state & STORED | RESIDENT | SEEN | write;
            if write != 0 {
                self.running[program].written.add(references, page);
                self.frames.tell_dirty(program, page, true);
            }
            self.frames.admit(program, page, Admission::Demand);
        } else {
            let dirtied = write & !*state;
            *state = *state & !ASKED | write;
            if dirtied != 0 {
                running.written.add(references, page);
                self.frames.tell_dirty(program, page, true);
            }
            self.frames.hit(program, page);
        }
        self.grant_wishes(program)?;
        self.running[program].frames_sum += u64::from(self.frames.members[program].resident);
        self.refs += 1;
        if self.refs.is_multiple_of(self.point_every) {
            self.point();
        }
        Ok(faulted && !is_zeros)
    }

    /// What became of a program's heaps before its next reference.
    fn follow_heaps(&mut self, program: usize) {
        while let Some((change, later)) = self.running[program].changes.split_first()
            && change.position <= self.running[program].at
        {
            self.running[program].changes = later;
            for page in change.numbers.iter().map(|number| Page(*number)) {
                self.frames.freed(program, page);
                let state = &mut self.running[program].state[page.index()];
                if std::mem::replace(state, SEEN) & RESIDENT != 0 {
                    self.frames.give_back(program, page);
                }
            }
            if change.event == ExtentEvent::Stored {
                for page in self.running[program].written.take(change) {
                    self.flush(program, page);
                }
            }
        }
    }

    /// Does what the policy of a program's pages asked for.
    fn grant_wishes(&mut self, program: usize) -> Result<(), SimError> {
        let mut wishes = std::mem::take(&mut self.wishes);
        self.frames.take_wishes(program, &mut wishes);
        for wish in wishes.drain(..) {
            match wish {
                Wish::Flush(owner, page) => self.flush(owner, page),
                Wish::Fetch { program, segment, first, pages } => {
                    self.fetch_ahead(program, segment, first, pages)?;
                }
            }
        }
        self.wishes = wishes;
        Ok(())
    }

    fn flush(&mut self, owner: usize, page: Page) {
        let running = &mut self.running[owner];
        let Some(state) = running.state.get_mut(page.index()) else { return };
        if *state & (RESIDENT | DIRTY) != RESIDENT | DIRTY {
            return;
        }
        *state = *state & !DIRTY | STORED;
        running.outcome.write_backs += 1;
        self.machine.wrote_back();
        self.frames.tell_dirty(owner, page, false);
    }

    /// Fetches the first stretch of a range that is absent. A program that has ended needs none.
    fn fetch_ahead(
        &mut self,
        program: usize,
        segment: usize,
        first: u64,
        pages: u32,
    ) -> Result<(), SimError> {
        if self.running[program].state.is_empty() {
            return Ok(());
        }
        // Which number a page of a heap will have is not known ahead.
        let segments = self.programs[program].references.segments();
        if segments.get(segment).is_some_and(|segment| segment.is_heap) {
            return Ok(());
        }
        let mut run = Vec::new();
        for index in (first..).take(pages as usize) {
            let Some(page) = self.frames.find(program, segment, index) else { break };
            let state = &mut self.running[program].state;
            state.resize(state.len().max(page.index() + 1), STORED);
            match state[page.index()] & RESIDENT {
                0 => run.push(page),
                _ if run.is_empty() => {}
                _ => break,
            }
        }
        let position = self.running[program].at as u64;
        for at in 0..run.len() {
            let room = self.frames.make_room(program, None, position)?;
            if matches!(room, Room::None) {
                run.truncate(at);
                break;
            }
            self.leave(room, position)?;
        }
        for page in run {
            let running = &mut self.running[program];
            running.state[page.index()] = RESIDENT | SEEN | ASKED | STORED;
            running.outcome.prefetched_pages += 1;
            self.machine.fetched();
            self.frames.admit(program, page, Admission::Prefetch);
        }
        Ok(())
    }

    fn leave(&mut self, room: Room, position: u64) -> Result<(), SimError> {
        let Room::Left((owner, victim)) = room else { return Ok(()) };
        let running = &mut self.running[owner];
        let Some(state) =
            running.state.get_mut(victim.index()).filter(|state| **state & RESIDENT != 0)
        else {
            let what = format!("its victim, page {}, is not resident", victim.0);
            return Err(SimError::BrokenPolicy { position, what });
        };
        running.outcome.prefetch_wasted_pages += u64::from(*state & ASKED != 0);
        let is_dirty = *state & DIRTY != 0;
        *state = SEEN | if is_dirty { STORED } else { *state & STORED };
        if is_dirty {
            running.outcome.write_backs += 1;
            self.machine.wrote_back();
        }
        Ok(())
    }

    fn end(&mut self, program: usize) {
        self.follow_heaps(program);
        let running = &mut self.running[program];
        running.outcome.ended_ns = self.machine.now_ns;
        let resident = running.state.iter().enumerate().filter(|(_, s)| **s & RESIDENT != 0);
        self.frames.release(program, resident.map(|(page, _)| Page(page as u32)));
        running.state.clear();
    }

    fn point(&mut self) {
        self.timeline.push(PoolPoint {
            at_refs: self.refs,
            at_ns: self.machine.now_ns,
            frames: self.frames.members.iter().map(|m| m.resident).collect(),
            faults: self.running.iter().map(|r| r.outcome.faults).collect(),
        });
    }

    fn finish(self) -> PoolOutcome {
        let programs = self.running.into_iter().zip(self.programs).zip(&self.regions);
        PoolOutcome {
            elapsed_ns: self.machine.now_ns,
            timeline: self.timeline,
            programs: programs
                .map(|((running, program), regions)| ProgramOutcome {
                    mean_frames: running.frames_sum as f64
                        / running.outcome.references.max(1) as f64,
                    segments: SegmentOutcome::of_all(
                        program.references,
                        regions,
                        &running.region_faults,
                        &running.segment_references,
                    ),
                    ..running.outcome
                })
                .collect(),
        }
    }
}
