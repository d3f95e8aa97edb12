//! Pinned pages: slices of a segment that never fault.

use crate::engine::word::Use;
use crate::library::frames::{Span, WINDOW_BYTES};
use crate::library::segment::Segment;
use pagekeeper_sys::Errno;
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// Bytes of a segment, in memory and unchanged as long as this lives.
pub struct Pinned<'a> {
    span: Span<'a>,
}

/// Bytes of a segment, in memory and this guard's alone as long as it lives. Its pages are dirty.
pub struct PinnedMut<'a> {
    span: Span<'a>,
}

impl Segment {
    /// Pins a byte range for reading: brings its pages in, and keeps them until the guard is
    /// dropped. Several guards may share a page; [`write_at`](Self::write_at) of it waits for all
    /// of them, also for those of its own thread, as a lock would.
    ///
    /// A page that is pinned is not cut off, nor in two ([`set_len`](Self::set_len)); the segment may
    /// grow behind it.
    ///
    /// Pinned pages are frames that the policy cannot use: pin little, or raise the budget. That one range
    /// is no more than half of the frames is seen to; many guards together may hold more than the budget
    /// has, and what else is needed comes beyond it then. A range must not cross a multiple of 1 GiB.
    ///
    /// A guard that is never dropped (`std::mem::forget`) keeps its segment from being closed: the drop of the
    /// last handle waits for it, for ever.
    ///
    /// # Errors
    /// `EINVAL`: the range is empty, reaches behind the end or crosses a gigabyte; `ENOMEM`: it is
    /// more than half of the budget's frames, or no [address
    /// space](crate::library::Builder::build) is left; `EUSERS`: a page of it has 2,048 guards;
    /// `EOPNOTSUPP`: it is several pages of a cache whose [`Translation`](crate::library::Translation) is a
    /// hash table; the store's; `EOWNERDEAD`: in a forked child.
    pub fn pin(&self, range: Range<u64>) -> io::Result<Pinned<'_>> {
        Ok(Pinned { span: self.pin_pages(range, Use::Shared)? })
    }

    /// Pins a byte range for writing: brings its pages in, waits until nobody else reads or writes
    /// them, and keeps them until the guard is dropped. They are dirty from the start. They cannot
    /// be written back meanwhile: [`flush`](Self::flush) waits.
    ///
    /// Guards are locks: threads that pin several ranges for writing do so in the order of their
    /// offsets. Readers that come while this waits let it go first, for up to 10 ms of each 100: in the
    /// rest they pass, since the owner of a guard may be waiting for them. A guard that is never dropped keeps
    /// its segment from being closed, as with [`pin`](Self::pin).
    ///
    /// # Errors
    /// As [`pin`](Self::pin); `EBADF`: the handle may not write; `ENOSPC`.
    pub fn pin_mut(&self, range: Range<u64>) -> io::Result<PinnedMut<'_>> {
        if !self.writable() {
            return Err(Errno::BADF.into());
        }
        Ok(PinnedMut { span: self.pin_pages(range, Use::Exclusive)? })
    }

    fn pin_pages(&self, range: Range<u64>, how: Use) -> io::Result<Span<'_>> {
        self.inner.check_use()?;
        let crosses = range.start / WINDOW_BYTES != range.end.saturating_sub(1) / WINDOW_BYTES;
        if range.is_empty() || crosses || range.end > self.len() {
            return Err(Errno::INVAL.into());
        }
        let pages = self.inner.pages_of(&range);
        if pages.end - pages.start > 1 && self.inner.backing.frames.memfd().is_none() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.inner.check_room(pages.end - pages.start)?;
        let mut frames = Vec::with_capacity((pages.end - pages.start) as usize);
        for index in pages.clone() {
            // Behind the end: it became shorter meanwhile.
            let frame = self.inner.hold(index, how, pages.end - index)?.ok_or(Errno::INVAL)?;
            frames.push(frame);
        }
        // Who makes the segment shorter looks for holds after it says so.
        if range.end > self.len() {
            return Err(Errno::INVAL.into());
        }
        let start = (range.start - pages.start * self.page_bytes()) as usize;
        let within = start..start + (range.end - range.start) as usize;
        Ok(self.inner.backing.frames.span(frames, within))
    }
}

impl Deref for Pinned<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.span.bytes()
    }
}

impl Deref for PinnedMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.span.bytes()
    }
}

impl DerefMut for PinnedMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.span.bytes_mut()
    }
}

impl std::fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("bytes", &self.len()).finish()
    }
}

impl std::fmt::Debug for PinnedMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedMut").field("bytes", &self.len()).finish()
    }
}
