//! Memory that frames are in, as one process sees it: its own view of a memfd, beside whatever maps
//! it for others, or memory of its own; and a mark that tells a forked child from its parent.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::os::fd::AsFd;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::{Errno, PAGE_BYTES, Result, torn};

/// A writable shared mapping of a range of a memfd, or private memory. A mapping may reach behind the
/// end of the memfd.
///
/// Touching a page that is in no frame makes a frame of zeros, which everybody sees from then on:
/// only who knows that a page is there, or is filling it, may ask for its bytes. A forked child
/// does not inherit the mapping (`MADV_DONTFORK`): it would plant such pages.
#[derive(Debug)]
pub struct Alias {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an alias is an address range of the whole process; its bytes are reached only under the
// contracts of `AliasRange`.
unsafe impl Send for Alias {}
// SAFETY: as above.
unsafe impl Sync for Alias {}

impl Alias {
    /// `mmap(2)` of `len_bytes` from page-aligned `offset`.
    ///
    /// # Errors
    /// [`Errno::NOMEM`]: no address space is left; [`Errno::INVAL`]: length 0 or unaligned.
    pub fn new(fd: impl AsFd, offset: u64, len_bytes: usize) -> Result<Alias> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), len_bytes, prot, flags, fd, offset)? };
        Alias::of(ptr, len_bytes)
    }

    /// Address space for memory of nobody else: `mmap(2)` MAP_ANONYMOUS of `len_bytes`, without access.
    /// What is to be used is [opened](AliasRange::open) first.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn reserve(len_bytes: usize) -> Result<Alias> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            let prot = ProtFlags::empty();
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), len_bytes, prot, flags)?
        };
        Alias::of(ptr, len_bytes)
    }

    /// A mapping just made, of so many bytes.
    fn of(ptr: *mut core::ffi::c_void, len_bytes: usize) -> Result<Alias> {
        let alias = Alias { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len_bytes };
        // SAFETY: the range is the mapping just made; the advice changes what a fork copies.
        unsafe { rustix::mm::madvise(ptr, len_bytes, Advice::LinuxDontFork)? };
        Ok(alias)
    }

    /// `madvise(2)` MADV_HUGEPAGE: frames may be huge pages where the machine lets such memory have
    /// them. Best effort.
    pub fn advise_huge(&self) {
        // SAFETY: the range is the mapping; the advice changes no content.
        let _ = unsafe {
            rustix::mm::madvise(self.ptr.as_ptr().cast(), self.len_bytes, Advice::LinuxHugepage)
        };
    }

    /// Its first byte, as a number.
    pub fn address(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where a range of it lies. `None`: not inside.
    #[inline]
    pub fn range(&self, offset_bytes: usize, len: usize) -> Option<AliasRange<'_>> {
        offset_bytes.checked_add(len).filter(|end| *end <= self.len_bytes)?;
        // SAFETY: inside the mapping, as just checked.
        let ptr = unsafe { self.ptr.as_ptr().add(offset_bytes) };
        Some(AliasRange { ptr, len, alias: PhantomData })
    }
}

/// Where a range of an [`Alias`] lies; what it holds is another matter.
#[derive(Clone, Copy, Debug)]
pub struct AliasRange<'a> {
    ptr: *mut u8,
    len: usize,
    alias: PhantomData<&'a Alias>,
}

// SAFETY: as for the alias.
unsafe impl Send for AliasRange<'_> {}
// SAFETY: as above.
unsafe impl Sync for AliasRange<'_> {}

impl<'a> AliasRange<'a> {
    /// Its address, for transfers by the kernel; valid as long as the alias is.
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// Its length.
    #[expect(clippy::len_without_is_empty, reason = "an empty one is of no use")]
    pub fn len(self) -> usize {
        self.len
    }

    /// A part of it. `None`: not inside.
    #[inline]
    pub fn part(self, within: core::ops::Range<usize>) -> Option<AliasRange<'a>> {
        let len = within.end.checked_sub(within.start).filter(|_| within.end <= self.len)?;
        // SAFETY: inside the mapping, as just checked.
        let ptr = unsafe { self.ptr.add(within.start) };
        Some(AliasRange { ptr, len, alias: PhantomData })
    }

    /// Its bytes.
    ///
    /// # Safety
    /// As long as the slice lives, every page of the range is in a frame (or the caller fills it
    /// just now), and nobody in this process or another changes a byte of the range.
    #[inline]
    pub unsafe fn bytes(self) -> &'a [u8] {
        // SAFETY: inside the mapping, which lives as long as the alias does; the rest is the
        // caller's promise.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// Copies as many of its first bytes as `buf` has, whoever changes them meanwhile.
    ///
    /// # Panics
    /// `buf` is longer.
    ///
    /// # Safety
    /// It is open memory of [`Alias::reserve`], whatever its pages are used for meanwhile.
    #[inline(always)]
    pub unsafe fn copy_torn(self, buf: &mut [u8]) {
        assert!(buf.len() <= self.len);
        // SAFETY: inside the mapping, of which nothing is cut off while it lives.
        unsafe { torn::copy(buf, self.ptr) }
    }

    /// Its bytes, to be changed.
    ///
    /// # Safety
    /// As for [`AliasRange::bytes`], and nobody else reads the range either.
    #[inline]
    pub unsafe fn bytes_mut(self) -> &'a mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { core::slice::from_raw_parts_mut(self.ptr, self.len) }
    }

    /// Changes its first bytes while others may be copying them, who get each as it was or as it is:
    /// what a write to a shared mapping does to who reads it.
    ///
    /// # Panics
    /// There are more bytes than the range has.
    ///
    /// # Safety
    /// Its pages are in frames, and stay there. Nobody has a reference to the bytes that lives longer
    /// than a copy of them takes.
    pub unsafe fn overwrite(self, data: &[u8]) {
        assert!(data.len() <= self.len, "{} bytes of {}", data.len(), self.len);
        for (at, byte) in data.iter().enumerate() {
            // SAFETY: inside the range, and any address is aligned for a byte.
            unsafe { AtomicU8::from_ptr(self.ptr.add(at)) }.store(*byte, Relaxed);
        }
    }

    /// Lets its whole pages be used, which are zeros and take memory when they are touched:
    /// `mprotect(2)`. For [`Alias::reserve`].
    ///
    /// # Errors
    /// [`Errno::NOMEM`]; [`Errno::INVAL`]: it does not begin with a page.
    pub fn open(self) -> Result<()> {
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: inside the mapping; more access takes nothing from anybody.
        unsafe { rustix::mm::mprotect(self.ptr.cast(), self.len, access) }
    }

    /// Gives the memory of its whole pages back, which are zeros when they are touched again:
    /// `madvise(2)` MADV_DONTNEED. Of [`Alias::reserve`] only; frames of a memfd stay in it.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: it does not begin and end with a page.
    ///
    /// # Safety
    /// Nobody uses the range.
    pub unsafe fn give_back(self) -> Result<()> {
        // SAFETY: inside the mapping, and unused.
        unsafe { rustix::mm::madvise(self.ptr.cast(), self.len, Advice::LinuxDontNeed) }
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that was made; slices of it borrow self.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len_bytes) };
    }
}

/// Tells the process that made it from every child forked later, by whatever means: a page that the
/// kernel wipes in children (`MADV_WIPEONFORK`).
#[derive(Clone, Copy, Debug)]
pub struct ForkMark(NonNull<AtomicU32>);

// SAFETY: the page is reached as an atomic only.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks this process. The page is never given back.
    ///
    /// # Errors
    /// [`Errno::NOMEM`].
    pub fn new() -> Result<ForkMark> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::PRIVATE)?
        };
        let mark = ForkMark(NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?);
        // SAFETY: the range is the page just made.
        unsafe { rustix::mm::madvise(ptr, PAGE_BYTES, Advice::LinuxWipeOnFork)? };
        mark.word().store(1, Relaxed);
        Ok(mark)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page lives as long as the process, is aligned, and any bits are valid.
        unsafe { self.0.as_ref() }
    }

    /// Whether this is the process that made the mark.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.word().load(Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_child::in_child;
    use crate::memfd::Memfd;

    #[test]
    fn an_alias_shows_what_the_memfd_holds() {
        let page = PAGE_BYTES as u64;
        let memfd = Memfd::create("t", 4 * page, false).unwrap();
        let alias = Alias::new(&memfd, page, 1 << 30).unwrap();
        memfd.write_at(&[7; 8], page + 100).unwrap();
        // SAFETY: nobody else uses the memfd.
        unsafe {
            assert_eq!(alias.range(100, 8).unwrap().bytes(), [7; 8]);
            alias.range(2 * PAGE_BYTES, 3).unwrap().bytes_mut().fill(9);
        }
        let mut three = [0; 3];
        memfd.read_at(&mut three, 3 * page).unwrap();
        assert_eq!(three, [9; 3]);
        assert_eq!(memfd.used_bytes(), Ok(2 * page), "other pages stay holes");
    }

    #[test]
    fn memory_is_overwritten_and_given_back() {
        let memory = Alias::reserve(1 << 40).unwrap();
        memory.advise_huge();
        memory.range(0, 4 * PAGE_BYTES).unwrap().open().unwrap();
        let range = |page: usize| memory.range(page * PAGE_BYTES, PAGE_BYTES).unwrap();
        // SAFETY: nobody else uses the memory.
        unsafe {
            range(1).bytes_mut().fill(7);
            range(2).bytes_mut().fill(8);
            range(1).overwrite(b"new");
            assert_eq!(range(1).bytes()[..4], *b"new\x07");
            let mut copy = [0; 4];
            range(1).copy_torn(&mut copy);
            assert_eq!(copy, *b"new\x07");
            range(1).give_back().unwrap();
            assert_eq!((range(1).bytes()[0], range(2).bytes()[0]), (0, 8));
        }
    }

    #[test]
    fn ranges_outside_are_refused() {
        let memfd = Memfd::create("t", 4096, false).unwrap();
        let alias = Alias::new(&memfd, 0, 4096).unwrap();
        assert!(alias.range(4000, 96).is_some());
        assert!(alias.range(4000, 97).is_none());
        assert!(alias.range(usize::MAX, 2).is_none());
        let range = alias.range(100, 200).unwrap();
        assert_eq!(range.part(50..200).unwrap().len(), 150);
        let backwards = std::ops::Range { start: 5, end: 4 };
        assert!(range.part(50..201).is_none() && range.part(backwards).is_none());
    }

    #[test]
    fn a_forked_child_is_told_from_its_parent() {
        let mark = ForkMark::new().unwrap();
        assert!(mark.is_here());
        let is_here = in_child(|| i32::from(mark.is_here()));
        assert_eq!(is_here, 0, "the child took itself for its parent");
    }
}
