//! The command line as a whole.

use crate::commands::{
    completions, doctor, export, hipec, import, man, policies, pool, record, replay, report, run,
    simulate, switch, tune,
};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;

const ABOUT: &str = "Chooses a page replacement policy for a program, and runs it under that \
                     policy";

const AFTER: &str = "\
Examples:
  pagekeeper doctor
  pagekeeper tune --memory 256M --files '*.db' -- sqlite3 shop.db < report.sql
  pagekeeper run --policy mru --memory 256M --files '*.db' -- sqlite3 shop.db

Sizes are binary: 64k, 64M, 1.5G. A policy is NAME or NAME:KEY=VALUE,…; see `pagekeeper policies`.

Exit codes:
  0   all is well
  1   failure
  2   usage: the command line or the configuration file is wrong
  65  bad input: a trace is damaged or in an unknown format
  69  the machine lacks something; see `pagekeeper doctor`
  74  data could not be written
  130 the user ended it with Ctrl-C (`tune`)
`run` and `record` pass on the program's own exit code, or die of the signal that it died of; a
program that cannot be run gives 126, one that is not found 127.";

/// Chooses a page replacement policy for a program, and runs it under that policy.
#[derive(Parser, Debug)]
#[command(name = "pagekeeper", version, about = ABOUT, after_help = AFTER)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Tune(tune::Args),
    Run(run::Args),
    Record(record::Args),
    Switch(switch::Args),
    Replay(replay::Args),
    Simulate(simulate::Args),
    Report(report::Args),
    Pool(pool::Args),
    Import(import::Args),
    Export(export::Args),
    Policies(policies::Args),
    Hipec(hipec::Args),
    Doctor(doctor::Args),
    #[command(hide = true)]
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
}

/// The same with `run` alone, since programs pay for its start: the texts and rules of all commands
/// take half a millisecond, as long as the rest of it.
#[derive(Parser, Debug)]
#[command(name = "pagekeeper", version, disable_help_subcommand = true, max_term_width = 100)]
struct RunLine {
    #[command(subcommand)]
    command: RunOnly,
}

#[derive(Subcommand, Debug)]
enum RunOnly {
    Run(run::Args),
}

/// What this process was asked for; ends it where that is help, or wrong.
pub(crate) fn command_line() -> Command {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        let line = RunLine::try_parse().unwrap_or_else(|error| explained(error).exit());
        let RunOnly::Run(args) = line.command;
        return Command::Run(args);
    }
    Cli::try_parse().unwrap_or_else(|error| explained(error).exit()).command
}

/// The same error, in words that say which argument it is about, and what to do.
fn explained(error: clap::Error) -> clap::Error {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match explanation(error.kind(), &arguments) {
        Some(text) => Cli::command().error(error.kind(), text),
        None => error,
    }
}

fn explanation(kind: ErrorKind, arguments: &[OsString]) -> Option<String> {
    match kind {
        ErrorKind::InvalidUtf8 => {
            // What comes after is the program's.
            let ours = arguments.iter().take_while(|argument| *argument != "--");
            let odd: Vec<String> = ours
                .filter(|argument| argument.to_str().is_none())
                .map(|argument| format!("{argument:?}"))
                .collect();
            (!odd.is_empty()).then(|| {
                let odd = odd.join(", ");
                format!(
                    "options are read as UTF-8, and this is not: {odd}; name the file by a link, or \
                     by a pattern"
                )
            })
        }
        ErrorKind::InvalidSubcommand if arguments.first().is_some_and(|word| word == "help") => {
            let command = match arguments.get(1) {
                Some(command) => format!("{} --help", command.to_string_lossy()),
                None => "--help".to_owned(),
            };
            Some(format!("there is no command `help`: write `pagekeeper {command}`"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "invalid UTF-8 was detected in one or more arguments" did not say in which.
    #[test]
    fn arguments_that_are_no_text_are_named() {
        use std::os::unix::ffi::OsStringExt;
        let odd = |start: &str| OsString::from_vec([start.as_bytes(), &[0xff]].concat());
        let line = ["--policy".into(), odd("a"), "--".into(), odd("b")];
        let text = explanation(ErrorKind::InvalidUtf8, &line).unwrap();
        assert!(text.contains(r#"and this is not: "a\xFF";"#), "{text}");
        // What the program is given is its own.
        assert_eq!(explanation(ErrorKind::InvalidUtf8, &line[2..]), None);
    }

    #[test]
    fn arguments_of_the_program_are_its_own() {
        use std::os::unix::ffi::OsStringExt;
        let odd = std::ffi::OsString::from_vec(vec![b'-', 0xff]);
        for separator in [Some("--".into()), None] {
            let mut line: Vec<std::ffi::OsString> =
                ["pagekeeper", "run", "--policy", "lru", "--memory", "1M"].map(Into::into).into();
            line.extend(separator);
            line.extend(["cat".into(), "--policy".into(), "-v".into(), "--".into(), odd.clone()]);
            let Command::Run(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
            let expected = ["cat", "--policy", "-v", "--"].map(Into::into).into_iter();
            assert_eq!(args.job.command, expected.chain([odd.clone()]).collect::<Vec<_>>());
        }
        let mistaken = ["pagekeeper", "run", "--polcy", "lru", "--", "cat"];
        assert!(Cli::try_parse_from(mistaken).unwrap_err().to_string().contains("--policy"));
    }

    #[test]
    fn run_alone_is_the_run_of_all() {
        let help = |mut command: clap::Command| {
            command.build();
            command.find_subcommand_mut("run").expect("it has one").render_long_help().to_string()
        };
        assert_eq!(help(RunLine::command()), help(Cli::command()));
    }

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        let command = Cli::command();
        command.clone().debug_assert();
        let all: Vec<&clap::Command> =
            command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
        let below = all.iter().flat_map(|command| command.get_subcommands());
        for command in all.iter().copied().chain(below) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "{} has no example", command.get_name());
            assert!(command.get_about().is_some(), "{} has no text", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {argument}", command.get_name());
            }
        }
    }
}
