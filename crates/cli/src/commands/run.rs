//! `pagekeeper run`: a program under a policy.

use crate::failure::Failure;
use crate::job::{self, JobArgs};
use pagekeeper_policy::PolicySpec;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER: &str = "\
Example:
  pagekeeper run --policy mru --memory 256M --files '*.db' -- sqlite3 shop.db 'SELECT …'

The program's input, output and exit code are its own; our messages go to stderr, begin with
`pagekeeper: `, and come only when there is something to say. If the program succeeds and its data
could not all be written, the exit code is 74.

What the command line leaves open comes from $XDG_CONFIG_HOME/pagekeeper/config.toml and
/etc/pagekeeper.toml, the program's own entry first:
  [program.sqlite3]
  policy = \"mru\"
  memory = \"256M\"
  files = [\"*.db\"]
  min_size = \"1M\"
  [program.all]
  policy = \"clock\"

PAGEKEEPER_DISABLE=1 leaves every file to the kernel.";

/// Run a program with its files in memory that a policy manages
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, override_usage = "pagekeeper run [OPTIONS] -- <PROG> [ARGS]...")]
pub(crate) struct Args {
    /// Which pages leave memory: NAME or NAME:KEY=VALUE,…
    #[arg(long, value_name = "P", value_parser = crate::policy_text::parse)]
    policy: Option<PolicySpec>,
    /// Write what was counted to this file, as JSON
    #[arg(long, value_name = "OUT.json")]
    stats: Option<PathBuf>,
    /// Record references and faults to this file
    #[arg(long, value_name = "OUT")]
    record: Option<PathBuf>,
    /// Record every input of the decisions too, for `pagekeeper replay`
    #[arg(long, requires = "record")]
    record_inputs: bool,
    /// Say what was done, and name every file that was left to the kernel
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut options = args.job.resolve(args.policy, None)?.options()?;
    options.record = args.record.map(|path| (path, args.record_inputs));
    job::execute(&options, args.stats.as_deref(), args.verbose)
}
