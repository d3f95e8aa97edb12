//! What a policy shows of itself.
use std::collections::{BTreeMap, BTreeSet};

use pagekeeper_analysis::{Inside, Observation, SpaceTime};
use serde_json::Value;

use super::{Subject, capital, grouped, maps, or_null};
use crate::figure::number;
use crate::{Axis, Chart, Figure, Kind, Line, Lines};

/// Points that are kept of a curve.
const POINTS: usize = 300;

pub(super) fn figures(subject: &Subject<'_>, seen: &Observation) -> Vec<Figure> {
    let Some(inside) = &seen.inside else {
        return Vec::new();
    };
    let mut figures = gauges(subject, seen, inside);
    figures.extend(curves(subject, seen, inside));
    if !inside.classes.is_empty() {
        figures.extend([classes(subject, seen, inside), class_share(subject, seen, inside)]);
    }
    if !inside.notes.is_empty() {
        figures.push(notes(subject, seen, inside));
    }
    for figure in &mut figures {
        figure.id += &format!("-{}", seen.policy);
    }
    figures
}

fn where_of(subject: &Subject<'_>, seen: &Observation) -> String {
    format!("{} {}", seen.policy, subject.in_memory(seen.frames))
}

/// A policy's numbers, a figure for each unit.
fn gauges(subject: &Subject<'_>, seen: &Observation, inside: &Inside) -> Vec<Figure> {
    let unit_of = |name: &&'static str| name.rsplit_once('_').map_or("", |(_, unit)| unit);
    let units: BTreeSet<&str> = inside.gauges.iter().map(unit_of).collect();
    let figures = units.into_iter().map(|unit| {
        let places: Vec<usize> = (0..inside.gauges.len())
            .filter(|place| unit_of(&inside.gauges[*place]) == unit)
            .collect();
        let title = match unit {
            _ if places.len() == 1 => {
                let name = inside.gauges[places[0]].replace('_', " ");
                format!("{} of {}", capital(&name), where_of(subject, seen))
            }
            "pages" | "frames" => format!("Allocation of {}", where_of(subject, seen)),
            _ => format!("Numbers of {}", where_of(subject, seen)),
        };
        let reading = "What the policy itself goes by, over time: how many pages each of its parts \
                       has, and what else it counts.";
        let mut figure = subject.figure(Kind::Gauges, title, reading);
        figure.id = format!("{}-{unit}", figure.id);
        let names: Vec<String> = places
            .iter()
            .map(|place| {
                inside.gauges[*place].trim_end_matches(&format!("_{unit}")).replace('_', " ")
            })
            .collect();
        figure.columns = vec!["references".to_owned()];
        figure.columns.extend(places.iter().map(|place| inside.gauges[*place].to_owned()));
        let rows = inside.values.iter().map(|(passed, values)| {
            let values = places.iter().map(|p| or_null(values.get(*p).copied().map(number)));
            std::iter::once(Value::from(*passed)).chain(values).collect()
        });
        figure.rows = rows.collect();
        let series = names
            .into_iter()
            .zip(&places)
            .map(|(label, place)| Line { label, ..Line::named(inside.gauges[*place]) });
        figure.chart = Some(Chart::Lines(Lines {
            x: Axis::linear("references passed").of("references"),
            y: Axis::linear(if unit.is_empty() { "value" } else { unit }),
            series: series.collect(),
            steps: true,
            ..Lines::default()
        }));
        figure
    });
    figures.collect()
}

/// A policy's curves, a figure for each, with a line for each time.
fn curves(subject: &Subject<'_>, seen: &Observation, inside: &Inside) -> Vec<Figure> {
    let mut names: Vec<&'static str> = Vec::new();
    for (name, _) in inside.snapshots.iter().flat_map(|snapshot| &snapshot.curves) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let figures = names.into_iter().map(|name| {
        let reading = "A function that the policy decides by, as it was at several times.";
        let title = format!("{} of {}", capital(name), where_of(subject, seen));
        let mut figure = subject.figure(Kind::Curves, title, reading);
        figure.id = format!("{}-{name}", figure.id);
        let lines: Vec<(String, BTreeMap<Ordered, f64>)> = inside
            .snapshots
            .iter()
            .filter_map(|snapshot| {
                let (_, points) = snapshot.curves.iter().find(|(known, _)| *known == name)?;
                let label = format!("after {} references", grouped(snapshot.at_refs));
                Some((label, thinned(points)))
            })
            .collect();
        let places: BTreeSet<Ordered> =
            lines.iter().flat_map(|(_, line)| line.keys().copied()).collect();
        figure.columns = vec!["frames".to_owned()];
        figure.columns.extend(lines.iter().map(|(label, _)| label.clone()));
        let rows = places.into_iter().map(|place| {
            let values =
                lines.iter().map(|(_, line)| or_null(line.get(&place).copied().map(number)));
            std::iter::once(number(place.0)).chain(values).collect()
        });
        figure.rows = rows.collect();
        figure.chart = Some(Chart::Lines(Lines {
            x: Axis::linear("frames").of("frames"),
            y: Axis::linear("value"),
            series: lines.iter().map(|(label, _)| Line::named(label)).collect(),
            ..Lines::default()
        }));
        figure
    });
    figures.collect()
}

/// A number in its order.
#[derive(Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// So many of the points, first and last among them.
fn thinned(points: &[(f64, f64)]) -> BTreeMap<Ordered, f64> {
    let step = points.len().div_ceil(POINTS).max(1);
    let kept = points.iter().step_by(step).chain(points.last());
    kept.map(|(x, y)| (Ordered(*x), *y)).collect()
}

fn classes(subject: &Subject<'_>, seen: &Observation, inside: &Inside) -> Figure {
    let title = format!("Classes of {}", where_of(subject, seen));
    let reading = "As the map of references: what the policy takes the pages for when they are \
                   referenced. A cell has the colour of its most frequent class.";
    let mut figure = subject.figure(Kind::Classes, title, reading);
    let mut most: BTreeMap<(u32, u32), (u64, usize)> = BTreeMap::new();
    for (class, (_, map)) in inside.classes.iter().enumerate() {
        for cell in &map.cells {
            let known = most.entry((cell.column, cell.row)).or_insert((cell.count, class));
            if cell.count > known.0 {
                *known = (cell.count, class);
            }
        }
    }
    figure.columns = ["column", "row", "class"].map(str::to_owned).to_vec();
    let cells = most.into_iter();
    figure.rows = cells
        .map(|((column, row), (_, class))| vec![column.into(), row.into(), class.into()])
        .collect();
    let names = inside.classes.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut chart = maps::chart(subject, &inside.classes[0].1, "class");
    chart.classes = Some(names);
    figure.chart = Some(Chart::Map(chart));
    figure
}

fn class_share(subject: &Subject<'_>, seen: &Observation, inside: &Inside) -> Figure {
    let title = format!("References by class, {}", where_of(subject, seen));
    let reading = "What share of the references the policy takes for what, over time.";
    let mut figure = subject.figure(Kind::ClassShare, title, reading);
    let first = &inside.classes[0].1;
    let by_column = |map: &SpaceTime| {
        let mut counts = vec![0_u64; map.columns as usize];
        map.cells.iter().for_each(|cell| counts[cell.column as usize] += cell.count);
        counts
    };
    let counts: Vec<Vec<u64>> = inside.classes.iter().map(|(_, map)| by_column(map)).collect();
    figure.columns = vec!["references".to_owned()];
    figure.columns.extend(inside.classes.iter().map(|(name, _)| (*name).to_owned()));
    let rows = (0..first.columns as usize).map(|column| {
        let all: u64 = counts.iter().map(|counts| counts[column]).sum();
        let shares = counts.iter().map(|counts| number(counts[column] as f64 / all.max(1) as f64));
        std::iter::once(Value::from(column as u64 * first.column_refs)).chain(shares).collect()
    });
    figure.rows = rows.collect();
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::linear("references passed").of("references"),
        y: Axis::share("share of references"),
        series: inside.classes.iter().map(|(name, _)| Line::named(name)).collect(),
        stacked: true,
        ..Lines::default()
    }));
    figure
}

fn notes(subject: &Subject<'_>, seen: &Observation, inside: &Inside) -> Figure {
    let title = format!("Notes of {}", where_of(subject, seen));
    let mut reading = "What the policy says happened, with its reasons.".to_owned();
    if inside.notes_left_out > 0 {
        reading += &format!(" {} more were left out.", grouped(inside.notes_left_out));
    }
    let mut figure = subject.figure(Kind::Notes, title, reading);
    figure.columns = vec!["references".to_owned(), "what happened".to_owned()];
    let rows = inside.notes.iter();
    figure.rows = rows.map(|(passed, text)| vec![(*passed).into(), text.as_str().into()]).collect();
    figure
}
