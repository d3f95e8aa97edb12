//! Pages leave memory, and dirty pages are written back.
//!
//! A dirty page is protected in every address space first, so that its content holds still; then
//! copied out, written, and only after the write succeeded taken out of memory or called clean.

use crate::engine::{Again, Engine};
use crate::port::{FileNo, PAGE_BYTES, Port, PortError};
use crate::stats::Spent;
use crate::word::State;
use pagekeeper_frames::{CLEAN_RUN_PAGES_MAX, Input, Place, Run, Segment, Victim};
use std::ops::Range;

/// Most pages written back in one request by a flush.
const FLUSH_RUN_PAGES_MAX: u32 = 256;

impl<P: Port> Engine<P> {
    /// Evicts claimed pages.
    pub(crate) fn evict(&self, mut victims: Vec<Victim>, again: &mut Again) {
        victims.sort_unstable_by_key(|v| v.place);
        let mut rest = &victims[..];
        while let Some(first) = rest.first() {
            let dirty = self.word(first).dirty();
            let most = if dirty { CLEAN_RUN_PAGES_MAX as usize } else { usize::MAX };
            let mut n = 1;
            while n < rest.len().min(most)
                && rest[n].place.segment == first.place.segment
                && rest[n].place.index == first.place.index + n as u64
                && self.word(&rest[n]).dirty() == dirty
            {
                n += 1;
            }
            let run = Run { place: first.place, pages: n as u32, demanded: 0 };
            self.evict_run(run, &rest[..n], dirty, again);
            rest = &rest[n..];
        }
    }

    fn word(&self, victim: &Victim) -> crate::word::WordRef<'static> {
        self.table.word(victim.page)
    }

    fn evict_run(&self, run: Run, victims: &[Victim], dirty: bool, again: &mut Again) {
        let file = run.place.segment.0;
        if dirty {
            if let Err(error) = self.write_back(run) {
                if victims.len() > 1 {
                    // One bad page must not keep its neighbours: try them one by one.
                    for victim in victims {
                        let run = Run { place: victim.place, pages: 1, demanded: 0 };
                        self.evict_run(run, std::slice::from_ref(victim), true, again);
                    }
                } else {
                    self.keep(victims[0], error, again);
                }
                return;
            }
            for victim in victims {
                self.word(victim).written();
            }
        }
        let discarded = self.times.of(Spent::Kernel, || {
            self.port.discard(file, run.place.index, u64::from(run.pages))
        });
        let mut core = self.lock();
        for victim in victims {
            if discarded.is_ok() {
                core.word(victim.page).left();
            } else {
                core.word(victim.page).kept();
                core.decide(Input::Kept { place: victim.place });
            }
            again.extend(core.unpark(victim.place));
        }
        self.rested();
    }

    /// A victim could not be written back: it stays, and another page goes instead.
    fn keep(&self, victim: Victim, error: PortError, again: &mut Again) {
        let mut core = self.lock();
        if let (PortError::Io(errno), Some(file)) = (error, core.file_mut(victim.place.segment.0)) {
            file.error = Some(errno);
        }
        core.word(victim.page).kept();
        let mut job = self.decide(&mut core, Input::Kept { place: victim.place });
        again.extend(core.unpark(victim.place));
        self.rested();
        drop(core);
        self.evict(std::mem::take(&mut job.evict), again);
        for late in std::mem::take(&mut job.late) {
            if let Some(late) = self.wait_for_victim(late) {
                self.evict(vec![late], again);
            }
        }
        for run in std::mem::take(&mut job.clean) {
            let _ = self.clean(run, again);
        }
    }

    /// Waits until a doomed page is idle, and claims it. `None` if it is gone already.
    pub(crate) fn wait_for_victim(&self, victim: Victim) -> Option<Victim> {
        let mut core = self.lock();
        loop {
            let word = core.word(victim.page);
            if word.state() == State::Absent || !word.doomed() {
                return None;
            }
            if word.idle() {
                word.claim_leave();
                return Some(victim);
            }
            core = self.sleep(core);
        }
    }

    /// Protects a run everywhere, copies it out, writes it. Its pages are claimed.
    fn write_back(&self, run: Run) -> Result<(), PortError> {
        let file = run.place.segment.0;
        self.times.of(Spent::Kernel, || self.protect_everywhere(run));
        let mut buffer = self.take_buffer(run.pages as usize * PAGE_BYTES as usize)?;
        let data = &mut buffer[..run.pages as usize * PAGE_BYTES as usize];
        let result = self
            .times
            .of(Spent::Kernel, || self.port.peek(file, run.place.index, data))
            .and_then(|()| self.times.of(Spent::Io, || self.port.store(file, run.place.index, data)));
        let bytes = data.len() as u64;
        self.give_buffer(buffer);
        let mut core = self.lock();
        if let Some(file) = core.file_mut(file)
            && result.is_ok()
        {
            file.counts.write_backs += u64::from(run.pages);
            file.counts.written_bytes += bytes;
        }
        drop(core);
        if result.is_ok() {
            self.note_own_change(file);
        }
        result
    }

    /// Takes write access away in every shared mapping. A fork in between hands the old access to
    /// the child, so the list of mappings is made anew whenever a space was changing.
    fn protect_everywhere(&self, run: Run) {
        'again: loop {
            let mappings = self.lock().shared_mappings(run);
            for (space, addr, pages) in mappings {
                if self.port.protect(space, addr, pages) == Err(PortError::Again) {
                    self.port.again();
                    continue 'again;
                }
            }
            return;
        }
    }

    /// Writes a claimed run back; its pages stay.
    pub(crate) fn clean(&self, run: Run, again: &mut Again) -> Result<(), PortError> {
        let result = self.write_back(run);
        let mut core = self.lock();
        for i in 0..run.pages {
            let place = Place { index: run.place.index + u64::from(i), ..run.place };
            let page = core.brain.page(place).expect("claimed pages are numbered");
            core.word(page).cleaned(result.is_ok());
            if !core.word(page).doomed() {
                let input =
                    if result.is_ok() { Input::Cleaned { place } } else { Input::Write { place } };
                self.decide(&mut core, input);
            }
            again.extend(core.unpark(place));
        }
        if let (Err(PortError::Io(errno)), Some(file)) =
            (result, core.file_mut(run.place.segment.0))
        {
            file.error = Some(errno);
        }
        self.rested();
        result
    }

    /// Writes the dirty pages of a file range back, and reports the first error, also one that an
    /// earlier write-back met (once).
    ///
    /// # Errors
    /// The errno of the write that failed; the pages stay dirty and in memory.
    pub fn flush(&self, file: FileNo, pages: Range<u64>) -> Result<(), PortError> {
        let mut again = Again::new();
        let mut first_error = None;
        let mut next = pages.start;
        while let Some(run) = self.claim_dirty(file, next..pages.end) {
            next = run.place.index + u64::from(run.pages);
            if self.clean(run, &mut again).is_err() && run.pages > 1 {
                // Write what can be written.
                for i in 0..u64::from(run.pages) {
                    let one = run.place.index + i;
                    if let Some(run) = self.claim_dirty(file, one..one + 1)
                        && let Err(error) = self.clean(run, &mut again)
                    {
                        first_error.get_or_insert(error);
                    }
                }
            } else if run.pages == 1
                && let Some(errno) = self.lock().file(file).and_then(|f| f.error)
            {
                first_error.get_or_insert(PortError::Io(errno));
            }
            self.serve_all(&mut again);
        }
        let earlier = self.lock().file_mut(file).and_then(|f| f.error.take());
        match first_error.or(earlier.map(PortError::Io)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// As [`flush`](Self::flush) over the whole file, but an error is kept for whoever asks next.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_quietly(&self, file: FileNo) -> Result<(), PortError> {
        let result = self.flush(file, 0..u64::MAX);
        if let (Err(PortError::Io(errno)), Some(f)) = (result, self.lock().file_mut(file)) {
            f.error = Some(errno);
        }
        result
    }

    /// Claims the next run of dirty pages, waiting for busy ones.
    fn claim_dirty(&self, file: FileNo, range: Range<u64>) -> Option<Run> {
        let mut core = self.lock();
        loop {
            let mut run: Option<Run> = None;
            let mut busy = false;
            for (page, place) in core.pages_in(file, range.clone()) {
                let word = core.word(page);
                let ready = word.idle() && word.dirty() && !word.doomed() && !core.fenced(place);
                match &mut run {
                    Some(r) => {
                        let next = place.index == r.place.index + u64::from(r.pages);
                        if !ready || !next || r.pages == FLUSH_RUN_PAGES_MAX {
                            break;
                        }
                        word.claim_clean();
                        r.pages += 1;
                    }
                    None if ready => {
                        word.claim_clean();
                        run = Some(Run { place, pages: 1, demanded: 0 });
                    }
                    None if word.dirty() => {
                        busy = true;
                        break;
                    }
                    None => {}
                }
            }
            if run.is_some() || !busy {
                return run;
            }
            core = self.sleep(core);
        }
    }

    /// Writes everything back.
    ///
    /// # Errors
    /// Per file, the errno of the first write that failed.
    pub fn flush_all(&self) -> Vec<(String, PortError)> {
        let files: Vec<(FileNo, u64, String)> = {
            let core = self.lock();
            let named = |(no, f): (usize, &Option<crate::core::File>)| {
                f.as_ref().map(|f| (no as FileNo, f.pages, f.name.clone()))
            };
            core.files.iter().enumerate().filter_map(named).collect()
        };
        let mut errors = Vec::new();
        for (file, pages, name) in files {
            if let Err(error) = self.flush(file, 0..pages) {
                errors.push((name, error));
            }
        }
        errors
    }

    /// Writes back what is dirty now, so that little is lost should the machine die. Errors stay
    /// with their files.
    pub fn write_behind(&self) {
        let files: Vec<FileNo> = {
            let core = self.lock();
            (0..core.files.len()).map(|no| no as FileNo).collect()
        };
        for file in files {
            if self.dirty_pages(file) > 0 {
                let _ = self.flush_quietly(file);
            }
        }
    }

    /// Calls into storage or the kernel that have gone on for too long, in words.
    pub fn stuck(&self, longer_than: std::time::Duration) -> Vec<String> {
        let stuck = self.times.stuck(longer_than);
        stuck
            .into_iter()
            .map(|(what, since)| {
                format!(
                    "a handler has been {what} for {} s; programs that wait for it stand still",
                    since.as_secs()
                )
            })
            .collect()
    }

    /// Pages of a file that are dirty now.
    pub fn dirty_pages(&self, file: FileNo) -> u64 {
        let core = self.lock();
        let all = core.pages_in(file, 0..u64::MAX);
        all.iter().filter(|(page, _)| core.word(*page).dirty()).count() as u64
    }

    /// Takes the resident pages of a range out of memory. Dirty ones only if `discard_dirty`
    /// (their content is not wanted any more). Waits for pages in motion.
    pub(crate) fn drop_pages(&self, file: FileNo, range: Range<u64>, discard_dirty: bool) {
        let mut core = self.lock();
        let mut again = Again::new();
        loop {
            let mut busy = false;
            let mut claimed = Vec::new();
            for (page, place) in core.pages_in(file, range.clone()) {
                let word = core.word(page);
                if word.dirty() && !discard_dirty {
                    continue;
                }
                if !word.idle() || word.doomed() {
                    busy = true;
                    continue;
                }
                word.claim_leave();
                claimed.push((page, place));
            }
            for &(_, place) in &claimed {
                let input = Input::Drop { segment: Segment(file), first: place.index, pages: 1 };
                self.decide(&mut core, input);
            }
            drop(core);
            for &(_, place) in &claimed {
                let _ = self.port.discard(file, place.index, 1);
            }
            core = self.lock();
            for &(page, place) in &claimed {
                core.word(page).dropped();
                again.extend(core.unpark(place));
            }
            if !busy {
                break;
            }
            core = self.sleep(core);
        }
        drop(core);
        self.serve_all(&mut again);
    }
}
