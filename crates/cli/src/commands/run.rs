//! `pagekeeper run`: a program under a policy.

use crate::failure::{Failure, Kind};
use crate::job::{self, JobArgs, Telling};
use crate::sampling::SamplingArgs;
use crate::size::number_in;
use crate::{control, policy_text};
use pagekeeper::launch::ControlHook;
use pagekeeper_policy::PolicySpec;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const AFTER: &str = "\
Examples:
  pagekeeper run --memory 256M -- sqlite3 shop.db 'SELECT …'
  pagekeeper run --policy mru --memory 256M --files '*.db' -- sqlite3 shop.db 'SELECT …'
  pagekeeper run --policy scan.hipec --watch --memory 256M -- sqlite3 shop.db < report.sql
  pagekeeper run --heap --compress --memory 1G -- sort -S 2G access.log

`pagekeeper switch` changes the policy of a program that runs.

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
  sampling = 5
  from_start = true
  delay_writes = true
  [program.all]
  policy = \"clock\"

Signals that are sent to pagekeeper go on to the program, but for those of job control (CONT, TSTP,
TTIN, TTOU), CHLD, PIPE, URG and XFSZ; those of the terminal reach it anyway. One that is sent to
the whole process group (`kill -- -PGID`, a service manager) reaches the program twice. Send it to
pagekeeper's own process id; under systemd, set KillMode=mixed.

PAGEKEEPER_DISABLE=1 leaves every file to the kernel.";

/// Run a program with its files in memory that a policy manages
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER, override_usage = "pagekeeper run [OPTIONS] -- <PROG> [ARGS]...")]
pub(crate) struct Args {
    /// Which pages leave memory: NAME, FILE.hipec, either with :KEY=VALUE,… [default: the
    /// configuration's, else auto: whichever of several misses least]
    #[arg(long, value_name = "P", value_parser = crate::policy_text::parse)]
    policy: Option<PolicySpec>,
    /// Follow the policy's file: whenever it is saved, the new program decides
    #[arg(long)]
    watch: bool,
    /// Manage files from their first use. Otherwise, in a cgroup that bounds the kernel's page cache,
    /// `auto` leaves them to the kernel as long as nothing can be won
    #[arg(long)]
    from_start: bool,
    /// Let programs overwrite what is in memory without a system call. Others outside see it when it was
    /// written back: on fsync, close and unlock, as on NFS, else after some seconds. Not while recording
    #[arg(long, conflicts_with = "record")]
    delay_writes: bool,
    /// Keep heap pages that leave memory compressed in it, in at most this part of --memory, before they
    /// go to the file behind them [default: 0; without a value 20]
    #[arg(
        long,
        value_name = "PERCENT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "20",
        value_parser = number_in::<0, 90>,
        allow_negative_numbers = true,
        requires = "heap"
    )]
    compress: Option<u32>,
    /// Write what was counted to this file, as JSON
    #[arg(long, value_name = "OUT.json")]
    stats: Option<PathBuf>,
    /// Record to this file what is seen: faults, calls, and sampled touches of mapped pages (without
    /// privilege faults only). `pagekeeper record` sees nearly every touch
    #[arg(long, value_name = "OUT")]
    record: Option<PathBuf>,
    /// Record every input of the decisions too, for `pagekeeper replay`
    #[arg(long, requires = "record")]
    record_inputs: bool,
    /// Say what was done, and name every file that was left to the kernel
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let job = args.job.resolve(args.policy, "auto", args.sampling.sampling)?;
    let followed = args.watch.then(|| followed(&job.policy)).transpose()?;
    let mut options = job.options()?;
    options.standby = !args.from_start && !job.from_start && job.policy.info().name == "auto";
    options.delay_writes = args.delay_writes || job.delay_writes;
    if let (Some(heap), Some(percent)) = (&mut options.heap, args.compress) {
        heap.compressed_percent = percent;
    }
    options.record = args.record.map(|path| (path, args.record_inputs));
    options.control = Some(ControlHook(Arc::new(move |control| {
        if let Some((text, path, bytes)) = followed.clone() {
            control::follow_file(control.clone(), text, path, bytes);
        }
        control::serve(control)
    })));
    let tells = args.verbose || job.files_given;
    let telling = Telling {
        stats: args.stats.as_deref(),
        record_option: "--record",
        verbose: args.verbose,
        nothing_managed_of: tells.then_some(&job),
    };
    job::execute(&options, &telling)
}

/// The policy's text and file, and what that holds now.
fn followed(policy: &PolicySpec) -> Result<(String, PathBuf, Vec<u8>), Failure> {
    let text = policy.to_string();
    let Some((path, _)) = policy_text::program_path(&text) else {
        let text = format!("--watch follows a policy's file, and `{policy}` has none");
        return Err(Failure::new(Kind::Usage, text));
    };
    let path = path.to_owned();
    let bytes = policy_text::read_bytes(&path).map_err(|error| {
        Failure::new(Kind::Usage, format!("cannot read {}: {error}", path.display()))
    })?;
    Ok((text, path, bytes))
}
