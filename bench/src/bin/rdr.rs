//! Random data retrieval, a program of the HiPEC paper's evaluation (Tables IV and VI): tuples are
//! found through an index, a balanced binary tree of records of 64 bytes, and read from a data
//! file. Both files are mapped. A plain program that knows nothing of Pagekeeper.
//!
//! The tree lies in its file level by level, as the paper's priorities need it: record n, from 1,
//! has its children at 2n and 2n + 1. A record holds a key, the numbers of its children (0: none)
//! and of the four tuples with that key, which lie anywhere in the data file.

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
use pattern::{SplitMix, mix, shuffled};

const RECORD_BYTES: usize = 64;
const TUPLES_A_RECORD: u64 = 4;

/// Retrieve random tuples through an index
#[derive(Parser, Debug)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Build the index, and the data it leads to
    Build {
        index: PathBuf,
        data: PathBuf,
        /// Index records of 64 bytes; there are four tuples of 64 bytes for each
        #[arg(long, default_value_t = 1 << 18, value_parser = clap::value_parser!(u64).range(1..1 << 30))]
        records: u64,
    },
    /// Retrieve tuples, and print a checksum of them
    Retrieve {
        index: PathBuf,
        data: PathBuf,
        /// How many
        tuples: u64,
        /// Which ones
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Tell the kernel that touches are random (MADV_RANDOM): no read-around
        #[arg(long)]
        advise_random: bool,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    match Cli::parse().what {
        What::Build { index, data, records } => build(&index, &data, records),
        What::Retrieve { index, data, tuples, seed, advise_random } => {
            let (index, data) = (map(&index, advise_random)?, map(&data, advise_random)?);
            let start = Instant::now();
            let checksum = retrieve(&index, &data, tuples, seed)?;
            println!(
                r#"{{"elapsed_ns": {}, "checksum": "{checksum:016x}"}}"#,
                start.elapsed().as_nanos()
            );
            Ok(())
        }
    }
}

/// The key of the record with this rank in key order.
fn key_of(rank: u64) -> u64 {
    2 * rank + 1
}

/// The rank in key order of every record, the root's at 1.
fn ranks(records: u64) -> Vec<u32> {
    let mut ranks = vec![0; records as usize + 1];
    let (mut rank, mut at, mut above) = (0, 1, Vec::new());
    loop {
        while at <= records {
            above.push(at);
            at *= 2;
        }
        let Some(record) = above.pop() else { return ranks };
        ranks[record as usize] = rank;
        rank += 1;
        at = 2 * record + 1;
    }
}

fn build(index: &Path, data: &Path, records: u64) -> Result<(), Box<dyn Error>> {
    let tuples = shuffled(records * TUPLES_A_RECORD, 9);
    let child = |n: u64| if n <= records { n } else { 0 };
    let mut key_of_tuple = vec![0u64; tuples.len()];
    let mut words = Vec::with_capacity(records as usize * RECORD_BYTES / 8);
    for (record, rank) in ranks(records).into_iter().enumerate().skip(1) {
        let (record, key) = (record as u64, key_of(u64::from(rank)));
        let first = rank as usize * TUPLES_A_RECORD as usize;
        let own = &tuples[first..first + TUPLES_A_RECORD as usize];
        words.extend([key, child(2 * record), child(2 * record + 1)]);
        words.extend(own.iter().map(|t| u64::from(*t)));
        words.push(0);
        for tuple in own {
            key_of_tuple[*tuple as usize] = key;
        }
    }
    write_words(index, words.into_iter())?;
    let tuples = key_of_tuple.into_iter().enumerate().flat_map(|(tuple, key)| {
        let others = 1..RECORD_BYTES as u64 / 8;
        std::iter::once(key).chain(others.map(move |word| mix((tuple as u64) << 3 | word)))
    });
    write_words(data, tuples)
}

/// A word of a record or tuple, numbered from 0.
fn word(map: &Mmap, number: u64, word: usize) -> u64 {
    let at = number as usize * RECORD_BYTES + word * 8;
    u64::from_le_bytes(map[at..at + 8].try_into().expect("eight bytes"))
}

fn retrieve(index: &Mmap, data: &Mmap, tuples: u64, seed: u64) -> Result<u64, Box<dyn Error>> {
    let records = (index.len() / RECORD_BYTES) as u64;
    let (mut random, mut sum) = (SplitMix::new(seed), 0u64);
    for _ in 0..tuples {
        let key = key_of(random.below(records));
        let which = 3 + random.below(TUPLES_A_RECORD) as usize;
        let mut record = 1;
        let tuple = loop {
            if record == 0 {
                return Err(format!("the index does not have key {key}").into());
            }
            let found = word(index, record - 1, 0);
            if found == key {
                break word(index, record - 1, which);
            }
            record = word(index, record - 1, if key < found { 1 } else { 2 });
        };
        if word(data, tuple, 0) != key {
            return Err(format!("tuple {tuple} does not have key {key}").into());
        }
        for at in 1..RECORD_BYTES / 8 {
            let word = word(data, tuple, at);
            if word != mix(tuple << 3 | at as u64) {
                return Err(format!("tuple {tuple} holds {word:x}: not what was written").into());
            }
            sum = sum.rotate_left(1) ^ word;
        }
    }
    Ok(sum)
}
