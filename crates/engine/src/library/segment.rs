//! A segment: pages with a store behind them, read and written as a file is.

use crate::engine::core::Core;
use crate::engine::flush::Leaving;
use crate::engine::patience::Patience;
use crate::engine::word::{State, Use};
use crate::library::access::After;
use crate::library::cache::{Cache, Claim, Owner, Shared};
use crate::library::caught::{Asking, is_asking};
use crate::library::frames::Frame;
use crate::library::port::Backing;
use crate::library::store::{io_error, port_error};
use crate::port::{FileNo, PAGE_BYTES, PortError};
use pagekeeper_frames::{Place, Segment as Number};
use pagekeeper_sys::Errno;
use pagekeeper_sys::cancel::Uncancelled;
use pagekeeper_sys::file::FileId;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

mod length;
mod read;
mod write;

/// Most bytes of a region that are copied aside at a time.
const BOUNCE_BYTES: usize = 256 << 10;

/// What handles of a segment share.
pub(crate) struct Inner {
    owner: Arc<Owner>,
    no: FileNo,
    pub(crate) backing: Arc<Backing>,
    /// Held while the length changes.
    resizing: Mutex<()>,
    /// How often it did.
    lengths: AtomicU64,
    /// No greater length is told yet, because what lies behind that is still being written. Changed while
    /// `resizing` is held.
    told_max: AtomicU64,
    writable: bool,
    /// Handles and regions.
    owners: Arc<AtomicUsize>,
    /// A [`WriteBack`].
    write_back: AtomicU8,
    id: Option<FileId>,
    claim: Option<Claim>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment").field("no", &self.no).field("size", &self.len()).finish()
    }
}

/// A handle of a segment: a range of pages with a store behind it, in a cache.
///
/// Reads and writes mean what `pread(2)` and `pwrite(2)` mean: they are short at the end of the
/// segment, writing behind the end makes it longer, what was never written reads as zeros. A write
/// is seen by every later read and mapping of the segment in this process, and is in the store
/// after [`flush`](Self::flush). A read sees each page as it was before or after a write, never
/// half.
///
/// Handles are cheap. Each is told once of every error in writing back ([`flush`](Self::flush)).
/// With the last handle and region the segment is written back and closed; errors then have nobody to
/// go to, so flush first.
#[derive(Debug)]
pub struct Segment {
    pub(crate) inner: Arc<Inner>,
    writable: bool,
    /// Which errors this handle has heard of: [`Engine::errors_so_far`](crate::engine::Engine).
    heard: Mutex<u64>,
    /// Behind `inner`, which goes first.
    _end: End,
}

/// The end of a handle or a region, which drops what it has of the segment before.
#[derive(Debug)]
pub(crate) struct End {
    shared: Arc<Shared>,
    no: FileNo,
    owners: Arc<AtomicUsize>,
}

impl End {
    pub(crate) fn of(inner: &Inner) -> End {
        let (shared, owners) = (inner.owner.shared.clone(), inner.owners.clone());
        owners.fetch_add(1, Ordering::SeqCst);
        End { shared, no: inner.no, owners }
    }
}

impl Drop for End {
    /// A segment is closed when this returns, if no handle or region is left: somebody may be visiting
    /// it. (Nobody is waited for while one is left: a visitor may wait for what its owner has pinned.)
    fn drop(&mut self) {
        if self.owners.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.shared.await_visits(self.no);
        }
    }
}

impl Clone for Segment {
    fn clone(&self) -> Segment {
        // In a forked child a thread that is not there may have it locked, for good.
        let heard = if self.is_here() { *self.heard() } else { 0 };
        Segment::with(self.inner.clone(), self.writable, Mutex::new(heard))
    }
}

/// How pages will be used: `posix_fadvise(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Soon: they are fetched.
    WillNeed,
    /// Not soon: clean ones leave memory.
    DontNeed,
    /// What its whole pages hold can be made anew: they need not be written back. For a store that
    /// can make them ([`Discardable`](crate::library::Discardable)).
    Discardable,
    /// Takes that back: what its pages hold from now on is kept.
    Needed,
}

/// When dirty pages of a segment are written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteBack {
    /// When room is needed, in the background, and when the program asks for it.
    #[default]
    Background,
    /// Only when the program asks for it: see [`Segment::set_write_back`].
    OnCommit,
    /// As in the background, and a page at once when a write reaches its end. HP-UX did so, which took
    /// such a page for done with; *Mapped-File I/O* (appendix I) found that it writes what is deleted
    /// or written again soon. For comparisons, and for what is to be on storage early.
    WhenFull,
}

impl WriteBack {
    const ALL: [WriteBack; 3] = [WriteBack::Background, WriteBack::OnCommit, WriteBack::WhenFull];
}

/// What is known of a page: V++'s `GetPageAttributes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageAttributes {
    /// In memory, its content valid.
    pub resident: bool,
    /// Its content is newer than the store's.
    pub dirty: bool,
    /// On its way in or out, or being written back.
    pub busy: bool,
    /// Pinned by the program: it cannot leave.
    pub pinned: bool,
    /// Known to have been used since it was brought in (not only fetched ahead).
    pub referenced: bool,
}

impl Inner {
    pub(crate) fn new(
        owner: Arc<Owner>,
        no: FileNo,
        backing: Arc<Backing>,
        writable: bool,
        id: Option<FileId>,
        claim: Option<Claim>,
    ) -> Inner {
        Inner {
            owner,
            no,
            backing,
            resizing: Mutex::new(()),
            lengths: AtomicU64::new(0),
            told_max: AtomicU64::new(u64::MAX),
            writable,
            owners: Arc::default(),
            write_back: AtomicU8::new(WriteBack::Background as u8),
            id,
            claim,
        }
    }

    fn write_back_mode(&self) -> WriteBack {
        WriteBack::ALL[usize::from(self.write_back.load(Ordering::Acquire))]
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    pub(crate) fn number(&self) -> FileNo {
        self.no
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    #[inline(always)]
    fn size(&self) -> &AtomicU64 {
        &self.backing.size
    }

    pub(crate) fn len(&self) -> u64 {
        self.size().load(Ordering::SeqCst)
    }

    #[inline]
    fn page_bytes(&self) -> u64 {
        self.backing.frames.page_bytes()
    }

    /// The pages that a byte range touches; none, if it is empty.
    pub(crate) fn pages_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let first = bytes.start / self.page_bytes();
        if bytes.is_empty() {
            return first..first;
        }
        first..bytes.end.div_ceil(self.page_bytes()).max(first)
    }

    /// What statistics call it.
    pub(crate) fn name(&self) -> String {
        self.shared().engine.file_name(self.no)
    }

    /// Uses a page, so that it is in memory; `want` pages from there on will be used. False: it
    /// cannot be had. Nobody who has it to himself is waited for: then it is in memory.
    pub(crate) fn bring_in(&self, index: u64, want: u64) -> bool {
        let used = self.with_page_if(index, Use::Read, want, Patience::Motion, |frame| drop(frame));
        matches!(used, Ok(Some(())) | Err(PortError::Again))
    }

    /// How many bytes from an offset on are copied aside at a time: no page in two.
    fn bounce_bytes(&self, offset: u64, len: usize) -> usize {
        let page = self.page_bytes();
        let end = (offset + page.max(BOUNCE_BYTES as u64)) / page * page;
        len.min((end - offset) as usize)
    }

    fn place(&self, index: u64) -> Place {
        Place { segment: Number(self.no), index }
    }

    /// Whether it can be used here and now.
    pub(crate) fn check_use(&self) -> io::Result<()> {
        // Its frames are the parent's, and so are the threads that would serve it.
        if !self.backing.frames.is_here() {
            return Err(Errno::OWNERDEAD.into());
        }
        if is_asking(self.address()) {
            return Err(Errno::DEADLK.into());
        }
        self.shared().check_may_wait()
    }

    /// What tells this segment from others, as long as it is there.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Tells the store how a range of whole pages will be used. It may use other segments, but not this one,
    /// whose length may be locked.
    fn advise_store(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        let _asking = Asking::begin(self.address());
        self.backing.store.advise(offset, len, advice)
    }

    /// Begins a use of a page, bringing it in if need be; then runs `f`, and then what the use led
    /// to. `None`: the page lies behind the end.
    fn with_page<T>(
        &self,
        index: u64,
        how: Use,
        want: u64,
        f: impl FnOnce(Frame<'_>) -> T,
    ) -> Result<Option<T>, PortError> {
        self.with_page_if(index, how, want, Patience::Holders, f)
    }

    fn with_page_if<T>(
        &self,
        index: u64,
        how: Use,
        want: u64,
        patience: Patience,
        f: impl FnOnce(Frame<'_>) -> T,
    ) -> Result<Option<T>, PortError> {
        let engine = &self.shared().engine;
        let place = self.place(index);
        if let Some(frame) = self.backing.frames.try_use(engine, place, how) {
            let result = f(frame);
            engine.touched(place);
            return Ok(Some(result));
        }
        self.with_page_slowly(place, how, want, patience, f)
    }

    #[cold]
    fn with_page_slowly<T>(
        &self,
        place: Place,
        how: Use,
        want: u64,
        patience: Patience,
        f: impl FnOnce(Frame<'_>) -> T,
    ) -> Result<Option<T>, PortError> {
        self.check_use().map_err(|e| port_error(&e))?;
        self.begin_use(place, how, want, patience, f)
    }

    /// Begins to use a page, whatever that takes, and does something with its frame before what
    /// follows from that. `None`: it lies behind the end.
    fn begin_use<'f, T>(
        &'f self,
        place: Place,
        how: Use,
        want: u64,
        patience: Patience,
        f: impl FnOnce(Frame<'f>) -> T,
    ) -> Result<Option<T>, PortError> {
        let engine = &self.shared().engine;
        let _later = Uncancelled::new();
        let mut after = After::nothing();
        let used = engine.use_page(place, how, want, patience, &mut after);
        let begun = |page| self.backing.frames.begun(engine, place, page, how);
        let result = used.and_then(|page| page.map(begun).transpose()).map(|frame| frame.map(f));
        engine.after(after);
        result
    }

    /// Begins to hold a page. `None`: it lies behind the end.
    pub(crate) fn hold(&self, index: u64, how: Use, want: u64) -> io::Result<Option<Frame<'_>>> {
        let frame = self.hold_any(index, how, want)?;
        // Who makes the segment shorter looks for holds after it says so.
        Ok(frame.filter(|_| index * self.page_bytes() < self.len()))
    }

    fn hold_any(&self, index: u64, how: Use, want: u64) -> io::Result<Option<Frame<'_>>> {
        let engine = &self.shared().engine;
        let place = self.place(index);
        if let Some(frame) = self.backing.frames.try_use(engine, place, how) {
            engine.touched(place);
            return Ok(Some(frame));
        }
        self.check_use()?;
        self.begin_use(place, how, want, Patience::Holders, |frame| frame).map_err(io_error)
    }

    /// How many bytes of a page that the caller holds lie before the end: the others are nobody's. It
    /// is not cut any more. `None`: somebody changes the length this moment.
    pub(crate) fn held_bytes(&self, index: u64) -> Option<usize> {
        let page = self.page_bytes();
        let before_end = || self.len().saturating_sub(index * page).min(page);
        if before_end() < page {
            let _resizing = self.resizing.try_lock().ok()?;
            return Some(before_end() as usize);
        }
        Some(page as usize)
    }

    /// Waits until nobody changes the length, with nothing in hand.
    pub(crate) fn await_length(&self) {
        drop(self.resizing());
    }

    /// Waits until a page can be written to, as far as that can be said, with nothing in hand.
    pub(crate) fn await_holders(&self, index: u64) {
        self.shared().engine.await_holders(self.place(index), Use::Write);
    }

    /// Whether so many pages may be pinned at once.
    pub(crate) fn check_room(&self, pages: u64) -> io::Result<()> {
        let frames = u64::from(self.shared().engine.lock().brain.frames());
        if pages > (frames / 2).max(1) { Err(Errno::NOMEM.into()) } else { Ok(()) }
    }

    /// Writes dirty pages back. An error is noted for those who ask for it.
    fn write_back(&self, pages: Range<u64>) {
        let _ = self.shared().engine.write_out(self.no, pages);
    }

    /// Makes durable what was written back; the same of errors.
    fn sync(&self) {
        if let Err(error) = self.backing.store.sync() {
            self.shared().engine.note_error(self.no, port_error(&error));
        }
    }

    /// What these pages held is not wanted any more, nor in memory.
    pub(crate) fn dropped(&self, pages: Range<u64>) {
        if !pages.is_empty() {
            let [offset, end] = [pages.start, pages.end].map(|page| page * self.page_bytes());
            self.backing.store.dropped(offset, end - offset);
        }
    }

    /// What a new handle has heard of errors: as a new descriptor, of those that somebody heard of.
    pub(crate) fn errors_so_far(&self) -> u64 {
        self.shared().engine.errors_so_far(self.no)
    }

    fn tell_error(&self, heard: &mut u64) -> io::Result<()> {
        self.shared().engine.tell_error(self.no, heard).map_err(io_error)
    }

    /// Writes all back and makes it durable, for somebody who has heard of so many errors.
    pub(crate) fn flush(&self, heard: &mut u64) -> io::Result<()> {
        self.write_back(0..u64::MAX);
        self.sync();
        self.tell_error(heard)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.backing.frames.is_here() {
            return;
        }
        let engine = &self.shared().engine;
        let mut is_lost = self.write_back_mode() == WriteBack::OnCommit;
        if !is_lost {
            is_lost = engine.flush(self.no, 0..u64::MAX).is_err();
            // What it keeps for later: there is no later. A file has it.
            if self.backing.store.as_file().is_none() {
                let _ = self.backing.store.sync();
            }
        }
        // What could not be written has nobody left who could ask for it.
        engine.forget(self.no);
        if is_lost {
            self.dropped(self.pages_of(&(0..self.len())));
        }
        drop(self.claim.take());
        self.owner.closed(self.no, self.id);
    }
}

impl Segment {
    pub(crate) fn of(inner: Arc<Inner>, writable: bool) -> Segment {
        let heard = Mutex::new(inner.errors_so_far());
        Segment::with(inner, writable, heard)
    }

    fn with(inner: Arc<Inner>, writable: bool, heard: Mutex<u64>) -> Segment {
        let _end = End::of(&inner);
        Segment { inner, writable, heard, _end }
    }

    fn heard(&self) -> MutexGuard<'_, u64> {
        self.heard.lock().expect("heard")
    }

    /// Whether this is the process that opened it, and no forked child.
    pub fn is_here(&self) -> bool {
        self.inner.backing.frames.is_here()
    }

    /// The cache that it is in.
    pub fn cache(&self) -> Cache {
        Cache(self.inner.owner.clone())
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in a page: [`Builder::page_bytes`](crate::library::Builder::page_bytes).
    pub fn page_bytes(&self) -> u64 {
        self.inner.page_bytes()
    }

    /// Its pages.
    pub(crate) fn pages(&self) -> u64 {
        self.len().div_ceil(self.page_bytes())
    }

    /// Whether this handle may write.
    pub fn writable(&self) -> bool {
        self.writable
    }

    fn check_writable(&self) -> io::Result<()> {
        self.inner.check_use()?;
        if self.writable { Ok(()) } else { Err(Errno::BADF.into()) }
    }

    /// Writes dirty pages back and makes them durable: `fdatasync(2)`. Waits for pages that are
    /// pinned for writing.
    ///
    /// # Errors
    /// The store's, now or in any write-back since this handle was last told; once per handle, as
    /// the kernel does. Pages that could not be written stay in memory, dirty. What was written and could not be
    /// made durable counts as written, as after `fsync(2)`: the next flush does not write it once more.
    pub fn flush(&self) -> io::Result<()> {
        self.inner.check_use()?;
        self.inner.write_back(0..u64::MAX);
        self.inner.sync();
        self.inner.tell_error(&mut self.heard())
    }

    /// Writes dirty pages of a byte range back, without making them durable. (What has left memory already,
    /// and waits in a store that keeps it for later, as [`Compressed`](crate::library::Compressed) does, is
    /// written by [`flush`](Self::flush).)
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.check_use()?;
        self.inner.write_back(self.inner.pages_of(&range));
        self.inner.tell_error(&mut self.heard())
    }

    /// Says when dirty pages are written back. With [`WriteBack::OnCommit`], all that is written
    /// stays in memory until [`flush`](Self::flush) (or [`write_back`](Self::write_back),
    /// [`Cache::flush`]) writes it: a *commit*; [`discard`](Self::discard) of the segment takes
    /// back what was written since the last one, and so does closing it. Over a
    /// [`Logged`](crate::library::Logged) store a commit is all or nothing in a crash as well. (A
    /// change of the length reaches the store at once.)
    ///
    /// Pages that wait are frames that the policy cannot use. They are at most half of the budget's,
    /// in all segments together: a write that needs one more fails with `ENOMEM`, until something is
    /// committed or discarded; a store into a mapped region is SIGBUS then.
    ///
    /// ```
    /// use pagekeeper::library::{Cache, WriteBack};
    /// # fn main() -> std::io::Result<()> {
    /// let cache = Cache::new(1 << 20)?;
    /// let table = cache.scratch(1 << 20)?;
    /// table.set_write_back(WriteBack::OnCommit)?;
    /// table.write_all_at(b"kept", 0)?;
    /// table.flush()?;
    /// table.write_all_at(b"lost", 0)?;
    /// table.discard(0..table.len())?;
    /// let mut word = [0; 4];
    /// table.read_exact_at(&mut word, 0)?;
    /// assert_eq!(&word, b"kept");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `EBADF`: the handle may not write; `EOWNERDEAD`: in a forked child.
    pub fn set_write_back(&self, when: WriteBack) -> io::Result<()> {
        self.check_writable()?;
        let on_commit = when == WriteBack::OnCommit;
        self.inner.write_back.store(when as u8, Ordering::Release);
        self.inner.shared().engine.write_on_request(self.inner.no, on_commit);
        Ok(())
    }

    /// Follows changes of the store by others: its length, and clean pages are dropped if its
    /// [`version`](crate::library::Store::version) is not the one that our own writes led to. True
    /// if somebody changed it. Also done when a file is opened again, when something is written
    /// back, and every write-back period.
    ///
    /// Where somebody made it shorter, pages that are pinned stay as they are until they are let go, and
    /// so long the segment reaches to the last of them.
    ///
    /// # Errors
    /// `EOWNERDEAD`: in a forked child.
    pub fn refresh(&self) -> io::Result<bool> {
        self.inner.check_use()?;
        Ok(self.inner.refresh())
    }

    /// Fetches what is absent of a byte range, as far as a quarter of the frames; returns how many
    /// bytes from the start of the range are resident or on their way. They are fetched by the cache's
    /// threads, and not waited for; without any ([`Builder::workers`](crate::library::Builder::workers)) by
    /// this one, before it returns.
    ///
    /// # Errors
    /// `EOWNERDEAD`: in a forked child. (What cannot be fetched is found when it is read.)
    pub fn prefetch(&self, range: Range<u64>) -> io::Result<u64> {
        self.inner.check_use()?;
        let range = range.start..range.end.min(self.len());
        let pages = self.inner.pages_of(&range);
        let reached = self.inner.shared().engine.prefetch_all(self.inner.no, pages);
        Ok((reached * self.page_bytes()).min(range.end).saturating_sub(range.start))
    }

    /// Says how a byte range will be used.
    ///
    /// # Errors
    /// `EOWNERDEAD`: in a forked child; the store's: `EOPNOTSUPP` if it can make nothing anew, `ENOSPC` if
    /// there is no room for what is in memory of pages that are needed again.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        match advice {
            Advice::Discardable | Advice::Needed => {
                self.check_writable()?;
                // What is being appended was not there, and is not meant.
                let resizing = (advice == Advice::Discardable).then(|| self.inner.resizing());
                let pages = self.whole_pages(&range);
                if pages.is_empty() {
                    return Ok(());
                }
                let [offset, end] = [pages.start, pages.end].map(|page| page * self.page_bytes());
                self.inner.advise_store(offset, end - offset, advice)?;
                drop(resizing);
                if advice == Advice::Needed {
                    self.inner.make_dirty(pages).map_err(io_error)?;
                    if self.inner.backing.store.takes_victims() {
                        // What left memory clean meanwhile may be there since it was told.
                        self.inner.advise_store(offset, end - offset, advice)?;
                    }
                }
                Ok(())
            }
            Advice::WillNeed => self.prefetch(range).map(drop),
            Advice::DontNeed => {
                self.inner.check_use()?;
                let pages = self.inner.pages_of(&range);
                self.inner.shared().engine.drop_unheld(self.inner.no, pages, Leaving::Clean);
                Ok(())
            }
        }
    }

    /// Takes the whole pages of a byte range out of memory *without writing them back*: what was
    /// not written back is lost, and the store's content shows again. For data that can be made
    /// anew. Pages that are pinned stay.
    ///
    /// # Errors
    /// `EBADF`: the handle may not write; `EOWNERDEAD`: in a forked child.
    pub fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.check_writable()?;
        let pages = self.whole_pages(&range);
        let engine = &self.inner.shared().engine;
        engine.drop_unheld(self.inner.no, pages.clone(), Leaving::Unheld);
        // What is pinned stays.
        let stay = engine.staying_in(self.inner.no, pages.clone());
        let mut first = pages.start;
        for end in stay.into_iter().chain([pages.end]) {
            self.inner.dropped(first..end);
            first = end + 1;
        }
        // What was read meanwhile may be what the store has taken back since.
        engine.drop_unheld(self.inner.no, pages, Leaving::Clean);
        Ok(())
    }

    /// The pages that lie in a byte range, the last, partial one of the segment too.
    fn whole_pages(&self, range: &Range<u64>) -> Range<u64> {
        let first = range.start.div_ceil(self.page_bytes());
        let end = match range.end >= self.len() {
            true => self.pages(),
            false => range.end / self.page_bytes(),
        };
        first..end.max(first)
    }

    /// What is known of the pages of a byte range, as far as the segment reaches. Takes five bytes a page,
    /// which are the caller's and not in the budget: 1.25 GiB for 1 TiB of pages of 4 KiB, so who wants little
    /// of much asks for parts. Not all pages are looked at in the same moment.
    ///
    /// # Errors
    /// `EOWNERDEAD`: in a forked child.
    pub fn attributes(&self, range: Range<u64>) -> io::Result<Vec<PageAttributes>> {
        self.inner.check_use()?;
        let pages = self.inner.pages_of(&(range.start..range.end.min(self.len())));
        Ok(self.inner.shared().engine.attributes(self.inner.no, pages))
    }
}

/// The pages of the machine's that a byte range touches.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let first = bytes.start / PAGE_BYTES;
    first..bytes.end.div_ceil(PAGE_BYTES).max(first)
}

pub(crate) fn attributes_of(core: &Core, place: Place) -> PageAttributes {
    let (Some(page), state) = core.state(place) else { return PageAttributes::default() };
    let word = core.word(page);
    let resident = matches!(state, State::Resident | State::Cleaning);
    PageAttributes {
        resident,
        dirty: word.dirty(),
        busy: !matches!(state, State::Resident | State::Absent),
        pinned: word.holds() > 0,
        referenced: resident && !core.brain.is_unused(place),
    }
}
