//! The commands, one file each.

pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod hipec;
pub(crate) mod import;
pub(crate) mod man;
pub(crate) mod policies;
pub(crate) mod pool;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod switch;
pub(crate) mod tune;

use crate::cli::Command;
use crate::failure::Failure;
use crate::threads;
use std::process::ExitCode;

/// Runs a command; its exit code, if it came to its end.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let ok = |()| ExitCode::SUCCESS;
    if let Command::Simulate(_) | Command::Pool(_) | Command::Report(_) = command {
        threads::compute_where_possible();
    }
    match command {
        Command::Tune(args) => tune::run(args),
        Command::Run(args) => run::run(args),
        Command::Record(args) => record::run(args),
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args).map(ok),
        Command::Pool(args) => pool::run(&args).map(ok),
        Command::Switch(args) => switch::run(&args).map(ok),
        Command::Report(args) => report::run(&args).map(ok),
        Command::Import(args) => import::run(&args).map(ok),
        Command::Export(args) => export::run(&args).map(ok),
        Command::Policies(args) => policies::run(&args).map(ok),
        Command::Hipec(args) => hipec::run(&args).map(ok),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args).map(ok),
        Command::Man(args) => man::run(&args).map(ok),
    }
}
