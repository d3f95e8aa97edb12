//! A program that decides in another process, and one whose commands are system calls.

use super::link::{Caller, LOG_ENTRIES, Shared, Transport, serve};
use super::system_calls;
use anyhow::{Context, Result, bail};
use pagekeeper_hipec::compile::Execution;
use pagekeeper_hipec::{HipecPolicy, Verified, load};
use pagekeeper_policy::{Admission, Page, Place, Policy, Segment};
use std::path::Path;
use std::sync::Arc;

const ADMITTED: u64 = 1;
const VICTIM: u64 = 2;
const LOG_FULL: u64 = 3;
/// In the first word: a place follows.
const HAS_PLACE: u64 = 1 << 8;
const NO_PAGE: u64 = u64::MAX;

/// Reads a program.
///
/// # Errors
/// It cannot be read, or is refused.
pub(crate) fn program(path: &Path) -> Result<Arc<Verified>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(Arc::new(load(&path.display().to_string(), &bytes)?.0))
}

/// After each event, one system call for each command that it ran: what it costs when commands are
/// the kernel's, reached from outside.
#[derive(Debug)]
pub(crate) struct BySystemCalls {
    policy: HipecPolicy,
    paid: u64,
}

impl BySystemCalls {
    /// Around a new policy.
    pub(crate) fn new(policy: HipecPolicy) -> Self {
        Self { policy, paid: 0 }
    }

    fn pay(&mut self) {
        let commands = self.policy.counts().commands;
        system_calls(commands - self.paid);
        self.paid = commands;
    }
}

impl Policy for BySystemCalls {
    fn wants_places(&self) -> bool {
        self.policy.wants_places()
    }

    fn placed(&mut self, page: Page, place: Place) {
        self.policy.placed(page, place);
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.policy.admitted(page, how);
        self.pay();
    }

    fn referenced(&mut self, page: Page) {
        self.policy.referenced(page);
        self.pay();
    }

    fn removed(&mut self, page: Page) {
        self.policy.removed(page);
        self.pay();
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let victim = self.policy.victim(incoming);
        self.pay();
        victim
    }

    fn resized(&mut self, frames: u32) {
        self.policy.resized(frames);
    }

    fn resident(&self) -> u32 {
        self.policy.resident()
    }
}

/// What the other process is to do.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    /// The program's file.
    pub(crate) program: String,
    /// Frames of the pool.
    pub(crate) frames: u32,
    /// How the program is run there.
    pub(crate) execution: Execution,
    /// Whether each command is a system call.
    pub(crate) by_system_calls: bool,
}

/// A program in another process, told of each event by a message and answering with one. Which
/// pages were referenced is what the kernel knows, and stands in memory that both have: a
/// reference costs no message.
pub(crate) struct Remote {
    caller: Caller,
    place: Option<Place>,
    logged: usize,
    resident: u32,
    /// Round trips so far.
    pub(crate) round_trips: u64,
}

impl Remote {
    /// Starts the process.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(transport: Transport, decider: &Decider) -> Result<Remote> {
        let arguments = [
            decider.program.clone(),
            decider.frames.to_string(),
            u8::from(decider.execution == Execution::Compiled).to_string(),
            u8::from(decider.by_system_calls).to_string(),
        ];
        let caller = Caller::start(transport, &arguments)?;
        Ok(Remote { caller, place: None, logged: 0, resident: 0, round_trips: 0 })
    }

    /// The other process.
    pub(crate) fn process(&self) -> u32 {
        self.caller.process()
    }

    fn call(&mut self, what: u64, page: u64) -> u64 {
        let (flag, segment, index) = match self.place.take() {
            Some(place) => (HAS_PLACE, place.segment.0.into(), place.index),
            None => (0, 0, 0),
        };
        let logged = std::mem::take(&mut self.logged) as u64;
        self.round_trips += 1;
        let request = [what | flag | logged << 32, page, segment, index];
        self.caller.call(request).expect("the other process answers")[0]
    }
}

impl Policy for Remote {
    fn wants_places(&self) -> bool {
        true
    }

    fn placed(&mut self, _page: Page, place: Place) {
        self.place = Some(place);
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        assert_eq!(how, Admission::Demand, "nothing is fetched ahead here");
        self.call(ADMITTED, page.0.into());
        self.resident += 1;
    }

    fn referenced(&mut self, page: Page) {
        if self.logged == LOG_ENTRIES {
            self.call(LOG_FULL, NO_PAGE);
        }
        self.caller.shared.set_log(self.logged, page.0);
        self.logged += 1;
    }

    fn removed(&mut self, page: Page) {
        unreachable!("page {} leaves by the program's choice alone", page.0);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let incoming = incoming.map_or(NO_PAGE, |page| page.0.into());
        let victim = u32::try_from(self.call(VICTIM, incoming)).ok()?;
        self.resident -= 1;
        Some(Page(victim))
    }

    fn resized(&mut self, frames: u32) {
        unreachable!("{frames} frames: a pool of one size");
    }

    fn resident(&self) -> u32 {
        self.resident
    }
}

/// The other process.
///
/// # Errors
/// The arguments are not those that [`Remote::start`] gives, or the program cannot run.
pub fn decide(arguments: &[String]) -> Result<()> {
    let [transport, memory, path, frames, compiled, by_system_calls] = arguments else {
        bail!("this program is started by pagekeeper-bench");
    };
    let execution = if compiled == "1" { Execution::Compiled } else { Execution::Interpreted };
    let policy =
        HipecPolicy::with_execution(program(Path::new(path))?, frames.parse()?, execution)?;
    let mut policy: Box<dyn Policy> = match by_system_calls.as_str() {
        "1" => Box::new(BySystemCalls::new(policy)),
        _ => Box::new(policy),
    };
    serve(Transport::named(transport)?, memory, |shared, [what, page, segment, index]| {
        answer(policy.as_mut(), shared, what, page, (segment, index))
    })
}

fn answer(
    policy: &mut dyn Policy,
    shared: &Shared,
    what: u64,
    page: u64,
    (segment, index): (u64, u64),
) -> Result<[u64; 4]> {
    for entry in 0..(what >> 32) as usize {
        policy.referenced(Page(shared.log(entry)));
    }
    let named = u32::try_from(page).ok().map(Page);
    if let (Some(page), true) = (named, what & HAS_PLACE != 0) {
        policy.placed(page, Place { segment: Segment(segment as u32), index });
    }
    let answer = match (what & 0xFF, named) {
        (ADMITTED, Some(page)) => {
            policy.admitted(page, Admission::Demand);
            NO_PAGE
        }
        (VICTIM, incoming) => policy.victim(incoming).map_or(NO_PAGE, |page| page.0.into()),
        // The first message, and references alone.
        _ => NO_PAGE,
    };
    Ok([answer, 0, 0, 0])
}
