//! Memory shared between processes: mappings of a memfd, reached through atomics only, because
//! another process may change any byte at any time.
#![allow(unsafe_code)]

use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::os::fd::AsFd;

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Errno, PAGE_BYTES, Result};

mod sealed {
    pub trait Sealed {}
    impl Sealed for core::sync::atomic::AtomicU8 {}
    impl Sealed for core::sync::atomic::AtomicU32 {}
    impl Sealed for core::sync::atomic::AtomicU64 {}
}

/// An atomic integer that shared memory can be seen as; any bytes are a valid value.
pub trait Word: sealed::Sealed {}
impl Word for AtomicU8 {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// A mapping owned by this value.
#[derive(Debug)]
struct Mapping {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a mapping is an address range of the whole process; all access goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of_file(fd: impl AsFd, offset: u64, len_bytes: usize, prot: ProtFlags) -> Result<Mapping> {
        if len_bytes == 0 || isize::try_from(len_bytes).is_err() {
            return Err(Errno::INVAL);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr =
            unsafe { rustix::mm::mmap(core::ptr::null_mut(), len_bytes, prot, flags, fd, offset)? };
        let ptr = NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?;
        Ok(Mapping { ptr, len_bytes })
    }

    /// `count` words from byte `offset`.
    ///
    /// # Panics
    /// They do not lie inside, or are not aligned.
    #[inline(always)]
    fn words<T: Word>(&self, offset_bytes: usize, count: usize) -> &[T] {
        assert!(offset_bytes.is_multiple_of(align_of::<T>()), "unaligned words in shared memory");
        let end = count.checked_mul(size_of::<T>()).and_then(|n| n.checked_add(offset_bytes));
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "words {offset_bytes}+{count} outside {} bytes of shared memory",
            self.len_bytes
        );
        // SAFETY: the range lies inside the mapping, which lives as long as self and starts on a
        // page, so `offset_bytes` decides the alignment. All bits are valid for the integer
        // atomics that `Word` admits. Other threads and processes change the memory only behind
        // atomics' backs as hardware does, which atomics allow; this process hands out no
        // non-atomic reference to it. A page that is gone (file truncated) raises SIGBUS, which is
        // no undefined behaviour.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr().add(offset_bytes).cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that was made; references into it borrow self.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len_bytes) };
    }
}

/// Wakes whoever waits (`futex(2)`) at an offset of a file, by whatever mapping of it.
///
/// # Errors
/// As `mmap(2)` and `futex(2)`: [`Errno::FAULT`], the file is shorter.
pub fn wake_futex(file: impl AsFd, offset: u64) -> Result<()> {
    let in_page = (offset % PAGE_BYTES as u64) as usize;
    let map = Mapping::of_file(file, offset - in_page as u64, PAGE_BYTES, ProtFlags::READ)?;
    let word = map.ptr.as_ptr().wrapping_add(in_page);
    // SAFETY: wakes threads, which have to expect that at any moment, and changes no memory.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    crate::check(woken as libc::c_int).map(drop)
}

/// A writable shared mapping. Address space is taken at once, memory when touched, so arrays for
/// terabytes of pages are cheap until used.
#[derive(Debug)]
pub struct SharedMap(Mapping);

impl SharedMap {
    /// `mmap(2)` MAP_SHARED | MAP_NORESERVE of `len_bytes` of a memfd from page-aligned `offset`.
    ///
    /// The file should be sealed against shrinking: touching a page behind its end raises SIGBUS.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: length 0 or offset unaligned; [`Errno::ACCESS`]: the descriptor is
    /// read-only; [`Errno::NOMEM`].
    pub fn new(fd: impl AsFd, offset: u64, len_bytes: usize) -> Result<SharedMap> {
        Mapping::of_file(fd, offset, len_bytes, ProtFlags::READ | ProtFlags::WRITE).map(SharedMap)
    }

    /// A memfd of this name and size, sealed against resizing, and its mapping.
    ///
    /// # Errors
    /// As [`crate::memfd::Memfd::create`] and [`SharedMap::new`].
    pub fn create(name: &str, len_bytes: usize) -> Result<(crate::memfd::Memfd, SharedMap)> {
        use crate::memfd::{Memfd, SealFlags};
        let sealing = crate::mask::allows(crate::mask::Capability::MemfdSeals);
        let memfd = Memfd::create(name, len_bytes as u64, sealing)?;
        if sealing {
            memfd.add_seals(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        }
        let map = SharedMap::new(&memfd, 0, len_bytes)?;
        Ok((memfd, map))
    }

    /// Memory without a file, which this process and its children share: for who may make no file of this
    /// length. (Where the kernel promises no more memory than there is, it counts as a whole.)
    ///
    /// # Errors
    /// [`Errno::INVAL`]: length 0; [`Errno::NOMEM`].
    pub fn without_file(len_bytes: usize) -> Result<SharedMap> {
        if len_bytes == 0 || isize::try_from(len_bytes).is_err() {
            return Err(Errno::INVAL);
        }
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let ptr =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len_bytes, prot, flags)? };
        let ptr = NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedMap(Mapping { ptr, len_bytes }))
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Where it lies in this process.
    pub fn address(&self) -> u64 {
        self.0.ptr.as_ptr() as u64
    }

    /// `count` atomic words from byte `offset_bytes`.
    ///
    /// # Panics
    /// They do not lie inside, or are not aligned.
    #[inline]
    pub fn words<T: Word>(&self, offset_bytes: usize, count: usize) -> &[T] {
        self.0.words(offset_bytes, count)
    }

    /// The word of this index, if all of it is seen as such.
    ///
    /// # Panics
    /// It does not lie inside.
    #[inline(always)]
    pub fn word<T: Word>(&self, index: usize) -> &T {
        &self.0.words(index * size_of::<T>(), 1)[0]
    }

    /// All of it (whole words) as bytes, 32-bit or 64-bit atomics.
    #[inline]
    pub fn all<T: Word>(&self) -> &[T] {
        self.0.words(0, self.0.len_bytes / size_of::<T>())
    }

    /// Copies `bytes` in at `offset_bytes`, in relaxed stores of single bytes and aligned words.
    ///
    /// # Panics
    /// The range does not lie inside.
    pub fn copy_in(&self, offset_bytes: usize, bytes: &[u8]) {
        let (head, body, tail) = split(offset_bytes, bytes.len());
        let store_bytes = |at: usize, bytes: &[u8]| {
            for (to, from) in self.words::<AtomicU8>(at, bytes.len()).iter().zip(bytes) {
                to.store(*from, Relaxed);
            }
        };
        store_bytes(offset_bytes, &bytes[..head]);
        let words = self.words::<AtomicU64>((offset_bytes + head) & !7, body / 8);
        let (chunks, _) = bytes[head..head + body].as_chunks::<8>();
        for (to, from) in words.iter().zip(chunks) {
            to.store(u64::from_ne_bytes(*from), Relaxed);
        }
        store_bytes(offset_bytes + head + body, &bytes[head + body..head + body + tail]);
    }

    /// Copies bytes out, in relaxed loads.
    ///
    /// # Panics
    /// The range does not lie inside.
    pub fn copy_out(&self, offset_bytes: usize, bytes: &mut [u8]) {
        copy_out(&self.0, offset_bytes, bytes);
    }

    /// `madvise(2)` MADV_REMOVE: the pages' memory is given back and reads as zeros. Page-aligned.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: unaligned or outside.
    pub fn remove(&self, offset_bytes: usize, len_bytes: usize) -> Result<()> {
        let end = offset_bytes.checked_add(len_bytes).ok_or(Errno::INVAL)?;
        if end > self.0.len_bytes || !offset_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the range is ours; atomics see its bytes change to zero, as another process
        // could have changed them.
        unsafe {
            let start = self.0.ptr.as_ptr().add(offset_bytes).cast();
            rustix::mm::madvise(start, len_bytes, rustix::mm::Advice::LinuxRemove)
        }
    }
}

/// A read-only shared mapping: what a receiver of a read-only descriptor may have. No reference to
/// atomics is given, since a store through one would fault.
#[derive(Debug)]
pub struct ReadOnlyMap(Mapping);

impl ReadOnlyMap {
    /// `mmap(2)` MAP_SHARED, readable, of `len_bytes` of a memfd from page-aligned `offset`.
    ///
    /// # Errors
    /// [`Errno::INVAL`]: length 0 or offset unaligned; [`Errno::NOMEM`].
    pub fn new(fd: impl AsFd, offset: u64, len_bytes: usize) -> Result<ReadOnlyMap> {
        Mapping::of_file(fd, offset, len_bytes, ProtFlags::READ).map(ReadOnlyMap)
    }

    /// Where it lies in this process.
    pub fn address(&self) -> u64 {
        self.0.ptr.as_ptr() as u64
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// The byte at an offset.
    ///
    /// # Panics
    /// It does not lie inside.
    #[inline]
    pub fn byte(&self, offset_bytes: usize) -> u8 {
        self.0.words::<AtomicU8>(offset_bytes, 1)[0].load(Relaxed)
    }

    /// The aligned 32-bit word at an offset.
    ///
    /// # Panics
    /// It does not lie inside, or is not aligned.
    #[inline]
    pub fn word_u32(&self, offset_bytes: usize) -> u32 {
        self.0.words::<AtomicU32>(offset_bytes, 1)[0].load(Relaxed)
    }

    /// The aligned 64-bit word at an offset.
    ///
    /// # Panics
    /// It does not lie inside, or is not aligned.
    #[inline]
    pub fn word_u64(&self, offset_bytes: usize) -> u64 {
        self.0.words::<AtomicU64>(offset_bytes, 1)[0].load(Relaxed)
    }

    /// Copies bytes out, in relaxed loads.
    ///
    /// # Panics
    /// The range does not lie inside.
    pub fn copy_out(&self, offset_bytes: usize, bytes: &mut [u8]) {
        copy_out(&self.0, offset_bytes, bytes);
    }
}

/// Splits a range into bytes before the first aligned word, bytes in whole words, and the rest.
fn split(offset_bytes: usize, len: usize) -> (usize, usize, usize) {
    let head = (offset_bytes.wrapping_neg() & 7).min(len);
    let body = (len - head) & !7;
    (head, body, len - head - body)
}

fn copy_out(mapping: &Mapping, offset_bytes: usize, bytes: &mut [u8]) {
    let (head, body, _) = split(offset_bytes, bytes.len());
    let load_bytes = |at: usize, bytes: &mut [u8]| {
        for (from, to) in mapping.words::<AtomicU8>(at, bytes.len()).iter().zip(bytes) {
            *to = from.load(Relaxed);
        }
    };
    load_bytes(offset_bytes, &mut bytes[..head]);
    let words = mapping.words::<AtomicU64>((offset_bytes + head) & !7, body / 8);
    let (chunks, _) = bytes[head..head + body].as_chunks_mut::<8>();
    for (from, to) in words.iter().zip(chunks) {
        *to = from.load(Relaxed).to_ne_bytes();
    }
    load_bytes(offset_bytes + head + body, &mut bytes[head + body..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_mappings_see_each_other_and_memory_is_committed_lazily() {
        const LEN: usize = 8 << 30;
        let (memfd, map) = SharedMap::create("t", LEN).unwrap();
        let reader = ReadOnlyMap::new(memfd.reopen_read_only().unwrap(), 0, LEN).unwrap();
        map.all::<AtomicU32>()[LEN / 4 - 1].store(5, Relaxed);
        map.words::<AtomicU64>(4096, 2)[1].store(6, Relaxed);
        assert_eq!((reader.word_u32(LEN - 4), reader.word_u64(4104), reader.byte(4104)), (5, 6, 6));
        assert!(memfd.used_bytes().unwrap() <= 4 << 12);
        map.remove(4096, 4096).unwrap();
        assert_eq!(reader.word_u64(4104), 0);
        assert_eq!(map.remove(LEN, 4096), Err(Errno::INVAL));
    }

    #[test]
    fn memory_without_a_file_is_given_back_all_the_same() {
        let map = SharedMap::without_file(1 << 30).unwrap();
        map.words::<AtomicU64>(4096, 2)[1].store(6, Relaxed);
        map.words::<AtomicU64>(8192, 1)[0].store(7, Relaxed);
        map.remove(4096, 4096).unwrap();
        let words = map.all::<AtomicU64>();
        assert_eq!((words[513].load(Relaxed), words[1024].load(Relaxed)), (0, 7));
        assert_eq!(SharedMap::without_file(0).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn read_only_descriptor_gives_no_writable_mapping() {
        let (memfd, map) = SharedMap::create("t", 4096).unwrap();
        let fd = memfd.reopen_read_only().unwrap();
        assert_eq!(SharedMap::new(&fd, 0, 4096).unwrap_err(), Errno::ACCESS);
        assert_eq!(SharedMap::new(&memfd, 0, 0).unwrap_err(), Errno::INVAL);
        assert_eq!(map.len_bytes(), 4096);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn words_outside_are_refused() {
        let (_memfd, map) = SharedMap::create("t", 4096).unwrap();
        map.words::<AtomicU64>(4088, 2);
    }

    proptest! {
        #[test]
        fn copies_behave_as_slices_do(
            writes in prop::collection::vec((0usize..4000, prop::collection::vec(any::<u8>(), 0..96)), 1..20),
            at in 0usize..4000, len in 0usize..96,
        ) {
            let (_memfd, map) = SharedMap::create("t", 4096).unwrap();
            let mut model = vec![0u8; 4096];
            for (offset, bytes) in &writes {
                map.copy_in(*offset, bytes);
                model[*offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            let mut got = vec![0; len];
            map.copy_out(at, &mut got);
            prop_assert_eq!(&got[..], &model[at..at + len]);
            let mut all = vec![0; 4096];
            map.copy_out(0, &mut all);
            prop_assert_eq!(all, model);
        }
    }
}
