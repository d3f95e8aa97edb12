//! The written contract of `Policy`, held against every registered policy.
//!
//! A driver plays the caller over random events: touches that are reported always, sometimes or
//! never; clusters fetched ahead; removals; fewer and more frames; victims asked for and not used;
//! page numbers dense and far apart. [`Checked`] asserts each call; on top of it, two runs take
//! the same decisions, and at the end every resident page can be had as a victim once.
use std::collections::BTreeSet;

use pagekeeper_policy::{
    Admission, Checked, Page, Place, Policy, PolicyInfo, PolicySpec, Segment, all,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[derive(Clone, Debug)]
enum Event {
    /// A touch; `seen` is whether the policy hears of it when the page is resident.
    Touch { page: u32, seen: bool },
    /// A fault that brings neighbours along.
    Cluster { page: u32, ahead: u32 },
    /// The page leaves by somebody else's choice.
    Remove { page: u32 },
    /// Frames are given or taken; what is too much leaves at once, or later.
    Resize { frames: u32, at_once: bool },
    /// The pool's other pages leave the policy fewer frames to fill than there are.
    Fit { frames: u32 },
    /// The next victims stay after all.
    Stay { victims: usize },
    /// A victim for nobody in particular, as a background cleaner asks.
    Spare,
    /// Room made for a page that then does not come.
    Abandon { page: u32 },
}

fn events(pages: u32) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => (0..pages, prop::bool::weighted(0.7)).prop_map(|(page, seen)| Event::Touch { page, seen }),
        2 => (0..pages, 1..6_u32).prop_map(|(page, ahead)| Event::Cluster { page, ahead }),
        1 => (0..pages).prop_map(|page| Event::Remove { page }),
        1 => (1..24_u32, any::<bool>()).prop_map(|(frames, at_once)| Event::Resize { frames, at_once }),
        1 => (1..24_u32).prop_map(|frames| Event::Fit { frames }),
        1 => (1..4_usize).prop_map(|victims| Event::Stay { victims }),
        1 => Just(Event::Spare),
        1 => (0..pages).prop_map(|page| Event::Abandon { page }),
    ];
    prop::collection::vec(event, 0..400)
}

/// How dense numbers become page numbers: as they are, or strewn over a wide range.
fn number(page: u32, sparse: bool) -> Page {
    Page(if sparse { page.wrapping_mul(2_654_435_761) >> 16 } else { page })
}

#[derive(Clone, Copy, PartialEq)]
enum References {
    Exact,
    Sampled,
    Never,
}

/// Plays the events and gives back every victim taken, those of the final clearing included.
fn play(
    policy: Box<dyn Policy>,
    mut frames: u32,
    events: &[Event],
    references: References,
    sparse: bool,
) -> Vec<Page> {
    let mut policy = Checked::new(policy, frames);
    let mut resident = BTreeSet::new();
    let mut victims = Vec::new();

    /// Tells the policy where a page lives, if it wants to know: eight pages to a segment.
    fn place(policy: &mut Checked<Box<dyn Policy>>, page: Page) {
        if policy.wants_places() {
            let (segment, index) = (Segment(page.0 / 8), u64::from(page.0 % 8));
            policy.placed(page, Place { segment, index });
        }
    }

    fn evict(
        policy: &mut Checked<Box<dyn Policy>>,
        incoming: Option<Page>,
        resident: &mut BTreeSet<Page>,
        victims: &mut Vec<Page>,
    ) -> bool {
        incoming.inspect(|page| place(policy, *page));
        let victim = policy.victim(incoming);
        victim.inspect(|page| {
            assert!(resident.remove(page));
            victims.push(*page);
        });
        victim.is_some()
    }

    for event in events {
        match *event {
            Event::Touch { page, seen } => {
                let page = number(page, sparse);
                if resident.contains(&page) {
                    if references == References::Exact || references == References::Sampled && seen
                    {
                        policy.referenced(page);
                    }
                } else {
                    while resident.len() as u32 >= frames {
                        assert!(evict(&mut policy, Some(page), &mut resident, &mut victims));
                    }
                    place(&mut policy, page);
                    policy.admitted(page, Admission::Demand);
                    resident.insert(page);
                }
            }
            Event::Cluster { page, ahead } => {
                let fetched: Vec<_> = (page..=page + ahead)
                    .map(|page| number(page, sparse))
                    .filter(|page| !resident.contains(page))
                    .take(frames as usize)
                    .collect();
                if fetched.is_empty() {
                    continue;
                }
                // All victims first, then the admissions, as the contract asks.
                while resident.len() + fetched.len() > frames as usize {
                    assert!(evict(&mut policy, Some(fetched[0]), &mut resident, &mut victims));
                }
                let needed = number(page, sparse);
                for page in fetched {
                    let how = if page == needed { Admission::Demand } else { Admission::Prefetch };
                    place(&mut policy, page);
                    policy.admitted(page, how);
                    resident.insert(page);
                }
            }
            Event::Remove { page } => {
                let page = number(page, sparse);
                if resident.remove(&page) {
                    policy.removed(page);
                }
            }
            Event::Resize { frames: wanted, at_once } => {
                frames = wanted;
                policy.resized(frames);
                while at_once && resident.len() as u32 > frames {
                    assert!(evict(&mut policy, None, &mut resident, &mut victims));
                }
            }
            Event::Fit { frames: wanted } => policy.fitted(wanted.min(frames), frames),
            Event::Stay { victims: count } => {
                let mut taken = Vec::new();
                while taken.len() < count.min(resident.len())
                    && evict(&mut policy, None, &mut resident, &mut taken)
                {}
                let room = frames.saturating_sub(resident.len() as u32);
                for page in taken.into_iter().take(room as usize) {
                    place(&mut policy, page);
                    policy.spared(page);
                    resident.insert(page);
                }
            }
            Event::Spare => {
                evict(&mut policy, None, &mut resident, &mut victims);
            }
            Event::Abandon { page } => {
                let page = number(page, sparse);
                if !resident.contains(&page) {
                    evict(&mut policy, Some(page), &mut resident, &mut victims);
                }
            }
        }
        assert_eq!(policy.resident(), resident.len() as u32);
    }
    while evict(&mut policy, None, &mut resident, &mut victims) {}
    assert!(resident.is_empty(), "pages that no victim call gives: {resident:?}");
    assert_eq!(policy.victim(None), None);
    victims
}

/// The registry's policies, each with its defaults and with the ends of its parameters' ranges.
fn specs() -> Vec<PolicySpec> {
    fn ends(info: &'static PolicyInfo) -> impl Iterator<Item = PolicySpec> {
        use pagekeeper_policy::Kind;
        info.parameters.iter().flat_map(move |parameter| {
            let values: Vec<String> = match parameter.kind {
                Kind::Integer { least, most } => vec![least.to_string(), most.to_string()],
                Kind::Fraction { least, most } => vec![least.to_string(), most.to_string()],
                Kind::Choice(words) => words.iter().map(|word| (*word).to_owned()).collect(),
                // Any text that it reads; the policy's own tests have others.
                Kind::Text { .. } | Kind::Item { .. } => vec![parameter.default.to_string()],
            };
            values.into_iter().map(move |value| {
                PolicySpec::parse(&format!("{}:{}={value}", info.name, parameter.key)).unwrap()
            })
        })
    }
    all()
        .iter()
        .filter(|info| info.runs_live())
        .flat_map(|info| std::iter::once(PolicySpec::of(info)).chain(ends(info)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))), ..Default::default() })]

    #[test]
    fn every_policy_keeps_the_contract(
        events in events(40),
        frames in 1..24_u32,
        seed: u64,
        sparse: bool,
        references in prop_oneof![
            Just(References::Exact), Just(References::Sampled), Just(References::Never)
        ].no_shrink(),
    ) {
        for spec in specs() {
            let run = || play(spec.build(frames, seed).unwrap(), frames, &events, references, sparse);
            prop_assert_eq!(run(), run(), "{} decides differently the second time", spec);
        }
    }
}

impl std::fmt::Debug for References {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            References::Exact => "exact",
            References::Sampled => "sampled",
            References::Never => "never",
        })
    }
}

#[test]
fn a_policy_that_holds_nothing_has_no_victim() {
    for spec in specs() {
        let mut policy = spec.build(4, 1).unwrap();
        assert_eq!(policy.victim(Some(Page(3))), None, "{spec}");
        assert_eq!(policy.resident(), 0);
    }
}

#[test]
fn a_page_number_far_away_costs_address_space_only() {
    for spec in specs() {
        let mut policy = spec.build(2, 1).unwrap();
        policy.admitted(Page(1), Admission::Demand);
        policy.admitted(Page(1 << 26), Admission::Prefetch);
        policy.referenced(Page(1 << 26));
        let mut left = [policy.victim(None), policy.victim(None)];
        left.sort();
        assert_eq!(left, [Some(Page(1)), Some(Page(1 << 26))], "{spec}");
    }
}

/// A caller that breaks the contract is told so, with the page, and not answered with nonsense.
#[test]
fn a_caller_that_breaks_the_contract_is_stopped() {
    let breach = |calls: fn(&mut Checked<Box<dyn Policy>>)| {
        let mut policy = Checked::new(PolicySpec::parse("lru").unwrap().build(1, 0).unwrap(), 1);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| calls(&mut policy)))
            .unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    assert!(breach(|p| p.referenced(Page(5))).contains("page 5 referenced, not resident"));
    assert!(breach(|p| p.removed(Page(5))).contains("page 5 removed, not resident"));
    assert!(
        breach(|p| {
            p.admitted(Page(5), Admission::Demand);
            p.admitted(Page(5), Admission::Demand);
        })
        .contains("page 5 admitted while resident")
    );
    assert!(
        breach(|p| {
            p.admitted(Page(5), Admission::Demand);
            p.admitted(Page(6), Admission::Demand);
        })
        .contains("without room")
    );
}

/// What stays after all was used twice, as policies saw it that remember who left: the next to go was
/// another.
#[test]
fn a_page_that_stays_after_all_was_not_used_for_it() {
    for name in ["lirs", "clockpro"] {
        let mut policy = PolicySpec::parse(name).unwrap().build(100, 1).unwrap();
        for page in 0..100 {
            policy.admitted(Page(page), Admission::Demand);
        }
        let victim = policy.victim(None).unwrap();
        for _ in 0..3 {
            policy.spared(victim);
            assert_eq!(policy.victim(None), Some(victim), "{name}");
        }
    }
}
