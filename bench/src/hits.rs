//! Calls on data that is in memory already: what a call costs, under the kernel and under us.

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::run::{Pager, Program};
use crate::table::{self, Spread};
use anyhow::Result;
use serde_json::Value;

const FILE_PAGES: u64 = 4096;
const MEMORY_BYTES: u64 = 64 << 20;
/// The sizes of transfers, in bytes.
const SIZES: [u64; 4] = [4, 1 << 10, 4 << 10, 64 << 10];
/// Bytes that calls which write move in all, at most.
const WRITTEN_BYTES: u64 = 256 << 20;

/// Calls of one kind and size: enough for some tenths of a second.
fn calls(bytes: u64) -> u64 {
    (1_000_000_000 / (800 + bytes / 4)).min(500_000)
}

/// Nanoseconds a call of `pread`, `read`, `fread`, `pwrite`, `fwrite` and appending `write` at several
/// sizes, of `open` with `close`, and of `msync` after stores all over a file.
///
/// # Errors
/// A run fails.
pub fn hits(machine: &Machine, repeats: u32) -> Result<()> {
    let read = machine.file(FILE_PAGES)?;
    let written = read.with_extension("written");
    std::fs::copy(&read, &written)?;
    let kinds = ["pread", "read", "fread", "pwrite", "fwrite", "append"].iter();
    let transfers = kinds.flat_map(|call| SIZES.iter().map(move |&bytes| (*call, bytes)));
    let mut rows = Vec::new();
    let mut all: Vec<Value> = Vec::new();
    let others = [("open", 0), ("msync", 100), ("msync", 1000)];
    for (call, bytes) in transfers.chain(others) {
        let writes = matches!(call, "pwrite" | "fwrite" | "append");
        let file = if writes || call == "msync" { &written } else { &read };
        let count = match call {
            "open" => 40_000,
            "msync" => 21,
            _ if writes => calls(bytes).min(WRITTEN_BYTES / bytes),
            _ => calls(bytes),
        };
        let (bytes_word, count_word) = (bytes.to_string(), count.to_string());
        let program = match call {
            "msync" => Program::workload("commits", file, &[&bytes_word, &count_word]),
            _ => Program::workload("calls", file, &[call, &bytes_word, &count_word]),
        }?;
        let contender = |name, pager| Contender::new(name, &program, pager, READ_AHEAD_KIB);
        let mut contenders = vec![
            contender("kernel", Pager::Kernel),
            contender("ours", Pager::Policy("clock".into())),
        ];
        if writes {
            contenders.push(contender("ours, delayed", Pager::Delayed("clock".into())));
        }
        interleave(machine, &mut contenders, MEMORY_BYTES, repeats)?;
        let ns = |c: &Contender| c.spread(|run| run.elapsed_ns as f64 / count as f64);
        let [kernel, ours, delayed @ ..] = &contenders[..] else { unreachable!("two at least") };
        let gain = |ours: &Contender| {
            let pairs = kernel.runs.iter().zip(&ours.runs);
            Spread::of(pairs.map(|(k, o)| k.elapsed_ns as f64 / o.elapsed_ns as f64))
        };
        let what = match call {
            "open" => "open and close".to_owned(),
            "msync" => format!("msync of {bytes} pages here and there"),
            _ => format!("{call}, {bytes} B"),
        };
        rows.push(vec![
            what,
            format!("{:.0}", ns(kernel)),
            format!("{:.0}", ns(ours)),
            format!("{:.2}", gain(ours)),
            delayed.first().map_or("–".to_owned(), |c| format!("{:.0}", ns(c))),
            delayed.first().map_or("–".to_owned(), |c| format!("{:.2}", gain(c))),
        ]);
        all.extend(contenders.iter().map(Contender::json));
    }
    let title = "Calls on cached data: ns a call; how often ours fits into the kernel's";
    table::print(title, &["call", "kernel", "ours", "gain", "delayed", "gain"], &rows);
    std::fs::remove_file(&written)?;
    machine.save("hits", all.into())
}
