//! Mirrored write-back: two stores with the same content.

use crate::library::caught::Caught;
use crate::library::segment::Advice;
use crate::library::store::Store;
use crate::port::PAGE_BYTES;
use pagekeeper_sys::Errno;
use std::cell::Cell;
use std::io;
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
/// A side may be any store: one that [takes victims](Store::takes_victims) gets them (pages are read from
/// the first side as long as it is whole: a [`Compressed`](crate::library::Compressed) second one saves
/// no reads), and one that can make pages anew is told which. Where only one can, it alone drops them. A
/// stale side hears of nothing; once it is re-synchronised it keeps all pages, until the program says
/// again which it need not.
///
/// After a crash the sides may differ in what was written and not flushed: re-synchronise the
/// second then. And whoever starts anew after one side went stale has to say so
/// ([`with_stale`](Self::with_stale)).
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
    /// Held for writing while a side is re-synchronised, or advice is given.
    settled: RwLock<()>,
}

impl<A: Store, B: Store> Mirrored<A, B> {
    /// Mirrors two stores that hold the same.
    ///
    /// # Errors
    /// `EINVAL`: they have different lengths; the stores' own.
    pub fn new(first: A, second: B) -> io::Result<Mirrored<A, B>> {
        let (first, second) = (Caught(first), Caught(second));
        if first.len()? != second.len()? {
            return Err(Errno::INVAL.into());
        }
        Ok(Mirrored { first, second, health: Mutex::default(), settled: RwLock::new(()) })
    }

    /// Mirrors two stores of which one is stale: [`resync`](Self::resync) is to follow.
    pub fn with_stale(first: A, second: B, stale: Side) -> Mirrored<A, B> {
        let mut health = <[Health; 2]>::default();
        health[stale as usize].stale = true;
        let (first, second) = (Caught(first), Caught(second));
        Mirrored { first, second, health: Mutex::new(health), settled: RwLock::new(()) }
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

    /// Whether a side lacks something that was written.
    pub fn is_stale(&self, side: Side) -> bool {
        self.health()[side as usize].stale
    }

    /// The latest error that a side met since this was last asked.
    pub fn take_error(&self, side: Side) -> Option<io::Error> {
        self.health()[side as usize].error.take()
    }

    /// Copies the other side's content to a side, which is in use again then. Reads and writes wait
    /// meanwhile.
    ///
    /// # Errors
    /// `EINVAL`: the other side is stale itself; the stores' own: the side is stale.
    pub fn resync(&self, side: Side) -> io::Result<()> {
        let _settled = self.settled.write().expect("settled");
        if self.is_stale(side.other()) {
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
        let mut buffer = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < len {
            let bytes = (len - at).min(COPY_BYTES as u64) as usize;
            let whole = bytes.next_multiple_of(PAGE_BYTES as usize);
            let had = from.load(at, &mut buffer[..whole])?.min(whole);
            buffer[had..whole].fill(0);
            to.store(at, &buffer[..bytes])?;
            at += bytes as u64;
        }
        to.sync()?;
        self.health()[side as usize] = Health::default();
        Ok(())
    }

    /// Reads from the first side that can.
    fn read<T>(&self, mut read: impl FnMut(&dyn Store) -> io::Result<T>) -> io::Result<T> {
        let _settled = self.settled.read().expect("settled");
        let mut failed = both_stale();
        for side in SIDES {
            if self.is_stale(side) {
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

    /// Asks both sides, of which one has to succeed; the other is stale then, if it `lacks` something.
    /// The caller holds `settled`.
    fn ask_both(&self, lacks: bool, ask: impl Fn(&dyn Store) -> io::Result<()>) -> io::Result<()> {
        let results = SIDES.map(|side| (!self.is_stale(side)).then(|| ask(self.side(side))));
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

/// What came of advice; false: the store can make nothing anew, and has nothing that it may drop.
fn advised(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
        result => result.map(|()| true),
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
        self.read(|store| store.load(offset, pages))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(|store| store.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        self.first.takes_victims() || self.second.takes_victims()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        let _settled = self.settled.read().expect("settled");
        // Who keeps no copy of a clean page has it where it was.
        self.ask_both(dirty, |store| store.retire(offset, bytes, dirty))
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
