//! How often pages were referenced lately, estimated in a few bytes per frame.
//!
//! A count-min sketch of four-bit counters with minimal increment, halved every so many
//! references. G. Einziger, R. Friedman, B. Manes: TinyLFU, ACM Transactions on Storage 13(4),
//! 2017, sections 3.1 to 3.3. All counters of a page are in one block, so that a reference touches
//! one line of the processor's cache (F. Putze, P. Sanders, J. Singler: Cache-, Hash- and
//! Space-Efficient Bloom Filters, 2007, section 3).
use crate::Page;

const ROWS: u32 = 4;
/// Words in a block: 64 bytes.
const WORDS: usize = 8;
const COUNTER_BITS: u32 = 4;
const COUNTER_MOST: u64 = (1 << COUNTER_BITS) - 1;
/// Counters that a row has in a block, as a power of two: two words of sixteen.
const ROW_BITS: u32 = 5;
/// 32 bytes, and so 16 counters for each row, per frame: a loop over many times the frames then
/// still reads as equally frequent pages, and does not displace them.
const FRAMES_PER_BLOCK: u32 = 2;
/// With fewer, pages collide in all rows.
const BLOCKS_MIN: u32 = 16;
/// Blocks that are made at once, 32 MiB: for the frames of 4 GiB. More come as pages do, since who
/// has memory for a terabyte does not fill it with a few files.
const BLOCKS_AT_ONCE_MAX: u32 = 1 << 19;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([u64; WORDS]);

/// Estimated frequencies, at most 15 each.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    /// As many as pages needed so far.
    blocks: Vec<Block>,
    /// As many as all frames need.
    blocks_most: u32,
    seed: u64,
    sample_refs: u64,
    counted_refs: u64,
}

impl Sketch {
    /// All zero. All is halved each time `sample_refs` references were counted.
    pub(crate) fn new(frames: u32, sample_refs: u64, seed: u64) -> Self {
        let blocks_most = blocks_for(frames);
        Self {
            blocks: vec![Block::default(); blocks_most.min(BLOCKS_AT_ONCE_MAX) as usize],
            blocks_most,
            seed: mix(seed),
            sample_refs,
            counted_refs: 0,
        }
    }

    /// Whether this is as large as a new one for so many frames, or up to four times that.
    pub(crate) fn fits(&self, frames: u32) -> bool {
        let wanted = blocks_for(frames);
        (wanted..=wanted.saturating_mul(4)).contains(&self.blocks_most)
    }

    /// So many pages are resident: makes room for their frequencies. A page finds what it had, and
    /// until the next halvings what others had that were in its block.
    #[inline]
    pub(crate) fn hold(&mut self, pages: u32) {
        if self.blocks.len() < blocks_for(pages).min(self.blocks_most) as usize {
            self.blocks.extend_from_within(..);
        }
    }

    /// Changes after how many references all is halved.
    pub(crate) const fn set_sample(&mut self, sample_refs: u64) {
        self.sample_refs = sample_refs;
    }

    /// The page was referenced.
    #[inline]
    pub(crate) fn add(&mut self, page: Page) {
        let (block, places) = self.places(page);
        let Block(words) = &mut self.blocks[block];
        let counters = places.map(|(word, shift)| words[word] >> shift & COUNTER_MOST);
        let least = counters.into_iter().fold(COUNTER_MOST, u64::min);
        if least < COUNTER_MOST {
            for ((word, shift), counter) in places.into_iter().zip(counters) {
                words[word] += u64::from(counter == least) << shift;
            }
        }
        self.counted_refs += 1;
        if self.counted_refs >= self.sample_refs {
            self.halve();
        }
    }

    /// How often the page was referenced lately: never too low, rarely too high.
    #[inline]
    pub(crate) fn estimate(&self, page: Page) -> u64 {
        let (block, places) = self.places(page);
        let Block(words) = &self.blocks[block];
        places
            .into_iter()
            .map(|(word, shift)| words[word] >> shift & COUNTER_MOST)
            .fold(COUNTER_MOST, u64::min)
    }

    /// The page's block, and the word and shift of its counter in each row.
    #[inline]
    fn places(&self, page: Page) -> (usize, [(usize, u32); ROWS as usize]) {
        let hash = mix(u64::from(page.0) ^ self.seed);
        let block = (hash >> 32) as usize & (self.blocks.len() - 1);
        let place = |row: u32| {
            let counter = (hash >> (row * ROW_BITS)) as usize & ((1 << ROW_BITS) - 1);
            (row as usize * 2 + counter / 16, (counter % 16) as u32 * COUNTER_BITS)
        };
        (block, [place(0), place(1), place(2), place(3)])
    }

    #[cold]
    fn halve(&mut self) {
        for Block(words) in &mut self.blocks {
            for word in words {
                *word = *word >> 1 & (u64::MAX / COUNTER_MOST * (COUNTER_MOST >> 1));
            }
        }
        self.counted_refs /= 2;
    }
}

/// Blocks that so many frames need, a power of two.
const fn blocks_for(frames: u32) -> u32 {
    let blocks = frames.div_ceil(FRAMES_PER_BLOCK);
    if blocks < BLOCKS_MIN { BLOCKS_MIN } else { blocks.next_power_of_two() }
}

/// The finalizer of SplitMix64: every bit of the answer depends on every bit given.
#[inline]
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Between halvings an estimate is never below the count.
        #[test]
        fn estimates_are_never_too_low(
            pages in prop::collection::vec(0..2000_u32, 0..3000), seed: u64,
        ) {
            let mut sketch = Sketch::new(100, u64::MAX, seed);
            let mut counts = vec![0_u64; 2000];
            for page in pages {
                sketch.add(Page(page));
                counts[page as usize] += 1;
            }
            for (page, count) in counts.into_iter().enumerate() {
                prop_assert!(sketch.estimate(Page(page as u32)) >= count.min(COUNTER_MOST));
            }
        }
    }

    /// Of a thousand pages in a sketch for as many frames, few are taken for more than they are.
    #[test]
    fn estimates_are_rarely_too_high() {
        let mut sketch = Sketch::new(1000, u64::MAX, 1);
        for page in 0..1000 {
            (0..=page % 7).for_each(|_| sketch.add(Page(page)));
        }
        let wrong =
            (0..1000).filter(|page| sketch.estimate(Page(*page)) != u64::from(page % 7 + 1));
        assert!(wrong.clone().count() < 30, "{}", wrong.count());
    }

    /// `simulate --policy wtinylfu --frames 4294967295` asked for 128 GiB, for ten pages.
    #[test]
    fn memory_is_taken_as_pages_come() {
        let mut sketch = Sketch::new(u32::MAX, u64::MAX, 1);
        assert_eq!(sketch.blocks.len(), BLOCKS_AT_ONCE_MAX as usize);
        assert!(sketch.fits(u32::MAX) && !sketch.fits(1 << 20));
        let at_once = BLOCKS_AT_ONCE_MAX * FRAMES_PER_BLOCK;
        (0..5).for_each(|page| (0..=page).for_each(|_| sketch.add(Page(page))));
        sketch.hold(at_once);
        assert_eq!(sketch.blocks.len(), BLOCKS_AT_ONCE_MAX as usize);
        sketch.hold(at_once + 1);
        assert_eq!(sketch.blocks.len(), 2 * BLOCKS_AT_ONCE_MAX as usize);
        (0..5).for_each(|page| assert_eq!(sketch.estimate(Page(page)), u64::from(page) + 1));
        // Frames that are few have all at once.
        let mut few = Sketch::new(100, u64::MAX, 1);
        few.hold(1000);
        assert_eq!(few.blocks.len(), 64);
    }

    #[test]
    fn all_is_halved_after_the_sample() {
        let mut sketch = Sketch::new(10, 20, 3);
        (0..12).for_each(|_| sketch.add(Page(1)));
        (0..7).for_each(|_| sketch.add(Page(2)));
        assert_eq!((sketch.estimate(Page(1)), sketch.estimate(Page(2))), (12, 7));
        sketch.add(Page(2));
        assert_eq!((sketch.estimate(Page(1)), sketch.estimate(Page(2))), (6, 4));
        // The count is halved too: ten more, and all is halved again.
        (0..10).for_each(|_| sketch.add(Page(3)));
        assert_eq!((sketch.estimate(Page(1)), sketch.estimate(Page(3))), (3, 5));
    }
}
