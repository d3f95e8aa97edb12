//! `pagekeeper completions`: for shells.

use crate::cli::Cli;
use crate::failure::Failure;
use crate::report;
use clap::CommandFactory;

/// Print the completions of a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  pagekeeper completions bash > pagekeeper.bash")]
pub(crate) struct Args {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pagekeeper", &mut text);
    report::print(&String::from_utf8_lossy(&text))
}
