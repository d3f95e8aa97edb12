//! Pages move from one segment to another: V++'s `MigratePages`.

use crate::engine::patience::Patience;
use crate::engine::word::{Use, WordRef};
use crate::engine::{Again, Engine};
use crate::library::segment::Segment;
use crate::library::store::io_error;
use crate::port::{Port, PortError};
use pagekeeper_frames::{Input, Place};
use pagekeeper_sys::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;

impl Segment {
    /// Moves pages, with what they hold, to another segment of this or another cache, from its page
    /// `first` on. They are dirty there; here they are absent, and show what the store holds when
    /// they are next used: what was not written back here has moved, and never will be. For the
    /// segment that takes them it is a write, for this one as if their content were
    /// [discarded](Self::discard).
    ///
    /// Each page moves as a whole: a read or write of it comes before or after. Pages that are not
    /// in memory are brought in first. Waits for whoever has a page pinned, here or there, and holds
    /// none of its own meanwhile. Returns the pages moved, fewer than asked for only at an
    /// error behind the first.
    ///
    /// # Errors
    /// `EBADF`: one of the handles may not write; `EINVAL`: a page lies behind the end of its
    /// segment, the ranges overlap, or the caches have pages of different sizes; those of reading and writing, for the first page;
    /// `EOWNERDEAD`: in a forked child.
    pub fn migrate(&self, pages: Range<u64>, to: &Segment, first: u64) -> io::Result<u64> {
        self.inner.check_use()?;
        to.inner.check_use()?;
        if !self.writable() || !to.writable() {
            return Err(Errno::BADF.into());
        }
        let count = pages.end.saturating_sub(pages.start);
        let fits = |segment: &Segment, first: u64| {
            first.checked_add(count).is_some_and(|end| end <= segment.pages())
        };
        let apart = pages.end <= first || first + count <= pages.start;
        let same = Arc::ptr_eq(&self.inner, &to.inner);
        if self.page_bytes() != to.page_bytes() {
            return Err(Errno::INVAL.into());
        }
        if !fits(self, pages.start) || !fits(to, first) || same && !apart {
            return Err(Errno::INVAL.into());
        }
        for done in 0..count {
            match self.migrate_page(pages.start + done, to, first + done) {
                Ok(()) => {}
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(count)
    }

    fn migrate_page(&self, index: u64, to: &Segment, at: u64) -> io::Result<()> {
        let page = to.page_bytes();
        let offset = at * page;
        let mut frame = loop {
            let frame = self.inner.hold(index, Use::Exclusive, 1)?;
            // It became shorter meanwhile.
            let frame = frame.ok_or(Errno::INVAL)?;
            let Some(has) = self.inner.held_bytes(index) else {
                drop(frame);
                self.inner.await_length();
                continue;
            };
            let len = to.len().saturating_sub(offset).min(page) as usize;
            let zeros;
            let bytes = if has < len {
                zeros = [frame.part(0..has), &vec![0; len - has]].concat();
                &zeros[..]
            } else {
                frame.part(0..len)
            };
            match to.inner.write_if(bytes, offset, Patience::Motion) {
                Ok(written) if written < len || len == 0 => return Err(Errno::INVAL.into()),
                Ok(_) => break frame,
                // Who holds that page may wait for this one, which is let go of before he is waited for.
                Err(PortError::Again) => {
                    drop(frame);
                    to.inner.await_holders(at);
                }
                Err(error) => return Err(io_error(error)),
            }
        };
        let place = frame.place();
        let word = loop {
            match frame.take_out() {
                Ok(word) => break word,
                Err(busy) => {
                    // Somebody maps it this moment.
                    frame = busy;
                    std::thread::yield_now();
                }
            }
        };
        // Before anybody reads what the store shows then.
        self.inner.dropped(index..index + 1);
        self.inner.shared().engine.taken_out(place, word);
        Ok(())
    }
}

impl<P: Port> Engine<P> {
    /// A page that is Leaving goes, whatever it holds.
    fn taken_out(&self, place: Place, word: WordRef<'static>) {
        let _ = self.port.discard(place.segment.0, place.index, 1);
        let mut core = self.lock();
        word.dropped();
        let input = Input::Drop { segment: place.segment, first: place.index, pages: 1 };
        let job = self.decide(&mut core, input);
        let mut again: Again = core.unpark(place).into();
        self.rested();
        drop(core);
        self.run(job, None, &mut again);
        self.serve_all(&mut again);
    }
}
