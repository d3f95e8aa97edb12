//! Working sets.
use pagekeeper_analysis::{WorkingSet, working_set_over_time};
use serde_json::Value;

use super::{Subject, grouped};
use crate::figure::number;
use crate::{Axis, Chart, Figure, Kind, Line, Lines};

/// Points over time.
const SAMPLES: usize = 200;

pub(super) fn figures(subject: &Subject<'_>) -> Vec<Figure> {
    vec![by_window(subject), over_time(subject)]
}

fn by_window(subject: &Subject<'_>) -> Figure {
    let length = subject.references.len() as u64;
    // Four windows for each power of two.
    let windows = (0..).map(|step| 2_f64.powf(f64::from(step) / 4.0).round() as u64);
    let windows = windows.take_while(|window| *window < length).chain([length]).collect();
    let found = WorkingSet::of(subject.references, subject.options.warm_refs, windows);
    let reading = "Pages that the last so many references touched, on average over time, and the \
                   share of references to pages outside. Where the line of pages is flat, a longer \
                   memory needs hardly more of it.";
    let mut figure = subject.figure(Kind::WorkingSet, "Working set by window", reading);
    figure.columns = ["window_refs", "pages", "miss ratio"].map(str::to_owned).to_vec();
    let rows = found.windows_refs.iter().zip(found.mean_pages).zip(found.miss_ratio);
    let rows =
        rows.map(|((window, pages), miss)| vec![(*window).into(), number(pages), number(miss)]);
    figure.rows = rows.collect();
    let miss =
        Line { label: "references outside".into(), right: true, ..Line::named("miss ratio") };
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::log("window (references)").of("window_refs"),
        y: Axis::linear("working set (pages)"),
        y_right: Some(Axis::share("references outside (share)")),
        series: vec![Line { label: "working set".into(), ..Line::named("pages") }, miss],
        ..Lines::default()
    }));
    figure
}

fn over_time(subject: &Subject<'_>) -> Figure {
    let length = subject.references.len() as u64;
    let mut windows: Vec<u64> = [200, 50, 10].map(|part| (length / part).max(1)).to_vec();
    windows.dedup();
    let series: Vec<Vec<(u64, u64)>> = windows
        .iter()
        .map(|window| working_set_over_time(subject.references, *window, SAMPLES))
        .collect();
    let reading = "Pages that the last so many references touched, over time. A plateau is a phase \
                   of the program; a step is a change of phase.";
    let mut figure = subject.figure(Kind::WorkingSetTime, "Working set over time", reading);
    figure.columns = vec!["references".to_owned()];
    let names: Vec<String> =
        windows.iter().map(|w| format!("last {} references", grouped(*w))).collect();
    figure.columns.extend(names.iter().cloned());
    let rows = (0..series[0].len()).map(|place| {
        let passed = Value::from(series[0][place].0);
        let sizes = series.iter().map(|series| Value::from(series[place].1));
        std::iter::once(passed).chain(sizes).collect()
    });
    figure.rows = rows.collect();
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::linear("references passed").of("references"),
        y: Axis::linear("working set (pages)"),
        series: names.iter().map(|name| Line::named(name)).collect(),
        ..Lines::default()
    }));
    figure
}
