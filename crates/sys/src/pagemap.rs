//! Page states of a process: `/proc/PID/pagemap` (Linux `Documentation/admin-guide/mm/pagemap.rst`).
#![allow(unsafe_code)]

use core::mem::size_of;
use std::os::fd::OwnedFd;

use bitflags::bitflags;
use linux_raw_sys::general as raw;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::mask::{self, Capability};
use crate::{Errno, PAGE_BYTES, Result};

/// `PAGEMAP_SCAN`, `_IOWR('f', 16, struct pm_scan_arg)`; linux-raw-sys has the struct only.
const PAGEMAP_SCAN: Opcode = opcode::read_write::<raw::pm_scan_arg>(b'f', 16);
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610 && size_of::<raw::pm_scan_arg>() == 96);
const _: () = assert!(size_of::<raw::page_region>() == 24);

bitflags! {
    /// What can be true of a page: `PAGE_IS_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Categories: u64 {
        /// Its range is registered for asynchronous write protection.
        const WP_ALLOWED = raw::PAGE_IS_WPALLOWED as u64;
        /// Written since it was last protected.
        const WRITTEN = raw::PAGE_IS_WRITTEN as u64;
        /// Of a file or shared memory.
        const FILE = raw::PAGE_IS_FILE as u64;
        /// Mapped.
        const PRESENT = raw::PAGE_IS_PRESENT as u64;
        /// Swapped out, or a marker stands in its place.
        const SWAPPED = raw::PAGE_IS_SWAPPED as u64;
        /// The kernel's page of zeros.
        const ZERO_FRAME = raw::PAGE_IS_PFNZERO as u64;
        /// Part of a huge page.
        const HUGE = raw::PAGE_IS_HUGE as u64;
        const _ = !0;
    }
}

/// A run of pages that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
    /// What is true of them.
    pub categories: Categories,
}

/// A word of the pagemap: one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    /// Mapped to a frame.
    pub fn is_present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Swapped out, or a marker (as for write protection of an unmapped page) is in its place.
    pub fn is_swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Write-protected by userfaultfd.
    pub fn is_write_protected(self) -> bool {
        self.0 >> 57 & 1 == 1
    }

    /// The frame's number; `None` if not mapped, or without CAP_SYS_ADMIN.
    pub fn frame_number(self) -> Option<u64> {
        let number = self.0 & ((1 << 55) - 1);
        (self.is_present() && number != 0).then_some(number)
    }
}

/// The pagemap of a process.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
}

impl Pagemap {
    /// Opens `/proc/PID/pagemap`.
    ///
    /// # Errors
    /// [`Errno::NOENT`]: no such process; [`Errno::ACCESS`]/[`Errno::PERM`]: not permitted to
    /// trace it.
    pub fn open(pid: u32) -> Result<Pagemap> {
        let path = format!("/proc/{pid}/pagemap");
        let fd = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Pagemap { fd })
    }

    /// The entries of `count` pages from page-aligned `start`; fewer at the end of the address
    /// space.
    ///
    /// # Errors
    /// As `pread(2)`; none once the process has ended, which reads as nothing.
    pub fn entries(&self, start: u64, count: usize) -> Result<Vec<Entry>> {
        let mut bytes = vec![0u8; count * size_of::<u64>()];
        let at = start / PAGE_BYTES as u64 * size_of::<u64>() as u64;
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pread(&self.fd, &mut bytes[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let (words, _) = bytes[..done].as_chunks::<8>();
        Ok(words.iter().map(|w| Entry(u64::from_ne_bytes(*w))).collect())
    }

    /// `PAGEMAP_SCAN`: appends to `regions` the runs of pages in `[start, end)` of which all of
    /// `required` is true, with these categories filled in, up to 512 runs; with `write_protect`
    /// those pages are protected in the same step (the range must be registered for
    /// [`crate::userfault::Features::WP_ASYNC`]). Returns where it stopped: `end`, or an address to
    /// go on from.
    ///
    /// # Errors
    /// [`Errno::NOTTY`]: the kernel lacks it; [`Errno::PERM`]: `write_protect` on a range that is
    /// not so registered; [`Errno::SRCH`]: the process has ended.
    pub fn scan(
        &self,
        start: u64,
        end: u64,
        required: Categories,
        write_protect: bool,
        regions: &mut Vec<Region>,
    ) -> Result<u64> {
        if !mask::allows(Capability::PagemapScan) {
            return Err(Errno::NOTTY);
        }
        let mut vec = [raw::page_region { start: 0, end: 0, categories: 0 }; 512];
        let protect = raw::PM_SCAN_WP_MATCHING | raw::PM_SCAN_CHECK_WPASYNC;
        let mut arg = raw::pm_scan_arg {
            size: size_of::<raw::pm_scan_arg>() as u64,
            flags: if write_protect { u64::from(protect) } else { 0 },
            start,
            end,
            walk_end: 0,
            vec: vec.as_mut_ptr() as u64,
            vec_len: vec.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: required.bits(),
            category_anyof_mask: 0,
            return_mask: required.bits(),
        };
        // SAFETY: the number and the struct belong together (asserted above); the struct names
        // `vec`, which lives during the call, with its true length, and integers take any bits.
        let found = unsafe { ioctl(&self.fd, Scan(Updater::new(&mut arg)))? };
        regions.extend(vec[..found].iter().map(|r| Region {
            start: r.start,
            end: r.end,
            categories: Categories::from_bits_retain(r.categories),
        }));
        Ok(arg.walk_end)
    }
}

/// The scan, whose result (the number of regions) rustix's pattern drops.
struct Scan<'a>(Updater<'a, PAGEMAP_SCAN, raw::pm_scan_arg>);

// SAFETY: as the updater pattern, with the call's return value as the result.
unsafe impl rustix::ioctl::Ioctl for Scan<'_> {
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }

    fn as_ptr(&mut self) -> *mut libc::c_void {
        self.0.as_ptr()
    }

    unsafe fn output_from_ptr(
        out: rustix::ioctl::IoctlOutput,
        _: *mut libc::c_void,
    ) -> Result<usize> {
        usize::try_from(out).map_err(|_| Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_pages_are_found() {
        let mut buffer = crate::buffer::Buffer::new(16 * PAGE_BYTES).unwrap();
        let start = buffer.as_ptr() as u64;
        buffer[3 * PAGE_BYTES] = 1;
        buffer[4 * PAGE_BYTES] = 1;
        let pagemap = Pagemap::open(std::process::id()).unwrap();
        let entries = pagemap.entries(start, 16).unwrap();
        let present: Vec<_> = (0..16).filter(|i| entries[*i].is_present()).collect();
        assert_eq!(present, [3, 4]);
        let (mut regions, page) = (Vec::new(), PAGE_BYTES as u64);
        let end = start + 16 * page;
        match pagemap.scan(start, end, Categories::PRESENT, false, &mut regions) {
            Err(Errno::NOTTY) => eprintln!("skipped: this kernel has no PAGEMAP_SCAN"),
            result => {
                assert_eq!(result, Ok(end));
                let runs: Vec<_> = regions.iter().map(|r| (r.start, r.end)).collect();
                assert_eq!(runs, [(start + 3 * page, start + 5 * page)]);
            }
        }
    }
}
