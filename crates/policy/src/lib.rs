//! Page replacement policies.
//!
//! A policy is written once and runs unchanged in the simulator and on live memory. It is pure:
//! no clock, no I/O, no operating system, no threads. It is told what happened to pages and is
//! asked one question: which page should leave.
//!
//! - [`Policy`] is the contract; [`Checked`] holds a policy, and its caller, to it.
//! - [`policies`] has one file per policy, on the [`list`](mod@list) and [`flat`] building blocks.
//! - [`registry`] names them all, and builds one from text such as `fifo2:inactive=1/2`:
//!
//! ```
//! use pagekeeper_policy::{Admission, Page, Policy, PolicySpec};
//!
//! let mut policy = PolicySpec::parse("lru")?.build(2, 0)?;
//! policy.admitted(Page(7), Admission::Demand);
//! policy.admitted(Page(8), Admission::Demand);
//! policy.referenced(Page(7));
//! assert_eq!(policy.victim(Some(Page(9))), Some(Page(8)));
//! # Ok::<(), pagekeeper_policy::PolicyError>(())
//! ```
//!
//! To add a policy: a file in `src/policies/`, and its line in `src/policies.rs`.
#![deny(unsafe_code)]

mod checked;
mod circle;
mod contract;
mod cost;
mod counts;
pub mod flat;
pub mod list;
mod members;
pub mod parameters;
mod pass_on;
pub mod policies;
pub mod registry;
mod rising;
mod sketch;
pub mod switched;
mod visible;
mod weights;

pub use checked::Checked;
pub use contract::{Admission, Hint, Page, Place, Policy, Segment};
pub use parameters::{Fraction, Kind, ParameterInfo, Parameters, Value};
pub use registry::{PolicyError, PolicyInfo, PolicySpec, Runs, Source, all, find};
pub use visible::{ACCOUNT_NOTES_MAX, Account, Curve, Gauge, Note, Visible};
