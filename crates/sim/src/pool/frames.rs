//! Who gives up a frame when a program needs one.
use pagekeeper_policy::{Admission, Page, Place, Policy, PolicySpec, Segment};

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
    curve: Option<HitCurve>,
    least: u32,
    most: u32,
    /// Frames that it should have; it may have more while nobody needs them.
    target: u32,
    pub(crate) resident: u32,
}

/// The frames of all programs.
pub(crate) struct Frames<'a> {
    allocation: Allocation,
    all: Option<Box<dyn Policy>>,
    pub(crate) members: Vec<Member<'a>>,
    total: u32,
    free: u32,
    until_split: u64,
}

/// A page that leaves: its program, and its number there.
pub(crate) type Leaving = (usize, Page);

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
            members.push(Member {
                references: program.references,
                base,
                first_segment,
                policy: if all.is_none() { Some(build(&program.policy)?) } else { None },
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
        Ok(Self { allocation: allocation.clone(), all, members, total, free: total, until_split })
    }

    /// The policy that holds a program's pages, and what their numbers begin at there.
    fn policy(&mut self, program: usize) -> (&mut dyn Policy, u32) {
        let Member { policy: own, base, .. } = &mut self.members[program];
        let policy = self.all.as_mut().or(own.as_mut()).expect("a policy for all, or one each");
        (policy, *base)
    }

    /// A program references a page of its own that is resident.
    pub(crate) fn hit(&mut self, program: usize, page: Page) {
        let (policy, base) = self.policy(program);
        policy.referenced(Page(page.0 + base));
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

    fn split(&mut self) {
        let bounds: Vec<_> = self.members.iter().map(|m| (m.least, m.most)).collect();
        let curves: Vec<_> = self.members.iter().filter_map(|m| m.curve.as_ref()).collect();
        let shares = gain::split(&curves, &bounds, self.total);
        for (member, share) in self.members.iter_mut().zip(shares) {
            member.target = share;
            member.curve.iter_mut().for_each(HitCurve::age);
        }
    }

    /// Brings in a page; what leaves for it.
    pub(crate) fn admit(
        &mut self,
        program: usize,
        page: Page,
        position: u64,
    ) -> Result<Option<Leaving>, SimError> {
        let none = || {
            let what = "it has no victim though it holds pages".to_owned();
            SimError::BrokenPolicy { position, what }
        };
        let member = &self.members[program];
        let (segment, index) = member.references.place(page);
        let segment = Segment(member.first_segment + segment as u32);
        let donor = self.donor(program);
        if donor.is_none() {
            self.free -= 1;
        }
        let (policy, base) = self.policy(program);
        let page = Page(page.0 + base);
        if policy.wants_places() {
            policy.placed(page, Place { segment, index });
        }
        let mut leaving = None;
        if let Some(donor) = donor {
            let incoming = (donor == program).then_some(page);
            let victim = self.policy(donor).0.victim(incoming).ok_or_else(none)?;
            leaving = Some(if self.all.is_some() { self.owner(victim) } else { (donor, victim) });
        }
        self.policy(program).0.admitted(page, Admission::Demand);
        if let Some((donor, _)) = leaving {
            self.members[donor].resident -= 1;
        }
        self.members[program].resident += 1;
        Ok(leaving)
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

    fn owner(&self, page: Page) -> Leaving {
        let at = self.members.partition_point(|m| m.base <= page.0) - 1;
        (at, Page(page.0 - self.members[at].base))
    }

    /// A program has ended: its frames are free.
    pub(crate) fn release(&mut self, program: usize, pages: impl Iterator<Item = Page>) {
        for page in pages {
            let (policy, base) = self.policy(program);
            policy.removed(Page(page.0 + base));
            self.free += 1;
        }
        let member = &mut self.members[program];
        member.resident = 0;
        (member.least, member.most, member.target) = (0, 0, 0);
        // A share goes to nobody by itself; room above everyone's least goes to who needs it.
    }
}
