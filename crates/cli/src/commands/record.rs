//! `pagekeeper record`: a program's reference string.

use crate::failure::Failure;
use crate::job::{self, JobArgs, Telling};
use crate::size::number_in;
use pagekeeper_policy::PolicySpec;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER: &str = "\
Example:
  pagekeeper record --memory 256M --files '*.db' -o shop.pkt -- sqlite3 shop.db 'SELECT …'
  pagekeeper simulate shop.pkt --policy all --frames 128M,256M,512M

To see references, only the pages touched last stay mapped (--window); every other touch is a
fault of a few microseconds, so that a recorded run is slower than others. Traces hold file names.";

/// Run a program and record which pages of its files it touches
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, override_usage = "pagekeeper record [OPTIONS] --output <OUT.pkt> -- <PROG> [ARGS]...")]
pub(crate) struct Args {
    /// The trace to write
    #[arg(long, short, value_name = "OUT.pkt")]
    output: PathBuf,
    /// Policy of the recorded run: NAME, FILE.hipec, either with :KEY=VALUE,… [default: the
    /// configuration's, else lru]
    #[arg(long, value_name = "P", value_parser = crate::policy_text::parse)]
    policy: Option<PolicySpec>,
    /// Pages whose touches are not seen [default: a 128th of the memory, from 8 to 1024]
    #[arg(long, value_name = "N", value_parser = number_in::<1, { u32::MAX }>)]
    #[arg(allow_negative_numbers = true)]
    window: Option<u32>,
    /// Record every input of the decisions too, for `pagekeeper replay`
    #[arg(long)]
    inputs: bool,
    /// Write what was counted to this file, as JSON
    #[arg(long, value_name = "OUT.json")]
    stats: Option<PathBuf>,
    /// Say what was done, and name every file that was left to the kernel
    #[arg(long, short)]
    verbose: bool,
    /// For `tune`, which says itself that nothing was managed
    #[arg(long, hide = true)]
    for_tune: bool,
    #[command(flatten)]
    job: JobArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let job = args.job.resolve(args.policy, "lru", None)?;
    let mut options = job.options()?;
    let window = args.window.unwrap_or_else(|| window_pages(options.memory_bytes));
    options.window_pages = Some(window);
    options.record = Some((args.output, args.inputs));
    let telling = Telling {
        stats: args.stats.as_deref(),
        record_option: "--output",
        verbose: args.verbose,
        nothing_managed_of: (!args.for_tune).then_some(&job),
    };
    job::execute(&options, &telling)
}

fn window_pages(memory_bytes: u64) -> u32 {
    let frames = pagekeeper_frames::Budget::new(memory_bytes, 0).frames(0);
    pagekeeper_frames::Config::recording_window(frames)
}
