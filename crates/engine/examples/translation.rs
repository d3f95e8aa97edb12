//! What finding pages by their place saves beside a hash table, all else being equal:
//! `cargo run --release -p pagekeeper --example translation`.

use pagekeeper::library::{Buckets, Cache, Translation};
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

const PAGES: u64 = 4096;
const READS: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut digests = Vec::new();
    for (name, translation) in [
        ("by place", Translation::Mapped),
        ("by a hash table", Translation::Hash(Buckets::Sized)),
        ("by one of 63 chains", Translation::Hash(Buckets::Fixed(63))),
    ] {
        // Twice as much memory as is used.
        let cache = Cache::builder(2 * PAGES * 4096).translation(translation).workers(0).build()?;
        let memory = cache.scratch(PAGES * 4096)?;
        for page in 0..PAGES {
            memory.write_all_at(&page.to_le_bytes(), page * 4096)?;
        }
        let mut word = [0; 8];
        let begun = Instant::now();
        for read in 0..READS {
            // An odd factor visits all pages.
            let page = read * 0x9e37_79b1 % PAGES;
            memory.read_exact_at(black_box(&mut word), page * 4096)?;
            assert_eq!(u64::from_le_bytes(word), page);
        }
        let each_ns = begun.elapsed().as_nanos() as f64 / READS as f64;
        println!("{name}: {each_ns:.1} ns a read");
        digests.push(cache.stats().decisions_digest);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "the same decisions were taken");
    Ok(())
}
