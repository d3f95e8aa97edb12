//! Measures Pagekeeper against the kernel under equal memory, and its predictions against live
//! runs. Results are printed, and kept as JSON in target/bench.

use anyhow::Result;
use clap::{Parser, ValueEnum};
use pagekeeper_bench::disk::Disk;
use pagekeeper_bench::machine::Machine;
use pagekeeper_bench::run::Pager;
use pagekeeper_bench::{
    beside, contest, domains, heap, hipec, hits, library, live, overhead, peers, predict, reach,
    sampling, simulator, suite, tables, translation,
};
use std::path::PathBuf;

/// Measure Pagekeeper; build it first (`make build`), and run as root
#[derive(Parser, Debug)]
struct Cli {
    /// What to measure
    #[arg(default_value = "all")]
    what: What,
    /// Runs of every contender
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// For `hipec`: traces of one block number a line, beside the strings that it makes
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Policy of the suite's programs
    #[arg(long, default_value = "auto")]
    policy: String,
    /// Limit reads of the disk to so many MiB and requests per second, as a network volume has them:
    /// 125,3000 (of what runs in a cgroup: `loop`, `scan`, `random`, `predict`, `suite`, `live`)
    #[arg(long, value_name = "MIB,REQUESTS")]
    disk: Option<Disk>,
    /// The suite's programs are managed from their first use: nothing stands by
    #[arg(long)]
    from_start: bool,
    /// Of `heap`, `suite`, `live`, `beside` and `peers`, only what has a name that contains this
    #[arg(long)]
    only: Option<String>,
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
    /// The same by one to 64 threads: what is fetched at the same time
    Parallel,
    /// Reads of data that is in memory: nanoseconds a call
    Hits,
    /// Predicted and measured faults and reads
    Predict,
    /// What the share of time that sampling may take costs and buys, on recordings
    Sampling,
    /// Decisions of recorded live runs, taken again
    Replay,
    /// A program's decisions compiled, interpreted, behind system calls and behind messages
    Domains,
    /// Tables II, IV, V and VI of the HiPEC paper: all of the three below
    Tables,
    /// Table V: nested-loop join
    Nlj,
    /// Tables IV and VI: random data retrieval, of 10⁵ tuples and, once, of 10⁶
    Rdr,
    /// Table II: what a policy's being a HiPEC program costs
    Overhead,
    /// The library: hits beside `pread`, misses beside the kernel's; both beside a cache with a
    /// software lookup
    Library,
    /// Of that, cold reads in order
    LibraryScan,
    /// Of that, a scan and random touches of mapped regions, by page size
    LibraryRegions,
    /// Of that, random touches of single pages, beside the least that such a fault takes
    LibraryMisses,
    /// Of that, hits, instructions a read, and the variants of the software lookup
    Translation,
    /// What goes on beside a program: recording it, writing behind it
    Beside,
    /// Reads anywhere in memory, by page size: what larger pages save of address translation
    Reach,
    /// Requests per second of the simulator, beside libCacheSim's
    Simulator,
    /// HiPEC programs, interpreted and compiled, beside the native policies that they equal
    Hipec,
    /// Working memory that does not fit: a transform, matrices, a hash table, sort; beside swap
    Heap,
    /// A loop over 4 GiB in 1 GiB of memory and a skewed choice of pages, beside vmcache and UMap
    Peers,
    /// Unmodified real programs under `auto`, and under the kernel alone
    Suite,
    /// The UBM paper's combinations of programs that run at the same time (Figures 13 and 14)
    Live,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut machine = Machine::find()?;
    machine.disk = cli.disk;
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
    if wanted(What::Hits) {
        hits::hits(&machine, cli.repeats)?;
    }
    if wanted(What::Predict) {
        predict::predict(&machine, cli.repeats)?;
    }
    if wanted(What::Sampling) {
        sampling::sampling(&machine)?;
    }
    if wanted(What::Replay) {
        predict::replay(&machine)?;
    }
    if wanted(What::Domains) {
        domains::domains(&machine, cli.repeats)?;
    }
    if wanted(What::Hipec) {
        hipec::hipec(&machine, cli.repeats, &cli.trace)?;
    }
    if wanted(What::Heap) {
        heap::heap(&machine, cli.repeats, cli.only.as_deref())?;
    }
    if wanted(What::Library) {
        library::library(&machine, cli.repeats)?;
    }
    if wanted(What::Parallel) {
        library::parallel(&machine, cli.repeats)?;
    }
    if cli.what == What::LibraryScan {
        library::scans(&machine, cli.repeats)?;
    }
    if cli.what == What::LibraryMisses {
        library::misses(&machine, cli.repeats, 1)?;
    }
    if cli.what == What::LibraryRegions {
        library::regions(&machine, cli.repeats)?;
    }
    if cli.what == What::Translation {
        library::hits(&machine, cli.repeats)?;
    }
    if wanted(What::Translation) || cli.what == What::Library {
        translation::translation(&machine)?;
    }
    if cli.what == What::Beside {
        beside::beside(&machine, cli.repeats, cli.only.as_deref())?;
    }
    if cli.what == What::Reach {
        reach::reach(&machine, cli.repeats)?;
    }
    let wanted = |what| cli.what == What::Tables || cli.what == what;
    if wanted(What::Nlj) {
        tables::nlj(&machine, cli.repeats)?;
    }
    if wanted(What::Rdr) {
        tables::rdr(&machine, 100_000, &tables::RDR_SIZES, cli.repeats)?;
        // Minutes a run: where the paper counts block reads, once.
        tables::rdr(&machine, 1_000_000, &tables::RDR_SIZES[..2], 1)?;
    }
    if wanted(What::Overhead) {
        overhead::overhead(&machine, cli.repeats)?;
    }
    if cli.what == What::Simulator {
        simulator::simulator(&machine, cli.repeats)?;
    }
    if cli.what == What::Peers {
        peers::peers_beside(&machine, cli.repeats, cli.only.as_deref())?;
    }
    if cli.what == What::Suite {
        let pager = if cli.from_start { Pager::Policy } else { Pager::Usual }(cli.policy);
        suite::suite(&machine, cli.repeats, &pager, cli.only.as_deref())?;
    }
    if cli.what == What::Live {
        live::live(&machine, cli.repeats, cli.only.as_deref())?;
    }
    Ok(())
}
