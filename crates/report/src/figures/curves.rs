//! Miss and hit ratios by memory size.
use std::collections::BTreeMap;

use pagekeeper_analysis::{
    Estimate, HitCurve, Sampler, hits_at, lru_curve, opt_curve, sizes_up_to,
};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{References, SimError};
use serde_json::Value;

use super::{Subject, or_null};
use crate::figure::number;
use crate::{Axis, Chart, Figure, Kind, Line, Lines};

/// Points of curves that are known at every size.
const POINTS: u32 = 160;
/// OPT's one pass is given up after so many steps: a few seconds.
const OPT_STEPS_MOST: u64 = 4_000_000_000;

/// Sizes that stand for fewer frames of the sample are left out: what a few frames of it hold says
/// nothing about the whole.
const SAMPLED_FRAMES_MIN: u32 = 32;

/// Misses per reference, by frames.
type Ratios = BTreeMap<u32, f64>;

/// How the curves came about, for the reader.
#[derive(Default)]
struct Story {
    one_pass: Vec<String>,
    replayed: Vec<String>,
    /// Policy, largest error, and the sample.
    sampled: Vec<(String, Estimate)>,
}

pub(super) fn figures(subject: &Subject<'_>) -> Result<Vec<Figure>, SimError> {
    let mut story = Story::default();
    let mut curves: Vec<(String, Ratios)> = Vec::new();
    for spec in &subject.options.policies {
        let ratios = ratios(subject, spec, &mut story)?;
        let name = spec.to_string();
        let is_sampled = story.sampled.last().is_some_and(|(sampled, _)| *sampled == name);
        let is_odd = subject.options.sample_rate.is_some() && !is_sampled;
        curves.push((if is_odd { name + " (exact)" } else { name }, ratios));
    }
    let how = story.told(subject);
    let miss = "Lower is better. Each line tells how many references miss in a memory of so many \
                frames; where it falls steeply, a little more memory helps much.";
    let hit = "Higher is better: the miss ratios again, as hits per reference.";
    let has_opt = subject.options.policies.iter().any(|spec| spec.name() == "opt");
    let make = |kind, title: &str, reading: &str, beyond: &str, of: fn(f64) -> f64| {
        let axis = Axis::share(title.to_lowercase());
        let bound =
            if has_opt { format!(" No policy can be {beyond} opt.") } else { String::new() };
        let reading = reading.to_owned() + &bound + &how;
        let figure = subject.figure(kind, format!("{title} by memory size"), reading);
        table(subject, figure, axis, &curves, &story, of)
    };
    Ok(vec![
        make(Kind::MissRatio, "Miss ratio", miss, "below", |miss| miss),
        make(Kind::HitRatio, "Hit ratio", hit, "above", |miss| 1.0 - miss),
    ])
}

fn ratios(subject: &Subject<'_>, spec: &PolicySpec, story: &mut Story) -> Result<Ratios, SimError> {
    let Subject { references, options, sizes, .. } = subject;
    let (warm, seed) = (options.warm_refs, options.seed);
    let name = spec.to_string();
    let wants_places =
        spec.info().runs_live() && spec.build(1, seed).is_ok_and(|policy| policy.wants_places());
    if let Some(rate) = options.sample_rate.filter(|_| !wants_places) {
        let hits = |part: &References, frames: &[u32], warm| match one_pass(part, spec, warm)? {
            Some(curve) => Ok(frames.iter().map(|frames| curve.hits(*frames)).collect()),
            None => hits_at(part, spec, frames, warm, seed),
        };
        let sampler = Sampler::new(rate, seed);
        let fine_enough =
            |frames: &&u32| f64::from(**frames) * sampler.rate() >= f64::from(SAMPLED_FRAMES_MIN);
        let sizes: Vec<u32> = sizes.iter().filter(fine_enough).copied().collect();
        let estimate = sampler.estimate(references, &sizes, warm, hits)?;
        let ratios = sizes.iter().copied().zip(estimate.miss_ratio.iter().copied()).collect();
        story.sampled.push((name, estimate));
        return Ok(ratios);
    }
    if let Some(curve) = one_pass(references, spec, warm)? {
        story.one_pass.push(name);
        let points = sizes_up_to(subject.pages, POINTS).into_iter().chain(sizes.clone());
        return Ok(points.map(|frames| (frames, curve.miss_ratio(frames))).collect());
    }
    story.replayed.push(name);
    let counted = references.len().saturating_sub(warm).max(1) as f64;
    let hits = hits_at(references, spec, sizes, warm, seed)?;
    let counted_refs = references.len().saturating_sub(warm) as f64;
    let ratio = |hits: u64| (counted_refs - hits as f64) / counted;
    Ok(sizes.iter().copied().zip(hits.into_iter().map(ratio)).collect())
}

/// The whole curve, for the policies that have it in one pass.
fn one_pass(
    references: &References,
    spec: &PolicySpec,
    warm_refs: usize,
) -> Result<Option<HitCurve>, SimError> {
    if spec.name() == "opt" {
        return opt_curve(references, warm_refs, OPT_STEPS_MOST);
    }
    Ok((spec.to_string() == "lru").then(|| lru_curve(references, warm_refs)))
}

impl Story {
    fn told(&self, subject: &Subject<'_>) -> String {
        let mut text = String::new();
        let list = |names: &[String]| names.join(", ");
        if !self.one_pass.is_empty() {
            text += &format!(" At all sizes from one pass: {}.", list(&self.one_pass));
        }
        if !self.replayed.is_empty() {
            let sizes = subject.sizes.len();
            text += &format!(" Replayed at {sizes} sizes: {}.", list(&self.replayed));
        }
        if let Some((_, first)) = self.sampled.first() {
            text += &format!(
                " Estimated from {} of the pages ({} pages, {} references): {}.",
                percent(first.rate),
                super::grouped(first.sampled_pages.into()),
                super::grouped(first.sampled_references),
                list(&self.sampled.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())
            );
            let exact: Vec<String> = self.one_pass.iter().chain(&self.replayed).cloned().collect();
            if !exact.is_empty() {
                text +=
                    &format!(" From all pages, since neighbours matter to them: {}.", list(&exact));
            }
            text += &format!(
                " Sizes of fewer than {SAMPLED_FRAMES_MIN} frames of the sample are left out."
            );
            text += " Largest error (exceeded about one time in twenty):";
            let errors = self.sampled.iter().map(|(name, estimate)| {
                if estimate.error.iter().all(Option::is_none) {
                    return format!(" {name} unknown, as the sample is too small");
                }
                format!(" {name} ±{}", number(estimate.error_most()))
            });
            text += &errors.collect::<Vec<_>>().join(",");
            text.push('.');
        }
        if subject.options.warm_refs > 0 {
            let warm = super::grouped(subject.options.warm_refs as u64);
            text += &format!(" The first {warm} references fill memory and are not counted.");
        }
        text
    }
}

fn percent(share: f64) -> String {
    format!("{} %", number(share * 100.0))
}

fn table(
    subject: &Subject<'_>,
    mut figure: Figure,
    y: Axis,
    curves: &[(String, Ratios)],
    story: &Story,
    of_miss: fn(f64) -> f64,
) -> Figure {
    let mut frames: Vec<u32> = curves.iter().flat_map(|(_, curve)| curve.keys().copied()).collect();
    frames.sort_unstable();
    frames.dedup();
    figure.columns = vec!["frames".to_owned(), "memory_bytes".to_owned()];
    figure.columns.extend(curves.iter().map(|(name, _)| name.clone()));
    figure.columns.extend(story.sampled.iter().map(|(name, _)| format!("{name} error")));
    let rows = frames.into_iter().map(|frames| {
        let bytes = u64::from(frames) * u64::from(subject.trace.page_bytes);
        let mut row: Vec<Value> = vec![frames.into(), bytes.into()];
        let ratios = curves.iter().map(|(_, curve)| curve.get(&frames));
        row.extend(ratios.map(|ratio| or_null(ratio.map(|miss| number(of_miss(*miss))))));
        row.extend(story.sampled.iter().map(|(_, estimate)| {
            let place = estimate.frames.iter().position(|size| *size == frames);
            or_null(place.and_then(|place| estimate.error[place]).map(number))
        }));
        row
    });
    figure.rows = rows.collect();
    figure.chart = Some(Chart::Lines(Lines {
        x: Axis::linear("memory (frames)").of("frames"),
        y,
        series: curves.iter().map(|(name, _)| Line::named(name)).collect(),
        ..Lines::default()
    }));
    figure
}
