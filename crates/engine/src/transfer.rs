//! Explicit access: reads through the cache, and changes that a client makes by system calls of
//! its own while the cache stands aside (fences).

use crate::core::Fence;
use crate::engine::{Again, Buffer, Engine};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError};
use crate::word::State;
use pagekeeper_frames::{Input, Place, Run, Segment};

/// Most bytes copied at a time.
const CHUNK_BYTES: u64 = 256 << 10;

/// What a client is about to do to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Overwrite bytes: cached pages are patched with them afterwards.
    Write,
    /// Set the length.
    Truncate,
    /// Anything else: dirty pages are written back before, cached pages dropped after.
    Other,
}

impl<P: Port> Engine<P> {
    /// Reads file content through the cache, giving it to `sink` piece by piece. Ends at the end
    /// of the file. Returns the bytes given.
    ///
    /// # Errors
    /// The first error of storage or of `sink`, if nothing was given before it.
    pub fn read(
        &self,
        file: FileNo,
        offset: u64,
        len: u64,
        mut sink: impl FnMut(&[u8], u64) -> Result<(), PortError>,
    ) -> Result<u64, PortError> {
        let mut done = 0;
        while done < len {
            let at = offset.saturating_add(done);
            match self.read_some(file, at, (len - done).min(CHUNK_BYTES), |b| sink(b, done)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads at least one byte, unless at the end of the file.
    fn read_some(
        &self,
        file: FileNo,
        offset: u64,
        len: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), PortError>,
    ) -> Result<u64, PortError> {
        let segment = Segment(file);
        let first = offset / PAGE_BYTES;
        let mut failures = 0;
        loop {
            let mut core = self.lock();
            let Some(size) = core.file(file).map(|f| f.version.size_bytes) else {
                return Err(PortError::Missing);
            };
            let end = (offset + len).min(size);
            if offset >= end {
                return Ok(0);
            }
            let pages = end.div_ceil(PAGE_BYTES) - first;
            let place = Place { segment, index: first };
            let (page, state) = core.state(place);
            let doomed = page.is_some_and(|p| core.word(p).doomed());
            match state {
                State::Resident if !doomed => {
                    let (count, jobs) = self.pin_resident(&mut core, place, pages);
                    drop(core);
                    let copied = self.copy_out(file, first, count);
                    for i in 0..count {
                        let at = Place { index: first + i, segment };
                        let page = self.lock().brain.page(at).expect("pinned pages are numbered");
                        self.unpin(page);
                    }
                    for job in jobs {
                        self.finish(job);
                    }
                    // Without pins: the sink may fault on managed memory itself.
                    let buffer = copied?;
                    let from = (offset - first * PAGE_BYTES) as usize;
                    let to = (end.min((first + count) * PAGE_BYTES) - first * PAGE_BYTES) as usize;
                    let given = sink(&buffer[from..to]);
                    self.give_buffer(buffer);
                    return given.map(|()| (to - from) as u64);
                }
                State::Absent if !core.fenced(place) => {
                    let want = u32::try_from(pages).unwrap_or(u32::MAX);
                    if let Some(f) = core.file_mut(file) {
                        f.counts.major_faults += 1;
                    }
                    let input = Input::Major { place, want, write: false, map: false };
                    let job = self.decide(&mut core, input);
                    let demanded: u64 = job.fetch.iter().map(|r| u64::from(r.demanded)).sum();
                    if let Some(f) = core.file_mut(file) {
                        f.counts.major_faults += demanded.saturating_sub(1);
                    }
                    drop(core);
                    if let Err(error) = self.fetch_now(job) {
                        failures += 1;
                        if failures > 1 {
                            return Err(error);
                        }
                    }
                }
                _ => {
                    drop(self.sleep(core));
                }
            }
        }
    }

    /// Pins the resident pages at the start of a range, and tells the brain that they are used.
    fn pin_resident(
        &self,
        core: &mut crate::core::Core,
        place: Place,
        pages: u64,
    ) -> (u64, Vec<crate::core::Job>) {
        let mut count = 0;
        let mut jobs = Vec::new();
        while count < pages {
            let at = Place { index: place.index + count, ..place };
            let (Some(page), State::Resident) = core.state(at) else { break };
            if core.word(page).doomed() || core.fenced(at) {
                break;
            }
            core.word(page).pin();
            let job = self.decide(core, Input::Touch { place: at, write: false, map: false });
            if !job.is_empty() {
                jobs.push(job);
            }
            count += 1;
        }
        if count == 0 {
            // Fenced: its content is changing right now, but it is resident and whole.
            let page = core.brain.page(place).expect("resident pages are numbered");
            core.word(page).pin();
            count = 1;
        }
        (count, jobs)
    }

    /// A copy of pinned pages.
    fn copy_out(&self, file: FileNo, first: u64, pages: u64) -> Result<Buffer, PortError> {
        let bytes = (pages * PAGE_BYTES) as usize;
        let mut buffer = self.take_buffer(bytes)?;
        match self.port.peek(file, first, &mut buffer[..bytes]) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                self.give_buffer(buffer);
                Err(error)
            }
        }
    }

    /// Carries out a job whose fetches a caller waits for.
    fn fetch_now(&self, job: crate::core::Job) -> Result<(), PortError> {
        let mut again = Again::new();
        let result = self.fetch_job(job, &mut again);
        self.serve_all(&mut again);
        result
    }

    /// A client is about to change a range. Waits until no page of it is in motion, and keeps it
    /// still until [`change_end`](Self::change_end). Returns the ticket.
    ///
    /// # Errors
    /// For [`Change::Other`]: the write-back of dirty pages failed.
    pub fn change_begin(
        &self,
        file: FileNo,
        offset: u64,
        len: u64,
        change: Change,
    ) -> Result<u64, PortError> {
        let first = offset / PAGE_BYTES;
        let end = offset.saturating_add(len).div_ceil(PAGE_BYTES).max(first + 1);
        if change == Change::Other {
            self.flush(file, first..end)?;
        }
        let mut core = self.lock();
        loop {
            let moving = core.pages_in(file, first..end).iter().any(|&(page, _)| {
                let word = core.word(page);
                word.doomed()
                    || matches!(word.state(), State::Filling | State::Cleaning | State::Leaving)
            });
            if !moving {
                break;
            }
            core = self.sleep(core);
        }
        let ticket = core.next_ticket;
        core.next_ticket += 1;
        let file = core.file_mut(file).ok_or(PortError::Missing)?;
        file.fences.push(Fence { ticket, first, end });
        Ok(ticket)
    }

    /// The client's system call returned: `len` bytes at `offset` changed. `bytes` gives what was
    /// written (called with offset and buffer); without it the cached pages are dropped and read
    /// again when they are needed.
    pub fn change_end(
        &self,
        file: FileNo,
        ticket: u64,
        offset: u64,
        len: u64,
        mut bytes: Option<impl FnMut(u64, &mut [u8]) -> Result<(), PortError>>,
    ) {
        let first = offset / PAGE_BYTES;
        let end = offset.saturating_add(len).div_ceil(PAGE_BYTES);
        let mut patched = true;
        if len > 0 {
            let pages = self.lock().pages_in(file, first..end);
            for (page, place) in pages {
                let core = self.lock();
                if core.state(place).1 != State::Resident {
                    continue;
                }
                core.word(page).pin();
                drop(core);
                let from = (place.index * PAGE_BYTES).max(offset);
                let to = ((place.index + 1) * PAGE_BYTES).min(offset.saturating_add(len));
                let mut buffer = [0u8; PAGE_BYTES as usize];
                let piece = &mut buffer[..(to - from) as usize];
                let done = match &mut bytes {
                    Some(get) => get(from - offset, piece)
                        .and_then(|()| self.port.patch(file, from, piece))
                        .is_ok(),
                    None => false,
                };
                self.unpin(page);
                patched &= done;
            }
        }
        self.refresh_size(file, true);
        let mut core = self.lock();
        let fence = core.file_mut(file).and_then(|f| {
            let at = f.fences.iter().position(|fence| fence.ticket == ticket)?;
            Some(f.fences.swap_remove(at))
        });
        drop(core);
        if !patched {
            self.drop_pages(file, first..end, false);
        }
        if let Some(fence) = fence {
            let mut again: Again =
                self.lock().unpark_range(file, fence.first..fence.end).into_iter().collect();
            self.rested();
            self.serve_all(&mut again);
        }
    }

    /// Looks at the file's length and version. Pages beyond the end go; `own` says that the change
    /// was made through us, otherwise clean pages are dropped, since their content may be old.
    /// Returns true if the file had been changed by somebody else.
    pub fn refresh_size(&self, file: FileNo, own: bool) -> bool {
        let Ok(now) = self.port.version(file) else { return false };
        let (before, pages_before) = {
            let core = self.lock();
            let Some(f) = core.file(file) else { return false };
            (f.version, f.pages)
        };
        if now == before {
            return false;
        }
        let pages = now.size_bytes.div_ceil(PAGE_BYTES);
        if now.size_bytes < before.size_bytes {
            self.shrink(file, now.size_bytes, pages);
        }
        let foreign = !own;
        {
            let mut core = self.lock();
            if pages != pages_before {
                core.decide(Input::Segment { segment: Segment(file), pages });
            }
            if let Some(f) = core.file_mut(file) {
                f.version = now;
                f.pages = pages;
                // New length may be a hole.
                f.holes |= now.size_bytes != before.size_bytes;
            }
        }
        if pages > pages_before {
            let _ = self.port.resize(file, pages);
        }
        if foreign {
            self.drop_pages(file, 0..pages, false);
        }
        foreign
    }

    /// The file became shorter: what is beyond its end is gone, dirty or not, and the rest of the
    /// last page reads as zero.
    fn shrink(&self, file: FileNo, size_bytes: u64, pages: u64) {
        {
            let mut core = self.lock();
            if let Some(f) = core.file_mut(file) {
                f.version.size_bytes = size_bytes;
                f.pages = pages;
            }
        }
        self.drop_pages(file, pages..u64::MAX, true);
        let _ = self.port.resize(file, pages);
        let tail = size_bytes % PAGE_BYTES;
        if tail != 0 {
            let place = Place { segment: Segment(file), index: pages - 1 };
            let core = self.lock();
            if let (Some(page), State::Resident) = core.state(place) {
                core.word(page).pin();
                drop(core);
                let zeros = [0u8; PAGE_BYTES as usize];
                let _ = self.port.patch(file, size_bytes, &zeros[tail as usize..]);
                self.unpin(page);
            }
        }
    }

    /// Our own write-back changed the file's times: that is not somebody else's change.
    pub(crate) fn note_own_change(&self, file: FileNo) {
        let Ok(now) = self.port.version(file) else { return };
        if let Some(f) = self.lock().file_mut(file) {
            f.version.mtime_ns = now.mtime_ns;
            f.version.ctime_ns = now.ctime_ns;
        }
    }

    /// Starts to fetch pages that the program announced (`madvise(2)` WILLNEED).
    pub fn prefetch(&self, file: FileNo, first: u64, pages: u64) {
        let mut core = self.lock();
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let job = self.decide(&mut core, Input::Ahead { segment: Segment(file), first, pages });
        drop(core);
        self.finish(job);
    }

    /// Drops clean pages and forgets a file that nobody maps or has open. Its dirty pages were
    /// flushed before; if some are dirty still, it stays and false is returned.
    pub fn close_file(&self, file: FileNo) -> bool {
        self.drop_pages(file, 0..u64::MAX, false);
        let mut core = self.lock();
        let left = !core.pages_in(file, 0..u64::MAX).is_empty();
        let used = core.file(file).is_none_or(|f| !f.mappings.is_empty() || !f.fences.is_empty());
        if left || used {
            return false;
        }
        for (page, _) in core.brain.numbered(Segment(file), 0, u64::MAX) {
            core.table.release(page);
        }
        core.decide(Input::Close { segment: Segment(file) });
        // The counts stay for the report; the name keeps its slot.
        if let Some(f) = core.file_mut(file) {
            f.pages = 0;
        }
        true
    }

    /// Every resident page of a run that is dirty, for tests and reports.
    pub fn is_dirty(&self, run: Run) -> bool {
        let core = self.lock();
        core.pages_in(run.place.segment.0, run.place.index..run.place.index + u64::from(run.pages))
            .iter()
            .any(|(page, _)| core.word(*page).dirty())
    }
}
