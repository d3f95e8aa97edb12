//! Adaptive read-ahead: which pages to fetch along with a fault.
//!
//! Sequential streams are recognised per segment by where the next fault falls. A stream's window
//! grows fourfold from [`FIRST_WINDOW_PAGES`] with each fault that continues it; a *marker* page
//! inside the newest window is left unmapped, so that its first touch is seen and starts the next
//! window while the program still works on this one (as Linux's `PG_readahead` does,
//! `mm/readahead.c`). A fault that continues nothing fetches one page: random access pays for no
//! read-around.

use std::collections::VecDeque;

/// The window of a stream on its second fault, in pages.
pub const FIRST_WINDOW_PAGES: u32 = 4;
/// Streams remembered per segment; the least recently continued is given up first.
pub const STREAMS_PER_SEGMENT: usize = 8;

/// One sequential stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The page after the last one fetched.
    pub(crate) next: u64,
    /// Pages fetched by the last step.
    pub(crate) window: u32,
    /// The page with which it began.
    pub(crate) begin: u64,
    /// Pages from here to where the stream began are taken for passed by it: a scan over resident
    /// pages is not seen, until it comes to absent ones.
    pub(crate) passed: u64,
    /// The unmapped page whose touch starts the next window.
    pub(crate) marker: Option<u64>,
    /// When it was last continued, on the brain's clock of steps.
    step: u64,
    /// Pages fetched ahead and not known to be used, in file order.
    pub(crate) pending: VecDeque<u64>,
}

/// The streams of one segment, least recently continued first.
#[derive(Default, Debug)]
pub(crate) struct Streams(Vec<Stream>);

/// What to fetch behind a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The window from the page on that faulted: what is absent of it is to be fetched.
    pub(crate) pages: u32,
    /// Pages of an abandoned stream that nobody was seen to use.
    pub(crate) abandoned: VecDeque<u64>,
}

impl Streams {
    /// A fault on an absent page. The stream it belongs to is the last one afterwards.
    pub(crate) fn fault(&mut self, index: u64, window_max: u32, now: u64) -> Step {
        let mut abandoned = VecDeque::new();
        let pages = match self.0.iter().position(|s| s.next == index) {
            Some(at) => {
                let mut stream = self.0.remove(at);
                stream.window = if stream.window < FIRST_WINDOW_PAGES {
                    FIRST_WINDOW_PAGES
                } else {
                    stream.window.saturating_mul(4)
                }
                .min(window_max.max(1));
                stream.step = now;
                let pages = stream.window;
                self.0.push(stream);
                pages
            }
            None => {
                if self.0.len() == STREAMS_PER_SEGMENT {
                    abandoned = self.0.remove(0).pending;
                }
                self.0.push(Stream {
                    next: index,
                    window: 1,
                    begin: index,
                    passed: index,
                    marker: None,
                    step: now,
                    pending: VecDeque::new(),
                });
                1
            }
        };
        Step { pages, abandoned }
    }

    /// The stream that the last step was taken for.
    pub(crate) fn last(&mut self) -> &mut Stream {
        self.0.last_mut().expect("a step was taken")
    }

    /// If `index` is a stream's marker: makes that stream the last one and returns the pages to
    /// fetch from its `next` on.
    pub(crate) fn marker(&mut self, index: u64, window_max: u32, now: u64) -> Option<u32> {
        let at = self.0.iter().position(|s| s.marker == Some(index))?;
        let mut stream = self.0.remove(at);
        stream.marker = None;
        stream.window = stream.window.saturating_mul(4).clamp(1, window_max.max(1));
        stream.step = now;
        let pages = stream.window;
        self.0.push(stream);
        Some(pages)
    }

    /// Takes one page out of whichever stream's pending list holds it.
    pub(crate) fn used(&mut self, index: u64) {
        for stream in &mut self.0 {
            if let Ok(at) = stream.pending.binary_search(&index) {
                stream.pending.remove(at);
                return;
            }
        }
    }

    /// When the stream that fetched this page ahead was last continued.
    pub(crate) fn last_step(&self, index: u64) -> Option<u64> {
        self.0.iter().find(|s| s.pending.binary_search(&index).is_ok()).map(|s| s.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_fourfold_to_the_limit_and_random_faults_get_one_page() {
        let mut streams = Streams::default();
        let mut next = 10;
        let mut seen = Vec::new();
        for _ in 0..5 {
            let step = streams.fault(next, 64, 0);
            seen.push(step.pages);
            next += u64::from(step.pages);
            streams.last().next = next;
        }
        assert_eq!(seen, [1, 4, 16, 64, 64]);
        for i in 0..20 {
            assert_eq!(streams.fault(1000 + i * 7, 64, 0).pages, 1);
            streams.last().next = 1001 + i * 7;
        }
    }
}
