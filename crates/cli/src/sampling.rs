//! What is spent on seeing touches, on the command line.

use pagekeeper_frames::SamplingShare;

/// What `run`, `tune` and `simulate` are told alike.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct SamplingArgs {
    /// The most that seeing touches of mapped pages may cost, in percent of the time that misses
    /// take, so of the run's at most (auto: as much again for pages that it watches); 0: policies see
    /// misses only [default: 25]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub(crate) sampling: Option<SamplingShare>,
}
