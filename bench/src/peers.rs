//! Peers: vmcache (SIGMOD 2023) and UMap (MCHPC 2019), built by `bench/peers/build.sh`, touch the
//! same pages of the same file, in a cgroup of the same size.

use crate::contest::{Contender, interleave};
use crate::library::program;
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::pattern::{SplitMix, Zipf};
use crate::run::{Measured, Pager, Program};
use crate::table;
use anyhow::Result;
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Besides the memory for pages: state for each page of the file, the list of touches, and the
/// kernel's page tables.
const ALLOWANCE_BYTES: u64 = 96 * MIB;

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

/// A loop and a skewed choice of pages, 4 GiB in 1 GiB of memory.
///
/// # Errors
/// A run's.
pub fn full_size(machine: &Machine, repeats: u32) -> Result<()> {
    const PASSES: u64 = 3;
    const TOUCHES: u64 = 1_000_000;
    let pages = 4 * GIB / 4096;
    let file = machine.file(pages)?;
    let looped = (0..PASSES).flat_map(|_| 0..pages);
    let looped = machine.sequence(&format!("loop-{pages}-{PASSES}"), looped)?;
    let share = |read: f64| (read / (pages * 4096) as f64 - 1.0) / (PASSES - 1) as f64 * 100.0;
    contest(
        machine,
        "loop",
        &file,
        &looped,
        "mapped",
        &["lru", "mru", "auto"],
        repeats,
        ("% of the file a pass, after the first", &|r| share(r.read_bytes as f64)),
    )?;
    let (zipf, mut random) = (Zipf::new(pages, 0.99), SplitMix::new(7));
    let skewed = (0..TOUCHES).map(|_| zipf.page(&mut random));
    let skewed = machine.sequence(&format!("zipf-{pages}-99"), skewed)?;
    let policies = ["lru", "clock", "s3fifo", "auto"];
    contest(
        machine,
        "zipf",
        &file,
        &skewed,
        "random",
        &policies,
        repeats,
        ("pages read a touch", &|r| r.read_bytes as f64 / 4096.0 / TOUCHES as f64),
    )
}

/// A column of the table, and where its figure comes from.
type Column<'a> = (&'a str, &'a dyn Fn(&Measured) -> f64);

#[allow(clippy::too_many_arguments)]
fn contest(
    machine: &Machine,
    name: &str,
    file: &Path,
    sequence: &Path,
    way: &str,
    policies: &[&str],
    repeats: u32,
    (head, figure): Column,
) -> Result<()> {
    let plain = |way: &str| program(way, file, sequence, 1, GIB, "lru");
    let mut contenders =
        vec![Contender::new("kernel", &plain(way)?, Pager::Kernel, READ_AHEAD_KIB)];
    for (peer, program) in peers(machine, file, sequence, 1, GIB) {
        contenders.push(Contender::new(peer, &program, Pager::Kernel, READ_AHEAD_KIB));
    }
    for policy in policies {
        let pager = Pager::Policy((*policy).to_owned());
        contenders.push(Contender::new(
            format!("pagekeeper run, {policy}"),
            &plain(way)?,
            pager,
            READ_AHEAD_KIB,
        ));
    }
    for policy in policies {
        let program = program("explicit", file, sequence, 1, GIB, policy)?;
        let name = format!("library, read_at, {policy}");
        contenders.push(Contender::new(name, &program, Pager::Kernel, READ_AHEAD_KIB));
    }
    for contender in &mut contenders {
        contender.allowance_bytes = ALLOWANCE_BYTES;
    }
    interleave(machine, &mut contenders, GIB, repeats)?;
    let rows = contenders.iter().map(|c| {
        vec![
            c.name.clone(),
            format!("{:.3}", c.spread(figure)),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
            format!("{:.0}", c.spread(|r| r.peak_bytes as f64 / MIB as f64)),
        ]
    });
    let title =
        format!("{name}: 4 GiB file, 1 GiB of memory (cgroup {} MiB more)", ALLOWANCE_BYTES / MIB);
    table::print(
        &title,
        &[name, head, "elapsed s", "CPU s", "peak MiB"],
        &rows.collect::<Vec<_>>(),
    );
    let saved = contenders.iter().map(Contender::json).collect();
    machine.save(&format!("peers-{name}"), saved)
}
