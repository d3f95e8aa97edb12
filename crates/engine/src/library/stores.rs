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
use std::io;

/// Reads from a store that has so many bytes. It is not asked for what lies behind its end, all of which is
/// zeros: it may refuse that, and nobody but a store above it would ask.
fn load_within(below: &impl Store, len: u64, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let had = if offset < len { below.load(offset, bytes)?.min(bytes.len()) } else { 0 };
    bytes[had..].fill(0);
    Ok(())
}
