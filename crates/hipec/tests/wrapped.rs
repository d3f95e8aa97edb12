//! A program decides as it did alone when somebody looks on, and when it is told the same again.
use std::path::Path;
use std::sync::Arc;

use pagekeeper_analysis::{Layout, ObserveOptions, observe};
use pagekeeper_hipec::policy::spec;
use pagekeeper_hipec::{load, text};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Calls, Counts, References, SweepOptions, replay, sweep};
use pagekeeper_trace::ExtentEvent;

/// Gives up clean pages first, and asks for the dirty ones that it passes to be written.
const CLEAN_FIRST: &str = "Queue all;
Page page;
Int passed;
Event PageFault() { EnQueue(FaultedPage, all, TAIL); }
Event Replace() {
    for (passed = 0; passed < 20; passed++) {
        page = DeQueue(all, HEAD);
        if (!Mod(page)) return page;
        Flush(page);
        EnQueue(page, all, TAIL);
    }
    return DeQueue(all, HEAD);
}
";
const FRAMES: u32 = 50;

/// The programs that come with Pagekeeper, and those that see which pages are dirty.
fn programs() -> Vec<PolicySpec> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies");
    let mut paths: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut programs: Vec<_> = paths
        .iter()
        .map(|path| text::parse(path.to_str().unwrap(), |path| std::fs::read(path)).unwrap())
        .collect();
    assert!(programs.len() > 5);
    for (name, text) in [
        ("clean-first.hipec", CLEAN_FIRST),
        ("unwritten.hipec", &CLEAN_FIRST.replace("Flush(page);", "")),
    ] {
        let (program, _) = load(name, text.as_bytes()).unwrap();
        programs.push(spec(Arc::new(program), name, None).unwrap());
    }
    programs
}

/// Reads and writes of a file, and of a heap that is freed and used again, and stored before forks.
fn strings() -> [References; 2] {
    let mixed = |i: u64| (0u32, i * i % 211, i.is_multiple_of(3), 0u64);
    let mut builder = References::builder();
    builder.heap(1, "heap:1 (p)");
    for i in 0..6000_u64 {
        if i.is_multiple_of(150) {
            let event =
                if i.is_multiple_of(900) { ExtentEvent::Stored } else { ExtentEvent::Freed };
            builder.extent(1, i % 37..i % 37 + 40, event);
        }
        builder.push((1, i * i % 97, i.is_multiple_of(4), 0).into()).unwrap();
        builder.push(mixed(i).into()).unwrap();
    }
    [References::collect((0..6000).map(mixed)).unwrap(), builder.finish()]
}

fn alone(references: &References, spec: &PolicySpec) -> Counts {
    let specs = std::slice::from_ref(spec);
    sweep(references, specs, &[FRAMES], &SweepOptions::default()).unwrap()[0].counts
}

#[test]
fn observed_programs_do_what_they_do_alone() {
    for references in strings() {
        let layout = Layout::of(&references, 1);
        for spec in programs() {
            let seen = observe(&references, &layout, &spec, FRAMES, &ObserveOptions::default());
            assert_eq!(seen.unwrap().counts, alone(&references, &spec), "{spec}");
        }
    }
}

/// `tell` compares each victim.
#[test]
fn programs_are_told_again_what_they_were_told() {
    for references in strings() {
        for spec in programs() {
            let build = || spec.build(FRAMES, 0).unwrap();
            let calls = Calls::of(&references, build(), FRAMES).unwrap();
            assert_eq!(calls.faults(), alone(&references, &spec).faults, "{spec}");
            let (mut told, mut replayed) = (build(), build());
            calls.tell(&mut told);
            replay(&references, &mut replayed, FRAMES, |_| {}).unwrap();
            assert_eq!(told.resident(), replayed.resident());
            let gauges = |policy: &mut dyn pagekeeper_policy::Policy| {
                policy.visible().unwrap().gauges().iter().map(|g| g.value).collect::<Vec<_>>()
            };
            assert_eq!(gauges(&mut told), gauges(&mut replayed), "{spec}");
        }
    }
}
