//! `pagekeeper export`: our traces into formats of others.

use crate::failure::Failure;
use crate::output::{Output, Stdout};
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_trace::{exporter, exporters};
use std::path::{Path, PathBuf};

/// Convert a trace to another format
#[derive(clap::Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// The trace to read, in any format
    trace: PathBuf,
    /// Format to write
    #[arg(id = "trace_format", long = "as", value_name = "FORMAT")]
    format: String,
    /// File to write, or - for standard output
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    input: InputArgs,
}

fn after_help() -> String {
    let formats: Vec<String> =
        exporters().iter().map(|e| format!("\n  {:<15} {}", e.name(), e.summary())).collect();
    format!(
        "Examples:\n  pagekeeper export shop.pkt --as csv -o shop.csv\n  \
         pagekeeper export shop.pkt --as oracleGeneral -o shop.oracleGeneral\n\n\
         The output appears when it is whole; a trace that is damaged leaves none.\n\n\
         Formats to write (--as):{}\n\n{}",
        formats.concat(),
        trace_input::formats()
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let meter = Meter::default();
    let what = format!("exporting {}", args.trace.display());
    let _waiting = Waiting::for_end_of_file(what, &meter);
    let exporter = exporter(&args.format)?;
    let mut source = trace_input::open(&args.trace, &args.input, &meter)?;
    let failed = |e| Failure::from(e).of_file(&args.trace);
    let summary = if args.output == Path::new("-") {
        let mut stdout = Stdout::new();
        match exporter.export(source.as_mut(), &mut stdout) {
            Err(_) if stdout.reader_is_gone() => return Ok(()),
            other => other.map_err(failed)?,
        }
    } else {
        let mut output = Output::create(&args.output, &[&args.trace])?;
        let summary = exporter.export(source.as_mut(), &mut output).map_err(failed)?;
        output.keep()?;
        summary
    };
    trace_input::tell_dropped(&args.trace, source.as_ref());
    for (count, what) in [
        (
            summary.dropped,
            "records that are no references (what is recorded beside them: processes, files, faults, \
             inputs) have no place in this format and were left out; all references are there",
        ),
        (summary.unmarked_writes, "references were writes, which this format does not say"),
    ] {
        if count > 0 {
            report::say(&format!("{}: {count} {what}", args.trace.display()));
        }
    }
    Ok(())
}
