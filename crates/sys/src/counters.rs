//! What the kernel counted: bytes that a process and a device read, pages in the page cache; and
//! two knobs that a fair measurement turns.
#![allow(unsafe_code)]

use core::mem::size_of;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use linux_raw_sys::general as raw;

use crate::process::{errno, read_proc};
use crate::{Errno, PAGE_BYTES, Result, check, file};

/// `/proc/PID/io`: what a process caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    /// Bytes fetched from storage for it.
    pub read_bytes: u64,
    /// Bytes that it made dirty, to be stored.
    pub write_bytes: u64,
    /// Bytes that it asked for by read-like calls, cached or not.
    pub asked_read_bytes: u64,
    /// Bytes that it gave to write-like calls.
    pub asked_write_bytes: u64,
}

impl ProcessIo {
    /// The counts of a process, including its children that it has waited for.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: no such process; [`Errno::ACCESS`]: not permitted to trace it.
    pub fn of(pid: u32) -> Result<ProcessIo> {
        let text = read_proc(&format!("/proc/{pid}/io"))?;
        let get = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            value.and_then(|v| v.parse().ok()).ok_or(Errno::PROTO)
        };
        Ok(ProcessIo {
            read_bytes: get("read_bytes")?,
            write_bytes: get("write_bytes")?,
            asked_read_bytes: get("rchar")?,
            asked_write_bytes: get("wchar")?,
        })
    }
}

/// The block device (or partition) that holds a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its directory in `/sys/dev/block`.
    sysfs: PathBuf,
}

/// What a block device transferred since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read requests completed.
    pub reads: u64,
    /// Write requests completed.
    pub writes: u64,
}

impl DeviceIo {
    /// What all devices of the machine transferred, but for those that are memory or files
    /// (`/proc/diskstats`, the kernel's `Documentation/admin-guide/iostats.rst`). Partitions count once more, and
    /// so do devices that are made of others.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn of_all() -> Result<DeviceIo> {
        Ok(DeviceIo::sum(&read_proc("/proc/diskstats")?))
    }

    fn sum(table: &str) -> DeviceIo {
        let mut sum = DeviceIo::default();
        for line in table.lines() {
            let mut fields = line.split_ascii_whitespace();
            let name = fields.nth(2).unwrap_or_default();
            let is_other = ["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind));
            if let Some(io) = DeviceIo::parse(fields).filter(|_| !is_other) {
                sum.read_bytes += io.read_bytes;
                sum.write_bytes += io.write_bytes;
                sum.reads += io.reads;
                sum.writes += io.writes;
            }
        }
        sum
    }

    fn parse<'a>(fields: impl Iterator<Item = &'a str>) -> Option<DeviceIo> {
        /// The unit of these files, whatever the device's.
        const SECTOR_BYTES: u64 = 512;
        let mut fields = fields.map(|field| field.parse::<u64>().ok());
        let mut next = |skipped: usize| fields.nth(skipped).flatten();
        let (reads, read_sectors) = (next(0)?, next(1)?);
        let (writes, write_sectors) = (next(1)?, next(1)?);
        let (read_bytes, write_bytes) = (read_sectors * SECTOR_BYTES, write_sectors * SECTOR_BYTES);
        Some(DeviceIo { read_bytes, write_bytes, reads, writes })
    }
}

impl BlockDevice {
    /// The device that holds `path`.
    ///
    /// # Errors
    /// [`Errno::NODEV`]: its file system is on no one block device (tmpfs, overlay, network …).
    pub fn holding(path: impl AsRef<Path>) -> Result<BlockDevice> {
        let dev = fs::metadata(path).map_err(|e| errno(&e))?.dev();
        Self::numbered(&format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)))
    }

    /// The device with a number, `MAJOR:MINOR`.
    fn numbered(number: &str) -> Result<BlockDevice> {
        let sysfs = PathBuf::from(format!("/sys/dev/block/{number}"));
        // Resolve the link: a partition's parent directory is the disk's.
        Ok(BlockDevice { sysfs: fs::canonicalize(sysfs).map_err(|_| Errno::NODEV)? })
    }

    /// Its name in `/dev`.
    pub fn name(&self) -> &str {
        self.sysfs.file_name().and_then(|n| n.to_str()).unwrap_or("?")
    }

    /// The counts in `stat` (the kernel's `Documentation/block/stat.rst`).
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn io(&self) -> Result<DeviceIo> {
        let text = fs::read_to_string(self.sysfs.join("stat")).map_err(|e| errno(&e))?;
        DeviceIo::parse(text.split_ascii_whitespace()).ok_or(Errno::PROTO)
    }

    /// The directory of the disk that it is, or is a partition of.
    fn disk(&self) -> PathBuf {
        if self.sysfs.join("queue").is_dir() { self.sysfs.clone() } else { self.sysfs.join("..") }
    }

    /// The number of the disk that it is, or is a partition of: `MAJOR:MINOR`.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn disk_number(&self) -> Result<String> {
        let text = fs::read_to_string(self.disk().join("dev")).map_err(|e| errno(&e))?;
        Ok(text.trim().to_owned())
    }

    fn read_ahead_file(&self) -> PathBuf {
        self.disk().join("queue/read_ahead_kb")
    }

    /// The most that the kernel reads ahead, in KiB.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read_ahead_kib(&self) -> Result<u32> {
        read_kib(&self.read_ahead_file())
    }

    /// Sets it for as long as the guard lives. A process killed meanwhile leaves it changed.
    ///
    /// # Errors
    /// [`Errno::ACCESS`]: not root; [`Errno::ROFS`]: a container without write access to `/sys`.
    pub fn set_read_ahead_kib(&self, kib: u32) -> Result<ReadAheadGuard> {
        let before_kib = self.read_ahead_kib()?;
        let file = self.read_ahead_file();
        fs::write(&file, kib.to_string()).map_err(|e| errno(&e))?;
        Ok(ReadAheadGuard { file, before_kib })
    }
}

fn read_kib(file: &Path) -> Result<u32> {
    let text = fs::read_to_string(file).map_err(|e| errno(&e))?;
    text.trim().parse().map_err(|_| Errno::PROTO)
}

/// The most that the kernel reads ahead in any file system that is mounted, in KiB; `None` where that
/// cannot be told.
pub fn largest_read_ahead_kib() -> Option<u32> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // proc_pid_mountinfo(5): the third field is the device's number.
    mounts.lines().filter_map(|mount| mount.split(' ').nth(2)).filter_map(read_ahead_of).max()
}

/// The most that the kernel reads ahead in the file system with this device (`st_dev`), in KiB; `None` where
/// that cannot be told.
pub fn read_ahead_kib_of(dev: u64) -> Option<u32> {
    read_ahead_of(&format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)))
}

/// By `MAJOR:MINOR`.
fn read_ahead_of(number: &str) -> Option<u32> {
    // A disk, or a file system that has none; else a partition.
    let own = read_kib(Path::new(&format!("/sys/class/bdi/{number}/read_ahead_kb")));
    own.or_else(|_| BlockDevice::numbered(number)?.read_ahead_kib()).ok()
}

/// Restores a device's read-ahead when dropped.
#[derive(Debug)]
pub struct ReadAheadGuard {
    file: PathBuf,
    before_kib: u32,
}

impl ReadAheadGuard {
    /// What it was, and will be again.
    pub fn before_kib(&self) -> u32 {
        self.before_kib
    }
}

impl Drop for ReadAheadGuard {
    fn drop(&mut self) {
        // It was writable when the guard was made; nobody is there to be told otherwise.
        let _ = fs::write(&self.file, self.before_kib.to_string());
    }
}

/// Drops a file's pages from the page cache: writes them back first, then advises. Pages that
/// are mapped or locked stay.
///
/// # Errors
/// As `fsync(2)` and `posix_fadvise(2)`.
pub fn drop_page_cache(fd: impl AsFd) -> Result<()> {
    let fd = fd.as_fd();
    file::sync(fd, false)?;
    file::advise(fd, 0, 0, false)
}

/// Pages of a range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCache {
    /// In the page cache.
    pub cached_pages: u64,
    /// Of those, dirty; `None` where only `mincore(2)` could be asked.
    pub dirty_pages: Option<u64>,
}

const _: () = assert!(size_of::<raw::cachestat>() == 40 && size_of::<raw::cachestat_range>() == 16);

/// How much of `len` bytes (0: to the end) from `offset` is in the page cache: `cachestat(2)`
/// (Linux 6.5), else `mincore(2)`.
///
/// # Errors
/// [`Errno::BADF`], [`Errno::OPNOTSUPP`]: not a file with a page cache; [`Errno::PERM`]: neither
/// owner nor writer.
pub fn page_cache(fd: impl AsFd, offset: u64, len: u64) -> Result<PageCache> {
    let fd = fd.as_fd();
    let mut range = raw::cachestat_range { off: offset, len };
    let mut stat = raw::cachestat {
        nr_cache: 0,
        nr_dirty: 0,
        nr_writeback: 0,
        nr_evicted: 0,
        nr_recently_evicted: 0,
    };
    // SAFETY: both structs have the kernel's layout (sizes asserted above) and live during the
    // call.
    let ret = unsafe {
        libc::syscall(
            libc::c_long::from(raw::__NR_cachestat as i32),
            fd.as_raw_fd(),
            &raw mut range,
            &raw mut stat,
            0u32,
        )
    };
    match check(ret as i32) {
        Ok(_) => Ok(PageCache { cached_pages: stat.nr_cache, dirty_pages: Some(stat.nr_dirty) }),
        Err(Errno::NOSYS) => page_cache_by_mincore(fd, offset, len),
        Err(errno) => Err(errno),
    }
}

fn page_cache_by_mincore(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<PageCache> {
    let page = PAGE_BYTES as u64;
    let size_bytes = file::stat(fd)?.version.size_bytes;
    let end = if len == 0 { size_bytes } else { offset.saturating_add(len).min(size_bytes) };
    let start = offset / page * page;
    if start >= end {
        return Ok(PageCache::default());
    }
    let len = (end - start) as usize;
    let mut states = vec![0u8; len.div_ceil(PAGE_BYTES)];
    // SAFETY: a new mapping without any access right, at an address of the kernel's choice;
    // mincore writes one byte a page to `states`, which is that long; the mapping made is removed.
    unsafe {
        let (none, shared) = (libc::PROT_NONE, libc::MAP_SHARED);
        let null = core::ptr::null_mut();
        let map = libc::mmap(null, len, none, shared, fd.as_raw_fd(), start as i64);
        if map == libc::MAP_FAILED {
            return Err(crate::last_errno());
        }
        let result = check(libc::mincore(map, len, states.as_mut_ptr()));
        libc::munmap(map, len);
        result?;
    }
    let cached_pages = states.iter().filter(|s| **s & 1 == 1).count() as u64;
    Ok(PageCache { cached_pages, dirty_pages: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_disks_read_is_summed() {
        let table = "   7       0 loop0 2687 13 270464 663 2571 42 289960 11205 0 4212 12017\n\
                     \x20 253       0 vda 10 3 80 7 20 1 1600 5 0 1 2 0 0 0 0 1 2\n\
                     \x20 259       0 nvme0n1 5 0 160 7 2 1 8 5 0 1 2\n 1 2 odd\n";
        let sum =
            DeviceIo { read_bytes: 240 * 512, write_bytes: 1608 * 512, reads: 15, writes: 22 };
        assert_eq!(DeviceIo::sum(table), sum);
        assert!(DeviceIo::of_all().is_ok());
    }

    #[test]
    fn dropped_pages_are_read_again_and_every_counter_sees_it() {
        const BYTES: u64 = 1 << 20;
        // The build's own temporary directory: on a real disk, where /tmp need not be.
        let dir = option_env!("CARGO_TARGET_TMPDIR").unwrap_or(env!("CARGO_MANIFEST_DIR"));
        let mut file = tempfile::tempfile_in(dir).unwrap();
        file.write_all(&vec![7; BYTES as usize]).unwrap();
        assert!(page_cache(&file, 0, 0).unwrap().cached_pages >= BYTES / PAGE_BYTES as u64);
        assert!(page_cache(&file, 0, 0).unwrap().dirty_pages.is_none_or(|d| d > 0));
        let by_mincore = page_cache_by_mincore(file.as_fd(), 0, 0).unwrap();
        assert_eq!(by_mincore.cached_pages, BYTES / PAGE_BYTES as u64);
        drop_page_cache(&file).unwrap();
        let Ok(device) = BlockDevice::holding(dir) else {
            return eprintln!("skipped: {dir} is on no block device");
        };
        assert_eq!(page_cache(&file, 0, BYTES).unwrap().cached_pages, 0);
        assert_eq!(page_cache_by_mincore(file.as_fd(), 0, BYTES).unwrap().cached_pages, 0);
        let before = (device.io().unwrap(), ProcessIo::of(std::process::id()).unwrap());
        let mut buf = vec![0; BYTES as usize];
        rustix::io::pread(&file, &mut buf, 0).unwrap();
        let after = (device.io().unwrap(), ProcessIo::of(std::process::id()).unwrap());
        assert!(after.0.read_bytes - before.0.read_bytes >= BYTES, "{before:?} {after:?}");
        assert!(after.0.reads > before.0.reads);
        assert!(after.1.read_bytes - before.1.read_bytes >= BYTES);
        assert!(after.1.asked_read_bytes - before.1.asked_read_bytes >= BYTES);
    }

    #[test]
    fn read_ahead_is_restored() {
        let Ok(device) = BlockDevice::holding(env!("CARGO_MANIFEST_DIR")) else { return };
        let before = device.read_ahead_kib().unwrap();
        // The same value, so that a test never disturbs a measurement that runs beside it.
        match device.set_read_ahead_kib(before) {
            Ok(guard) => assert_eq!(guard.before_kib(), before),
            Err(errno) => eprintln!("skipped: {errno}"),
        }
        assert_eq!(device.read_ahead_kib(), Ok(before));
        assert_eq!(BlockDevice::holding("/proc").unwrap_err(), Errno::NODEV);
    }
}
