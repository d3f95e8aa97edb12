//! A program that reads a file in one of three ways, for callgrind to count its instructions: once
//! from end to end, then so many times anywhere. Prints a checksum of what it saw.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagekeeper::library::{Cache, Options, Segment};
use pagekeeper_bench::hashed::{BLOCK_BYTES, Hashed, Variant};
use pagekeeper_bench::pattern::SplitMix;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

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
    /// The kernel's page cache
    Pread,
    /// Buffers behind a hash table
    Hash,
    /// `read_at` of a segment of the library
    Mapped,
}

enum Source {
    Pread(File),
    Hash(Box<Hashed>),
    Mapped(Segment),
}

impl Source {
    fn open(cli: &Cli) -> Result<Source> {
        Ok(match cli.way {
            Way::Pread => Source::Pread(File::open(&cli.file)?),
            Way::Hash => {
                let direct =
                    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&cli.file)?;
                let buffers = u32::try_from(cli.memory / BLOCK_BYTES as u64)?;
                Source::Hash(Box::new(Hashed::new(direct, buffers, Variant::CONTROL)))
            }
            Way::Mapped => {
                // One block a miss, and nothing in the background, as the control has it.
                let cache = Cache::builder(cli.memory)
                    .workers(0)
                    .write_back_period(None)
                    .read_ahead_pages_max(1)
                    .build()?;
                Source::Mapped(cache.open(&cli.file, Options::new())?)
            }
        })
    }

    #[inline(never)]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Source::Pread(file) => file.read_exact_at(buf, offset)?,
            Source::Hash(cache) => cache.read_exact_at(buf, offset)?,
            Source::Mapped(segment) => segment.read_exact_at(buf, offset)?,
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let len = std::fs::metadata(&cli.file)?.len();
    let source = Source::open(&cli)?;
    let mut block = vec![0; BLOCK_BYTES];
    for at in (0..len).step_by(BLOCK_BYTES) {
        source.read(&mut block, at)?;
    }
    let mut random = SplitMix::new(7);
    let mut buf = vec![0; cli.size as usize];
    let mut sum = 0u64;
    for _ in 0..cli.reads {
        source.read(&mut buf, random.below(len / cli.size) * cli.size)?;
        sum = sum.wrapping_mul(31).wrapping_add(u64::from(buf[0]));
    }
    println!("{sum:016x}");
    Ok(())
}
