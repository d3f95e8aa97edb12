//! `pagekeeper man`: manual pages.

use crate::cli::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_mangen::Man;
use std::io;
use std::path::{Path, PathBuf};

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
    let mut command = Cli::command();
    let version = command.get_version().unwrap_or_default();
    let source = format!("{} {version}", command.get_name());
    command.build();
    generate(&command, &source, &args.directory).map_err(failed)
}

/// Pages of a command and of those below it. The source, at the foot of a page, is the program with
/// its version, of which commands have none.
fn generate(command: &clap::Command, source: &str, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        generate(below, source, directory)?;
    }
    Man::new(command.clone()).source(source).generate_to(directory).map(drop)
}
