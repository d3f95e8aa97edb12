//! What a program asks of its host and is told by it beyond choosing pages.
use std::sync::Arc;

use pagekeeper_hipec::policy::spec;
use pagekeeper_hipec::policy::{BUDGET_COMMANDS, BUDGET_COMMANDS_PER_FRAME};
use pagekeeper_hipec::{Budget, HipecPolicy, load};
use pagekeeper_policy::{Admission, Checked, Hint, Page, Place, Policy, PolicySpec, Segment};
use pagekeeper_sim::{
    Allocation, Counts, LiveOptions, PoolOptions, PoolProgram, ProgramOutcome, References,
    Schedule, replay, simulate_live, simulate_pool,
};

fn policy(text: &str, frames: u32) -> HipecPolicy {
    let (program, _) = load("test.hipec", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    HipecPolicy::new(Arc::new(program), frames)
}

fn hints(policy: &mut impl Policy) -> Vec<Hint> {
    let mut hints = Vec::new();
    policy.take_hints(&mut hints);
    hints
}

const FIFO: &str = "Queue all;
Event PageFault() { EnQueue(FaultedPage, all, TAIL); }
Event Replace() { return DeQueue(all, HEAD); }
";

/// Gives up clean pages first, and asks for dirty ones to be written meanwhile.
const CLEAN_FIRST: &str = "Queue clean;
Queue dirty;
Page page;
Event PageFault() {
    if (Mod(FaultedPage)) EnQueue(FaultedPage, dirty, TAIL);
    else EnQueue(FaultedPage, clean, TAIL);
}
Event Replace() {
    while (!EmptyQ(clean)) {
        page = DeQueue(clean, HEAD);
        if (!Mod(page)) return page;
        Flush(page);
        EnQueue(page, dirty, TAIL);
    }
    return DeQueue(dirty, HEAD);
}
";

#[test]
fn a_program_sees_which_pages_are_dirty_and_has_them_written() {
    let mut policy = Checked::new(policy(CLEAN_FIRST, 3), 3);
    assert!(policy.wants_dirty() && policy.gives_hints());
    policy.dirtied(Page(0));
    policy.admitted(Page(0), Admission::Demand);
    policy.admitted(Page(1), Admission::Demand);
    policy.admitted(Page(2), Admission::Demand);
    policy.dirtied(Page(1));
    assert_eq!(policy.victim(None), Some(Page(2)), "the one clean page");
    assert_eq!(hints(&mut policy), [Hint::Flush(Page(1))]);
    assert_eq!(hints(&mut policy), [], "each hint once");
    policy.admitted(Page(2), Admission::Demand);
    policy.dirtied(Page(2));
    policy.cleaned(Page(2));
    assert_eq!(policy.victim(None), Some(Page(2)), "it was written in between");
    assert_eq!(policy.victim(None), Some(Page(0)));
    // What a page was says nothing of the next time it is resident.
    policy.admitted(Page(0), Admission::Demand);
    assert_eq!(policy.victim(None), Some(Page(0)), "it came in clean");
}

#[test]
fn programs_that_do_not_ask_cost_nothing() {
    let policy = policy(FIFO, 3);
    assert!(!policy.wants_dirty() && !policy.gives_hints());
}

#[test]
fn pages_to_fetch_map_and_unmap_are_handed_to_the_host() {
    let text = "Queue all;
Event PageFault() {
    EnQueue(FaultedPage, all, TAIL);
    Prefetch(FaultedAddress + 1, 4);
    Prefetch(-1, 4);
    Prefetch(FaultedAddress, 0);
    UnMap(FaultedPage);
    Map(FaultedPage, FindVA(FaultedPage));
}
Event Replace() { return DeQueue(all, HEAD); }
";
    let mut policy = Checked::new(policy(text, 3), 3);
    policy.placed(Page(5), Place { segment: Segment(2), index: 70 });
    policy.admitted(Page(5), Admission::Demand);
    let place = Place { segment: Segment(2), index: 71 };
    assert_eq!(
        hints(&mut policy),
        [Hint::Prefetch { place, pages: 4 }, Hint::Unmap(Page(5)), Hint::Map(Page(5))]
    );
}

#[test]
fn frames_are_given_as_far_as_they_are_free() {
    let text = "Queue all;
Queue given;
Event PageFault() {
    if (Request(2)) EnQueue(FaultedPage, given, TAIL);
    else EnQueue(FaultedPage, all, TAIL);
}
Event Replace() {
    if (!EmptyQ(all)) return DeQueue(all, HEAD);
    return DeQueue(given, HEAD);
}
";
    let mut policy = Checked::new(policy(text, 4), 4);
    for page in 0..4 {
        policy.admitted(Page(page), Admission::Demand);
    }
    // Pages 0 and 1 found two frames free or more; 2 and 3 did not.
    let victims: Vec<_> = (0..4).map_while(|_| policy.victim(None)).collect();
    assert_eq!(victims, [2, 3, 0, 1].map(Page));
}

#[test]
fn the_budget_is_a_parameter() {
    let endless = FIFO.replace("return De", "while (1 == 1) { } return De");
    let run = |budget: Option<Budget>| {
        let mut policy = policy(&endless, 4);
        if let Some(budget) = budget {
            policy = policy.with_budget(budget);
        }
        policy.admitted(Page(0), Admission::Demand);
        let before = policy.counts().commands;
        assert_eq!(policy.victim(None), Some(Page(0)));
        policy.counts().commands - before
    };
    assert_eq!(run(None), BUDGET_COMMANDS + 4 * BUDGET_COMMANDS_PER_FRAME);
    assert_eq!(run(Some(Budget { commands: 10, commands_per_frame: 3 })), 22);
}

#[test]
fn a_program_with_one_queue_has_an_order() {
    let mut policy = Checked::new(policy(FIFO, 3), 3);
    for page in [2, 0, 1] {
        policy.admitted(Page(page), Admission::Demand);
    }
    assert_eq!(policy.order(), Some(vec![Page(2), Page(0), Page(1)]));
    let mut both = Checked::new(self::policy(CLEAN_FIRST, 3), 3);
    both.dirtied(Page(0));
    both.admitted(Page(0), Admission::Demand);
    both.admitted(Page(1), Admission::Demand);
    assert_eq!(both.order(), None, "two queues are no one order");
}

fn loaded(text: &str) -> PolicySpec {
    let (program, _) = load("test.hipec", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    spec(Arc::new(program), "test.hipec", None).unwrap()
}

fn live(references: &References, text: &str) -> Counts {
    let spec = loaded(text);
    let options = LiveOptions { frames: Some(64), ..LiveOptions::new(1 << 20) };
    let outcome = simulate_live(references, &spec, &options).unwrap();
    assert!(outcome.account.is_some_and(|account| account.gauges["misuses"] == 0.0));
    outcome.counts
}

const STEPS: u64 = 500;

/// Pages that read-ahead tries behind so many faults, to see whether they are wanted, and what is read
/// around the first ones, as long as frames are free.
fn tried(faults: u64) -> u64 {
    3 * (faults / 16) + 64
}

/// A stride that no read-ahead follows, each page in a block of its own.
fn stride() -> References {
    References::collect((0..STEPS).map(|i| (0u32, i * 32, false, 0u64))).unwrap()
}

/// Asks for pages of the stride: twelve behind a fault, one more with each use.
const STRIDING: &str = "Queue all; Int step;
Event PageFault() {
    EnQueue(FaultedPage, all, TAIL);
    if (!Prefetched)
        for (step = 1; step <= 12; step++)
            Prefetch(FaultedAddress + step * 32, 1);
}
Event Reference() { Prefetch(FaultedAddress + 256, 1); }
Event Replace() { return DeQueue(all, HEAD); }
";

/// The emulation of the live engine does what a program asks for: the stride is fetched ahead of
/// its faults.
#[test]
fn hints_are_followed_where_the_live_engine_is_emulated() {
    let plain = live(&stride(), FIFO);
    assert_eq!(plain.faults, STEPS);
    assert!(plain.prefetched_pages <= tried(STEPS), "{plain:?}");
    let ahead = live(&stride(), STRIDING);
    assert!(ahead.faults <= 16, "{ahead:?}");
    assert_eq!(ahead.pages_read, ahead.faults + ahead.prefetched_pages);
    assert!(ahead.prefetch_wasted_pages <= tried(ahead.faults), "all are used: {ahead:?}");
    let unmapped = live(&stride(), &FIFO.replace("TAIL); }", "TAIL); UnMap(FaultedPage); }"));
    assert_eq!(unmapped.faults, STEPS, "nothing is touched twice");
}

/// Pages that a program asked for count as wasted when they leave and no use of them was seen.
#[test]
fn pages_that_were_asked_for_in_vain_are_counted() {
    let vain = FIFO.replace("TAIL); }", "TAIL); Prefetch(FaultedAddress + 1, 2); }");
    let counts = live(&stride(), &vain);
    // A fault's newcomers become the policy's later, and then it asks.
    assert!((STEPS - 8..=STEPS).contains(&counts.faults), "{counts:?}");
    assert!(counts.prefetched_pages >= 2 * (STEPS - 8), "{counts:?}");
    let left = counts.prefetched_pages - counts.prefetch_wasted_pages;
    assert!(left <= 64, "only those that are still there were not: {counts:?}");
    // Half of what is asked for is used.
    let half = STRIDING.replace("step * 32, 1)", "step * 16, 1)").replace("+ 256, 1)", "+ 256, 2)");
    let counts = live(&stride(), &half);
    let used = STEPS - counts.faults;
    let left = counts.prefetched_pages - counts.prefetch_wasted_pages;
    assert!((used..=used + 64 + tried(counts.faults)).contains(&left), "{counts:?}");
}

/// Programs with these policies, each in its share of 64 frames or all under the first policy.
fn pooled(programs: &[(&References, &str)], global: bool) -> Vec<ProgramOutcome> {
    let programs: Vec<_> = programs
        .iter()
        .map(|(references, text)| PoolProgram::new("it", references, loaded(text)))
        .collect();
    let allocation = match global {
        true => Allocation::Global { policy: programs[0].policy.clone() },
        false => Allocation::Fixed,
    };
    let frames = if global { 64 } else { 64 * programs.len() as u32 };
    let schedule = Schedule::RoundRobin { quantum_ns: 50_000 };
    simulate_pool(&programs, &PoolOptions::new(frames, allocation, schedule)).unwrap().programs
}

/// In a pool likewise, with shares and without.
#[test]
fn hints_are_followed_in_a_pool() {
    let (stride, pages) = (stride(), u64::from(stride().pages()));
    let other = References::collect((0..3000u64).map(|i| (0u32, i * i % 97, true, 0u64))).unwrap();
    let alone = pooled(&[(&other, FIFO)], false);
    let both = pooled(&[(&stride, STRIDING), (&other, FIFO)], false);
    let counts = |it: &ProgramOutcome| (it.faults, it.write_backs, it.prefetched_pages);
    assert_eq!(counts(&both[1]), counts(&alone[0]), "its frames are its own");
    for ahead in [&both[0], &pooled(&[(&stride, STRIDING), (&other, FIFO)], true)[0]] {
        assert!(ahead.faults <= 16, "{ahead:?}");
        // Those beyond the last are asked for, and there are none.
        assert_eq!(ahead.faults + ahead.prefetched_pages, pages, "{ahead:?}");
        assert_eq!(ahead.prefetch_wasted_pages, 0, "{ahead:?}");
    }
    // Pages that no reference ever needs take frames all the same.
    let vain =
        FIFO.replace("TAIL); }", "TAIL); if (!Prefetched) Prefetch(FaultedAddress + 1, 2); }");
    for vain in [pooled(&[(&stride, &vain)], false), pooled(&[(&stride, &vain)], true)] {
        let vain = &vain[0];
        assert_eq!(vain.faults, STEPS, "{vain:?}");
        // Behind the last page there is no other.
        assert_eq!(vain.prefetched_pages, 2 * (STEPS - 1), "{vain:?}");
        assert!((0..=64).contains(&(vain.prefetched_pages - vain.prefetch_wasted_pages)));
    }
}

/// What is written back by wish in a pool is what exact paging writes, with the same faults.
#[test]
fn pages_are_flushed_in_a_pool_as_in_exact_paging() {
    let mixed = |i: u64| (0u32, i * i % 211, i.is_multiple_of(3), 0u64);
    let references = References::collect((0..5000).map(mixed)).unwrap();
    for text in [CLEAN_FIRST, FIFO] {
        let exact = replay(&references, &mut policy(text, 64), 64, |_| {}).unwrap();
        for global in [false, true] {
            let pool = &pooled(&[(&references, text)], global)[0];
            assert_eq!((pool.faults, pool.write_backs), (exact.faults, exact.write_backs));
        }
    }
}

/// What was written back by wish is clean, and is not written again when it leaves.
#[test]
fn flushed_pages_leave_clean() {
    let pages = 200;
    let writes =
        || References::collect((0..2 * pages).map(|i| (0u32, i % pages, true, 0u64))).unwrap();
    let flushing = FIFO.replace("TAIL); }", "TAIL); if (Mod(FaultedPage)) Flush(FaultedPage); }");
    let (plain, flushed) = (live(&writes(), FIFO), live(&writes(), &flushing));
    for counts in [plain, flushed] {
        // The last few newcomers of the first round are still there in the second.
        let written = counts.write_backs + counts.dirty_at_end;
        assert!((2 * pages - 8..=2 * pages).contains(&written), "{counts:?}");
    }
    // Dirty neighbours of a victim are written along, in both.
    assert!(flushed.dirty_at_end <= 8 && plain.dirty_at_end >= 30, "{flushed:?} {plain:?}");

    let mut policy = Checked::new(policy(&flushing, 64), 64);
    let exact = replay(&writes(), &mut policy, 64, |_| {}).unwrap();
    assert_eq!((exact.faults, exact.write_backs, exact.dirty_at_end), (2 * pages, 2 * pages, 0));
}
