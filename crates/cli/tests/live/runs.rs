//! What the live tests share: running programs under `pagekeeper run`, and the same programs bare.
//!
//! Every run has a time limit, after which it and all that it started is killed. Temporary data is
//! under cargo's directory for it, on the file system of the checkout, and is removed.
#![allow(missing_docs)]

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a program may take, unless a test says otherwise: a hang, not a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// How long a driver may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn from_environment(name: &str, default: impl FnOnce() -> PathBuf) -> PathBuf {
    std::env::var_os(name).filter(|v| !v.is_empty()).map_or_else(default, PathBuf::from)
}

pub(crate) fn pagekeeper() -> PathBuf {
    from_environment("PAGEKEEPER_BIN", || env!("CARGO_BIN_EXE_pagekeeper").into())
}

pub(crate) fn preload() -> PathBuf {
    let default = || root().join("target/release/libpagekeeper_preload.so");
    from_environment("PAGEKEEPER_PRELOAD", default)
}

/// A python with numpy and pytest.
pub(crate) fn python() -> PathBuf {
    from_environment("PAGEKEEPER_TEST_PYTHON", || root().join(".venv/bin/python"))
}

/// Says on stderr that a test was not made, and why.
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// Whether this machine lets programs be managed; says why not.
pub(crate) fn ready() -> bool {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        if !preload().is_file() {
            let build = "cargo build --release -p pagekeeper-preload";
            return Err(format!("{} is missing: {build}", preload().display()));
        }
        let place = Scratch::new("ready");
        let mut session = Session::managed(&place, Budget::kib(256));
        session.ask("open 1 a rwct");
        session.ask("pwrite 1 0 4096 1");
        session.ask("map 1 1 0 4096 rw shared");
        let touched = session.ask("get 1 0");
        let done = session.end();
        if touched == "1" && done.total("major_faults") == 1 {
            return Ok(());
        }
        Err(format!("programs cannot be managed here: {}{}", done.notes(), done.stderr))
    });
    if let Err(reason) = ready {
        skip(reason);
    }
    ready.is_ok()
}

/// The user that programs are run as in place of root.
pub(crate) const NOBODY: u32 = 65534;

/// Runs as an ordinary user.
pub(crate) fn as_user(command: &mut Command) -> &mut Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Whether such a user gets to our programs and to files in this directory; says so if not.
pub(crate) fn is_open_to_users(place: &Path) -> bool {
    let mut version = Command::new(pagekeeper());
    as_user(version.arg("--version").current_dir(place));
    let is_open = version.output().is_ok_and(|o| o.status.success());
    if !is_open {
        skip("another user cannot reach the programs and files of this checkout");
    }
    is_open
}

/// Whether a program is installed; says so if not.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        skip(&format!("there is no {program} here"));
    }
    found
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

// ---- places and programs -------------------------------------------------------------------------

/// A directory that goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

/// The directories of the tests that run now, of which each needs its own.
fn in_use() -> MutexGuard<'static, HashSet<PathBuf>> {
    static PATHS: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        Scratch::inside(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    pub(crate) fn inside(parent: &Path, name: &str) -> Scratch {
        let path = parent.join(format!("live-{name}-{}", std::process::id()));
        assert!(in_use().insert(path.clone()), "another test has {} now", path.display());
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with this content.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, content).expect("a file can be written");
        path
    }

    pub(crate) fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).expect("a file can be read")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        in_use().remove(&self.0);
    }
}

/// A program of the benchmarks, built as an example of this package (by `cargo test` without
/// `--test`, or `cargo build --examples`).
pub(crate) fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test has a path");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    profile.join("examples").join(name)
}

/// A C program of `c`, compiled.
pub(crate) fn compiled(source: &str, flags: &[&str], name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/c").join(source);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("live-program-{name}-{}", std::process::id()));
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !out.is_file() {
        let done = Command::new("cc")
            .args(["-O1", "-g", "-w", "-pthread", "-o"])
            .arg(&out)
            .args(flags)
            .arg(&path)
            .output()
            .expect("a C compiler is installed");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    out
}

pub(crate) fn driver() -> PathBuf {
    compiled("driver.c", &[], "driver")
}

pub(crate) fn programs() -> PathBuf {
    compiled("programs.c", &[], "programs")
}

// ---- runs ----------------------------------------------------------------------------------------

/// How a program is managed.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    pub(crate) policy: &'static str,
    pub(crate) bytes: u64,
    /// Smaller files are left to the kernel.
    pub(crate) min_size_bytes: u64,
    /// Which files; those of the scratch directory if there are none.
    pub(crate) files: Vec<String>,
    /// Heap memory is managed too: allocations of so many bytes.
    pub(crate) heap_bytes: Option<u64>,
    /// And what leaves memory stays compressed in this part of the budget first.
    pub(crate) compress_percent: u32,
    /// Writes inside files are stored in memory, and written back later.
    pub(crate) delay_writes: bool,
    /// What the kernel and the user are to be without.
    pub(crate) lacking: &'static str,
}

impl Budget {
    pub(crate) fn kib(kib: u64) -> Budget {
        Budget {
            policy: "clock",
            bytes: kib << 10,
            min_size_bytes: 0,
            files: Vec::new(),
            heap_bytes: None,
            compress_percent: 0,
            delay_writes: false,
            lacking: "",
        }
    }

    pub(crate) fn heap(self, least_bytes: u64) -> Budget {
        Budget { heap_bytes: Some(least_bytes), ..self }
    }

    pub(crate) fn compress(self, percent: u32) -> Budget {
        Budget { compress_percent: percent, ..self }
    }

    pub(crate) fn delay_writes(self) -> Budget {
        Budget { delay_writes: true, ..self }
    }

    pub(crate) fn lacking(self, lacking: &'static str) -> Budget {
        Budget { lacking, ..self }
    }

    pub(crate) fn policy(self, policy: &'static str) -> Budget {
        Budget { policy, ..self }
    }

    pub(crate) fn files(self, pattern: impl Into<String>) -> Budget {
        Budget { files: vec![pattern.into()], ..self }
    }
}

/// `pagekeeper run` in front of a program, or the program bare.
pub(crate) fn command(
    place: &Scratch,
    budget: Option<&Budget>,
    program: impl AsRef<OsStr>,
) -> Command {
    let Some(budget) = budget else {
        let mut command = Command::new(program);
        command.current_dir(place.path());
        return command;
    };
    let how = ["run", "--policy", budget.policy, "--verbose"];
    let mut command = managing(place, budget, &how);
    if budget.compress_percent > 0 {
        command.arg(format!("--compress={}", budget.compress_percent));
    }
    if budget.delay_writes {
        command.arg("--delay-writes");
    }
    command.arg("--stats").arg(stats_path(place)).arg("--").arg(program);
    command
}

/// The same command, started by a shell behind a limit, in the words of its `ulimit`; and without the
/// right to raise it, where that can be given up.
pub(crate) fn limited(run: &Command, limit: &str) -> Command {
    const IN_BOUNDS: &str = "bound='setpriv --bounding-set=-sys_resource'; $bound true 2>/dev/null || \
                             bound=;";
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        .arg(format!("ulimit {limit}; {IN_BOUNDS} exec $bound \"$0\" \"$@\""))
        .arg(run.get_program());
    limited.args(run.get_args());
    if let Some(directory) = run.get_current_dir() {
        limited.current_dir(directory);
    }
    for (name, value) in run.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited
}

/// A command that runs programs (`run`, `record`, `tune`), up to the program.
pub(crate) fn managing(place: &Scratch, budget: &Budget, how: &[&str]) -> Command {
    let mut command = Command::new(pagekeeper());
    command.current_dir(place.path()).env("PAGEKEEPER_PRELOAD", preload());
    if !budget.lacking.is_empty() {
        command.env("PAGEKEEPER_MASK", budget.lacking);
    }
    command.args(how);
    command.args(["--min-size", &budget.min_size_bytes.to_string()]);
    command.args(["--config", "/dev/null", "--memory", &budget.bytes.to_string()]);
    let whole = format!("{}/**", place.path().display());
    for pattern in budget.files.iter().chain(budget.files.is_empty().then_some(&whole)) {
        command.args(["--files", pattern]);
    }
    if let Some(bytes) = budget.heap_bytes {
        command.arg(format!("--heap={bytes}")).arg("--heap-dir").arg(env!("CARGO_TARGET_TMPDIR"));
    }
    command
}

/// Beside the scratch directory, so that it is no managed file.
fn stats_path(place: &Scratch) -> PathBuf {
    place.path().with_extension("stats")
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) stats: serde_json::Value,
}

impl Finished {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// A count over all files.
    pub(crate) fn total(&self, name: &str) -> u64 {
        self.stats[name].as_u64().unwrap_or(0)
    }

    /// A count of pages that stayed in memory compressed.
    pub(crate) fn compressed(&self, name: &str) -> u64 {
        self.stats["compressed"][name].as_u64().expect("a count")
    }

    pub(crate) fn notes(&self) -> String {
        self.stats["notes"].to_string()
    }

    pub(crate) fn managed_files(&self) -> usize {
        self.stats["files"].as_array().map_or(0, Vec::len)
    }

    /// The program succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Finished {
        assert!(
            self.status.success(),
            "{:?}\n--- output\n{}\n--- errors\n{}",
            self.status,
            self.text(),
            self.stderr
        );
        self
    }

    /// Pages were served and evicted; says what was not managed.
    #[track_caller]
    pub(crate) fn pressed(self) -> Finished {
        let (faults, evictions) = (self.total("major_faults"), self.total("evictions"));
        assert!(faults > 0 && evictions > 0, "{faults} faults, {evictions} evictions");
        let passed = self.stats["passed_through"].as_array().cloned().unwrap_or_default();
        eprintln!(
            "{} files managed, {faults} major faults, {evictions} evictions, {} passed through: {:?}",
            self.managed_files(),
            passed.len(),
            &passed[..passed.len().min(5)]
        );
        self
    }
}

fn collect(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (to, receiver) = channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        let _ = to.send(all);
    });
    receiver
}

/// A process group, killed with everything in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Tree(pub Child);

impl Tree {
    pub(crate) fn start(command: &mut Command) -> Tree {
        Tree(command.process_group(0).spawn().expect("the program can be started"))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Waits; none if it takes too long.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child can be waited for") {
                return Some(status);
            }
            if start.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The holder of a killed manager stops the programs, which may be in other groups.
        let _ = kill_process(self.pid(), Signal::KILL);
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// How many times as long programs may take: on an emulated processor.
fn patience() -> u32 {
    std::env::var("PAGEKEEPER_TEST_PATIENCE").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Runs a command to its end, with an input.
#[track_caller]
pub(crate) fn finish(
    place: &Scratch,
    command: &mut Command,
    input: &[u8],
    limit: Duration,
) -> Finished {
    let _ = std::fs::remove_file(stats_path(place));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tree = Tree::start(command);
    let stdout = collect(tree.0.stdout.take().expect("piped"));
    let stderr = collect(tree.0.stderr.take().expect("piped"));
    let mut stdin = tree.0.stdin.take().expect("piped");
    let input = input.to_vec();
    std::thread::spawn(move || stdin.write_all(&input));
    let limit = limit * patience();
    let status = tree.wait(limit);
    drop(tree);
    let rest = Duration::from_secs(5);
    let stdout = stdout.recv_timeout(rest).unwrap_or_default();
    let stderr = stderr.recv_timeout(rest).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    let Some(status) = status else {
        panic!(
            "{command:?} took longer than {limit:?}\n--- output\n{}\n--- errors\n{stderr}",
            String::from_utf8_lossy(&stdout)
        );
    };
    let stats = read_stats(place);
    Finished { status, stdout, stderr, stats }
}

fn read_stats(place: &Scratch) -> serde_json::Value {
    let stats = std::fs::read_to_string(stats_path(place)).unwrap_or_default();
    let _ = std::fs::remove_file(stats_path(place));
    serde_json::from_str(&stats).unwrap_or_default()
}

/// Names and contents of files.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Runs a program in two fresh directories, bare and managed; what it says and what it leaves.
/// `prepare` fills each directory.
#[track_caller]
pub(crate) fn both(
    name: &str,
    budget: &Budget,
    program: impl AsRef<OsStr>,
    arguments: &[&str],
    prepare: impl Fn(&Scratch),
) -> [(Finished, Files); 2] {
    [None, Some(budget)].map(|budget| {
        // One after the other at the same path: programs print it.
        let place = Scratch::new(name);
        prepare(&place);
        let mut command = command(&place, budget, program.as_ref());
        command.args(arguments);
        let done = finish(&place, &mut command, b"", LIMIT);
        (done, content(place.path()))
    })
}

/// Of such a program, which succeeds bare, output, exit code and what it leaves must be the same.
#[track_caller]
pub(crate) fn same(
    name: &str,
    budget: &Budget,
    program: impl AsRef<OsStr>,
    arguments: &[&str],
    prepare: impl Fn(&Scratch),
) -> Finished {
    let [(bare, bare_files), (managed, managed_files)] =
        both(name, budget, program, arguments, prepare);
    let bare = bare.ok();
    let text = managed.text();
    assert_eq!(bare.text(), text, "the output differs\n--- errors\n{}", managed.stderr);
    assert_eq!(bare.status, managed.status, "--- errors\n{}", managed.stderr);
    let names = |files: &Files| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&bare_files), names(&managed_files));
    for ((name, bare), (_, managed)) in bare_files.iter().zip(&managed_files) {
        assert!(bare == managed, "{name} differs: {} bytes and {}", bare.len(), managed.len());
    }
    managed
}

/// Names and contents of the files of a directory (a sparse giant's is its length).
pub(crate) fn content(directory: &Path) -> Files {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory can be read").flatten() {
        let bytes = entry.metadata().map_or(0, |m| m.len());
        let content = if bytes > 1 << 30 {
            bytes.to_string().into_bytes()
        } else {
            std::fs::read(entry.path()).unwrap_or_default()
        };
        all.push((entry.file_name().to_string_lossy().into_owned(), content));
    }
    all.sort();
    all
}

// ---- sessions ------------------------------------------------------------------------------------

/// A driver (`driver.c`) that does to files what it is told, managed or bare.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) tree: Tree,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    stderr: Receiver<Vec<u8>>,
    stats: PathBuf,
}

impl Session {
    pub(crate) fn managed(place: &Scratch, budget: Budget) -> Session {
        Session::start(place, &mut command(place, Some(&budget), driver()))
    }

    pub(crate) fn bare(place: &Scratch) -> Session {
        Session::start(place, &mut command(place, None, driver()))
    }

    pub(crate) fn start(place: &Scratch, command: &mut Command) -> Session {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tree = Tree::start(command);
        let stdout = tree.0.stdout.take().expect("piped");
        let stderr = collect(tree.0.stderr.take().expect("piped"));
        let (to, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = tree.0.stdin.take();
        Session { tree, stdin, answers, stderr, stats: stats_path(place) }
    }

    /// Gives a command without waiting for the answer.
    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the session goes on");
        let _ = stdin.write_all(format!("{line}\n").as_bytes());
    }

    /// The next answer.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> String {
        match self.answers.recv_timeout(ANSWER_LIMIT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("no answer for {ANSWER_LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = self.tree.wait(Duration::from_secs(3));
                let errors = self.stderr.recv_timeout(Duration::from_secs(3)).unwrap_or_default();
                panic!("the driver is gone: {}", String::from_utf8_lossy(&errors))
            }
        }
    }

    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    /// Asks, and expects this answer.
    #[track_caller]
    pub(crate) fn expect(&mut self, line: &str, answer: &str) {
        let got = self.ask(line);
        assert_eq!(got, answer, "answer to `{line}`");
    }

    /// Ends the driver and waits for the run.
    #[track_caller]
    pub(crate) fn end(mut self) -> Finished {
        drop(self.stdin.take());
        let status = self.tree.wait(LIMIT).expect("the run ends when its program does");
        self.left(status)
    }

    fn left(self, status: ExitStatus) -> Finished {
        let stderr = self.stderr.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
        let text = std::fs::read_to_string(&self.stats).unwrap_or_default();
        let _ = std::fs::remove_file(&self.stats);
        Finished {
            status,
            stdout: Vec::new(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            stats: serde_json::from_str(&text).unwrap_or_default(),
        }
    }
}

/// The signal that ended a process.
pub(crate) fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}
