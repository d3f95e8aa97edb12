//! Marginal gain: what another frame is worth to each program, and the split that makes the
//! programs' hits together the most.
//!
//! Each program's hits by size come from its LRU stack distances, recent periods counting more.
//! Where that curve is not concave (a loop gains nothing until it fits) a program is offered whole
//! steps: frames are given along the concave hulls of the curves, steepest piece first (H. S. Stone,
//! J. Turek, J. L. Wolf: Optimal Partitioning of Cache Memory, IEEE Transactions on Computers
//! 41(9), 1992; M. K. Qureshi, Y. N. Patt: Utility-Based Cache Partitioning, MICRO 2006).
use crate::StackDistances;
use pagekeeper_policy::Page;

/// A program's hits by size, over the references of lately.
#[derive(Clone, Debug)]
pub(crate) struct HitCurve {
    distances: StackDistances,
    /// Per distance, as far as one was seen: references, each period's worth half of the next one's.
    hits: Vec<f64>,
    frames: u32,
}

impl HitCurve {
    /// Of sizes up to so many frames.
    pub(crate) fn new(frames: u32) -> Self {
        Self { distances: StackDistances::new(), hits: Vec::new(), frames }
    }

    pub(crate) fn reference(&mut self, page: Page) {
        if let Some(distance) = self.distances.reference(page).filter(|it| *it < self.frames) {
            let place = distance as usize;
            self.hits.resize(self.hits.len().max(place + 1), 0.0);
            self.hits[place] += 1.0;
        }
    }

    /// A page is freed.
    pub(crate) fn freed(&mut self, page: Page) {
        self.distances.remove(page);
    }

    /// A period has ended.
    pub(crate) fn age(&mut self) {
        self.hits.iter_mut().for_each(|hits| *hits /= 2.0);
    }

    /// The concave hull of the curve between two sizes: pieces of (hits per frame, frames), the
    /// steepest first. Where no hit was seen, there is no piece.
    fn hull(&self, from: u32, to: u32) -> Vec<(f64, u32)> {
        let mut pieces: Vec<(f64, u32)> = Vec::new();
        for size in from..to.min(self.hits.len() as u32) {
            let (mut slope, mut width) = (self.hits[size as usize], 1);
            // A piece steeper than the one before it is taken together with that.
            while let Some(&(before, frames)) = pieces.last()
                && slope >= before
            {
                pieces.pop();
                let all = frames + width;
                slope = (before * f64::from(frames) + slope * f64::from(width)) / f64::from(all);
                width = all;
            }
            pieces.push((slope, width));
        }
        pieces
    }
}

/// Splits the frames: everyone's least first, then by gain. What gains nobody anything is left
/// over.
pub(crate) fn split(curves: &[&HitCurve], bounds: &[(u32, u32)], frames: u32) -> Vec<u32> {
    let mut shares: Vec<u32> = bounds.iter().map(|(least, _)| *least).collect();
    let mut left = frames.saturating_sub(shares.iter().sum());
    let mut pieces: Vec<(f64, u32, usize)> = Vec::new();
    for (program, (curve, (least, most))) in curves.iter().zip(bounds).enumerate() {
        pieces.extend(curve.hull(*least, *most).iter().map(|(gain, n)| (*gain, *n, program)));
    }
    // Stable: pieces of one program stay in their order, which is by falling gain already.
    pieces.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (gain, width, program) in pieces {
        if gain <= 0.0 || left == 0 {
            break;
        }
        let given = width.min(left);
        shares[program] += given;
        left -= given;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(frames: u32, pages: impl IntoIterator<Item = u32>) -> HitCurve {
        let mut curve = HitCurve::new(frames);
        pages.into_iter().for_each(|page| curve.reference(Page(page)));
        curve
    }

    #[test]
    fn a_loop_gets_all_it_needs_or_nothing() {
        let looping = curve(100, (0..1000).map(|i| i % 60));
        let skewed = curve(100, (0..1000).map(|i| if i % 2 == 0 { 0 } else { i % 10 }));
        assert_eq!(looping.hull(0, 100)[0].1, 60);
        let open = (0, 100);
        let shares = split(&[&looping, &skewed], &[open, open], 100);
        assert_eq!(shares[0], 60);
        assert!((5..=10).contains(&shares[1]), "{shares:?}");
        // The few pages are worth more each than the loop's.
        assert_eq!(split(&[&looping, &skewed], &[open, open], 4)[0], 0);
        // Bounds are kept; more than its least, but not all it needs, is worth nothing to a loop.
        assert_eq!(split(&[&looping, &skewed], &[(5, 20), (3, 9)], 100), [5, 6]);
    }

    /// Memory that is freed and asked for again needs no frames but those it had before.
    #[test]
    fn what_is_freed_makes_room() {
        let mut curve = HitCurve::new(100);
        for round in 0..30 {
            if round % 3 == 0 {
                curve.reference(Page(u32::MAX >> 8));
            }
            let pages = || (0..20).map(|i| Page(20 * round + i));
            pages().for_each(|page| curve.reference(page));
            pages().for_each(|page| curve.freed(page));
        }
        assert_eq!(curve.hits.len(), 21);
    }

    /// `pool --frames 4294967295` asked for 32 GiB, for ten pages.
    #[test]
    fn memory_is_taken_as_distances_are_seen() {
        let looping = curve(u32::MAX, (0..1000).map(|i| i % 60));
        assert_eq!(looping.hits.len(), 60);
        let open = (1, u32::MAX);
        assert_eq!(split(&[&looping, &looping], &[open, open], u32::MAX), [60, 60]);
        assert_eq!(curve(50, (0..1000).map(|i| i % 60)).hits.len(), 0);
    }

    #[test]
    fn the_split_is_the_best_there_is() {
        let mut seed = 7u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for _ in 0..50 {
            let mut concave = || {
                let mut curve = HitCurve::new(12);
                let mut gain = 100.0;
                for _ in 0..12 {
                    curve.hits.push(gain);
                    gain -= f64::from(random(12)).min(gain);
                }
                curve
            };
            let (a, b) = (concave(), concave());
            let total = |n: u32, m: u32| {
                a.hits[..n as usize].iter().sum::<f64>() + b.hits[..m as usize].iter().sum::<f64>()
            };
            let best = (0..=12).map(|n| total(n, 12 - n)).fold(0.0, f64::max);
            let shares = split(&[&a, &b], &[(0, 12), (0, 12)], 12);
            assert!((total(shares[0], shares[1]) - best).abs() < 1e-9, "{shares:?}");
        }
    }
}
