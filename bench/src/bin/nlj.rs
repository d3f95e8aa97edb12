//! Nested-loop join, a program of the HiPEC paper's evaluation (Table V): for each of the 64 tuples
//! of one relation, all of the other relation, which does not fit in memory. Tuples have 64 bytes.
//! Both files are mapped. A plain program that knows nothing of Pagekeeper.
//!
//! Names are the paper's: the *inner* relation is the small one, the *outer* the large one.

use clap::{Parser, Subcommand};
use memmap2::Mmap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[path = "../mapped.rs"]
#[allow(unreachable_pub)]
mod mapped;
#[path = "../pattern.rs"]
#[allow(dead_code, unreachable_pub)]
mod pattern;

use mapped::{map, write_words};
use pattern::SplitMix;

const TUPLE_BYTES: usize = 64;
/// Tuples of the outer relation that join with one of the inner, on average.
const MATCHES: u64 = 64;

/// Join two relations by nested loops
#[derive(Parser, Debug)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Build the relations
    Build {
        outer: PathBuf,
        inner: PathBuf,
        /// Size of the outer relation, in KiB
        #[arg(long, default_value_t = 60 << 10)]
        outer_kib: u64,
        /// Tuples of the inner relation
        #[arg(long, default_value_t = 64)]
        inner_tuples: u64,
    },
    /// Join them, and print a checksum and how many pairs there are
    Join {
        outer: PathBuf,
        inner: PathBuf,
        /// Tell the kernel that touches are random (MADV_RANDOM): no read-around
        #[arg(long)]
        advise_random: bool,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    match Cli::parse().what {
        What::Build { outer, inner, outer_kib, inner_tuples } => {
            let tuples = (outer_kib << 10) / TUPLE_BYTES as u64;
            build(&outer, tuples, (tuples / MATCHES).max(1), 1)?;
            build(&inner, inner_tuples, (tuples / MATCHES).max(1), 2)
        }
        What::Join { outer, inner, advise_random } => {
            let (outer, inner) = (map(&outer, advise_random)?, map(&inner, advise_random)?);
            let start = Instant::now();
            let (checksum, pairs) = join(&outer, &inner);
            println!(
                r#"{{"elapsed_ns": {}, "checksum": "{checksum:016x}", "pairs": {pairs}}}"#,
                start.elapsed().as_nanos()
            );
            Ok(())
        }
    }
}

/// A relation: a key below `keys`, and seven words of anything.
fn build(path: &Path, tuples: u64, keys: u64, seed: u64) -> Result<(), Box<dyn Error>> {
    let mut random = SplitMix::new(seed << 32);
    let words =
        (0..tuples * TUPLE_BYTES as u64 / 8).map(|word| match word % (TUPLE_BYTES as u64 / 8) {
            0 => random.below(keys),
            _ => random.next_u64(),
        });
    write_words(path, words)
}

fn tuples(relation: &Mmap) -> impl Iterator<Item = &[[u8; 8]]> {
    relation.as_chunks::<TUPLE_BYTES>().0.iter().map(|tuple| tuple.as_chunks::<8>().0)
}

/// A checksum of all pairs with equal keys, and how many there are.
fn join(outer: &Mmap, inner: &Mmap) -> (u64, u64) {
    let (mut sum, mut pairs) = (0u64, 0);
    for left in tuples(inner) {
        for right in tuples(outer).filter(|right| right[0] == left[0]) {
            pairs += 1;
            for word in left.iter().chain(right) {
                sum = sum.rotate_left(1) ^ u64::from_le_bytes(*word);
            }
        }
    }
    (sum, pairs)
}
