//! `pagekeeper export`: our traces into formats of others.

use crate::failure::{Failure, Kind};
use crate::progress::Waiting;
use crate::report;
use crate::trace_input::{self, InputArgs};
use pagekeeper_trace::{exporter, exporters};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Convert a trace to another format
#[derive(clap::Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// The trace to read, in any format that is recognised
    trace: PathBuf,
    /// Format to write
    #[arg(id = "trace_format", long = "as", value_name = "FORMAT")]
    format: String,
    /// File to write, or - for standard output
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
}

fn after_help() -> String {
    let formats: Vec<String> =
        exporters().iter().map(|e| format!("\n  {:<11} {}", e.name(), e.summary())).collect();
    format!(
        "Example:\n  pagekeeper export shop.pkt --as csv -o shop.csv\n\nFormats:{}",
        formats.concat()
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let _waiting = Waiting::for_end_of(format!("exporting {}", args.trace.display()));
    let exporter = exporter(&args.format)?;
    let input = InputArgs { format: None, page_bytes: None };
    let mut source = trace_input::open(&args.trace, &input)?;
    let to_stdout = args.output == Path::new("-");
    let same = |a: &Path, b: &Path| {
        let id = |path: &Path| rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        id(a).is_some_and(|output| id(b) == Some(output))
    };
    if !to_stdout && same(&args.output, &args.trace) {
        let text = format!("{} would be written over itself", args.trace.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    let mut output: Box<dyn Write> = if to_stdout {
        Box::new(std::io::stdout().lock())
    } else {
        let file = File::create(&args.output);
        Box::new(file.map_err(|e| Failure::write(args.output.display(), &e))?)
    };
    let summary = exporter
        .export(source.as_mut(), &mut output)
        .map_err(|e| Failure::from(e).of_file(&args.trace))?;
    for (count, what) in [
        (summary.dropped, "records have no place in this format and were left out"),
        (summary.unmarked_writes, "references were writes, which this format does not say"),
    ] {
        if count > 0 {
            report::say(&format!("{}: {count} {what}", args.trace.display()));
        }
    }
    Ok(())
}
