//! What the engine is asked about a segment's pages, and told to do with many of them.

use crate::engine::core::Core;
use crate::engine::flush::Leaving;
use crate::engine::{Again, Engine};
use crate::library::segment::{PageAttributes, attributes_of};
use crate::port::{FileNo, Port, PortError};
use pagekeeper_frames::{Input, Place, Segment};
use pagekeeper_policy::Page;
use std::ops::Range;

/// Most pages that are looked at while all others wait for the lock.
const LOOK_PAGES: usize = 4096;

impl<P: Port> Engine<P> {
    /// What a file is called in reports.
    pub(crate) fn file_name(&self, file: FileNo) -> String {
        self.lock().file(file).map_or(String::new(), |f| f.name.clone())
    }

    /// Pages in memory, the one used longest ago first.
    pub(crate) fn by_last_use(&self) -> Vec<Place> {
        let mut core = self.lock();
        let job = self.told(&mut core);
        let places = core.brain.by_last_use();
        drop(core);
        self.finish(job);
        places
    }

    /// Frames that pages can be in.
    pub(crate) fn free_to_use(&self) -> u32 {
        self.lock().brain.frames()
    }

    /// The pages of a range that are in memory or on their way, in order.
    pub(crate) fn resident_in(&self, file: FileNo, pages: Range<u64>) -> Vec<u64> {
        let core = self.lock();
        core.pages_in(file, pages).into_iter().map(|(_, place)| place.index).collect()
    }

    /// The pages of a range that a program holds, or that hold what storage lacks, in order.
    pub(crate) fn staying_in(&self, file: FileNo, pages: Range<u64>) -> Vec<u64> {
        let core = self.lock();
        let stays = |(page, _): &(Page, Place)| {
            let word = core.word(*page);
            word.dirty() || word.holds() > 0
        };
        core.pages_in(file, pages).into_iter().filter(stays).map(|(_, p)| p.index).collect()
    }

    /// The last page of a range that a program holds.
    pub(crate) fn last_held(&self, file: FileNo, pages: Range<u64>) -> Option<u64> {
        let core = self.lock();
        let held =
            |(page, place): (Page, Place)| (core.word(page).holds() > 0).then_some(place.index);
        core.pages_in(file, pages).into_iter().filter_map(held).max()
    }

    /// Zeroes what the last page of a file holds behind the end, if it is in memory: no content, but
    /// what a mapping may have stored there.
    pub(crate) fn zero_behind(&self, file: FileNo, size_bytes: u64) {
        if size_bytes.is_multiple_of(self.page_bytes) {
            return;
        }
        let mut again = Again::new();
        self.clear_behind(file, size_bytes, &mut again);
        self.serve_all(&mut again);
    }

    /// Notes that something of a file could not be made durable, as write-backs note what they met.
    pub(crate) fn note_error(&self, file: FileNo, error: PortError) {
        self.lock().note_error(file, error);
    }

    /// The error that a file met since `heard`, which is brought up to date.
    pub(crate) fn tell_error(&self, file: FileNo, heard: &mut u64) -> Result<(), PortError> {
        match self.lock().file_mut(file).and_then(|f| f.errors.tell(heard)) {
            Some(errno) => Err(PortError::Io(errno)),
            None => Ok(()),
        }
    }

    /// What is known of each page of a range. What was used without the lock is told first.
    pub(crate) fn attributes(&self, file: FileNo, pages: Range<u64>) -> Vec<PageAttributes> {
        let mut core = self.lock();
        let job = self.told(&mut core);
        drop(core);
        self.finish(job);
        let mut attributes = vec![PageAttributes::default(); (pages.end - pages.start) as usize];
        let mut first = pages.start;
        for piece in attributes.chunks_mut(LOOK_PAGES) {
            let end = first + piece.len() as u64;
            let core = self.lock();
            // Of all others nothing is known.
            for (_, place) in core.pages_in(file, first..end) {
                piece[(place.index - first) as usize] = attributes_of(&core, place);
            }
            drop(core);
            first = end;
        }
        attributes
    }

    /// Starts to fetch what is absent of a range, up to a quarter of the frames. Returns the first
    /// page that is neither resident nor on its way, or the range's end.
    pub(crate) fn prefetch_all(&self, file: FileNo, pages: Range<u64>) -> u64 {
        let mut budget = self.lock().brain.frames() / 4;
        let mut next = pages.start;
        loop {
            let mut core = self.lock();
            let absent = |core: &Core, index| {
                !core.brain.is_resident(Place { segment: Segment(file), index })
            };
            while next < pages.end && !absent(&core, next) {
                next += 1;
            }
            if next >= pages.end || budget == 0 {
                return next;
            }
            let want = u32::try_from(pages.end - next).unwrap_or(u32::MAX).min(budget);
            let input = Input::Ahead { segment: Segment(file), first: next, pages: want };
            let job = self.decide(&mut core, input);
            let begun: u32 = job.fetch.iter().map(|run| run.pages).sum();
            drop(core);
            // By another thread, where there is one: the caller goes on.
            let mut again = Again::new();
            self.run(job, None, &mut again);
            self.serve_all(&mut again);
            if begun == 0 {
                return next;
            }
            budget -= begun.min(budget);
        }
    }

    /// Takes pages out of memory that nobody holds: clean ones, or dirty ones too.
    pub(crate) fn drop_unheld(&self, file: FileNo, pages: Range<u64>, which: Leaving) {
        debug_assert_ne!(which, Leaving::All);
        let mut again = Again::new();
        self.drop_pages(file, pages, which, &mut again);
        self.serve_all(&mut again);
    }

    /// Forgets a file, written back or not: nobody can ask for it any more.
    pub(crate) fn forget(&self, file: FileNo) {
        let mut again = Again::new();
        self.drop_pages(file, 0..u64::MAX, Leaving::All, &mut again);
        self.serve_all(&mut again);
        let closed = self.close_file(file);
        debug_assert!(closed, "a segment without handles is in use");
    }
}
