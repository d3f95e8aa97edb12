//! What somebody who needs a page waits for.

/// What is waited for when a page is in somebody else's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Whoever holds it in a way that excludes this use, too, for as long as that likes.
    Holders,
    /// What ends by itself only, as transfers and pins do: the caller has others to serve, or holds what
    /// they may wait for while they hold the page.
    Motion,
    /// The same, but not for a write that storage does not end: see [`crate::overdue`].
    Storage,
}

impl Patience {
    /// Whoever holds a page is waited for.
    pub(crate) fn is_for_holders(self) -> bool {
        self == Patience::Holders
    }

    /// A write is waited for, however long storage takes.
    pub(crate) fn is_for_any_write(self) -> bool {
        self != Patience::Storage
    }
}
