//! What somebody who needs a page waits for.

/// What is waited for when a page is in somebody else's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Whoever holds it in a way that excludes this use, too, for as long as that likes.
    ForHolders,
    /// What ends by itself only, as transfers and pins do: the caller has others to serve, or holds what
    /// they may wait for while they hold the page.
    ForMotion,
    /// The same, but not for a write that storage does not end: see [`crate::overdue`].
    ForStorage,
}

impl Patience {
    /// Whoever holds a page is waited for.
    pub(crate) fn is_for_holders(self) -> bool {
        self == Patience::ForHolders
    }

    /// A write is waited for, however long storage takes.
    pub(crate) fn is_for_any_write(self) -> bool {
        self != Patience::ForStorage
    }
}
