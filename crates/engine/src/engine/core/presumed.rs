//! Which pages of files count as dirty before anybody stored to them.

use super::Core;
use crate::port::FileNo;
use pagekeeper_frames::{Place, Run};
use pagekeeper_policy::Page;
use std::ops::Range;

/// Of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Presumed {
    /// How many pages do.
    pages: u64,
    /// How many threads are about to let some.
    beginning: u32,
    /// How often there were none any more.
    endings: u64,
    /// How often somebody had to say what he was about to overwrite because there were some.
    disturbed: u32,
}

/// So often.
const DISTURBED_MAX: u32 = 4;

impl Presumed {
    /// There are none, nor will there be soon.
    pub(crate) fn is_none(self) -> bool {
        self.pages == 0 && self.beginning == 0
    }

    /// Who overwrites some of the file need not say so any more.
    pub(crate) fn ended(&mut self) {
        self.endings += 1;
    }
}

/// What a file was like when pages of it were about to count as dirty: while it is so, what is in memory of
/// clean pages is what storage has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Quiet {
    fences_put: u64,
    foreign: u64,
    endings: u64,
    /// Storage may lack blocks for some pages.
    pub(crate) holes: bool,
    /// How many whole pages it has.
    pub(crate) whole_pages: u64,
}

impl Core {
    /// What a file is like, if pages of it may count as dirty before they are stored to: nobody changes it but
    /// by mappings, nobody outside is known to have changed it, and dirty pages need not wait.
    pub(crate) fn quiet(&self, file: FileNo) -> Option<Quiet> {
        let f = self.file(file).filter(|f| f.heap.is_none() && self.table.has_digests())?;
        let is_known = !f.has_no_time() && !self.is_changing(file) && !self.is_behind(file);
        let is_written = !f.on_request && !self.is_overdue(file);
        let is_disturbed = f.presumed.disturbed >= DISTURBED_MAX;
        (is_known && is_written && !is_disturbed && self.machine_pages == 1).then(|| Quiet {
            fences_put: f.fences_put,
            foreign: f.foreign.found(),
            endings: f.presumed.endings,
            holes: f.holes,
            whole_pages: f.version.size_bytes / self.page_bytes(),
        })
    }

    /// The same, if whoever overwrites some of it says so already: if it is so later, what was read meanwhile
    /// is what storage has.
    pub(crate) fn told_quiet(&self, file: FileNo) -> Option<Quiet> {
        self.quiet(file).filter(|_| self.presumes_any(file))
    }

    /// Pages of a file are about to count as dirty: whoever overwrites some of it says so before, until
    /// [`presumptions_begun`](Self::presumptions_begun) and as long as there are any.
    pub(crate) fn begin_presumptions(&mut self, file: FileNo) {
        if let Some(f) = self.file_mut(file) {
            f.presumed.beginning += 1;
        }
        self.bar_overwrites(file);
    }

    /// Somebody overwrites some of a file, and has to say so, which takes him longer: he need not once all
    /// pages are known to be dirty or clean, which are returned. After some times none is presumed any more.
    pub(crate) fn disturb_presumptions(&mut self, file: FileNo) -> Range<u64> {
        if let Some(f) = self.file_mut(file) {
            f.presumed.disturbed += 1;
        }
        0..u64::MAX
    }

    /// One that began to is done.
    pub(crate) fn presumptions_begun(&mut self, file: FileNo) {
        if let Some(f) = self.file_mut(file) {
            f.presumed.beginning = f.presumed.beginning.saturating_sub(1);
        }
        self.allow_overwrites(file);
    }

    /// A page is about to count as dirty, and held this. True: that takes a page of memory more.
    pub(crate) fn presume(&mut self, page: Page, place: Place, digest: u64) -> bool {
        self.table.presume(page, digest);
        if let Some(f) = self.file_mut(place.segment.0) {
            f.presumed.pages += 1;
        }
        self.digest_blocks.insert(page.index() / crate::engine::table::DIGESTS_PER_PAGE)
    }

    /// What a page held that counts as dirty, though nobody may have stored to it.
    pub(crate) fn presumption(&self, page: Page, file: FileNo) -> Option<u64> {
        // What is never looked at takes no memory.
        self.file(file).filter(|f| f.presumed.pages > 0)?;
        self.table.presumption(page)
    }

    /// A page is known to be dirty, or is not any more.
    pub(crate) fn end_presumption(&mut self, page: Page, file: FileNo) {
        if self.presumption(page, file).is_none() {
            return;
        }
        self.table.end_presumption(page);
        if let Some(f) = self.file_mut(file) {
            f.presumed.pages -= 1;
        }
        self.allow_overwrites(file);
    }

    /// Whether there are such pages in a run.
    pub(crate) fn presumes(&self, run: Run) -> bool {
        let file = run.place.segment.0;
        self.presumes_any(file)
            && run.places().any(|place| {
                self.brain.page(place).is_some_and(|page| self.table.presumption(page).is_some())
            })
    }

    /// Whether there are such pages of a file.
    pub(crate) fn presumes_any(&self, file: FileNo) -> bool {
        self.file(file).is_some_and(|f| f.presumed.pages > 0)
    }
}
