//! `pagekeeper tune`: records a program, simulates every policy, recommends one, and measures
//! whether it was right.
//!
//! Every run of the program is a process of its own (`pagekeeper record`, `pagekeeper run`, or the
//! program itself for the kernel), so that one cgroup holds a contender whole: the program, its
//! manager, and the frames.

mod contender;
mod findings;
mod forecast;
mod input;
mod interrupts;
mod output;
mod peak;
mod verdict;

use crate::failure::{Failure, Kind};
use crate::job::{Job, JobArgs};
use crate::policy_list::{self, PolicyList};
use crate::progress::Waiting;
use crate::report::{self, Format, say};
use crate::sampling::SamplingArgs;
use crate::signals;
use crate::size::Size;
use crate::threads;
use crate::trace_input::{self, InputArgs};
use contender::{Contender, Ended, RunFailure, RunStats, Runner};
use findings::{Findings, Measured, Row};
use forecast::Forecast;
use interrupts::Interrupts;
use pagekeeper_policy::PolicySpec;
use std::process::ExitCode;

const AFTER: &str = "\
Examples:
  pagekeeper tune --memory 256M --files '*.db' -- sqlite3 shop.db < report.sql
  pagekeeper tune --policy all,scan.hipec --memory 256M -- sqlite3 shop.db < report.sql

PROG is run up to four times, and should do the same each time:
  1. recorded, under --record-policy
  2. under the recommended policy
  3. under lru
  4. by the kernel alone, if a memory cgroup can be made
Before each, the files' pages are dropped from the kernel's page cache. If a memory cgroup can be
made, all runs but the first are in one of the same limit: --memory, and an allowance for the
program itself and its manager, which grows if a run is killed for lack of memory.
Files are managed from their first use in all of them (as with `run --from-start`), under auto
too, which else leaves files to the kernel while nothing can be won.

Standard input, if it is a file or a pipe, is given to every run; from a terminal, to none. The
standard output of the first run is shown (with --format json, on standard error); that of the
others is compared with it, and a difference is reported. Their standard error is shown only if
they fail.

Recommended is the policy that should read least from storage, of those that should take no more
than a tenth longer than the fastest; lru, if none is better by 2%. If the kernel alone was faster
than that by more than a tenth, with as much memory for pages, recommended is the kernel.";

/// Find the best policy for a program: record it, simulate every policy, run the best
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, override_usage = "pagekeeper tune [OPTIONS] -- <PROG> [ARGS]...")]
pub(crate) struct Args {
    /// Policies to choose from, FILE.hipec among them; may be repeated [default: all]
    #[arg(long, value_name = "P[,P…]")]
    policy: Vec<PolicyList>,
    /// Policy of the recorded run
    #[arg(long, value_name = "P", default_value = "lru")]
    #[arg(value_parser = crate::policy_text::parse)]
    record_policy: PolicySpec,
    /// Compare the outputs of all runs byte for byte; exit with 1 if they differ
    #[arg(long)]
    check: bool,
    /// Keep the recording in this file
    #[arg(long, value_name = "OUT.pkt")]
    record: Option<std::path::PathBuf>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    job: JobArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let interrupts = Interrupts::take();
    threads::compute_where_possible();
    let done = tune(args, &interrupts);
    match (done, interrupts.ended()) {
        // All that there was to remove is.
        (Err(failure), Some(signal)) => {
            say(&failure.to_string());
            Ok(signals::die_of(signal))
        }
        (done, _) => done,
    }
}

fn tune(args: Args, interrupts: &Interrupts) -> Result<ExitCode, Failure> {
    let policies = policies(&args.policy)?;
    let job = args.job.resolve(Some(args.record_policy), "auto", args.sampling.sampling)?;
    let format = args.format;
    let mut runner = Runner::new(&job, interrupts, args.check, format == Format::Json)?;

    say(&format!("recording the program under {} in {}", job.policy, job.memory));
    let trace = args.record.unwrap_or_else(|| runner.scratch("recording.pkt"));
    let contender = Contender::Recorded(trace.clone());
    let recorded = runner.run(&contender).map_err(|failure| runner.failure(&contender, failure))?;
    let stats = recorded.stats.as_ref().expect("a recorded run has statistics");

    let loaded = trace_input::load(&trace, &InputArgs::default()).map_err(|failure| {
        match recorded.status.code() == Some(Kind::Output as i32) {
            // The message is above.
            true => Failure::new(Kind::Output, contender.ended_badly(recorded.status)),
            false => failure,
        }
    })?;
    say(&format!("simulating {} policies", policies.len()));
    let waiting = Waiting::for_end_of("simulating");
    let forecast =
        Forecast::new(&loaded, &policies, job.memory.0, job.sampling, stats, recorded.cpu)?;
    drop(waiting);
    if loaded.references.is_empty() {
        return Err(nothing_managed(&job, stats));
    }

    runner.set_limit(recorded.peak_program_bytes);
    let mut findings = Findings::new(&job, &recorded, &forecast);
    let best = forecast.best();
    let mut contenders = vec![Contender::Policy(best.clone())];
    let lru = forecast::lru();
    if best != lru {
        contenders.push(Contender::Policy(lru));
    }
    match runner.no_limit_reason() {
        None => contenders.push(Contender::Kernel),
        Some(reason) => findings.kernel_skipped = Some(reason.to_owned()),
    }
    while let Some(contender) = contenders.get(findings.rows.len()) {
        let what = format!("running under {contender}");
        say(&what);
        let waiting = Waiting::for_end_of(what);
        let ran = runner.run(contender);
        drop(waiting);
        match ran {
            Ok(ended) => findings.rows.push(row(contender, &forecast, &recorded, &ended)),
            // Without swap, the kernel has nowhere to put memory that does not fit.
            Err(RunFailure::OutOfMemory)
                if matches!(contender, Contender::Kernel) && job.heap.is_some() =>
            {
                let limit = Size(runner.limit_bytes().unwrap_or(0));
                findings.kernel_skipped =
                    Some(format!("in {limit} it ends the program for lack of memory"));
                contenders.pop();
            }
            // All contenders have the same limit: they start again with a larger one.
            Err(RunFailure::OutOfMemory) if runner.raise_limit() => findings.rows.clear(),
            Err(failure) => return Err(runner.failure(contender, failure)),
        }
    }
    findings.limit_bytes = runner.limit_bytes();
    findings.allowance_bytes = runner.allowance_bytes();
    findings.conclude(recorded.peak_program_bytes);
    let same = findings.rows.iter().all(|row| row.difference.is_none());
    findings.same_output = same;
    match format {
        Format::Json => report::print_json(&findings)?,
        Format::Table => report::print(&findings.as_text())?,
    }
    Ok(if args.check && !same { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What there is to choose from; lru is always among them, to compare with.
fn policies(lists: &[PolicyList]) -> Result<Vec<PolicySpec>, Failure> {
    let mut policies = match lists {
        [] => policy_list::flatten(&[policy_list::every()], true),
        lists => policy_list::flatten(lists, true),
    };
    if let Some(spec) = policies.iter().find(|spec| !spec.info().runs_live()) {
        let text = format!("policy `{spec}` runs in the simulator alone and cannot be recommended");
        return Err(Failure::new(Kind::Usage, text));
    }
    if !policies.contains(&forecast::lru()) {
        policies.push(forecast::lru());
    }
    Ok(policies)
}

fn nothing_managed(job: &Job, stats: &RunStats) -> Failure {
    let passed = !stats.passed_through.is_empty();
    let reason = job.nothing_managed(stats.files.len(), passed);
    let text = format!("{reason}; there is nothing to choose a policy for");
    Failure::new(Kind::Failure, text)
}

fn row(contender: &Contender, forecast: &Forecast, recorded: &Ended, ended: &Ended) -> Row {
    let mut difference = recorded.output.difference(&ended.output);
    if difference.is_none() && recorded.status != ended.status {
        difference = Some(format!("it ended with {}, not {}", ended.status, recorded.status));
    }
    Row {
        name: contender.to_string(),
        predicted: match contender {
            Contender::Policy(spec) => forecast.of(spec),
            _ => None,
        },
        measured: Measured::of(ended),
        difference,
    }
}
