//! `pagekeeper doctor`: what this machine can do.

use crate::failure::{Failure, Kind};
use crate::report::{self, Format};
use pagekeeper_sys::doctor::{Mode, Report, Status, probe};
use pagekeeper_sys::mask::{self, Mask};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER: &str = "\
Examples:
  pagekeeper doctor
  pagekeeper doctor /var/lib/shop --format json

Everything is found out by doing it, on scratch memory and a scratch file in DIR. The exit code is
0 if programs can be run under a policy there, else 69.";

/// Find out what this kernel, container and user can do, and how to get what is missing
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Where the files lie that would be managed
    #[arg(value_name = "DIR", default_value = ".")]
    directories: Vec<PathBuf>,
    /// For people or for programs
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Pretend that these are missing: names of the table, separated by commas
    #[arg(long, value_name = "NAME[,NAME…]")]
    mask: Option<Mask>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(given) = args.mask {
        mask::set(given);
    } else {
        Mask::from_env()
            .map_err(|e| Failure::new(Kind::Usage, format!("{}: {e}", mask::ENV_MASK)))?;
    }
    let mut reports = Vec::new();
    for directory in &args.directories {
        if !directory.is_dir() {
            let text = format!("{} is no directory", directory.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        reports.push((directory.as_path(), probe(directory)));
    }
    match args.format {
        Format::Json => {
            let all: Vec<Value> = reports.iter().map(|(at, report)| as_json(at, report)).collect();
            report::print_json(&all)?;
        }
        Format::Table => {
            let all: Vec<String> = reports.iter().map(|(at, report)| as_text(at, report)).collect();
            report::print(&all.join("\n"))?;
        }
    }
    let runs = reports.iter().all(|(_, report)| report.verdict(Mode::Run).works);
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::from(Kind::Machine as u8) })
}

fn as_text(directory: &Path, report: &Report) -> String {
    let mut text = format!("{}, files in {}\n\n", report.kernel, directory.display());
    let rows = report.findings.iter().map(|finding| {
        vec![finding.capability.to_string(), finding.status.to_string(), finding.reason.clone()]
    });
    text.push_str(&report::table(&["capability", "status", "how, or why not"], 3, rows));
    let remedies: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.status != Status::Works)
        .filter_map(|finding| Some((finding.capability, finding.remedy.as_deref()?)))
        .collect();
    if !remedies.is_empty() {
        text.push_str("\nTo get what is missing:\n");
        for (capability, remedy) in remedies {
            let _ = writeln!(text, "  {capability}: {remedy}");
        }
    }
    text.push('\n');
    for mode in Mode::ALL {
        let verdict = report.verdict(mode);
        let answer = if verdict.works { "works" } else { "does not work" };
        let _ = writeln!(text, "{} {answer}", mode.name());
        for note in &verdict.notes {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

fn as_json(directory: &Path, report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "capability": finding.capability.name(),
                "status": finding.status.to_string(),
                "reason": finding.reason,
                "remedy": finding.remedy,
            })
        })
        .collect();
    let modes: Vec<Value> = Mode::ALL
        .iter()
        .map(|mode| {
            let verdict = report.verdict(*mode);
            json!({ "mode": mode.name(), "works": verdict.works, "notes": verdict.notes })
        })
        .collect();
    json!({
        "directory": directory.display().to_string(),
        "kernel": report.kernel,
        "findings": findings,
        "modes": modes,
    })
}
