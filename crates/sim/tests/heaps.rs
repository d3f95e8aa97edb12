//! Heap memory in simulations: zeros need no read, freed memory no write, forks store.

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{
    Allocation, Counts, LiveOptions, PoolOptions, PoolProgram, References, ReferencesBuilder,
    Schedule, SweepOptions, simulate_live, simulate_pool, sweep,
};
use pagekeeper_trace::ExtentEvent;

fn touch(
    builder: &mut ReferencesBuilder,
    segment: u32,
    pages: impl Iterator<Item = u64>,
    write: bool,
) {
    pages.for_each(|page| builder.push((segment, page, write, 0).into()).unwrap());
}

fn exact(references: &References, policy: &str, frames: u32) -> Counts {
    let policy = [PolicySpec::parse(policy).unwrap()];
    sweep(references, &policy, &[frames], &SweepOptions::default()).unwrap()[0].counts
}

fn live(references: &References, frames: u32) -> Counts {
    let options = LiveOptions { frames: Some(frames), ..LiveOptions::new(1 << 20) };
    simulate_live(references, &PolicySpec::parse("lru").unwrap(), &options).unwrap().counts
}

/// A heap of 100 pages, all allocated.
fn heap() -> ReferencesBuilder {
    let mut builder = References::builder();
    builder.heap(1, "heap:1 (p)").extent(1, 0..100, ExtentEvent::Allocated);
    builder
}

#[test]
fn first_touches_read_nothing_and_what_left_dirty_comes_back() {
    let mut builder = heap();
    touch(&mut builder, 1, 0..100, true);
    touch(&mut builder, 1, 0..100, false);
    let references = builder.finish();
    let counts = exact(&references, "lru", 50);
    assert_eq!((counts.faults, counts.zero_faults, counts.pages_read), (200, 100, 100));
    assert_eq!((counts.write_backs, counts.dirty_at_end), (100, 0));
    let counts = exact(&references, "lru", 100);
    assert_eq!((counts.pages_read, counts.write_backs, counts.dirty_at_end), (0, 0, 0));

    let counts = live(&references, 50);
    assert_eq!(counts.zero_pages, 100, "{counts:?}");
    assert!((50..=110).contains(&counts.pages_read), "{counts:?}");
    assert_eq!(counts.dirty_at_end, 0);
}

/// A page that nobody wrote to leaves without a write, and comes back as zeros.
#[test]
fn what_is_only_read_costs_no_io() {
    let mut builder = heap();
    for _ in 0..5 {
        touch(&mut builder, 1, 0..100, false);
    }
    let references = builder.finish();
    for counts in [exact(&references, "lru", 20), live(&references, 20)] {
        assert_eq!((counts.pages_read, counts.write_backs), (0, 0), "{counts:?}");
        assert!(counts.evictions > 0);
    }
}

#[test]
fn freed_memory_is_not_written_and_is_zeros_when_it_is_used_again() {
    let mut builder = heap();
    for _ in 0..3 {
        builder.extent(1, 0..100, ExtentEvent::Allocated);
        touch(&mut builder, 1, 0..100, true);
        builder.extent(1, 0..100, ExtentEvent::Freed);
    }
    let references = builder.finish();
    assert_eq!((references.pages(), references.zero_pages()), (300, 300));
    for policy in ["lru", "opt", "opt-wb", "arc", "ubm"] {
        let counts = exact(&references, policy, 100);
        assert_eq!(counts.faults, 300);
        assert_eq!(
            (counts.pages_read, counts.write_backs, counts.evictions),
            (0, 0, 0),
            "{policy}"
        );
        // Half of it leaves before it is freed, and is never asked for again.
        let counts = exact(&references, policy, 50);
        assert_eq!((counts.pages_read, counts.write_backs), (0, 150), "{policy}");
    }
    let counts = live(&references, 200);
    assert_eq!((counts.pages_read, counts.write_backs, counts.evictions), (0, 0, 0), "{counts:?}");
}

/// Before a fork the parent's dirty pages are stored, and stay; the child reads what it has of them.
#[test]
fn a_fork_stores_what_is_dirty_and_the_child_reads_it() {
    let mut builder = heap();
    touch(&mut builder, 1, 0..40, true);
    builder.extent(1, 0..1 << 32, ExtentEvent::Stored);
    builder.heap(2, "heap:2 (p)");
    builder.extent(2, 0..40, ExtentEvent::Inherited).extent(2, 0..100, ExtentEvent::Allocated);
    touch(&mut builder, 2, 0..60, false);
    touch(&mut builder, 1, 0..40, false);
    builder.extent(2, 0..1 << 32, ExtentEvent::Freed).extent(1, 0..1 << 32, ExtentEvent::Freed);
    let references = builder.finish();
    assert_eq!((references.pages(), references.zero_pages()), (100, 60));
    for counts in [exact(&references, "lru", 200), live(&references, 400)] {
        assert_eq!((counts.pages_read, counts.write_backs), (40, 40), "{counts:?}");
        assert_eq!(counts.dirty_at_end, 0);
    }
}

/// A heap's number is used again when its process is gone, by a heap or by a file.
#[test]
fn numbers_are_used_again() {
    let mut builder = heap();
    touch(&mut builder, 1, 0..10, true);
    builder.extent(1, 0..1 << 32, ExtentEvent::Freed);
    builder.heap(1, "heap:2 (q)").extent(1, 0..100, ExtentEvent::Allocated);
    touch(&mut builder, 1, 0..10, true);
    builder.extent(1, 0..1 << 32, ExtentEvent::Freed);
    builder.segment(1, "a.db", 10);
    touch(&mut builder, 1, 0..10, true);
    let references = builder.finish();
    let names: Vec<_> =
        references.segments().iter().map(|s| (s.name.as_str(), s.is_heap)).collect();
    assert_eq!(names, [("heap:1 (p)", true), ("heap:2 (q)", true), ("a.db", false)]);
    for counts in [exact(&references, "lru", 100), live(&references, 400)] {
        assert_eq!((counts.pages_read, counts.dirty_at_end), (10, 10), "{counts:?}");
    }
}

/// Each fork looked at every page of the trace.
#[test]
fn forks_cost_what_they_store() {
    let (pages, forks) = (200_000, 20_000);
    let mut builder = References::builder();
    builder.heap(1, "heap:1 (p)");
    touch(&mut builder, 1, 0..pages, true);
    for fork in 0..forks {
        builder.extent(1, 0..1 << 32, ExtentEvent::Stored);
        touch(&mut builder, 1, fork..fork + 1, true);
    }
    let references = builder.finish();
    let begun = std::time::Instant::now();
    let counts = exact(&references, "lru", 1 << 20);
    assert_eq!(counts.write_backs, pages + forks - 1);
    let lru = PolicySpec::parse("lru").unwrap();
    let programs = [PoolProgram::new("p", &references, lru)];
    let turns = Schedule::RoundRobin { quantum_ns: 50_000 };
    let options = PoolOptions::new(1 << 20, Allocation::Fixed, turns);
    let outcome = simulate_pool(&programs, &options).unwrap();
    assert_eq!(outcome.programs[0].write_backs, pages + forks - 1);
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
}

/// A part that is stored, and pages that left, were freed or were written back before.
#[test]
fn forks_store_what_is_dirty_of_the_range() {
    let mut builder = heap();
    touch(&mut builder, 1, 0..10, true);
    builder.extent(1, 0..2, ExtentEvent::Freed);
    builder.extent(1, 1..5, ExtentEvent::Stored);
    touch(&mut builder, 1, 0..2, true);
    builder.extent(1, 0..10, ExtentEvent::Stored);
    builder.extent(1, 0..10, ExtentEvent::Stored);
    let references = builder.finish();
    assert_eq!(exact(&references, "lru", 20).write_backs, 3 + 2 + 5);
    // In six frames the first four had left: two more make room for what is new.
    assert_eq!(exact(&references, "fifo", 6).write_backs, 4 + 1 + 1 + 6);
}
