//! What is seen to around a store's own code: its panics are errors, and what it may not use while it is
//! asked is known.
//!
//! The engine has claimed pages while it asks a store, and fences are around what changes: a panic that
//! went through it would leave both for good, and whoever waits for them. The same of a store that asks
//! others with something of its own locked: those are caught below it, too.
//!
//! A use of the same cache from within would wait for those pages, and so for its own thread. It is refused,
//! which a mark of the thread's tells. So it is with a use of the same segment by a store that is given
//! advice: there are no pages on their way then, but the segment's length may be locked.

use crate::library::Advice;
use crate::library::store::{FileStore, Store};
use crate::port::Version;
use pagekeeper_sys::Errno;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Caches and segments that are looked for: a store may use another cache, one of whose stores uses a third.
const NESTED_MAX: usize = 8;

thread_local! {
    /// The caches, by [`number`](Caught::asked_by), whose stores the thread is asking, and the segments whose
    /// stores it is advising, the innermost first.
    static ASKING: Cell<[usize; NESTED_MAX]> = const { Cell::new([0; NESTED_MAX]) };
}

/// Whether this thread is in the code of a store that this cache, or segment, asks.
pub(crate) fn is_asking(who: usize) -> bool {
    ASKING.get().contains(&who)
}

/// As long as this lives, the thread is in the code of a cache's or segment's store.
pub(crate) struct Asking {
    before: [usize; NESTED_MAX],
}

impl Asking {
    /// Begins to ask: a cache, or a segment, by the address of what its threads, or handles, share.
    pub(crate) fn begin(who: usize) -> Asking {
        let before = ASKING.get();
        let mut now = before;
        now.rotate_right(1);
        now[0] = who;
        ASKING.set(now);
        Asking { before }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(self.before);
    }
}

/// A store whose panics (which the panic hook has told of) are errors: `EIO`.
#[derive(Debug)]
pub(crate) struct Caught<S> {
    pub(crate) store: S,
    /// Who asks, if that is a cache.
    cache: Option<usize>,
}

impl<S> Caught<S> {
    pub(crate) fn new(store: S) -> Caught<S> {
        Caught { store, cache: None }
    }

    /// The same, asked by a cache with this number from now on.
    pub(crate) fn asked_by(self, cache: usize) -> Caught<S> {
        Caught { cache: Some(cache), ..self }
    }

    /// Asks it something, perhaps while pages are claimed.
    fn ask<'s, T>(&'s self, ask: impl FnOnce(&'s S) -> io::Result<T>) -> io::Result<T> {
        let _asking = self.cache.map(Asking::begin);
        self.ask_with_nothing_claimed(ask)
    }

    /// What the store left half done is the store's: it is asked again, as after any error.
    fn ask_with_nothing_claimed<'s, T>(
        &'s self,
        ask: impl FnOnce(&'s S) -> io::Result<T>,
    ) -> io::Result<T> {
        catch_unwind(AssertUnwindSafe(|| ask(&self.store))).unwrap_or_else(|payload| {
            // A payload may panic when it is dropped.
            std::mem::forget(payload);
            Err(Errno::IO.into())
        })
    }
}

impl<S: Store> Store for Caught<S> {
    fn len(&self) -> io::Result<u64> {
        self.ask(|store| store.len())
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.ask(|store| store.load(offset, pages))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.ask(|store| store.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        self.ask(|store| Ok(store.takes_victims())).unwrap_or(false)
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        self.ask(|store| store.retire(offset, bytes, dirty))
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.ask_with_nothing_claimed(|store| store.advise(offset, len, advice))
    }

    fn dropped(&self, offset: u64, len: u64) {
        let _ = self.ask_with_nothing_claimed(|store| {
            store.dropped(offset, len);
            Ok(())
        });
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.ask(|store| store.reserve(offset, len))
    }

    fn sparse(&self) -> bool {
        // Then room is made sure of before pages become dirty.
        self.ask(|store| Ok(store.sparse())).unwrap_or(true)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.ask(|store| store.grow(len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.ask(|store| store.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        self.ask_with_nothing_claimed(|store| store.sync())
    }

    fn as_file(&self) -> Option<&FileStore> {
        // One that is no file is asked in the other ways.
        self.ask(|store| Ok(store.as_file())).unwrap_or(None)
    }

    fn version(&self) -> io::Result<Version> {
        self.ask(|store| store.version())
    }
}
