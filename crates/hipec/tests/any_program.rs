//! Any verified program, whatever it does: it keeps the policy's contract and its budget, and
//! loses no page.
use std::collections::BTreeSet;

use pagekeeper_hipec::HipecPolicy;
use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::policy::spec;
use pagekeeper_hipec::policy::{PAGE_FAULT_WAITS_MAX, STRIKES_MAX};
use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, Segment};
use pagekeeper_sim::{Allocation, PoolOptions, PoolProgram, References, Schedule, simulate_pool};
use proptest::prelude::*;

use crate::programs;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_global_rejects: 8_000, ..ProptestConfig::default() })]

    #[test]
    fn a_verified_program_keeps_the_contract(
        program in programs::any(),
        frames in 1..9_u32,
        touches in prop::collection::vec((0..24_u32, 0..24_u8), 0..300),
    ) {
        let text = disassemble(&program);
        let Some(verified) = programs::mended(program) else {
            return Err(TestCaseError::reject("no such program is verified"));
        };
        prop_assert!(assemble(&text).is_ok());
        let mut policy = Checked::new(HipecPolicy::new(verified.clone(), frames), frames);
        let mut again = HipecPolicy::new(verified, frames);
        let mut resident = BTreeSet::new();
        for (number, what) in touches {
            let page = Page(number);
            match (resident.contains(&page), what) {
                (true, 0) => {
                    policy.removed(page);
                    again.removed(page);
                    resident.remove(&page);
                }
                (true, _) => {
                    policy.referenced(page);
                    again.referenced(page);
                }
                (false, _) => {
                    let place = Place { segment: Segment(number / 8), index: (number % 8).into() };
                    policy.placed(page, place);
                    again.placed(page, place);
                    if resident.len() as u32 == frames {
                        let victim = policy.victim(Some(page));
                        prop_assert_eq!(again.victim(Some(page)), victim);
                        prop_assert!(resident.remove(&victim.unwrap()));
                    }
                    let how = if what == 1 { Admission::Prefetch } else { Admission::Demand };
                    policy.admitted(page, how);
                    again.admitted(page, how);
                    resident.insert(page);
                }
            }
        }
        // Every page can be had once, so none was lost.
        while !resident.is_empty() {
            let victim = policy.victim(None);
            prop_assert!(resident.remove(&victim.unwrap()));
        }
        prop_assert_eq!(policy.victim(None), None);
        let policy = policy.into_inner();
        let counts = policy.counts();
        let most = policy.budget_commands() * u64::from(PAGE_FAULT_WAITS_MAX + 1);
        prop_assert!(counts.event_commands_max <= most);
        prop_assert!(
            policy.revoked().is_none() || counts.overruns + counts.misuses + counts.passed_over
                >= u64::from(STRIKES_MAX)
        );
    }

    /// Whatever they ask for, programs get along in one pool.
    #[test]
    fn verified_programs_share_a_pool(
        program in programs::any(),
        frames in 2..40_u32,
        touches in prop::collection::vec((0..2_u32, 0..40_u64, any::<bool>()), 1..300),
    ) {
        let Some(verified) = programs::mended(program) else {
            return Err(TestCaseError::reject("no such program is verified"));
        };
        let policy = spec(verified, "any", None).expect("it has no parameters");
        let strings = [0, 1].map(|which| {
            let own = touches.iter().filter(|touch| touch.0 == which);
            References::collect(own.map(|(_, page, write)| (0, *page, *write, 0))).unwrap()
        });
        let programs: Vec<_> =
            strings.iter().map(|it| PoolProgram::new("any", it, policy.clone())).collect();
        for allocation in [
            Allocation::Fixed,
            Allocation::Awst,
            Allocation::Global { policy: policy.clone() },
            Allocation::gain(frames),
        ] {
            let schedule = Schedule::RoundRobin { quantum_ns: 5_000 };
            let outcome = simulate_pool(&programs, &PoolOptions::new(frames, allocation, schedule));
            for (program, string) in outcome.unwrap().programs.iter().zip(&strings) {
                let came = program.faults + program.prefetched_pages;
                prop_assert!(program.faults <= string.len() as u64);
                prop_assert!(came >= u64::from(string.pages()), "each page is fetched");
                prop_assert!(program.prefetch_wasted_pages <= program.prefetched_pages);
                prop_assert!(program.write_backs <= string.writes());
            }
        }
    }
}
