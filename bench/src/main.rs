//! Measures Pagekeeper against the kernel under equal memory, and its predictions against live
//! runs. Results are printed, and kept as JSON in target/bench.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagekeeper_bench::machine::Machine;
use pagekeeper_bench::{contest, predict, simulator};

/// Measure Pagekeeper; build it first (`make build`), and run as root
#[derive(Parser, Debug)]
struct Cli {
    /// What to measure
    #[arg(default_value = "all")]
    what: What,
    /// Runs of every contender
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Everything below, but for what needs a peer to be installed
    All,
    /// A loop over more than fits: what is read again in every pass
    Loop,
    /// A cold sequential scan: its speed
    Scan,
    /// Random touches: CPU time per page read
    Random,
    /// Predicted and measured faults and reads
    Predict,
    /// Decisions of recorded live runs, taken again
    Replay,
    /// Requests per second of the simulator, beside libCacheSim's
    Simulator,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let machine = Machine::find()?;
    println!("{:#}\n", machine.describe());
    let wanted = |what| cli.what == What::All || cli.what == what;
    if wanted(What::Loop) {
        contest::looped(&machine, cli.repeats)?;
    }
    if wanted(What::Scan) {
        contest::scan(&machine, cli.repeats)?;
    }
    if wanted(What::Random) {
        contest::random(&machine, cli.repeats)?;
    }
    if wanted(What::Predict) {
        predict::predict(&machine, cli.repeats)?;
    }
    if wanted(What::Replay) {
        predict::replay(&machine)?;
    }
    if cli.what == What::Simulator {
        simulator::simulator(&machine, cli.repeats)?;
    }
    Ok(())
}
