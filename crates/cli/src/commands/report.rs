//! `pagekeeper report`: figures of traces and policies.

use crate::failure::{Failure, Kind as FailureKind};
use crate::output::{self, Output};
use crate::policy_list::{self, PolicyList};
use crate::progress::Waiting;
use crate::report;
use crate::size::{Frames, number};
use crate::trace_input::{self, InputArgs};
use pagekeeper_policy::{PolicySpec, find};
use pagekeeper_report::{Figure, Kind, Options, Report, Stills, Trace};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Policies that are shown if none are named, as far as there are such.
const POLICIES: &[&str] = &["lru", "arc", "s3fifo", "ubm", "mru", "opt"];
/// Columns of maps that are drawn as pictures, where each cell is an element.
const STILL_COLUMNS: u32 = 140;
/// Width and height of a picture.
const STILL: (u32, u32) = (900, 480);

/// The output's form.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// One file with all figures, for a browser
    Html,
    /// All figures and their data in one file, for programs
    Json,
    /// A file a figure, with its data
    Csv,
    /// A picture a figure
    Png,
    /// A drawing a figure
    Svg,
}

impl Format {
    const fn extension(self) -> &'static str {
        match self {
            Format::Html => "html",
            Format::Json => "json",
            Format::Csv => "csv",
            Format::Png => "png",
            Format::Svg => "svg",
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 1.0);
    rate.ok_or_else(|| "a share of the pages is above 0 and at most 1, such as 0.01".to_owned())
}

/// Draw figures of traces: miss ratios by memory size, faults over time, maps, working sets
#[derive(clap::Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Args {
    /// Traces, in any known format
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// File to write, or - for standard output; a directory for several files [default:
    /// pagekeeper-report.html, or the directory pagekeeper-report, or standard output for json]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Html)]
    format: Format,
    /// Policies, or all; may be repeated [default: lru, mru, opt and others that there are]
    #[arg(long, value_name = "P[,P…]")]
    policy: Vec<PolicyList>,
    /// Memory sizes to look at closely, in frames of one page, or as 64M [default: a quarter of
    /// the pages]
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', allow_negative_numbers = true)]
    memory: Vec<Frames>,
    /// Count from this reference on; those before it fill memory
    #[arg(long, value_name = "REFS", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = number::<usize>)]
    warm: usize,
    /// Estimate miss ratios from this share of the pages, such as 0.01, and say how far off they
    /// may be; at sizes of at least 32 frames of the sample (3,200 frames at 0.01). Policies that look at
    /// neighbouring pages see all pages, and say so
    #[arg(long, value_name = "SHARE", value_parser = rate)]
    sample: Option<f64>,
    /// Figures to make, by name; may be repeated [default: all]
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',')]
    figure: Vec<Kind>,
    #[command(flatten)]
    input: InputArgs,
    /// Seed of random policies, and of the sample
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = number::<u64>)]
    seed: u64,
}

fn after_help() -> String {
    let figures = Kind::ALL.iter().map(|kind| format!("\n  {:<17} {}", kind.name(), kind.what()));
    format!(
        "Examples:\n  \
         pagekeeper report shop.pkt\n  \
         pagekeeper report shop.pkt --policy lru,clock,opt --memory 64M --output shop.html\n  \
         pagekeeper report shop.pkt --format png --figure miss-ratio --output curve.png\n  \
         pagekeeper report *.trace --format csv --output data/\n\n\
         Figures (--figure):{}\n\n{}",
        figures.collect::<String>(),
        trace_input::formats()
    )
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut policies = policy_list::flatten(&args.policy, false);
    if args.policy.is_empty() {
        policies.extend(POLICIES.iter().filter_map(|name| find(name)).map(PolicySpec::of));
    }
    let drawn = matches!(args.format, Format::Png | Format::Svg);
    if drawn {
        check_drawn(&args.figure)?;
    }
    // Traces may take minutes, and all of it would be for nothing.
    let output = begun(args)?;
    let loaded = trace_input::load_all(&args.traces, &args.input)?;
    loaded.iter().try_for_each(|trace| trace.check_warm(args.warm))?;
    let memory: Vec<Vec<u32>> =
        loaded.iter().map(|trace| trace.frames_of(&args.memory)).collect::<Result<_, Failure>>()?;
    let traces: Vec<Trace<'_>> = loaded
        .iter()
        .zip(&memory)
        .map(|(trace, memory)| Trace {
            name: &trace.name,
            page_bytes: trace.page_bytes,
            references: &trace.references,
            memory_frames: memory,
        })
        .collect();
    let mut options = Options {
        figures: args.figure.clone(),
        warm_refs: args.warm,
        sample_rate: args.sample,
        seed: args.seed,
        ..Options::new(policies)
    };
    if drawn {
        (options.cells, options.columns) = (u32::MAX / 2, STILL_COLUMNS);
    }
    let waiting = Waiting::for_end_of("analysing");
    let made = Report::make(&traces, &options)?;
    drop(waiting);
    for kind in args.figure.iter().filter(|kind| !made.kinds().contains(kind)) {
        report::say(&format!("nothing to show for `{kind}`: {}", kind.what()));
    }
    let _waiting = Waiting::for_end_of("drawing");
    match args.format {
        Format::Html => {
            let html = made.html().map_err(|e| Failure::new(FailureKind::Failure, e))?;
            write(output, html.as_bytes())
        }
        Format::Json => write(output, report::json(&made).as_bytes()),
        Format::Csv | Format::Png | Format::Svg => each(args, &made),
    }
}

/// Figures that are named, and of which there are no pictures: says so, or refuses if all are.
fn check_drawn(figures: &[Kind]) -> Result<(), Failure> {
    let tables: Vec<&str> =
        figures.iter().filter(|kind| kind.is_table()).map(|kind| kind.name()).collect();
    if tables.is_empty() {
        return Ok(());
    }
    let tables = tables.join(", ");
    if figures.iter().all(|kind| kind.is_table()) {
        let text = format!(
            "there is no picture of {tables}, which is a table: use --format csv, json or html"
        );
        return Err(Failure::new(FailureKind::Usage, text));
    }
    report::say(&format!(
        "left out {tables}, of which there is no picture: use --format csv, json or html for it"
    ));
    Ok(())
}

/// Where one file is written, or several: as told, or what each form has for it.
fn place(args: &Args) -> &Path {
    args.output.as_deref().unwrap_or(Path::new(match args.format {
        Format::Html => "pagekeeper-report.html",
        Format::Json => "-",
        Format::Csv | Format::Png | Format::Svg => "pagekeeper-report",
    }))
}

/// A file that is begun, with its path; none if it is standard output.
type Begun = Option<(PathBuf, Output)>;

fn begin(args: &Args, path: &Path) -> Result<Begun, Failure> {
    if path == Path::new("-") {
        return Ok(None);
    }
    Ok(Some((path.to_owned(), Output::create(path, &args.traces)?)))
}

/// Begins the one file that there will be, unless it is standard output; of several, finds out whether
/// they can be written.
fn begun(args: &Args) -> Result<Begun, Failure> {
    let path = place(args);
    match args.format {
        Format::Html | Format::Json => begin(args, path),
        // How many figures there will be, and so whether this is a file or a directory, is not known.
        Format::Csv | Format::Png | Format::Svg if path.is_file() => {
            begin(args, path).map(|_| None)
        }
        Format::Csv | Format::Png | Format::Svg if path == Path::new("-") => Ok(None),
        Format::Csv | Format::Png | Format::Svg => {
            let is_there = path.ancestors().find(|above| above.exists());
            let nearest = is_there.unwrap_or(Path::new("."));
            if nearest == path && !path.is_dir() {
                // A pipe, or a device.
                return Ok(None);
            }
            output::check_writable("--output", &nearest.join("figure")).map(|()| None)
        }
    }
}

/// Writes a file for each figure.
fn each(args: &Args, made: &Report) -> Result<(), Failure> {
    let drawn = matches!(args.format, Format::Png | Format::Svg);
    let figures: Vec<&Figure> =
        made.figures().filter(|figure| !drawn || figure.chart.is_some()).collect();
    // What there is nothing to show for was said.
    if figures.is_empty() {
        return Ok(());
    }
    let output = place(args).to_owned();
    let ends_as_directory = output.as_os_str().as_encoded_bytes().ends_with(b"/");
    let alone =
        figures.len() == 1 && args.output.is_some() && !ends_as_directory && !output.is_dir();
    if !alone && output == Path::new("-") {
        let text = format!(
            "{} figures do not go to standard output: name one with --figure NAME, or a directory \
             with --output",
            figures.len()
        );
        return Err(Failure::new(FailureKind::Usage, text));
    }
    if !alone {
        fs::create_dir_all(&output).map_err(|e| Failure::write(output.display(), &e))?;
    }
    let stills = if drawn { Some(Stills::new().map_err(failed)?) } else { None };
    let (width, height) = STILL;
    for figure in figures {
        let bytes = match (args.format, &stills) {
            (Format::Png, Some(stills)) => stills.png(figure, width, height).map_err(failed)?,
            (Format::Svg, Some(stills)) => {
                stills.svg(figure, width, height).map_err(failed)?.into_bytes()
            }
            _ => figure.csv().into_bytes(),
        };
        let name = format!("{}.{}", figure.id, args.format.extension());
        let path = if alone { output.clone() } else { output.join(name) };
        write(begin(args, &path)?, &bytes)?;
    }
    Ok(())
}

fn failed(error: pagekeeper_report::DrawError) -> Failure {
    Failure::new(FailureKind::Failure, error)
}

/// Writes a file, whole or not at all, and says so; or to standard output.
fn write(output: Begun, bytes: &[u8]) -> Result<(), Failure> {
    let Some((path, mut output)) = output else { return report::print_bytes(bytes) };
    output.write_all(bytes).map_err(|e| Failure::write(path.display(), &e))?;
    output.keep()?;
    report::print(&format!("{}\n", path.display()))
}
