//! A store that panics is one that fails.
//!
//! The engine has claimed pages while it asks a store, and fences are around what changes: a panic that
//! went through it would leave both for good, and whoever waits for them. The same of a store that asks
//! others with something of its own locked: those are caught below it, too.

use crate::library::Advice;
use crate::library::store::{FileStore, Store};
use crate::port::Version;
use pagekeeper_sys::Errno;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A store whose panics (which the panic hook has told of) are errors: `EIO`.
#[derive(Debug)]
pub(crate) struct Caught<S>(pub(crate) S);

/// What the store left half done is the store's: it is asked again, as after any error.
fn caught<T>(ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|payload| {
        // A payload may panic when it is dropped.
        std::mem::forget(payload);
        Err(Errno::IO.into())
    })
}

impl<S: Store> Store for Caught<S> {
    fn len(&self) -> io::Result<u64> {
        caught(|| self.0.len())
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        caught(|| self.0.load(offset, pages))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        caught(|| self.0.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        caught(|| Ok(self.0.takes_victims())).unwrap_or(false)
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        caught(|| self.0.retire(offset, bytes, dirty))
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        caught(|| self.0.advise(offset, len, advice))
    }

    fn dropped(&self, offset: u64, len: u64) {
        let _ = caught(|| {
            self.0.dropped(offset, len);
            Ok(())
        });
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        caught(|| self.0.reserve(offset, len))
    }

    fn sparse(&self) -> bool {
        // Then room is made sure of before pages become dirty.
        caught(|| Ok(self.0.sparse())).unwrap_or(true)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        caught(|| self.0.grow(len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        caught(|| self.0.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        caught(|| self.0.sync())
    }

    fn as_file(&self) -> Option<&FileStore> {
        // One that is no file is asked in the other ways.
        caught(|| Ok(self.0.as_file())).unwrap_or(None)
    }

    fn version(&self) -> io::Result<Version> {
        caught(|| self.0.version())
    }
}
