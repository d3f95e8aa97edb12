//! What processes have open.

use crate::{Errno, Result};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A descriptor of another process.
#[derive(Debug)]
pub struct Descriptor {
    /// `/proc/PID/fd/N`
    link: PathBuf,
    target: PathBuf,
}

/// What a process has open; not what it closes meanwhile.
///
/// # Errors
/// As `open(2)` of `/proc/PID/fd`: nobody may see it, or there is no such process.
pub fn descriptors(pid: u32) -> Result<impl Iterator<Item = Descriptor>> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).map_err(errno_of)?;
    let links = all.flatten().map(|descriptor| descriptor.path());
    Ok(links.filter_map(|link| {
        let target = fs::read_link(&link).ok()?;
        Some(Descriptor { link, target })
    }))
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Descriptor {
    /// The file's path, or what it is else, as `/proc/PID/fd` shows it (proc_pid_fd(5)).
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// What is open, whatever its path is by now.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        fs::metadata(&self.link)
    }

    /// The flags of its open file description, `fcntl(2)` F_GETFL; `None` if it is gone.
    pub fn flags(&self) -> Option<i32> {
        let (descriptors, number) = (self.link.parent()?, self.link.file_name()?);
        let info = descriptors.with_file_name("fdinfo").join(number);
        let info = fs::read_to_string(info).ok()?;
        let octal = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(octal.trim(), 8).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_open_is_listed_with_its_flags() {
        let path = std::env::temp_dir().join(format!("pagekeeper-open-{}", std::process::id()));
        let file = File::options().append(true).create(true).open(&path).unwrap();
        let mine = || descriptors(std::process::id()).unwrap().find(|d| d.target() == path);
        let found = mine().unwrap();
        assert_eq!(found.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        assert_eq!(
            found.flags().unwrap() & (libc::O_ACCMODE | libc::O_APPEND),
            libc::O_WRONLY | libc::O_APPEND
        );
        fs::remove_file(&path).unwrap();
        assert!(mine().is_none(), "it has lost its name");
        assert_eq!(found.metadata().unwrap().nlink(), 0);
        drop(file);
        assert_eq!(found.flags(), None);
        assert!(matches!(descriptors(u32::MAX >> 2).map(|_| ()), Err(Errno::NOENT)));
    }
}
