//! References and faults by time and page.
use pagekeeper_analysis::{Observation, SpaceTime};
use serde_json::Value;

use super::{Subject, grouped};
use crate::{Axis, Chart, Figure, Kind, Map};

pub(super) fn space_time(subject: &Subject<'_>) -> Figure {
    let map = SpaceTime::of(subject.references, &subject.layout, subject.columns);
    let reading = "Time goes right, pages go up, strong colour is many references. A slanted line is a \
                   sequence, the same line again and again a loop, a strong band pages in steady use.";
    let figure = subject.figure(Kind::SpaceTime, "References by time and page", reading);
    filled(subject, figure, &map, "references")
}

pub(super) fn faults(subject: &Subject<'_>, seen: &Observation) -> Option<Figure> {
    if !subject.options.wants(Kind::FaultMap) {
        return None;
    }
    let title = format!("Faults of {} {}", seen.policy, subject.in_memory(seen.frames));
    let reading = "As the map of references, with faults alone: what the policy lost, and when.";
    let mut figure = subject.figure(Kind::FaultMap, title, reading);
    figure.id = format!("{}-{}", figure.id, seen.policy);
    Some(filled(subject, figure, &seen.faults, "faults"))
}

/// The figure of a map of counts.
fn filled(subject: &Subject<'_>, mut figure: Figure, map: &SpaceTime, value: &str) -> Figure {
    let cells = map.cells.iter();
    figure.rows = cells.map(|c| vec![c.column.into(), c.row.into(), c.count.into()]).collect();
    figure.columns = ["column", "row", value].map(str::to_owned).to_vec();
    figure.chart = Some(Chart::Map(chart(subject, map, value)));
    figure.reading +=
        &format!(" A column is {} references; {}.", grouped(map.column_refs), rows_are(subject));
    figure
}

fn rows_are(subject: &Subject<'_>) -> String {
    let pages = subject.layout.places();
    let rows = subject.layout.first_pages().len() as u64;
    match pages.div_ceil(rows.max(1)) {
        1 => "a row is a page, and pages never referenced are left out".to_owned(),
        most => format!("a row is up to {} pages, those never referenced left out", grouped(most)),
    }
}

/// Axes and names of a map in the subject's layout.
pub(super) fn chart(subject: &Subject<'_>, map: &SpaceTime, value: &str) -> Map {
    let segments = subject.references.segments();
    let first_pages = subject.layout.first_pages();
    let (mut names, mut marks): (Vec<Value>, Vec<u32>) = Default::default();
    for (row, (segment, index)) in first_pages.iter().enumerate() {
        let is_first = row == 0 || first_pages[row - 1].0 != *segment;
        if is_first {
            marks.push(row as u32);
        }
        names.push(match segments {
            [_] => (*index).into(),
            _ => format!("{}:{index}", file_name(&segments[*segment])).into(),
        });
    }
    Map {
        x: Axis::linear("references passed"),
        y: Axis::linear(if segments.len() == 1 { "page" } else { "file:page" }),
        x_names: (0..map.columns).map(|c| (u64::from(c) * map.column_refs).into()).collect(),
        y_names: names,
        value: value.to_owned(),
        most: map.cells.iter().map(|cell| cell.count).max().unwrap_or(1),
        y_marks: (segments.len() > 1).then_some(marks),
        classes: None,
    }
}

/// A segment's name without its directories; its number if it has none.
fn file_name(segment: &pagekeeper_sim::Segment) -> String {
    match segment.name.rsplit('/').next() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => segment.id.to_string(),
    }
}
