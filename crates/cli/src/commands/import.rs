//! `pagekeeper import`: any trace into our own format.

use crate::failure::{Failure, Kind};
use crate::progress::Waiting;
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_trace::{ImportError, Source, TraceError, TraceWriter};
use std::fs::File;
use std::path::PathBuf;

const AFTER: &str = "\
Examples:
  pagekeeper import blocks.txt --page-bytes 8192 -o blocks.pkt
  pagekeeper import cut-short.pkt -o whole.pkt

Of a trace that is damaged, everything before the damage is written; the damage is reported and
the exit code is 65.

";

/// Convert a trace of any known format to our own
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER.to_owned() + &trace_input::formats())]
pub(crate) struct Args {
    /// The trace to read
    trace: PathBuf,
    /// The trace to write
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    input: InputArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let _waiting = Waiting::for_end_of(format!("importing {}", args.trace.display()));
    if is_same_file(args) {
        let text = format!("{} would be written over itself", args.trace.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    let mut source = trace_input::open(&args.trace, &args.input)?;
    let output =
        File::create(&args.output).map_err(|e| Failure::write(args.output.display(), &e))?;
    let of_output = |e: TraceError| Failure::from(e).of_file(&args.output);
    let mut writer = TraceWriter::new(output, source.header().clone()).map_err(of_output)?;
    let read = copy(source.as_mut(), &mut writer).map_err(of_output)?;
    let records = writer.records();
    writer.finish().map_err(of_output)?;
    trace_input::tell_dropped(&args.trace, source.as_ref());
    read.map_err(|e| {
        report::say(&format!(
            "{}: wrote the {records} records before the damage",
            args.output.display()
        ));
        Failure::from(e).of_file(&args.trace)
    })
}

/// Writes all records; the inner result is the source's damage, after all before it was written.
fn copy(
    source: &mut dyn Source,
    writer: &mut TraceWriter<File>,
) -> Result<Result<(), ImportError>, TraceError> {
    let mut batch = Vec::new();
    loop {
        let more = source.next_batch(&mut batch);
        for record in batch.drain(..) {
            writer.record(&record)?;
        }
        match more {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
    }
}

fn is_same_file(args: &Args) -> bool {
    let id = |path: &PathBuf| rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
    id(&args.output).is_some_and(|output| id(&args.trace) == Some(output))
}
