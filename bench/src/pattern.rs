//! Contents of test files, and deterministic choices of pages.

use std::io::Write;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// A generator that any language can repeat: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator from a seed.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The finalizer of SplitMix64.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The first word of a page of a test file. Nothing that programs under test write changes it. Its
/// first byte is zero: vmcache keeps a flag there.
pub fn first_word(page: u64) -> u64 {
    mix(page ^ 0x7061_6765) & !0xff
}

/// Writes a test file of so many pages.
///
/// # Errors
/// As the writer's.
pub fn write_file(out: &mut impl Write, pages: u64) -> std::io::Result<()> {
    let mut page = [0u8; PAGE_BYTES];
    for number in 0..pages {
        let mut words = SplitMix::new(number << 20);
        page[..8].copy_from_slice(&first_word(number).to_le_bytes());
        for word in page[8..].as_chunks_mut::<8>().0 {
            *word = words.next_u64().to_le_bytes();
        }
        out.write_all(&page)?;
    }
    Ok(())
}

/// Pages chosen with Zipf's law over a fixed shuffle of the file: a page's rank says nothing about
/// where it lies.
#[derive(Clone, Debug)]
pub struct Zipf {
    cumulated: Vec<f64>,
    order: Vec<u32>,
}

impl Zipf {
    /// The law with exponent `theta` over `pages` pages.
    pub fn new(pages: u64, theta: f64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=pages)
            .map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            })
            .collect();
        Zipf { cumulated, order: shuffled(pages, 42) }
    }

    /// A page.
    pub fn page(&self, random: &mut SplitMix) -> u64 {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let at = random.unit() * total;
        let rank = self.cumulated.partition_point(|c| *c <= at).min(self.order.len() - 1);
        u64::from(self.order[rank])
    }
}

/// The numbers below `count` in a random order.
pub fn shuffled(count: u64, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut random = SplitMix::new(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_what_programs_check() {
        let mut file = Vec::new();
        write_file(&mut file, 3).unwrap();
        assert_eq!(file.len(), 3 * PAGE_BYTES);
        for page in 0..3 {
            let at = page * PAGE_BYTES;
            let word = u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
            assert_eq!(word, first_word(page as u64));
        }
    }

    #[test]
    fn zipf_is_skewed_and_covers_the_file() {
        let zipf = Zipf::new(1000, 0.9);
        let mut random = SplitMix::new(1);
        let mut counts = vec![0u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.page(&mut random) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hottest: u32 = counts[..100].iter().sum();
        assert!((50_000..80_000).contains(&hottest), "{hottest}");
        assert!(counts[900] > 0);
    }
}
