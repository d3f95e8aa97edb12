//! Decisions, and the pages that are claimed for what they lead to.

use super::{Core, File};
use crate::engine::overwrites::Claim;
use crate::engine::stats::PolicyReport;
use crate::engine::touches::Touches;
use crate::engine::word::{Chosen, State};
use crate::port::{PAGE_BYTES, SpaceNo};
use pagekeeper_frames::{Input, Place, Run, Victim};
use pagekeeper_policy::{Page, Policy, PolicySpec};
use std::collections::HashMap;

/// A victim that was busy when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doomed {
    pub(crate) victim: Victim,
    /// Which choice it was: the page may fail to arrive, be fetched again, and be chosen by
    /// another job, which it then belongs to.
    ticket: u64,
}

/// What became of a victim that was busy.
pub(crate) enum Late {
    /// It is claimed, and to be evicted.
    Claimed,
    /// It is gone already.
    Gone,
    /// It is being changed and stays; others go in its place.
    Kept(Job),
    /// It is busy still.
    Busy,
}

/// Pages claimed for work that follows outside the lock, in this order.
#[derive(Default, Debug)]
pub(crate) struct Job {
    /// In state Leaving.
    pub(crate) evict: Vec<Victim>,
    /// Doomed: to be claimed when they are idle.
    pub(crate) late: Vec<Doomed>,
    /// In state Cleaning.
    pub(crate) clean: Vec<Run>,
    /// In state Filling.
    pub(crate) fetch: Vec<Run>,
    /// To be mapped in the space whose fault led to this.
    pub(crate) map: Vec<Run>,
    /// To be unmapped: address ranges (address, pages) per space.
    pub(crate) unmap: Vec<(SpaceNo, Vec<(u64, u64)>)>,
}

impl Job {
    /// Takes over what another job has to do.
    pub(crate) fn append(&mut self, mut other: Job) {
        take_over(&mut self.evict, &mut other.evict);
        take_over(&mut self.late, &mut other.late);
        take_over(&mut self.clean, &mut other.clean);
        take_over(&mut self.fetch, &mut other.fetch);
        take_over(&mut self.unmap, &mut other.unmap);
    }

    /// Pages are to leave memory, or to be written.
    pub(crate) fn makes_room(&self) -> bool {
        !(self.evict.is_empty() && self.late.is_empty() && self.clean.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.makes_room() && self.fetch.is_empty() && self.map.is_empty() && self.unmap.is_empty()
    }
}

/// A page of a plan that stays as it is.
struct Kept {
    place: Place,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It was to be written back.
    Uncleaned,
    /// It was to leave.
    Victim,
    /// It was to leave, and is being fetched for who needs it; dirty, as far as the brain knew.
    Awaited { dirty: bool },
}

impl Kept {
    fn victim(place: Place) -> Kept {
        Kept { place, why: Why::Victim }
    }

    fn input(&self) -> Input {
        let place = self.place;
        match self.why {
            Why::Awaited { dirty } => Input::Spared { place, dirty },
            Why::Victim | Why::Uncleaned => Input::Kept { place },
        }
    }
}

/// Moves what is in `from` behind what is in `to`; as it is, where nothing is there.
fn take_over<T>(to: &mut Vec<T>, from: &mut Vec<T>) {
    if to.is_empty() {
        std::mem::swap(to, from);
    } else {
        to.append(from);
    }
}

impl Core {
    /// Tells the brain; whether it has a plan.
    fn ask(&mut self, input: Input) -> bool {
        let is_any = !self.brain.apply(input).is_empty();
        if let Some(log) = &mut self.log {
            log.input(input, self.brain.digest(), self.asking_pid);
        }
        is_any
    }

    /// Tells the brain, and claims the pages of its plan.
    pub(crate) fn decide(&mut self, input: Input) -> Job {
        let mut job = Job::default();
        self.decide_all(input, &mut job);
        job
    }

    /// As [`decide`](Self::decide), added to a job.
    pub(crate) fn decide_all(&mut self, input: Input, job: &mut Job) {
        self.decide_into(input, job);
        self.give_up_victims(job);
        self.grant_wishes(job);
    }

    /// What the policy asks for beyond what the input needs is left for others to carry out, so
    /// that nobody who faulted waits for it; but for pages to be mapped in the space that asked.
    fn grant_wishes(&mut self, job: &mut Job) {
        while let Some(wish) = self.brain.take_wish() {
            let mut wished = Job::default();
            self.decide_into(wish, &mut wished);
            self.give_up_victims(&mut wished);
            job.map.append(&mut wished.map);
            self.wished.append(wished);
        }
    }

    fn decide_into(&mut self, input: Input, job: &mut Job) {
        let mut kept = Vec::new();
        if self.ask(input) {
            self.claim(job, &mut kept);
        }
        // Last: other victims are chosen for these, perhaps among what was just claimed. They may stay in
        // turn, as many as there are pages: there is no stack for that.
        kept.reverse();
        while let Some(stays) = kept.pop() {
            // What was taken for cleaned may have been chosen to leave meanwhile, and is heard of as that.
            let is_over = stays.why == Why::Uncleaned && !self.brain.is_resident(stays.place);
            if !is_over && self.ask(stays.input()) {
                let before = kept.len();
                self.claim(job, &mut kept);
                kept[before..].reverse();
            }
        }
        self.charge_state(job);
    }

    /// Pages were used without anybody's being told at once; what follows is added to a job. (What a
    /// use would map along, nobody asked to be mapped.) Returns whether there were any.
    pub(crate) fn touched(&mut self, touches: &Touches, job: &mut Job) -> bool {
        // Its memory is used again.
        let mut places = std::mem::take(&mut self.places);
        touches.take_into(&mut places);
        let is_any = !places.is_empty();
        for place in places.drain(..) {
            self.decide_into(Input::Touch { place, write: false, map: false }, job);
        }
        self.places = places;
        if is_any {
            self.give_up_victims(job);
            self.grant_wishes(job);
        }
        is_any
    }

    /// Another policy decides from now on, over the same pages. It was built for `frames` frames.
    pub(crate) fn replace_policy(
        &mut self,
        spec: &PolicySpec,
        policy: Box<dyn Policy>,
        frames: u32,
    ) -> Job {
        self.look_inside(true);
        let number = self.policies.push(PolicyReport::new(spec));
        if let Some(log) = &mut self.log {
            log.policy(number, spec);
        }
        self.brain.put_forward(policy);
        let mut job = Job::default();
        self.decide_into(Input::Policy { number, frames }, &mut job);
        if let Some(budget) = self.budget.under(spec.info().bytes_per_page) {
            self.budget = budget;
            let frames = budget.frames(self.brain.numbered_pages());
            self.decide_into(Input::Frames { frames }, &mut job);
        }
        self.give_up_victims(&mut job);
        job
    }

    /// Takes what the policy shows of itself into the report; why it was revoked, if it was since
    /// the last look.
    pub(crate) fn look_inside(&mut self, last: bool) -> Option<String> {
        let report = self.policies.present_mut();
        let visible = self.brain.visible()?;
        let account = report.account.get_or_insert_default();
        let revoked = account.look(visible);
        if last {
            account.close(visible);
        }
        let why = account.revoked.clone().filter(|_| revoked)?;
        Some(format!("{}: {why}", report.policy))
    }

    /// Per-page state is paid from the budget: as page numbers are given out, frames shrink.
    fn charge_state(&mut self, job: &mut Job) {
        if let Some(frames) = self.budget.correct(self.brain.numbered_pages()) {
            self.decide_into(Input::Frames { frames }, job);
        }
    }

    /// Claims the pages of the brain's last plan; adds those that have to stay.
    fn claim(&mut self, job: &mut Job, kept: &mut Vec<Kept>) {
        let mut plan = self.brain.take_plan();
        let mut stay = Vec::new();
        plan.evict.retain(|victim| self.claim_victim(*victim, &mut job.late, &mut stay));
        take_over(&mut job.evict, &mut plan.evict);
        for run in plan.clean.drain(..) {
            self.claim_cleaning(run, job, kept);
        }
        plan.fetch.retain_mut(|run| {
            run.pages = self.claim_fill(*run, job);
            run.demanded = run.demanded.min(run.pages);
            run.pages > 0
        });
        take_over(&mut job.fetch, &mut plan.fetch);
        if !plan.map.is_empty() {
            take_over(&mut job.map, &mut plan.map);
        }
        if !plan.unmap.is_empty() {
            self.locate(&plan.unmap, job);
        }
        self.brain.reuse_plan(plan);
        // Behind those that the brain takes for clean: it would choose these first.
        kept.append(&mut stay);
    }

    /// Whether a page that is being fetched is not to be waited for, since programs hold what is at rest:
    /// who has it fetched may want to hold it, too, and would have to have it fetched anew if it left, for
    /// which others' would be chosen in turn. What is fetched comes beyond the frames then.
    fn stays_while_filling(&self, page: Page) -> bool {
        self.victims_were_held
            && self.brain.stuck_pages() > 0
            && self.word(page).state() == State::Filling
    }

    /// Whether a victim leaves; else it is doomed, or stays.
    fn claim_victim(
        &mut self,
        victim: Victim,
        late: &mut Vec<Doomed>,
        kept: &mut Vec<Kept>,
    ) -> bool {
        let word = self.table.word(victim.page);
        if word.dirty() && self.stays_dirty(victim.place) {
            kept.push(Kept::victim(victim.place));
            return false;
        }
        if self.stays_while_filling(victim.page) {
            let why = Why::Awaited { dirty: victim.dirty };
            kept.push(Kept { place: victim.place, why });
            return false;
        }
        let mut chosen = Chosen::Gone;
        let choose = || {
            chosen = word.choose();
            chosen == Chosen::Leaving
        };
        let claim = self.claim_at_rest(victim.place, choose, || word.kept());
        if claim == Claim::Overwritten {
            kept.push(Kept::victim(victim.place));
            return false;
        }
        match chosen {
            Chosen::Leaving => {}
            Chosen::Held => {
                self.victims_were_held = true;
                kept.push(Kept::victim(victim.place));
            }
            Chosen::Doomed | Chosen::Gone => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                // One that is being dropped leaves by itself.
                if chosen == Chosen::Doomed {
                    self.doomed_by.insert(victim.page, ticket);
                }
                late.push(Doomed { victim, ticket });
            }
        }
        claim == Claim::Made
    }

    /// Claims a victim that was busy when it was chosen.
    pub(crate) fn claim_late(&mut self, doomed: Doomed) -> Late {
        let late = self.look_at_late(doomed);
        if !matches!(late, Late::Busy) {
            self.forget_doom(doomed);
        }
        late
    }

    fn is_doomed(&self, doomed: Doomed) -> bool {
        let page = doomed.victim.page;
        self.word(page).doomed() && self.doomed_by.get(&page) == Some(&doomed.ticket)
    }

    fn forget_doom(&mut self, doomed: Doomed) {
        let page = doomed.victim.page;
        if self.doomed_by.get(&page) == Some(&doomed.ticket) {
            self.doomed_by.remove(&page);
        }
    }

    /// Whether a busy victim is being written back or taken out.
    pub(crate) fn on_its_way_out(&self, doomed: Doomed) -> bool {
        matches!(self.word(doomed.victim.page).state(), State::Cleaning | State::Leaving)
    }

    fn look_at_late(&mut self, doomed: Doomed) -> Late {
        let victim = doomed.victim;
        let word = self.word(victim.page);
        match word.state() {
            // Somebody else takes it out; room is there only afterwards.
            State::Leaving => Late::Busy,
            State::Absent => Late::Gone,
            _ if !self.is_doomed(doomed) => Late::Gone,
            State::Resident if word.idle() => {
                if word.dirty() && self.stays_dirty(victim.place) {
                    word.spare();
                    return Late::Kept(self.decide(Input::Kept { place: victim.place }));
                }
                match self.claim_leaving(victim.page, victim.place) {
                    Claim::Made => Late::Claimed,
                    Claim::Refused => Late::Busy,
                    Claim::Overwritten => {
                        // Claiming it has cleared what doomed it.
                        Late::Kept(self.decide(Input::Kept { place: victim.place }))
                    }
                }
            }
            _ => Late::Busy,
        }
    }

    /// A busy victim stays after all.
    pub(crate) fn spare(&mut self, doomed: Doomed) -> Job {
        if !self.is_doomed(doomed) {
            // Somebody else takes it out, or has done so.
            return Job::default();
        }
        self.forget_doom(doomed);
        let place = doomed.victim.place;
        let word = self.word(doomed.victim.page);
        word.spare();
        self.decide(Input::Spared { place, dirty: word.dirty() })
    }

    /// A page that the job is to fetch was chosen as a victim before the job began, in place of
    /// one that had to stay. It is not fetched, or the job would wait for itself.
    fn give_up_victims(&mut self, job: &mut Job) {
        if job.late.is_empty() {
            return;
        }
        let late = std::mem::take(&mut job.late);
        for doomed in late {
            let victim = doomed.victim;
            let fetched = job.fetch.iter_mut().find(|run| run.contains(victim.place));
            let Some(run) = fetched else {
                job.late.push(doomed);
                continue;
            };
            self.forget_doom(doomed);
            let keep = (victim.place.index - run.place.index) as u32;
            let gone = Run { place: victim.place, pages: run.pages - keep, demanded: 0 };
            run.pages = keep;
            run.demanded = run.demanded.min(keep);
            self.fill_failed(gone);
        }
        job.fetch.retain(|r| r.pages > 0);
    }

    /// Claimed pages of a run are absent again.
    pub(crate) fn fill_failed(&mut self, run: Run) {
        for i in 0..u64::from(run.pages) {
            let place = Place { index: run.place.index + i, ..run.place };
            let page = self.brain.page(place).expect("claimed pages are numbered");
            let word = self.word(page);
            let doomed = word.doomed();
            word.fill_failed();
            self.rests(place.segment.0);
            self.arrivals.came(page);
            if !doomed {
                self.ask(Input::Failed { place });
            }
        }
    }

    fn claim_cleaning(&mut self, run: Run, job: &mut Job, kept: &mut Vec<Kept>) {
        for i in 0..u64::from(run.pages) {
            let place = Place { index: run.place.index + i, ..run.place };
            let Some(page) = self.brain.page(place) else { continue };
            let word = self.table.word(page);
            if !word.doomed() && !self.stays_dirty(place) && self.claim_clean(page, place) {
                Run::add(&mut job.clean, place);
            } else if word.dirty() && self.brain.is_resident(place) {
                // The brain took it for cleaned; it is not.
                kept.push(Kept { place, why: Why::Uncleaned });
            }
        }
    }

    /// Claims a run for filling, as far as it is absent; how many pages.
    fn claim_fill(&mut self, run: Run, job: &mut Job) -> u32 {
        let mut claimed = 0;
        for (i, place) in (0..).zip(run.places()) {
            let page = self.brain.page(place).expect("pages of a plan are numbered");
            let word = self.table.word(page);
            let file = self.file(place.segment.0);
            let in_heap = file.is_some_and(|f| f.heap.is_some());
            // Ahead of a fault, not into the gap behind an allocation, nor behind an end that came before
            // the page, and of which the policy has yet to hear.
            let is_useless = |f: &File| match &f.heap {
                Some(heap) => !heap.live.contains(&place.index),
                None => place.index >= f.pages,
            };
            let useless = i >= run.demanded && file.is_some_and(is_useless);
            let free = word.state() == State::Absent && !self.unfetchable(place) && !useless;
            if free && claimed == i {
                // Heap memory is nobody's to rescue.
                if !in_heap {
                    self.table.assign(page, place);
                }
                self.moves(place.segment.0);
                word.claim_fill();
                // Whoever overwrites it now leaves it to us to bring the change in.
                self.overwritten_now(place);
                claimed += 1;
            } else {
                // Still on its way out, or being changed: not now.
                self.decide_into(Input::Failed { place }, job);
            }
        }
        claimed
    }

    /// Where the pages to unmap are mapped.
    fn locate(&self, pages: &[Page], job: &mut Job) {
        let mut found: HashMap<SpaceNo, Vec<(u64, u64)>> = HashMap::new();
        let mut places: Vec<Place> = pages.iter().map(|page| self.brain.place(*page)).collect();
        places.sort_unstable();
        for place in places {
            let Some(file) = self.file(place.segment.0) else { continue };
            let first = place.index * self.machine_pages;
            for mapping in file.mappings.overlapping(first..first + self.machine_pages) {
                let Some((addr, pages)) = mapping.overlap(first, self.machine_pages) else {
                    continue;
                };
                let ranges = found.entry(mapping.space).or_default();
                match ranges.last_mut() {
                    Some(last) if last.0 + last.1 * PAGE_BYTES == addr => last.1 += pages,
                    _ => ranges.push((addr, pages)),
                }
            }
        }
        for (space, mut ranges) in found {
            // A private copy must stay: unmapping would not bring it back.
            if let Some(Some(s)) = self.spaces.get(space as usize)
                && !s.private.is_empty()
            {
                ranges.retain(|&(addr, pages)| {
                    s.private.range(addr..addr + pages * PAGE_BYTES).next().is_none()
                });
            }
            job.unmap.push((space, ranges));
        }
    }
}
