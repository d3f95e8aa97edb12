//! A segment's length: `ftruncate(2)`, and what others make of it.

use super::{Inner, Segment};
use crate::engine::transfer::Change;
use crate::library::frames::SEGMENT_BYTES_MAX;
use crate::library::port::Backing;
use crate::library::segment::Advice;
use crate::library::store::{advised, io_error};
use crate::port::{PAGE_BYTES, PortError};
use pagekeeper_frames::Place;
use pagekeeper_sys::Errno;
use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a look waits for a moment in which the cache does not write to a store.
const QUIET_WAIT: Duration = Duration::from_millis(50);
const QUIET_PAUSE: Duration = Duration::from_micros(200);

impl Segment {
    /// Sets the length: `ftruncate(2)`. What is cut off is gone, and not written back; what is
    /// gained reads as zeros. Waits for nobody's pins: pages that are pinned are not cut, and a segment
    /// grows beside them.
    ///
    /// # Errors
    /// `EBADF`: the handle may not write; `EBUSY`: a page that would go, or be cut in two, is pinned,
    /// whichever of its bytes; the store's, `ENOSPC` also for want of room for the rest of a large page that
    /// waits to be written. The segment may be longer all the same, where its store grew and then could not say
    /// how long it is.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let _resizing = self.inner.resizing();
        self.inner.tell_all();
        self.inner.follow();
        if len < self.inner.len() { self.inner.shrink(len) } else { self.inner.grow(len) }
    }
}

impl Inner {
    pub(super) fn resizing(&self) -> MutexGuard<'_, ()> {
        self.resizing.lock().expect("resizing")
    }

    /// How often the length changed so far. The caller holds `resizing`.
    pub(super) fn lengths(&self) -> u64 {
        self.lengths.load(Ordering::Relaxed)
    }

    /// Whatever length the store has is told from now on. The caller holds `resizing`.
    pub(super) fn tell_all(&self) {
        if self.told_max.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            self.follow_length();
        }
    }

    /// Makes the segment longer for a write; nobody else hears of it before [`tell_all`](Self::tell_all). The
    /// caller holds `resizing`.
    pub(super) fn grow_untold(&self, to: u64) -> io::Result<()> {
        self.grow_telling(to, false)
    }

    /// Makes the segment longer. The caller holds `resizing`.
    pub(super) fn grow(&self, to: u64) -> io::Result<()> {
        self.grow_telling(to, true)
    }

    fn grow_telling(&self, to: u64, is_told: bool) -> io::Result<()> {
        if to <= self.len() {
            return Ok(());
        }
        if to > SEGMENT_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        // Somebody else may have made it longer, and written there.
        self.follow();
        let from = self.len();
        if to <= from {
            return Ok(());
        }
        self.need_end(from)?;
        if !is_told {
            self.told_max.store(from, Ordering::Relaxed);
        }
        let engine = &self.shared().engine;
        // What a mapping stored behind the old end is no content of the new bytes: it is gone before it
        // could be written back to where they are.
        engine.zero_behind(self.no, from);
        self.lengths.fetch_add(1, Ordering::Relaxed);
        let page = self.page_bytes();
        let last = self.place(from / page);
        let large = page > PAGE_BYTES && !from.is_multiple_of(page);
        let dirty = if large { engine.dirty_at(last) } else { None };
        // Who writes pages back meanwhile finds a file that is longer by our own doing.
        engine.begin_own_write(self.no);
        let result = self.grow_store(from, to, dirty.map(|grown| (last, grown)));
        engine.end_own_write(self.no);
        self.follow_length();
        result
    }

    /// Of the page that the segment ended in the store is to drop nothing any more, since it becomes, or became,
    /// longer. (The store itself knows pages of 4 KiB, of which a large one is several.)
    fn need_end(&self, end: u64) -> io::Result<()> {
        let page = self.page_bytes();
        if page == PAGE_BYTES || end.is_multiple_of(page) {
            return Ok(());
        }
        advised(self.advise_store(end / page * page, page, Advice::Needed)).map(drop)
    }

    /// Makes the store longer, and what is known of it; `dirty`: its last page, which is large and waits to
    /// be written, and how often it had become longer.
    fn grow_store(&self, from: u64, to: u64, dirty: Option<(Place, u64)>) -> io::Result<()> {
        let engine = &self.shared().engine;
        let page = self.page_bytes();
        let store = &self.backing.store;
        store.grow(to)?;
        let mut now = store.len()?;
        let is_ours = now == to;
        // It is written as far as the segment reaches, and had room as far as it did.
        let result = dirty.map_or(Ok(()), |(last, _)| store.reserve(last.index * page, page));
        if result.is_err() && is_ours && store.set_len(from).is_ok() {
            now = from;
        }
        self.backing.while_made(now, || engine.refresh_size(self.no, is_ours));
        if let Some((last, grown)) = dirty.filter(|_| is_ours && result.is_ok()) {
            engine.has_room(last, grown + 1);
        }
        result
    }

    /// Makes the segment shorter. The caller holds `resizing`.
    pub(super) fn shrink(&self, to: u64) -> io::Result<()> {
        let engine = &self.shared().engine;
        let before = self.len();
        // More, behind a write that fell short: what waits to be written there must go on to reach the store.
        let stored_before = self.backing.stored_size.load(Ordering::SeqCst);
        // Of a page that is held nobody knows which bytes: it is not cut in two either.
        let held = || engine.last_held(self.no, to / self.page_bytes()..u64::MAX).is_some();
        if held() {
            return Err(Errno::BUSY.into());
        }
        self.lengths.fetch_add(1, Ordering::Relaxed);
        // From now on nobody uses what will be gone; who does already, is waited for.
        self.size().store(to, Ordering::SeqCst);
        if held() {
            // Somebody was faster.
            self.size().store(before, Ordering::SeqCst);
            return Err(Errno::BUSY.into());
        }
        let result = engine
            .change_begin(self.no, to, u64::MAX, Change::Truncate)
            .map_err(io_error)
            .and_then(|ticket| {
                // Nothing of it is being written, nor will be before the change is over.
                self.backing.stored_size.store(to, Ordering::SeqCst);
                let result = self.backing.store.set_len(to);
                if result.is_err() {
                    self.backing.stored_size.store(stored_before, Ordering::SeqCst);
                }
                type Bytes = fn(u64, &mut [u8]) -> Result<(), PortError>;
                let end = || engine.change_end(self.no, ticket, to, u64::MAX, None::<Bytes>);
                // What is written behind the end that was is lost while that counts as the end.
                if result.is_ok() {
                    self.backing.while_made(to, end)
                } else {
                    end()
                }
                result
            });
        if result.is_err() {
            self.size().store(before, Ordering::SeqCst);
        }
        self.follow_length();
        result
    }

    pub(super) fn follow_length(&self) {
        if let Some(version) = self.shared().engine.file_version(self.no) {
            self.set_size(version.size_bytes);
        }
    }

    /// The store is so long, as far as is known. The caller holds `resizing`.
    fn set_size(&self, to: u64) {
        let Backing { size, stored_size, .. } = &*self.backing;
        if to > self.len() {
            stored_size.store(to, Ordering::SeqCst);
            size.store(to.min(self.told_max.load(Ordering::Relaxed)), Ordering::SeqCst);
        } else {
            size.store(to, Ordering::SeqCst);
            stored_size.store(to, Ordering::SeqCst);
        }
    }

    /// Somebody else may have made the store shorter: the engine may know from now on, as far as
    /// nobody holds what is gone. The caller holds `resizing`.
    pub(super) fn allow_shorter(&self) {
        let before = self.len();
        let Some(now) = self.backing.store.len().ok().filter(|now| *now < before) else { return };
        // From now on nobody begins to hold what is gone.
        self.set_size(now);
        let page = self.page_bytes();
        if let Some(last) = self.shared().engine.last_held(self.no, now / page..u64::MAX) {
            // Another time; that page, and what lies before it, stays as it is.
            self.set_size(((last + 1) * page).min(before));
        }
    }

    /// Drops clean pages if somebody else changed the store, and follows its length.
    pub(crate) fn look_for_changes(&self) {
        let _resizing = self.resizing();
        self.follow_by(|| self.shared().engine.look_for_changes(self.no));
    }

    pub(super) fn refresh(&self) -> bool {
        let _resizing = self.resizing();
        // While the cache writes itself, its times do not tell whether somebody else did. Who asks is told
        // in a moment in which it does not; if none comes, they count as somebody else's.
        let engine = &self.shared().engine;
        let given_up = Instant::now() + QUIET_WAIT;
        loop {
            let since = engine.own_writes(self.no);
            let foreign = self.follow();
            if foreign || engine.own_writes(self.no).was_none_since(since) {
                return foreign;
            }
            if Instant::now() >= given_up {
                return self.follow_by(|| engine.refresh_size(self.no, false));
            }
            std::thread::sleep(QUIET_PAUSE);
        }
    }

    /// Follows what somebody else made of the store's length, and what they wrote as far as it is known to
    /// be theirs. The caller holds `resizing`.
    pub(super) fn follow(&self) -> bool {
        self.follow_by(|| self.shared().engine.refresh_unclear(self.no))
    }

    fn follow_by<T>(&self, look: impl FnOnce() -> T) -> T {
        self.allow_shorter();
        let before = self.len();
        let found = look();
        self.shared().engine.reserve_grown(self.no);
        self.follow_length();
        if self.len() > before {
            // Without room it is dropped and made anew, as long as nobody says that it is needed.
            let _ = self.need_end(before);
        }
        found
    }
}
