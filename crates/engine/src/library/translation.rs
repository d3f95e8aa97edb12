//! How a page's bytes are found.

/// How a cache finds the bytes of a page.
///
/// [`Mapped`](Translation::Mapped) is for programs that map what they read ([`Segment::map`]), or
/// that pin long slices. [`Table`](Translation::Table) is for those that read and write by calls alone:
/// memory of a page that leaves is the next page's, so that a miss takes no memory from the kernel and
/// gives none back, and frames lie in huge pages where the machine has them.
/// [`Hash`](Translation::Hash) is the control of both: the lookup of a classical buffer cache, so that
/// what they save can be measured and nothing else differs. That is the comparison of *Mapped-File
/// I/O* (SOSP 1989), whose control was HP-UX. Policy, budget, read-ahead, write-back and errors are
/// the same, page for page.
///
/// Pages of a table or hash table have no common place. So there are no regions, nor pins of several
/// pages at once (`EOPNOTSUPP`), and no more than 1 TiB of memory, or 2²⁴ pages in a hash table
/// (`ENOMEM`). Several pages are read by one request, scattered over their blocks; a run of them is
/// gathered in a buffer to be written. The table, 8 bytes a page of the segment where any near it were
/// used, or headers and chains, 24 bytes a page in memory, come on top of the budget.
///
/// [`Segment::map`]: crate::library::Segment::map
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Translation {
    /// By its place: the frames of a segment are mapped as the segment is.
    #[default]
    Mapped,
    /// By an entry of its segment's table, in a block of the cache's memory.
    Table,
    /// By segment and page, in a hash table with chains.
    Hash(Buckets),
}

/// How many chains a hash table has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buckets {
    /// Two for each frame that the budget buys when the cache is made, so that chains are half an
    /// entry long.
    Sized,
    /// So many, one or more, whatever the budget: HP-UX had 63, on whose chains 220 entries were
    /// at 70 MB (appendix I).
    Fixed(u32),
}

impl Buckets {
    /// Chains for so many frames.
    pub(crate) fn chains(self, frames: u32) -> u32 {
        match self {
            Buckets::Sized => frames.saturating_mul(2),
            Buckets::Fixed(chains) => chains,
        }
    }
}
