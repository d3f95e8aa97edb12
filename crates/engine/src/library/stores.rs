//! Stores around other stores: managers that fill and write back in another way.

mod compress;
mod discard;
mod logged;
mod mirror;

pub use compress::Compressed;
pub use discard::Discardable;
pub use logged::Logged;
pub use mirror::{Mirrored, Side};

use crate::library::store::Store;
use pagekeeper_sys::Errno;
use std::io;

/// Reads from a store that has so many bytes. It is not asked for what lies behind its end, all of which is
/// zeros: it may refuse that, and nobody but a store above it would ask.
fn load_within(below: &impl Store, len: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let had = if offset < len { load_known(below, len, offset, bytes)? } else { 0 };
    bytes[had..].fill(0);
    Ok(())
}

/// Reads from a store that is known to be so long, or whose length is not known (`u64::MAX`). What it lacks in
/// front of its end is an error, and so is more than there is room for.
pub(crate) fn load_known(
    store: &(impl Store + ?Sized),
    len: u64,
    offset: u64,
    bytes: &mut [u8],
) -> io::Result<usize> {
    let ends = |had: usize, len: u64| had >= bytes_before(len, offset);
    let room = bytes.len();
    let mut had = store.load(offset, bytes)?;
    // A file has all that lies before its end: nothing more has to be asked.
    if had < room && !ends(had, len) && store.as_file().is_none() {
        let present = store.len()?;
        if !ends(had, present) {
            // It may have become longer since, and has it then, or shorter and longer.
            had = store.load(offset, bytes)?;
            if had < room && !ends(had, present.min(store.len()?)) {
                return Err(Errno::IO.into());
            }
        }
    }
    if had > room { Err(Errno::IO.into()) } else { Ok(had) }
}

/// How much of a store of a length lies from an offset on.
fn bytes_before(len: u64, offset: u64) -> usize {
    usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX)
}
