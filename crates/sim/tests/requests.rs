//! What is worth keeping where what is read ahead costs a page less than what comes by itself.

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Counts, LiveOptions, Reference, References, simulate_live};

/// The next number, of which the upper half is random.
fn random(at: &mut u64) -> u64 {
    *at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *at
}

/// A loop over 1,500 pages that is read ahead, and between its pages one of `files` files of a page
/// each, in 1,024 frames.
fn loop_beside_small_files(policy: &str, files: u32) -> Counts {
    let mut references = References::builder();
    let mut at = 1_u64;
    for step in 0..60_000_u64 {
        references.push(Reference::from((0, step % 1500, false, 0))).unwrap();
        if step % 4 == 0 {
            let file = 1 + (random(&mut at) >> 33) as u32 % files;
            references.push(Reference::from((file, 0, false, 0))).unwrap();
        }
    }
    let policy = PolicySpec::parse(policy).unwrap();
    simulate_live(&references.finish(), &policy, &LiveOptions::new(4 << 20)).unwrap().counts
}

/// UBM's marginal gains count hits. Here a page of the loop brings as many as one of the files', but
/// comes in with thirty others.
#[test]
fn pages_that_take_a_request_each_are_kept_for_those_that_come_together() {
    for files in [400, 600] {
        let [alike, priced] = ["ubm+:request=0", "ubm+"].map(|p| loop_beside_small_files(p, files));
        let requests = [alike.read_requests, priced.read_requests];
        assert!(10 * requests[1] < 9 * requests[0], "{files} files: {requests:?} requests");
        let pages = [alike.pages_read, priced.pages_read];
        assert!(pages[1] < pages[0], "{files} files: {pages:?} pages");
    }
}

/// Four rounds of a loop over 1.5 times memory, and a working set of 0.8 in no order, by turns.
fn loops_and_working_sets(policy: &str, frames: u32) -> Counts {
    let mut references = References::builder();
    let mut at = 1_u64;
    for turn in 0..4 {
        for step in 0..4 * u64::from(frames) * 3 / 2 {
            let index = step % (u64::from(frames) * 3 / 2);
            references.push(Reference::from((0, index, false, 0))).unwrap();
        }
        for _ in 0..6 * frames {
            let index = (random(&mut at) >> 33) % (u64::from(frames) * 4 / 5);
            references.push(Reference::from((1 + turn, index, false, 0))).unwrap();
        }
    }
    let policy = PolicySpec::parse(policy).unwrap();
    let options = LiveOptions { frames: Some(frames), ..LiveOptions::new(64 << 20) };
    simulate_live(&references.finish(), &policy, &options).unwrap().counts
}

/// What MRU keeps of a loop saves pages that come thirty at a time, and what it keeps from a working set
/// costs a request for each page. A selector that counted misses was in no hurry to go home.
#[test]
fn a_selector_counts_what_misses_cost() {
    const BY_PAGES: [&str; 3] =
        ["lru", "auto:request=0,among=lru+mru+arc+lirs", "auto:among=lru+mru+arc+lirs"];
    for frames in [4096, 16_384] {
        let [lru, alike, priced] = BY_PAGES.map(|policy| loops_and_working_sets(policy, frames));
        let requests = [alike.read_requests, priced.read_requests];
        assert!(100 * requests[1] < 92 * requests[0], "{frames} frames: {requests:?} requests");
        let pages = [lru.pages_read, priced.pages_read];
        assert!(100 * pages[1] < 70 * pages[0], "{frames} frames: {pages:?} pages");
    }
}

/// By files MRU goes on with the loop, and leaves the working set in memory.
#[test]
fn a_selector_by_files_saves_requests_too() {
    let policies = ["lru", "auto:among=lru+mru+arc+lirs", "auto"];
    let [lru, by_pages, by_files] =
        policies.map(|policy| loops_and_working_sets(policy, 16_384).read_requests);
    assert!(by_files < lru, "{by_files} requests, {lru} under lru");
    assert!(100 * by_files < 85 * by_pages, "{by_files} requests, {by_pages} by pages");
    for frames in [4096, 16_384] {
        let [lru, auto] =
            ["lru", "auto"].map(|policy| loops_and_working_sets(policy, frames).pages_read);
        assert!(100 * auto < 85 * lru, "{frames} frames: {auto} pages, {lru} under lru");
    }
}

/// What is used again and again beside scans of what is not: recency lets scans take its place, and a
/// selector had nobody to turn to. (Later it was blind after it had tried MRU: while little was learned
/// from sampling, the pages that a selector watches took all the room that was left for it.)
#[test]
fn a_selector_keeps_what_is_used_from_scans() {
    let frames = 16_384_u64;
    let mut references = References::builder();
    let (mut at, mut scanned) = (1_u64, 0);
    for _ in 0..30 * frames {
        let share = (random(&mut at) >> 33) as f64 / (1_u64 << 31) as f64;
        let index = (share.powi(3) * 1.2 * frames as f64) as u64;
        references.push(Reference::from((0, index, false, 0))).unwrap();
        if at >> 62 & 1 == 0 {
            references.push(Reference::from((1, scanned % (8 * frames), false, 0))).unwrap();
            scanned += 1;
        }
    }
    let references = references.finish();
    let options = LiveOptions { frames: Some(frames as u32), ..LiveOptions::new(64 << 20) };
    let [lru, auto] = ["lru", "auto"].map(|policy| {
        let policy = PolicySpec::parse(policy).unwrap();
        simulate_live(&references, &policy, &options).unwrap().counts.read_requests
    });
    assert!(4 * auto < 3 * lru, "{auto} requests, {lru} under lru");
}
