//! Reuse distances and inter-reference gaps.
use pagekeeper_analysis::{GapBins, Gaps, Layout, Observation, ObserveOptions, lru_curve, observe};
use pagekeeper_sim::SimError;
use rayon::prelude::*;
use serde_json::Value;

use super::{Subject, grouped};
use crate::figure::share_shades;
use crate::{Axis, Chart, Figure, Kind, Line, Lines, Map};

/// Memory sizes of the map of hits.
const SIZES: u32 = 12;
const BINS: &str = "Bins are exact below 16 and an eighth of a power of two wide above.";

pub(super) fn reuse_distance(subject: &Subject<'_>) -> Figure {
    let curve = lru_curve(subject.references, subject.options.warm_refs);
    let mut bins: Vec<u64> = Vec::new();
    for distance in 1..=curve.frames_for_most_hits() {
        let bin = GapBins::bin_of(distance.into());
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += curve.at_distance(distance);
    }
    let first = curve.references() - curve.hits(u32::MAX);
    let reading = format!(
        "Distinct pages between two references to the same page, itself among them: LRU hits if \
         memory has at least as many frames. A peak at one place is a loop of that many pages. {} \
         references came to a page for the first time and have no distance. {BINS}",
        grouped(first)
    );
    let mut figure = subject.figure(Kind::ReuseDistance, "Reuse distances", reading);
    figure.columns = vec!["distance_pages".to_owned(), "references".to_owned()];
    figure.rows = bins_of(&[&bins]);
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::log("reuse distance (pages)").of("distance_pages"),
        y: Axis::linear("references"),
        series: vec![Line::named("references")],
        steps: true,
        ..Lines::default()
    }));
    figure
}

/// Rows of a bin's first value and the counts of each list, from 1 on to the empty one after the
/// last.
fn bins_of(lists: &[&[u64]]) -> Vec<Vec<Value>> {
    let end = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    if end == 0 {
        return Vec::new();
    }
    let rows = (1..=end).map(|bin| {
        let counts = lists.iter().map(|list| list.get(bin).copied().unwrap_or(0).into());
        std::iter::once(GapBins::first_of(bin).into()).chain(counts).collect()
    });
    rows.collect()
}

pub(super) fn all_and_hits(subject: &Subject<'_>, frames: u32, seen: &[Observation]) -> Figure {
    let all = Gaps::of(subject.references, subject.options.warm_refs);
    let title = format!("Inter-reference gaps {}", subject.in_memory(frames));
    let reading = format!(
        "References between two to the same page: how often each gap comes, and how often a policy \
         turns it into a hit. Where a policy's line leaves the one of all references, it loses \
         pages with that gap. {BINS}"
    );
    let mut figure = subject.figure(Kind::Gaps, title, reading);
    figure.columns = vec!["gap_refs".to_owned(), "all references".to_owned()];
    figure.columns.extend(seen.iter().map(|seen| seen.policy.clone()));
    let hits = seen.iter().map(|seen| seen.hit_gaps.counts());
    figure.rows = bins_of(&std::iter::once(all.counts()).chain(hits).collect::<Vec<_>>());
    let hits = seen.iter().map(|seen| Line {
        label: format!("hits of {}", seen.policy),
        ..Line::named(&seen.policy)
    });
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::log("gap (references)").of("gap_refs"),
        y: Axis::linear("references"),
        series: std::iter::once(Line::named("all references")).chain(hits).collect(),
        steps: true,
        ..Lines::default()
    }));
    figure
}

/// The gaps of the hits as memory grows, a map for each policy.
pub(super) fn hit_gaps(subject: &Subject<'_>) -> Result<Vec<Figure>, SimError> {
    let pages = u64::from(subject.pages);
    let mut sizes: Vec<u32> = (1..=u64::from(SIZES))
        .map(|step| (pages * step / u64::from(SIZES)) as u32)
        .filter(|frames| *frames > 0)
        .collect();
    sizes.dedup();
    // Maps and numbers over time are of no use here, and the least of them cost nothing.
    let layout = Layout::of(subject.references, 1);
    let options = ObserveOptions {
        columns: 1,
        intervals: 1,
        snapshots: 0,
        seed: subject.options.seed,
        warm_refs: subject.options.warm_refs,
    };
    let figures = subject.options.policies.iter().map(|spec| {
        let seen: Vec<Result<Observation, SimError>> = sizes
            .par_iter()
            .with_max_len(1)
            .map(|frames| observe(subject.references, &layout, spec, *frames, &options))
            .collect();
        let gaps: Vec<Gaps> =
            seen.into_iter().map(|seen| Ok(seen?.hit_gaps)).collect::<Result<_, SimError>>()?;
        Ok(hit_map(subject, &spec.to_string(), &sizes, &gaps))
    });
    let mut figures = figures.collect::<Result<Vec<_>, SimError>>()?;
    share_shades(&mut figures, Kind::HitGaps);
    Ok(figures)
}

fn hit_map(subject: &Subject<'_>, policy: &str, sizes: &[u32], gaps: &[Gaps]) -> Figure {
    let reading = format!(
        "Each row is a memory size, each column a gap between two references to the same page; strong \
         cells are many hits. A policy that keeps the right pages of a loop begins to hit it well \
         before the whole loop fits; one that does not begins at once, with all of it. {BINS}"
    );
    let title = format!("Gaps of the hits of {policy} as memory grows");
    let mut figure = subject.figure(Kind::HitGaps, title, reading);
    figure.id = format!("{}-{policy}", figure.id);
    let end = gaps.iter().map(|gaps| gaps.counts().len()).max().unwrap_or(0);
    figure.columns = ["gap_bin", "size", "hits"].map(str::to_owned).to_vec();
    let cells = gaps.iter().enumerate().flat_map(|(row, gaps)| {
        let counts = gaps.counts().iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(move |(bin, count)| vec![(bin - 1).into(), row.into(), (*count).into()])
    });
    figure.rows = cells.collect();
    figure.chart = Some(Chart::Map(Map {
        x: Axis::linear("gap (references)"),
        y: Axis::linear("memory (frames)"),
        x_names: (1..end).map(|bin| GapBins::first_of(bin).into()).collect(),
        y_names: sizes.iter().map(|frames| (*frames).into()).collect(),
        value: "hits".to_owned(),
        most: gaps.iter().flat_map(Gaps::counts).copied().max().unwrap_or(1),
        y_marks: None,
        classes: None,
    }));
    figure
}
