//! A file behind a cache of one's own: `cargo run --release -p pagekeeper --example cached_file`.

use pagekeeper::library::{Cache, Options, PolicySpec};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join("pagekeeper-example.dat");
    // A scan that is repeated over 16 MiB, in 8 MiB: LRU would find nothing of it in memory.
    let cache = Cache::builder(8 << 20).policy(PolicySpec::parse("mru")?).build()?;
    let file = cache.open(&path, Options::new().create(true))?;
    for page in 0..4096u64 {
        file.write_all_at(&page.to_le_bytes(), page * 4096)?;
    }
    file.flush()?;
    let mut word = [0; 8];
    for _pass in 0..5 {
        for page in 0..4096u64 {
            file.read_exact_at(&mut word, page * 4096)?;
            assert_eq!(u64::from_le_bytes(word), page);
        }
    }
    let total = cache.stats().total;
    println!("{} of 20480 reads had to fetch their page", total.major_faults);
    drop(file);
    std::fs::remove_file(path)?;
    Ok(())
}
