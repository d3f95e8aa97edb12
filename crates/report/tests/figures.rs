//! What is in a report, against the simulator and the analyses that it is made of.
use pagekeeper_policy::{PolicySpec, all};
use pagekeeper_report::{Chart, Figure, Kind, Options, Report, Trace};
use pagekeeper_sim::{References, SweepOptions, sweep};
use pagekeeper_trace::ExtentEvent;
use serde_json::Value;

fn string(length: u64) -> References {
    let blocks = (0..length).map(|at| if at % 3 == 0 { at % 500 } else { at * at % 97 });
    References::from_blocks(blocks).unwrap()
}

fn made(references: &References, memory_frames: &[u32], options: &Options) -> Report {
    let trace = Trace { name: "mixed", page_bytes: 4096, references, memory_frames };
    Report::make(&[trace], options).unwrap()
}

fn only(report: &Report, kind: Kind) -> &Figure {
    let mut figures = report.figures().filter(|figure| figure.kind == kind);
    let figure = figures.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(figures.next().is_none(), "more than one {kind}");
    figure
}

fn every_policy() -> Vec<PolicySpec> {
    all().iter().map(PolicySpec::of).collect()
}

#[test]
fn miss_ratios_and_statistics_are_the_simulators() {
    let references = string(6000);
    for warm_refs in [0, 1500] {
        let figures = vec![Kind::MissRatio, Kind::Statistics, Kind::FaultRate];
        let options = Options { warm_refs, figures, ..Options::new(every_policy()) };
        let report = made(&references, &[60], &options);
        let sizes = [1, 60, references.pages()];
        let sweep_options = SweepOptions { warm_refs, ..SweepOptions::default() };
        let curves = only(&report, Kind::MissRatio);
        let statistics = only(&report, Kind::Statistics);
        for outcome in sweep(&references, &every_policy(), &sizes, &sweep_options).unwrap() {
            let column = curves.columns.iter().position(|name| *name == outcome.policy).unwrap();
            let row = curves.rows.iter().find(|row| row[0] == outcome.frames);
            let Some(miss) = row.and_then(|row| row[column].as_f64()) else {
                assert_eq!(outcome.frames, 1, "{}", outcome.policy);
                continue;
            };
            let exact = 1.0 - outcome.hit_ratio();
            assert!((miss - exact).abs() < 1e-4, "{} {}", outcome.policy, outcome.frames);
            if outcome.frames == 60 {
                let row = statistics.rows.iter().find(|row| row[0] == outcome.policy.as_str());
                assert_eq!(row.unwrap()[3], outcome.counts.faults, "{}", outcome.policy);
            }
        }
        let rate = only(&report, Kind::FaultRate);
        for (column, name) in rate.columns.iter().enumerate().skip(1) {
            let faults: u64 = rate.rows.iter().map(|row| row[column].as_u64().unwrap()).sum();
            let row = statistics.rows.iter().find(|row| row[0] == name.as_str()).unwrap();
            let all = row[3].as_u64().unwrap();
            // Those of the interval that the end cuts short are not shown.
            let is_cut = rate.reading.contains("left out");
            assert!(
                if is_cut { faults <= all } else { faults == all },
                "{name}: {faults} of {all}"
            );
        }
    }
}

/// The last interval, shorter than the others, was drawn as if it were whole: every policy fell at the
/// end.
#[test]
fn a_rate_that_does_not_change_is_a_level_line() {
    let references = References::from_blocks((0..6001).map(|at| at % 500)).unwrap();
    let lru = vec![PolicySpec::parse("lru").unwrap()];
    let options = Options { figures: vec![Kind::FaultRate], ..Options::new(lru) };
    let report = made(&references, &[60], &options);
    let rate = only(&report, Kind::FaultRate);
    assert!(rate.rows.len() > 10 && rate.rows.iter().all(|row| row[1] == rate.rows[0][1]));
    assert!(rate.reading.contains("left out"), "{}", rate.reading);
}

/// Five digits of a time of day were the same for every interval.
#[test]
fn the_clock_begins_where_the_figure_does() {
    for (start_ns, from) in
        [(1_700_000_000_500_000_000_u64, "from 1700000000.5 s on"), (0, "start")]
    {
        let touches = (0..6000_u64).map(|at| (0, at % 500, false, start_ns + at * 1_000_000));
        let references = References::collect(touches).unwrap();
        let lru = vec![PolicySpec::parse("lru").unwrap()];
        let options = Options { figures: vec![Kind::FaultTime], ..Options::new(lru) };
        let report = made(&references, &[60], &options);
        let rate = only(&report, Kind::FaultTime);
        assert!(rate.reading.contains(from), "{}", rate.reading);
        let starts: Vec<f64> = rate.rows.iter().map(|row| row[0].as_f64().unwrap()).collect();
        assert!(starts.len() > 10 && starts[0] == 0.0, "{starts:?}");
        assert!(starts.windows(2).all(|pair| pair[0] < pair[1]), "{starts:?}");
    }
}

/// Memory that a program freed and used again was counted as more of it: closer looks were at sizes
/// that hold everything, and curves were level but for their first points.
#[test]
fn sizes_go_up_to_what_there_is_at_once() {
    let mut builder = References::builder();
    builder.heap(1, "heap:1 (p)");
    for _ in 0..20 {
        (0..400).chain(0..400).for_each(|page| builder.push((1, page, true, 0).into()).unwrap());
        builder.extent(1, 0..400, ExtentEvent::Freed);
    }
    let references = builder.finish();
    assert_eq!(references.pages(), 20 * 400);
    let policies = vec![PolicySpec::parse("lru").unwrap(), PolicySpec::parse("clock").unwrap()];
    let report = made(&references, &[], &Options::new(policies));
    assert_eq!(report.sections[0].facts.pages, 400);
    let curves = only(&report, Kind::MissRatio);
    assert_eq!(curves.rows.last().unwrap()[0], 400);
    let statistics = only(&report, Kind::Statistics);
    assert!(statistics.title.contains("in 100 frames"), "{}", statistics.title);
    let maps = report.figures().filter(|figure| figure.kind == Kind::HitGaps);
    for map in maps {
        let Some(Chart::Map(chart)) = &map.chart else { panic!("{} is no map", map.id) };
        assert_eq!(chart.y_names.last().unwrap(), 400, "{}", map.id);
    }
    let map = only(&report, Kind::SpaceTime);
    let Some(Chart::Map(chart)) = &map.chart else { panic!("a map") };
    let most = 400_usize.div_ceil(chart.y_names.len());
    assert!(map.reading.contains(&format!("up to {most} pages")), "{}", map.reading);
}

#[test]
fn the_bound_is_spoken_of_where_it_is_shown() {
    let references = string(3000);
    for (names, is_said) in [(&["lru", "arc"][..], false), (&["lru", "opt"], true)] {
        let policies = names.iter().map(|name| PolicySpec::parse(name).unwrap()).collect();
        let figures = vec![Kind::MissRatio, Kind::HitRatio];
        let report = made(&references, &[60], &Options { figures, ..Options::new(policies) });
        for (kind, bound) in [(Kind::MissRatio, "below opt"), (Kind::HitRatio, "above opt")] {
            assert_eq!(only(&report, kind).reading.contains(bound), is_said, "{kind} {names:?}");
        }
    }
}

#[test]
fn figures_can_be_chosen_and_each_memory_size_has_its_own() {
    let references = string(3000);
    let policies = vec![PolicySpec::parse("lru").unwrap(), PolicySpec::parse("opt").unwrap()];
    let figures = vec![Kind::FaultMap, Kind::SpaceTime];
    let options = Options { figures, ..Options::new(policies) };
    let report = made(&references, &[10, 200], &options);
    let ids: Vec<&str> = report.figures().map(|figure| figure.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "mixed-space-time",
            "mixed-fault-map-lru-10",
            "mixed-fault-map-opt-10",
            "mixed-fault-map-lru-200",
            "mixed-fault-map-opt-200"
        ]
    );
    let references_mapped: u64 =
        report.figures().next().unwrap().rows.iter().map(|row| row[2].as_u64().unwrap()).sum();
    assert_eq!(references_mapped, 3000);
}

#[test]
fn samples_say_how_far_off_they_may_be() {
    let blocks = (0..200_000_u64).map(|at| (at * at * at / 3 + at / 11) % 20_011);
    let references = References::from_blocks(blocks).unwrap();
    let policies = vec![PolicySpec::parse("lru").unwrap(), PolicySpec::parse("clock").unwrap()];
    let figures = vec![Kind::MissRatio];
    let exact = Options { figures, ..Options::new(policies) };
    let sampled = Options { sample_rate: Some(0.2), ..exact.clone() };
    let (exact, sampled) = (made(&references, &[], &exact), made(&references, &[], &sampled));
    let (exact, sampled) = (only(&exact, Kind::MissRatio), only(&sampled, Kind::MissRatio));
    assert!(sampled.reading.contains("lru ±") && sampled.reading.contains("clock ±"));
    let mut compared = 0;
    for row in &sampled.rows {
        let other = exact.rows.iter().find(|other| other[0] == row[0]).unwrap();
        for (ratio, error) in [(2, 4), (3, 5)] {
            if let (Some(error), Some(truth)) = (row[error].as_f64(), other[ratio].as_f64()) {
                let off = (row[ratio].as_f64().unwrap() - truth).abs();
                assert!(off <= 2.0 * error + 1e-4, "{off} off, {error} stated: {row:?}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 20, "{compared} points");
}

/// `report --sample 0.01` drew sizes that a frame or two of the sample stood for, and a policy that is
/// not sampled as if it were.
#[test]
fn sizes_of_few_sampled_frames_are_left_out_and_what_is_exact_is_named() {
    let references = References::from_blocks((0..40_000_u64).map(|at| at * at % 5_003)).unwrap();
    let policies = vec![PolicySpec::parse("lru").unwrap(), PolicySpec::parse("ubm").unwrap()];
    let options = Options { figures: vec![Kind::MissRatio], ..Options::new(policies) };
    let report = made(&references, &[], &Options { sample_rate: Some(0.1), ..options.clone() });
    let figure = only(&report, Kind::MissRatio);
    assert!(figure.reading.contains("fewer than 32 frames of the sample"), "{}", figure.reading);
    assert!(figure.reading.contains("since neighbours matter to them: ubm"), "{}", figure.reading);
    assert_eq!(figure.columns[2..4], ["lru", "ubm (exact)"]);
    for row in &figure.rows {
        let is_left_out = row[0].as_u64().unwrap() / 10 < 31;
        assert!(!is_left_out || row[2].is_null(), "{row:?}");
        assert!(!row[3].is_null(), "{row:?}");
    }
    assert!(figure.rows.iter().any(|row| !row[2].is_null()));
    let report = made(&references, &[], &Options { sample_rate: Some(0.0001), ..options });
    let figure = only(&report, Kind::MissRatio);
    assert!(figure.reading.contains("lru unknown"), "{}", figure.reading);
}

#[test]
fn nothing_at_all_makes_a_report() {
    for references in [References::default(), string(1), References::from_blocks([7, 7]).unwrap()] {
        let report = made(&references, &[], &Options::new(every_policy()));
        assert!(report.html().unwrap().contains("</html>"));
        for figure in report.figures() {
            assert!(
                figure.rows.iter().all(|row| row.len() == figure.columns.len()),
                "{}",
                figure.id
            );
        }
    }
}

#[test]
fn a_report_stays_small_however_long_the_string() {
    let blocks = (0..150_000_u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47);
    let references = References::from_blocks(blocks).unwrap();
    let policies: Vec<_> =
        ["lru", "mru", "clock", "fifo"].map(|name| PolicySpec::parse(name).unwrap()).to_vec();
    let html = made(&references, &[1000], &Options::new(policies)).html().unwrap();
    assert!(html.len() < 5_000_000, "{} bytes", html.len());
    // The browser is told to load nothing.
    assert!(html.contains("default-src 'none'; script-src 'sha256-"));
}

#[test]
fn names_cannot_leave_their_places() {
    let mut builder = References::builder();
    builder.segment(0, "</script><script>alert(1)</script>", 10);
    builder.segment(1, "x", 10);
    for at in 0..100_u64 {
        builder.push(((at % 2) as u32, at % 7, false, 0).into()).unwrap();
    }
    let references = builder.finish();
    let name = "<img src=x onerror=alert(1)>";
    let trace = Trace { name, page_bytes: 4096, references: &references, memory_frames: &[] };
    let report =
        Report::make(&[trace], &Options::new(vec![PolicySpec::parse("lru").unwrap()])).unwrap();
    let html = report.html().unwrap();
    assert!(!html.contains("<script>alert") && !html.contains("<img"));
    let data = html.split("id=\"figures\">").nth(1).unwrap().split("</script>").next().unwrap();
    let figures: Vec<Value> = serde_json::from_str(data).unwrap();
    assert_eq!(figures.len(), report.figures().count());
}
