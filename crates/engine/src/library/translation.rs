//! How a page's bytes are found.

/// How a cache finds the bytes of a page.
///
/// [`Mapped`](Translation::Mapped) is the library. [`Hash`](Translation::Hash) is its control: the
/// same cache, with the lookup of a classical buffer cache and a buffer for each page, so that what
/// mapping saves can be measured and nothing else differs. That is the comparison of *Mapped-File
/// I/O* (SOSP 1989), whose control was HP-UX. Policy, budget, read-ahead, write-back and errors are
/// the same, page for page.
///
/// What a control cannot do: regions ([`Segment::map`](crate::library::Segment::map)) and pins of
/// several pages at once, since its pages have no common place (`EOPNOTSUPP`), and more than 64 GiB
/// of 4 KiB pages (`ENOMEM`). Several pages are read by one request, scattered over their blocks; a
/// run of them is gathered in a buffer to be written. No request of its own is under way while it
/// does something else. Headers and chains, 24 bytes a page, come on top of the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Translation {
    /// By its place: the frames of a segment are mapped as the segment is.
    #[default]
    Mapped,
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

impl Translation {
    /// Chains for so many frames; none where pages are found by their place.
    pub(crate) fn chains(self, frames: u32) -> Option<u32> {
        match self {
            Translation::Mapped => None,
            Translation::Hash(Buckets::Sized) => Some(frames.saturating_mul(2)),
            Translation::Hash(Buckets::Fixed(chains)) => Some(chains),
        }
    }
}
