//! Pages that clients store to by themselves: writes that are delayed.
//!
//! Where writes are delayed, a client may put what a program writes into a page's frame and be done,
//! as a store into a mapping does. The page has to be *open* for that: it is in memory, counts as
//! dirty, and has not begun to move or to be written back since it was opened. A client asks for that
//! by message, for pages that it writes to again and again, and finds what is open in a table of bits
//! that the manager keeps for each such file. The protocol is told at [`wire::Op::OpenPages`].
//!
//! A claim of a page closes it before it counts as a move ([`Core::claim_at_rest`]), so that whoever
//! stores finds it closed, or finds afterwards that something moved, and writes once more in the
//! usual way. What was stored to an open page before the claim was made is in what is written back.

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::port::{FileNo, Port};
use pagekeeper_frames::{Place, Run, Segment};
use pagekeeper_sys::Errno;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_wire as wire;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A table has room for no fewer pages (8 GiB), and for twice the file: address space costs nothing. Pages
/// that a file grows beyond that are not opened.
const PAGES_MIN: u64 = 1 << 21;
/// Most pages opened by one message.
const ASKED_MAX: u64 = 64;

/// Which pages of a file are open, a bit each.
#[derive(Debug)]
pub(crate) struct OpenPages {
    memfd: Memfd,
    map: SharedMap,
}

impl OpenPages {
    fn new(pages: u64) -> Result<OpenPages, Errno> {
        let bytes = (2 * pages).max(PAGES_MIN).div_ceil(64) * 8;
        let (memfd, map) = SharedMap::create("pagekeeper-open", bytes as usize)?;
        memfd.set_mode(0o400)?;
        Ok(OpenPages { memfd, map })
    }

    fn pages(&self) -> u64 {
        self.map.len_bytes() as u64 * 8
    }

    fn word(&self, index: u64) -> Option<(&AtomicU64, u64)> {
        let (word, bit) = wire::open_page_bit(index);
        (index < self.pages()).then(|| (&self.map.words(8 * word, 1)[0], bit))
    }

    fn open(&self, index: u64) -> bool {
        self.word(index).map(|(word, bit)| word.fetch_or(bit, SeqCst)).is_some()
    }

    fn close(&self, index: u64) {
        if let Some((word, bit)) = self.word(index) {
            word.fetch_and(!bit, SeqCst);
        }
    }
}

impl Core {
    /// Nobody stores to the page by itself any more, or finds out that it was too late. Comes before
    /// the page counts as [moving](Core::moves).
    pub(crate) fn close_page(&self, place: Place) {
        if let Some(open) = self.file(place.segment.0).and_then(|f| f.open.as_ref()) {
            open.close(place.index);
        }
    }

    /// Whether a page may be opened, or is.
    fn may_be_open(&self, place: Place) -> bool {
        let Some(page) = self.brain.page(place) else { return false };
        let word = self.word(page);
        word.idle()
            && !word.doomed()
            && !self.stays_dirty(place)
            && (word.dirty() || self.may_become_dirty(page, place))
    }
}

impl<P: Port> Engine<P> {
    /// The table of a file's open pages for a client, read-only, and for how many pages it has room.
    ///
    /// # Errors
    /// No memory or descriptor is free; [`Errno::NOENT`]: no such file.
    pub fn open_table(&self, file: FileNo) -> Result<(OwnedFd, u64), Errno> {
        let mut core = self.lock();
        let f = core.file_mut(file).ok_or(Errno::NOENT)?;
        if f.open.is_none() {
            f.open = Some(OpenPages::new(f.pages)?);
        }
        let open = f.open.as_ref().ok_or(Errno::NOENT)?;
        Ok((open.memfd.reopen_read_only()?, open.pages()))
    }

    /// Opens pages for clients that store to them by themselves, as far as they are at rest and nobody's
    /// to change otherwise: so many from the first one on. They are brought into memory if need be, since
    /// they are written to again and again, and count as dirty from then on.
    ///
    /// None without a [table](Self::open_table), where every reference is to be seen, and where
    /// storage has no room.
    pub fn open_pages(&self, file: FileNo, first: u64, pages: u64) -> u64 {
        let pages = pages.min(ASKED_MAX);
        let opened = self.open_present(file, first, pages);
        if opened == pages {
            return opened;
        }
        let (from, bytes) =
            ((first + opened) * self.page_bytes, (pages - opened) * self.page_bytes);
        match self.read(file, from, bytes, |_, _| Ok(())) {
            Ok(_) => self.open_present(file, first, pages),
            Err(_) => opened,
        }
    }

    /// The same, as far as pages are in memory.
    fn open_present(&self, file: FileNo, first: u64, pages: u64) -> u64 {
        let segment = Segment(file);
        let Ok(pages) = self.reserve(Place { segment, index: first }, pages) else {
            return 0;
        };
        if self.sees_all() {
            return 0;
        }
        let mut core = self.lock();
        let end = core.file(file).map_or(0, |f| f.pages);
        let mut opened = 0;
        let mut clean: Vec<Run> = Vec::new();
        for index in (first..end).take(pages as usize) {
            let place = Place { segment, index };
            if core.overwrites.is_none() || !core.may_be_open(place) {
                break;
            }
            if core.brain.page(place).is_some_and(|page| !core.word(page).dirty()) {
                Run::add(&mut clean, place);
            }
            // What is decided for one run may claim pages of the next.
            if clean.len() > 1 {
                clean.truncate(1);
                break;
            }
            // Before anything is decided, which closes what it claims.
            let open = core.file(file).and_then(|f| f.open.as_ref());
            if !open.is_some_and(|open| open.open(index)) {
                break;
            }
            opened += 1;
        }
        let first_writes = clean.first().map_or(0, |run| u64::from(run.pages));
        self.count(&mut core, file, |c| c.write_faults += first_writes);
        let job = clean.pop().map(|run| self.make_dirty(&mut core, run)).unwrap_or_default();
        drop(core);
        self.run_later(job, None);
        opened
    }
}
