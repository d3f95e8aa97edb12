//! An array larger than the memory that it may use, as plain memory:
//! `cargo run --release -p pagekeeper --example working_memory`.
//!
//! The array is a region of a scratch segment. Its pages are brought in as they are touched, in the
//! SIGBUS handler of the touching thread, and go to a file without a name when room is needed.

use pagekeeper::library::{Cache, FaultPath, Protection};
use std::error::Error;

const NUMBERS: usize = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::builder(4 << 20).fault_path(FaultPath::Inline).build()?;
    let bytes = (NUMBERS * 8) as u64;
    let mut region = cache.scratch(bytes)?.map(0..bytes, Protection::ReadWrite)?;
    // SAFETY: the segment is this region's alone: nobody else has a handle of it.
    let memory = unsafe { region.as_mut_slice() };
    let (numbers, _) = memory.as_chunks_mut::<8>();
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = (i as u64 * i as u64).to_le_bytes();
    }
    let sum = numbers.iter().fold(0u64, |sum, n| sum.wrapping_add(u64::from_le_bytes(*n)));
    let expected = (0..NUMBERS as u64).fold(0u64, |sum, i| sum.wrapping_add(i * i));
    assert_eq!(sum, expected);
    let stats = cache.stats();
    println!(
        "32 MiB in 4: {} faults, {} pages written",
        stats.total.major_faults, stats.total.write_backs
    );
    Ok(())
}
