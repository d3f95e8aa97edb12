//! Plays the same random calls to a policy and to a slow, obvious model of it.
use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, Segment};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// For every property here: enough cases, and failures kept beside the test.
pub(super) fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 128,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Default::default()
    }
}

/// A model: the calls of `Policy`, written for reading and not for speed.
pub(super) trait Model {
    fn admitted(&mut self, page: u32, how: Admission);
    fn referenced(&mut self, page: u32);
    fn removed(&mut self, page: u32);
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32>;
    fn resized(&mut self, _frames: u32) {}
    fn resident(&self) -> Vec<u32>;
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Touch(u32),
    Prefetch(u32),
    Remove(u32),
    Resize(u32),
    Spare,
}

/// Random calls over 30 pages.
pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        10 => (0..30_u32).prop_map(Event::Touch),
        2 => (0..30_u32).prop_map(Event::Prefetch),
        1 => (0..30_u32).prop_map(Event::Remove),
        1 => (1..20_u32).prop_map(Event::Resize),
        1 => Just(Event::Spare),
    ];
    prop::collection::vec(event, 0..500)
}

/// Random calls with runs of neighbours among them.
pub(super) fn events_in_runs() -> impl Strategy<Value = Vec<Event>> {
    let run = (0..30_u32, 2..10_u32, any::<bool>()).prop_map(|(from, length, up)| {
        let touch = |step| Event::Touch(if up { from + step } else { (from + 10) - step } % 30);
        (0..length).map(touch).collect::<Vec<_>>()
    });
    prop::collection::vec(
        prop_oneof![run, events().prop_map(|e| e.into_iter().take(6).collect())],
        0..40,
    )
    .prop_map(|runs| runs.concat())
}

/// Plays the events to both and asserts the same victims throughout, and when all are taken at
/// the end.
pub(super) fn compare(
    policy: impl Policy,
    mut model: impl Model,
    mut frames: u32,
    events: &[Event],
) {
    let mut policy = Checked::new(policy, frames);
    for (step, event) in events.iter().enumerate() {
        let admission = match *event {
            Event::Touch(page) if policy.is_resident(Page(page)) => {
                policy.referenced(Page(page));
                model.referenced(page);
                None
            }
            Event::Touch(page) => Some((page, Admission::Demand)),
            Event::Prefetch(page) if policy.is_resident(Page(page)) => None,
            Event::Prefetch(page) => Some((page, Admission::Prefetch)),
            Event::Remove(page) => {
                if policy.is_resident(Page(page)) {
                    policy.removed(Page(page));
                    model.removed(page);
                }
                None
            }
            Event::Resize(to) => {
                frames = to;
                policy.resized(to);
                model.resized(to);
                None
            }
            Event::Spare => {
                assert_eq!(policy.victim(None), model.victim(None).map(Page), "step {step}");
                None
            }
        };
        if let Some((page, how)) = admission {
            while policy.resident() >= frames {
                place(&mut policy, page);
                let victim = policy.victim(Some(Page(page)));
                assert_eq!(victim, model.victim(Some(page)).map(Page), "step {step}: {event:?}");
            }
            place(&mut policy, page);
            policy.admitted(Page(page), how);
            model.admitted(page, how);
        }
        assert_eq!(policy.resident() as usize, model.resident().len());
        assert!(model.resident().iter().all(|page| policy.is_resident(Page(*page))));
    }
    loop {
        let victim = policy.victim(None);
        assert_eq!(victim, model.victim(None).map(Page), "clearing");
        if victim.is_none() {
            break;
        }
    }
}

/// All pages are of one segment, each at the index that is its number.
fn place(policy: &mut Checked<impl Policy>, page: u32) {
    if policy.wants_places() {
        policy.placed(Page(page), Place { segment: Segment(0), index: page.into() });
    }
}
