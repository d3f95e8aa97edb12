//! How far translation buffers reach: reads of a few bytes anywhere in memory, by page size. What
//! the library does for a hit is the same for all; what differs is the walk of the page tables.

use crate::machine::Machine;
use crate::pattern::SplitMix;
use crate::table::{self, Spread};
use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapMut};
use pagekeeper::library::{Cache, FaultPath, Options, Protection, Region, Segment, Translation};
use pagekeeper_sys::memfd::{HUGE_SETTING, huge_setting};
use serde_json::json;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const FILE: u64 = 1 << 30;

/// The machine's setting of huge pages for shared memory, restored when dropped.
struct Setting(String);

impl Setting {
    fn set(value: &str) -> Result<Setting> {
        let chosen = huge_setting().context(HUGE_SETTING)?;
        fs::write(HUGE_SETTING, value).with_context(|| format!("{HUGE_SETTING} (root may)"))?;
        Ok(Setting(chosen))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_SETTING, &self.0);
    }
}

/// Memory mapped by huge pages, of the kinds that these lines of `/proc/self/smaps` count: of all
/// mappings, or of the one that begins at an address.
fn huge_bytes(kinds: &[&str], of: Option<u64>) -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/smaps")?;
    let (mut counts, mut kib) = (true, 0);
    for line in maps.lines() {
        if let (Some(of), Some((start, _))) = (of, line.split_once('-'))
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            counts = start == of;
        }
        let value = kinds.iter().find_map(|kind| line.strip_prefix(kind)?.strip_suffix(" kB"));
        if let Some(value) = value.filter(|_| counts) {
            kib += value.trim().parse::<u64>().context("smaps")?;
        }
    }
    Ok(kib * 1024)
}

enum Memory {
    Plain(MmapMut),
    Cached(Segment),
    Mapped(Region),
}

impl Memory {
    fn plain(advice: Advice) -> Result<Memory> {
        let mut map = MmapMut::map_anon(FILE as usize)?;
        map.advise(advice)?;
        map.fill(1);
        Ok(Memory::Plain(map))
    }

    fn cached(machine: &Machine, page_bytes: u64) -> Result<Memory> {
        let cache = Cache::builder(FILE + FILE / 4).page_bytes(page_bytes);
        Ok(Memory::Cached(Self::segment(machine, cache.build()?)?))
    }

    /// The same in blocks, which a table tells of.
    fn in_blocks(machine: &Machine) -> Result<Memory> {
        let cache = Cache::builder(FILE + FILE / 4).translation(Translation::Table);
        Ok(Memory::Cached(Self::segment(machine, cache.build()?)?))
    }

    /// The same as a region, all of it touched.
    fn mapped(machine: &Machine, page_bytes: u64) -> Result<Memory> {
        let cache = Cache::builder(FILE + FILE / 4).page_bytes(page_bytes);
        let segment = Self::segment(machine, cache.fault_path(FaultPath::Inline).build()?)?;
        let memory = Memory::Mapped(segment.map(0..FILE, Protection::Read)?);
        memory.time(&(0..FILE).step_by(4096).collect::<Vec<_>>())?;
        Ok(memory)
    }

    /// All of the file, in memory.
    fn segment(machine: &Machine, cache: Cache) -> Result<Segment> {
        let segment = cache.open(machine.file(FILE / 4096)?, Options::new())?;
        let mut buffer = vec![0; MIB as usize];
        for at in (0..FILE).step_by(buffer.len()) {
            segment.read_exact_at(&mut buffer, at)?;
        }
        Ok(segment)
    }

    /// Nanoseconds a read of 8 bytes.
    fn time(&self, offsets: &[u64]) -> Result<f64> {
        let start = Instant::now();
        let mut bytes = [0; 8];
        for &offset in offsets {
            match self {
                Memory::Plain(map) => {
                    let at = offset as usize;
                    bytes.copy_from_slice(&map[at..at + 8]);
                }
                Memory::Cached(segment) => segment.read_exact_at(&mut bytes, offset)?,
                // SAFETY: the file is this program's own, and nobody writes to it.
                Memory::Mapped(region) => unsafe {
                    let at = offset as usize;
                    bytes.copy_from_slice(&region.as_slice()[at..at + 8]);
                },
            }
            black_box(&mut bytes);
        }
        Ok(start.elapsed().as_nanos() as f64 / offsets.len() as f64)
    }
}

/// What is read, by its name, and the machine's setting meanwhile.
type Kind = (&'static str, &'static str, fn(&Machine) -> Result<Memory>);

/// Reads of 8 bytes anywhere in 16 MiB, 256 MiB and 1 GiB of cached data.
///
/// # Errors
/// The library's and the machine's; not root.
pub fn reach(machine: &Machine, repeats: u32) -> Result<()> {
    const SPANS: [u64; 3] = [16 * MIB, 256 * MIB, FILE];
    const READS: usize = 1 << 20;
    const ROUNDS: usize = 3;
    let kinds: [Kind; 9] = [
        ("plain memory, 4 KiB pages", "never", |_| Memory::plain(Advice::NoHugePage)),
        ("plain memory, 2 MiB pages", "never", |_| Memory::plain(Advice::HugePage)),
        ("read_at, 4 KiB pages", "never", |m| Memory::cached(m, 4096)),
        ("read_at, 64 KiB pages", "never", |m| Memory::cached(m, 64 << 10)),
        ("read_at, 2 MiB pages, mapped by 4 KiB", "never", |m| Memory::cached(m, 2 * MIB)),
        ("read_at, 2 MiB pages, mapped as one", "advise", |m| Memory::cached(m, 2 * MIB)),
        ("read_at, 4 KiB pages by a table, mapped as one", "never", Memory::in_blocks),
        ("a region, 4 KiB pages", "never", |m| Memory::mapped(m, 4096)),
        ("a region, 2 MiB pages", "advise", |m| Memory::mapped(m, 2 * MIB)),
    ];
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for (name, setting, make) in kinds {
        eprint!("\r\x1b[K{name}");
        let _setting = Setting::set(setting)?;
        let memory = make(machine)?;
        let region = match &memory {
            Memory::Mapped(region) => Some(region.as_ptr() as u64),
            _ => None,
        };
        let huge = huge_bytes(&["AnonHugePages:", "ShmemPmdMapped:"], region)?;
        let wants_huge = name.contains("mapped as one") || name.contains("memory, 2 MiB");
        ensure!(wants_huge == (huge > FILE / 2), "{name}: {huge} bytes are in huge pages");
        let mut row = vec![name.to_owned(), format!("{}", huge / MIB)];
        for span in SPANS {
            let times = (0..repeats).map(|repeat| {
                let mut random = SplitMix::new(u64::from(repeat));
                let offsets: Vec<u64> = (0..READS).map(|_| random.below(span / 8) * 8).collect();
                let rounds = (0..ROUNDS).map(|_| memory.time(&offsets));
                rounds.reduce(|a, b| Ok(a?.min(b?))).expect("some rounds")
            });
            let times = times.collect::<Result<Vec<f64>>>()?;
            row.push(format!("{:.1}", Spread::of(times.iter().copied())));
            results.push(json!({
                "memory": name, "huge_bytes": huge, "span_bytes": span, "ns": times,
            }));
        }
        rows.push(row);
    }
    eprint!("\r\x1b[K");
    let head = ["reads of 8 B", "MiB in huge pages", "anywhere in 16 MiB", "256 MiB", "1 GiB"];
    let title = format!(
        "Nanoseconds a read of memory, by page size; of each repeat the fastest of {ROUNDS} rounds"
    );
    table::print(&title, &head, &rows);
    machine.save("reach", results.into())
}
