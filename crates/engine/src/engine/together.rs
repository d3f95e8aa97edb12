//! Faults whose pages storage is asked for together.
//!
//! Threads that miss at the same time wait for different pages. To ask for each by a system call of its own
//! costs more than all else of a miss where the disk is a virtual one: an exit to the hypervisor. So what was
//! read together of faults on one file is asked for together, as long as no room has to be waited for.

use crate::engine::core::{Core, Fault, Job};
use crate::engine::fault::Missed;
use crate::engine::fetch::Request;
use crate::engine::job::Wait;
use crate::engine::spaces::Region;
use crate::engine::word::State;
use crate::engine::{Again, Engine};
use crate::port::{MOVED_TOGETHER_MAX, PAGE_BYTES, Port};
use pagekeeper_frames::{Place, Run};
use std::time::Instant;

/// Most pages of one fault's: what is longer is worth a request of its own,
const PAGES_MAX: u32 = 4;
/// and most faults.
const FAULTS_MAX: usize = 16;
const _: () = assert!(PAGES_MAX as u64 * FAULTS_MAX as u64 <= MOVED_TOGETHER_MAX);

/// Faults whose pages are claimed.
pub(crate) struct Misses {
    /// On their way. Room for them is to be had without waiting.
    under_way: Vec<(Missed, Job, Request)>,
    /// Since when.
    begun: Instant,
    /// One with more to do, after the others.
    last: Option<(Missed, Job)>,
}

impl std::fmt::Debug for Misses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.under_way.iter().map(|(missed, ..)| missed.place);
        f.debug_list().entries(places.chain(self.last.iter().map(|(last, _)| last.place))).finish()
    }
}

impl<P: Port> Engine<P> {
    /// Serves faults that were read together.
    pub fn serve_together(&self, mut faults: Vec<Fault>) {
        while let Some(misses) = self.begin_misses(&mut faults) {
            self.end_misses(vec![misses]);
        }
        faults.into_iter().for_each(|fault| self.serve(fault));
    }

    /// Takes faults from a list whose pages can be asked for together, and asks for them. Their claims are the
    /// caller's to [end](Self::end_misses).
    pub(crate) fn begin_misses(&self, faults: &mut Vec<Fault>) -> Option<Misses> {
        // Whoever asks first finds out, which is no work for under the lock.
        if faults.len() < 2 || !self.port.maps_protected() {
            return None;
        }
        let file = {
            let core = self.lock();
            let mut places = faults.iter().filter_map(|fault| self.fetchable(&core, *fault));
            places.next()?.1.segment.0
        };
        if !self.port.begins_loads_together(file) {
            return None;
        }
        let mut claimed: Vec<(Missed, Job, Run)> = Vec::new();
        let mut last = None;
        let mut core = self.lock();
        faults.retain(|&fault| {
            if last.is_some() || claimed.len() == FAULTS_MAX {
                return true;
            }
            let Some((region, place)) = self.fetchable(&core, fault) else { return true };
            if region.file != file {
                return true;
            }
            core.asking_pid = core.space_mut(fault.space).map_or(0, |space| space.pid);
            let missed = Missed { fault, region, place, write: false };
            let job = self.miss(&mut core, missed);
            match *job.fetch {
                [run]
                    if run.place == place
                        && run.pages <= PAGES_MAX
                        && self.makes_room_at_once(&job) =>
                {
                    claimed.push((missed, job, run));
                }
                _ => last = Some((missed, job)),
            }
            false
        });
        drop(core);
        if claimed.is_empty() && last.is_none() {
            return None;
        }
        let runs: Vec<Run> = claimed.iter().map(|(.., run)| *run).collect();
        let begun = Instant::now();
        let requests = self.fetch_together(file, &runs);
        let claimed = claimed.into_iter().zip(requests);
        let under_way = claimed.map(|((missed, job, _), request)| (missed, job, request)).collect();
        Some(Misses { under_way, begun, last })
    }

    /// A fault whose page is read, and can be fetched without a look at anything else.
    fn fetchable(&self, core: &Core, fault: Fault) -> Option<(Region, Place)> {
        let touched = fault.addr & !(PAGE_BYTES - 1);
        let region = core.region(fault.space, touched)?;
        let (place, _) = core.place_of(region, touched);
        let file = core.file(region.file).filter(|file| place.index < file.pages)?;
        let (page, state) = core.state(place);
        let is_free = state == State::Absent
            && !fault.write
            && !fault.protected
            && region.index(touched) < file.machine_end()
            && !core.has_no_number_for(page)
            && !page.is_some_and(|page| core.word(page).doomed())
            && !core.dropping(place)
            && !core.unfetchable(place);
        is_free.then_some((region, place))
    }

    /// Whether nothing has to be written or waited for before pages can leave.
    fn makes_room_at_once(&self, job: &Job) -> bool {
        let is_clean = |page| !self.table.word(page).dirty();
        job.late.is_empty() && job.clean.is_empty() && job.evict.iter().all(|v| is_clean(v.page))
    }

    /// Completes what [`begin_misses`](Self::begin_misses) began.
    pub(crate) fn end_misses(&self, misses: Vec<Misses>) {
        if misses.is_empty() {
            return;
        }
        let mut again = Again::new();
        let (mut ready, mut last) = (Vec::new(), Vec::new());
        for begun in misses {
            // Room for all, while storage works.
            for (missed, mut job, request) in begun.under_way {
                let requests = self.prepare_begun(vec![request], &mut job, Wait::Long, &mut again);
                self.unmap(&mut job);
                ready.push((missed, job, requests, begun.begun));
            }
            last.extend(begun.last);
        }
        for (missed, job, requests, begun) in ready {
            self.bring(requests, job, missed, begun, &mut again);
        }
        for (missed, job) in last {
            self.fault_in(job, missed, &mut again);
        }
        self.serve_all(&mut again);
    }
}
