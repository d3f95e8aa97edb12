//! Traces in any format, read for the simulator.

use crate::failure::{Failure, Kind};
use crate::progress::{Meter, Waiting};
use crate::report;
use crate::size::{Frames, Size};
use pagekeeper_sim::{References, SimError};
use pagekeeper_trace::{
    ColumnSpec, Header, ImportError, ImportOptions, Objects, PageCacheEvents, Source,
    for_each_record, importers,
};
use std::fs::File;
use std::path::{Path, PathBuf};

/// How a trace is read.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct InputArgs {
    /// Format of the trace, where it is not recognised; the formats are listed below
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<String>,
    /// Bytes in a page or block, for traces that do not tell [default: 4096]; for others, a
    /// multiple of what they tell (`import` and `export` keep that)
    #[arg(long, value_name = "N", value_parser = page_bytes, allow_negative_numbers = true)]
    page_bytes: Option<u32>,
    /// Columns of a csv without our headings: time=2,obj=5,size=4,op=3,… from 1, or headings;
    /// also delimiter=tab, has-header=false, obj-id-is-num=true, time-unit=ms
    #[arg(long, value_name = "KEY=COLUMN,…")]
    columns: Option<ColumnSpec>,
    /// Pages of an object, in traces of objects
    #[arg(long, value_enum, default_value_t = ObjectsArg::Unit)]
    objects: ObjectsArg,
    /// Bytes in a block of the format arc [default: 512]; a page is one block unless --page-bytes
    /// says otherwise
    #[arg(long, value_name = "N", value_parser = page_bytes, allow_negative_numbers = true)]
    block_bytes: Option<u32>,
    /// Page-cache events that are references [default: accesses, if the trace starts with any]
    #[arg(long, value_enum)]
    events: Option<EventsArg>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
enum ObjectsArg {
    /// Each is one page, as figures in the literature count
    #[default]
    Unit,
    /// Each is as many pages as its size needs
    Pages,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum EventsArg {
    /// Look-ups and faults
    Accesses,
    /// Pages that were added to the page cache
    Additions,
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
    let lines = importers().iter().map(|i| format!("\n  {:<13} {}", i.name(), i.summary()));
    format!(
        "Trace formats (--from-format), plain or compressed by zstd or gzip:{}",
        lines.collect::<String>()
    )
}

/// A trace in memory.
pub(crate) struct Loaded {
    /// The file's name without its extensions.
    pub(crate) name: String,
    /// Bytes in a page, as simulated.
    pub(crate) page_bytes: u32,
    /// Who touched what.
    pub(crate) references: References,
}

impl Loaded {
    /// Refuses to count from a reference on that the trace does not have, and says so if it has none.
    pub(crate) fn check_warm(&self, warm_refs: usize) -> Result<(), Failure> {
        let references = self.references.len();
        if warm_refs > 0 && warm_refs >= references {
            let text = format!(
                "{}: --warm {warm_refs} leaves nothing to count: the trace has {references} references",
                self.name
            );
            return Err(Failure::new(Kind::Usage, text));
        }
        if references == 0 {
            report::say(&format!("{}: it has no references", self.name));
        }
        Ok(())
    }

    /// Memory sizes in frames of this trace's pages.
    pub(crate) fn frames_of(&self, asked: &[Frames]) -> Result<Vec<u32>, Failure> {
        let frames = asked.iter().map(|frames| {
            frames.count(self.page_bytes).filter(|count| *count > 0).ok_or_else(|| {
                let text = format!(
                    "{}: the memory asked for (--memory, --frames) is not between 1 and {} pages of {} bytes",
                    self.name,
                    u32::MAX,
                    self.page_bytes
                );
                Failure::new(Kind::Usage, text)
            })
        });
        frames.collect()
    }
}

/// Opens a trace; `meter` tells how much of it was read.
pub(crate) fn open(
    path: &Path,
    args: &InputArgs,
    meter: &Meter,
) -> Result<Box<dyn Source>, Failure> {
    let options = ImportOptions {
        format: args.from_format.clone(),
        page_bytes: args.page_bytes,
        segment_name: None,
        columns: args.columns.clone(),
        objects: match args.objects {
            ObjectsArg::Unit => Objects::Unit,
            ObjectsArg::Pages => Objects::Pages,
        },
        block_bytes: args.block_bytes,
        events: args.events.map(|events| match events {
            EventsArg::Accesses => PageCacheEvents::Accesses,
            EventsArg::Additions => PageCacheEvents::Additions,
        }),
    };
    let failed = |error: ImportError| Failure::from(error).of_file(path);
    let file = File::open(path)
        .map_err(|source| failed(ImportError::Open { path: path.to_owned(), source }))?;
    let total_bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let file = meter.count(file, total_bytes);
    pagekeeper_trace::open_reader(file, Some(path), &options)
        .map_err(|error| failed(error).nothing_to_salvage())
}

/// Opens a trace to convert it, which leaves its pages as they are.
pub(crate) fn open_to_convert(
    path: &Path,
    args: &InputArgs,
    meter: &Meter,
) -> Result<Box<dyn Source>, Failure> {
    let source = open(path, args, meter)?;
    let told = source.header().page_bytes;
    match args.page_bytes.filter(|wanted| *wanted != told) {
        None => Ok(source),
        Some(wanted) => {
            let text = format!(
                "{}: --page-bytes {wanted} is for traces that do not tell, and this one has pages of \
                 {told} bytes, which stay as they are: leave the option out here, and give it to \
                 `simulate`, `report` or `pool`",
                path.display()
            );
            Err(Failure::new(Kind::Usage, text))
        }
    }
}

/// Says what an importer left out.
pub(crate) fn tell_dropped(path: &Path, source: &dyn Source) {
    for dropped in source.dropped().iter().filter(|dropped| dropped.count > 0) {
        report::say(&format!("{}: left out {} {}", path.display(), dropped.count, dropped.what));
    }
}

/// Says so if a trace has part of the references only, as `run --record` makes it: its headers have
/// no window, in which alone touches are not seen.
fn tell_incomplete(path: &Path, header: &Header) {
    if header.attribute("window_pages") != Some(b"0") || header.attribute("policy").is_none() {
        return;
    }
    let sampled = header.attribute("sampling_percent").is_some_and(|percent| percent != b"0");
    let seen = if sampled { "faults and sampled touches" } else { "faults" };
    report::say(&format!(
        "{}: it was recorded by `run`, and holds {seen} under its policy, not every touch: hits are \
         too few. `pagekeeper record` sees nearly every touch",
        path.display()
    ));
}

/// Reads all references of a trace. One that is damaged is refused.
pub(crate) fn load(path: &Path, args: &InputArgs) -> Result<Loaded, Failure> {
    let meter = Meter::default();
    let _waiting = Waiting::for_end_of_file(format!("reading {}", path.display()), &meter);
    let mut source = open(path, args, &meter)?;
    let (page_bytes, ratio) = pages(source.header(), args, path)?;
    let mut builder = References::builder();
    builder.header(source.header());
    let mut full: Result<(), SimError> = Ok(());
    let read = for_each_record(source.as_mut(), |record| {
        if full.is_ok() {
            full = builder.record(&record, page_bytes.into(), ratio);
        }
    });
    read.map_err(|e| Failure::from(e).of_file(path))?;
    full.map_err(|e| Failure::from(e).of_file(path))?;
    tell_dropped(path, source.as_ref());
    tell_incomplete(path, source.header());
    Ok(Loaded { name: name(path), page_bytes, references: builder.finish() })
}

/// The file's name without its extension, nor what says that it is compressed.
fn name(path: &Path) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or(path.as_os_str()).to_owned();
    let name = match path.extension().and_then(|extension| extension.to_str()) {
        Some("zst" | "zstd" | "gz") => stem(Path::new(&stem(path))),
        _ => stem(path),
    };
    name.to_string_lossy().into_owned()
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
