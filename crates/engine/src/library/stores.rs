//! Stores around other stores: managers that fill and write back in another way.

mod compress;
mod discard;
mod logged;
mod mirror;

pub use compress::Compressed;
pub use discard::Discardable;
pub use logged::Logged;
pub use mirror::{Mirrored, Side};
