//! What processes have open.

use super::{errno, read_proc};
use crate::Result;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A descriptor of another process.
#[derive(Debug)]
pub struct Descriptor {
    pid: u32,
    number: u32,
    target: PathBuf,
}

/// What a process has open; not what it closes meanwhile.
///
/// # Errors
/// As `open(2)` of `/proc/PID/fd`: nobody may see it, or there is no such process.
pub fn descriptors(pid: u32) -> Result<impl Iterator<Item = Descriptor>> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| errno(&error))?;
    Ok(all.flatten().filter_map(move |descriptor| {
        let number = descriptor.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(descriptor.path()).ok()?;
        Some(Descriptor { pid, number, target })
    }))
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
        fs::metadata(format!("/proc/{}/fd/{}", self.pid, self.number))
    }

    /// The flags of its open file description, `fcntl(2)` F_GETFL; `None` if it is gone.
    pub fn flags(&self) -> Option<i32> {
        let info = read_proc(&format!("/proc/{}/fdinfo/{}", self.pid, self.number)).ok()?;
        let octal = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        i32::from_str_radix(octal.trim(), 8).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn what_is_open_is_listed_with_its_flags() {
        let path = std::env::temp_dir().join(format!("pagekeeper-open-{}", std::process::id()));
        let file = File::options().append(true).create(true).open(&path).unwrap();
        // Another process: in this one, another test may take a number that is free again.
        let output = file.try_clone().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        let its = || descriptors(child.id()).unwrap().find(|d| d.target() == path);
        let found = its().unwrap();
        assert_eq!(found.metadata().unwrap().ino(), file.metadata().unwrap().ino());
        assert_eq!(
            found.flags().unwrap() & (libc::O_ACCMODE | libc::O_APPEND),
            libc::O_WRONLY | libc::O_APPEND
        );
        fs::remove_file(&path).unwrap();
        assert!(its().is_none(), "it has lost its name");
        assert_eq!(found.metadata().unwrap().nlink(), 0);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found.flags(), None);
        assert!(matches!(descriptors(u32::MAX >> 2).map(|_| ()), Err(Errno::NOENT)));
    }
}
