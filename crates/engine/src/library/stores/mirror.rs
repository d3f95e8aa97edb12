//! Mirrored write-back: two stores with the same content.

use crate::library::caught::Caught;
use crate::library::process::Maker;
use crate::library::segment::{Advice, pages_of};
use crate::library::store::{Store, advised};
use crate::library::stores::load_known;
use crate::port::PAGE_BYTES;
use pagekeeper_sys::Errno;
use rangemap::RangeSet;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, RwLock};

/// Bytes that a re-synchronisation copies at a time.
const COPY_BYTES: usize = 1 << 20;

/// Which store of a [`Mirrored`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The one given first, which is read as long as it is whole.
    First,
    /// The other one.
    Second,
}

const SIDES: [Side; 2] = [Side::First, Side::Second];

impl Side {
    /// The other side.
    pub fn other(self) -> Side {
        match self {
            Side::First => Side::Second,
            Side::Second => Side::First,
        }
    }
}

/// What is known of one side.
#[derive(Default, Debug)]
struct Health {
    /// It lacks something that was written: it is neither read nor written until it is
    /// [re-synchronised](Mirrored::resync).
    stale: bool,
    /// Errors that it met and nobody was told of yet, the latest.
    error: Option<io::Error>,
}

/// Two stores with the same content: everything is written to both, and read from either.
///
/// If one fails, the other serves. An error in reading leaves the failing side in use; an error in
/// writing makes it *stale*: it is left alone until [`resync`](Self::resync). Either is told by
/// [`take_error`](Self::take_error); the segment meets an error only when both sides fail.
///
/// Where both fail in writing, neither is behind the other, and what they have may differ until it is
/// written after all. If that is not wanted any more (the segment was
/// [discarded](crate::library::Segment::discard) or closed), one side is made like the other before
/// anybody reads it. (If the mirror is gone before, the sides differ, of which both had an error:
/// re-synchronise the second then.)
///
/// A side may be any store: one that [takes victims](Store::takes_victims) gets them (pages are read from
/// the first side as long as it is whole: a [`Compressed`](crate::library::Compressed) second one saves
/// no reads), and one that can make pages anew is told which. Where only one can, it alone drops them. A
/// stale side hears of nothing; once it is re-synchronised it keeps all pages, until the program says
/// again which it need not.
///
/// A mirror does not remember which side was stale: whoever starts anew has to say so
/// ([`with_stale`](Self::with_stale)), or reads old content for new. So ask [`is_stale`](Self::is_stale) of
/// both after each flush, and write the answer down elsewhere, durably, before what was flushed counts as kept.
///
/// After a crash the sides may differ in what was written and not flushed, and in length:
/// [`with_stale`](Self::with_stale) of the second, unless the first is known to be stale, and
/// [`resync`](Self::resync) that side.
///
/// ```
/// use pagekeeper::library::{Cache, FileStore, Mirrored, Side};
/// use std::sync::Arc;
/// # fn main() -> std::io::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// let file = |name: &str| -> std::io::Result<FileStore> {
///     let path = directory.path().join(name);
///     let file = std::fs::File::options().read(true).write(true).create(true).open(path)?;
///     file.set_len(1 << 20)?;
///     FileStore::new(&file, true)
/// };
/// let mirror = Arc::new(Mirrored::new(file("a")?, file("b")?)?);
/// let cache = Cache::new(256 << 10)?;
/// let segment = cache.open_store(mirror.clone(), "mirrored")?;
/// segment.write_all_at(b"twice", 0)?;
/// segment.flush()?;
/// assert!(std::fs::read(directory.path().join("b"))?.starts_with(b"twice"));
/// assert!(!mirror.is_stale(Side::First) && !mirror.is_stale(Side::Second));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Mirrored<A, B> {
    first: Caught<A>,
    second: Caught<B>,
    health: Mutex<[Health; 2]>,
    /// Pages that neither side has as they were to be written, and that may differ.
    differing: Mutex<RangeSet<u64>>,
    /// Held for writing while a side is re-synchronised, or advice is given.
    settled: RwLock<()>,
    maker: Maker,
}

impl<A: Store, B: Store> Mirrored<A, B> {
    /// Mirrors two stores that hold the same.
    ///
    /// # Errors
    /// `EINVAL`: they have different lengths; the stores' own.
    pub fn new(first: A, second: B) -> io::Result<Mirrored<A, B>> {
        let (first, second) = (Caught::new(first), Caught::new(second));
        if first.len()? != second.len()? {
            return Err(Errno::INVAL.into());
        }
        Ok(Mirrored::of(first, second, Mutex::default()))
    }

    fn of(first: Caught<A>, second: Caught<B>, health: Mutex<[Health; 2]>) -> Mirrored<A, B> {
        let (differing, settled) = Default::default();
        Mirrored { first, second, health, differing, settled, maker: Maker::new() }
    }

    /// Mirrors two stores of which one is stale, whose length may be another: [`resync`](Self::resync) is to
    /// follow, and until then the other side alone is read and written.
    pub fn with_stale(first: A, second: B, stale: Side) -> Mirrored<A, B> {
        let mut health = <[Health; 2]>::default();
        health[stale as usize].stale = true;
        let (first, second) = (Caught::new(first), Caught::new(second));
        Mirrored::of(first, second, Mutex::new(health))
    }

    fn side(&self, side: Side) -> &dyn Store {
        match side {
            Side::First => &self.first,
            Side::Second => &self.second,
        }
    }

    fn health(&self) -> MutexGuard<'_, [Health; 2]> {
        self.health.lock().expect("health")
    }

    fn differing(&self) -> MutexGuard<'_, RangeSet<u64>> {
        self.differing.lock().expect("differing")
    }

    /// Whether a side lacks something that was written; in a forked child both may.
    pub fn is_stale(&self, side: Side) -> bool {
        !self.maker.is_here() || self.lacks(side)
    }

    fn lacks(&self, side: Side) -> bool {
        self.health()[side as usize].stale
    }

    /// The latest error that a side met since this was last asked; none in a forked child.
    pub fn take_error(&self, side: Side) -> Option<io::Error> {
        if self.maker.is_here() { self.health()[side as usize].error.take() } else { None }
    }

    /// Copies the other side's content to a side, which is in use again then. Reads and writes wait
    /// meanwhile.
    ///
    /// # Errors
    /// `EINVAL`: the other side is stale itself; the stores' own: the side is stale; `EOWNERDEAD`: in a
    /// forked child.
    pub fn resync(&self, side: Side) -> io::Result<()> {
        self.maker.check()?;
        let _settled = self.settled.write().expect("settled");
        if self.lacks(side.other()) {
            return Err(Errno::INVAL.into());
        }
        self.health()[side as usize].stale = true;
        let (from, to) = (self.side(side.other()), self.side(side));
        let len = from.len()?;
        if to.len()? != len {
            to.set_len(len)?;
        }
        // It may drop what is needed since it was left alone: it is to keep all that it gets now.
        let whole = len.next_multiple_of(PAGE_BYTES);
        if whole > 0 {
            advised(to.advise(0, whole, Advice::Needed))?;
        }
        self.copy_from(side.other(), 0..len).map_err(|(_, error)| error)?;
        to.sync()?;
        self.health()[side as usize] = Health::default();
        self.differing().clear();
        Ok(())
    }

    /// Copies bytes from a page on, as far as there are any, from a side to the other.
    ///
    /// # Errors
    /// Which side failed, and how.
    fn copy_from(&self, side: Side, bytes: Range<u64>) -> Result<(), (Side, io::Error)> {
        let (from, to) = (self.side(side), self.side(side.other()));
        let end = bytes.end.min(from.len().map_err(|error| (side, error))?);
        let mut buffer = vec![0; end.saturating_sub(bytes.start).min(COPY_BYTES as u64) as usize];
        buffer.resize(buffer.len().next_multiple_of(PAGE_BYTES as usize), 0);
        let mut at = bytes.start;
        while at < end {
            let bytes = (end - at).min(COPY_BYTES as u64) as usize;
            let whole = bytes.next_multiple_of(PAGE_BYTES as usize);
            let had = load_known(from, u64::MAX, at, &mut buffer[..whole]);
            buffer[had.map_err(|error| (side, error))?..whole].fill(0);
            to.store(at, &buffer[..bytes]).map_err(|error| (side.other(), error))?;
            at += bytes as u64;
        }
        Ok(())
    }

    /// Nobody has any more what was to be written to pages of a range: where both sides failed to, they
    /// become alike, if they can; surely before anybody `reads` one or the other.
    fn settle(&self, pages: Range<u64>, reads: bool) {
        if pages.is_empty() || !self.differing().overlaps(&pages) {
            return;
        }
        let _settled = self.settled.write().expect("settled");
        let parts: Vec<Range<u64>> = {
            let mut differing = self.differing();
            let within = |part: &Range<u64>| part.start.max(pages.start)..part.end.min(pages.end);
            let parts = differing.overlapping(&pages).map(within).collect();
            differing.remove(pages.clone());
            parts
        };
        for part in parts {
            let bytes = part.start * PAGE_BYTES..part.end * PAGE_BYTES;
            if reads {
                self.make_alike(bytes);
            } else if SIDES.into_iter().all(|side| !self.lacks(side))
                && self.copy_from(Side::First, bytes).is_err()
            {
                // Another time.
                self.differing().insert(part);
            }
        }
    }

    /// Makes the sides alike in some bytes, whichever they are. The caller holds `settled`.
    fn make_alike(&self, bytes: Range<u64>) {
        for side in SIDES {
            if SIDES.into_iter().any(|side| self.lacks(side)) {
                // The other one is all that is read.
                return;
            }
            let Err((failed, error)) = self.copy_from(side, bytes.clone()) else { return };
            let mut health = self.health();
            health[failed as usize].error = Some(error);
            // Where neither can be read, they may differ all the same.
            health[failed as usize].stale |= failed != side || side == Side::Second;
        }
    }

    /// Reads from the first side that can.
    fn read<T>(&self, mut read: impl FnMut(&dyn Store) -> io::Result<T>) -> io::Result<T> {
        let _settled = self.settled.read().expect("settled");
        let mut failed = both_stale();
        for side in SIDES {
            if self.lacks(side) {
                continue;
            }
            match read(self.side(side)) {
                Ok(got) => return Ok(got),
                Err(error) => {
                    failed = copy(&error);
                    self.health()[side as usize].error = Some(error);
                }
            }
        }
        Err(failed)
    }

    /// Writes to both sides; one has to succeed.
    fn write(&self, write: impl Fn(&dyn Store) -> io::Result<()>) -> io::Result<()> {
        let _settled = self.settled.read().expect("settled");
        self.ask_both(true, write)
    }

    /// The same of pages, which may differ if both fail. The caller holds `settled`.
    fn write_pages(
        &self,
        pages: Range<u64>,
        write: impl Fn(&dyn Store) -> io::Result<()>,
    ) -> io::Result<()> {
        let result = self.ask_both(true, write);
        if !pages.is_empty() {
            let mut differing = self.differing();
            match &result {
                Ok(()) => differing.remove(pages),
                Err(_) => differing.insert(pages),
            }
        }
        result
    }

    /// Asks both sides, of which one has to succeed; the other is stale then, if it `lacks` something.
    /// The caller holds `settled`.
    fn ask_both(&self, lacks: bool, ask: impl Fn(&dyn Store) -> io::Result<()>) -> io::Result<()> {
        let results = SIDES.map(|side| (!self.lacks(side)).then(|| ask(self.side(side))));
        let mut health = self.health();
        // A side may have gone stale meanwhile: what it has is worth nothing then.
        let written = |(result, health): (&Option<_>, &Health)| {
            matches!(result, Some(Ok(()))) && !health.stale
        };
        let done = results.iter().zip(&*health).any(written);
        let mut failed = both_stale();
        for (result, health) in results.into_iter().zip(&mut *health) {
            if let Some(Err(error)) = result {
                failed = copy(&error);
                health.error = Some(error);
                // Where neither has it, neither is behind the other, and it is kept by who wrote.
                health.stale |= done && lacks;
            }
        }
        if done { Ok(()) } else { Err(failed) }
    }
}

fn both_stale() -> io::Error {
    io::Error::other("both sides of a mirror are stale")
}

/// Another error like this one.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl<A: Store, B: Store> Store for Mirrored<A, B> {
    fn len(&self) -> io::Result<u64> {
        self.read(|store| store.len())
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        // Who reads a page does not have it to write.
        self.settle(pages_of(&(offset..offset + pages.len() as u64)), true);
        self.read(|store| load_known(store, u64::MAX, offset, pages))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _settled = self.settled.read().expect("settled");
        let pages = pages_of(&(offset..offset + bytes.len() as u64));
        self.write_pages(pages, |store| store.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        self.first.takes_victims() || self.second.takes_victims()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        let _settled = self.settled.read().expect("settled");
        let retire = |store: &dyn Store| store.retire(offset, bytes, dirty);
        if dirty {
            return self.write_pages(pages_of(&(offset..offset + bytes.len() as u64)), retire);
        }
        // Who keeps no copy of a clean page has it where it was.
        self.ask_both(false, retire)
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        // Nothing is written meanwhile, of which one side would hear before this, and the other after.
        let _settled = self.settled.write().expect("settled");
        let is_known = Cell::new(false);
        // Who was not told that pages are needed may drop what is written from now on; who was not told
        // that they are not writes more than it had to.
        self.ask_both(advice == Advice::Needed, |store| {
            let known = advised(store.advise(offset, len, advice))?;
            is_known.set(is_known.get() || known);
            Ok(())
        })?;
        if is_known.get() { Ok(()) } else { Err(Errno::OPNOTSUPP.into()) }
    }

    fn dropped(&self, offset: u64, len: u64) {
        self.first.dropped(offset, len);
        self.second.dropped(offset, len);
        self.settle(pages_of(&(offset..offset + len)), false);
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        // A side without room will be stale when it is written to.
        self.read(|store| store.reserve(offset, len))
    }

    fn sparse(&self) -> bool {
        self.first.sparse() || self.second.sparse()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(|store| store.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.write(|store| store.sync())
    }
}
