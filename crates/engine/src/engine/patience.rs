//! What somebody who needs a page waits for.

use std::time::Instant;

/// What is waited for when a page is in somebody else's hands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Whoever holds it in a way that excludes this use, too, for as long as that likes.
    Holders,
    /// What ends by itself only, as transfers and pins do: the caller has others to serve, or holds what
    /// they may wait for while they hold the page.
    Motion,
    /// The same, but not for a write that storage does not end: see [`crate::engine::overdue`].
    Storage,
    /// As [`Motion`](Patience::Motion), or without `any_write` as [`Storage`](Patience::Storage), and until
    /// then also for changes that clients make of it, who may be stopped: somebody looks at the file next to
    /// whom it makes a difference.
    Changes { until: Instant, any_write: bool },
}

impl Patience {
    /// Whoever holds a page is waited for.
    pub(crate) fn is_for_holders(self) -> bool {
        self == Patience::Holders
    }

    /// Clients who change it are waited for now.
    pub(crate) fn is_for_changes(self) -> bool {
        match self {
            Patience::Holders => true,
            Patience::Motion | Patience::Storage => false,
            Patience::Changes { until, .. } => Instant::now() < until,
        }
    }

    /// A write is waited for, however long storage takes.
    pub(crate) fn is_for_any_write(self) -> bool {
        !matches!(self, Patience::Storage | Patience::Changes { any_write: false, .. })
    }
}
