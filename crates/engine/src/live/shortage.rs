//! What passes by itself: a moment without descriptors is no reason to give anything up for good.

use pagekeeper_sys::Errno;

/// Whether there are no descriptors, here or in the whole system.
pub(crate) fn is_shortage(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}
