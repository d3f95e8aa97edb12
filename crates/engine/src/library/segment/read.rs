//! Reading a segment: `pread(2)`.

use super::{BOUNCE_BYTES, Inner, Segment};
use crate::engine::patience::Patience;
use crate::engine::word::Use;
use crate::library::frames::{ByEntry, ByHash, ByPlace, ReadPage, Way};
use crate::library::regions::may_be_managed;
use crate::library::store::io_error;
use pagekeeper_frames::Segment as Number;
use pagekeeper_sys::Errno;
use std::io;
use std::sync::atomic::Ordering;

impl Segment {
    /// Reads at an offset: `pread(2)`. Returns the bytes read, fewer than asked for only at the end
    /// of the segment or before a page that cannot be read.
    ///
    /// # Errors
    /// The store's, for the first page; `EINVAL`: the offset is negative as an `i64`;
    /// `EOWNERDEAD`: in a forked child.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.inner.backing.frames.way() {
            Way::Place => self.read_at_by::<ByPlace>(buf, offset),
            Way::Entry => self.read_at_by::<ByEntry>(buf, offset),
            Way::Hash => self.read_at_by::<ByHash>(buf, offset),
        }
    }

    #[inline(never)]
    fn read_at_by<W: ReadPage>(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.read_page::<W>(buf, offset) { Ok(buf.len()) } else { self.read_any(buf, offset) }
    }

    /// Reads what needs nothing but a copy out of one page, as most reads do. False: it needs more.
    #[inline(always)]
    fn read_page<W: ReadPage>(&self, buf: &mut [u8], offset: u64) -> bool {
        let inner = &*self.inner;
        let engine = &inner.shared().engine;
        self.is_plain(buf, offset)
            && W::read_page(&inner.backing.frames, engine, Number(inner.no), buf, offset)
    }

    /// Whether it is some bytes, without overflow, none behind the end, and not into a region.
    #[inline(always)]
    fn is_plain(&self, buf: &[u8], offset: u64) -> bool {
        let end = offset.wrapping_add(buf.len() as u64);
        end > offset && end <= self.inner.size().load(Ordering::Acquire) && !may_be_managed(buf)
    }

    /// Reads whatever is asked for.
    #[inline(never)]
    fn read_any(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let size = self.inner.size().load(Ordering::Acquire);
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if len == 0 {
            return self.nothing_to_read(offset);
        }
        let buf = &mut buf[..len];
        if may_be_managed(buf) {
            self.read_to_region(buf, offset)
        } else {
            // Of one page, `read_page` was asked before.
            self.inner.read(buf, offset, true)
        }
    }

    /// Reads into memory whose touch may need a page itself.
    #[cold]
    fn read_to_region(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let most = (self.inner.page_bytes() as usize).max(BOUNCE_BYTES);
        let mut copy = vec![0; buf.len().min(most)];
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let len = self.inner.bounce_bytes(at, buf.len() - done);
            match self.inner.read(&mut copy[..len], at, false) {
                Ok(n) => {
                    buf[done..done + n].copy_from_slice(&copy[..n]);
                    done += n;
                    if n < len {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    #[cold]
    fn nothing_to_read(&self, offset: u64) -> io::Result<usize> {
        self.inner.check_use()?;
        if offset > i64::MAX as u64 { Err(Errno::INVAL.into()) } else { Ok(0) }
    }

    /// Reads all of `buf`.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); [`io::ErrorKind::UnexpectedEof`].
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.inner.backing.frames.way() {
            Way::Place => self.read_exact_at_by::<ByPlace>(buf, offset),
            Way::Entry => self.read_exact_at_by::<ByEntry>(buf, offset),
            Way::Hash => self.read_exact_at_by::<ByHash>(buf, offset),
        }
    }

    #[inline(never)]
    fn read_exact_at_by<W: ReadPage>(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_page::<W>(buf, offset) { Ok(()) } else { self.read_all(buf, offset) }
    }

    #[inline(never)]
    fn read_all(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_any(&mut buf[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Reads; `was_tried`: the first page, as far as it goes, was not ready if it is the only one.
    fn read(&self, buf: &mut [u8], offset: u64, was_tried: bool) -> io::Result<usize> {
        let engine = &self.shared().engine;
        let page = self.page_bytes();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let buf = &mut buf[done..];
            let within = (at & (page - 1)) as usize;
            let len = (page as usize - within).min(buf.len());
            if !was_tried || done > 0 || len < buf.len() {
                let copied = self.backing.frames.read_pages(engine, Number(self.no), buf, at);
                if copied > 0 {
                    done += copied;
                    continue;
                }
            }
            let rest = (buf.len() + within).div_ceil(page as usize) as u64;
            let (place, patience) = (self.place(at / page), Patience::Holders);
            let copied = self.with_page_slowly(place, Use::Read, rest, patience, |frame| {
                self.backing.frames.copy_newcomer(&frame, within, &mut buf[..len]);
            });
            match copied {
                Ok(Some(())) => done += len,
                Ok(None) => break,
                Err(error) if done == 0 => return Err(io_error(error)),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
