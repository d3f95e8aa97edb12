//! What misses cost, as far as policies go by it.

/// What a request costs a disk beside the pages that it reads, in pages read: on the disks that were measured
/// ten to thirty. The policies that count it take another number as a parameter.
pub(crate) const REQUEST_PAGES: u64 = 12;
