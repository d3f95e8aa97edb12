//! What can go wrong in a simulation.
use pagekeeper_policy::PolicyError;

/// Why a simulation could not be made or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// The policy cannot be built.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A pool of no frames cannot hold the page that a reference needs.
    #[error("a simulation needs at least one frame; give a number of frames above 0")]
    NoFrames,
    /// More distinct pages than the simulator numbers.
    #[error(
        "reference {position} touches distinct page number {}, one more than the simulator \
         takes; simulate a part of the trace, or larger pages",
        crate::PAGES_MAX as u64 + 1
    )]
    TooManyPages {
        /// Position of the reference, from 0.
        position: u64,
    },
    /// More references than the optimum is computed for.
    #[error(
        "the optimum is computed for at most {most} references and the trace has {references}; \
         leave `opt` out, or simulate a part of the trace"
    )]
    TooManyReferences {
        /// References in the trace.
        references: u64,
        /// The limit.
        most: u64,
    },
    /// A policy named a victim that is not resident, or none while it holds pages.
    #[error(
        "the policy broke its contract at reference {position}: {what}; this is an error in the \
         policy"
    )]
    BrokenPolicy {
        /// Position of the reference, from 0.
        position: u64,
        /// What it answered.
        what: String,
    },
    /// A segment is longer than anything that is mapped.
    #[error(
        "{segment} has a page beyond number {most}, which is no place in a file (names of pages are \
         numbered so): neighbours and sampling mean nothing there; simulate it without --readahead \
         and --references sampled"
    )]
    NoPlaces {
        /// The segment.
        segment: String,
        /// The most pages that one may have.
        most: u64,
    },
    /// No key of the cost model has this name.
    #[error("the cost model has no `{key}`; it has {known}")]
    UnknownCost {
        /// The key given.
        key: String,
        /// The keys that it has.
        known: String,
    },
    /// A cost is not a number of nanoseconds.
    #[error("cost `{key}={value}` must be {expected}")]
    BadCost {
        /// The key given.
        key: String,
        /// The value given.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The threads for a sweep could not be started.
    #[error("cannot start {threads} threads for the sweep ({reason}); ask for fewer")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// A program's bounds on its frames leave no frame.
    #[error(
        "{program}: bounds from {least} to {most} frames leave nothing; there have to be as many frames \
         as programs at least, and no program's least may be above its most"
    )]
    Bounds {
        /// The program.
        program: String,
        /// Its least.
        least: u32,
        /// Its most.
        most: u32,
    },
    /// The programs' least frames are more than there are.
    #[error("the programs are promised {promised} frames and there are {total}; promise fewer")]
    Promised {
        /// All least frames together.
        promised: u64,
        /// Frames in the pool.
        total: u32,
    },
    /// A program is to run by recorded times and has none.
    #[error("{program} has no recorded times; schedule it round robin instead")]
    NoTimes {
        /// The program.
        program: String,
    },
}
