//! The same references under several policies.
use pagekeeper_policy::policies::agemru::AgeMru;
use pagekeeper_policy::policies::aging::{self, Aging};
use pagekeeper_policy::policies::mfu::Mfu;
use pagekeeper_policy::policies::rr::RoundRobin;
use pagekeeper_policy::{Admission, Checked, Page, Policy};

use super::{build, faults};

/// What the paper measured on matrix multiplication: over a loop larger than memory, MRU by age
/// and MFU keep a part of it, where Linux ageing and round robin fault on every page.
#[test]
fn loops_are_kept_by_age_mru_and_mfu() {
    let looping = || (0..5000).map(|step| step % 100);
    assert_eq!(faults(Aging::new(3, aging::rule(20, 3, 1)), 80, looping()), 5000);
    assert_eq!(faults(RoundRobin::new(), 80, looping()), 5000);
    let by_age = faults(AgeMru::new(3, aging::rule(20, 3, 1), 3), 80, looping());
    assert!(by_age < 2500, "{by_age}");
    let mfu = faults(Mfu::new(), 80, looping());
    assert!(mfu < 2500, "{mfu}");
}

/// A scan of pages that come once leaves what is used often alone, whatever else a policy does.
#[test]
fn a_scan_does_not_displace_what_is_used_often() {
    for spec in
        ["sieve", "s3fifo", "lirs", "wtinylfu", "clockpro", "cacheus", "mglru", "hyperbolic", "lhd"]
    {
        let frames = 200;
        let mut policy = Checked::new(build(spec, frames), frames);
        let mut touch = |page: u32| {
            let is_hit = policy.is_resident(Page(page));
            if is_hit {
                policy.referenced(Page(page));
            } else {
                if policy.resident() == frames {
                    policy.victim(Some(Page(page)));
                }
                policy.admitted(Page(page), Admission::Demand);
            }
            is_hit
        };
        for _ in 0..20 {
            (0..100).for_each(|page| {
                touch(page);
            });
        }
        let mut hits = 0;
        for step in 0..5000 {
            touch(1000 + step);
            hits += u32::from(touch(step % 100));
        }
        assert!(hits > 4700, "{spec}: {hits} of 5000");
    }
}
