//! Policies beside pages that are read ahead, which no policy has.

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, Reference, References, simulate_live};

use crate::sampling::twelve_rounds;

/// LIRS and CLOCK-Pro leave a hundredth of their frames to what passes through. They were told of all the
/// pool's, of which pages read ahead and newcomers take more than that: so they were never full, and kept
/// whatever came. In a loop they missed as often as LRU.
#[test]
fn who_keeps_a_loop_keeps_it_beside_what_is_read_ahead() {
    reads_less_than_lru(
        &[("lirs", 40), ("clockpro", 40), ("cacheus", 60)],
        &[("lirs", 60), ("clockpro", 70), ("cacheus", 60)],
    );
}

/// W-TinyLFU compares the window's oldest page with main's, and was asked for as many pages as are read
/// ahead before they come. All but the first left unseen for what main had longest, and what came then
/// flowed into main uncompared: that is LRU.
#[test]
fn who_compares_newcomers_compares_each_of_many() {
    reads_less_than_lru(&[("wtinylfu", 40)], &[("wtinylfu", 60)]);
}

/// A loop over 1.3 times memory, beside pages read ahead: where every use is seen, and as live. Policies
/// read less of it than so much of what LRU reads, in percent. (A round has 77 % of its pages in memory at
/// best.)
#[track_caller]
fn reads_less_than_lru(explicit_percent: &[(&str, u64)], live_percent: &[(&str, u64)]) {
    let frames = 4096_u32;
    let references = twelve_rounds(frames * 13 / 10);
    let live = LiveOptions { frames: Some(frames), ..LiveOptions::new(64 << 20) };
    let explicit = LiveOptions { sampled: None, ..live };
    for (options, policies) in [(explicit, explicit_percent), (live, live_percent)] {
        let pages = |policy: &str| {
            let policy = PolicySpec::parse(policy).unwrap();
            simulate_live(&references, &policy, &options).unwrap().counts.pages_read
        };
        let lru = pages("lru");
        for &(policy, most_percent) in policies {
            let pages = pages(policy);
            assert!(100 * pages < most_percent * lru, "{policy}: {pages} pages, {lru} under lru");
        }
    }
}

/// Windows were a 128th of memory: in 5 MiB eight pages, and twice the requests that the kernel makes for as
/// many.
#[test]
fn small_memories_read_far_ahead() {
    const PAGES: u64 = 16_384;
    let mut references = References::builder();
    for index in 0..PAGES {
        references.push(Reference::from((0, index, false, 0))).unwrap();
    }
    let references = references.finish();
    let policy = PolicySpec::parse("lru").unwrap();
    for (frames, pages_a_request) in [(640, 32), (1280, 64), (8192, 64), (32_768, 256)] {
        let options = LiveOptions { frames: Some(frames), ..LiveOptions::new(64 << 20) };
        let counts = simulate_live(&references, &policy, &options).unwrap().counts;
        assert_eq!(counts.pages_read, PAGES, "{frames} frames");
        // The first windows of a stream are smaller.
        let most = PAGES / pages_a_request + 8;
        assert!(counts.read_requests <= most, "{frames} frames: {} requests", counts.read_requests);
    }
}
