//! Pages leave memory, and dirty pages are written back.
//!
//! A dirty page is protected in every address space first, so that its content holds still; then
//! copied out, written, and only after the write succeeded taken out of memory or called clean.

use crate::engine::core::Job;
use crate::engine::overdue::OVERDUE_AFTER;
use crate::engine::patience::Patience;
use crate::engine::stats::Spent;
use crate::engine::{Again, Buffer, Engine};
use crate::port::{MOVED_TOGETHER_MAX, Port, PortError, Storing};
use pagekeeper_frames::{CLEAN_RUN_PAGES_MAX, Input, Run, Victim};
use std::time::{Duration, Instant};

/// Most writes of one thread that are under way at a time,
const WRITES_MAX: usize = 64;
/// and of those that are not written together with others: each has a buffer.
const ALONE_MAX: usize = 16;
/// Runs of so many pages are written together with others. For longer ones a request of their own is cheap.
const TOGETHER_PAGES_MAX: u32 = 4;

/// Writes that one thread may begin before it waits.
#[derive(Default)]
pub(crate) struct WriteRoom {
    all: usize,
    alone: usize,
}

/// Whether a run is so short that it is written together with others, where that can be.
fn is_short(run: &Run) -> bool {
    run.pages <= TOGETHER_PAGES_MAX
}

impl WriteRoom {
    /// Whether there may be one more.
    pub(crate) fn is_left(&self) -> bool {
        self.all < WRITES_MAX && self.alone < ALONE_MAX
    }

    /// One more, of a file whose short runs `may_be_together`.
    pub(crate) fn take(&mut self, run: &Run, may_be_together: bool) {
        self.all += 1;
        self.alone += usize::from(!(may_be_together && is_short(run)));
    }
}

/// Most runs of victims that one thread writes at a time,
const EVICTED_RUNS_MAX: u64 = 4;
/// whose buffers take no more than this part of the budget.
const EVICTED_PART: u64 = 64;

/// A run that is being written back.
pub(crate) struct Write {
    pub(crate) run: Run,
    state: WriteState,
}

enum WriteState {
    Done(Result<(), PortError>),
    UnderWay(Box<dyn Storing>),
    /// What of it was stored to.
    Parts(Vec<Write>),
    /// Nothing of it was.
    Unchanged,
}

impl Write {
    /// Waits for storage, but for so long at most; whether it has done what it was asked for.
    pub(crate) fn ends_within(&mut self, longest: Duration) -> bool {
        match &mut self.state {
            WriteState::Done(_) | WriteState::Unchanged => true,
            WriteState::UnderWay(storing) => storing.ends_within(longest),
            WriteState::Parts(parts) => {
                let until = Instant::now() + longest;
                parts
                    .iter_mut()
                    .all(|part| part.ends_within(until.saturating_duration_since(Instant::now())))
            }
        }
    }
}

impl<P: Port> Engine<P> {
    /// Evicts claimed pages. Those that cannot leave stay, and the victims in their place are put
    /// into `more`.
    pub(crate) fn evict(&self, victims: &mut [Victim], more: &mut Job, again: &mut Again) {
        victims.sort_unstable_by_key(|v| v.place);
        let mut rest = &*victims;
        let mut dirty_runs: Vec<(Run, &[Victim])> = Vec::new();
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
            let (some, others) = rest.split_at(n);
            if dirty {
                dirty_runs.push((run, some));
            } else {
                self.evict_clean(run, some, more, again);
            }
            rest = others;
        }
        if dirty_runs.is_empty() {
            return;
        }
        let run_bytes = u64::from(CLEAN_RUN_PAGES_MAX) * self.page_bytes;
        let room_bytes = self.budget_bytes() / EVICTED_PART;
        let at_a_time = (room_bytes / run_bytes).clamp(1, EVICTED_RUNS_MAX) as usize;
        for runs in dirty_runs.chunks(at_a_time) {
            self.evict_dirty(runs, more, again);
        }
    }

    fn word(&self, victim: &Victim) -> crate::engine::word::WordRef<'static> {
        self.table.word(victim.page)
    }

    fn evict_clean(&self, run: Run, victims: &[Victim], more: &mut Job, again: &mut Again) {
        let (file, index) = (run.place.segment.0, run.place.index);
        if self.port.takes_victims(file) {
            // Storage has what they hold: an error loses nothing.
            let retire = || self.port.retire(file, index, u64::from(run.pages), false);
            let _ = self.times.of(Spent::Io, retire);
        }
        self.leave(run, victims, more, again);
    }

    /// Writes runs of dirty victims back, all at a time, and takes out what was written.
    fn evict_dirty(&self, runs: &[(Run, &[Victim])], more: &mut Job, again: &mut Again) {
        let mut writes = Vec::with_capacity(runs.len());
        for &(run, victims) in runs {
            if self.lock().is_overdue(run.place.segment.0) {
                // They were chosen before that was known.
                self.keep(victims, None, more, again);
            } else {
                writes.push((self.begin_write_back(run, true), victims));
            }
        }
        // For all together.
        let mut longest = OVERDUE_AFTER;
        let mut writes = writes.into_iter();
        while let Some((mut write, victims)) = writes.next() {
            if !write.ends_within(longest) {
                longest = Duration::ZERO;
                self.put_off(write, victims, more, again);
                continue;
            }
            let run = write.run;
            // The last one of each file looks at its times.
            let is_same = |(later, _): &(Write, _)| later.run.place.segment == run.place.segment;
            let follows = writes.as_slice().iter().any(is_same);
            match self.end_write_back(write, follows) {
                Ok(()) => {
                    for victim in victims {
                        self.word(victim).written();
                    }
                    self.leave(run, victims, more, again);
                }
                Err(_) if victims.len() > 1 => {
                    // One bad page must not keep its neighbours: try them one by one.
                    for victim in victims {
                        let run = Run { place: victim.place, pages: 1, demanded: 0 };
                        self.evict_dirty(&[(run, std::slice::from_ref(victim))], more, again);
                    }
                }
                Err(error) => self.keep(victims, Some(error), more, again),
            }
        }
    }

    /// Victims of which storage has all leave memory.
    fn leave(&self, run: Run, victims: &[Victim], more: &mut Job, again: &mut Again) {
        let discarded = self.times.of(Spent::Kernel, || {
            self.port.discard(run.place.segment.0, run.place.index, u64::from(run.pages))
        });
        if let Err(error) = discarded {
            self.keep(victims, Some(error), more, again);
            return;
        }
        let mut core = self.lock();
        for victim in victims {
            core.end_presumption(victim.page, victim.place.segment.0);
            core.word(victim.page).left();
            core.rests(victim.place.segment.0);
            if let Some(file) = core.file_mut(victim.place.segment.0) {
                file.counts.evictions += 1;
            }
            core.unpark_into(victim.place, again);
        }
        self.rested();
    }

    /// Victims could not be written back or taken out, or are not to be now: they stay, and other pages go
    /// instead.
    fn keep(
        &self,
        victims: &[Victim],
        error: Option<PortError>,
        more: &mut Job,
        again: &mut Again,
    ) {
        let mut core = self.lock();
        for victim in victims {
            let word = core.word(victim.page);
            if let Some(error) = error.filter(|_| word.dirty()) {
                core.note_error(victim.place.segment.0, error);
            }
            word.kept();
            core.rests(victim.place.segment.0);
            // The brain holds what is kept for dirty, and takes it back when it was cleaned.
            word.set_dirty();
            core.note_dirty(victim.place);
            more.append(self.decide(&mut core, Input::Kept { place: victim.place }));
            again.extend(core.unpark(victim.place));
        }
        self.rested();
    }

    /// Protects a run everywhere, copies it out, and begins to write it, as far as that goes without waiting
    /// for storage. Its pages are claimed; they leave memory now or soon (`retire`), or stay.
    fn begin_write_back(&self, run: Run, retire: bool) -> Write {
        let protected = self.times.of(Spent::Kernel, || self.protect_everywhere(run));
        if protected.is_err() || !self.lock().presumes(run) {
            return self.begin_write(run, retire, protected);
        }
        let buffer = match self.copy_of(run) {
            Ok(buffer) => buffer,
            Err(error) => return self.begin_write(run, retire, Err(error)),
        };
        let stored = self.stored_to_of(run, &buffer);
        if stored == [run] {
            self.begin_own_write(run.place.segment.0);
            return Write { run, state: self.begin_store_of(run, buffer) };
        }
        self.give_buffer(buffer);
        if stored.is_empty() {
            // Others of the file may leave it to this one to look at its times.
            self.begin_own_write(run.place.segment.0);
            return Write { run, state: WriteState::Unchanged };
        }
        let mut parts = Vec::with_capacity(stored.len());
        let mut rest = &stored[..];
        while let Some(part) = rest.first() {
            let together = self.together(rest);
            if together > 1 {
                parts.extend(self.begin_together(&rest[..together]));
            } else {
                parts.push(self.begin_write(*part, retire, Ok(())));
            }
            rest = &rest[together..];
        }
        Write { run, state: WriteState::Parts(parts) }
    }

    fn begin_write(&self, run: Run, retire: bool, protected: Result<(), PortError>) -> Write {
        let file = run.place.segment.0;
        self.begin_own_write(file);
        if let Err(error) = protected {
            return Write { run, state: WriteState::Done(Err(error)) };
        }
        let (index, pages) = (run.place.index, u64::from(run.pages));
        let retired = || if retire { self.port.retire(file, index, pages, true) } else { None };
        let in_place = || retired().or_else(|| self.port.store_in_place(file, index, pages));
        let state = match self.times.of(Spent::Io, in_place) {
            Some(result) => WriteState::Done(result),
            None => self.begin_store_copy(run),
        };
        Write { run, state }
    }

    /// How many runs of a list, from its first on, are written at a time.
    fn at_a_time(&self, runs: &[Run]) -> usize {
        let mut room = WriteRoom::default();
        let fits = |run: &&Run| {
            let may_be_together = self.port.begins_stores(run.place.segment.0);
            room.is_left() && {
                room.take(run, may_be_together);
                true
            }
        };
        runs.iter().take_while(fits).count()
    }

    /// How many runs of a list that has some, from its first on, are to be written together.
    fn together(&self, runs: &[Run]) -> usize {
        let segment = runs[0].place.segment;
        if runs.len() < 2 || !self.port.begins_stores(segment.0) {
            return 1;
        }
        let core = self.lock();
        let known_bytes = core.known_size(segment.0);
        let mut pages = 0;
        let fits = |run: &&Run| {
            let end = run.place.index + u64::from(run.pages);
            pages += u64::from(run.pages);
            run.place.segment == segment
                && is_short(run)
                && !core.presumes(**run)
                && pages <= MOVED_TOGETHER_MAX
                && end * self.page_bytes <= known_bytes
        };
        runs.iter().take_while(fits).count().max(1)
    }

    /// As [`begin_write_back`](Self::begin_write_back), for several short runs of one file.
    fn begin_together(&self, runs: &[Run]) -> Vec<Write> {
        let file = runs[0].place.segment.0;
        let protect = |run: &Run| self.protect_everywhere(*run);
        let protected: Vec<Result<(), PortError>> =
            self.times.of(Spent::Kernel, || runs.iter().map(protect).collect());
        runs.iter().for_each(|_| self.begin_own_write(file));
        let range = |run: &Run| run.place.index..run.place.index + u64::from(run.pages);
        let ranges: Vec<_> = runs.iter().map(range).collect();
        let begun = protected
            .iter()
            .all(Result::is_ok)
            .then(|| self.times.of(Spent::Io, || self.port.begin_stores(file, &ranges)))
            .flatten();
        let states: Vec<WriteState> = match begun {
            Some(begun) => begun.into_iter().map(WriteState::UnderWay).collect(),
            None => {
                let one = |(run, protected): (&Run, Result<(), PortError>)| match protected {
                    Ok(()) => self.begin_store_copy(*run),
                    Err(error) => WriteState::Done(Err(error)),
                };
                runs.iter().zip(protected).map(one).collect()
            }
        };
        runs.iter().zip(states).map(|(run, state)| Write { run: *run, state }).collect()
    }

    /// Waits for a write's end. Where another one of the same file `follows` that has begun, it is that one which
    /// looks at the file's times.
    pub(crate) fn end_write_back(&self, write: Write, follows: bool) -> Result<(), PortError> {
        let Write { run, state } = write;
        let is_written = !matches!(state, WriteState::Unchanged);
        let result = match state {
            WriteState::Unchanged => Ok(()),
            WriteState::Done(result) => result,
            WriteState::UnderWay(storing) => self.end_store_copy(run, storing),
            WriteState::Parts(parts) => {
                let mut parts = parts.into_iter();
                let mut result = Ok(());
                while let Some(part) = parts.next() {
                    let follows = follows || parts.len() > 0;
                    result = result.and(self.end_write_back(part, follows));
                }
                return result;
            }
        };
        let file = run.place.segment.0;
        match follows {
            true => self.end_own_write_unseen(file),
            false => self.end_own_write(file),
        }
        let mut core = self.lock();
        let keeps = self.keeps(&mut core, file);
        if let Some(file) = core.file_mut(file)
            && result.is_ok()
            && is_written
        {
            file.counts.write_backs += u64::from(run.pages);
            if !keeps {
                file.counts.written_bytes += u64::from(run.pages) * self.page_bytes;
            }
        }
        if keeps {
            let job = self.recount_kept(&mut core);
            drop(core);
            // The caller may be making room just now.
            self.run_later(job, None);
        }
        result
    }

    pub(crate) fn copy_of(&self, run: Run) -> Result<Buffer, PortError> {
        let (file, index) = (run.place.segment.0, run.place.index);
        self.times.of(Spent::Kernel, || self.copy_out(file, index, u64::from(run.pages)))
    }

    /// Writes a copy of claimed pages, or begins to.
    fn begin_store_copy(&self, run: Run) -> WriteState {
        match self.copy_of(run) {
            Ok(buffer) => self.begin_store_of(run, buffer),
            Err(error) => WriteState::Done(Err(error)),
        }
    }

    fn begin_store_of(&self, run: Run, buffer: Buffer) -> WriteState {
        let (file, index) = (run.place.segment.0, run.place.index);
        let pages = u64::from(run.pages);
        if (index + pages) * self.page_bytes > self.lock().known_size(file) {
            return WriteState::Done(self.store_from(run, buffer));
        }
        let begun = self.times.of(Spent::Io, || self.port.begin_store(file, index, buffer, pages));
        match begun {
            Ok(storing) => WriteState::UnderWay(storing),
            Err(buffer) => WriteState::Done(self.store_from(run, buffer)),
        }
    }

    /// Waits for a write. One that went wrong is made once more, by a plain call, whose error
    /// counts.
    fn end_store_copy(&self, run: Run, storing: Box<dyn Storing>) -> Result<(), PortError> {
        let (buffer, is_written) = self.times.of(Spent::Io, || storing.end());
        match (buffer, is_written) {
            (buffer, true) => {
                buffer.into_iter().for_each(|buffer| self.give_buffer(buffer));
                Ok(())
            }
            (Some(buffer), false) => self.store_from(run, buffer),
            (None, false) => self.copy_of(run).and_then(|buffer| self.store_from(run, buffer)),
        }
    }

    fn store_from(&self, run: Run, buffer: Buffer) -> Result<(), PortError> {
        let data = &buffer[..run.pages as usize * self.page_bytes as usize];
        let (file, index) = (run.place.segment.0, run.place.index);
        // Nothing is behind that end but what came by system calls, which storage has: one of somebody
        // outside may have made the file longer and not be followed yet.
        let end_bytes = self.lock().known_size(file);
        let stored = self.times.of(Spent::Io, || self.port.store(file, index, data, end_bytes));
        self.give_buffer(buffer);
        stored
    }

    /// Takes write access away in every shared mapping. A fork or a move in between hands the old
    /// access to an address that was not in the list, so it is begun anew until no mapping changed
    /// meanwhile: one that moved away and back is where it was, and was not there to be protected.
    ///
    /// # Errors
    /// `ENOMEM`: the kernel had no memory for that, and somebody may go on storing.
    pub(crate) fn protect_everywhere(&self, run: Run) -> Result<(), PortError> {
        const NO_MEMORY: PortError = PortError::Io(pagekeeper_sys::Errno::NOMEM.raw_os_error());
        let mut mappings = self.lock().shared_mappings(run);
        loop {
            let (mut changing, mut result) = (false, Ok(()));
            for &(space, addr, pages) in &mappings.1 {
                match self.port.protect(space, addr, pages) {
                    Err(PortError::Again) => changing = true,
                    Err(error) if error == NO_MEMORY => result = Err(error),
                    _ => {}
                }
            }
            if changing {
                self.port.again();
            }
            let now = self.lock().shared_mappings(run);
            if !changing && now == mappings {
                return result;
            }
            mappings = now;
        }
    }

    /// Writes claimed runs back, so that storage has several of them at a time; their pages stay, if
    /// not for long (`retire`). Returns how each went; none of one that is left to storage, since it takes
    /// more than `patience`. What follows from that is put into `more`.
    ///
    /// Never sleeps for a page: those of all runs are claimed.
    pub(crate) fn clean(
        &self,
        runs: &[Run],
        retire: bool,
        patience: Patience,
        more: &mut Job,
        again: &mut Again,
    ) -> Vec<Option<Result<(), PortError>>> {
        let mut results = Vec::with_capacity(runs.len());
        let mut later = runs;
        while !later.is_empty() {
            let (some, others) = later.split_at(self.at_a_time(later));
            later = others;
            let mut writes: Vec<(Run, Option<Write>)> = Vec::with_capacity(some.len());
            let mut rest = some;
            while let Some(run) = rest.first() {
                let is_put_off =
                    !patience.is_for_any_write() && self.lock().is_overdue(run.place.segment.0);
                let together = if is_put_off { 1 } else { self.together(rest) };
                if together > 1 {
                    let begun = self.begin_together(&rest[..together]);
                    writes.extend(begun.into_iter().map(|write| (write.run, Some(write))));
                } else {
                    let write = (!is_put_off).then(|| self.begin_write_back(*run, retire));
                    writes.push((*run, write));
                }
                rest = &rest[together..];
            }
            // For all together.
            let mut longest = OVERDUE_AFTER;
            let mut writes = writes.into_iter();
            while let Some((run, write)) = writes.next() {
                // The last one of each file looks at its times.
                let follows = writes.as_slice().iter().any(|(later, write)| {
                    write.is_some() && later.place.segment == run.place.segment
                });
                let Some(mut write) = write else {
                    self.cleaned(run, false, more, again);
                    results.push(None);
                    continue;
                };
                let is_over = write.ends_within(longest);
                if !is_over {
                    longest = Duration::ZERO;
                }
                results.push(if is_over {
                    let result = self.end_write_back(write, follows);
                    self.cleaned(run, result.is_ok(), more, again);
                    Some(result)
                } else if patience.is_for_any_write() {
                    Some(self.sit_out(write, more, again))
                } else {
                    self.put_off(write, &[], more, again);
                    None
                });
            }
        }
        results
    }

    /// A run was written back, or could not be.
    pub(crate) fn cleaned(&self, run: Run, is_written: bool, more: &mut Job, again: &mut Again) {
        let mut core = self.lock();
        for place in run.places() {
            let page = core.brain.page(place).expect("claimed pages are numbered");
            if is_written {
                core.end_presumption(page, place.segment.0);
            }
            core.word(page).cleaned(is_written);
            core.rests(place.segment.0);
            if !core.word(page).doomed() {
                let input =
                    if is_written { Input::Cleaned { place } } else { Input::Kept { place } };
                more.append(self.decide(&mut core, input));
            }
            again.extend(core.unpark(place));
        }
        self.rested();
    }
}
