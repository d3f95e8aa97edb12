//! What a memory budget buys: frames, after buffers and per-page state are paid.

use crate::config::MIN_FRAMES;

/// Bytes in a frame, unless more is said.
pub const FRAME_BYTES: u64 = 4096;
/// Bytes kept per numbered page, whatever the policy: the engine's word, the brain's flags, links
/// and stamps, and a page's part of its extent.
pub const STATE_BYTES_PER_PAGE: u64 = 30;
/// Most of a budget that goes to I/O buffers.
pub const BUFFERS_BYTES_MAX: u64 = 2 << 20;
/// Page numbers given out between two corrections of the number of frames.
const STEP_PAGES: u32 = 4096;

/// A budget, and what was counted against it. The engine and the simulator both live by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    memory_bytes: u64,
    state_bytes_per_page: u64,
    counted_pages: u32,
    frame_bytes: u64,
}

impl Budget {
    /// So many bytes for everything of ours, under a policy that keeps this much per page.
    pub fn new(memory_bytes: u64, policy_bytes_per_page: u32) -> Budget {
        let state_bytes_per_page = STATE_BYTES_PER_PAGE + u64::from(policy_bytes_per_page);
        Budget { memory_bytes, state_bytes_per_page, counted_pages: 0, frame_bytes: FRAME_BYTES }
    }

    /// The same budget for frames of another size.
    #[must_use]
    pub fn of_frames(self, frame_bytes: u64) -> Budget {
        Budget { frame_bytes, ..self }
    }

    /// So many bytes instead, under the same policy and for frames of the same size.
    #[must_use]
    pub fn of_bytes(self, memory_bytes: u64) -> Budget {
        Budget { memory_bytes, ..self }
    }

    /// The same budget under another policy; `None` if that keeps as much for each page.
    pub fn under(self, policy_bytes_per_page: u32) -> Option<Budget> {
        let changed = Budget::new(self.memory_bytes, policy_bytes_per_page);
        let is_new = changed.state_bytes_per_page != self.state_bytes_per_page;
        let (counted_pages, frame_bytes) = (self.counted_pages, self.frame_bytes);
        is_new.then_some(Budget { counted_pages, frame_bytes, ..changed })
    }

    /// The bytes that were given.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// What of them goes to I/O buffers.
    pub fn buffers_bytes(&self) -> u64 {
        BUFFERS_BYTES_MAX.min(self.memory_bytes / 32)
    }

    /// Frames when so many pages have numbers.
    pub fn frames(&self, numbered_pages: u32) -> u32 {
        let buffers = self.buffers_bytes();
        let state = u64::from(numbered_pages) * self.state_bytes_per_page;
        let bytes = self.memory_bytes.saturating_sub(buffers + state);
        u32::try_from(bytes / self.frame_bytes).unwrap_or(u32::MAX).max(MIN_FRAMES)
    }

    /// The corrected number of frames, when enough page numbers were given out since the last
    /// correction.
    pub fn correct(&mut self, numbered_pages: u32) -> Option<u32> {
        if numbered_pages < self.counted_pages + STEP_PAGES {
            return None;
        }
        self.counted_pages = numbered_pages;
        Some(self.frames(numbered_pages))
    }
}
