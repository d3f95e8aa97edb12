//! `pagekeeper switch`: another policy for a program that runs.

use crate::control;
use crate::failure::Failure;
use crate::report;
use crate::size::number_in;
use pagekeeper_policy::PolicySpec;

const AFTER: &str = "\
Examples:
  pagekeeper switch 4711 mru
  pagekeeper switch $(pidof sqlite3) scan.hipec
  pagekeeper switch 4711 scan.hipec:commands_per_frame=16

Every page that is in memory stays there, and is handed to the new policy in the old one's order.
A program that is refused changes nothing. Only the user who started the run may do this. With
`pagekeeper run --policy FILE.hipec --watch` the policy follows its file by itself.";

/// Give a program that runs under `pagekeeper run` another policy
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Process id of the program, or of its `pagekeeper run`
    #[arg(value_parser = number_in::<1, { u32::MAX }>, allow_negative_numbers = true)]
    pid: u32,
    /// Which pages leave memory from now on: NAME, FILE.hipec, either with :KEY=VALUE,…
    #[arg(value_parser = crate::policy_text::parse)]
    policy: PolicySpec,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let done = control::ask(args.pid, &args.policy)?;
    report::print(&format!("{done}\n"))
}
