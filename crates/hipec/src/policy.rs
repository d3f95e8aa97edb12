//! A program as a [`Policy`].
//!
//! The contract holds for any verified program. Beside the program's queues the pool has its own
//! order of the resident pages, FIFO2, as the paper's frame manager does; when a program gives no
//! page, runs over its budget or was revoked, that order's victim leaves. Its marks are bits
//! beside the program's, so that a reference writes one byte for both. Until it is first asked for
//! a victim, its queues are the pages in the order in which they came, so they are made only then.
use std::sync::Arc;

use pagekeeper_policy::policies::fifo2::{Fifo2, Marks, Queues};
use pagekeeper_policy::{
    Admission, Fraction, Gauge, Hint, Kind, Note, Page, ParameterInfo, Place, Policy, PolicyError,
    PolicyInfo, PolicySpec, Runs, Source, Value, Visible,
};

use crate::compile::{CompileError, Execution, Native};
use crate::image::{SYSTEM_EVENTS, system_place};
use crate::interpret::{Ended, Machine, State, Told};
use crate::pages::{MODIFIED, POOL_INACTIVE, POOL_REFERENCED, REFERENCED};
use crate::program::EventNumber;
use crate::verify::Verified;

/// Commands that an event may run for nothing, unless a [`Budget`] says otherwise.
pub const BUDGET_COMMANDS: u64 = 1024;
/// How many more for each frame or resident page, whichever are more: enough to look at every page
/// a few times, and not at pairs of them.
pub const BUDGET_COMMANDS_PER_FRAME: u64 = 64;

/// How many commands an event may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// For nothing.
    pub commands: u64,
    /// For each frame or resident page, whichever are more.
    pub commands_per_frame: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { commands: BUDGET_COMMANDS, commands_per_frame: BUDGET_COMMANDS_PER_FRAME }
    }
}

/// How often PageFault goes on where its budget ended, while the program that faulted waits.
pub const PAGE_FAULT_WAITS_MAX: u32 = 8;

/// Failures after which a program is revoked.
pub const STRIKES_MAX: u32 = 16;

/// Events in a row without failure after which earlier ones are forgotten.
pub const CLEAN_EVENTS: u32 = 1024;

/// Most notes that wait to be read; later ones are dropped.
const NOTES_MAX: usize = 256;

/// What a program did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Events run.
    pub events: u64,
    /// Commands run, those of Replace among them.
    pub commands: u64,
    /// Commands run in Replace, which are the program's own to pay for.
    pub replace_commands: u64,
    /// The most that one event ran.
    pub event_commands_max: u64,
    /// Victims that the program gave.
    pub chosen: u64,
    /// Victims that the pool took since the program gave none.
    pub passed_over: u64,
    /// Events that ended at their budget.
    pub overruns: u64,
    /// Times that PageFault went on at its saved command.
    pub waits: u64,
    /// Events that ended at a command that could not be done.
    pub misuses: u64,
    /// Events that ended with a page on no queue.
    pub loose_ends: u64,
}

/// A program as what commands, the simulator and the live engine take for a policy. `name` is what
/// it is shown as: its file. `settings` are parameters, as `commands_per_frame=16`. The spec's
/// definition is the program's binary form.
///
/// # Errors
/// If there are no such parameters.
///
/// # Panics
/// If the program has no binary form, as every verified one has.
pub fn spec(
    program: Arc<Verified>,
    name: &str,
    settings: Option<&str>,
) -> Result<PolicySpec, PolicyError> {
    // A spec's description lives as long as the registry's: about 200 bytes for each program that
    // is loaded.
    let info: &'static PolicyInfo =
        Box::leak(Box::new(PolicyInfo { bytes_per_page: program.bytes_per_page(), ..INFO }));
    let definition = program.program().encode().expect("a verified program has a binary form");
    PolicySpec::loaded(info, name, settings, &definition, move |parameters, frames, _seed| {
        let budget = Budget {
            commands: parameters.integer("commands"),
            commands_per_frame: parameters.integer("commands_per_frame"),
        };
        Box::new(HipecPolicy::new(program.clone(), frames).with_budget(budget))
    })
}

const COMMANDS: ParameterInfo = ParameterInfo {
    key: "commands",
    meaning: "commands that an event may run, whatever the memory",
    kind: Kind::Integer { least: 1, most: 1 << 20 },
    default: Value::Integer(BUDGET_COMMANDS),
};

const COMMANDS_PER_FRAME: ParameterInfo = ParameterInfo {
    key: "commands_per_frame",
    meaning: "how many more for each frame, or resident page if those are more",
    kind: Kind::Integer { least: 0, most: 1 << 20 },
    default: Value::Integer(BUDGET_COMMANDS_PER_FRAME),
};

/// What is said of every program. As a policy it is what a revoked program leaves behind.
const INFO: PolicyInfo = PolicyInfo {
    name: "hipec",
    aliases: &[],
    summary: "a program of the user's, checked before it runs and bounded while it does",
    helps: "access patterns that are known, and that no other policy knows",
    hurts: "what the program does not foresee",
    source: Source {
        title: "P. C. H. Lee, R. C. Chang, M. C. Chen: HiPEC: A System for \
                Application-customized Virtual-memory Caching Management, \
                Software: Practice and Experience, 1997",
        section: "Caching strategy representation; Protection mechanism",
    },
    cost: "the program's commands, at most `commands` and `commands_per_frame` for each frame in \
           an event",
    bytes_per_page: 0,
    parameters: &[COMMANDS, COMMANDS_PER_FRAME],
    runs: Runs::Anywhere(|_, _, _| Box::new(Fifo2::new(INACTIVE_SHARE))),
};

/// Of the pool's own order.
const INACTIVE_SHARE: Fraction = Fraction::new(2, 3);
const MARKS: Marks = Marks { referenced: POOL_REFERENCED, inactive: POOL_INACTIVE };

/// A verified program, deciding for a pool of frames.
#[derive(Clone, Debug)]
pub struct HipecPolicy {
    program: Arc<Verified>,
    machine: Machine,
    /// The pool's own order, once it was asked for a victim.
    own: Option<Queues>,
    budget: Budget,
    /// What an event may run while no more than `budget_pages` are resident.
    budget_commands: i64,
    budget_pages: u32,
    budget_set: Option<u64>,
    /// A page that is dirty and comes in next.
    arrives_dirty: Option<Page>,
    /// Nothing is to be done besides running the program's events: there is no order of the pool's
    /// own, no page arrives dirty or is found by its address, and the program is not revoked.
    is_plain: bool,
    /// References seen, admissions among them.
    now: u64,
    /// Those that are not sums of the next.
    counts: Counts,
    /// Of each event of the system: how often it ran, and its commands.
    events: [u64; SYSTEM_EVENTS.len()],
    commands: [u64; SYSTEM_EVENTS.len()],
    strikes: u32,
    clean_events: u32,
    revoked: Option<String>,
    is_revoked: bool,
    notes: Vec<Note>,
    /// Whether the program has these events, and is not revoked.
    runs_reference: bool,
    runs_sample: bool,
    runs_removed: bool,
    wants_references: bool,
    wants_samples: bool,
    finds_pages: bool,
}

impl HipecPolicy {
    /// The program at its beginning, with `frames` frames; compiled if it can be on this host.
    pub fn new(program: Arc<Verified>, frames: u32) -> Self {
        let native = program.image().native().ok();
        Self::on(program, frames, native)
    }

    /// The same, run in this way. A program is compiled once, for all policies that run it.
    ///
    /// # Errors
    /// The program is to be compiled, and cannot be on this host.
    pub fn with_execution(
        program: Arc<Verified>,
        frames: u32,
        execution: Execution,
    ) -> Result<Self, CompileError> {
        let native = match execution {
            Execution::Interpreted => None,
            Execution::Compiled => Some(program.image().native()?),
        };
        Ok(Self::on(program, frames, native))
    }

    /// How its commands are run.
    pub const fn execution(&self) -> Execution {
        if self.machine.is_compiled() { Execution::Compiled } else { Execution::Interpreted }
    }

    fn on(program: Arc<Verified>, frames: u32, native: Option<Arc<Native>>) -> Self {
        let machine = Machine::new(program.image().clone(), native, frames);
        let mut policy = Self {
            runs_reference: machine.has_event(EventNumber::REFERENCE),
            runs_sample: machine.has_event(EventNumber::SAMPLE),
            runs_removed: machine.has_event(EventNumber::REMOVED),
            wants_samples: program.uses_samples(),
            wants_references: program.uses_references(),
            finds_pages: program.finds_pages(),
            machine,
            program,
            own: None,
            budget: Budget::default(),
            budget_commands: 0,
            budget_pages: 0,
            budget_set: None,
            arrives_dirty: None,
            is_plain: false,
            now: 0,
            counts: Counts::default(),
            events: Default::default(),
            commands: Default::default(),
            strikes: 0,
            clean_events: 0,
            revoked: None,
            is_revoked: false,
            notes: Vec::new(),
        };
        policy.is_plain = policy.looks_plain();
        policy.settle_budget();
        policy
    }

    fn looks_plain(&self) -> bool {
        self.own.is_none()
            && self.arrives_dirty.is_none()
            && self.revoked.is_none()
            && !self.finds_pages
    }

    /// What it did so far.
    pub fn counts(&self) -> Counts {
        Counts {
            events: self.events.iter().sum(),
            commands: self.commands.iter().sum(),
            replace_commands: system_place(EventNumber::REPLACE)
                .map_or(0, |place| self.commands[place]),
            ..self.counts
        }
    }

    /// Why the program decides no more, if so.
    pub fn revoked(&self) -> Option<&str> {
        self.revoked.as_deref()
    }

    /// The same with another budget.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self.settle_budget();
        self
    }

    /// Commands that one event may run now.
    pub fn budget_commands(&self) -> u64 {
        self.budget() as u64
    }

    #[inline(always)]
    fn budget(&self) -> i64 {
        let resident = self.machine.state.pages.resident();
        if resident <= self.budget_pages {
            self.budget_commands
        } else {
            self.budget_with(resident)
        }
    }

    #[cold]
    fn budget_with(&self, pages: u32) -> i64 {
        let for_pages = self.budget.commands_per_frame.saturating_mul(pages.into());
        let commands = self.budget.commands.saturating_add(for_pages);
        commands.try_into().unwrap_or(i64::MAX)
    }

    fn settle_budget(&mut self) {
        (self.budget_commands, self.budget_pages) = match self.budget_set {
            Some(commands) => (commands.try_into().unwrap_or(i64::MAX), u32::MAX),
            None => (self.budget_with(self.machine.state.frames), self.machine.state.frames),
        };
    }

    /// Sets how many commands one event may run, whatever the frames; `None` is what they allow.
    pub fn set_budget_commands(&mut self, commands: Option<u64>) {
        self.budget_set = commands;
        self.settle_budget();
    }

    #[inline(never)]
    fn tell(&mut self, event: EventNumber, link: u32, prefetched: bool) {
        let State { pages, frames, .. } = &self.machine.state;
        // The frame of a page that faulted counts as free until the program has counted it.
        let arrives = u32::from(event == EventNumber::PAGE_FAULT);
        let free_frames = frames.saturating_sub(pages.resident()) + arrives;
        self.machine.tell(event, Told { link, prefetched, free_frames, now: self.now });
    }

    /// Runs an event; whether it came to its end. `link` is its page's, or 0; `loose` pages were on
    /// no queue before, one that faulted apart.
    // Of events that are a command or two this is most of the cost: there is a copy for each event.
    #[inline(always)]
    fn run(&mut self, event: EventNumber, link: u32, prefetched: bool, loose: u32) -> bool {
        let budget = self.budget();
        if self.machine.is_told_more(event) {
            self.tell(event, link, prefetched);
        }
        let left = self.machine.begin(event, link, prefetched, budget);
        if left < 0 {
            return self.run_on(event, budget as u64, !left as u64, loose);
        }
        self.ran(event, (budget - left) as u64, loose);
        self.clean_event();
        true
    }

    /// Runs an event of a resident page.
    #[inline(always)]
    fn run_with(&mut self, event: EventNumber, page: Page) {
        let link = self.machine.state.pages.resident_link(page);
        let loose = self.machine.state.pages.loose();
        self.run(event, link, false, loose);
    }

    #[inline(always)]
    fn touched(&mut self, page: Page) {
        self.now += 1;
        self.machine.state.pages.set_bit(page, REFERENCED | POOL_REFERENCED, true);
    }

    /// As [`run`](Self::run), of an event of which compiled code runs no more.
    #[inline(never)]
    fn run_on(&mut self, event: EventNumber, budget: u64, mut left: u64, loose: u32) -> bool {
        let mut ended = self.machine.run_on(event, &mut left);
        let mut event_commands = budget - left;
        let mut waits = 0;
        while ended == Ended::OverBudget
            && event == EventNumber::PAGE_FAULT
            && waits < PAGE_FAULT_WAITS_MAX
        {
            waits += 1;
            self.counts.waits += 1;
            left = budget;
            ended = match self.machine.go_on(event, &mut left) {
                true => Ended::Returned,
                false => self.machine.run_on(event, &mut left),
            };
            event_commands += budget - left;
        }
        self.ran(event, event_commands, loose);
        if ended == Ended::Returned {
            self.clean_event();
            return true;
        }
        self.failed(event, ended, budget, waits);
        false
    }

    #[inline(always)]
    fn ran(&mut self, event: EventNumber, commands: u64, loose: u32) {
        if let Some(place) = system_place(event) {
            self.events[place] += 1;
            self.commands[place] += commands;
        }
        if commands > self.counts.event_commands_max {
            self.ran_most(commands);
        }
        if self.machine.state.pages.loose() > loose {
            self.left_loose();
        }
    }

    #[cold]
    fn ran_most(&mut self, commands: u64) {
        self.counts.event_commands_max = commands;
    }

    #[cold]
    fn left_loose(&mut self) {
        self.counts.loose_ends += 1;
    }

    #[inline(always)]
    fn clean_event(&mut self) {
        if self.strikes == 0 {
            return;
        }
        self.clean_events += 1;
        if self.clean_events >= CLEAN_EVENTS {
            self.strikes = 0;
        }
    }

    #[cold]
    fn failed(&mut self, event: EventNumber, ended: Ended, budget: u64, waits: u32) {
        let name = event.system_name().unwrap_or_default();
        match ended {
            Ended::Returned => {}
            Ended::OverBudget => {
                self.counts.overruns += 1;
                self.strike(format!(
                    "{name} ran over its {budget} commands{} and was ended",
                    if waits == 0 { String::new() } else { format!(", {waits} times again,") }
                ));
            }
            Ended::Misused { event, word, why } => {
                self.counts.misuses += 1;
                let program = self.program.program();
                let place = program.event(event).map_or("", |event| event.name.as_str());
                let text = format!("{name} was ended at event {place}, word {word}: {why}");
                self.strike(text);
            }
        }
    }

    fn strike(&mut self, text: String) {
        self.clean_events = 0;
        self.strikes += 1;
        if self.strikes >= STRIKES_MAX && self.revoked.is_none() {
            let why = format!(
                "the program is revoked after {STRIKES_MAX} failures, and FIFO2 decides: {text}"
            );
            self.note(why.clone());
            self.revoked = Some(why);
            (self.is_plain, self.is_revoked) = (false, true);
            (self.runs_reference, self.runs_sample, self.runs_removed) = (false, false, false);
            self.wants_samples = true;
        } else {
            self.note(text);
        }
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(Note { at_refs: self.now, text });
        }
    }

    /// The program's victim, if it gives one, which leaves.
    #[inline]
    fn chosen(&mut self) -> Option<Page> {
        let mut page = self.machine.state.pages.first_given_up();
        if page.is_none() {
            let loose = self.machine.state.pages.loose();
            if !self.run(EventNumber::REPLACE, 0, false, loose) {
                return None;
            }
            if let Some(page) = self.machine.take_named() {
                self.machine.state.pages.leave(page);
                return Some(page);
            }
            page = self.machine.state.pages.first_given_up();
        }
        match page {
            Some(page) => self.machine.state.pages.remove(page),
            None => self.strike("Replace gave up no page".to_owned()),
        }
        page
    }

    /// A page that became resident, while there is more to do than running the program.
    #[cold]
    #[inline(never)]
    fn admit(&mut self, page: Page, how: Admission) {
        let pages = &mut self.machine.state.pages;
        if self.finds_pages {
            pages.note_address(page);
        }
        if let Some(own) = &mut self.own {
            own.admitted(&mut pages.bits, page, how);
        } else if how == Admission::Prefetch {
            pages.set_bit(page, POOL_INACTIVE, true);
        }
        if self.arrives_dirty.take() == Some(page) {
            pages.set_bit(page, MODIFIED, true);
        }
        self.is_plain = self.looks_plain();
    }

    /// The victim when the program gave none.
    #[cold]
    #[inline(never)]
    fn pass_over(&mut self) -> Option<Page> {
        self.counts.passed_over += 1;
        let page = self.passed_over()?;
        self.machine.state.pages.remove(page);
        Some(page)
    }

    /// The victim of the pool's own order.
    fn passed_over(&mut self) -> Option<Page> {
        let pages = &mut self.machine.state.pages;
        let own = self.own.get_or_insert_with(|| {
            let mut own = Queues::new(INACTIVE_SHARE, MARKS);
            for page in pages.by_arrival() {
                let bits = pages.bits.get(page.index());
                let how = match bits & POOL_INACTIVE {
                    0 => Admission::Demand,
                    _ => Admission::Prefetch,
                };
                own.admitted(&mut pages.bits, page, how);
                // The references since it came stay.
                *pages.bits.at(page.index()) = bits;
            }
            own
        });
        self.is_plain = false;
        own.victim(&mut pages.bits)
    }
}

impl Policy for HipecPolicy {
    fn wants_places(&self) -> bool {
        self.machine.uses_places()
    }

    fn wants_references(&self) -> bool {
        self.wants_references
    }

    fn wants_dirty(&self) -> bool {
        self.program.uses_modified()
    }

    fn gives_hints(&self) -> bool {
        self.program.gives_hints()
    }

    fn placed(&mut self, page: Page, place: Place) {
        self.machine.state.pages.placed(page, place);
    }

    fn dirtied(&mut self, page: Page) {
        if self.machine.state.pages.is_resident(page) {
            self.machine.state.pages.set_bit(page, MODIFIED, true);
        } else {
            self.arrives_dirty = Some(page);
            self.is_plain = false;
        }
    }

    fn cleaned(&mut self, page: Page) {
        self.machine.state.pages.set_bit(page, MODIFIED, false);
    }

    /// At most [`HINTS_MAX`](crate::interpret::HINTS_MAX) since the last call.
    fn take_hints(&mut self, hints: &mut Vec<Hint>) {
        self.machine.take_hints(hints);
    }

    fn order(&self) -> Option<Vec<Page>> {
        self.machine.state.pages.in_one_order()
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.now += 1;
        let loose = self.machine.state.pages.loose();
        let link = self.machine.state.pages.admit(page);
        if !self.is_plain || how == Admission::Prefetch {
            self.admit(page, how);
            if self.is_revoked {
                return;
            }
        }
        self.run(EventNumber::PAGE_FAULT, link, how == Admission::Prefetch, loose);
    }

    // A program knows no other event for a page that it gave up.
    fn spared(&mut self, page: Page) {
        self.admitted(page, Admission::Demand);
    }

    fn wants_samples(&self) -> bool {
        self.wants_samples
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.touched(page);
        if self.runs_reference {
            self.run_with(EventNumber::REFERENCE, page);
        }
    }

    fn sampled(&mut self, page: Page) {
        if !self.runs_sample {
            return self.referenced(page);
        }
        self.touched(page);
        self.run_with(EventNumber::SAMPLE, page);
    }

    fn removed(&mut self, page: Page) {
        if let Some(own) = &mut self.own {
            own.removed(&self.machine.state.pages.bits, page);
        }
        if self.runs_removed {
            self.run_with(EventNumber::REMOVED, page);
        }
        self.machine.state.pages.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        if self.machine.state.pages.resident() == 0 {
            return None;
        }
        if !self.is_revoked
            && let Some(page) = self.chosen()
        {
            self.counts.chosen += 1;
            if !self.is_plain
                && let Some(own) = &mut self.own
            {
                own.removed(&self.machine.state.pages.bits, page);
            }
            return Some(page);
        }
        self.pass_over()
    }

    fn resized(&mut self, frames: u32) {
        self.machine.state.frames = frames;
        self.settle_budget();
    }

    fn resident(&self) -> u32 {
        self.machine.state.pages.resident()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(self)
    }
}

impl Visible for HipecPolicy {
    fn gauges(&self) -> Vec<Gauge> {
        let counts = self.counts();
        [
            ("events", counts.events),
            ("commands", counts.commands),
            ("replace_commands", counts.replace_commands),
            ("event_commands_max", counts.event_commands_max),
            ("chosen_pages", counts.chosen),
            ("passed_over_pages", counts.passed_over),
            ("overruns", counts.overruns),
            ("waits", counts.waits),
            ("misuses", counts.misuses),
            ("loose_ends", counts.loose_ends),
            ("revoked", u64::from(self.revoked.is_some())),
        ]
        .into_iter()
        .map(|(name, value)| Gauge { name, value: value as f64 })
        .collect()
    }

    fn revoked(&self) -> Option<&str> {
        self.revoked.as_deref()
    }

    fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}
