//! Outputs of `import` and `export` appear whole or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pagekeeper_trace::{Header, Reference, TraceWriter};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Resource, Rlimit, setrlimit};

fn pagekeeper(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagekeeper"));
    command.current_dir(directory).stdin(Stdio::null());
    command
}

/// The same for a user who is not root, of this number where this one is; none if that one cannot reach it, as
/// in a checkout below a folder that is root's alone.
fn pagekeeper_of_a_user(directory: &Path, id: u32) -> Option<Command> {
    let command = || {
        let mut command = pagekeeper(directory);
        if rustix::process::geteuid().is_root() {
            command.uid(id).gid(id);
        }
        command
    };
    if command().arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Some(command());
    }
    eprintln!("SKIPPED: another user cannot reach the programs of this checkout");
    None
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    pagekeeper(directory).args(arguments).output().unwrap()
}

/// Everything in a directory, hidden files too.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_killed_import_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let pipe = directory.join("blocks.txt");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let mut child =
        pagekeeper(directory).args(["import", "blocks.txt", "-o", "out.pkt"]).spawn().unwrap();
    // More than the pipe and our buffers hold, so that it is read and the output is begun.
    let mut blocks = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    blocks.write_all("123456\n".repeat(1 << 20).as_bytes()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(directory), ["blocks.txt"]);
}

#[test]
fn a_damaged_trace_leaves_the_output_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("good.txt"), "1\n2\n").unwrap();
    fs::write(directory.join("bad.txt"), "1\n2\nthree\n").unwrap();
    fs::write(directory.join("out.csv"), "precious").unwrap();
    for arguments in [
        &["import", "bad.txt", "-o", "out.csv"][..],
        &["export", "bad.txt", "--as", "csv", "-o", "out.csv"],
        &["export", "bad.txt", "--as", "oracleGeneral", "-o", "out.csv"],
    ] {
        let output = run(directory, arguments);
        assert_eq!(output.status.code(), Some(65));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("pagekeeper: bad.txt: line 3 "), "{said}");
        assert_eq!(fs::read(directory.join("out.csv")).unwrap(), b"precious");
        assert_eq!(names(directory), ["bad.txt", "good.txt", "out.csv"]);
    }
    // A good one replaces it, behind a link and with its permissions.
    fs::set_permissions(directory.join("out.csv"), fs::Permissions::from_mode(0o604)).unwrap();
    std::os::unix::fs::symlink("out.csv", directory.join("link.csv")).unwrap();
    let output = run(directory, &["export", "good.txt", "--as", "csv", "-o", "link.csv"]);
    assert_eq!(output.status.code(), Some(0));
    let text = fs::read_to_string(directory.join("out.csv")).unwrap();
    assert_eq!(text, "time,process,segment,page,write\n0,0,0,1,0\n0,0,0,2,0\n");
    assert!(directory.join("link.csv").is_symlink());
    let mode = fs::metadata(directory.join("out.csv")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o604);
    assert_eq!(names(directory), ["bad.txt", "good.txt", "link.csv", "out.csv"]);
}

#[test]
fn devices_are_written_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("good.txt"), "1\n2\n").unwrap();
    let output = run(directory.path(), &["import", "good.txt", "-o", "/dev/full"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("/dev/full: cannot write the trace at byte"), "{said}");
    // Nothing is left to be read, and nothing was recorded.
    assert!(said.trim_end().ends_with("No space left on device (os error 28)"), "{said}");
    let output = run(directory.path(), &["import", "good.txt", "-o", "/dev/null"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert_eq!(names(directory.path()), ["good.txt"]);
}

/// A report once could be written over the trace that it was of.
#[test]
fn a_report_is_not_written_over_its_traces() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("a.txt"), "1\n2\n").unwrap();
    fs::write(directory.join("b.txt"), "3\n4\n").unwrap();
    let ran = run(directory, &["report", "a.txt", "b.txt", "--output", "b.txt"]);
    assert_eq!(ran.status.code(), Some(2));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(said.contains("b.txt would be written over itself"), "{said}");
    assert_eq!(fs::read(directory.join("b.txt")).unwrap(), b"3\n4\n");
}

/// That it could not be written was found out when everything was read and drawn.
#[test]
fn where_a_report_goes_is_looked_at_before_its_traces_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("bad.txt"), "1\ntwo\n").unwrap();
    for (arguments, said) in [
        (&["--output", "bad.txt"][..], "bad.txt would be written over itself"),
        (&["--format", "csv", "--output", "bad.txt"], "bad.txt would be written over itself"),
        (&["--output", "none/a.html"], "cannot write none/a.html: No such file"),
        (&["--output", "."], "cannot write .: Is a directory"),
        (&["--format", "csv", "--output", "bad.txt/data"], "bad.txt/figure: Not a directory"),
        (&["--output", "a.html"], "bad.txt: line 2 "),
        (&["--format", "csv", "--output", "data/new"], "bad.txt: line 2 "),
        (&["--format", "csv"], "bad.txt: line 2 "),
    ] {
        let ran = run(directory, &[&["report", "bad.txt"], arguments].concat());
        let text = String::from_utf8(ran.stderr).unwrap();
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert_eq!(names(directory), ["bad.txt"], "{arguments:?}");
    }
}

/// `setpriv --reuid … pagekeeper run` with root's HOME ended with "cannot read the configuration".
#[test]
fn a_configuration_that_may_not_be_looked_at_is_passed_over_unless_it_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let named = closed.join("named.toml");
    if pagekeeper_of_a_user(directory.path(), 65534).is_none() {
        return;
    }
    let said = |arguments: &[&str]| {
        let mut command = pagekeeper_of_a_user(directory.path(), 65534).unwrap();
        command.env("XDG_CONFIG_HOME", &closed).arg("run").args(arguments);
        let output = command.args(["--memory", "1M", "--", "no-such-program"]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&[]);
    assert_eq!(code, Some(127), "{text}");
    assert!(text.contains("passed over the configuration") && text.contains("closed/pagekeeper/"));
    let (code, text) = said(&["--config", named.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("cannot read the configuration"), "{text}");
}

/// A trace of `run --record` was simulated as if it had every touch.
#[test]
fn a_trace_that_run_made_is_said_to_have_part_of_the_touches() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (window, sampling, expected) in [
        ("0", None, Some("holds faults under")),
        ("0", Some("25"), Some("holds faults and sampled touches under")),
        ("8", Some("25"), None),
    ] {
        let mut header = Header::new(4096).with("policy", "lru").with("window_pages", window);
        if let Some(percent) = sampling {
            header = header.with("sampling_percent", percent);
        }
        let file = fs::File::create(directory.join("run.pkt")).unwrap();
        let mut writer = TraceWriter::new(file, header).unwrap();
        let reference =
            Reference { time_ns: 0, process: 0, segment: 0, page: 1, write: false, by_call: false };
        writer.reference(reference).unwrap();
        writer.finish().unwrap();
        let output = run(directory, &["simulate", "run.pkt", "--policy", "lru", "--frames", "1"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        match expected {
            Some(expected) => {
                assert!(said.contains(expected) && said.contains("record`"), "{said}")
            }
            None => assert_eq!(said, ""),
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error_of_export_and_import() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("a.txt"), "123456\n".repeat(1 << 18)).unwrap();
    for arguments in [
        "export a.txt --as csv -o -",
        "export a.txt --as oracleGeneral -o -",
        "export a.txt --as pagekeeper -o -",
        "import a.txt -o -",
    ] {
        let script =
            format!("{} {arguments} | head -c 1 >/dev/null", env!("CARGO_BIN_EXE_pagekeeper"));
        let script = format!("set -o pipefail; {script}");
        let mut command = Command::new("bash");
        let output = command.current_dir(directory).args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "{arguments}: {said}");
    }
    assert_eq!(names(directory), ["a.txt"]);
}

#[test]
fn an_import_goes_to_standard_output_too() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("a.txt"), "1\n2\n1\n").unwrap();
    let output = run(directory, &["import", "a.txt", "-o", "-"]);
    assert!(output.status.success());
    fs::write(directory.join("b.pkt"), output.stdout).unwrap();
    let output = run(directory, &["export", "b.pkt", "--as", "text", "-o", "-"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n2\n1\n");
    assert_eq!(names(directory), ["a.txt", "b.pkt"]);
}

/// `--stats /nonexistent/x` was noticed when the program had run, and `record -o` told to make room.
#[test]
fn what_a_run_cannot_write_is_refused_before_the_program_starts() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let library = directory.join("none.so");
    fs::write(&library, "").unwrap();
    for (how, code, expected) in [
        (["run", "--stats", "/nonexistent/x"], 74, "cannot write /nonexistent/x: No such file"),
        (["run", "--stats", "."], 74, "cannot write .: Is a directory"),
        (["run", "--record", "/nonexistent/x"], 74, "cannot write /nonexistent/x: No such file"),
        (["record", "--output", "none.so/x"], 74, "cannot write none.so/x: Not a directory"),
        (["record", "--output", "-"], 2, "standard output is the program's; name a file (./-"),
        (["run", "--stats", "-"], 2, "standard output is the program's; name a file (./-"),
    ] {
        let mut command = pagekeeper(directory);
        command.env("PAGEKEEPER_PRELOAD", &library).args(how);
        command.args(["--config", "/dev/null", "--memory", "1M", "--", "touch", "ran"]);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{how:?}: {said}");
        assert!(said.contains(expected), "{how:?}: {said}");
        assert_eq!(names(directory), ["none.so"], "{how:?}");
    }
}

#[test]
fn a_damaged_trace_is_not_to_be_salvaged_twice_nor_where_nothing_is() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("bad.txt"), "1\n2\nthree\n").unwrap();
    let said = |arguments: &[&str]| {
        let output = run(directory, arguments);
        assert_eq!(output.status.code(), Some(65), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["import", "bad.txt", "-o", "a.pkt"]).contains("import --salvage"));
    let text = said(&["import", "bad.txt", "--salvage", "-o", "a.pkt"]);
    assert!(text.contains("records before the damage"), "{text}");
    assert!(text.contains("three") && !text.contains("import --salvage"), "{text}");
    let whole = fs::read(directory.join("a.pkt")).unwrap();
    let simulate = ["simulate", "cut.pkt", "--policy", "lru", "--frames", "1"];
    let cut_at = |end: usize| fs::write(directory.join("cut.pkt"), &whole[..end]).unwrap();
    let first = (12..whole.len()).step_by(8).find(|end| {
        cut_at(*end);
        said(&simulate).contains("of block 1,")
    });
    // In the header, and in the first block of records.
    for end in [12, first.unwrap()] {
        cut_at(end);
        for arguments in [&["import", "cut.pkt", "--salvage", "-o", "b.pkt"][..], &simulate] {
            let text = said(arguments);
            assert!(text.contains("there is no record before it"), "{text}");
            assert!(!text.contains("--salvage") && !text.contains("intact"), "{text}");
            assert!(!directory.join("b.pkt").exists());
        }
    }
}

/// A trace that its owner had protected from being written to was replaced.
#[test]
fn what_may_not_be_written_to_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(directory.join("blocks.txt"), "1\n2\n").unwrap();
    let kept = directory.join("kept.pkt");
    fs::write(&kept, "precious").unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o444)).unwrap();
    let Some(mut command) = pagekeeper_of_a_user(directory, 65534) else { return };
    let output = command.args(["import", "blocks.txt", "-o", "kept.pkt"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains("cannot write kept.pkt: Permission denied"), "{said}");
    assert_eq!(fs::read(&kept).unwrap(), b"precious");
    assert_eq!(names(directory), ["blocks.txt", "kept.pkt"]);
}

/// Commands that compute on all processors panicked where no thread can be started.
#[test]
fn without_threads_one_computes() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    fs::write(directory.join("blocks.txt"), "1\n2\n1\n").unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    let Some(mut command) = pagekeeper_of_a_user(directory, 65532) else { return };
    command.args(["simulate", "blocks.txt", "--policy", "lru,fifo", "--frames", "1,2"]);
    let none = Rlimit { current: Some(1), maximum: Some(1) };
    // SAFETY: a system call, between fork and exec.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nproc, none)?)) };
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("lru").count(), 2);
}
