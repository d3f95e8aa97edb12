//! `pagekeeper hipec`: programs that are policies, checked, compiled, shown and tried.

mod bench;
mod watch;

use crate::account::NOTES_SHOWN_MAX;
use crate::failure::{Failure, Kind};
use crate::output::Output;
use crate::policy_text;
use crate::progress::Waiting;
use crate::report;
use crate::size::Frames;
use crate::trace_input::{self, InputArgs};
use pagekeeper_hipec::asm::disassemble;
use pagekeeper_hipec::{Form, HipecPolicy, Verified};
use pagekeeper_policy::Visible;
use pagekeeper_sim::replay;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER: &str = "\
Examples:
  pagekeeper hipec check scan.hipec
  pagekeeper hipec disassemble scan.hipec
  pagekeeper hipec run scan.hipec shop.pkt --frames 64M
  pagekeeper hipec run scan.hipec shop.pkt --frames 64M --watch
  pagekeeper hipec bench scan.hipec
  pagekeeper simulate shop.pkt --policy lru,scan.hipec --frames 64M
  pagekeeper run --policy scan.hipec --memory 64M --files '*.db' -- sqlite3 shop.db

A program is written in the C-like language, or command by command (its first line is `hipec 1`);
compiled ones are read too. The language is described in docs/hipec-language.md.";

/// Check, compile, show and try policies of your own, written in HiPEC
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Say whether a program may run, and what it takes
    #[command(after_help = "Example:\n  pagekeeper hipec check scan.hipec")]
    Check {
        /// The program
        program: PathBuf,
    },
    /// Write a program's binary form
    #[command(after_help = "Example:\n  pagekeeper hipec compile scan.hipec -o scan.binary.hipec")]
    Compile {
        /// The program
        program: PathBuf,
        /// File to write, or - for standard output
        #[arg(long, short, value_name = "OUT.hipec")]
        output: PathBuf,
    },
    /// Show a program command by command
    #[command(after_help = "Example:\n  pagekeeper hipec disassemble scan.hipec")]
    Disassemble {
        /// The program
        program: PathBuf,
    },
    /// Replay a trace through a program, and show what it did
    #[command(
        after_help = "Examples:\n  pagekeeper hipec run scan.hipec shop.pkt --frames 64M\n  pagekeeper hipec run scan.hipec shop.pkt --frames 64M --watch"
    )]
    Run {
        /// The program
        program: PathBuf,
        /// The trace, in any known format
        trace: PathBuf,
        /// Memory size, in frames of one page, or as 64M
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        frames: Frames,
        /// Go on: replay it again whenever the program is saved, and compare; Ctrl-C ends it
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        input: InputArgs,
    },
    Bench(bench::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        Action::Check { program } => {
            let (verified, form) = read(program)?;
            report::print(&format!("{}: {}\n", program.display(), describe(&verified, form)))
        }
        Action::Compile { program, output } => {
            let (verified, _) = read(program)?;
            let bytes = verified.program().encode().map_err(|e| Failure::new(Kind::Data, e))?;
            if output == Path::new("-") {
                return report::print_bytes(&bytes);
            }
            let mut file = Output::create(output, &[program])?;
            file.write_all(&bytes).map_err(|error| Failure::write(output.display(), &error))?;
            file.keep()
        }
        Action::Disassemble { program } => report::print(&disassemble(read(program)?.0.program())),
        Action::Run { program, trace, frames, watch: true, input } => {
            let trace = trace_input::load(trace, input)?;
            let frames = trace.frames_of(&[*frames])?[0];
            watch::run(program, &trace, frames)
        }
        Action::Run { program, trace, frames, watch: false, input } => {
            let (verified, _) = read(program)?;
            let trace = trace_input::load(trace, input)?;
            let frames = trace.frames_of(&[*frames])?[0];
            let mut policy = HipecPolicy::new(Arc::new(verified), frames);
            let waiting = Waiting::for_end_of("simulating");
            let counts = replay(&trace.references, &mut policy, frames, |_| {})?;
            drop(waiting);
            let (hits, faults) = (counts.hits, counts.faults);
            let mut text = format!(
                "{} in {frames} frames: {} references, {hits} hits, {faults} faults\n",
                trace.name, counts.references
            );
            text.push_str(&what_it_did(&mut policy));
            report::print(&text)
        }
        Action::Bench(args) => bench::run(args, read(&args.program)?.0),
    }
}

fn read(path: &Path) -> Result<(Verified, Form), Failure> {
    policy_text::read(path).map_err(|error| Failure::new(Kind::Data, error))
}

fn describe(verified: &Verified, form: Form) -> String {
    let program = verified.program();
    let form = match form {
        Form::Source => "source",
        Form::Assembler => "commands",
        Form::Binary => "binary",
    };
    let commands: usize = program.events.iter().map(|event| event.commands.len()).sum();
    let events: Vec<&str> = program.events.iter().map(|event| event.name.as_str()).collect();
    format!(
        "may run ({form}; {} operands, {commands} commands in {}; {} bytes per page)",
        program.operands.len(),
        events.join(", "),
        verified.bytes_per_page()
    )
}

fn what_it_did(policy: &mut HipecPolicy) -> String {
    let counts = policy.counts();
    let mut text = String::new();
    for (what, count) in [
        ("events", counts.events),
        ("commands", counts.commands),
        ("of these in Replace", counts.replace_commands),
        ("most in one event", counts.event_commands_max),
        ("victims it chose", counts.chosen),
        ("victims taken without it", counts.passed_over),
        ("events over their budget", counts.overruns),
        ("events with a mistake", counts.misuses),
        ("events that left a page on no queue", counts.loose_ends),
    ] {
        let _ = writeln!(text, "{count:>12}  {what}");
    }
    let notes = policy.take_notes();
    for note in notes.iter().take(NOTES_SHOWN_MAX) {
        let _ = writeln!(text, "at reference {}: {}", note.at_refs, note.text);
    }
    if notes.len() > NOTES_SHOWN_MAX {
        let _ = writeln!(text, "and {} more", notes.len() - NOTES_SHOWN_MAX);
    }
    if let Some(why) = HipecPolicy::revoked(policy) {
        let _ = writeln!(text, "{why}");
    }
    text
}
