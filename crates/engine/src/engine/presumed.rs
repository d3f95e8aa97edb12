//! Pages of files that count as dirty before anybody stored to them.
//!
//! A page's first store is a fault, so that it is known to be dirty: one for each page of a file that a
//! program fills. So pages behind a stream of stores become writable with the one that is stored to
//! ([`stored_next`](crate::engine::core::Core::stored_next)), and count as dirty. But one that nobody
//! stores to then must not be written back: it would go over what others wrote to the file.
//!
//! So it is noted what such a page held, and before it is written back, when nobody can store to it any
//! more, whether that is what it holds: then it is clean. (One that was stored to with what it held already
//! is none the worse for that.) What it held has to be what storage has, as long as it counts so. So a
//! change of the file's that clients announce, and one that somebody outside made, begins with finding out
//! which of its pages were stored to; and clients announce all of them.

use crate::engine::core::{Core, Job, Quiet};
use crate::engine::stats::Spent;
use crate::engine::{Again, Engine};
use crate::port::{FileNo, Port};
use pagekeeper_frames::{Place, Run};
use std::ops::Range;

impl<P: Port> Engine<P> {
    /// Pinned clean pages of a run, of a file that was so when they were pinned
    /// ([`begin_presumptions`](Core::begin_presumptions) was called then), count as dirty from now on, the
    /// first ones at least. Returns how many; what follows is added to the job.
    pub(crate) fn presume_next(&self, run: Run, quiet: Quiet, job: &mut Job) -> u32 {
        let digests = self.copy_of(run).map(|content| {
            let digests = self.digests(run, &content);
            self.give_buffer(content);
            digests
        });
        let mut core = self.lock();
        let file = run.place.segment.0;
        let mut presumed: Vec<(Place, u64)> = Vec::new();
        // Who overwrites it meanwhile was seen, or sees to that it is.
        if let Ok(digests) = digests
            && core.quiet(file) == Some(quiet)
        {
            let may_be = |(place, _): &(Place, u64)| {
                core.brain.page(*place).is_some_and(|page| core.may_become_dirty(page, *place))
            };
            presumed.extend(run.places().zip(digests).take_while(may_be));
            job.append(self.presume(&mut core, &presumed));
        }
        core.presumptions_begun(file);
        presumed.len() as u32
    }

    /// A run has come with this content, which was read while its file was so
    /// ([`told_quiet`](Core::told_quiet)): what of it [came ahead of stores](pagekeeper_frames::Brain::stored_on)
    /// counts as dirty from now on.
    pub(crate) fn presume_ahead(&self, run: Run, quiet: Quiet, content: &[u8]) {
        if self.exact {
            return;
        }
        let mut ahead = self.lock().brain.stored_on(run);
        if quiet.holes {
            ahead.pages = self.room_ahead(ahead);
        }
        if ahead.pages == 0 {
            return;
        }
        let from = (ahead.place.index - run.place.index) * self.page_bytes;
        let digests = self.digests(ahead, &content[from as usize..]);
        let mut core = self.lock();
        if core.told_quiet(run.place.segment.0) != Some(quiet) {
            return;
        }
        let may_be = |(place, _): &(Place, u64)| {
            place.index < quiet.whole_pages
                && core.brain.page(*place).is_some_and(|page| {
                    core.word(page).idle() && core.may_become_dirty(page, *place)
                })
        };
        let presumed: Vec<(Place, u64)> = ahead.places().zip(digests).filter(may_be).collect();
        let job = self.presume(&mut core, &presumed);
        drop(core);
        self.run_later(job, None);
    }

    /// How many pages of a run, the first ones, have room on storage as it is.
    pub(crate) fn room_ahead(&self, run: Run) -> u32 {
        if run.pages == 0 {
            return 0;
        }
        let (file, index) = (run.place.segment.0, run.place.index);
        let pages = u64::from(run.pages);
        self.times.of(Spent::Io, || self.port.room_ahead(file, index, pages)) as u32
    }

    /// Pages that held this, by what stands for it, count as dirty from now on.
    fn presume(&self, core: &mut Core, pages: &[(Place, u64)]) -> Job {
        let (mut runs, mut takes_memory) = (Vec::new(), false);
        for &(place, digest) in pages {
            let page = core.brain.page(place).expect("pages in memory are numbered");
            takes_memory |= core.presume(page, place, digest);
            Run::add(&mut runs, place);
        }
        let mut job = Job::default();
        for run in runs {
            job.append(self.make_dirty(core, run));
        }
        if takes_memory {
            let reserved = core.reserved();
            job.append(self.decide(core, reserved));
        }
        job
    }

    /// What stands for the content of each page of a run; for none where no page counts as dirty so.
    fn digests(&self, run: Run, content: &[u8]) -> Vec<u64> {
        let pages = content.chunks(self.page_bytes as usize).take(run.pages as usize);
        pages.filter_map(|page| self.table.digest(page)).collect()
    }

    /// Of claimed pages to which nobody can store, and of which this is a copy, those that were stored to
    /// since they count as dirty. The others are to be called [clean](Self::cleaned), or leave.
    pub(crate) fn stored_to_of(&self, run: Run, content: &[u8]) -> Vec<Run> {
        let file = run.place.segment.0;
        let digests = self.digests(run, content);
        let mut stored = Vec::new();
        let mut core = self.lock();
        for (i, place) in run.places().enumerate() {
            let page = core.brain.page(place).expect("claimed pages are numbered");
            let then = core.presumption(page, file);
            if then.is_none() || then != digests.get(i).copied() {
                core.end_presumption(page, file);
                Run::add(&mut stored, place);
            }
        }
        stored
    }

    /// Claimed pages have to be taken for stored to.
    fn all_stored_to(&self, run: Run) -> Vec<Run> {
        let mut core = self.lock();
        for place in run.places() {
            let page = core.brain.page(place).expect("claimed pages are numbered");
            core.end_presumption(page, run.place.segment.0);
        }
        vec![run]
    }

    /// Finds out which pages of a range were stored to of those that count as dirty whether they were or
    /// not. Waits for those that are in motion.
    pub(crate) fn settle_presumed(&self, file: FileNo, pages: Range<u64>, again: &mut Again) {
        let claim = |core: &mut Core| {
            let (mut runs, mut is_busy) = (Vec::new(), false);
            if core.presumes_any(file) {
                core.for_each_dirty(file, pages.clone(), |core, page, place| {
                    if core.presumption(page, file).is_none() {
                    } else if !core.word(page).doomed() && core.claim_clean(page, place) {
                        Run::add(&mut runs, place);
                    } else {
                        is_busy = true;
                    }
                    true
                });
            }
            (!is_busy || !runs.is_empty()).then_some((runs, is_busy))
        };
        loop {
            let (core, (runs, is_busy)) = self.wait_until(again, claim);
            drop(core);
            let mut more = Job::default();
            for run in runs {
                // If not, somebody may go on storing.
                let protected = self.protect_everywhere(run);
                let stored = match protected.and_then(|()| self.copy_of(run)) {
                    Ok(content) => {
                        let stored = self.stored_to_of(run, &content);
                        self.give_buffer(content);
                        stored
                    }
                    Err(_) => self.all_stored_to(run),
                };
                let is_stored = |place: &Place| stored.iter().any(|run| run.contains(*place));
                for place in run.places() {
                    let one = Run { place, pages: 1, demanded: 0 };
                    self.cleaned(one, !is_stored(&place), &mut more, again);
                }
            }
            self.run_waiting(more, None, again);
            if !is_busy {
                return;
            }
        }
    }
}
