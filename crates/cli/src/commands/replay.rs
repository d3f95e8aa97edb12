//! `pagekeeper replay`: the decisions of a recorded run, taken again.

use crate::failure::{Failure, Kind};
use crate::policy_text;
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_frames::{Brain, Config, Input};
use pagekeeper_trace::{Header, Record};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER: &str = "\
Example:
  pagekeeper record --memory 64M --inputs -o shop.pkt -- sqlite3 shop.db 'SELECT …'
  pagekeeper replay shop.pkt

The exit code is 0 if every decision is the same, 1 if not.";

/// Take the decisions of a recorded run again, and compare
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// A trace recorded with its inputs (`record --inputs`, `run --record-inputs`)
    trace: PathBuf,
}

/// What was found so far.
struct Replay {
    brain: Brain,
    inputs: u64,
    /// Inputs at the last digest that was equal.
    equal_inputs: u64,
    checked: bool,
    problem: Option<Problem>,
}

enum Problem {
    Differs { after_inputs: u64, recorded: u64, replayed: u64 },
    BadInput { number: u64, code: u8 },
    LostInputs { expected: u64 },
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let meter = Meter::default();
    let what = format!("replaying {}", args.trace.display());
    let _waiting = Waiting::for_end_of_file(what, &meter);
    let mut source = trace_input::open(&args.trace, &InputArgs::default(), &meter)?;
    let brain = brain_of(source.header()).map_err(|e| e.of_file(&args.trace))?;
    let mut replay = Replay { brain, inputs: 0, equal_inputs: 0, checked: false, problem: None };
    let read = pagekeeper_trace::for_each_record(source.as_mut(), |record| replay.take(&record));
    if let Some(Problem::Differs { .. }) | None = replay.problem {
        read.map_err(|e| Failure::from(e).of_file(&args.trace))?;
    }
    replay.verdict(&args.trace)
}

impl Replay {
    fn take(&mut self, record: &Record) {
        if self.problem.is_some() {
            return;
        }
        match record {
            Record::Input(input) => match Input::decode(input.code, input.a, input.b) {
                Some(decoded) => {
                    self.brain.apply(decoded);
                    self.inputs += 1;
                }
                None => {
                    let (number, code) = (self.inputs, input.code);
                    self.problem = Some(Problem::BadInput { number, code });
                }
            },
            Record::Digest(digest) if digest.after_inputs != self.inputs => {
                self.problem = Some(Problem::LostInputs { expected: digest.after_inputs });
            }
            Record::Digest(digest) if digest.value == self.brain.digest() => {
                self.checked = true;
                self.equal_inputs = self.inputs;
            }
            Record::Digest(digest) => {
                self.problem = Some(Problem::Differs {
                    after_inputs: self.inputs,
                    recorded: digest.value,
                    replayed: self.brain.digest(),
                });
            }
            _ => {}
        }
    }

    fn verdict(&self, path: &Path) -> Result<ExitCode, Failure> {
        let bad =
            |text: String| Err(Failure::new(Kind::Data, format!("{}: {text}", path.display())));
        match &self.problem {
            None if self.checked => {
                let text = format!(
                    "equal: the decisions on all {} inputs are those of the recorded run (digest \
                     {:016x})\n",
                    report::count(self.inputs),
                    self.brain.digest()
                );
                report::print(&text).map(|()| ExitCode::SUCCESS)
            }
            None => bad("it holds no inputs of decisions; record it with --inputs, or \
                 run --record-inputs"
                .into()),
            Some(Problem::Differs { after_inputs, recorded, replayed }) => {
                let text = format!(
                    "differs: between inputs {} and {}; there the recorded decisions have digest \
                     {recorded:016x}, these {replayed:016x}\n",
                    report::count(self.equal_inputs),
                    report::count(*after_inputs)
                );
                report::print(&text).map(|()| ExitCode::FAILURE)
            }
            Some(Problem::BadInput { number, code }) => bad(format!(
                "input {number} has the unknown kind {code}; it was recorded by another version"
            )),
            Some(Problem::LostInputs { expected }) => bad(format!(
                "it has {} inputs where there should be {expected}; record it again",
                self.inputs
            )),
        }
    }
}

/// A new brain, as the recorded run's was.
fn brain_of(header: &Header) -> Result<Brain, Failure> {
    let text =
        |key: &str| header.attribute(key).map(|value| String::from_utf8_lossy(value).into_owned());
    let bad = |key: &str| {
        let text = format!("its header has no usable `{key}`; only traces recorded by us replay");
        Failure::new(Kind::Data, text)
    };
    let number = |key: &str| -> Result<Option<u64>, Failure> {
        text(key).filter(|t| !t.is_empty()).map(|t| t.parse().map_err(|_| bad(key))).transpose()
    };
    let policy = text("policy").ok_or_else(|| bad("policy"))?;
    let spec = policy_text::parse(&policy).map_err(|e| Failure::new(Kind::Data, e))?;
    let frames = match number("frames")? {
        Some(frames) => u32::try_from(frames).map_err(|_| bad("frames"))?,
        None => {
            let memory = number("memory_bytes")?.ok_or_else(|| bad("memory_bytes"))?;
            pagekeeper_frames::Budget::new(memory, spec.info().bytes_per_page).frames(0)
        }
    };
    let config = match number("window_pages")? {
        None | Some(0) => Config::live(frames),
        Some(pages) => {
            let pages = u32::try_from(pages).map_err(|_| bad("window_pages"))?;
            Config::recording(frames, pages)
        }
    };
    let seed = number("seed")?.unwrap_or(0);
    Ok(Brain::new(spec.build(frames, seed)?, config))
}
