//! Who gives up a frame when a program needs one.
use pagekeeper_frames::{WINDOW_PAGES_MAX, WISHES_MAX};
use pagekeeper_policy::{Admission, Hint, Page, Place, Policy, PolicySpec, Segment};
use rustc_hash::FxHashMap;

use super::gain::{self, HitCurve};
use super::{Allocation, PoolProgram};
use crate::{References, SimError};

/// A program's pages in the pool.
pub(crate) struct Member<'a> {
    references: &'a References,
    /// What its pages' numbers begin at under a policy for all; 0 under one of its own.
    base: u32,
    /// Its segments' numbers likewise.
    first_segment: u32,
    policy: Option<Box<dyn Policy>>,
    wants: Wants,
    /// Its pages by segment and index, if pages of it may be asked for.
    numbers: FxHashMap<(usize, u64), u32>,
    /// Pages that it never references, asked for all the same: where they are, and their numbers
    /// under a policy for all. Their own numbers go on from those of its references.
    strays: Vec<((usize, u64), u32)>,
    curve: Option<HitCurve>,
    least: u32,
    most: u32,
    /// Frames that it should have; it may have more while nobody needs them.
    target: u32,
    pub(crate) resident: u32,
}

/// What a policy wants to know, and whether it asks for anything.
#[derive(Clone, Copy)]
struct Wants {
    places: bool,
    dirty: bool,
    gives_hints: bool,
}

impl Wants {
    fn of(policy: &dyn Policy) -> Self {
        Self {
            places: policy.wants_places(),
            dirty: policy.wants_dirty(),
            gives_hints: policy.gives_hints(),
        }
    }
}

/// What a policy asked for of a program's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// To be fetched.
    Fetch { program: usize, segment: usize, first: u64, pages: u32 },
    /// To be written, if it is resident and dirty.
    Flush(usize, Page),
}

/// The frames of all programs.
pub(crate) struct Frames<'a> {
    allocation: Allocation,
    all: Option<Box<dyn Policy>>,
    pub(crate) members: Vec<Member<'a>>,
    total: u32,
    free: u32,
    until_split: u64,
    hints: Vec<Hint>,
    /// Pages of all references, which a policy for all numbers first.
    pages: u32,
    /// Of the pages that it numbers behind those: the program, and the number there.
    strays: Vec<Leaving>,
}

/// A page that leaves: its program, and its number there.
pub(crate) type Leaving = (usize, Page);

/// Room for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    Free,
    Left(Leaving),
    /// There is none: all pages of who is to give are on their way in.
    None,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(
        programs: &[PoolProgram<'a>],
        allocation: &Allocation,
        total: u32,
        seed: u64,
    ) -> Result<Self, SimError> {
        let bounds = allocation.bounds(programs, total)?;
        let mut all = None;
        if let Allocation::Global { policy } = allocation {
            all = Some(policy.build(total, seed)?);
        }
        let (mut base, mut first_segment) = (0u32, 0);
        let mut members = Vec::new();
        for (program, (least, most)) in programs.iter().zip(bounds) {
            let build = |spec: &PolicySpec| spec.build(most, seed);
            let gain = matches!(allocation, Allocation::MarginalGain { .. });
            let policy = if all.is_none() { Some(build(&program.policy)?) } else { None };
            let wants = all.as_deref().or(policy.as_deref()).map(Wants::of);
            let wants = wants.expect("a policy for all, or one each");
            let references = program.references;
            let numbered = if wants.gives_hints { references.pages() } else { 0 };
            members.push(Member {
                references,
                base,
                first_segment,
                policy,
                wants,
                numbers: (0..numbered).map(|page| (references.place(Page(page)), page)).collect(),
                strays: Vec::new(),
                curve: gain.then(|| HitCurve::new(most)),
                least,
                most,
                target: if gain {
                    (total / programs.len() as u32).clamp(least, most)
                } else {
                    least
                },
                resident: 0,
            });
            if all.is_some() {
                base = base
                    .checked_add(program.references.pages())
                    .filter(|pages| *pages <= crate::PAGES_MAX)
                    .ok_or(SimError::TooManyPages { position: 0 })?;
            }
            first_segment += program.references.segments().len() as u32;
        }
        let until_split = allocation.period_refs();
        Ok(Self {
            allocation: allocation.clone(),
            all,
            members,
            total,
            free: total,
            until_split,
            hints: Vec::new(),
            pages: base,
            strays: Vec::new(),
        })
    }

    /// The policy that holds a program's pages, and the number of one of them there.
    fn policy(&mut self, program: usize, page: Page) -> (&mut dyn Policy, Page) {
        let Member { policy: own, base, references, strays, .. } = &mut self.members[program];
        let policy = self.all.as_mut();
        let number = match page.0.checked_sub(references.pages()) {
            Some(stray) if policy.is_some() => strays[stray as usize].1,
            _ => page.0 + *base,
        };
        let policy = policy.or(own.as_mut()).expect("a policy for all, or one each");
        (policy, Page(number))
    }

    /// A program references a page of its own that is resident.
    pub(crate) fn hit(&mut self, program: usize, page: Page) {
        let (policy, page) = self.policy(program, page);
        policy.referenced(page);
    }

    /// A page of a program is dirty from now on, or comes in so; or it is clean again.
    pub(crate) fn tell_dirty(&mut self, program: usize, page: Page, is_dirty: bool) {
        if !self.members[program].wants.dirty {
            return;
        }
        let (policy, page) = self.policy(program, page);
        if is_dirty { policy.dirtied(page) } else { policy.cleaned(page) }
    }

    /// What the policy of a program's pages asked for. Pages to fetch are at most a window for each
    /// reference, as in a live run.
    pub(crate) fn take_wishes(&mut self, program: usize, wishes: &mut Vec<Wish>) {
        if !self.members[program].wants.gives_hints {
            return;
        }
        let mut hints = std::mem::take(&mut self.hints);
        self.policy(program, Page(0)).0.take_hints(&mut hints);
        let frames = if self.all.is_some() { self.total } else { self.members[program].most };
        let mut left_pages = WINDOW_PAGES_MAX.min(frames / 4);
        for hint in hints.drain(..) {
            match hint {
                Hint::Prefetch { place: Place { segment, index }, pages } if left_pages > 0 => {
                    let at = self.members.partition_point(|m| m.first_segment <= segment.0) - 1;
                    if self.all.is_none() && at != program {
                        continue;
                    }
                    let pages = pages.min(left_pages);
                    left_pages -= pages;
                    let segment = (segment.0 - self.members[at].first_segment) as usize;
                    wishes.push(Wish::Fetch { program: at, segment, first: index, pages });
                }
                Hint::Flush(page) => {
                    let (owner, page) = self.owner(program, page);
                    wishes.push(Wish::Flush(owner, page));
                }
                // Every touch is seen here.
                Hint::Prefetch { .. } | Hint::Map(_) | Hint::Unmap(_) => {}
            }
        }
        wishes.truncate(WISHES_MAX);
        self.hints = hints;
    }

    /// A program's page by its place in the program; `None` if there is none such.
    pub(crate) fn find(&mut self, program: usize, segment: usize, index: u64) -> Option<Page> {
        let member = &mut self.members[program];
        if index >= member.references.segments().get(segment)?.pages {
            return None;
        }
        let place = (segment, index);
        let next = member.references.pages() + member.strays.len() as u32;
        let page = *member.numbers.entry(place).or_insert(next);
        if page == next {
            let number = self.pages + self.strays.len() as u32;
            member.strays.push((place, number));
            self.strays.push((program, Page(page)));
        }
        Some(Page(page))
    }

    /// Every reference, for those who learn from all of them.
    pub(crate) fn observe(&mut self, program: usize, page: Page) {
        let Some(curve) = &mut self.members[program].curve else { return };
        curve.reference(page);
        self.until_split -= 1;
        if self.until_split == 0 {
            self.until_split = self.allocation.period_refs();
            self.split();
        }
    }

    /// A page of a program's heap is freed, resident or not.
    pub(crate) fn freed(&mut self, program: usize, page: Page) {
        self.members[program].curve.iter_mut().for_each(|curve| curve.freed(page));
    }

    fn split(&mut self) {
        let bounds: Vec<_> = self.members.iter().map(|m| (m.least, m.most)).collect();
        let curves: Vec<_> = self.members.iter().filter_map(|m| m.curve.as_ref()).collect();
        let shares = gain::split(&curves, &bounds, self.total);
        for (member, share) in self.members.iter_mut().zip(shares) {
            member.target = share;
            member.curve.iter_mut().for_each(HitCurve::age);
        }
    }

    /// Makes room for a page, the one that is `incoming` if a reference waits for it; what leaves.
    /// The page counts as resident from here on.
    pub(crate) fn make_room(
        &mut self,
        program: usize,
        incoming: Option<Page>,
        position: u64,
    ) -> Result<Room, SimError> {
        if let Some(page) = incoming {
            self.tell_place(program, page);
        }
        let donor = self.donor(program);
        let mut room = Room::Free;
        match donor {
            None => self.free -= 1,
            Some(donor) => {
                if incoming.is_none() && self.policy(donor, Page(0)).0.resident() == 0 {
                    return Ok(Room::None);
                }
                let incoming = incoming.filter(|_| donor == program);
                let incoming = incoming.map(|page| self.policy(program, page).1);
                let victim = self.policy(donor, Page(0)).0.victim(incoming).ok_or_else(|| {
                    let what = "it has no victim though it holds pages".to_owned();
                    SimError::BrokenPolicy { position, what }
                })?;
                let (owner, victim) = self.owner(donor, victim);
                self.members[owner].resident -= 1;
                room = Room::Left((owner, victim));
            }
        }
        self.members[program].resident += 1;
        Ok(room)
    }

    /// Brings in a page that there is room for.
    pub(crate) fn admit(&mut self, program: usize, page: Page, how: Admission) {
        if how == Admission::Prefetch {
            self.tell_place(program, page);
        }
        let (policy, page) = self.policy(program, page);
        policy.admitted(page, how);
    }

    fn tell_place(&mut self, program: usize, page: Page) {
        let member = &self.members[program];
        if !member.wants.places {
            return;
        }
        let (segment, index) = match page.0.checked_sub(member.references.pages()) {
            Some(stray) => member.strays[stray as usize].0,
            None => member.references.place(page),
        };
        let segment = Segment(member.first_segment + segment as u32);
        let (policy, page) = self.policy(program, page);
        policy.placed(page, Place { segment, index });
    }

    /// Whose policy gives up a page for one of this program's; `None` if a free frame is taken.
    fn donor(&self, program: usize) -> Option<usize> {
        if self.all.is_some() {
            return (self.free == 0).then_some(program);
        }
        let asking = &self.members[program];
        if asking.resident >= asking.most && asking.resident > 0 {
            return Some(program);
        }
        if self.free > 0 {
            return None;
        }
        // Who is farthest above what it should have gives; the asking one if nobody is.
        let excess = |m: &Member<'_>| i64::from(m.resident) - i64::from(m.target);
        let richest = (0..self.members.len())
            .filter(|at| self.members[*at].resident > 0)
            .max_by_key(|at| (excess(&self.members[*at]), std::cmp::Reverse(*at)))?;
        let own = asking.resident > 0
            && (excess(&self.members[richest]) <= 0
                || excess(asking) >= excess(&self.members[richest]));
        Some(if own { program } else { richest })
    }

    /// Whose page a policy means, and its number there. The policy is that of a program.
    fn owner(&self, program: usize, page: Page) -> Leaving {
        if self.all.is_none() {
            return (program, page);
        }
        if let Some(stray) = page.0.checked_sub(self.pages) {
            return self.strays.get(stray as usize).copied().unwrap_or((program, page));
        }
        let at = self.members.partition_point(|m| m.base <= page.0) - 1;
        (at, Page(page.0 - self.members[at].base))
    }

    /// A program does not need a page any more: its frame is free.
    pub(crate) fn give_back(&mut self, program: usize, page: Page) {
        let (policy, page) = self.policy(program, page);
        policy.removed(page);
        self.members[program].resident -= 1;
        self.free += 1;
    }

    /// A program has ended: its frames are free.
    pub(crate) fn release(&mut self, program: usize, pages: impl Iterator<Item = Page>) {
        pages.for_each(|page| self.give_back(program, page));
        let member = &mut self.members[program];
        (member.least, member.most, member.target) = (0, 0, 0);
        // A share goes to nobody by itself; room above everyone's least goes to who needs it.
    }
}
