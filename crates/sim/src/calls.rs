//! What a policy is told during a replay, kept so that it can be told again and again: for timing
//! the policy without the simulator around it.
use pagekeeper_policy::{Admission, Page, Place, Policy, pass_on};

use crate::{References, SimError, replay};

/// One call of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Its place is the next of [`Calls::places`].
    Placed(Page),
    Referenced(Page),
    Admitted(Page),
    Removed(Page),
    Dirtied(Page),
    Cleaned(Page),
    /// Of this page, to make room for that one.
    Victim(Page, Option<Page>),
}

/// The calls of a replay in their order, with the victims that were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    calls: Vec<Call>,
    places: Vec<Place>,
    faults: u64,
}

impl Calls {
    /// Replays the references through a policy that is new, and keeps what it was told.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn of<P: Policy>(
        references: &References,
        policy: P,
        frames: u32,
    ) -> Result<Self, SimError> {
        let kept = Self { calls: Vec::with_capacity(references.len()), places: vec![], faults: 0 };
        let mut keeper = Keeper { policy, kept };
        replay(references, &mut keeper, frames, |_| {})?;
        Ok(keeper.kept)
    }

    /// Pages admitted.
    pub const fn faults(&self) -> u64 {
        self.faults
    }

    /// References told.
    pub fn references(&self) -> u64 {
        let is_one = |call: &&Call| matches!(call, Call::Referenced(_) | Call::Admitted(_));
        self.calls.iter().filter(is_one).count() as u64
    }

    /// Tells a new policy the same.
    ///
    /// # Panics
    /// If it gives other victims.
    pub fn tell<P: Policy>(&self, policy: &mut P) {
        self.each(policy, |policy, victim, incoming| {
            assert_eq!(policy.victim(incoming), Some(victim), "another policy than was kept");
        });
    }

    /// Tells a new policy the same but that it chooses no victim: the pages that left are removed.
    pub fn tell_removing<P: Policy>(&self, policy: &mut P) {
        self.each(policy, |policy, victim, _| policy.removed(victim));
    }

    fn each<P: Policy>(&self, policy: &mut P, leave: impl Fn(&mut P, Page, Option<Page>)) {
        let mut places = self.places.iter();
        let (gives_hints, mut hints) = (policy.gives_hints(), Vec::new());
        for call in &self.calls {
            match *call {
                Call::Placed(page) => {
                    if let Some(place) = places.next() {
                        policy.placed(page, *place);
                    }
                }
                Call::Referenced(page) => policy.referenced(page),
                Call::Admitted(page) => policy.admitted(page, Admission::Demand),
                Call::Removed(page) => policy.removed(page),
                Call::Dirtied(page) => policy.dirtied(page),
                Call::Cleaned(page) => policy.cleaned(page),
                Call::Victim(victim, incoming) => leave(policy, victim, incoming),
            }
            // As in a replay, so that they do not pile up.
            if gives_hints && matches!(call, Call::Referenced(_) | Call::Admitted(_)) {
                policy.take_hints(&mut hints);
                hints.clear();
            }
        }
    }
}

struct Keeper<P> {
    policy: P,
    kept: Calls,
}

impl<P> Keeper<P> {
    fn keep(&mut self, call: Call) -> &mut P {
        self.kept.calls.push(call);
        &mut self.policy
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: Policy> Policy for Keeper<P> {
    // Of these a replay makes none that tells anything.
    pass_on! { this => this.policy;
        wants_places wants_indices wants_references wants_samples wants_dirty gives_hints
        watches_closely watches_pages watches watches_others unmapped mapped spared sampled
        take_hints order resized fitted resident visible
    }

    fn placed(&mut self, page: Page, place: Place) {
        self.kept.places.push(place);
        self.keep(Call::Placed(page)).placed(page, place);
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        self.kept.faults += 1;
        self.keep(Call::Admitted(page)).admitted(page, how);
    }

    fn referenced(&mut self, page: Page) {
        self.keep(Call::Referenced(page)).referenced(page);
    }

    fn removed(&mut self, page: Page) {
        self.keep(Call::Removed(page)).removed(page);
    }

    fn dirtied(&mut self, page: Page) {
        self.keep(Call::Dirtied(page)).dirtied(page);
    }

    fn cleaned(&mut self, page: Page) {
        self.keep(Call::Cleaned(page)).cleaned(page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let victim = self.policy.victim(incoming)?;
        self.keep(Call::Victim(victim, incoming));
        Some(victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::PolicySpec;
    use pagekeeper_trace::ExtentEvent;

    /// Told again, a policy decides again: `tell` compares each victim.
    #[test]
    fn what_was_told_can_be_told_again() {
        let references = References::from_blocks((0..4000_u64).map(|n| n * n % 97)).unwrap();
        for name in ["lru", "clock", "arc", "seq"] {
            let build = || PolicySpec::parse(name).unwrap().build(20, 0).unwrap();
            let calls = Calls::of(&references, build(), 20).unwrap();
            let counts = replay(&references, &mut build(), 20, |_| {}).unwrap();
            assert_eq!((calls.references(), calls.faults()), (4000, counts.faults), "{name}");
            let mut again = build();
            calls.tell(&mut again);
            assert_eq!(again.resident(), 20);
            let mut other = PolicySpec::parse("fifo").unwrap().build(20, 0).unwrap();
            calls.tell_removing(&mut other);
            assert_eq!(other.resident(), 20);
        }
    }

    /// What is freed leaves without being a victim.
    #[test]
    fn freed_pages_leave_when_it_is_told_again() {
        let mut builder = References::builder();
        builder.heap(1, "heap:1 (p)");
        for n in 0..4000_u64 {
            if n.is_multiple_of(100) {
                builder.extent(1, n % 60..n % 60 + 30, ExtentEvent::Freed);
            }
            builder.push((1, n * n % 97, false, 0).into()).unwrap();
        }
        let references = builder.finish();
        for name in ["lru", "clock", "arc", "seq"] {
            let build = || PolicySpec::parse(name).unwrap().build(20, 0).unwrap();
            let calls = Calls::of(&references, build(), 20).unwrap();
            let (mut replayed, mut again) = (build(), build());
            let counts = replay(&references, &mut replayed, 20, |_| {}).unwrap();
            assert_eq!((calls.references(), calls.faults()), (4000, counts.faults), "{name}");
            calls.tell(&mut again);
            assert_eq!(again.resident(), replayed.resident());
            let mut other = PolicySpec::parse("fifo").unwrap().build(20, 0).unwrap();
            calls.tell_removing(&mut other);
            assert_eq!(other.resident(), replayed.resident());
        }
    }
}
