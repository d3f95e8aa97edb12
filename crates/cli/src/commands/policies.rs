//! `pagekeeper policies`: what there is to choose from.

use crate::failure::Failure;
use crate::report::{self, Format};
use pagekeeper_policy::{PolicyInfo, PolicySpec, all};
use std::fmt::Write;

const AFTER: &str = "\
Examples:
  pagekeeper policies
  pagekeeper policies fifo2
  pagekeeper policies --format json

A policy is written NAME or NAME:KEY=VALUE,KEY=VALUE wherever a command takes one.";

/// Show the policies: what each does, when it helps, its parameters and source
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Show all about this one
    name: Option<String>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let one = args.name.as_deref().map(PolicySpec::parse).transpose()?.map(|spec| spec.info());
    match (one, args.format) {
        (None, Format::Json) => report::print_json(&all()),
        (Some(info), Format::Json) => report::print_json(info),
        (None, Format::Table) => {
            let rows = all().iter().map(|info| {
                let runs = if info.runs_live() { "live, simulator" } else { "simulator" };
                vec![info.name.to_owned(), info.summary.to_owned(), runs.to_owned()]
            });
            let table = report::table(&["policy", "what it does", "runs in"], 3, rows);
            report::print(&format!("{table}\nMore about one: pagekeeper policies NAME\n"))
        }
        (Some(info), Format::Table) => report::print(&describe(info)),
    }
}

fn describe(info: &PolicyInfo) -> String {
    let mut text = format!("{}: {}\n\n", info.name, info.summary);
    let memory = format!("{} bytes per page", info.bytes_per_page);
    let runs = if info.runs_live() {
        "on live memory and in the simulator"
    } else {
        "in the simulator alone"
    };
    let source = format!("{}; {}", info.source.title, info.source.section);
    for (heading, value) in [
        ("helps", info.helps),
        ("hurts", info.hurts),
        ("runs", runs),
        ("time", info.cost),
        ("memory", &memory),
        ("source", &source),
        ("aliases", &info.aliases.join(", ")),
    ] {
        if !value.is_empty() {
            let _ = writeln!(text, "{heading:<8} {value}");
        }
    }
    if info.parameters.is_empty() {
        text.push_str("\nIt takes no parameters.\n");
        return text;
    }
    let rows = info.parameters.iter().map(|p| {
        vec![p.key.to_owned(), p.default.to_string(), p.kind.to_string(), p.meaning.to_owned()]
    });
    let _ =
        write!(text, "\n{}", report::table(&["parameter", "default", "value", "meaning"], 4, rows));
    text
}
