//! What seeing touches costs, and what knowing of them saves: the share of time that may be spent on
//! it, from none to all that misses take, on recordings.

use crate::machine::Machine;
use crate::predict;
use crate::table;
use anyhow::Result;
use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{Counts, LiveOptions, simulate_live};
use serde_json::{Value, json};

const PERCENTS: [u32; 6] = [0, 1, 5, 25, 50, 100];
const POLICIES: [&str; 5] = ["lru", "clock", "fifo2", "s3fifo", "auto"];
/// Of the workloads of predictions: a hot set that a scan pushes out, a few pages in much use, and a
/// program's own.
const WORKLOADS: [&str; 3] = ["scan and hot set", "zipf 0.9", "sqlite3, join by index"];

/// Pages that were waited for, all that were read, and faults for seeing touches, by the share of
/// the time that may be spent on them; and for each larger share the faults that it took to save a
/// miss.
///
/// # Errors
/// A program cannot be recorded.
pub fn sampling(machine: &Machine) -> Result<()> {
    let mut rows = Vec::new();
    let mut prices = Vec::new();
    let mut kept = Vec::new();
    for w in predict::workloads(machine)? {
        if !WORKLOADS.contains(&w.name) {
            continue;
        }
        let (_, references) = predict::recording(machine, &w)?;
        for policy in POLICIES {
            let spec = PolicySpec::parse(policy)?;
            let mut found = Vec::new();
            for percent in PERCENTS {
                let sampled = Some(SamplingShare::of_percent(percent)?);
                let options = LiveOptions { sampled, ..LiveOptions::new(w.memory_bytes) };
                let outcome = simulate_live(&references, &spec, &options)?;
                kept.push(json!({
                    "workload": w.name, "policy": policy, "sampling_percent": percent,
                    "counts": outcome.counts,
                }));
                found.push(outcome.counts);
            }
            let names = vec![w.name.to_owned(), policy.to_owned()];
            let steps = found.windows(2).map(|step| price(&step[0], &step[1])).collect();
            prices.push([names.clone(), steps].concat());
            rows.push([names, found.iter().map(cell).collect()].concat());
        }
    }
    let shares = PERCENTS.map(|percent| format!("{percent} %"));
    let head: Vec<&str> =
        ["workload", "policy"].into_iter().chain(shares.iter().map(String::as_str)).collect();
    let title = "Major faults, pages read and (minor faults), by the share that may be spent";
    table::print(title, &head, &rows);
    let head = [&head[..2], &head[3..]].concat();
    let title = "More minor faults for each major fault less than with the share before";
    table::print(title, &head, &prices);
    machine.save("sampling", Value::Array(kept))
}

fn cell(counts: &Counts) -> String {
    format!("{} {} ({})", counts.faults, counts.pages_read, counts.minor_faults)
}

fn price(less: &Counts, more: &Counts) -> String {
    if more.faults >= less.faults {
        return "–".to_owned();
    }
    let seen = more.minor_faults as f64 - less.minor_faults as f64;
    format!("{:.1}", seen / (less.faults - more.faults) as f64)
}
