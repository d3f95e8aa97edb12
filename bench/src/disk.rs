//! A slower disk than the machine's own: reads of a process tree limited by the kernel's block
//! throttling (`Documentation/admin-guide/cgroup-v1/blkio-controller.rst`, `cgroup-v2.rst`, `io.max`).
//!
//! What a better choice of victims is worth depends on what a read costs. Many programs run on network
//! volumes that deliver a tenth of a local disk's bandwidth and a few thousand requests per second.

use crate::machine::Machine;
use anyhow::{Context, Result};
use pagekeeper_sys::cgroup::{MemoryCgroup, Version, mount_of_v1};
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

/// The most that is read from the disk per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    bytes: u64,
    requests: u64,
}

impl FromStr for Disk {
    type Err = String;

    fn from_str(text: &str) -> Result<Disk, String> {
        let (mib, requests) = text.split_once(',').ok_or("MIB,REQUESTS is expected: 125,3000")?;
        let number = |text: &str| match text.trim().parse::<u64>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text} is no number above 0")),
        };
        let bytes = number(mib)?.checked_mul(1 << 20).ok_or("too many MiB")?;
        Ok(Disk { bytes, requests: number(requests)? })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB/s, {} requests/s", self.bytes >> 20, self.requests)
    }
}

/// A cgroup whose reads are limited; removed when dropped.
#[derive(Debug)]
pub struct Limited {
    /// Of its own, where the block controller has a hierarchy of its own.
    folder: Option<PathBuf>,
}

impl Disk {
    /// Limits the reads of a tree that runs in a memory cgroup.
    ///
    /// # Errors
    /// Not root, or a kernel without block throttling.
    pub fn limit(self, machine: &Machine, memory: &MemoryCgroup) -> Result<Limited> {
        let device = machine.device.disk_number().context("the disk's number")?;
        if memory.version() == Version::V2 {
            let limit = format!("{device} rbps={} riops={}", self.bytes, self.requests);
            let file = memory.path().join("io.max");
            fs::write(&file, limit).with_context(|| file.display().to_string())?;
            return Ok(Limited { folder: None });
        }
        let name = memory.path().file_name().context("a cgroup has a name")?;
        let mount = mount_of_v1("blkio").context("the blkio controller is not mounted")?;
        let folder = mount.join(name);
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let limited = Limited { folder: Some(folder.clone()) };
        for (file, limit) in [("read_bps", self.bytes), ("read_iops", self.requests)] {
            let file = folder.join(format!("blkio.throttle.{file}_device"));
            fs::write(&file, format!("{device} {limit}"))
                .with_context(|| file.display().to_string())?;
        }
        Ok(limited)
    }
}

impl Limited {
    /// What a process has to enter beside the memory cgroup.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn procs(&self) -> Result<Option<OwnedFd>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let procs = fs::OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?;
        Ok(Some(procs.into()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_two_numbers() {
        assert_eq!("125,3000".parse(), Ok(Disk { bytes: 125 << 20, requests: 3000 }));
        for bad in ["", "125", "0,3000", "125,x", "99999999999999999999,1", "17592186044416,1"] {
            assert!(bad.parse::<Disk>().is_err(), "{bad}");
        }
    }
}
