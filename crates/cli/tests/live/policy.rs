//! Policies of live runs: they take over from each other without losing a page, ask for pages, see
//! touches for a share of the time, and say what they did; and a recording of all that replays
//! without any other file.

use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, Reference, References, simulate_live};

use crate::runs::{
    self, Budget, Finished, Scratch, Session, Tree, command, driver, pagekeeper, preload,
};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

const LRU: &str = "Queue all;
Event PageFault() { EnQueue(FaultedPage, all, TAIL); }
Event Reference() { EnQueue(FaultedPage, all, TAIL); }
Event Replace() { return DeQueue(all, HEAD); }
";

fn run_pagekeeper(place: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new(pagekeeper());
    command.current_dir(place.path()).args(arguments).stdin(Stdio::null());
    command.output().expect("pagekeeper can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Beside the scratch directory; removed by who makes it.
fn trace_path(place: &Scratch) -> PathBuf {
    place.path().with_extension("pkt")
}

/// `pagekeeper run` of the driver in 256 KiB, with more options.
fn session(place: &Scratch, options: &[&str]) -> Session {
    session_without(place, "", options)
}

/// The same where something is lacking.
fn session_without(place: &Scratch, lacking: &str, options: &[&str]) -> Session {
    let mut command = Command::new(pagekeeper());
    command.current_dir(place.path()).env("PAGEKEEPER_PRELOAD", preload()).arg("run");
    command.env("PAGEKEEPER_MASK", lacking);
    command.args(["--memory", "256k", "--min-size", "0", "--config", "/dev/null"]);
    command.args(["--files", &format!("{}/**", place.path().display())]);
    command.args(options).arg("--stats").arg(place.path().with_extension("stats"));
    command.arg("--").arg(driver());
    Session::start(place, &mut command)
}

/// Replays the recording where no program's file is.
fn replays(place: &Scratch) {
    let trace = trace_path(place);
    let output = Command::new(pagekeeper()).current_dir("/").arg("replay").arg(&trace).output();
    let output = output.expect("pagekeeper can be started");
    assert!(
        output.status.success() && text(&output.stdout).starts_with("equal: "),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    std::fs::remove_file(trace).expect("the trace is there");
}

fn policies(done: &Finished) -> Vec<String> {
    let all = done.stats["policies"].as_array().cloned().unwrap_or_default();
    all.iter().map(|it| it["policy"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn policies_take_over_under_load_and_no_page_is_lost() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("switch");
    let pages = 160;
    place.put("data", vec![0; pages * PAGE]);
    place.put("mine.hipec", LRU);
    place.put("lost.hipec", "Queue all;\nEvent PageFault() { }\nEvent Replace() { retrun; }\n");
    let trace = trace_path(&place);
    let trace = trace.to_str().expect("it is text");
    let mut session = session(&place, &["--policy", "lru", "--record", trace, "--record-inputs"]);
    session.expect("open 1 data rw", "ok");
    session.expect(&format!("map 1 1 0 {} rw shared", pages * PAGE), "ok");
    let pid = session.tree.0.id().to_string();

    let names = ["mine.hipec", "mru", "mine.hipec:commands_per_frame=8", "clock", "auto", "lru"];
    let rounds = 4;
    let mut model = vec![0u8; pages];
    let mut at = 1u64;
    let mut load = |session: &mut Session, accesses: usize| {
        for _ in 0..accesses {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (page, value) = ((at >> 33) as usize % pages, (at >> 20) as u8);
            if at >> 63 == 0 {
                session.expect(&format!("put 1 {} {value}", page * PAGE), "ok");
                model[page] = value;
            } else {
                session.expect(&format!("get 1 {}", page * PAGE), &model[page].to_string());
            }
        }
    };
    for _ in 0..rounds {
        for name in names {
            // The switch happens while the program goes on.
            let mut switch = Command::new(pagekeeper());
            switch.current_dir(place.path()).args(["switch", &pid, name]).stdout(Stdio::piped());
            let switch = switch.spawn().expect("pagekeeper can be started");
            load(&mut session, 60);
            let output = switch.wait_with_output().expect("it ends");
            let said = text(&output.stdout);
            assert!(output.status.success(), "{name}: {said}");
            assert!(said.starts_with(&format!("{name} decides from now on, over ")), "{said}");
            load(&mut session, 60);
        }
    }
    // Who is refused changes nothing, and is told why.
    let refused = run_pagekeeper(&place, &["switch", &pid, "lost.hipec"]);
    let why = text(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("lost.hipec:3") && why.contains('^'),
        "{why}"
    );
    let refused = run_pagekeeper(&place, &["switch", &pid, "opt"]);
    let why = text(&refused.stderr);
    assert!(!refused.status.success() && why.contains("the policy stays as it was"), "{why}");
    let nobody = run_pagekeeper(&place, &["switch", "1", "lru"]);
    assert!(!nobody.status.success() && text(&nobody.stderr).contains("is no `pagekeeper run`"));
    load(&mut session, 60);
    let done = session.end().ok().pressed();
    let content = place.get("data");
    for (page, value) in model.iter().enumerate() {
        assert_eq!(content[page * PAGE], *value, "page {page}");
    }
    let expected: Vec<&str> = std::iter::once("lru")
        .chain(names.into_iter().cycle().take(rounds * names.len()))
        .collect();
    assert_eq!(policies(&done), expected);
    let commands = |at: usize| done.stats["policies"][at]["gauges"]["commands"].as_f64();
    assert!(commands(1).is_some_and(|commands| commands > 0.0), "a program's account");
    replays(&place);
}

/// A program that is waited for by its own standard error.
fn wait_for(path: &Path, what: &str) {
    let start = Instant::now();
    while !std::fs::read_to_string(path).unwrap_or_default().contains(what) {
        let said = std::fs::read_to_string(path).unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(30), "waited for `{what}`, got: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_run_follows_its_policys_file() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("follow");
    place.put("mine.hipec", LRU);
    let errors = place.path().with_extension("errors");
    let mut command = Command::new(pagekeeper());
    command.current_dir(place.path()).env("PAGEKEEPER_PRELOAD", preload());
    command.args(["run", "--policy", "mine.hipec", "--watch", "--memory", "1M"]);
    command.args(["--config", "/dev/null", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(&errors).expect("a file can be made"));
    let mut tree = Tree::start(&mut command);
    let control = format!("pagekeeper-control-{}", tree.0.id());
    let start = Instant::now();
    while !std::fs::read_to_string("/proc/net/unix").unwrap_or_default().contains(&control) {
        assert!(start.elapsed() < Duration::from_secs(30), "the run begins");
        std::thread::sleep(Duration::from_millis(20));
    }
    place.put("mine.hipec", LRU.replace("TAIL", "TIAL"));
    wait_for(&errors, "the policy stays as it was");
    wait_for(&errors, "did you mean `TAIL`?");
    place.put("mine.hipec", LRU.replace("HEAD", "TAIL"));
    wait_for(&errors, "mine.hipec decides from now on, over 0 pages in memory");
    drop(tree.0.stdin.take());
    assert!(tree.wait(runs::LIMIT).expect("it ends").success());
    let _ = std::fs::remove_file(errors);
}

/// A user of which there is nothing but the run below.
const ALONE: u32 = 54_321;

/// Where no thread could be started for it, the manager panicked, and its holder ended the program.
#[test]
fn a_file_that_cannot_be_followed_ends_nothing() {
    if !runs::ready() || !runs::has("prlimit") {
        return;
    }
    if !runs::is_root() {
        return runs::skip("only root can be another user");
    }
    let place = Scratch::new("follow-alone");
    if !runs::is_open_to_users(place.path()) {
        return;
    }
    place.put("mine.hipec", LRU);
    let errors = place.path().with_extension("errors");
    // The manager, the holder and the program.
    let mut command = Command::new("prlimit");
    command.args(["--nproc=3", "--"]).arg(pagekeeper()).current_dir(place.path());
    command.args(["run", "--policy", "mine.hipec", "--watch", "--memory", "1M"]);
    command.args(["--config", "/dev/null", "--", "cat"]).env("PAGEKEEPER_PRELOAD", preload());
    command.uid(ALONE).gid(ALONE).stdin(Stdio::piped()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(&errors).expect("a file can be made"));
    let mut tree = Tree::start(&mut command);
    wait_for(&errors, "mine.hipec is not followed: no thread can be started");
    drop(tree.0.stdin.take());
    assert!(tree.wait(runs::LIMIT).expect("it ends").success());
    let _ = std::fs::remove_file(errors);
}

/// A caller that came while the manager had no descriptor left was sent away, and there was no socket for
/// any other.
#[test]
fn a_switch_outlasts_a_moment_without_descriptors() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("switch-full");
    place.put("data", vec![3; PAGE]);
    let mut session = session(&place, &["--policy", "lru"]);
    session.expect("open 1 data r", "ok");
    session.expect(&format!("map 1 1 0 {PAGE} r shared"), "ok");
    session.expect("get 1 0", "3");
    let run = session.tree.pid();
    let number = session.tree.0.id().to_string();
    let used = Path::new("/proc").join(&number).join("fd");
    let lowest_free = (0u64..).find(|fd| !used.join(fd.to_string()).is_symlink());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limited = Rlimit { current: lowest_free, maximum };
    let before = prlimit(Some(run), Resource::Nofile, limited).expect("it is ours");
    let mut switch = Command::new(pagekeeper());
    let switch = switch.args(["switch", &number, "mru"]).stdout(Stdio::piped()).spawn();
    let mut switch = switch.expect("pagekeeper can be started");
    // The one that listens, and the one that waits to be accepted.
    let control = format!("pagekeeper-control-{number}");
    let start = Instant::now();
    let sockets = || std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut waits = || matches!(switch.try_wait(), Ok(None));
    while waits() && sockets().matches(&control).count() < 2 {
        assert!(start.elapsed() < runs::LIMIT, "the caller comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    session.expect("get 1 0", "3");
    prlimit(Some(run), Resource::Nofile, before).expect("it is ours");
    let output = switch.wait_with_output().expect("it ends");
    assert!(output.status.success() && text(&output.stdout).starts_with("mru decides from now on"));
    assert_eq!(policies(&session.end().ok()), ["lru", "mru"]);
}

fn spec_of(program: &str) -> PolicySpec {
    let (program, _) = pagekeeper_hipec::load("mine.hipec", program.as_bytes()).expect("it loads");
    let spec = pagekeeper_hipec::policy::spec(program.into(), "mine.hipec", None);
    spec.expect("it has no parameters")
}

/// What a run's counts are said to be, without a recording: its touches are known.
fn said(
    spec: &PolicySpec,
    pages: usize,
    touches: &[usize],
    share: SamplingShare,
) -> pagekeeper_sim::Counts {
    let mut references = References::builder();
    references.segment(0, "data", pages as u64);
    for page in touches {
        let page_index = *page as u64;
        let touch = Reference { segment: 0, page_index, write: false, by_call: false, time_ns: 0 };
        references.push(touch).expect("few pages");
    }
    let options = LiveOptions { sampled: Some(share), ..LiveOptions::new(256 << 10) };
    let outcome = simulate_live(&references.finish(), spec, &options);
    outcome.expect("it can be emulated").counts
}

/// The emulation once foretold 165 faults of a program with hints that had 396: what it asked for
/// pushed out the pages that were just being touched, and they were fetched again.
#[test]
fn pages_that_a_program_asks_for_are_fetched_as_foretold() {
    if !runs::ready() {
        return;
    }
    let pages = 2400usize;
    let content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE % 251) as u8).collect();
    let run = |name: &str, program: &str, touches: &[usize]| {
        let place = Scratch::new(name);
        place.put("data", &content);
        place.put("mine.hipec", program);
        let trace = trace_path(&place);
        let trace = trace.to_str().expect("it is text");
        let mut session =
            session(&place, &["--policy", "mine.hipec", "--record", trace, "--record-inputs"]);
        session.expect("open 1 data r", "ok");
        session.expect(&format!("map 1 1 0 {} r shared", pages * PAGE), "ok");
        for page in touches {
            session.expect(&format!("get 1 {}", page * PAGE), &(page % 251).to_string());
        }
        let done = session.end().ok().pressed();
        std::fs::remove_file(place.file("mine.hipec")).expect("it is there");
        replays(&place);
        let said = said(&spec_of(program), pages, touches, SamplingShare::USUAL);
        for (what, said) in [
            ("major_faults", said.faults),
            ("minor_faults", said.minor_faults),
            ("prefetched_pages", said.prefetched_pages),
            ("prefetch_wasted_pages", said.prefetch_wasted_pages),
            ("evictions", said.evictions),
        ] {
            let counted = done.total(what);
            // How many touches are looked at follows the time that misses take.
            let spread = if what == "minor_faults" { said / 3 } else { said / 10 };
            assert!(
                counted.abs_diff(said) <= spread + 4,
                "{name}: {counted} {what}, and {said} were foretold"
            );
        }
        done
    };
    let plain = LRU;
    let asking = |each: u32| {
        LRU.replace("Queue all;", "Queue all; Int step;")
            .replace(
                "TAIL); }\nEvent Ref",
                &format!(
                    "TAIL);
    if (!Prefetched) for (step = 1; step <= 6; step++) Prefetch(FaultedAddress + step * 8, {each});
}}
Event Ref"
                ),
            )
            .replace("TAIL); }\nEvent Rep", "TAIL); Prefetch(FaultedAddress + 40, 1); }\nEvent Rep")
    };
    // A stride that no read-ahead follows; each page is touched twice.
    let stride: Vec<usize> = (0..pages - 8).step_by(8).flat_map(|page| [page; 2]).collect();
    let plain_stride = run("no-hints", plain, &stride);
    let ahead = run("hints", &asking(1), &stride);
    assert!(ahead.total("prefetched_pages") > plain_stride.total("prefetched_pages") + 20);
    assert!(ahead.total("major_faults") * 5 < plain_stride.total("major_faults") * 4);
    // What was read around the first misses, until memory was full; all else was used.
    let wasted = ahead.total("prefetch_wasted_pages");
    assert!(wasted < (256 << 10) / PAGE as u64, "{wasted} were not used");
    // Pages come back, and most of what is asked for is in vain.
    let mut at = 1u64;
    let mut number = |below: usize| {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (at >> 33) as usize % below
    };
    let mut back = Vec::new();
    for _ in 0..150 {
        let first = number(pages / 4);
        back.extend([first, first + 8, first, first + 16 + number(3)]);
    }
    run("no-hints-back", plain, &back);
    let vain = run("hints-in-vain", &asking(2), &back);
    assert!(vain.total("prefetch_wasted_pages") > 100, "{}", vain.total("prefetch_wasted_pages"));
}

/// A hot set under pages that are used once; all of one file, of which page *n* holds *n* mod 251.
fn hot_set_in_a_scan(pages: usize) -> Vec<usize> {
    let mut at = 1u64;
    let touches = (0..pages).flat_map(|once| {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Not the next page: nobody fetches these ahead.
        [(at >> 33) as usize % 24 * 3, 100 + once * 37 % (pages - 100)]
    });
    touches.collect()
}

#[test]
fn touches_are_seen_for_the_share_that_is_stated_and_as_foretold() {
    if !runs::ready() {
        return;
    }
    let pages = 2003usize;
    let content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE % 251) as u8).collect();
    let touches = hot_set_in_a_scan(pages);
    let clock = PolicySpec::parse("clock").expect("it is a policy");
    let run = |percent: u32, lacking: &str| {
        let place = Scratch::new("share");
        place.put("data", &content);
        let trace = trace_path(&place);
        let (trace, share) = (trace.to_str().expect("it is text"), percent.to_string());
        let options = ["--policy", "clock", "--sampling", &share];
        let record = ["--record", trace, "--record-inputs"];
        let mut session = session_without(&place, lacking, &[&options[..], &record[..]].concat());
        session.expect("open 1 data r", "ok");
        session.expect(&format!("map 1 1 0 {} r shared", pages * PAGE), "ok");
        for page in &touches {
            session.expect(&format!("get 1 {}", page * PAGE), &(page % 251).to_string());
        }
        let done = session.end().ok().pressed();
        replays(&place);
        done
    };
    let mut before = None;
    for percent in [0, 5, 100] {
        let share = SamplingShare::of_percent(percent).expect("it is a share");
        let said = said(&clock, pages, &touches, share);
        let done = run(percent, "");
        let counted = |what: &str| done.total(what);
        assert_eq!(counted("sampling_percent"), u64::from(percent));
        assert_eq!(counted("unmapped_pages") == 0, percent == 0);
        // Pages are unmapped while the program goes on, which may be faster.
        for (what, said, off) in [
            ("major_faults", said.faults, said.faults / 10),
            ("unmapped_pages", said.unmapped_pages, said.unmapped_pages / 10),
            ("touches_seen", said.touches_seen, said.touches_seen / 8),
        ] {
            let counted = counted(what);
            let is_near = counted.abs_diff(said) <= off + 8;
            assert!(is_near, "{percent} %: {counted} {what}, {said} were foretold");
        }
        let paid = counted("evictions") * 2 * u64::from(percent) / 100;
        let (frames, seen) = (64, counted("touches_seen"));
        assert!(seen <= paid + frames, "{percent} %: {seen} touches for {paid}");
        let (less_seen, more_missed) = before.unwrap_or((seen, u64::MAX));
        assert!(seen > less_seen || percent == 0, "{percent} %: {seen} touches");
        assert!(counted("major_faults") < more_missed, "{percent} %: {}", done.stats);
        before = Some((seen, counted("major_faults")));
    }
    // Where nothing can be unmapped, a recording says that nothing was.
    let blind = run(100, "remote-zap");
    let share = blind.stats["sampling_percent"].as_u64();
    assert_eq!((blind.total("unmapped_pages"), share), (0, Some(0)));
}

#[test]
fn what_a_program_writes_back_is_in_its_file_and_evicted_pages_are_whole() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("flush");
    let pages = 200usize;
    place.put("data", vec![0; pages * PAGE]);
    place.put(
        "mine.hipec",
        "Queue all;
Event PageFault() { if (Mod(FaultedPage)) Flush(FaultedPage); EnQueue(FaultedPage, all, TAIL); }
Event Replace() { return DeQueue(all, HEAD); }
",
    );
    let mut session = session(&place, &["--policy", "mine.hipec"]);
    session.expect("open 1 data rw", "ok");
    session.expect(&format!("map 1 1 0 {} rw shared", pages * PAGE), "ok");
    for round in 1..4 {
        for page in 0..pages {
            let value = (page * 7 + round) % 256;
            session.expect(&format!("put 1 {} {value}", page * PAGE), "ok");
            session.expect(&format!("get 1 {}", page * PAGE), &value.to_string());
        }
    }
    let done = session.end().ok().pressed();
    let content = place.get("data");
    for page in 0..pages {
        assert_eq!(usize::from(content[page * PAGE]), (page * 7 + 3) % 256, "page {page}");
    }
    // The last few newcomers of a round are still there, and dirty, in the next.
    assert!(done.total("write_backs") >= 3 * pages as u64 - 16, "{}", done.total("write_backs"));
}

#[test]
fn a_program_that_does_not_end_is_revoked_and_that_is_said_at_once_and_in_the_statistics() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("revoked");
    let pages = 200usize;
    place.put("data", vec![1; pages * PAGE]);
    place.put("endless.hipec", LRU.replace("return De", "while (1 == 1) { }\n return De"));
    let budget = Budget::kib(256).policy("endless.hipec");
    let mut session = Session::start(&place, &mut command(&place, Some(&budget), driver()));
    session.expect("open 1 data r", "ok");
    session.expect(&format!("map 1 1 0 {} r shared", pages * PAGE), "ok");
    for page in (0..pages).rev() {
        session.expect(&format!("get 1 {}", page * PAGE), "1");
    }
    let done = session.end().ok().pressed();
    let account = &done.stats["policies"][0];
    assert_eq!(account["gauges"]["overruns"].as_f64(), Some(16.0), "{account}");
    assert!(account["gauges"]["passed_over_pages"].as_f64() > Some(16.0), "{account}");
    assert!(account["notes"].as_array().is_some_and(|notes| notes.len() == 16), "{account}");
    let why = account["revoked"].as_str().expect("it was revoked");
    assert!(why.starts_with("the program is revoked after 16 failures"), "{why}");
    for said in [why, "16 overruns, 0 misuses", "were taken without it", "at reference "] {
        assert!(done.stderr.contains(said), "`{said}` is not in: {}", done.stderr);
    }
}
