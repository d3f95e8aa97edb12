//! Who gets frames: the decisions that surround a replacement policy.
//!
//! A [`Brain`] takes [`Input`]s (a page is needed, a touch was seen, frames changed) and answers
//! with a [`Plan`] (evict these, fetch those, unmap these so that their next touch is seen). The
//! live engine carries plans out on memory; the simulator carries them out in its head. Nothing
//! here knows a clock, a thread, a file or an operating system.
#![deny(unsafe_code)]

mod ahead;
mod around;
mod brain;
mod budget;
mod config;
mod idle;
mod odds;
mod pages;
mod plan;
#[cfg(test)]
mod properties;
mod room;
mod sample;
mod share;
mod stores;
mod window;
mod wish;

pub use ahead::{FIRST_WINDOW_PAGES, STREAMS_PER_SEGMENT};
pub use brain::Brain;
pub use budget::{BUFFERS_BYTES_MAX, Budget, FRAME_BYTES, STATE_BYTES_PER_PAGE};
pub use config::{
    CLEAN_RUN_PAGES_MAX, Config, Counts, MIN_FRAMES, RECENT_SHARE, Sampling, WINDOW_PAGES_MAX,
    WISHES_MAX,
};
pub use idle::IdleFiles;
pub use pagekeeper_policy::{Place, Segment};
pub use pages::{EXTENT_PAGES, PageMap};
pub use plan::{GAP_READ_PAGES, Input, Plan, Run, Victim};
pub use share::{NotAShare, SamplingShare};
