//! LHD has no model: what it learns of references whose pattern is known.
use pagekeeper_policy::{Admission, Checked, Page, Policy};

use super::build;

/// Loops over half as many pages again as there are frames, of which LRU keeps none: LHD learns that
/// a page is worth the same at every age, and lets the same ones stay.
#[test]
fn lhd_learns_a_loop() {
    let (frames, pages) = (200, 300);
    let mut policy = Checked::new(build("lhd", frames), frames);
    let mut late_hits = 0;
    for step in 0..200 * pages {
        let page = Page(step % pages);
        if policy.is_resident(page) {
            policy.referenced(page);
            late_hits += u32::from(step >= 100 * pages);
        } else {
            if policy.resident() == frames {
                policy.victim(Some(page));
            }
            policy.admitted(page, Admission::Demand);
        }
    }
    let hits_percent = late_hits * 100 / (100 * pages);
    // The optimum is 66.
    assert!(hits_percent >= 50, "{hits_percent}");
}

/// Pages used twice, a hundred references apart, and never again, among pages used once: what was
/// used twice leaves before what may yet be used a second time.
#[test]
fn lhd_learns_that_a_second_use_is_the_last() {
    let frames = 150;
    let mut policy = Checked::new(build("lhd", frames), frames);
    let (mut hits, mut second_uses) = (0, 0);
    for step in 0..60_000_u32 {
        for page in [Some(step), step.checked_sub(100)].into_iter().flatten().map(Page) {
            let is_second = page.0 != step;
            second_uses += u32::from(is_second && step >= 30_000);
            if policy.is_resident(page) {
                policy.referenced(page);
                hits += u32::from(step >= 30_000);
            } else {
                if policy.resident() == frames {
                    policy.victim(Some(page));
                }
                policy.admitted(page, Admission::Demand);
            }
        }
    }
    // LRU needs 200 frames for any hit; the optimum has them all.
    assert!(hits * 100 >= second_uses * 60, "{hits} of {second_uses}");
}
