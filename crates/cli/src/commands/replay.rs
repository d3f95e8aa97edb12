//! `pagekeeper replay`: the decisions of a recorded run, taken again.

use crate::failure::{Failure, Kind};
use crate::policy_text;
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_frames::{Brain, Config, Input, Sampling, SamplingShare};
use pagekeeper_trace::{Header, Record};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER: &str = "\
Example:
  pagekeeper record --memory 64M --inputs -o shop.pkt -- sqlite3 shop.db 'SELECT …'
  pagekeeper replay shop.pkt

A trace holds the programs that decided, so that no other file is needed.

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
    header: Header,
    /// Made when the first input comes: the policies stand before it.
    brain: Option<Brain>,
    /// Policies by number: as they were asked for, and programs.
    policies: BTreeMap<u32, (Vec<u8>, Vec<u8>)>,
    inputs: u64,
    /// Inputs at the last digest that was equal.
    equal_inputs: u64,
    checked: bool,
    problem: Option<Problem>,
}

enum Problem {
    Differs {
        after_inputs: u64,
        recorded: u64,
        replayed: u64,
    },
    BadInput {
        number: u64,
        code: u8,
    },
    LostInputs {
        expected: u64,
    },
    /// What a policy or the header says is of no use.
    Unusable(String),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let meter = Meter::default();
    let what = format!("replaying {}", args.trace.display());
    let _waiting = Waiting::for_end_of_file(what, &meter);
    let mut source = trace_input::open(&args.trace, &InputArgs::default(), &meter)?;
    let header = source.header().clone();
    let mut replay = Replay {
        header,
        brain: None,
        policies: BTreeMap::new(),
        inputs: 0,
        equal_inputs: 0,
        checked: false,
        problem: None,
    };
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
            Record::Policy(policy) => {
                let known = self.policies.entry(policy.number).or_default();
                known.0.clone_from(&policy.name);
                known.1.extend_from_slice(&policy.definition);
            }
            Record::Input(input) => match Input::decode(input.code, input.a, input.b) {
                Some(decoded) => {
                    self.problem = self.input(decoded).err().map(Problem::Unusable);
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
            Record::Digest(digest) => match self.digest() {
                Some(value) if digest.value == value => {
                    self.checked = true;
                    self.equal_inputs = self.inputs;
                }
                Some(replayed) => {
                    self.problem = Some(Problem::Differs {
                        after_inputs: self.inputs,
                        recorded: digest.value,
                        replayed,
                    });
                }
                None => {}
            },
            _ => {}
        }
    }

    fn digest(&self) -> Option<u64> {
        self.brain.as_ref().map(Brain::digest)
    }

    fn input(&mut self, input: Input) -> Result<(), String> {
        let brain = match &mut self.brain {
            Some(brain) => brain,
            none => none.insert(brain_of(&self.header, self.policies.get(&0))?),
        };
        if let Input::Policy { number, frames } = input {
            let (name, program) = self.policies.get(&number).ok_or_else(|| {
                format!("it does not hold policy {number}, which decided from an input on")
            })?;
            let spec = policy_text::restore(&String::from_utf8_lossy(name), program)?;
            let policy = spec.build(frames, seed(&self.header)?);
            brain.put_forward(policy.map_err(|error| error.to_string())?);
        }
        brain.apply(input);
        Ok(())
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
                    self.digest().unwrap_or_default()
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
            Some(Problem::Unusable(why)) => bad(why.clone()),
            Some(Problem::LostInputs { expected }) => bad(format!(
                "it has {} inputs where there should be {expected}; record it again",
                self.inputs
            )),
        }
    }
}

/// A number in the header; `None` if there is none.
fn number(header: &Header, key: &str) -> Result<Option<u64>, String> {
    let text = header.attribute(key).map(String::from_utf8_lossy).unwrap_or_default();
    match text.is_empty() {
        true => Ok(None),
        false => text.parse().map(Some).map_err(|_| no_usable(key)),
    }
}

fn no_usable(key: &str) -> String {
    format!("its header has no usable `{key}`; only traces recorded by us replay")
}

/// What was spent on sampling; the usual share where a trace is too old to say.
fn sampling(header: &Header) -> Result<Sampling, String> {
    let key = "sampling_percent";
    let share = match number(header, key)? {
        None => Some(SamplingShare::USUAL),
        Some(percent) => {
            u32::try_from(percent).ok().and_then(|p| SamplingShare::of_percent(p).ok())
        }
    };
    share.map(Sampling::within).ok_or_else(|| no_usable(key))
}

fn seed(header: &Header) -> Result<u64, String> {
    Ok(number(header, "seed")?.unwrap_or(0))
}

/// A new brain, as the recorded run's was. `policy` is the one that decided first, if the trace
/// holds it.
fn brain_of(header: &Header, policy: Option<&(Vec<u8>, Vec<u8>)>) -> Result<Brain, String> {
    let small = |key: &str, value: u64| u32::try_from(value).map_err(|_| no_usable(key));
    let spec = match policy {
        Some((name, program)) => policy_text::restore(&String::from_utf8_lossy(name), program)?,
        None => {
            let name = header.attribute("policy").ok_or_else(|| no_usable("policy"))?;
            policy_text::parse(&String::from_utf8_lossy(name))?
        }
    };
    let frames = match number(header, "frames")? {
        Some(frames) => small("frames", frames)?,
        None => {
            let memory = number(header, "memory_bytes")?;
            let memory = memory.ok_or_else(|| no_usable("memory_bytes"))?;
            pagekeeper_frames::Budget::new(memory, spec.info().bytes_per_page).frames(0)
        }
    };
    let config = match number(header, "window_pages")? {
        None | Some(0) => Config { sampling: sampling(header)?, ..Config::live(frames) },
        Some(pages) => Config::recording(frames, small("window_pages", pages)?),
    };
    let policy = spec.build(frames, seed(header)?).map_err(|error| error.to_string())?;
    Ok(Brain::new(policy, config))
}
