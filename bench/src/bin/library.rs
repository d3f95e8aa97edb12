//! A program that reads from listed pages of a file, a word each or as many bytes as it is told,
//! from several threads, in one of several ways. It checks the first word of every page that it
//! reads, and prints one line of JSON with its elapsed time and a checksum of these words.

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use memmap2::{Advice, Mmap};
use pagekeeper::library::{
    Buckets, Cache, FaultPath, Options, Protection, Region, Segment, Translation,
};
use pagekeeper_bench::pattern::{PAGE_BYTES, first_word};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::buffer::Buffer;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

/// Reads from listed pages
#[derive(Parser, Debug)]
struct Cli {
    way: Way,
    file: PathBuf,
    /// The pages, as 32-bit numbers; each thread has a stretch of them
    sequence: PathBuf,
    threads: usize,
    /// For a cache of the library, in bytes
    memory: u64,
    /// The cache's policy
    #[arg(default_value = "lru", value_parser = PolicySpec::parse)]
    policy: PolicySpec,
    /// Read so many bytes from each page on, into memory of the program's own, and not a word; a
    /// multiple of a page
    #[arg(long)]
    read_bytes: Option<usize>,
    /// Bytes in a page of the cache's
    #[arg(long, default_value_t = PAGE_BYTES as u64)]
    page_bytes: u64,
    /// Threads of the cache that read ahead
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Keep processors from halting while many wait
    #[arg(long)]
    awake: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    /// A mapping of the file
    Mapped,
    /// A mapping of the file, with MADV_RANDOM
    Random,
    /// Direct reads, of every touch
    Pread,
    /// Reads through the kernel's page cache
    Cached,
    /// `read_at` of a segment of the library
    Explicit,
    /// The same, of a cache that finds pages by a table
    Table,
    /// The same of the library's control, which finds pages by a hash table
    Hash,
    /// A region of it, served in the touching thread
    Inline,
    /// A region of it, served by a thread
    Thread,
}

enum Source {
    Mapped(Mmap),
    Pread(File),
    Segment(Segment),
    Region(Cache, Region),
}

impl Source {
    fn open(cli: &Cli) -> Result<Source> {
        let translation = match cli.way {
            Way::Hash => Translation::Hash(Buckets::Sized),
            Way::Table => Translation::Table,
            _ => Translation::Mapped,
        };
        let segment = |path| -> Result<Segment> {
            let builder = Cache::builder(cli.memory).fault_path(path).translation(translation);
            let builder =
                builder.page_bytes(cli.page_bytes).workers(cli.workers).policy(cli.policy.clone());
            let builder = if cli.awake { builder.keep_awake() } else { builder };
            let cache = builder.build()?;
            Ok(cache.open(&cli.file, Options::new())?)
        };
        let region = |path| -> Result<Source> {
            let segment = segment(path)?;
            let region = segment.map(0..segment.len(), Protection::Read)?;
            Ok(Source::Region(segment.cache(), region))
        };
        Ok(match cli.way {
            Way::Mapped | Way::Random => {
                // SAFETY: only this program's own test files are mapped, which nobody truncates.
                let map = unsafe { Mmap::map(&File::open(&cli.file)?)? };
                if cli.way == Way::Random {
                    map.advise(Advice::Random)?;
                }
                Source::Mapped(map)
            }
            Way::Pread => Source::Pread(
                OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&cli.file)?,
            ),
            Way::Cached => Source::Pread(File::open(&cli.file)?),
            Way::Explicit | Way::Table | Way::Hash => {
                Source::Segment(segment(FaultPath::Explicit)?)
            }
            Way::Inline => region(FaultPath::Inline)?,
            Way::Thread => region(FaultPath::Thread)?,
        })
    }

    /// The first word of a page. Direct reads need a buffer.
    fn word(&self, page: u64, buffer: &mut [u8]) -> Result<u64> {
        let at = page * PAGE_BYTES as u64;
        let bytes: [u8; 8] = match self {
            Source::Mapped(map) => map[at as usize..at as usize + 8].try_into()?,
            Source::Pread(file) => {
                file.read_exact_at(buffer, at)?;
                buffer[..8].try_into()?
            }
            Source::Segment(segment) => {
                let mut bytes = [0; 8];
                segment.read_exact_at(&mut bytes, at)?;
                bytes
            }
            // SAFETY: the file is this program's own, and nobody writes to it.
            Source::Region(_, region) => unsafe {
                region.as_slice()[at as usize..at as usize + 8].try_into()?
            },
        };
        Ok(u64::from_le_bytes(bytes))
    }

    /// Fills a buffer from a page on.
    fn read(&self, page: u64, buffer: &mut [u8]) -> Result<()> {
        let at = page * PAGE_BYTES as u64;
        match self {
            Source::Pread(file) => file.read_exact_at(buffer, at)?,
            Source::Segment(segment) => segment.read_exact_at(buffer, at)?,
            Source::Mapped(_) | Source::Region(..) => bail!("mappings are read a word each"),
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let sequence = std::fs::read(&cli.sequence).context("the sequence")?;
    let pages = sequence.as_chunks::<4>().0;
    let source = Source::open(&cli)?;
    // Whatever is set up before this is not the workload's time.
    let start = Instant::now();
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = pages
            .chunks_exact(pages.len() / cli.threads)
            .map(|pages| {
                let (source, read_bytes) = (&source, cli.read_bytes);
                scope.spawn(move || -> Result<u64> {
                    let mut buffer = Buffer::new(read_bytes.unwrap_or(PAGE_BYTES))?;
                    let mut sum = 0u64;
                    let mut see = |page: u64, word: u64| {
                        ensure!(word == first_word(page), "page {page} holds {word:x}");
                        sum = sum.wrapping_add(word);
                        Ok(())
                    };
                    for page in pages {
                        let page = u64::from(u32::from_le_bytes(*page));
                        if read_bytes.is_none() {
                            see(page, source.word(page, &mut buffer)?)?;
                            continue;
                        }
                        source.read(page, &mut buffer)?;
                        for (page, bytes) in (page..).zip(buffer.as_chunks::<PAGE_BYTES>().0) {
                            see(page, u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")))?;
                        }
                    }
                    Ok(sum)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a thread panicked")).collect::<Vec<_>>()
    });
    let mut checksum = 0u64;
    for sum in sums {
        checksum = checksum.wrapping_add(sum?);
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let faults = match &source {
        Source::Region(cache, _) => {
            let total = cache.stats().total;
            Some([total.major_faults, total.minor_faults, total.read_bytes / cli.page_bytes])
        }
        _ => None,
    };
    println!(
        "{}",
        serde_json::json!({
            "elapsed_ns": elapsed_ns, "checksum": format!("{checksum:016x}"), "touches": pages.len(),
            "major_minor_read": faults,
        })
    );
    Ok(())
}
