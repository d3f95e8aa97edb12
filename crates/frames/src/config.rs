//! What a brain is built with, and what it counts.

use crate::share::SamplingShare;

/// Fewest frames that can make progress: the pages of one instruction, and some.
pub const MIN_FRAMES: u32 = 8;
/// Most pages fetched by one read-ahead step: 1 MiB.
pub const WINDOW_PAGES_MAX: u32 = 256;
/// Pages used within the last frames ÷ this many uses are recent: no policy may evict them. A
/// recording sees no reuse that is closer, so no prediction could know what it costs; and an
/// instruction that touches two pages must not lose one to the other.
pub const RECENT_SHARE: u32 = 128;
/// Most dirty neighbours written back along with a dirty victim, itself included.
pub const CLEAN_RUN_PAGES_MAX: u32 = 32;
/// Most wishes of a policy that wait; later ones are dropped.
pub const WISHES_MAX: usize = 64;

/// How touches of mapped pages are made visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampling {
    /// Not at all: the policy learns of faults only.
    Off,
    /// The pages mapped longest ago are unmapped as evictions happen, until a share of the resident
    /// pages is unmapped; a touch of one is a minor fault. No evictions, no cost. What is spent is
    /// bounded twice by evictions: pages unmapped, and their touches.
    OnEviction {
        /// The most that the touches may cost.
        share: SamplingShare,
    },
    /// Only so many pages stay mapped, in the order of being mapped: every other touch is seen.
    /// For recording; slow where the program's hot pages are more than this.
    Window {
        /// Mapped pages.
        mapped_pages: u32,
    },
}

impl Sampling {
    /// As evictions happen, for a share of the time that misses take.
    pub fn within(share: SamplingShare) -> Sampling {
        if share == SamplingShare::NONE { Sampling::Off } else { Sampling::OnEviction { share } }
    }

    /// The most that seeing touches may cost; `None` where it is not bounded.
    pub fn share(self) -> Option<SamplingShare> {
        match self {
            Sampling::Off => Some(SamplingShare::NONE),
            Sampling::OnEviction { share } => Some(share),
            Sampling::Window { .. } => None,
        }
    }
}

/// What a brain is built with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Frames of 4 KiB at the start.
    pub frames: u32,
    /// How touches are sampled.
    pub sampling: Sampling,
    /// Largest read-ahead window in pages; 1 switches read-ahead off.
    pub window_pages_max: u32,
    /// Pages fetched ahead are mapped at once, but for the marker. Off while recording.
    pub map_ahead: bool,
}

impl Config {
    /// The settings of a live run.
    pub fn live(frames: u32) -> Config {
        Config {
            frames,
            sampling: Sampling::within(SamplingShare::USUAL),
            window_pages_max: WINDOW_PAGES_MAX,
            map_ahead: true,
        }
    }

    /// The window of a recording run that suits a live run with so many frames.
    pub fn recording_window(frames: u32) -> u32 {
        (frames / RECENT_SHARE).clamp(MIN_FRAMES, 1024)
    }

    /// The settings of a recording run: every touch is seen, but for the last `mapped_pages`
    /// mapped pages.
    pub fn recording(frames: u32, mapped_pages: u32) -> Config {
        Config {
            frames,
            sampling: Sampling::Window { mapped_pages },
            window_pages_max: WINDOW_PAGES_MAX,
            map_ahead: false,
        }
    }
}

/// Counts since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pages fetched because a reference needed them.
    pub major_faults: u64,
    /// Major faults on pages that were evicted before.
    pub refaults: u64,
    /// Touches of resident, unmapped pages.
    pub minor_faults: u64,
    /// First writes to clean, mapped pages.
    pub write_faults: u64,
    /// Pages fetched ahead.
    pub prefetched_pages: u64,
    /// Pages fetched ahead that left memory without being known to be used.
    pub prefetch_wasted_pages: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Evicted pages that were dirty, and dirty neighbours written along with them.
    pub write_backs: u64,
    /// Pages unmapped for sampling.
    pub unmapped_pages: u64,
    /// Touches that sampling is charged with: of resident pages that it unmapped, and of the few
    /// that were not mapped for another reason, such as a call that brought them in.
    pub touches_seen: u64,
}
