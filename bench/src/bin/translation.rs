//! A program that reads a file in one of several ways, or not at all, for callgrind to count its
//! instructions: once from end to end, then so many times anywhere. Prints a checksum of what it
//! saw. Each way has a loop of its own, so that none pays for another's.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagekeeper::library::{Buckets, Cache, Options, Translation};
use pagekeeper_bench::pattern::SplitMix;
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const BLOCK_BYTES: usize = 4096;

/// Reads anywhere in a file
#[derive(Parser, Debug)]
struct Cli {
    way: Way,
    file: PathBuf,
    /// For a cache, in bytes
    memory: u64,
    /// Bytes a read
    size: u64,
    reads: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    /// The loop alone
    None,
    /// The kernel's page cache
    Pread,
    /// `read_at` of the library's control, which finds pages by a hash table
    Hash,
    /// The same, whose table has 63 chains
    Hash63,
    /// `read_at` of the library
    Mapped,
    /// The same by a table
    Table,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.way {
        Way::None => run(&cli, |_, _| Ok(())),
        Way::Pread => {
            let file = File::open(&cli.file)?;
            run(&cli, |buf, offset| file.read_exact_at(buf, offset))
        }
        Way::Hash => run_in(&cli, Translation::Hash(Buckets::Sized)),
        Way::Hash63 => run_in(&cli, Translation::Hash(Buckets::Fixed(63))),
        Way::Mapped => run_in(&cli, Translation::Mapped),
        Way::Table => run_in(&cli, Translation::Table),
    }
}

fn run_in(cli: &Cli, translation: Translation) -> Result<()> {
    // One page a miss, and nothing in the background.
    let cache = Cache::builder(cli.memory)
        .translation(translation)
        .workers(0)
        .write_back_period(None)
        .read_ahead_pages_max(1)
        .build()?;
    let segment = cache.open(&cli.file, Options::new())?;
    run(cli, |buf, offset| segment.read_exact_at(buf, offset))
}

fn run(cli: &Cli, read: impl Fn(&mut [u8], u64) -> io::Result<()>) -> Result<()> {
    let len = std::fs::metadata(&cli.file)?.len();
    let mut block = vec![0; BLOCK_BYTES];
    for at in (0..len).step_by(BLOCK_BYTES) {
        read(&mut block, at)?;
    }
    let mut random = SplitMix::new(7);
    let mut buf = vec![0; cli.size as usize];
    let mut sum = 0u64;
    for _ in 0..cli.reads {
        let offset = random.below(len / cli.size) * cli.size;
        read(black_box(&mut buf), black_box(offset))?;
        sum = sum.wrapping_mul(31).wrapping_add(u64::from(buf[0]));
    }
    println!("{sum:016x}");
    Ok(())
}
