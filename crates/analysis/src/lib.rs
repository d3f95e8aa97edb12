//! What a reference string shows, alone and under a policy.
//!
//! Of the string alone: [`lru_curve`] and [`opt_curve`] (hits at every memory size from one pass),
//! [`WorkingSet`], [`Gaps`], [`SpaceTime`]. Under a policy at one size, from one replay
//! ([`observe`]): faults over time and space, the gaps of the hits, and the policy's own numbers,
//! classes and curves. [`Sampler`] trades exactness for time by looking at a share of the pages.
//!
//! ```
//! use pagekeeper_analysis::lru_curve;
//! use pagekeeper_sim::References;
//!
//! let loop_of_five = References::from_blocks((0..20).map(|step| step % 5))?;
//! let curve = lru_curve(&loop_of_five, 0);
//! assert_eq!((curve.hits(4), curve.hits(5)), (0, 15));
//! # Ok::<(), pagekeeper_sim::SimError>(())
//! ```
//!
//! Everything is pure and the same on every run; work on several policies or sizes is spread over
//! all cores. Where a function takes `warm_refs`, references before that position count as past:
//! they fill caches and are not counted.
#![deny(unsafe_code)]

mod bins;
mod curve;
mod freed;
mod gaps;
mod observe;
mod opt_stack;
mod rate;
mod sample;
mod space_time;
mod working_set;

pub use bins::{GapBins, sizes_up_to};
pub use curve::{HitCurve, hits_at, lru_curve, opt_curve};
pub use gaps::Gaps;
pub use observe::{Inside, Observation, ObserveOptions, Snapshot, observe};
pub use opt_stack::OptStack;
pub use rate::{FaultRate, Spread};
pub use sample::{Estimate, Sampler};
pub use space_time::{Cell, Layout, SpaceTime};
pub use working_set::{WorkingSet, working_set_over_time};
