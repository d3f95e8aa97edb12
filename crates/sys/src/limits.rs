//! How long files may be: RLIMIT_FSIZE (`setrlimit(2)`), by which memory in a memfd is a file, too.

use rustix::process::{Resource, getrlimit};

use crate::signal::{self, SignalSet};
use crate::{Errno, Result};

/// Whether a file may be so long here.
pub fn allows_file_bytes(bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|most| bytes <= most)
}

/// Makes a call that lets a file reach up to `end`. Where the limit forbids that, it is an error
/// ([`Errno::FBIG`]) and no SIGXFSZ, which ends a program that knows of no such file.
pub(crate) fn unsignalled<T>(end: u64, call: impl FnOnce() -> Result<T>) -> Result<T> {
    if allows_file_bytes(end) {
        return call();
    }
    let set = SignalSet::of(&[libc::SIGXFSZ]);
    let before = signal::block(&set)?;
    let was_pending = signal::is_pending(libc::SIGXFSZ);
    let result = call();
    if matches!(result, Err(Errno::FBIG)) && !was_pending {
        signal::take(&set);
    }
    signal::set_mask(&before)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_child::in_child;
    use crate::memfd::Memfd;
    use rustix::process::setrlimit;

    /// It ended programs that had written nothing.
    #[test]
    fn a_memfd_that_may_not_be_so_long_is_an_error() {
        let wrong = in_child(|| {
            let mut limit = getrlimit(Resource::Fsize);
            limit.current = Some(8192);
            let is_set = setrlimit(Resource::Fsize, limit).is_ok();
            let mut fits = Memfd::create("t", 8192, false);
            let grown = fits.as_mut().map(|memfd| memfd.set_len(8193));
            let right = [
                is_set,
                matches!(grown, Ok(Err(Errno::FBIG))),
                matches!(Memfd::create("t", 1 << 30, false), Err(Errno::FBIG)),
                !signal::is_pending(libc::SIGXFSZ),
                allows_file_bytes(8192) && !allows_file_bytes(8193),
            ];
            right.iter().filter(|is_right| !**is_right).count() as i32
        });
        assert_eq!(wrong, 0, "so many, or the signal that ended it");
    }
}
