//! Writing to a segment: `pwrite(2)`.

use super::{Inner, Segment, WriteBack};
use crate::engine::patience::Patience;
use crate::engine::word::Use;
use crate::library::frames::SEGMENT_BYTES_MAX;
use crate::library::regions::may_be_managed;
use crate::library::store::io_error;
use crate::port::PortError;
use pagekeeper_sys::Errno;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

impl Segment {
    /// Writes at an offset: `pwrite(2)`. Makes the segment longer where it reaches behind its end.
    /// Returns the bytes written, fewer than given only before a page that cannot be written.
    ///
    /// Waits for whoever has a page of the range pinned. What reaches behind the end makes the store longer
    /// each time, which takes some ten system calls: who appends much in small parts makes the segment longer
    /// ahead, in large steps ([`set_len`](Self::set_len)).
    ///
    /// # Errors
    /// `EBADF`: the handle may not write; `ENOSPC` and others of the store, for the first page, such as `EINVAL`
    /// behind the end of one of fixed length; `EFBIG`, `EINVAL`: the range is too far out; `ENOMEM`: pages that are
    /// written back on commit fill the cache; `EOWNERDEAD`: in a forked child. The segment may be longer
    /// all the same, where its store grew and then could not say how long it is.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        if offset > i64::MAX as u64 {
            return Err(Errno::INVAL.into());
        }
        if buf.is_empty() {
            return Ok(0);
        }
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= SEGMENT_BYTES_MAX);
        end.ok_or(Errno::FBIG)?;
        if may_be_managed(buf) {
            // Its touch may need a page itself.
            let mut done = 0;
            while done < buf.len() {
                let at = offset + done as u64;
                let len = self.inner.bounce_bytes(at, buf.len() - done);
                let copy = buf[done..done + len].to_vec();
                match self.write_within(&copy, at) {
                    Ok(n) if n == len => done += n,
                    Ok(n) => return Ok(done + n),
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            return Ok(done);
        }
        self.write_within(buf, offset)
    }

    /// Writes, and writes back what that made full, if it is to be.
    fn write_within(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let written = self.write_cached(buf, offset)?;
        if self.inner.write_back_mode() == WriteBack::WhenFull {
            let (first, end) = (offset, offset + written as u64);
            let full = first / self.page_bytes()..end / self.page_bytes();
            if !full.is_empty() {
                // As in the background: an error is told by the next flush, and nobody waited for.
                let _ = self.inner.shared().engine.write_out_unheld(self.inner.no, full);
            }
        }
        Ok(written)
    }

    /// Writes, making the segment longer where it ends before the bytes do.
    fn write_cached(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let end = offset + buf.len() as u64;
        let inner = &*self.inner;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let size = inner.len();
            let written = if end <= size {
                inner.write(&buf[done..], at).map_err(io_error)
            } else {
                self.write_past_end(&buf[done..], at, end)
            };
            match written {
                // It became shorter meanwhile: look again.
                Ok(n) if done + n < buf.len() && end > inner.len() => done += n,
                Ok(n) => return Ok(done + n),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// A write that reaches behind the end. Its bytes are there before the new length is told, so that nobody
    /// finds others in their place, nor writes what goes again where they fall short.
    fn write_past_end(&self, buf: &[u8], at: u64, end: u64) -> io::Result<usize> {
        let inner = &*self.inner;
        let mut resizing = inner.resizing();
        // Of another one that waits for whoever holds its page.
        inner.tell_all();
        let before = inner.len();
        if let Err(error) = inner.grow_untold(end) {
            inner.tell_all();
            return Err(error);
        }
        let lengths = inner.lengths();
        let bound = &inner.backing.stored_size;
        let mut done = 0;
        let written = loop {
            let next = at + done as u64;
            match inner.write_before(bound, &buf[done..], next, Patience::Motion) {
                // Whoever holds the page may be about to change the length.
                Err(PortError::Again) => {
                    drop(resizing);
                    inner.await_holders(next / inner.page_bytes());
                    resizing = inner.resizing();
                    if inner.lengths() != lengths && inner.len() < end {
                        break Ok(done);
                    }
                }
                Ok(0) => break Ok(done),
                Ok(n) => {
                    done += n;
                    if done == buf.len() {
                        break Ok(done);
                    }
                }
                Err(error) if done == 0 => break Err(io_error(error)),
                Err(_) => break Ok(done),
            }
        };
        // The segment ends behind what was written, as if no more had been asked for; unless its length
        // was somebody else's affair since.
        let reached = at + done as u64;
        if reached < end
            && inner.lengths() == lengths
            && inner.backing.store.len().is_ok_and(|len| len == end)
        {
            let _ = inner.shrink(reached.max(before));
        }
        inner.tell_all();
        drop(resizing);
        written
    }

    /// Writes all of `buf`.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.write_at(&buf[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Writes within the segment's present length; returns fewer bytes when it became shorter
    /// meanwhile, or for an error behind the first page.
    fn write(&self, buf: &[u8], offset: u64) -> Result<usize, PortError> {
        self.write_if(buf, offset, Patience::Holders)
    }

    /// The same with so much patience.
    pub(crate) fn write_if(
        &self,
        buf: &[u8],
        offset: u64,
        patience: Patience,
    ) -> Result<usize, PortError> {
        self.write_before(self.size(), buf, offset, patience)
    }

    /// The same before another end.
    fn write_before(
        &self,
        end: &AtomicU64,
        buf: &[u8],
        offset: u64,
        patience: Patience,
    ) -> Result<usize, PortError> {
        let engine = &self.shared().engine;
        let page = self.page_bytes() as usize;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = at as usize & (page - 1);
            let index = at / page as u64;
            let whole = (buf.len() - done) / page * page;
            let written = if within == 0 && whole > 0 && !self.backing.frames.is_resident(index) {
                engine
                    .overwrite(self.place(index), &buf[done..done + whole], patience)
                    .map(|p| p as usize * page)
            } else {
                Ok(0)
            };
            let len = (page - within).min(buf.len() - done);
            let written = match written {
                Ok(0) => {
                    let piece = &buf[done..done + len];
                    let copied = self.with_page_if(index, Use::Write, 1, patience, |mut frame| {
                        // The segment may have become shorter since its length was looked at.
                        if at + len as u64 > end.load(Ordering::SeqCst) {
                            return false;
                        }
                        frame.part_mut(within..within + len).copy_from_slice(piece);
                        true
                    });
                    copied.map(|copied| if copied == Some(true) { len } else { 0 })
                }
                other => other,
            };
            match written {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// What is in memory of a range counts as changed, so that it will be written.
    pub(super) fn make_dirty(&self, pages: Range<u64>) -> Result<(), PortError> {
        for index in self.shared().engine.resident_in(self.no, pages) {
            self.with_page(index, Use::Write, 1, |frame| drop(frame))?;
        }
        Ok(())
    }
}
