//! Write-backs that storage does not end: on a file system that is frozen, or a device that hangs.
//!
//! A fault needs a frame, and its victim is dirty. Usually its write-back is what there is to wait for. But
//! where storage stands still, everybody who needs a frame would stand still with it, one after the other,
//! however far their own files are from that storage. So after a while the page stays, and others leave in
//! its place; so do all dirty pages of its file, until the write has ended. Nobody waits for that but
//! who asked for it.

use crate::engine::core::{Core, Job};
use crate::engine::evict::Write;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port, PortError};
use pagekeeper_frames::{Input, Victim};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long storage may take until others do without these frames.
pub(crate) const OVERDUE_AFTER: Duration = Duration::from_millis(500);

/// Writes that nobody waits for.
#[derive(Default)]
pub(crate) struct OverdueWrites {
    writes: Mutex<Vec<(Write, Instant)>>,
    /// How many, to be looked at without the lock.
    count: AtomicUsize,
}

impl OverdueWrites {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn push(&self, write: Write) {
        let mut writes = self.writes.lock().expect("writes");
        writes.push((write, Instant::now()));
        self.count.store(writes.len(), Ordering::Relaxed);
    }

    /// Those that have ended since.
    fn take_ended(&self) -> Vec<Write> {
        let mut writes = self.writes.lock().expect("writes");
        let ended = writes.extract_if(.., |(write, _)| write.ends_within(Duration::ZERO));
        let ended = ended.map(|(write, _)| write).collect();
        self.count.store(writes.len(), Ordering::Relaxed);
        ended
    }

    /// The files of those that have been overdue for so long, and since when.
    pub(crate) fn since(&self, longer_than: Duration) -> Vec<(FileNo, Duration)> {
        let writes = self.writes.lock().expect("writes");
        let mut files: Vec<(FileNo, Duration)> =
            writes.iter().map(|(write, at)| (write.run.place.segment.0, at.elapsed())).collect();
        files.retain(|(_, since)| *since > longer_than);
        // The first of each file is the oldest.
        files.sort_by_key(|(file, since)| (*file, std::cmp::Reverse(*since)));
        files.dedup_by_key(|(file, _)| *file);
        files
    }
}

impl<P: Port> Engine<P> {
    /// Lets a write go on by itself. Victims among its pages stay, and those in their place are put into
    /// `more`.
    pub(crate) fn put_off(
        &self,
        write: Write,
        victims: &[Victim],
        more: &mut Job,
        again: &mut Again,
    ) {
        let mut core = self.lock();
        self.becomes_overdue(&mut core, write.run.place.segment.0);
        for victim in victims {
            core.word(victim.page).stays_while_written();
            core.note_dirty(victim.place);
            more.append(self.decide(&mut core, Input::Kept { place: victim.place }));
            // To whoever waits for its end it makes no difference.
            again.extend(core.unpark(victim.place));
        }
        self.overdue.push(write);
        self.rested();
    }

    /// Waits for a write to its end, and lets others go on without its file's dirty pages.
    pub(crate) fn sit_out(
        &self,
        write: Write,
        more: &mut Job,
        again: &mut Again,
    ) -> Result<(), PortError> {
        let run = write.run;
        self.becomes_overdue(&mut self.lock(), run.place.segment.0);
        let result = self.end_write_back(write, false);
        self.cleaned(run, result.is_ok(), more, again);
        self.is_overdue_no_more(run.place.segment.0, more, again);
        result
    }

    /// Ends the writes that storage has ended since.
    pub(crate) fn end_overdue(&self, again: &mut Again) {
        for write in self.overdue.take_ended() {
            let (run, mut more) = (write.run, Job::default());
            let result = self.end_write_back(write, false);
            if let Err(error) = result {
                self.lock().note_error(run.place.segment.0, error);
            }
            self.cleaned(run, result.is_ok(), &mut more, again);
            self.is_overdue_no_more(run.place.segment.0, &mut more, again);
            // Who looks may be waiting with pages claimed.
            self.run_later(more, None);
        }
    }

    /// The same, and what follows from it. From time to time: it may be that nobody waits.
    pub fn look_at_overdue(&self) {
        if !self.overdue.is_empty() {
            let mut again = Again::new();
            self.end_overdue(&mut again);
            self.serve_all(&mut again);
        }
    }

    fn becomes_overdue(&self, core: &mut Core, file: FileNo) {
        if let Some(f) = core.file_mut(file) {
            f.overdue += 1;
        }
        // Who waits for its pages in the background does so no longer.
        self.rested();
    }

    fn is_overdue_no_more(&self, file: FileNo, more: &mut Job, again: &mut Again) {
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        f.overdue -= 1;
        if f.overdue == 0 {
            self.release(&mut core, file, 0..u64::MAX).into_iter().for_each(|job| more.append(job));
            again.extend(core.unpark_range(file, 0..u64::MAX));
        }
    }
}
