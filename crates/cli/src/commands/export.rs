//! `pagekeeper export`: our traces into formats of others.

use crate::failure::Failure;
use crate::output::{Output, Stdout};
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_trace::{Dropped, Header, ImportError, Record, Source, exporter, exporters};
use std::collections::BTreeMap;
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
    let source = trace_input::open_to_convert(&args.trace, &args.input, &meter)?;
    let mut source = Counted { source, others: BTreeMap::new() };
    let failed = |e| Failure::from(e).of_file(&args.trace);
    let summary = if args.output == Path::new("-") {
        let mut stdout = Stdout::new();
        match exporter.export(&mut source, &mut stdout) {
            Err(_) if stdout.reader_is_gone() => return Ok(()),
            other => other.map_err(failed)?,
        }
    } else {
        let mut output = Output::create(&args.output, &[&args.trace])?;
        let summary = exporter.export(&mut source, &mut output).map_err(failed)?;
        output.keep()?;
        summary
    };
    trace_input::tell_dropped(&args.trace, &source);
    if summary.dropped > 0 {
        let kinds: Vec<String> =
            source.others.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        report::say(&format!(
            "{}: {} records beside the references ({}) have no place in this format; all references \
             are there",
            args.trace.display(),
            summary.dropped,
            kinds.join(", ")
        ));
    }
    if summary.unmarked_writes > 0 {
        report::say(&format!(
            "{}: {} references were writes, which this format does not say",
            args.trace.display(),
            summary.unmarked_writes
        ));
    }
    Ok(())
}

/// A trace whose records beside the references are counted by kind.
struct Counted {
    source: Box<dyn Source>,
    others: BTreeMap<&'static str, u64>,
}

impl Source for Counted {
    fn header(&self) -> &Header {
        self.source.header()
    }

    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<bool, ImportError> {
        let before = batch.len();
        let more = self.source.next_batch(batch);
        for kind in batch[before..].iter().filter_map(kind) {
            *self.others.entry(kind).or_default() += 1;
        }
        more
    }

    fn dropped(&self) -> Vec<Dropped> {
        self.source.dropped()
    }
}

/// What a record is of, beside references.
fn kind(record: &Record) -> Option<&'static str> {
    Some(match record {
        Record::Reference(_) => return None,
        Record::Process(_) => "of processes",
        Record::Segment(_) | Record::Resize(_) => "of segments",
        Record::Extent(_) => "of heap memory",
        Record::Fault(_) => "of faults",
        Record::Input(_) | Record::Digest(_) => "of inputs",
        Record::Policy(_) => "of policies",
        Record::Sampling(_) => "of sampling",
        Record::CpuTime(_) => "of processor time",
    })
}
