//! What a program asks of its host and is told by it beyond choosing pages.
use std::sync::Arc;

use pagekeeper_hipec::policy::spec;
use pagekeeper_hipec::policy::{BUDGET_COMMANDS, BUDGET_COMMANDS_PER_FRAME};
use pagekeeper_hipec::{Budget, HipecPolicy, load};
use pagekeeper_policy::{Admission, Checked, Hint, Page, Place, Policy, PolicySpec, Segment};
use pagekeeper_sim::{Counts, LiveOptions, References, replay, simulate_live};

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

fn live(references: &References, text: &str) -> Counts {
    let (program, _) = load("test.hipec", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let spec: PolicySpec = spec(Arc::new(program), "test.hipec", None).unwrap();
    let options = LiveOptions { frames: Some(64), ..LiveOptions::new(1 << 20) };
    let outcome = simulate_live(references, &spec, &options).unwrap();
    assert!(outcome.account.is_some_and(|account| account.gauges["misuses"] == 0.0));
    outcome.counts
}

/// The emulation of the live engine does what a program asks for: a stride that no read-ahead
/// follows is fetched ahead of its faults.
#[test]
fn hints_are_followed_where_the_live_engine_is_emulated() {
    let steps = 500;
    let stride = References::collect((0..steps).map(|i| (0u32, i * 8, false, 0u64))).unwrap();
    let plain = live(&stride, FIFO);
    assert_eq!((plain.faults, plain.prefetched_pages), (steps, 0));
    let ahead = format!(
        "Queue all; Int step;
Event PageFault() {{
    EnQueue(FaultedPage, all, TAIL);
    if (!Prefetched)
        for (step = 1; step <= 12; step++)
            Prefetch(FaultedAddress + step * 8, 1);
}}
Event Reference() {{ Prefetch(FaultedAddress + 64, 1); }}
{}",
        FIFO.lines().last().unwrap()
    );
    let ahead = live(&stride, &ahead);
    assert!(ahead.faults <= 16, "{ahead:?}");
    assert_eq!(ahead.pages_read, ahead.faults + ahead.prefetched_pages);
    let unmapped = live(&stride, &FIFO.replace("TAIL); }", "TAIL); UnMap(FaultedPage); }"));
    assert_eq!(unmapped.faults, steps, "nothing is touched twice");
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
