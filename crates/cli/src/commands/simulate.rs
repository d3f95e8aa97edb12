//! `pagekeeper simulate`: policies × memory sizes on recorded references.

use crate::account;
use crate::failure::{Failure, Kind};
use crate::policy_list::{self, PolicyList};
use crate::predict::{self, Emulation};
use crate::progress::Waiting;
use crate::report;
use crate::sampling::SamplingArgs;
use crate::size::{Frames, number, number_in};
use crate::trace_input::{self, InputArgs, Loaded};
use pagekeeper_frames::SamplingShare;
use pagekeeper_sim::{CostModel, Outcome, SimError, SweepOptions};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

/// Parts of a file that faults are counted in when JSON is asked for.
const REGIONS_DEFAULT: u32 = 16;

/// How policies see references.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// Every one
    Exact,
    /// As under a mapping, where touches of mapped pages are seen by sampling only
    Sampled,
}

/// The output's form.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// For people
    Table,
    /// For programs, with everything
    Json,
    /// For programs, one line an outcome
    Csv,
}

#[derive(Clone, Debug)]
struct Cost(String, String);

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Cost, String> {
        let (key, value) =
            text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
        CostModel::default().set(key, value).map_err(|e: SimError| e.to_string())?;
        Ok(Cost(key.into(), value.into()))
    }
}

/// Replay traces through policies and memory sizes, and count faults
#[derive(clap::Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Traces, in any known format
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Policies, or all; may be repeated
    #[arg(long, required = true, value_name = "P[,P…]")]
    policy: Vec<PolicyList>,
    /// Memory sizes, in frames of one page, or as 64M; may be repeated
    #[arg(long, required = true, value_name = "N[,N…]", value_delimiter = ',')]
    #[arg(allow_negative_numbers = true)]
    frames: Vec<Frames>,
    /// How policies see references
    #[arg(long, value_enum, default_value_t = Seen::Exact)]
    references: Seen,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Fetch neighbours along, as the live engine does
    #[arg(long)]
    readahead: bool,
    #[command(flatten)]
    input: InputArgs,
    /// Show faults by file, and by so many equal parts of each file [default: 16 in JSON]
    #[arg(long, value_name = "N", value_parser = number_in::<1, 65536>)]
    #[arg(allow_negative_numbers = true)]
    regions: Option<u32>,
    /// Costs in nanoseconds, to predict time: hit_ns, minor_fault_ns, major_request_ns, …
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',')]
    cost: Vec<Cost>,
    /// Count from this reference on; those before it warm the frames
    #[arg(long, value_name = "REFS", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(conflicts_with = "readahead", value_parser = number::<usize>)]
    warm: usize,
    /// Seed of random policies
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = number::<u64>)]
    seed: u64,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

fn after_help() -> String {
    format!(
        "Examples:\n  \
         pagekeeper simulate shop.pkt --policy lru,fifo2:inactive=1/2,opt --frames 64M,128M\n  \
         pagekeeper simulate *.trace --policy all --frames 1000,2000 --format csv\n  \
         pagekeeper simulate w92.oracleGeneral.zst --policy lru,opt --frames 1000,10000\n\n\
         Without --readahead, faults = references − hits. CSV columns: trace, policy, frames, \
         references, hits, faults, write_backs, hit_ratio, pages_read with --readahead, and \
         minor_faults with --references sampled.\n\n\
         {}\n\nCosts (--cost): {}",
        trace_input::formats(),
        CostModel::KEYS.join(", ")
    )
}

/// What seeing references may cost, where they are sampled.
fn sampled(args: &Args) -> Result<Option<SamplingShare>, Failure> {
    match (args.references, args.sampling.sampling) {
        (Seen::Sampled, share) => Ok(Some(share.unwrap_or_default())),
        (Seen::Exact, None) => Ok(None),
        (Seen::Exact, Some(_)) => {
            let text = "--sampling says what is spent on seeing references, and all are seen; add \
                        --references sampled";
            Err(Failure::new(Kind::Usage, text))
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut cost = CostModel::default();
    for Cost(key, value) in &args.cost {
        cost.set(key, value)?;
    }
    if args.warm > 0 && args.references == Seen::Sampled {
        let text = "--warm counts from a reference on, which --references sampled cannot: leave out \
                    one of them";
        return Err(Failure::new(Kind::Usage, text));
    }
    let emulation = Emulation { read_ahead: args.readahead, sampled: sampled(args)? };
    let live_only = emulation.read_ahead || emulation.sampled.is_some();
    let policies = policy_list::flatten(&args.policy, live_only);
    let regions = match args.format {
        Format::Json => args.regions.unwrap_or(REGIONS_DEFAULT),
        _ => args.regions.unwrap_or(1),
    };
    let options = SweepOptions {
        seed: args.seed,
        regions_per_segment: regions,
        cost,
        warm_refs: args.warm,
        ..SweepOptions::default()
    };
    let traces = trace_input::load_all(&args.traces, &args.input)?;
    traces.iter().try_for_each(|trace| trace.check_warm(args.warm))?;
    let waiting = Waiting::for_end_of("simulating");
    let mut results = Vec::new();
    for trace in &traces {
        let frames = trace.frames_of(&args.frames)?;
        results.push(predict::at_frames(
            &trace.references,
            &policies,
            &frames,
            emulation,
            &options,
        )?);
    }
    drop(waiting);
    let outcomes =
        || traces.iter().zip(&results).flat_map(|(t, all)| all.iter().map(move |o| (t, o)));
    match args.format {
        Format::Csv => csv(args, outcomes()),
        Format::Json => {
            let rows: Vec<JsonRow<'_>> =
                outcomes().map(|(t, o)| JsonRow::new(emulation, t, o)).collect();
            report::print_json(&rows)
        }
        Format::Table => table(args, outcomes()),
    }
}

fn csv<'a>(
    args: &Args,
    outcomes: impl Iterator<Item = (&'a Loaded, &'a Outcome)>,
) -> Result<(), Failure> {
    let mut headings = vec![
        "trace",
        "policy",
        "frames",
        "references",
        "hits",
        "faults",
        "write_backs",
        "hit_ratio",
    ];
    if args.readahead {
        headings.push("pages_read");
    }
    if args.references == Seen::Sampled {
        headings.push("minor_faults");
    }
    let rows = outcomes.map(|(trace, outcome)| {
        let counts = &outcome.counts;
        let mut fields = vec![
            trace.name.clone(),
            outcome.policy.clone(),
            outcome.frames.to_string(),
            counts.references.to_string(),
            counts.hits.to_string(),
            counts.faults.to_string(),
            counts.write_backs.to_string(),
            format!("{:.6}", outcome.hit_ratio()),
        ];
        if args.readahead {
            fields.push(counts.pages_read.to_string());
        }
        if args.references == Seen::Sampled {
            fields.push(counts.minor_faults.to_string());
        }
        fields
    });
    report::print_csv(&headings, rows)
}

/// An outcome with what it is an outcome of.
#[derive(Serialize)]
struct JsonRow<'a> {
    trace: &'a str,
    page_bytes: u32,
    memory_bytes: u64,
    references_seen: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_percent: Option<u32>,
    read_ahead: bool,
    hit_ratio: f64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl<'a> JsonRow<'a> {
    fn new(emulation: Emulation, trace: &'a Loaded, outcome: &'a Outcome) -> JsonRow<'a> {
        JsonRow {
            trace: &trace.name,
            page_bytes: trace.page_bytes,
            memory_bytes: u64::from(outcome.frames) * u64::from(trace.page_bytes),
            references_seen: if emulation.sampled.is_some() { "sampled" } else { "exact" },
            sampling_percent: emulation.sampled.map(SamplingShare::percent),
            read_ahead: emulation.read_ahead,
            hit_ratio: outcome.hit_ratio(),
            outcome,
        }
    }
}

fn table<'a>(
    args: &Args,
    outcomes: impl Iterator<Item = (&'a Loaded, &'a Outcome)> + Clone,
) -> Result<(), Failure> {
    let mut headings =
        vec!["trace", "policy", "frames", "hits", "faults", "hit ratio", "written back"];
    if args.readahead {
        headings.push("pages read");
    }
    if args.references == Seen::Sampled {
        headings.push("minor faults");
    }
    headings.push("predicted time");
    let rows = outcomes.clone().map(|(trace, outcome)| {
        let counts = &outcome.counts;
        let mut row = vec![
            trace.name.clone(),
            outcome.policy.clone(),
            report::count(outcome.frames.into()),
            report::count(counts.hits),
            report::count(counts.faults),
            report::percent(outcome.hit_ratio()),
            report::count(counts.write_backs),
        ];
        if args.readahead {
            row.push(report::count(counts.pages_read));
        }
        if args.references == Seen::Sampled {
            row.push(report::count(counts.minor_faults));
        }
        row.push(report::duration(outcome.predicted.total_ns));
        row
    });
    let mut text = report::table(&headings, 2, rows);
    for (trace, outcome) in outcomes.clone() {
        let said = outcome.account.as_ref().and_then(account::sentence);
        if let Some(said) = said {
            let frames = report::count(outcome.frames.into());
            let _ =
                write!(text, "\n{}, {} in {frames} frames: {said}\n", trace.name, outcome.policy);
        }
    }
    if args.regions.is_some() {
        let rows = outcomes.flat_map(|(trace, outcome)| region_rows(trace, outcome));
        let headings = [
            "trace",
            "policy",
            "frames",
            "file",
            "pages",
            "faults",
            "faults by region, from the start",
        ];
        text = format!("{text}\n{}", report::table(&headings, 2, rows));
    }
    report::print(&text)
}

fn region_rows(trace: &Loaded, outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |segment: &pagekeeper_sim::SegmentOutcome| {
        let by_region: Vec<String> = segment.region_faults.iter().map(u64::to_string).collect();
        let name = match segment.name.as_str() {
            "" => format!("segment {}", segment.segment),
            name => name.escape_debug().to_string(),
        };
        vec![
            trace.name.clone(),
            outcome.policy.clone(),
            report::count(outcome.frames.into()),
            name,
            report::count(segment.pages),
            report::count(segment.faults),
            by_region.join(" "),
        ]
    };
    outcome.segments.iter().map(row).collect()
}
