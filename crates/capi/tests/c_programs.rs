//! Programs in C against the library as it is installed.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const SKIPPED: i32 = 77;
const FLAGS: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo puts the libraries of this build.
fn built() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    own.parent().expect("a folder").to_owned()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: Output) -> String {
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

/// Installs into a folder.
fn install(prefix: &str, destdir: &Path) {
    let mut install = Command::new(root().join("scripts/install.sh"));
    install.arg("library").env("BUILT", built()).env("PREFIX", prefix).env("DESTDIR", destdir);
    run(install.env_remove("LIBDIR").env_remove("INCLUDEDIR"));
}

/// A folder where the library is installed under `usr`; removed by the operating system, with the
/// build directory.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        install("/usr", &folder);
        folder
    })
}

fn lib() -> PathBuf {
    installed().join("usr/lib")
}

/// Compiles a program of `tests/programs` or elsewhere, and links it.
fn build(compiler: &str, flags: &[&str], source: &Path, name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new(compiler);
    cc.args(FLAGS).args(flags).arg("-I").arg(installed().join("usr/include"));
    cc.arg("-I").arg(programs()).arg("-o").arg(&program).arg(source);
    run(cc.arg("-L").arg(lib()).args(["-lpagekeeper", "-lpthread"]));
    program
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

fn c_program(name: &str) -> PathBuf {
    build("cc", &["-std=c11"], &programs().join(format!("{name}.c")), name)
}

/// Runs a program in a folder of its own. It is the test's word: what it prints is shown.
fn check(command: &mut Command) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command
        .env("LD_LIBRARY_PATH", lib())
        .env("LD_BIND_NOW", "1")
        .current_dir(&folder)
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if output.status.code() == Some(SKIPPED) {
        return;
    }
    assert!(
        output.status.success(),
        "{command:?}: {} (signal {:?})\n{}",
        output.status,
        output.status.signal(),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn checked(program: &Path, arguments: &[&str]) {
    check(Command::new(program).args(arguments));
}

#[test]
fn segments_are_what_an_array_is() {
    let model = c_program("model");
    for (seed, kind) in ["file", "fd", "scratch", "store"].iter().enumerate() {
        for (policy, more) in [("lru", 10), ("mru", 11), ("lirs", 12)] {
            checked(&model, &[kind, policy, &(seed + more).to_string(), "1500"]);
        }
    }
}

#[test]
fn regions_served_by_a_thread() {
    let regions = c_program("regions");
    ["1", "2", "3"].iter().for_each(|seed| checked(&regions, &["thread", seed]));
}

#[test]
fn regions_served_inline() {
    let regions = build("cc", &["-std=c11"], &programs().join("regions.c"), "regions-inline");
    ["1", "2", "3"].iter().for_each(|seed| checked(&regions, &["inline", seed]));
}

#[test]
fn threads_see_their_own_writes() {
    let threads = c_program("threads");
    for seed in ["1", "2", "3"] {
        checked(&threads, &["file", seed]);
        checked(&threads, &["store", seed]);
    }
}

#[test]
fn caches_live() {
    let program = root().join("policies/mru.hipec");
    let program = program.canonicalize().expect("a program");
    check(Command::new(c_program("caches")).arg(program));
}

#[test]
fn pins_are_locks() {
    checked(&c_program("pins"), &[]);
}

#[test]
fn stores_lie_upon_others() {
    checked(&c_program("layers"), &[]);
}

#[test]
fn stores_may_fail() {
    checked(&c_program("stores"), &[]);
}

#[test]
fn pages_move() {
    checked(&c_program("migrate"), &[]);
}

#[test]
fn a_forked_child_is_refused() {
    checked(&c_program("fork"), &[]);
}

#[test]
fn standard_streams_may_be_closed() {
    checked(&c_program("descriptors"), &[]);
}

#[test]
fn files_may_have_to_be_short() {
    checked(&c_program("limits"), &[]);
}

#[test]
fn cancellation_waits() {
    checked(&c_program("cancel"), &[]);
}

#[test]
fn mistakes_are_errors() {
    checked(&c_program("errors"), &[]);
}

#[test]
fn pages_may_be_larger() {
    let model = build("cc", &["-std=c11"], &programs().join("model.c"), "model-large");
    for (kind, page_bytes) in [("file", "16384"), ("scratch", "65536"), ("store", "8192")] {
        checked(&model, &[kind, "lru", "70", "1500", page_bytes]);
    }
}

/// The same programs as C++: the header's functions keep C's names, and its types convert.
#[test]
fn programs_in_cplusplus() {
    for name in ["model", "stores", "errors", "regions"] {
        let source = programs().join(format!("{name}.c"));
        let program = build("c++", &["-x", "c++", "-std=c++17"], &source, &format!("{name}-c++"));
        match name {
            "model" => checked(&program, &["scratch", "clock", "40", "1000"]),
            "regions" => checked(&program, &["inline", "40"]),
            _ => checked(&program, &[]),
        }
    }
}

/// A store's buffers, and those of callers, are used within their bounds; what is opened and closed
/// is freed.
#[test]
fn memory_is_used_as_it_is_given() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: there is no valgrind here (apt-get install valgrind)");
        return;
    }
    let model = build("cc", &["-std=c11"], &programs().join("model.c"), "model-valgrind");
    let stores = build("cc", &["-std=c11"], &programs().join("stores.c"), "stores-valgrind");
    let valgrind = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command.args(["--errors-for-leak-kinds=definite", "--fair-sched=yes"]);
        check(command.arg(program).args(arguments));
    };
    valgrind(&model, &["store", "lru", "50", "300"]);
    valgrind(&model, &["file", "mru", "51", "300"]);
    valgrind(&stores, &[]);
}

/// What C's side does is watched by the address and undefined-behaviour sanitizers.
#[test]
fn sanitizers_find_nothing() {
    let flags = ["-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let probe = tempfile::tempdir().expect("a folder");
    let source = probe.path().join("probe.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let mut cc = Command::new("cc");
    cc.args(flags).arg("-o").arg(probe.path().join("probe")).arg(&source);
    if !cc.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: this compiler has no address sanitizer");
        return;
    }
    let source = programs().join("model.c");
    let model = build("cc", &flags, &source, "model-sanitized");
    for kind in ["store", "scratch"] {
        checked(&model, &[kind, "arc", "60", "1000"]);
    }
    for name in ["stores", "layers"] {
        let source = programs().join(format!("{name}.c"));
        checked(&build("cc", &flags, &source, &format!("{name}-sanitized")), &[]);
    }
}

/// Nothing but what the header declares can be linked to, or gets in a program's way.
#[test]
fn the_header_s_functions_are_exported_and_nothing_else() {
    let header = installed().join("usr/include/pagekeeper.h");
    let header = std::fs::read_to_string(header).expect("a header");
    let library = lib().join("libpagekeeper.so");
    let mut nm = Command::new("nm");
    let symbols =
        text(run(nm.args(["-D", "--defined-only", "--format=just-symbols"]).arg(library)));
    let symbols: Vec<&str> = symbols.lines().collect();
    assert!(symbols.len() >= 40, "{symbols:?}");
    for symbol in &symbols {
        assert!(symbol.starts_with("pk_"), "{symbol} is exported");
        assert!(header.contains(&format!("{symbol}(")), "{symbol} is not in the header");
    }
    let declared = header.lines().filter(|line| !line.trim_start().starts_with('*'));
    for name in declared.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')) {
        let kind = [
            "cache",
            "segment",
            "pin",
            "region",
            "store",
            "layer",
            "side",
            "stats",
            "cache_options",
        ];
        let is_type = name.strip_prefix("pk_").is_none_or(|rest| {
            kind.contains(&rest)
                || ["fault_path", "pin_mode", "protection", "open_flags", "advice"].contains(&rest)
                || ["page_attributes", "write_back_mode", "translation"].contains(&rest)
        });
        assert!(is_type || symbols.contains(&name), "{name} is declared, and not in the library");
    }
}

/// Out of the tree, with what pkg-config says and nothing else.
#[test]
fn pkg_config_knows_the_library() {
    let pkg_config = |destdir: &Path, arguments: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("pagekeeper");
        let folder = destdir.join("opt/pk/lib/pkgconfig");
        command.env("PKG_CONFIG_LIBDIR", folder).env("PKG_CONFIG_SYSROOT_DIR", destdir);
        text(run(&mut command))
    };
    if Command::new("pkg-config").arg("--version").output().is_err() {
        println!("skipped: there is no pkg-config here (apt-get install pkg-config)");
        return;
    }
    let destdir = tempfile::tempdir().expect("a folder");
    install("/opt/pk", destdir.path());
    let destdir = destdir.path();
    assert_eq!(pkg_config(destdir, &["--modversion"]), env!("CARGO_PKG_VERSION"));
    let described = std::fs::read_to_string(destdir.join("opt/pk/lib/pkgconfig/pagekeeper.pc"));
    assert!(described.expect("a file").starts_with("prefix=/opt/pk\n"), "DESTDIR is no part of it");
    let flags = pkg_config(destdir, &["--cflags", "--libs"]);
    assert!(flags.contains("-lpagekeeper"), "{flags}");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/btree.c");
    let program = destdir.join("btree");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(&source).args(flags.split_whitespace());
    run(&mut cc);
    // The dynamic linker looks for the library by the name that it keeps with every version that
    // programs can run with.
    let needed = text(run(Command::new("readelf").arg("-d").arg(&program)));
    let version = env!("CARGO_PKG_VERSION");
    let abi = version.rsplit_once('.').expect("three numbers").0;
    assert!(needed.contains(&format!("[libpagekeeper.so.{abi}]")), "{needed}");
    let mut run_it = Command::new(&program);
    let output = run(run_it.arg("100000").env("LD_LIBRARY_PATH", destdir.join("opt/pk/lib")));
    assert!(text(output).starts_with("100000 keys"));

    // And without the shared library.
    let libs = pkg_config(destdir, &["--static", "--libs"]);
    let whole = libs.replace("-lpagekeeper", "-l:libpagekeeper.a");
    let (mut cc, alone) = (Command::new("cc"), destdir.join("btree-static"));
    cc.arg("-o").arg(&alone).arg(source).arg("-I").arg(destdir.join("opt/pk/include"));
    run(cc.args(whole.split_whitespace()));
    assert!(text(run(Command::new(alone).arg("100000"))).starts_with("100000 keys"));
}

/// The examples of docs/c-api.md, one after the other, are a program; it runs.
#[test]
fn the_guide_s_examples_run() {
    let guide = std::fs::read_to_string(root().join("docs/c-api.md")).expect("a guide");
    let blocks = guide.split("```c\n").skip(1).map(|rest| rest.split("```").next().expect("one"));
    let (mut outside, mut inside) = (String::new(), String::new());
    for block in blocks {
        // What is defined at the left edge stands outside of main.
        let is_outer = block.starts_with("#include") || block.starts_with("static ");
        let part = if is_outer { &mut outside } else { &mut inside };
        part.push_str(block);
        part.push('\n');
    }
    let whole = format!("{outside}\nint main(void)\n{{\n{inside}\nreturn 0;\n}}\n");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide.c");
    std::fs::write(&source, whole).expect("a program");
    let program = build("cc", &["-std=c11", "-D_GNU_SOURCE"], &source, "guide");
    checked(&program, &[]);
}

#[test]
fn every_program_is_run() {
    let own = include_str!("c_programs.rs");
    for entry in std::fs::read_dir(programs()).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension() == Some(OsStr::new("c")) {
            let name = path.file_stem().and_then(OsStr::to_str).expect("a name");
            assert!(own.contains(&format!("c_program(\"{name}\")")) || name == "regions", "{name}");
        }
    }
}
