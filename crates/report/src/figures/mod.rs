//! One file a group of figures.
use pagekeeper_analysis::{Layout, Observation, ObserveOptions, observe, sizes_up_to};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{References, SimError};
use rayon::prelude::*;
use serde_json::Value;

use crate::figure::share_shades;
use crate::{Figure, Kind, Options, Trace};

mod curves;
mod faults;
mod gaps;
mod inside;
mod maps;
mod working_set;

/// Sizes that policies other than LRU and OPT are replayed at.
const SIZES: u32 = 20;
/// Fewest columns of a map.
const COLUMNS_LEAST: u32 = 60;

/// What figures are made of.
pub(crate) struct Subject<'a> {
    trace: Trace<'a>,
    references: &'a References,
    options: &'a Options,
    /// As many as there are at once.
    pages: u32,
    layout: Layout,
    columns: u32,
    /// Sizes looked at closely.
    memory: Vec<u32>,
    /// Sizes for curves, those among them.
    sizes: Vec<u32>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(trace: Trace<'a>, options: &'a Options, traces: u32) -> Self {
        let references = trace.references;
        let pages = references.pages_at_once();
        let mut memory = trace.memory_frames.to_vec();
        if memory.is_empty() {
            memory.push((pages / 4).max(1));
        }
        let mut sizes = sizes_up_to(pages, SIZES);
        sizes.extend(&memory);
        sizes.sort_unstable();
        sizes.dedup();
        // All maps together have so many cells: space-time, and for each policy and size faults and
        // perhaps classes. Maps are twice as wide as high.
        let maps = traces * (1 + 2 * options.policies.len() as u32 * memory.len() as u32);
        let columns = f64::from(2 * options.cells / maps.max(1)).sqrt() as u32;
        let columns = columns.max(COLUMNS_LEAST).min(options.columns.max(2));
        let layout = Layout::of(references, columns / 2);
        Self { trace, references, options, pages, layout, columns, memory, sizes }
    }

    fn figure(&self, kind: Kind, title: impl Into<String>, reading: impl Into<String>) -> Figure {
        Figure {
            id: kind.name().to_owned(),
            kind,
            title: title.into(),
            reading: reading.into(),
            chart: None,
            columns: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// "in 1,000 frames (3.9 MiB)".
    fn in_memory(&self, frames: u32) -> String {
        let bytes = u64::from(frames) * u64::from(self.trace.page_bytes);
        format!("in {} frames ({})", grouped(frames.into()), size(bytes))
    }
}

/// All figures that are wanted.
pub(crate) fn all(subject: &Subject<'_>) -> Result<Vec<Figure>, SimError> {
    let options = subject.options;
    let wants = |kinds: &[Kind]| kinds.iter().any(|kind| options.wants(*kind));
    let mut figures = Vec::new();
    if wants(&[Kind::MissRatio, Kind::HitRatio]) {
        figures.extend(curves::figures(subject)?);
    }
    if wants(&[Kind::ReuseDistance]) {
        figures.push(gaps::reuse_distance(subject));
    }
    if wants(&[Kind::WorkingSet, Kind::WorkingSetTime]) {
        figures.extend(working_set::figures(subject));
    }
    if wants(&[Kind::SpaceTime]) {
        figures.push(maps::space_time(subject));
    }
    if wants(&[Kind::HitGaps]) {
        figures.extend(gaps::hit_gaps(subject)?);
    }
    let inside = [Kind::Classes, Kind::ClassShare, Kind::Gauges, Kind::Curves, Kind::Notes];
    let outside = [Kind::Statistics, Kind::FaultRate, Kind::FaultTime, Kind::FaultMap, Kind::Gaps];
    if wants(&inside) || wants(&outside) {
        for frames in &subject.memory {
            let seen = observe_all(subject, &options.policies, *frames)?;
            let mut of_size = faults::figures(subject, *frames, &seen);
            of_size.push(gaps::all_and_hits(subject, *frames, &seen));
            of_size.extend(seen.iter().flat_map(|seen| maps::faults(subject, seen)));
            of_size.extend(seen.iter().flat_map(|seen| inside::figures(subject, seen)));
            share_shades(&mut of_size, Kind::FaultMap);
            if subject.memory.len() > 1 {
                of_size.iter_mut().for_each(|figure| figure.id += &format!("-{frames}"));
            }
            figures.extend(of_size);
        }
    }
    Ok(figures)
}

fn observe_all(
    subject: &Subject<'_>,
    policies: &[PolicySpec],
    frames: u32,
) -> Result<Vec<Observation>, SimError> {
    let options = ObserveOptions {
        columns: subject.columns,
        seed: subject.options.seed,
        warm_refs: subject.options.warm_refs,
        ..ObserveOptions::default()
    };
    let (references, layout) = (subject.references, &subject.layout);
    // All to their end, then the first error in order.
    let seen: Vec<_> = policies
        .par_iter()
        .with_max_len(1)
        .map(|spec| observe(references, layout, spec, frames, &options))
        .collect();
    seen.into_iter().collect()
}

/// `null` where there is nothing.
fn or_null(value: Option<impl Into<Value>>) -> Value {
    value.map_or(Value::Null, Into::into)
}

/// 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 1.5 MiB.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < 4 {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(value.fract() != 0.0 && value < 100.0);
    format!("{value:.decimals$} {}", ["B", "KiB", "MiB", "GiB", "TiB"][unit])
}

/// The text with a capital letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
