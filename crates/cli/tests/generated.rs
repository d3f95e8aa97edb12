//! What depends on the machine, or is for other programs: the doctor's report, manual pages,
//! completions.

use serde_json::Value;
use std::process::{Command, Output};

fn pagekeeper(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagekeeper"));
    command.args(arguments).env_remove("PAGEKEEPER_MASK").output().unwrap()
}

fn works(report: &Value, mode: &str) -> bool {
    let modes = report["modes"].as_array().unwrap();
    modes.iter().find(|m| m["mode"] == mode).unwrap()["works"].as_bool().unwrap()
}

#[test]
fn the_doctor_answers_in_json_and_by_its_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    for (mask, expected) in [(None, None), (Some("minor-shmem,poison"), Some(false))] {
        let mut arguments = vec!["doctor", at, "--format", "json"];
        arguments.extend(mask.iter().flat_map(|mask| ["--mask", mask]));
        let output = pagekeeper(&arguments);
        let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
        let report = &reports[0];
        assert_eq!(report["directory"], at);
        assert!(works(report, "simulate"));
        let runs = works(report, "run");
        assert_eq!(output.status.code(), Some(if runs { 0 } else { 69 }));
        assert!(expected.is_none_or(|expected| expected == runs));
        for finding in report["findings"].as_array().unwrap() {
            let status = finding["status"].as_str().unwrap();
            assert!(["works", "missing", "denied", "unknown"].contains(&status), "{finding}");
        }
    }
    let text = String::from_utf8(pagekeeper(&["doctor", "--mask", "poison"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("poison") && line.contains("missing")));
}

#[test]
fn every_command_has_a_manual_page_and_completions() {
    let directory = tempfile::tempdir().unwrap();
    assert!(pagekeeper(&["man", directory.path().to_str().unwrap()]).status.success());
    let help = String::from_utf8(pagekeeper(&["--help"]).stdout).unwrap();
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let completions = String::from_utf8(pagekeeper(&["completions", "bash"]).stdout).unwrap();
    for line in listed.lines() {
        let command = line.split_whitespace().next().unwrap();
        let page = directory.path().join(format!("pagekeeper-{command}.1"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("Example"), "{command}");
        // The foot of a page names the program and its version.
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        let source = concat!("\"pagekeeper ", env!("CARGO_PKG_VERSION"), "\"");
        assert!(title.contains(source), "{title}");
        assert!(completions.contains(command), "{command}");
    }
    assert!(directory.path().join("pagekeeper.1").is_file());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = Command::new("sh");
    let script = format!("{} completions bash | head -1", env!("CARGO_BIN_EXE_pagekeeper"));
    let output = command.args(["-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
}
