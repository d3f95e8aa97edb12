//! `pagekeeper pool`: several programs in one pool of frames.

use crate::failure::{Failure, Kind};
use crate::policy_list::{self, PolicyList};
use crate::progress::Waiting;
use crate::report;
use crate::size::{Frames, number, number_in};
use crate::trace_input::{self, InputArgs, Loaded};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{
    Allocation, CostModel, PoolCost, PoolOptions, PoolOutcome, PoolProgram, Schedule, simulate_pool,
};
use serde::Serialize;
use std::path::PathBuf;
use std::str::FromStr;

/// Who gives up a frame when one is needed.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kinds {
    /// One policy over the pages of all programs
    Global,
    /// A share for each program: equal ones, or --bounds
    Fixed,
    /// Working sets are trimmed between bounds: who is farthest above its least gives
    Awst,
    /// Shares by marginal gain: the split that makes all programs' hits the most
    Gain,
}

/// Whose reference comes next.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Turns {
    /// One processor in turn; who faults waits for storage while others run
    RoundRobin,
    /// By the recorded times
    Time,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// For people
    Table,
    /// For programs, with frames and faults over time
    Json,
    /// For programs, one line a program
    Csv,
}

/// A program's least and most frames: `512k-16M`, or `16M` alone for the most.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: Option<Frames>,
    most: Frames,
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Bounds, String> {
        match text.split_once('-') {
            Some((least, most)) => {
                // None at all is a least that `Frames` does not take.
                let least = if least.trim() == "0" { None } else { Some(least.parse()?) };
                Ok(Bounds { least, most: most.parse()? })
            }
            None => Ok(Bounds { least: None, most: text.parse()? }),
        }
    }
}

/// Not longer than a cost of `simulate` may be.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let most = CostModel::NS_MAX as u64;
    number(text)
        .ok()
        .filter(|ns| *ns <= most)
        .ok_or_else(|| format!("write a whole number of nanoseconds from 0 to {most} (11 days)"))
}

fn period(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("write a whole number, 1 or more".to_owned()),
        references => Ok(references),
    }
}

/// Simulate several programs that share memory
#[derive(clap::Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// A trace for each program; the same one may come twice
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Memory of all, in frames of one page, or as 64M
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    frames: Frames,
    /// Who gives up a frame
    #[arg(long, value_enum, value_delimiter = ',', default_value = "global,fixed,awst,gain")]
    allocation: Vec<Kinds>,
    /// The policy within each program, or one for each in their order; over all with `global`
    #[arg(long, value_name = "P[,P…]", default_value = "lru")]
    policy: Vec<PolicyList>,
    /// Frames that a program has at the least and at the most, for all or for each in their order
    #[arg(long, value_name = "[N-]N[,…]", value_delimiter = ',', allow_negative_numbers = true)]
    bounds: Vec<Bounds>,
    /// Whose reference comes next
    #[arg(long, value_enum, default_value_t = Turns::RoundRobin)]
    schedule: Turns,
    /// Longest turn of a program, in microseconds
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = number::<u64>, allow_negative_numbers = true)]
    quantum_us: u64,
    /// A program's own work per reference, in nanoseconds
    #[arg(long, value_name = "N", default_value_t = PoolCost::default().reference_ns)]
    #[arg(value_parser = nanoseconds, allow_negative_numbers = true)]
    reference_ns: u64,
    /// Reading a page, in nanoseconds
    #[arg(long, value_name = "N", default_value_t = PoolCost::default().fault_ns)]
    #[arg(value_parser = nanoseconds, allow_negative_numbers = true)]
    fault_ns: u64,
    /// Writing a page back, in nanoseconds
    #[arg(long, value_name = "N", default_value_t = PoolCost::default().write_back_ns)]
    #[arg(value_parser = nanoseconds, allow_negative_numbers = true)]
    write_back_ns: u64,
    /// References between two splits by gain [default: twice the frames]
    #[arg(long, value_name = "N", value_parser = period)]
    #[arg(allow_negative_numbers = true)]
    period_refs: Option<u64>,
    #[command(flatten)]
    input: InputArgs,
    /// Parts of each file that faults are counted in, in JSON
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = number_in::<1, 65536>)]
    #[arg(allow_negative_numbers = true)]
    regions: u32,
    /// Points of time, in JSON
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = number_in::<1, 1_000_000>)]
    #[arg(allow_negative_numbers = true)]
    points: u32,
    /// Seed of random policies
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(value_parser = number::<u64>, allow_negative_numbers = true)]
    seed: u64,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

fn after_help() -> String {
    format!(
        "Examples:\n  \
         pagekeeper pool join.pkt film.pkt index.pkt --frames 64M\n  \
         pagekeeper pool join.pkt film.pkt --frames 20M --allocation awst --policy fifo \
         --bounds 512k-16M,512k-1M\n\n\
         CSV columns: allocation, program, references, faults, write_backs, mean_frames, \
         ended_ns.\n\n{}",
        trace_input::formats()
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let traces = trace_input::load_all(&args.traces, &args.input)?;
    let page_bytes = traces[0].page_bytes;
    if let Some(other) = traces.iter().find(|t| t.page_bytes != page_bytes) {
        let text = format!(
            "{} has pages of {} bytes and {} of {page_bytes}; give --page-bytes for all",
            other.name, other.page_bytes, traces[0].name
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let frames = traces[0].frames_of(&[args.frames])?[0];
    let programs = programs(args, &traces)?;
    let first = &programs[0].policy;
    if args.allocation.contains(&Kinds::Global) && programs.iter().any(|p| p.policy != *first) {
        report::say(&format!(
            "global has one policy over all pages: {first}, the first of --policy"
        ));
    }
    let waiting = Waiting::for_end_of("simulating");
    let mut outcomes = Vec::new();
    for kind in &args.allocation {
        let allocation = match kind {
            Kinds::Global => Allocation::Global { policy: programs[0].policy.clone() },
            Kinds::Fixed => Allocation::Fixed,
            Kinds::Awst => Allocation::Awst,
            Kinds::Gain => match args.period_refs {
                Some(period_refs) => Allocation::MarginalGain { period_refs },
                None => Allocation::gain(frames),
            },
        };
        let schedule = match args.schedule {
            Turns::RoundRobin => {
                Schedule::RoundRobin { quantum_ns: args.quantum_us.saturating_mul(1000) }
            }
            Turns::Time => Schedule::ByTime,
        };
        let options = PoolOptions {
            cost: PoolCost {
                reference_ns: args.reference_ns,
                fault_ns: args.fault_ns,
                write_back_ns: args.write_back_ns,
            },
            seed: args.seed,
            points: args.points,
            regions_per_segment: args.regions,
            ..PoolOptions::new(frames, allocation, schedule)
        };
        let outcome = simulate_pool(&programs, &options)?;
        outcomes.push((options.allocation.name(), outcome));
    }
    drop(waiting);
    match args.format {
        Format::Table => table(&outcomes),
        Format::Csv => csv(&outcomes),
        Format::Json => {
            let rows: Vec<_> = outcomes
                .iter()
                .map(|(allocation, outcome)| JsonRow { allocation, page_bytes, frames, outcome })
                .collect();
            report::print_json(&rows)
        }
    }
}

/// An outcome with what it is an outcome of.
#[derive(Serialize)]
struct JsonRow<'a> {
    allocation: &'a str,
    page_bytes: u32,
    frames: u32,
    #[serde(flatten)]
    outcome: &'a PoolOutcome,
}

/// One for all programs, or one for each.
fn each<T: Clone>(what: &str, given: &[T], programs: usize) -> Result<Vec<T>, Failure> {
    match given.len() {
        1 => Ok(vec![given[0].clone(); programs]),
        n if n == programs => Ok(given.to_vec()),
        n => {
            let text = format!("{n} {what} for {programs} programs; give one, or one for each");
            Err(Failure::new(Kind::Usage, text))
        }
    }
}

fn programs<'a>(args: &Args, traces: &'a [Loaded]) -> Result<Vec<PoolProgram<'a>>, Failure> {
    let policies: Vec<PolicySpec> = policy_list::in_order(&args.policy);
    let policies = each("policies", &policies, traces.len())?;
    let bounds = match args.bounds.as_slice() {
        [] => vec![None; traces.len()],
        given => each("bounds", given, traces.len())?.into_iter().map(Some).collect(),
    };
    let mut programs: Vec<PoolProgram<'a>> = Vec::new();
    for (place, ((trace, policy), bounds)) in traces.iter().zip(policies).zip(bounds).enumerate() {
        let same = traces[..place].iter().filter(|before| before.name == trace.name).count();
        let name = match same {
            0 => trace.name.clone(),
            n => format!("{} #{}", trace.name, n + 1),
        };
        let mut program = PoolProgram::new(name, &trace.references, policy);
        if let Some(Bounds { least, most }) = bounds {
            let least = match least {
                Some(least) => trace.frames_of(&[least])?[0],
                None => 0,
            };
            program = program.bounded(least, trace.frames_of(&[most])?[0]);
        }
        programs.push(program);
    }
    Ok(programs)
}

fn table(outcomes: &[(&str, PoolOutcome)]) -> Result<(), Failure> {
    let headings =
        ["allocation", "program", "references", "faults", "written back", "frames, mean", "ended"];
    let rows = outcomes.iter().flat_map(|(allocation, outcome)| {
        let mut rows: Vec<Vec<String>> = outcome
            .programs
            .iter()
            .map(|p| {
                vec![
                    (*allocation).to_owned(),
                    p.name.clone(),
                    report::count(p.references),
                    report::count(p.faults),
                    report::count(p.write_backs),
                    report::count(p.mean_frames.round() as u64),
                    report::duration(p.ended_ns as f64),
                ]
            })
            .collect();
        rows.push(vec![
            (*allocation).to_owned(),
            "all".to_owned(),
            report::count(outcome.programs.iter().map(|p| p.references).sum()),
            report::count(outcome.faults()),
            report::count(outcome.programs.iter().map(|p| p.write_backs).sum()),
            String::new(),
            report::duration(outcome.elapsed_ns as f64),
        ]);
        rows
    });
    report::print(&report::table(&headings, 2, rows))
}

fn csv(outcomes: &[(&str, PoolOutcome)]) -> Result<(), Failure> {
    let headings =
        ["allocation", "program", "references", "faults", "write_backs", "mean_frames", "ended_ns"];
    let rows = outcomes.iter().flat_map(|(allocation, outcome)| {
        outcome.programs.iter().map(|p| {
            vec![
                (*allocation).to_owned(),
                p.name.clone(),
                p.references.to_string(),
                p.faults.to_string(),
                p.write_backs.to_string(),
                format!("{:.1}", p.mean_frames),
                p.ended_ns.to_string(),
            ]
        })
    });
    report::print_csv(&headings, rows)
}
