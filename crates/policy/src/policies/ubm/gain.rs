//! Marginal gains (section 3.3): what one more page, or one less, means to each partition, in
//! hits per reference.
use crate::Page;
use crate::flat::Flat;
use crate::list::{Links, List};

use super::settings::{Fit, GainSettings};

/// Belady's lifetime function for the other references: a hit ratio of 1 − c·n^−k in n pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lifetime {
    pub(super) c: f64,
    pub(super) k: f64,
    /// The part of all references that are other ones.
    pub(super) share: f64,
}

impl Lifetime {
    /// Fits the function to hit ratios at two sizes.
    fn fit(small: (u32, f64), large: (u32, f64), share: f64) -> Self {
        let misses = |ratio: f64| (1.0 - ratio).clamp(1e-6, 1.0);
        let (small_pages, large_pages) = (f64::from(small.0.max(1)), f64::from(large.0));
        let (missed, still) = (misses(small.1), misses(large.1).min(misses(small.1)));
        let k = if large_pages > small_pages {
            (missed / still).ln() / (large_pages / small_pages).ln()
        } else {
            0.0
        };
        Self { c: missed * small_pages.powf(k), k, share }
    }

    /// Expected hits per reference that the n-th page brings.
    pub(super) fn marginal_gain(&self, pages: u32) -> f64 {
        let missed = |n: f64| if n < 1.0 { 1.0 } else { (self.c * n.powf(-self.k)).min(1.0) };
        let n = f64::from(pages);
        (missed(n - 1.0) - missed(n)) * self.share
    }
}

/// The LRU stack of other references, pages that left included, cut at the sizes where hit ratios
/// are measured. Nobody's exact depth is known or needed.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    links: Links,
    /// 1 + the layer that a page is in; 0 for none.
    layer: Flat<u8>,
    layers: Vec<List>,
    /// How many pages each layer holds at most.
    most: Vec<u32>,
}

impl Stack {
    fn new(layers: usize) -> Self {
        Self {
            links: Links::new(),
            layer: Flat::new(),
            layers: vec![List::new(); layers],
            most: vec![1; layers],
        }
    }

    /// An other reference; gives the layer where the page was found.
    fn reference(&mut self, page: Page) -> Option<usize> {
        let found = self.forget(page);
        self.links.push_back(&mut self.layers[0], page);
        *self.layer.slot(page.index()) = 1;
        self.sink();
        found
    }

    fn forget(&mut self, page: Page) -> Option<usize> {
        let layer = usize::from(self.layer.get(page.index()).checked_sub(1)?);
        self.links.remove(&mut self.layers[layer], page);
        *self.layer.at(page.index()) = 0;
        Some(layer)
    }

    /// What a layer has too much of goes to the next, and out of the last.
    fn sink(&mut self) {
        for layer in 0..self.layers.len() {
            let next = layer + 1;
            while self.layers[layer].len() > self.most[layer] {
                let Some(page) = self.links.pop_front(&mut self.layers[layer]) else { break };
                match self.layers.get_mut(next) {
                    Some(list) => {
                        self.links.push_back(list, page);
                        *self.layer.at(page.index()) = next as u8 + 1;
                    }
                    None => *self.layer.at(page.index()) = 0,
                }
            }
        }
    }
}

/// Counts over about one window, halved when it is full.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    references: f64,
    other: f64,
    /// Other references found in each layer of the stack.
    found: [f64; LAYERS_MOST],
    /// Pages seen for the first time in a sequence, and how many of those were referenced again
    /// soon, after how long altogether.
    sequential: f64,
    returned: f64,
    returned_after_refs: f64,
}

impl Counts {
    fn halve(&mut self) {
        self.references /= 2.0;
        self.other /= 2.0;
        self.found.iter_mut().for_each(|count| *count /= 2.0);
        self.sequential /= 2.0;
        self.returned /= 2.0;
        self.returned_after_refs /= 2.0;
    }
}

/// The most layers that the stack is cut into.
const LAYERS_MOST: usize = 8;
/// References after which the lifetime function is fitted anew.
const FIT_EVERY_REFS: u32 = 32;
/// The shortest window, in references, that ratios are measured over.
const WINDOW_LEAST_REFS: f64 = 1024.0;

/// The allocation module's figures.
#[derive(Clone, Debug)]
pub(super) struct Gains {
    settings: GainSettings,
    stack: Stack,
    counts: Counts,
    window_refs: f64,
    /// Sizes at which hit ratios are known, and the function fitted between each and the next.
    sizes: Vec<u32>,
    lifetimes: Vec<Lifetime>,
    until_fit_refs: u32,
}

impl Gains {
    pub(super) fn new(settings: GainSettings, frames: u32) -> Self {
        let layers = match settings.fit {
            Fit::Two { .. } => 3,
            Fit::Local => LAYERS_MOST,
        };
        let mut gains = Self {
            settings,
            stack: Stack::new(layers),
            counts: Counts::default(),
            window_refs: 0.0,
            sizes: Vec::new(),
            lifetimes: Vec::new(),
            until_fit_refs: 0,
        };
        gains.resized(frames);
        gains
    }

    pub(super) fn resized(&mut self, frames: u32) {
        self.sizes.clear();
        match self.settings.fit {
            Fit::Two { small, large } => {
                let small = small.of(frames).max(1);
                self.sizes.extend([small, large.of(frames).max(small + 1)]);
            }
            Fit::Local => {
                self.sizes
                    .extend((0..LAYERS_MOST).rev().map(|halvings| (frames >> halvings).max(1)));
            }
        }
        let mut below = 0;
        for (layer, most) in self.stack.most.iter_mut().enumerate() {
            let size = self.sizes.get(layer).copied().unwrap_or(frames).max(below);
            *most = size - below;
            below = size;
        }
        self.stack.sink();
        self.lifetimes.resize(self.sizes.len() - 1, Lifetime::default());
        self.until_fit_refs = 0;
        self.window_refs = f64::from(frames) * f64::from(self.settings.window_frames);
    }

    /// Time goes on by a reference.
    pub(super) fn tick(&mut self) {
        self.counts.references += 1.0;
        if self.counts.references >= self.window_refs.max(WINDOW_LEAST_REFS) {
            self.counts.halve();
        }
        if self.until_fit_refs == 0 {
            self.until_fit_refs = FIT_EVERY_REFS;
            self.fit();
        }
        self.until_fit_refs -= 1;
    }

    fn fit(&mut self) {
        let Counts { references, other, found, .. } = self.counts;
        let share = other / references.max(1.0);
        let mut hits = found[0];
        for (place, sizes) in self.sizes.windows(2).enumerate() {
            let small = (sizes[0], hits / other.max(1.0));
            hits += found[place + 1];
            let large = (sizes[1], hits / other.max(1.0));
            self.lifetimes[place] = Lifetime::fit(small, large, share);
        }
    }

    /// An other reference.
    pub(super) fn other(&mut self, page: Page) {
        self.counts.other += 1.0;
        if let Some(layer) = self.stack.reference(page) {
            self.counts.found[layer] += 1.0;
        }
    }

    /// A page is no other page any more.
    pub(super) fn forget(&mut self, page: Page) {
        self.stack.forget(page);
    }

    /// A page was seen for the first time, in a sequence.
    pub(super) fn sequential(&mut self) {
        self.counts.sequential += 1.0;
    }

    /// A page that was last seen so was referenced again, soon.
    pub(super) fn returned(&mut self, gap_refs: u32) {
        self.counts.returned += 1.0;
        self.counts.returned_after_refs += f64::from(gap_refs);
    }

    /// The function that holds for this many other pages.
    pub(super) fn lifetime(&self, pages: u32) -> Lifetime {
        let place = self.sizes[1..].partition_point(|size| *size < pages);
        self.lifetimes[place.min(self.lifetimes.len() - 1)]
    }

    /// Expected hits per reference that the last of this many other pages brings.
    pub(super) fn other_gain(&self, pages: u32) -> f64 {
        self.lifetime(pages).marginal_gain(pages)
    }

    /// Expected hits per reference of a page that was seen once, in a sequence, if it stays until
    /// it comes again or `held_refs` passed: how likely that was lately, by how long it takes.
    pub(super) fn sequential_gain(&self, held_refs: f64) -> f64 {
        let Counts { sequential, returned, returned_after_refs, .. } = self.counts;
        if returned < 1.0 {
            return 0.0;
        }
        let chance = returned / sequential.max(returned);
        chance / (chance * returned_after_refs / returned + (1.0 - chance) * held_refs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Fraction;

    #[test]
    fn the_fit_goes_through_both_points() {
        let hit_ratio = |n: f64| 1.0 - 0.9 * n.powf(-0.4);
        let fitted = Lifetime::fit((50, hit_ratio(50.0)), (250, hit_ratio(250.0)), 0.5);
        assert!((fitted.c - 0.9).abs() < 1e-9 && (fitted.k - 0.4).abs() < 1e-9, "{fitted:?}");
        let gain = 0.5 * (hit_ratio(100.0) - hit_ratio(99.0));
        assert!((fitted.marginal_gain(100) - gain).abs() < 1e-12);
    }

    #[test]
    fn without_hits_there_is_nothing_to_gain() {
        for fitted in
            [Lifetime::fit((5, 0.0), (25, 0.0), 1.0), Lifetime::fit((5, 1.0), (25, 1.0), 1.0)]
        {
            for pages in [2, 10, 1000] {
                assert!(fitted.marginal_gain(pages).abs() < 1e-9, "{fitted:?}");
            }
        }
    }

    proptest! {
        /// The layers' counts against the depth in a list of pages, most recently used first.
        #[test]
        fn pages_are_found_in_the_layer_of_their_depth(
            pages in prop::collection::vec(0..40_u32, 0..300),
            local: bool,
        ) {
            let fit = if local {
                Fit::Local
            } else {
                Fit::Two { small: Fraction::new(1, 8), large: Fraction::new(1, 2) }
            };
            let mut gains = Gains::new(GainSettings { fit, window_frames: 1000 }, 16);
            let sizes: Vec<u32> = if local { vec![1, 1, 1, 1, 2, 4, 8, 16] } else { vec![2, 8, 16] };
            let mut stack: Vec<u32> = Vec::new();
            let mut found = vec![0.0; sizes.len()];
            for page in pages {
                let depth = stack.iter().position(|other| *other == page);
                stack.retain(|other| *other != page);
                if let Some(layer) =
                    depth.and_then(|depth| sizes.iter().position(|size| (depth as u32) < *size))
                {
                    found[layer] += 1.0;
                }
                stack.insert(0, page);
                stack.truncate(16);
                gains.other(Page(page));
            }
            prop_assert_eq!(&gains.counts.found[..sizes.len()], &found[..]);
        }
    }
}
