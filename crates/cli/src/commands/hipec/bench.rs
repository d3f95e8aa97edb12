//! `pagekeeper hipec bench`: what a program's decisions cost, by themselves.

use crate::failure::{Failure, Kind};
use crate::progress::Waiting;
use crate::report::{self, Format};
use crate::size::{Frames, number_in};
use crate::trace_input::{self, InputArgs};
use pagekeeper_hipec::compile::Execution;
use pagekeeper_hipec::{HipecPolicy, Verified};
use pagekeeper_policy::policies::{fifo2::Fifo2, lru::Lru};
use pagekeeper_policy::{Fraction, Policy};
use pagekeeper_sim::{Calls, Reference, References, SimError};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const AFTER: &str = "\
Examples:
  pagekeeper hipec bench scan.hipec
  pagekeeper hipec bench scan.hipec --trace shop.pkt --frames 64M --format json

The calls of a replay are kept and told again, so that nothing but the policy is timed, one way
after the other, and the median of the repeats counts. A command's time is the program's, all of
its events included, less what the pool's own order beside it takes. Built-in strings:
  loop   round and round over 1.25 times the frames
  skew   over 4 times the frames, a few pages most of the time
  tree   from the root of an index of 4 times the frames down to a page of data";

/// Page size of the built-in strings.
const PAGE_BYTES: u32 = 4096;

/// References of each built-in string.
const REFERENCES: u64 = 200_000;

/// Time a program: nanoseconds a command, commands an event, references a second
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// The program
    pub(crate) program: PathBuf,
    /// A trace, in any known format, in place of the built-in strings
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Memory size, in frames of one page, or as 64M
    #[arg(long, value_name = "N", default_value = "4096", allow_negative_numbers = true)]
    frames: Frames,
    /// How often each way is timed
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = number_in::<1, 1000>, allow_negative_numbers = true)]
    repeats: u32,
    #[command(flatten)]
    input: InputArgs,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// What was seen on one string.
#[derive(Serialize)]
struct Measured {
    string: String,
    frames: u32,
    references: u64,
    faults: u64,
    lru_faults: u64,
    events: u64,
    commands: u64,
    commands_per_event: f64,
    event_commands_max: u64,
    budget_commands: u64,
    /// Of one event's budget, at most.
    budget_share_max: f64,
    overruns: u64,
    misuses: u64,
    revoked: Option<String>,
    interpreted: Timed,
    /// None where there is no compiler for the host.
    compiled: Option<Timed>,
    lru_refs_per_second: f64,
}

/// One way of running the program.
#[derive(Clone, Copy, Serialize)]
struct Timed {
    refs_per_second: f64,
    ns_per_command: Option<f64>,
    ns_per_event: Option<f64>,
}

/// Runs the command.
pub(crate) fn run(args: &Args, program: Verified) -> Result<(), Failure> {
    let program = Arc::new(program);
    let mut measured = Vec::new();
    if let Some(path) = &args.trace {
        let trace = trace_input::load(path, &args.input)?;
        let frames = trace.frames_of(&[args.frames])?[0];
        let _waiting = Waiting::for_end_of("measuring");
        measured.push(measure(&program, trace.name, &trace.references, frames, args.repeats)?);
    } else {
        let frames =
            args.frames.count(PAGE_BYTES).filter(|frames| *frames > 0).ok_or_else(|| {
                let text =
                    format!("--frames is not between 1 and {} pages of 4096 bytes", u32::MAX);
                Failure::new(Kind::Usage, text)
            })?;
        let _waiting = Waiting::for_end_of("measuring");
        for (name, references) in built_in(frames)? {
            measured.push(measure(&program, name.into(), &references, frames, args.repeats)?);
        }
    }
    match args.format {
        Format::Json => report::print_json(&measured),
        Format::Table => report::print(&shown(&measured)),
    }
}

/// The built-in strings, for this many frames.
fn built_in(frames: u32) -> Result<[(&'static str, References); 3], SimError> {
    let frames = u64::from(frames);
    let around = frames + frames.div_ceil(4);
    let looped = (0..REFERENCES).map(|at| (0, at % around));
    let pages = 4 * frames;
    let skewed = (0..REFERENCES).map(|at| {
        // The fourth power of an even draw: half of the references go to a sixteenth of the pages.
        let draw = (disorder(at) >> 11) as f64 / (1u64 << 53) as f64;
        (0, ((draw.powi(4) * pages as f64) as u64).min(pages - 1))
    });
    // As the paper's: records of 64 bytes, 64 in a page, level by level.
    let records = pages.saturating_mul(64);
    let retrieved = (0..).flat_map(|at| {
        let record = 1 + disorder(at) % records;
        let down = (0..=record.ilog2()).rev().map(move |above| (0, ((record >> above) - 1) / 64));
        down.chain([(1, disorder(record) % pages)])
    });
    Ok([
        ("loop", string(looped)?),
        ("skew", string(skewed)?),
        ("tree", string(retrieved.take(REFERENCES as usize))?),
    ])
}

fn string(touches: impl Iterator<Item = (u32, u64)>) -> Result<References, SimError> {
    let mut builder = References::builder();
    for (segment, page_index) in touches {
        builder.push(Reference {
            segment,
            page_index,
            write: false,
            by_call: false,
            time_ns: 0,
        })?;
    }
    Ok(builder.finish())
}

/// A number without an order, always the same (splitmix64's mixer).
fn disorder(at: u64) -> u64 {
    let mut bits = at.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// The order that a pool keeps beside every program.
const fn own_order() -> Fifo2 {
    Fifo2::new(Fraction::new(2, 3))
}

fn measure(
    program: &Arc<Verified>,
    string: String,
    references: &References,
    frames: u32,
    repeats: u32,
) -> Result<Measured, Failure> {
    let build = |execution| HipecPolicy::with_execution(program.clone(), frames, execution);
    let interpreted =
        || build(Execution::Interpreted).map_err(|error| Failure::new(Kind::Data, error));
    let calls = Calls::of(references, interpreted()?, frames)?;
    let mut policy = interpreted()?;
    calls.tell(&mut policy);
    let counts = policy.counts();
    let lru_calls = Calls::of(references, Lru::new(), frames)?;
    let has_compiler = build(Execution::Compiled).is_ok();
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..repeats {
        let [own, lru, one_by_one, compiled] = &mut times;
        own.push(ns(own_order(), |policy| calls.tell_removing(policy)));
        lru.push(ns(Lru::new(), |policy| lru_calls.tell(policy)));
        one_by_one.push(ns(interpreted()?, |policy| calls.tell(policy)));
        if has_compiler && let Ok(policy) = build(Execution::Compiled) {
            compiled.push(ns(policy, |policy| calls.tell(policy)));
        }
    }
    let [own, lru, one_by_one, compiled] = times.map(median);
    let per_second = |ns: f64| calls.references() as f64 / ns * 1e9;
    let timed = |ns: f64| {
        let share = |of: u64| (of > 0).then(|| (ns - own.unwrap_or_default()).max(0.0) / of as f64);
        Timed {
            refs_per_second: per_second(ns),
            ns_per_command: share(counts.commands),
            ns_per_event: share(counts.events),
        }
    };
    let budget = policy.budget_commands();
    Ok(Measured {
        string,
        frames,
        references: calls.references(),
        faults: calls.faults(),
        lru_faults: lru_calls.faults(),
        events: counts.events,
        commands: counts.commands,
        commands_per_event: counts.commands as f64 / counts.events.max(1) as f64,
        event_commands_max: counts.event_commands_max,
        budget_commands: budget,
        budget_share_max: counts.event_commands_max as f64 / budget as f64,
        overruns: counts.overruns,
        misuses: counts.misuses,
        revoked: policy.revoked().map(str::to_owned),
        interpreted: timed(one_by_one.unwrap_or(f64::NAN)),
        compiled: compiled.map(timed),
        lru_refs_per_second: per_second(lru.unwrap_or(f64::NAN)),
    })
}

fn ns<P: Policy>(mut policy: P, tell: impl FnOnce(&mut P)) -> f64 {
    let start = Instant::now();
    tell(&mut policy);
    start.elapsed().as_nanos() as f64
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn shown(measured: &[Measured]) -> String {
    let million = |refs_per_second: f64| format!("{:.1}", refs_per_second / 1e6);
    let or_none = |ns: Option<f64>| ns.map_or_else(|| "–".to_owned(), |ns| format!("{ns:.1}"));
    let rows = measured.iter().map(|it| {
        let compiled = it.compiled;
        vec![
            it.string.clone(),
            report::count(it.references),
            report::count(it.faults),
            format!("{:.1}", it.commands_per_event),
            report::count(it.event_commands_max),
            report::percent(it.budget_share_max),
            or_none(it.interpreted.ns_per_command),
            or_none(compiled.and_then(|it| it.ns_per_command)),
            million(it.interpreted.refs_per_second),
            compiled.map_or_else(|| "–".to_owned(), |it| million(it.refs_per_second)),
            million(it.lru_refs_per_second),
        ]
    });
    let headings = [
        "string",
        "references",
        "faults",
        "commands/event",
        "most",
        "of budget",
        "ns/command",
        "compiled",
        "Mrefs/s",
        "compiled",
        "lru",
    ];
    let mut text = report::table(&headings, 1, rows);
    for it in measured {
        for (what, count) in
            [("events over their budget", it.overruns), ("events with a mistake", it.misuses)]
        {
            if count > 0 {
                let _ = writeln!(text, "{}: {} {what}", it.string, report::count(count));
            }
        }
        if let Some(why) = &it.revoked {
            let _ = writeln!(text, "{}: {why}", it.string);
        }
    }
    if measured.iter().all(|it| it.compiled.is_none()) {
        text.push_str("There is no compiler for this host: programs are interpreted.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Strings are as they are described: what the native policy misses on them shows it.
    #[test]
    fn built_in_strings_are_what_they_are_called() {
        let [(_, looped), (_, skewed), (_, tree)] = built_in(64).unwrap();
        assert_eq!(looped.pages(), 80);
        assert!(skewed.pages() > 250 && skewed.pages() <= 256, "{}", skewed.pages());
        assert!(tree.pages() > 256 && tree.pages() <= 512, "{}", tree.pages());
        for references in [&looped, &skewed, &tree] {
            assert_eq!(references.len() as u64, REFERENCES);
        }
        let faults = |references| Calls::of(references, Lru::new(), 64).unwrap().faults();
        assert_eq!(faults(&looped), REFERENCES);
        assert!((REFERENCES / 10..REFERENCES / 2).contains(&faults(&skewed)));
        assert!((REFERENCES / 20..REFERENCES / 2).contains(&faults(&tree)));
    }
}
