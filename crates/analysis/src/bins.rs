//! How values are put in bins: exact where they are small, in proportion where they are large.

/// Bins of reuse distances and gaps: one for each value below 16, then eight for each power of two,
/// so that a bin is never wider than an eighth of its first value.
#[derive(Clone, Copy, Debug)]
pub struct GapBins;

const EXACT: u64 = 16;
const PER_OCTAVE_LOG2: u32 = 3;

impl GapBins {
    /// The bin that a value is in.
    pub const fn bin_of(value: u64) -> usize {
        if value < EXACT {
            return value as usize;
        }
        let octave = value.ilog2() - PER_OCTAVE_LOG2;
        let part = (value >> octave) - (1 << PER_OCTAVE_LOG2);
        let below = EXACT + (((octave - 1) as u64) << PER_OCTAVE_LOG2);
        (below + part) as usize
    }

    /// The lowest value in a bin.
    pub const fn first_of(bin: usize) -> u64 {
        let bin = bin as u64;
        if bin < EXACT {
            return bin;
        }
        let above = bin - EXACT;
        let octave = (above >> PER_OCTAVE_LOG2) + 1;
        let part = above & ((1 << PER_OCTAVE_LOG2) - 1);
        (part + (1 << PER_OCTAVE_LOG2)) << octave
    }
}

/// About `count` memory sizes from 1 to `pages` frames, in ascending order: equal steps, and
/// halvings below the first step. `pages` is the last.
pub fn sizes_up_to(pages: u32, count: u32) -> Vec<u32> {
    let mut sizes: Vec<u32> = (1..=u64::from(count))
        .map(|step| (u64::from(pages) * step / u64::from(count.max(1))) as u32)
        .collect();
    let mut small = pages / count.max(1);
    while small > 1 && sizes.len() < 2 * count as usize {
        small /= 2;
        sizes.push(small);
    }
    sizes.retain(|size| *size > 0);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_follow_each_other_without_holes() {
        for value in 1..100_000_u64 {
            let bin = GapBins::bin_of(value);
            assert!(GapBins::first_of(bin) <= value && value < GapBins::first_of(bin + 1));
        }
        for bin in 0..400 {
            assert_eq!(GapBins::bin_of(GapBins::first_of(bin)), bin);
        }
        assert!(GapBins::bin_of(u64::MAX) < 512);
    }

    #[test]
    fn sizes_ascend_to_all_pages() {
        assert_eq!(sizes_up_to(4, 4), [1, 2, 3, 4]);
        assert_eq!(sizes_up_to(1000, 4), [1, 3, 7, 15, 31, 62, 125, 250, 500, 750, 1000][3..]);
        assert_eq!(sizes_up_to(1, 20), [1]);
        assert_eq!(sizes_up_to(0, 20), [0; 0]);
        assert_eq!(sizes_up_to(u32::MAX, 3).last(), Some(&u32::MAX));
    }
}
