//! Replays reference strings through policies and predicts faults and time.
//!
//! 1. [`References`] is the input: who touched which page, reading or writing, in order.
//! 2. [`sweep`] replays it through policies × memory sizes on all cores; [`replay`] through one
//!    policy you made yourself, telling you of every fault.
//! 3. An [`Outcome`] has the [`Counts`], the faults by segment and region, and the time that the
//!    [`CostModel`] predicts from them.
//!
//! ```
//! use pagekeeper_policy::PolicySpec;
//! use pagekeeper_sim::{References, SweepOptions, sweep};
//!
//! let loop_of_five = References::from_blocks((0..20).map(|step| step % 5))?;
//! let policies = [PolicySpec::parse("lru")?, PolicySpec::parse("opt")?];
//! let outcomes = sweep(&loop_of_five, &policies, &[4], &SweepOptions::default())?;
//! let hits: Vec<u64> = outcomes.iter().map(|outcome| outcome.counts.hits).collect();
//! assert_eq!(hits, [0, 12]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`sweep`] and [`replay`] are exact demand paging: every reference is seen by the policy, a fault
//! fetches one page, and the victim leaves when the fault needs its frame. [`simulate_live`]
//! emulates what the live engine does besides: sampling, read-ahead, memory paid for state.
//! [`simulate_pool`] has several programs share frames.
#![deny(unsafe_code)]

mod calls;
mod cost;
mod disk;
mod distances;
mod error;
mod heap;
mod idle;
mod interleave;
mod live;
mod opt;
mod opt_wb;
mod outcome;
mod pace;
mod pool;
mod processes;
mod references;
mod replay;
mod shared;
mod sweep;

pub use calls::Calls;
pub use cost::{CostModel, PredictedTime};
pub use distances::StackDistances;
pub use error::SimError;
pub use heap::HeapChange;
pub use live::{LiveOptions, simulate_live, sweep_live};
pub use opt::{NextUses, Opt};
pub use opt_wb::{NextWrites, OptWb, opt_wb_bound, replay_opt_wb, write_back_cost};
pub use outcome::{Counts, Outcome, SegmentOutcome};
pub use pool::{
    Allocation, PoolCost, PoolOptions, PoolOutcome, PoolPoint, PoolProgram, ProgramOutcome,
    Schedule, simulate_pool,
};
pub use references::{
    PAGES_MAX, REGIONS_MAX, Reference, References, ReferencesBuilder, Regions, Segment,
};
pub use replay::{Fault, replay, replay_warm};
pub use sweep::{Future, SweepOptions, sweep};
