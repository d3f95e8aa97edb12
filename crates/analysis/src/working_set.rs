//! Denning's working set.
use pagekeeper_sim::References;
use serde::Serialize;

use crate::freed::Freed;

/// The working set *W(t, τ)*, the pages that the last τ references up to *t* touched (P. J.
/// Denning: The Working Set Model for Program Behavior, CACM 11(5), 1968), for chosen windows τ.
/// Pages that were freed since are in none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkingSet {
    /// Windows, in references.
    pub windows_refs: Vec<u64>,
    /// For each window: pages in the working set, averaged over time.
    pub mean_pages: Vec<f64>,
    /// For each window: share of references to pages that are not in the working set that was there
    /// before them; the miss ratio of a memory that holds just the working set.
    pub miss_ratio: Vec<f64>,
}

impl WorkingSet {
    /// The working sets for these windows (put in ascending order), averaged from `warm_refs` on.
    /// Exact: a page stays in for min(τ, gap to its next reference) references after each reference
    /// (Denning and Slutz: Generalized Working Sets, CACM 21(9), 1978).
    pub fn of(references: &References, warm_refs: usize, mut windows_refs: Vec<u64>) -> Self {
        windows_refs.sort_unstable();
        windows_refs.dedup();
        let length = references.len();
        let mut stays = Stays::new(&windows_refs);
        let mut before_warm = Stays::new(&windows_refs);
        let mut gaps = Stays::new(&windows_refs);
        let mut next = vec![None; references.pages() as usize];
        let gone = gone_at(references);
        let mut counted_hits = 0_u64;
        for (position, (page, _)) in references.iter().enumerate().rev() {
            let following = next[page.index()].replace(position);
            let stay = (following.unwrap_or(gone[page.index()]) - position) as u64;
            stays.add(stay);
            if position < warm_refs {
                // What of the stay lies before the time that counts.
                before_warm.add(stay.min((warm_refs - position) as u64));
            }
            if following >= Some(warm_refs) {
                gaps.add(stay);
                counted_hits += 1;
            }
        }
        let counted = length.saturating_sub(warm_refs) as f64;
        let (stays, before_warm) = (stays.capped_sums(), before_warm.capped_sums());
        let mean_pages =
            stays.iter().zip(&before_warm).map(|(all, before)| (all - before) as f64 / counted);
        let mean_pages = mean_pages.map(finite).collect();
        let misses = gaps.above().into_iter().map(|longer| {
            let hits = counted_hits - longer;
            finite(1.0 - hits as f64 / counted)
        });
        let miss_ratio = misses.collect();
        Self { windows_refs, mean_pages, miss_ratio }
    }
}

/// Per page: before which reference it is freed, or the length of the string.
fn gone_at(references: &References) -> Vec<usize> {
    let mut gone = vec![references.len(); references.pages() as usize];
    for change in references.heap_changes() {
        change.numbers.iter().for_each(|number| gone[*number as usize] = change.position);
    }
    gone
}

/// Nothing counted is no division by zero.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Lengths, by the windows that they fit in.
struct Stays<'a> {
    windows: &'a [u64],
    /// Per window, and one for what is longer than all: how many, and their sum.
    bins: Vec<(u64, u64)>,
}

impl<'a> Stays<'a> {
    fn new(windows: &'a [u64]) -> Self {
        Self { windows, bins: vec![(0, 0); windows.len() + 1] }
    }

    fn add(&mut self, length: u64) {
        let bin = self.windows.partition_point(|window| *window < length);
        let (count, sum) = &mut self.bins[bin];
        *count += 1;
        *sum += length;
    }

    /// Per window τ: Σ min(length, τ).
    fn capped_sums(&self) -> Vec<u64> {
        let above = self.above();
        let mut sum = 0;
        let windows = self.windows.iter().zip(&self.bins).zip(above);
        windows
            .map(|((window, (_, fitting)), above)| {
                sum += fitting;
                sum + above * window
            })
            .collect()
    }

    /// Per window: how many lengths are above it.
    fn above(&self) -> Vec<u64> {
        let mut above = Vec::with_capacity(self.windows.len());
        let mut total = 0;
        for (count, _) in self.bins[1..].iter().rev() {
            total += count;
            above.push(total);
        }
        above.reverse();
        above
    }
}

/// The size in pages of the working set for one window, after each of `samples` equal parts of the
/// string. Pairs of references passed and pages.
pub fn working_set_over_time(
    references: &References,
    window_refs: u64,
    samples: usize,
) -> Vec<(u64, u64)> {
    let pages: Vec<_> = references.iter().map(|(page, _)| page.index()).collect();
    let mut within = vec![0_u32; references.pages() as usize];
    let (mut size, mut taken) = (0_u64, Vec::with_capacity(samples));
    let window = usize::try_from(window_refs.max(1)).unwrap_or(usize::MAX);
    let mut freed = Freed::of(references);
    for (position, page) in pages.iter().enumerate() {
        for gone in freed.before(position) {
            size -= u64::from(std::mem::take(&mut within[gone.index()]) > 0);
        }
        within[*page] += 1;
        size += u64::from(within[*page] == 1);
        if position >= window {
            let leaving = &mut within[pages[position - window]];
            // What was freed left before.
            if *leaving > 0 {
                *leaving -= 1;
                size -= u64::from(*leaving == 0);
            }
        }
        let passed = position + 1;
        let part = |passed: usize| passed as u128 * samples as u128 / pages.len() as u128;
        if part(passed) > part(position) {
            taken.push((passed as u64, size));
        }
    }
    taken
}
