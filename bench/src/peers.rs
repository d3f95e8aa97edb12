//! Peers: vmcache (SIGMOD 2023) and UMap (MCHPC 2019), built by `bench/peers/build.sh`, touch the
//! same pages of the same file, in a cgroup of the same size.

use crate::contest::{Contender, interleave};
use crate::library::program;
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern::{SplitMix, Zipf};
use crate::run::{Measured, Pager, Program};
use crate::table;
use anyhow::Result;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Besides the memory for pages: state for each page of the file, the list of touches, page tables,
/// and the processes.
const ALLOWANCE_BYTES: u64 = 96 * MIB;
/// What of that the kernel needs besides the list and page tables; it would use the rest for pages.
const KERNEL_BYTES: u64 = 4 * MIB;

/// The peers that are built, as programs; of each that is not, a word.
pub fn peers(
    machine: &Machine,
    file: &Path,
    sequence: &Path,
    threads: u32,
    memory_bytes: u64,
) -> Vec<(&'static str, Program)> {
    let mut found = Vec::new();
    for (name, binary) in [("vmcache", "touch-vmcache"), ("UMap", "touch-umap")] {
        let Some(path) = machine.peer(binary) else {
            eprintln!("{name} is left out: it is not built (make bench-peers)");
            continue;
        };
        let mut command = vec![path.into_os_string(), file.into(), sequence.into()];
        command.extend([threads.to_string().into(), memory_bytes.to_string().into()]);
        found.push((name, Program::new(command, vec![file.to_owned()])));
    }
    found
}

/// A loop over 4 GiB in 1 GiB of memory, and a skewed choice of pages of 1 GiB in a quarter of that;
/// or only what has a name that contains this.
///
/// # Errors
/// A run's.
pub fn peers_beside(machine: &Machine, repeats: u32, only: Option<&str>) -> Result<()> {
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    if wanted("loop") {
        looped(machine, repeats)?;
    }
    if wanted("zipf") {
        skewed(machine, repeats)?;
    }
    Ok(())
}

fn looped(machine: &Machine, repeats: u32) -> Result<()> {
    const PASSES: u64 = 3;
    let pages = 4 * GIB / 4096;
    let file = machine.file(pages)?;
    let looped = (0..PASSES).flat_map(|_| 0..pages);
    let looped = machine.sequence(&format!("loop-{pages}-{PASSES}"), looped)?;
    let share = |read: f64| (read / (pages * 4096) as f64 - 1.0) / (PASSES - 1) as f64 * 100.0;
    let touches = Touches { name: "loop", file, sequence: looped, way: "mapped", memory: GIB };
    let figure = |r: &Measured| share(r.read_bytes as f64);
    let column = ("% of the file a pass, after the first", &figure as _);
    touches.contest(machine, &["lru", "mru", "auto"], repeats, column)
}

fn skewed(machine: &Machine, repeats: u32) -> Result<()> {
    const TOUCHES: u64 = 1_000_000;
    let pages = GIB / 4096;
    let file = machine.file(pages)?;
    let (zipf, mut random) = (Zipf::new(pages, 0.99), SplitMix::new(7));
    let skewed = (0..TOUCHES).map(|_| zipf.page(&mut random));
    let skewed = machine.sequence(&format!("zipf-{pages}-99"), skewed)?;
    let touches = Touches { name: "zipf", file, sequence: skewed, way: "random", memory: GIB / 4 };
    let figure = |r: &Measured| r.read_bytes as f64 / 4096.0 / TOUCHES as f64;
    let column = ("pages read a touch", &figure as _);
    let policies = ["lru", "clock", "s3fifo", "lirs", "wtinylfu", "auto"];
    touches.contest(machine, &policies, repeats, column)
}

/// A column of the table, and where its figure comes from.
type Column<'a> = (&'a str, &'a dyn Fn(&Measured) -> f64);

/// Pages of a file that are touched in this order.
struct Touches {
    name: &'static str,
    file: PathBuf,
    sequence: PathBuf,
    /// How by programs that know nothing of us.
    way: &'static str,
    memory: u64,
}

impl Touches {
    fn contest(
        &self,
        machine: &Machine,
        policies: &[&str],
        repeats: u32,
        (head, figure): Column,
    ) -> Result<()> {
        let Touches { name, file, sequence, way, memory } = self;
        let memory = *memory;
        let plain = program(way, file, sequence, 1, memory, "lru")?;
        let mut contenders = vec![Contender::new("kernel", &plain, Pager::Kernel, READ_AHEAD_KIB)];
        for (peer, program) in peers(machine, file, sequence, 1, memory) {
            contenders.push(Contender::new(peer, &program, Pager::Kernel, READ_AHEAD_KIB));
        }
        for policy in policies {
            let pager = Pager::Policy((*policy).to_owned());
            contenders.push(Contender::new(
                format!("pagekeeper run, {policy}"),
                &plain,
                pager,
                READ_AHEAD_KIB,
            ));
        }
        for policy in policies {
            let program = program("explicit", file, sequence, 1, memory, policy)?;
            let name = format!("library, read_at, {policy}");
            contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
        }
        for contender in &mut contenders {
            contender.allowance_bytes = ALLOWANCE_BYTES;
        }
        let bytes = |path: &Path| Ok::<_, anyhow::Error>(std::fs::metadata(path)?.len());
        let page_tables = bytes(file)? / 4096 * 8;
        contenders[0].allowance_bytes = KERNEL_BYTES + bytes(sequence)? + page_tables;
        interleave(machine, &mut contenders, memory, repeats)?;
        let rows = contenders.iter().map(|c| {
            vec![
                c.name.clone(),
                format!("{:.3}", c.spread(figure)),
                format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
                format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
                format!("{:.0}", c.spread(|r| r.peak_bytes as f64 / MIB as f64)),
            ]
        });
        let title = format!(
            "{name}: {} MiB file, {} MiB of memory (cgroup {} MiB more)",
            std::fs::metadata(file)?.len() / MIB,
            memory / MIB,
            ALLOWANCE_BYTES / MIB
        );
        table::print(
            &title,
            &[name, head, "elapsed s", "CPU s", "peak MiB"],
            &rows.collect::<Vec<_>>(),
        );
        let saved = contenders.iter().map(Contender::json).collect();
        machine.save(&format!("peers-{name}"), saved)
    }
}
