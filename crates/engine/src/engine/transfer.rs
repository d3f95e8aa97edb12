//! Explicit access: reads through the cache, and announced needs.

use crate::engine::core::{Core, File, Job};
use crate::engine::word::State;
use crate::engine::{Again, Buffer, Engine};
use crate::port::{FileNo, Port, PortError};
use pagekeeper_frames::{Input, Place, Segment};
use pagekeeper_policy::Page;

pub use crate::engine::change::Change;

/// Most bytes copied at a time.
const CHUNK_BYTES: u64 = 256 << 10;

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
        sink: impl FnMut(&[u8], u64) -> Result<(), PortError>,
    ) -> Result<u64, PortError> {
        self.read_for(0, file, offset, len, sink)
    }

    /// As [`read`](Self::read), for this process, as recordings tell.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_for(
        &self,
        pid: u32,
        file: FileNo,
        offset: u64,
        len: u64,
        mut sink: impl FnMut(&[u8], u64) -> Result<(), PortError>,
    ) -> Result<u64, PortError> {
        let mut done = 0;
        while done < len {
            let at = offset.saturating_add(done);
            let len = (len - done).min(CHUNK_BYTES);
            match self.read_some(pid, file, at, len, |b| sink(b, done)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Whether somebody is about to make a file longer, or has done so and did not say so yet.
    pub(crate) fn may_grow(&self, file: FileNo) -> bool {
        let core = self.lock();
        let behind = core.known_size(file).div_ceil(self.page_bytes);
        let place = Place { segment: Segment(file), index: behind };
        let held = core.overwrites.as_ref().and_then(|overwrites| overwrites.held(file));
        held.is_some_and(|pages| pages.contains(&behind)) || core.fences(place).next().is_some()
    }

    /// Reads at least one byte, unless at the end of the file.
    fn read_some(
        &self,
        pid: u32,
        file: FileNo,
        offset: u64,
        len: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), PortError>,
    ) -> Result<u64, PortError> {
        let first = offset / self.page_bytes;
        let place = Place { segment: Segment(file), index: first };
        let mut failures = 0;
        loop {
            let mut again = Again::new();
            let at_rest = |core: &mut Core| {
                let (_, state) = core.state(place);
                let fetchable = state == State::Absent && !core.unfetchable(place);
                (fetchable || state == State::Resident || core.file(file).is_none())
                    .then_some(state)
            };
            let (mut core, state) = self.wait_until(&mut again, at_rest);
            core.asking_pid = pid;
            let known = core.file(file).map(|f| (f.version.size_bytes, f.unsettlings));
            let Some((size, unsettlings)) = known else {
                drop(core);
                self.serve_all(&mut again);
                return Err(PortError::Missing);
            };
            let end = offset.saturating_add(len).min(size);
            if offset >= end {
                drop(core);
                self.serve_all(&mut again);
                return Ok(0);
            }
            let pages = end.div_ceil(self.page_bytes) - first;
            if state == State::Resident {
                let (pinned, jobs) = self.pin_resident(&mut core, place, pages);
                drop(core);
                let count = pinned.len() as u64;
                let copied = self.copy_out(file, first, count);
                for page in pinned {
                    self.unpin(page);
                }
                for job in jobs {
                    self.run(job, None, &mut again);
                }
                self.serve_all(&mut again);
                // Without pins: the sink may fault on managed memory itself.
                let buffer = copied?;
                let is_whole = |f: &File| f.unsettlings == unsettlings;
                if !self.lock().file(file).is_some_and(is_whole) {
                    // The file was cut meanwhile: what was behind its new end may have been copied
                    // as zeros.
                    self.give_buffer(buffer);
                    continue;
                }
                let from = (offset - first * self.page_bytes) as usize;
                let to =
                    (end.min((first + count) * self.page_bytes) - first * self.page_bytes) as usize;
                let given = sink(&buffer[from..to]);
                self.give_buffer(buffer);
                return given.map(|()| (to - from) as u64);
            }
            let want = u32::try_from(pages).unwrap_or(u32::MAX);
            let input = Input::Major { place, want, write: false, map: false };
            let job = self.decide(&mut core, input);
            let demanded: u64 = job.fetch.iter().map(|r| u64::from(r.demanded)).sum();
            self.count(&mut core, file, |c| c.major_faults += demanded);
            self.port.missed(file);
            drop(core);
            let fetched = self.fetch_job(job, &mut again);
            self.serve_all(&mut again);
            if let Err(error) = fetched {
                failures += 1;
                if failures > 1 {
                    return Err(error);
                }
            }
        }
    }

    /// Pins the resident pages at the start of a range, the first of which is resident, and tells
    /// the brain that they are used.
    fn pin_resident(&self, core: &mut Core, place: Place, pages: u64) -> (Vec<Page>, Vec<Job>) {
        let mut pinned = Vec::new();
        let mut jobs = Vec::new();
        for i in 0..pages {
            let at = Place { index: place.index + i, ..place };
            let (Some(page), State::Resident) = core.state(at) else { break };
            core.word(page).pin();
            pinned.push(page);
            let job = self.decide(core, Input::Touch { place: at, write: false, map: false });
            if !job.is_empty() {
                jobs.push(job);
            }
        }
        (pinned, jobs)
    }

    /// A copy of pages that stay meanwhile: pinned or claimed ones.
    pub(crate) fn copy_out(
        &self,
        file: FileNo,
        first: u64,
        pages: u64,
    ) -> Result<Buffer, PortError> {
        let bytes = (pages * self.page_bytes) as usize;
        let mut buffer = self.take_buffer(bytes)?;
        match self.port.peek(file, first, &mut buffer[..bytes]) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                self.give_buffer(buffer);
                Err(error)
            }
        }
    }

    /// Starts to fetch pages that the program announced (`madvise(2)` WILLNEED).
    pub fn prefetch(&self, file: FileNo, first: u64, pages: u64) {
        let mut core = self.lock();
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let segment = Segment(file);
        if core.has_no_number_for(core.brain.page(Place { segment, index: first })) {
            return;
        }
        let job = self.decide(&mut core, Input::Ahead { segment, first, pages });
        drop(core);
        self.finish(job);
    }
}
