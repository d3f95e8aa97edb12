//! `pagekeeper man`: manual pages.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use std::path::PathBuf;

/// Write the manual pages, one a command
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  pagekeeper man /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// Where to
    directory: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failed = |e| Failure::write(format!("manual pages to {}", args.directory.display()), &e);
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).map_err(failed)
}
