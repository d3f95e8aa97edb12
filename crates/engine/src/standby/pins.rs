//! Who has the kernel write to memory behind the processors' back: what is under way to a page of a mapping
//! arrives there also when something else is mapped in its place.

use crate::standby::is_files;
use pagekeeper_sys::process;
use std::os::unix::ffi::OsStrExt;

/// A ring of io_uring(7), as `/proc/PID/fd` shows it.
const RING: &[u8] = b"anon_inode:[io_uring]";

/// Whether a process may have begun such reads: it has a file open with O_DIRECT, or a ring. Also if that
/// cannot be seen.
pub(crate) fn may_have(pid: u32) -> bool {
    let Ok(mut descriptors) = process::descriptors(pid) else { return true };
    descriptors.any(|descriptor| {
        let target = descriptor.target().as_os_str().as_bytes();
        let is_direct = || descriptor.flags().is_some_and(|flags| flags & libc::O_DIRECT != 0);
        target == RING || is_files(target) && is_direct()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::{Command, Stdio};

    #[test]
    fn who_reads_past_the_page_cache_is_told() {
        let path = tempfile::NamedTempFile::new_in(".").unwrap();
        let begun_by = |file: File| {
            let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(file).spawn().unwrap();
            let may_have = may_have(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            may_have
        };
        assert!(!begun_by(File::open(path.path()).unwrap()));
        // A file system may have no such reads.
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path.path());
        if let Ok(direct) = direct {
            assert!(begun_by(direct));
        }
        assert!(may_have(u32::MAX >> 2), "nobody can be seen");
    }
}
