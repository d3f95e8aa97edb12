//! A range of this process's own address space that maps a memfd and is served by a userfaultfd.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::os::fd::AsFd;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::{Errno, Result};

/// How an area maps its memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Readable; stores raise SIGSEGV.
    Read,
    /// Stores go to the memfd.
    Write,
    /// Stores go to private copies of pages.
    CopyOnWrite,
}

/// A mapping of a range of a memfd, made without access, so that nobody touches it before it is
/// registered. A forked child does not inherit it (`MADV_DONTFORK`): nobody serves it there, and it
/// would read zeros.
///
/// It gives out no references: what its bytes are worth depends on who serves its faults.
#[derive(Debug)]
pub struct Area {
    ptr: NonNull<u8>,
    len_bytes: usize,
    access: Access,
}

// SAFETY: an area is an address range of the whole process; no bytes are reached through it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// `mmap(2)` of `len_bytes` (whole pages) from page-aligned `offset`, without access.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]; [`Errno::INVAL`]: length 0 or unaligned.
    pub fn new(fd: impl AsFd, offset: u64, len_bytes: usize, access: Access) -> Result<Area> {
        let kind = match access {
            Access::CopyOnWrite => MapFlags::PRIVATE,
            _ => MapFlags::SHARED,
        };
        let flags = kind | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len_bytes,
                ProtFlags::empty(),
                flags,
                fd,
                offset,
            )?
        };
        let area = Area { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len_bytes, access };
        // SAFETY: the range is the mapping just made; the advice changes what a fork copies.
        unsafe { rustix::mm::madvise(ptr, len_bytes, Advice::LinuxDontFork)? };
        Ok(area)
    }

    /// Gives the access that was asked for. Register it first.
    ///
    /// # Errors
    /// As `mprotect(2)`.
    pub fn open(&self) -> Result<()> {
        let prot = match self.access {
            Access::Read => MprotectFlags::READ,
            Access::Write | Access::CopyOnWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: the range is ours, and nobody has a reference to its bytes yet.
        unsafe { rustix::mm::mprotect(self.ptr.as_ptr().cast(), self.len_bytes, prot) }
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Its first byte, as a number.
    pub fn address(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// How it maps.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Unmaps pages at an address inside, keeping their content in the memfd and their
    /// write-protection: `madvise(2)` MADV_DONTNEED. Not for [`Access::CopyOnWrite`], whose private
    /// copies it would drop.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: outside, unaligned, or copy-on-write.
    pub fn unmap_pages(&self, address: u64, len_bytes: u64) -> Result<()> {
        if self.access == Access::CopyOnWrite {
            return Err(Errno::INVAL);
        }
        self.cut_pages(address, len_bytes)
    }

    /// As [`unmap_pages`](Self::unmap_pages), but private copies are dropped.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: outside, or unaligned.
    pub fn cut_pages(&self, address: u64, len_bytes: u64) -> Result<()> {
        let start = self.address();
        let inside = address >= start && address + len_bytes <= start + self.len_bytes as u64;
        if !inside {
            return Err(Errno::INVAL);
        }
        // SAFETY: a shared mapping of a memfd keeps its content, and a private copy is the caller's to
        // drop; no reference to the bytes is given out. The range is ours.
        unsafe {
            let at = self.ptr.as_ptr().add((address - start) as usize);
            rustix::mm::madvise(at.cast(), len_bytes as usize, Advice::LinuxDontNeed)
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that was made; who reached into it by pointers must have
        // stopped, as the pointers' giver says.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len_bytes) };
    }
}
