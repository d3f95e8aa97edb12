//! Traces in any format, read for the simulator.

use crate::failure::{Failure, Kind};
use crate::progress::Waiting;
use crate::report;
use crate::size::Size;
use pagekeeper_sim::{Reference, References, SimError};
use pagekeeper_trace::{Header, ImportOptions, Record, Source, for_each_record, importers};
use std::path::{Path, PathBuf};

/// How a trace is read.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct InputArgs {
    /// Format of the trace, where it is not recognised; the formats are listed below
    #[arg(id = "trace_format", long = "as", value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    /// Bytes in a page or block, for traces that do not tell [default: 4096]; for others, a
    /// multiple of what they tell
    #[arg(long, value_name = "N", value_parser = page_bytes)]
    pub(crate) page_bytes: Option<u32>,
}

fn page_bytes(text: &str) -> Result<u32, String> {
    let Size(bytes) = text.parse().map_err(|e: crate::size::NotASize| e.to_string())?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("a page has 1 to {} bytes", u32::MAX))
}

/// The formats, for `--help`.
pub(crate) fn formats() -> String {
    let lines = importers().iter().map(|i| format!("\n  {:<11} {}", i.name(), i.summary()));
    format!("Trace formats (--as):{}", lines.collect::<String>())
}

/// A trace in memory.
pub(crate) struct Loaded {
    /// The file's name without its extension.
    pub(crate) name: String,
    /// Bytes in a page, as simulated.
    pub(crate) page_bytes: u32,
    /// Who touched what.
    pub(crate) references: References,
}

/// Opens a trace and says on stderr what of it is left out.
pub(crate) fn open(path: &Path, args: &InputArgs) -> Result<Box<dyn Source>, Failure> {
    let options = ImportOptions {
        format: args.format.clone(),
        page_bytes: args.page_bytes,
        segment_name: None,
    };
    pagekeeper_trace::open(path, &options).map_err(|e| Failure::from(e).of_file(path))
}

/// Says what an importer left out.
pub(crate) fn tell_dropped(path: &Path, source: &dyn Source) {
    for dropped in source.dropped().iter().filter(|dropped| dropped.count > 0) {
        report::say(&format!("{}: left out {} {}", path.display(), dropped.count, dropped.what));
    }
}

/// Reads all references of a trace. One that is damaged is refused.
pub(crate) fn load(path: &Path, args: &InputArgs) -> Result<Loaded, Failure> {
    let _waiting = Waiting::for_end_of(format!("reading {}", path.display()));
    let mut source = open(path, args)?;
    let (page_bytes, ratio) = pages(source.header(), args, path)?;
    let mut builder = References::builder();
    let mut full: Result<(), SimError> = Ok(());
    let read = for_each_record(source.as_mut(), |record| match record {
        Record::Segment(segment) => {
            let name = String::from_utf8_lossy(&segment.name).into_owned();
            builder.segment(segment.segment, name, segment.bytes.div_ceil(page_bytes.into()));
        }
        Record::Reference(touch) if full.is_ok() => {
            full = builder.push(Reference {
                segment: touch.segment,
                page_index: touch.page / ratio,
                write: touch.write,
                time_ns: touch.time_ns,
            });
        }
        _ => {}
    });
    read.map_err(|e| Failure::from(e).of_file(path))?;
    full.map_err(|e| Failure::from(e).of_file(path))?;
    tell_dropped(path, source.as_ref());
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Loaded { name, page_bytes, references: builder.finish() })
}

/// The page size to simulate, and how many of the trace's pages make one.
fn pages(header: &Header, args: &InputArgs, path: &Path) -> Result<(u32, u64), Failure> {
    let wanted = args.page_bytes.unwrap_or(header.page_bytes);
    if !wanted.is_multiple_of(header.page_bytes) {
        let text = format!(
            "{}: --page-bytes {wanted} is no multiple of the {} bytes of the trace's pages",
            path.display(),
            header.page_bytes
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok((wanted, u64::from(wanted / header.page_bytes)))
}

/// Reads several traces; where two files have the same name, they go by their whole path.
pub(crate) fn load_all(paths: &[PathBuf], args: &InputArgs) -> Result<Vec<Loaded>, Failure> {
    let mut loaded: Vec<Loaded> =
        paths.iter().map(|path| load(path, args)).collect::<Result<_, _>>()?;
    let names: Vec<String> = loaded.iter().map(|trace| trace.name.clone()).collect();
    for (place, trace) in loaded.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == trace.name).count() > 1 {
            trace.name = paths[place].display().to_string();
        }
    }
    Ok(loaded)
}
