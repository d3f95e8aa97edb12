//! Faults over time, and what they come to.
use pagekeeper_analysis::{FaultRate, Observation};
use serde_json::Value;

use super::{Subject, capital, grouped};
use crate::figure::number;
use crate::{Axis, Chart, Figure, Kind, Line, Lines};

pub(super) fn figures(subject: &Subject<'_>, frames: u32, seen: &[Observation]) -> Vec<Figure> {
    let mut figures = vec![statistics(subject, frames, seen)];
    let place = subject.in_memory(frames);
    let rates: Vec<(&str, &FaultRate)> =
        seen.iter().map(|seen| (seen.policy.as_str(), &seen.rate)).collect();
    if let Some((_, first)) = rates.first() {
        let y = format!("faults per {} references", grouped(first.interval));
        let title = format!("Fault rate {place}");
        let reading = format!(
            "{}. Peaks are where a program turns to pages that are not in memory; lines that part \
             show where one policy does better.{}",
            capital(&y),
            left_out(first)
        );
        let figure = subject.figure(Kind::FaultRate, title, reading);
        let x = Axis::linear("references passed").of("references");
        figures.push(lines(figure, x, y, &rates, |instant| instant.into()));
    }
    let by_time: Option<Vec<(&str, &FaultRate)>> =
        seen.iter().map(|seen| Some((seen.policy.as_str(), seen.rate_by_time.as_ref()?))).collect();
    if let Some((_, first)) = by_time.as_ref().and_then(|rates| rates.first()) {
        let interval = number(first.interval as f64 / 1e9);
        // Five digits of a time of day would be the same for all.
        let from = match first.start {
            0 => "its start".to_owned(),
            start => format!("{} s", start as f64 / 1e9),
        };
        let y = format!("faults per {interval} s");
        let reading = format!(
            "{} of the recorded run's clock, from {from} on. A simulated fault takes no time, so \
             pauses are the program's own.{}",
            capital(&y),
            left_out(first)
        );
        let title = format!("Fault rate by the clock {place}");
        let figure = subject.figure(Kind::FaultTime, title, reading);
        let x = Axis::linear("time (s)").of("seconds");
        let seconds = |ns: u64| number((ns - first.start) as f64 / 1e9);
        figures.push(lines(figure, x, y, by_time.as_ref().expect("just looked"), seconds));
    }
    figures
}

/// What is said of the interval that the end cuts short. As high as its share of a whole one, it would
/// look as if all policies got better at the end.
fn left_out(rate: &FaultRate) -> &'static str {
    if rate.whole < rate.faults.len() { " The last interval is shorter, and left out." } else { "" }
}

fn lines(
    mut figure: Figure,
    x: Axis,
    y: String,
    rates: &[(&str, &FaultRate)],
    instant: impl Fn(u64) -> Value,
) -> Figure {
    figure.columns = vec![x.column.clone().unwrap_or_default()];
    figure.columns.extend(rates.iter().map(|(policy, _)| (*policy).to_owned()));
    // The same string and start: the same intervals for all.
    let first = rates[0].1;
    let rows = (0..first.whole).map(|place| {
        let start = first.start + place as u64 * first.interval;
        let faults = rates.iter().map(|(_, rate)| Value::from(rate.faults[place]));
        std::iter::once(instant(start)).chain(faults).collect()
    });
    figure.rows = rows.collect();
    figure.chart = Some(Chart::Lines(Lines {
        x,
        y: Axis::linear(y),
        series: rates.iter().map(|(policy, _)| Line::named(policy)).collect(),
        steps: true,
        ..Lines::default()
    }));
    figure
}

fn statistics(subject: &Subject<'_>, frames: u32, seen: &[Observation]) -> Figure {
    let interval = grouped(seen.first().map_or(0, |seen| seen.rate.interval));
    let reading = format!(
        "Faults, and how evenly they come: mean, least, most and standard deviation of the faults \
         per {interval} references. A refault is a fault on a page that was evicted earlier; pages \
         are written back if they are dirty when evicted."
    );
    let title = format!("Statistics {}", subject.in_memory(frames));
    let mut figure = subject.figure(Kind::Statistics, title, reading);
    figure.columns = [
        "policy",
        "hit ratio",
        "hits",
        "faults",
        "refaults",
        "written back",
        "mean",
        "least",
        "most",
        "deviation",
    ]
    .map(str::to_owned)
    .to_vec();
    let rows = seen.iter().map(|Observation { policy, counts, rate, .. }| {
        vec![
            policy.as_str().into(),
            number(counts.hit_ratio()),
            counts.hits.into(),
            counts.faults.into(),
            counts.refaults.into(),
            counts.write_backs.into(),
            number(rate.spread.mean),
            rate.spread.min.into(),
            rate.spread.max.into(),
            number(rate.spread.standard_deviation),
        ]
    });
    figure.rows = rows.collect();
    figure
}
