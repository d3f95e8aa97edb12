//! The UBM paper's programs, scaled down, at the same time in one pool of memory: they find the same
//! under every policy, and UBM reads less than LRU. `pagekeeper-bench live` has them at full size.

use crate::runs::{self, Budget, LIMIT, Scratch, command, example, finish, has, python};
use std::path::Path;
use std::process::Command;

#[track_caller]
fn build(command: &mut Command) {
    assert!(command.status().expect("the program can be started").success(), "{command:?}");
}

/// Ten times fewer tuples in the largest relation.
fn relations(place: &Scratch) {
    let sql = include_str!("../../../../bench/src/suite/wisconsin.sql").replace("200000", "20000");
    build(Command::new("sqlite3").arg(place.file("relations.db")).arg(sql).stdout(devnull()));
}

fn devnull() -> std::process::Stdio {
    std::process::Stdio::null()
}

/// Headers, an index of some of them, and units that include a few.
fn sources(place: &Scratch) {
    let script = include_str!("../../../../bench/src/suite/sources.py");
    build(Command::new(python()).args(["-c", script]).arg(place.file("sources")).args(["3", "30"]));
    let listed = String::from_utf8(place.get("sources/cscope.files")).expect("names are text");
    let some: Vec<&str> = listed.lines().filter(|name| name.starts_with("linux/")).collect();
    place.put("sources/cscope.files", some[..some.len() / 3].join("\n"));
}

#[test]
fn programs_at_the_same_time_find_the_same_and_ubm_reads_less() {
    if !runs::ready() || !has("sqlite3") || !has("cpp") {
        return;
    }
    let place = Scratch::new("mix");
    sources(&place);
    relations(&place);
    place.put("film", vec![7; 1 << 20]);
    let joins = include_str!("../../../../bench/src/suite/joins.sql");
    // The last join alone: of loops that follow each other, UBM as published keeps those that ended.
    let settings = joins.lines().next().expect("a line");
    let last = joins.rfind("SELECT").expect("a join");
    let join = format!("{settings} {}", &joins[last..]);
    let mut programs = vec![
        "cpp=cd sources; for unit in units/*.c; do cpp -w -nostdinc -I. -Icompiler $unit 2>&1; done; \
         true"
            .to_owned(),
        format!("postgres=sqlite3 relations.db '{join}'"),
        "video=sha256sum film".to_owned(),
    ];
    let mut expected = vec!["relations.db", "film", "sources/stdio.h"];
    if has("cscope") {
        let arguments = ["-b", "-c", "-u", "-i", "cscope.files", "-f", "../index"];
        let sources = place.file("sources");
        build(Command::new("cscope").args(arguments).current_dir(sources));
        programs.push(
            "cscope=cd sources; for word in size_t ioctl flags mode addr type len data; do \
             printf '0%s\\n1%s\\n' $word $word; done | cscope -d -l -f ../index"
                .to_owned(),
        );
        expected.push("index");
    }
    let run = |budget: Option<&Budget>| {
        let mut command = command(&place, budget, example("together"));
        let done = finish(&place, command.args(&programs), b"", LIMIT).ok();
        let told: serde_json::Value = serde_json::from_str(done.text().trim()).expect("it tells");
        (told["checksum"].clone(), done)
    };
    let (found, _) = run(None);
    let budget = Budget::kib(1500);
    let read = ["lru", "ubm", "seq", "auto"].map(|policy| {
        let (same, done) = run(Some(&budget.clone().policy(policy)));
        assert_eq!(same, found, "{policy}");
        let done = done.pressed();
        let files = done.stats["files"].as_array().expect("files");
        let managed = |name: &str| {
            let path = place.file(name);
            files.iter().any(|file| file["name"].as_str().map(Path::new) == Some(&path))
        };
        for name in &expected {
            assert!(managed(name), "{name} is in the pool under {policy}");
        }
        let pages = done.total("read_bytes") / 4096;
        eprintln!("{policy}: {pages} pages read, {} major faults", done.total("major_faults"));
        pages
    });
    let [lru, ubm, ..] = read;
    assert!(ubm * 20 < lru * 19, "UBM reads {ubm} pages, LRU {lru}");
}
