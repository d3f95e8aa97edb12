//! Page-aligned memory for direct I/O, and a small pool of it.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Mutex;

use rustix::mm::{MapFlags, ProtFlags};

use crate::{Errno, PAGE_BYTES, Result};

/// Page-aligned, zeroed memory of a fixed length, straight from the kernel.
#[derive(Debug)]
pub struct Buffer {
    ptr: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the buffer owns its mapping alone, as a Box<[u8]> owns its memory.
unsafe impl Send for Buffer {}
// SAFETY: shared references give only `&[u8]`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `mmap(2)`: at least `len_bytes`, rounded up to whole pages and at least one.
    ///
    /// # Errors
    /// [`Errno::NOMEM`].
    pub fn new(len_bytes: usize) -> Result<Buffer> {
        let len_bytes = len_bytes
            .max(1)
            .checked_next_multiple_of(PAGE_BYTES)
            .filter(|len| isize::try_from(*len).is_ok())
            .ok_or(Errno::NOMEM)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let ptr = NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?;
        Ok(Buffer { ptr, len_bytes })
    }

    /// Where so many bytes of it are, without a reference to the others, which the kernel may write to.
    ///
    /// # Panics
    /// If it has no such bytes.
    pub(crate) fn part(&self, at: usize, len_bytes: usize) -> NonNull<[u8]> {
        assert!(at <= self.len_bytes && len_bytes <= self.len_bytes - at, "{at} and {len_bytes}");
        // SAFETY: inside of the mapping.
        NonNull::slice_from_raw_parts(unsafe { self.ptr.add(at) }, len_bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `len_bytes` long (at most isize::MAX), readable, initialised
        // (zeroed by the kernel), and ours alone until drop; writes need `&mut self`.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the exclusive borrow of self makes this the only reference.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` made; no reference outlives self.
        // Failing (which it cannot, for a whole mapping) would only leak.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len_bytes) };
    }
}

/// Buffers of one length, kept for reuse up to a number.
#[derive(Debug)]
pub struct BufferPool {
    buffer_bytes: usize,
    kept_max: usize,
    free: Mutex<Vec<Buffer>>,
}

impl BufferPool {
    /// A pool of buffers of `buffer_bytes` that keeps at most `kept_max` unused ones.
    pub fn new(buffer_bytes: usize, kept_max: usize) -> BufferPool {
        BufferPool { buffer_bytes, kept_max, free: Mutex::new(Vec::with_capacity(kept_max)) }
    }

    /// A buffer with any content (an earlier user's, or zeros); it returns when it is dropped.
    ///
    /// # Errors
    /// [`Errno::NOMEM`].
    pub fn take(&self) -> Result<PooledBuffer<'_>> {
        let kept = self.free().pop();
        let buffer = kept.map_or_else(|| Buffer::new(self.buffer_bytes), Ok)?;
        Ok(PooledBuffer { buffer: Some(buffer), pool: self })
    }

    /// Unused buffers at present.
    pub fn kept(&self) -> usize {
        self.free().len()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Buffer>> {
        // A panic elsewhere cannot leave the vector half-changed.
        self.free.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A buffer on loan from a [`BufferPool`].
#[derive(Debug)]
pub struct PooledBuffer<'a> {
    /// Empty only during drop.
    buffer: Option<Buffer>,
    pool: &'a BufferPool,
}

impl Deref for PooledBuffer<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or(&[])
    }
}

impl DerefMut for PooledBuffer<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or(&mut [])
    }
}

impl Drop for PooledBuffer<'_> {
    fn drop(&mut self) {
        let mut free = self.pool.free();
        if free.len() < self.pool.kept_max {
            free.extend(self.buffer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_writable() {
        let mut buffer = Buffer::new(PAGE_BYTES + 1).unwrap();
        assert_eq!(buffer.len(), 2 * PAGE_BYTES);
        assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, 0);
        assert!(buffer.iter().all(|b| *b == 0));
        buffer.fill(3);
        assert!(buffer.iter().all(|b| *b == 3));
        assert_eq!(Buffer::new(usize::MAX).unwrap_err(), Errno::NOMEM);
        assert_eq!(Buffer::new(0).unwrap().len(), PAGE_BYTES);
    }

    #[test]
    fn pool_keeps_no_more_than_it_may() {
        let pool = BufferPool::new(PAGE_BYTES, 2);
        let mut three: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        three[0][0] = 1;
        drop(three);
        assert_eq!(pool.kept(), 2);
        let again = pool.take().unwrap();
        assert_eq!((again.len(), pool.kept()), (PAGE_BYTES, 1));
    }
}
