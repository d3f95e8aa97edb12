//! `pagekeeper import`: any trace into our own format.

use crate::failure::Failure;
use crate::output::{Output, Stdout};
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_trace::{Header, ImportError, Source, TraceError, TraceWriter};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const AFTER: &str = "\
Examples:
  pagekeeper import blocks.txt --page-bytes 8192 -o blocks.pkt
  pagekeeper import w92.oracleGeneral.zst --objects pages -o w92.pkt
  pagekeeper import requests.csv --columns time=1,obj=3,size=4 -o requests.pkt
  pagekeeper import P1.lis --from-format arc -o p1.pkt
  pagekeeper import cut-short.pkt --salvage -o whole.pkt

The output appears when it is whole. A trace that is damaged leaves nothing, or, with --salvage,
everything before the damage; the damage is reported and the exit code is 65.

";

/// Convert a trace of any known format to our own
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER.to_owned() + &trace_input::formats())]
pub(crate) struct Args {
    /// The trace to read
    trace: PathBuf,
    /// The trace to write, or - for standard output
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    /// Of a trace that is damaged, keep everything before the damage
    #[arg(long)]
    salvage: bool,
    #[command(flatten)]
    input: InputArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let meter = Meter::default();
    let what = format!("importing {}", args.trace.display());
    let _waiting = Waiting::for_end_of_file(what, &meter);
    let mut source = trace_input::open_to_convert(&args.trace, &args.input, &meter)?;
    let of_output = |e: TraceError| Failure::from(e).of_file(&args.output);
    let header = source.header().clone();
    let (read, records) = if args.output == Path::new("-") {
        let mut stdout = Stdout::new();
        match to_stdout(source.as_mut(), header, &mut stdout, args.salvage) {
            Err(_) if stdout.reader_is_gone() => return Ok(()),
            other => other.map_err(of_output)?,
        }
    } else {
        let output = Output::create(&args.output, &[&args.trace])?;
        let mut writer = TraceWriter::new(output, header).map_err(of_output)?;
        let read = copy(source.as_mut(), &mut writer).map_err(of_output)?;
        let records = writer.records();
        if read.is_ok() || args.salvage && records > 0 {
            writer.finish().map_err(of_output)?.keep()?;
        }
        (read, records)
    };
    if read.is_ok() || args.salvage {
        trace_input::tell_dropped(&args.trace, source.as_ref());
    }
    read.map_err(|e| {
        let failure = Failure::from(e).of_file(&args.trace);
        match (records, args.salvage) {
            (0, _) => failure.nothing_to_salvage(),
            (_, true) => {
                report::say(&format!(
                    "{}: wrote the {records} records before the damage",
                    args.output.display()
                ));
                failure.salvaged()
            }
            (_, false) => failure,
        }
    })
}

/// Writes all records to standard output as they come; one that is damaged is not finished, unless it
/// is to be salvaged.
fn to_stdout(
    source: &mut dyn Source,
    header: Header,
    stdout: &mut Stdout,
    salvage: bool,
) -> Result<(Result<(), ImportError>, u64), TraceError> {
    let mut writer = TraceWriter::new(BufWriter::new(stdout), header)?;
    let read = copy(source, &mut writer)?;
    let records = writer.records();
    if read.is_ok() || salvage {
        let mut stdout = writer.finish()?;
        stdout.flush().map_err(|source| TraceError::Write { offset: 0, source })?;
    }
    Ok((read, records))
}

/// Writes all records; the inner result is the source's damage, after all before it was written.
fn copy(
    source: &mut dyn Source,
    writer: &mut TraceWriter<impl Write>,
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
