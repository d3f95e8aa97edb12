//! Plain programs that map a file and touch it, as programs under test: they know nothing of
//! Pagekeeper. Each checks what it reads, and prints one line of JSON with its elapsed time and a
//! checksum of what it saw.

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use memmap2::{Advice, Mmap, MmapMut};
use pagekeeper_bench::pattern::{PAGE_BYTES, SplitMix, Zipf, first_word, shuffled};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Programs that touch a mapped file.
#[derive(Parser, Debug)]
struct Cli {
    /// Tell the kernel that touches are random (MADV_RANDOM): no read-around
    #[arg(long, global = true)]
    advise_random: bool,
    /// Touch the words of zipf and mixed by `pread` instead of the mapping
    #[arg(long, global = true)]
    by_pread: bool,
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand, Debug)]
enum Workload {
    /// Every word of the file, in order, so many times
    Scan { file: PathBuf, passes: u32 },
    /// The same once, without a mapping: direct reads of 1 MiB
    DirectScan { file: PathBuf },
    /// One word of every page, in order, so many times
    Loop { file: PathBuf, passes: u32 },
    /// One word each of so many pages, all equally likely
    Random { file: PathBuf, touches: u64, seed: u64 },
    /// One word each of so many pages, by Zipf's law
    Zipf { file: PathBuf, touches: u64, theta: f64, seed: u64 },
    /// As zipf, with a share of writes
    Write { file: PathBuf, touches: u64, theta: f64, seed: u64, percent: u64 },
    /// Every word of the file is written, in order
    Fill { file: PathBuf },
    /// So many pages a second are written to, anywhere in the file, all of which was read before
    Trickle { file: PathBuf, pages_per_second: u64, seconds: u64 },
    /// Rounds of a scan over a quarter of the file, each page of it followed by touches of a hot
    /// set
    Mixed { file: PathBuf, rounds: u32, hot_pages: u64, per_page: u32, seed: u64 },
    /// Epochs of batches of pages in an order shuffled anew for each
    Epochs { file: PathBuf, epochs: u32, batch_pages: u64, seed: u64 },
    /// As random, without a mapping: direct reads
    Pread { file: PathBuf, touches: u64, seed: u64 },
    /// Stores to so many pages here and there, and `msync`, so many times: how long the latter takes
    Commits { file: PathBuf, pages: u64, commits: u64 },
    /// Calls on a file that is in memory already (read once before, untimed): so many calls of so
    /// many bytes, one behind the other and from the start again
    Calls { file: PathBuf, call: Call, bytes: usize, calls: u64 },
    /// Touches no file: adds, so many million times
    Adds { millions: u64 },
}

/// A call of the C library.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Pread,
    Read,
    Fread,
    /// What was read last
    Pwrite,
    /// The same
    Fwrite,
    /// `write` with O_APPEND; the file is as long as before in the end
    Append,
    /// `open` and `close`
    Open,
}

/// Stores to so many pages in no order, then `msync`, again and again: of the latter alone the time is told.
fn commits(path: &Path, pages: u64, commits: u64) -> Result<Seen> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: only this program's own test files are mapped, which nobody truncates.
    let mut map = unsafe { MmapMut::map_mut(&file)? };
    let all = (map.len() / PAGE_BYTES) as u64;
    let mut sum = 0;
    (0..all as usize).for_each(|page| sum ^= u64::from(map[page * PAGE_BYTES]));
    let mut random = SplitMix::new(7);
    let mut took = Vec::new();
    for commit in 0..commits {
        for _ in 0..pages {
            let page = random.next_u64() % all;
            map[page as usize * PAGE_BYTES + WRITTEN_AT] = commit as u8;
        }
        let began = Instant::now();
        map.flush()?;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let whole = took[took.len() / 2].mul_f64(commits as f64);
    let start = Instant::now().checked_sub(whole).context("the clock has just begun")?;
    Ok((start, sum, commits))
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let advice = cli.advise_random.then_some(Advice::Random);
    // Whatever is set up before this is not the workload's time.
    let (start, checksum, touches) = match cli.workload {
        Workload::Scan { file, passes } => Mapped::open(&file, advice)?.scan(passes)?,
        Workload::DirectScan { file } => direct_scan(&file)?,
        Workload::Loop { file, passes } => Mapped::open(&file, advice)?.looped(passes)?,
        Workload::Random { file, touches, seed } => {
            Mapped::open(&file, advice)?.random(touches, seed)?
        }
        Workload::Zipf { file, touches, theta, seed } => {
            Mapped::open(&file, advice)?.by_pread(cli.by_pread).zipf(touches, theta, seed)?
        }
        Workload::Write { file, touches, theta, seed, percent } => {
            write(&file, touches, theta, seed, percent)?
        }
        Workload::Fill { file } => fill(&file)?,
        Workload::Trickle { file, pages_per_second, seconds } => {
            trickle(&file, pages_per_second, seconds)?
        }
        Workload::Mixed { file, rounds, hot_pages, per_page, seed } => {
            let mapped = Mapped::open(&file, advice)?.by_pread(cli.by_pread);
            mapped.mixed(rounds, hot_pages, per_page, seed)?
        }
        Workload::Epochs { file, epochs, batch_pages, seed } => {
            Mapped::open(&file, advice)?.epochs(epochs, batch_pages, seed)?
        }
        Workload::Pread { file, touches, seed } => pread(&file, touches, seed)?,
        Workload::Calls { file, call, bytes, calls } => made(&file, call, bytes, calls)?,
        Workload::Commits { file, pages, commits: count } => commits(&file, pages, count)?,
        Workload::Adds { millions } => adds(millions),
    };
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    println!(
        "{}",
        serde_json::json!({
            "elapsed_ns": elapsed_ns, "checksum": format!("{checksum:016x}"), "touches": touches,
        })
    );
    Ok(())
}

/// When the workload began, a checksum of what it saw, and how many touches it made.
type Seen = (Instant, u64, u64);

struct Mapped {
    map: Mmap,
    file: File,
    pages: u64,
    by_pread: bool,
}

impl Mapped {
    fn open(path: &Path, advice: Option<Advice>) -> Result<Mapped> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        // SAFETY: only this program's own test files are mapped, which nobody truncates.
        let map = unsafe { Mmap::map(&file)? };
        if let Some(advice) = advice {
            map.advise(advice)?;
        }
        let pages = (map.len() / PAGE_BYTES) as u64;
        ensure!(pages > 0, "{} has no page", path.display());
        Ok(Mapped { map, file, pages, by_pread: false })
    }

    fn by_pread(self, by_pread: bool) -> Mapped {
        Mapped { by_pread, ..self }
    }

    fn touch(&self, page: u64) -> Result<u64> {
        let at = page as usize * PAGE_BYTES;
        let mut bytes = [0; 8];
        if self.by_pread {
            self.file.read_exact_at(&mut bytes, at as u64)?;
        } else {
            bytes.copy_from_slice(&self.map[at..at + 8]);
        }
        let word = u64::from_le_bytes(bytes);
        ensure!(word == first_word(page), "page {page} holds {word:x}: not what was written");
        Ok(word)
    }

    fn touch_all(&self, pages: impl Iterator<Item = u64>) -> Result<Seen> {
        let (start, mut sum, mut touches) = (Instant::now(), 0u64, 0);
        for page in pages {
            sum = sum.rotate_left(1) ^ self.touch(page)?;
            touches += 1;
        }
        Ok((start, sum, touches))
    }

    fn scan(&self, passes: u32) -> Result<Seen> {
        let (start, mut sum) = (Instant::now(), 0u64);
        for _ in 0..passes {
            sum = sum.wrapping_add(sum_of_words(&self.map));
        }
        Ok((start, sum, u64::from(passes) * self.pages))
    }

    fn looped(&self, passes: u32) -> Result<Seen> {
        self.touch_all((0..passes).flat_map(|_| 0..self.pages))
    }

    fn random(&self, touches: u64, seed: u64) -> Result<Seen> {
        let mut random = SplitMix::new(seed);
        self.touch_all((0..touches).map(|_| random.below(self.pages)))
    }

    fn zipf(&self, touches: u64, theta: f64, seed: u64) -> Result<Seen> {
        let (zipf, mut random) = (Zipf::new(self.pages, theta), SplitMix::new(seed));
        self.touch_all((0..touches).map(|_| zipf.page(&mut random)))
    }

    fn mixed(&self, rounds: u32, hot_pages: u64, per_page: u32, seed: u64) -> Result<Seen> {
        let quarter = self.pages / 4;
        ensure!(quarter > 0 && hot_pages <= self.pages, "the file is too small");
        let hot = shuffled(self.pages, 43);
        let mut random = SplitMix::new(seed);
        let scanned = (0..rounds).flat_map(|round| {
            let first = u64::from(round % 4) * quarter;
            first..first + quarter
        });
        let mut pages = Vec::new();
        for page in scanned {
            pages.push(page);
            pages.extend((0..per_page).map(|_| u64::from(hot[random.below(hot_pages) as usize])));
        }
        self.touch_all(pages.into_iter())
    }

    fn epochs(&self, epochs: u32, batch_pages: u64, seed: u64) -> Result<Seen> {
        let batches = self.pages / batch_pages;
        let orders = (0..epochs).flat_map(|e| shuffled(batches, seed ^ u64::from(e)));
        self.touch_all(orders.flat_map(|batch| {
            let first = u64::from(batch) * batch_pages;
            first..first + batch_pages
        }))
    }
}

/// Where `write` writes: the second half of a page.
const WRITTEN_AT: usize = PAGE_BYTES / 2;

fn write(path: &Path, touches: u64, theta: f64, seed: u64, percent: u64) -> Result<Seen> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: only this program's own test files are mapped, which nobody truncates.
    let mut map = unsafe { MmapMut::map_mut(&file)? };
    let pages = (map.len() / PAGE_BYTES) as u64;
    let (zipf, mut random) = (Zipf::new(pages, theta), SplitMix::new(seed));
    let mut written = vec![0u64; pages as usize];
    let (start, mut sum) = (Instant::now(), 0u64);
    for touch in 0..touches {
        let page = zipf.page(&mut random);
        let at = page as usize * PAGE_BYTES;
        let word = u64::from_le_bytes(map[at..at + 8].try_into()?);
        ensure!(word == first_word(page), "page {page} holds {word:x}: not what was written");
        sum = sum.rotate_left(1) ^ word;
        let expected = &mut written[page as usize];
        let own = &mut map[at + WRITTEN_AT..at + WRITTEN_AT + 8];
        if *expected != 0 {
            let found = u64::from_le_bytes((&*own).try_into()?);
            ensure!(found == *expected, "page {page} lost a write: {found:x}, not {expected:x}");
        }
        if random.below(100) < percent {
            *expected = (touch << 32) | page | 1;
            own.copy_from_slice(&expected.to_le_bytes());
        }
    }
    Ok((start, sum, touches))
}

fn trickle(path: &Path, pages_per_second: u64, seconds: u64) -> Result<Seen> {
    const STEPS_PER_SECOND: u64 = 10;
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: only this program's own test files are mapped, which nobody truncates.
    let mut map = unsafe { MmapMut::map_mut(&file)? };
    let pages = (map.len() / PAGE_BYTES) as u64;
    let mut random = SplitMix::new(pages_per_second);
    std::hint::black_box(sum_of_words(&map));
    let start = Instant::now();
    for step in 0..seconds * STEPS_PER_SECOND {
        for touch in 0..pages_per_second / STEPS_PER_SECOND {
            let at = random.below(pages) as usize * PAGE_BYTES + WRITTEN_AT;
            map[at..at + 8].copy_from_slice(&(step << 32 | touch).to_le_bytes());
        }
        std::thread::sleep(std::time::Duration::from_millis(1000 / STEPS_PER_SECOND));
    }
    Ok((start, 0, pages_per_second * seconds))
}

fn fill(path: &Path) -> Result<Seen> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // SAFETY: only this program's own test files are mapped, which nobody truncates.
    let mut map = unsafe { MmapMut::map_mut(&file)? };
    let pages = (map.len() / PAGE_BYTES) as u64;
    let (start, mut sum) = (Instant::now(), 0u64);
    for page in 0..pages {
        let at = page as usize * PAGE_BYTES;
        for (i, word) in map[at..at + PAGE_BYTES].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = if i == 0 { first_word(page) } else { page << 9 | i as u64 };
            *word = value.to_le_bytes();
            sum = sum.rotate_left(1) ^ value;
        }
    }
    map.flush()?;
    Ok((start, sum, pages))
}

fn sum_of_words(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Pages in memory, aligned as direct reads need them.
#[repr(align(4096))]
struct Aligned<const BYTES: usize>([u8; BYTES]);

fn open_direct(path: &Path) -> Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let pages = file.metadata()?.len() / PAGE_BYTES as u64;
    Ok((file, pages))
}

fn direct_scan(path: &Path) -> Result<Seen> {
    let (file, pages) = open_direct(path)?;
    let mut buffer = Box::new(Aligned([0; 1 << 20]));
    let (start, mut sum, mut at) = (Instant::now(), 0u64, 0);
    while at < pages * PAGE_BYTES as u64 {
        let read = file.read_at(&mut buffer.0, at)?;
        ensure!(read > 0, "the file ends at {at}");
        sum = sum.wrapping_add(sum_of_words(&buffer.0[..read]));
        at += read as u64;
    }
    Ok((start, sum, pages))
}

fn pread(path: &Path, touches: u64, seed: u64) -> Result<Seen> {
    let (file, pages) = open_direct(path)?;
    let mut buffer = Box::new(Aligned([0; PAGE_BYTES]));
    let mut random = SplitMix::new(seed);
    let (start, mut sum) = (Instant::now(), 0u64);
    for _ in 0..touches {
        let page = random.below(pages);
        file.read_exact_at(&mut buffer.0, page * PAGE_BYTES as u64)?;
        let word = u64::from_le_bytes(buffer.0[..8].try_into()?);
        ensure!(word == first_word(page), "page {page} holds {word:x}: not what was written");
        sum = sum.rotate_left(1) ^ word;
    }
    Ok((start, sum, touches))
}

fn adds(millions: u64) -> Seen {
    let (start, mut sum) = (Instant::now(), 0u64);
    for i in 0..millions * 1_000_000 {
        sum = std::hint::black_box(sum) + i;
    }
    (start, sum, 0)
}

fn made(path: &Path, call: Call, bytes: usize, calls: u64) -> Result<Seen> {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    let writes = matches!(call, Call::Pwrite | Call::Fwrite | Call::Append);
    let append = call == Call::Append;
    let file = File::options().read(true).write(writes).append(append).open(path)?;
    let length = file.metadata()?.len();
    let mut buffer = vec![0u8; bytes.max(1 << 16)];
    for _ in 0..2 {
        let mut at = 0;
        while at < length {
            at += file.read_at(&mut buffer, at)? as u64;
        }
    }
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mode = if call == Call::Fwrite { c"r+" } else { c"r" };
    // SAFETY: both are C strings.
    let stream = unsafe { libc::fopen(name.as_ptr(), mode.as_ptr()) };
    ensure!(!stream.is_null(), "{} cannot be opened", path.display());
    let fd = file.as_raw_fd();
    let fits = length - length % bytes.max(1) as u64;
    let (mut at, mut sum) = (0u64, 0u64);
    // In chunks, whose median stands for all: in some of them the machine does other things.
    let chunk = (calls / 2000).max(1);
    let (mut began, mut chunks) = (Instant::now(), Vec::new());
    for call_no in 0..calls {
        if call_no % chunk == 0 && call_no > 0 {
            chunks.push(began.elapsed());
            began = Instant::now();
        }
        if at == fits && call != Call::Open {
            at = 0;
            // SAFETY: an open descriptor and an open stream.
            unsafe {
                libc::lseek(fd, 0, libc::SEEK_SET);
                libc::rewind(stream);
            }
        }
        let into = buffer.as_mut_ptr();
        // SAFETY: the buffer has room for so many bytes; descriptor, stream and name are good.
        let done = unsafe {
            match call {
                Call::Pread => libc::pread(fd, into.cast(), bytes, at as i64) as usize,
                Call::Read => libc::read(fd, into.cast(), bytes) as usize,
                Call::Fread => libc::fread(into.cast(), 1, bytes, stream),
                Call::Pwrite => libc::pwrite(fd, into.cast(), bytes, at as i64) as usize,
                Call::Fwrite => libc::fwrite(into.cast(), 1, bytes, stream),
                Call::Append => libc::write(fd, into.cast(), bytes) as usize,
                Call::Open => {
                    let opened = libc::open(name.as_ptr(), libc::O_RDONLY);
                    ensure!(opened >= 0 && libc::close(opened) == 0, "it cannot be opened again");
                    bytes
                }
            }
        };
        ensure!(done == bytes, "{done} bytes came of {bytes} at {at}");
        at += done as u64;
        sum = sum.rotate_left(1) ^ u64::from(buffer[0]) ^ u64::from(buffer[bytes.max(1) - 1]);
    }
    chunks.sort_unstable();
    let median = chunks.get(chunks.len() / 2).copied().unwrap_or_default();
    let whole = median.mul_f64(calls as f64 / chunk as f64);
    if append {
        file.set_len(length)?;
    }
    let start = Instant::now().checked_sub(whole).context("the clock has just begun")?;
    Ok((start, sum, calls))
}
