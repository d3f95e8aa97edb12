//! A user without any privilege: only faults of user code are served, forks are followed by hand.
//! As root, these tests run their programs as nobody.

use crate::kill::reads_no_zeros_without_its_manager;
use crate::runs::{
    self, Budget, LIMIT, NOBODY, Scratch, Session, as_user, command, compiled, finish, has, python,
};
use rustix::process::{Resource, Signal, getrlimit, kill_process};
use std::ffi::OsStr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: usize = 4096;

/// A directory of the user's, in another one, where statistics go.
struct Place {
    place: Scratch,
    _around: Scratch,
}

impl Place {
    /// None, with the reason said, if the user cannot get there.
    fn new(name: &str) -> Option<Place> {
        if !runs::ready() {
            return None;
        }
        let around = Scratch::new(name);
        let place = Scratch::inside(around.path(), "files");
        own(around.path());
        own(place.path());
        runs::is_open_to_users(place.path()).then_some(Place { place, _around: around })
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.place.put(name, content);
        own(&path);
        path
    }

    /// A run of the user's, managed or bare.
    fn command(&self, budget: Option<&Budget>, program: impl AsRef<OsStr>) -> Command {
        let mut command = command(&self.place, budget, program);
        as_user(&mut command).env("HOME", self.place.path());
        command
    }

    fn session(&self, budget: &Budget) -> Session {
        Session::start(&self.place, &mut self.command(Some(budget), runs::driver()))
    }
}

fn own(path: &Path) {
    if runs::is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("root gives files away");
    }
}

fn noise(pages: usize) -> Vec<u8> {
    let mut x = 88_172_645_463_325_252_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_ne_bytes()
    };
    (0..pages * PAGE / 8).flat_map(|_| next()).collect()
}

/// Runs a program bare and managed, both as the user; output and files must be the same.
#[track_caller]
fn same(
    name: &str,
    budget: &Budget,
    program: &Path,
    arguments: &[&str],
    prepare: impl Fn(&Place),
) -> Option<runs::Finished> {
    let run = |budget: Option<&Budget>| {
        let place = Place::new(name)?;
        prepare(&place);
        let mut command = place.command(budget, program);
        let done = finish(&place.place, command.args(arguments), b"", LIMIT);
        Some((done, runs::content(place.place.path())))
    };
    let (bare, left_bare) = run(None)?;
    let bare = bare.ok();
    let (managed, left_managed) = run(Some(budget))?;
    let managed = managed.ok().pressed();
    assert_eq!(bare.text(), managed.text(), "{}", managed.stderr);
    assert!(left_bare == left_managed, "the files differ");
    Some(managed)
}

#[test]
fn system_calls_and_stdio_reach_mapped_files() {
    let calls = compiled("calls.c", &[], "calls");
    for policy in ["clock", "mru"] {
        let budget = Budget::kib(128).policy(policy).files("**/f");
        let prepare = |place: &Place| drop(place.put("f", noise(300)));
        let Some(done) = same("user-calls", &budget, &calls, &["calls"], prepare) else { return };
        assert!(done.notes().contains("EFAULT"), "{}", done.notes());
    }
}

/// Where Yama lets processes reach their descendants alone, as by default on Ubuntu, reads by whoever was no
/// longer one (a daemon) were EIO.
#[test]
fn who_is_nobodys_child_any_more_is_served() {
    let orphan = compiled("orphan.c", &[], "orphan");
    let Some(place) = Place::new("user-orphan") else { return };
    place.put("f", noise(300));
    let budget = Budget::kib(128).files("**/f");
    let done = finish(&place.place, &mut place.command(Some(&budget), &orphan), b"", LIMIT).ok();
    assert_eq!(done.text(), "read and copied\n", "{}", done.stderr);
    assert_eq!(done.managed_files(), 1, "{}", done.stderr);
}

/// With SIGSEGV blocked the kernel was asked whether an array of buffers is there, which cannot see what
/// is not in memory.
#[test]
fn buffers_may_be_described_in_a_mapping() {
    let ways = compiled("ways.c", &["-O2"], "ways");
    let budget = Budget::kib(256).files("**/f");
    same("user-blocked", &budget, &ways, &["blocked", "f"], |_| ());
}

/// Where no thread could be started for whoever wanted another policy, the manager panicked, and its
/// holder ended the program.
#[test]
fn a_switch_without_a_thread_for_it_ends_nothing() {
    if !has("prlimit") {
        return;
    }
    let Some(place) = Place::new("user-threads") else { return };
    place.put("file", vec![3; PAGE]);
    let mut session = place.session(&Budget::kib(256).files("**/file"));
    session.expect("open 1 file r", "ok");
    session.expect(&format!("map 1 1 0 {PAGE} r shared"), "ok");
    session.expect("get 1 0", "3");
    let run = session.tree.0.id().to_string();
    // By the user: root may not everywhere.
    let limit = |processes: String| {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &run, &format!("--nproc={processes}:")]);
        assert!(as_user(&mut command).status().expect("it is here").success());
    };
    let switch = || {
        let mut command = Command::new(runs::pagekeeper());
        command.args(["switch", &run, "mru"]);
        let output = as_user(command.current_dir(place.place.path())).output();
        let output = output.expect("pagekeeper can be started");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    limit("1".to_owned());
    // Whether the answer or what was asked comes first differs.
    for _ in 0..20 {
        let (done, said) = switch();
        let why = "the policy stays as it was: no thread can be started";
        assert!(!done && said.contains(why), "{said}");
    }
    let before = getrlimit(Resource::Nproc).current;
    limit(before.map_or("unlimited".to_owned(), |processes| processes.to_string()));
    assert!(switch().0);
    session.expect("get 1 0", "3");
    session.end().ok();
}

#[test]
fn forked_children_have_their_parents_mappings() {
    let calls = compiled("calls.c", &[], "calls");
    for kib in [128, 256] {
        let budget = Budget::kib(kib).files("**/f");
        let prepare = |place: &Place| drop(place.put("f", noise(300)));
        let Some(done) = same("user-forks", &budget, &calls, &["forks"], prepare) else { return };
        assert!(done.notes().contains("private writable mappings"), "{}", done.notes());
    }
}

/// What the library had mapped of a file that was let go of in that moment ended the child, and the run
/// waited for it.
#[test]
fn children_are_forked_as_files_go() {
    let ways = compiled("ways.c", &["-O2"], "ways");
    let budget = Budget::kib(256).policy("mru");
    same("user-beside", &budget, &ways, &["beside", "file"], |_| ());
}

/// A child took what the library had mapped in its parent for its own, of files that were let go of before the
/// fork: its memory was given back, and showed the bytes of other files (postgres: 29 crashes in five starts).
#[test]
fn a_child_keeps_its_memory_when_files_were_let_go_of() {
    let ways = compiled("ways.c", &["-O2"], "ways");
    same("user-views", &Budget::kib(1024), &ways, &["views", "file"], |_| ());
}

/// What a fork was known by, and the signals that it held back, were one for all threads: of two that
/// forked at the same time one never got its signals back, and a child ended since another one's had
/// taken its memory.
#[test]
fn threads_that_fork_at_the_same_time_do_not_mix_their_children_up() {
    let calls = compiled("calls.c", &[], "calls");
    let budget = Budget::kib(256).files("**/f");
    let prepare = |place: &Place| drop(place.put("f", noise(300)));
    if let Some(done) = same("user-forkers", &budget, &calls, &["forkers"], prepare) {
        assert!(done.text().ends_with("wrong: 0\n"), "{}", done.text());
    }
}

#[test]
fn sqlite_gives_the_same_answers() {
    if !has("sqlite3") {
        return;
    }
    let script = "PRAGMA mmap_size=268435456; PRAGMA journal_mode=wal; PRAGMA cache_size=50;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INT, v TEXT);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<12000)
  INSERT INTO t SELECT x, (x*7919)%10007, printf('%0100d',x) FROM c;
CREATE INDEX ti ON t(k); UPDATE t SET v=v||'u' WHERE id%3=0; DELETE FROM t WHERE id%5=0;
VACUUM; PRAGMA integrity_check;
SELECT a.k,count(*) FROM t a JOIN t b ON a.k=b.k GROUP BY a.k ORDER BY 2 DESC,1 LIMIT 5;
SELECT count(*),sum(k),sum(length(v)) FROM t;
";
    let arguments = ["shop.db", ".read script.sql"];
    let prepare = |place: &Place| drop(place.put("script.sql", script));
    let budget = Budget::kib(512).policy("lru");
    same("user-sqlite", &budget, Path::new("sqlite3"), &arguments, prepare);
}

#[test]
fn numpy_works_on_mapped_arrays() {
    let find = "import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))";
    let found = Command::new(python()).args(["-c", find]).output();
    let Some(found) = found.ok().filter(|f| f.status.success()) else {
        return runs::skip("there is no python with numpy (PAGEKEEPER_TEST_PYTHON)");
    };
    let packages = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    let script = format!(
        "
import sys; sys.path.append({packages:?})
import numpy as np, os
a = np.memmap('a.bin', dtype='f8', mode='w+', shape=(400, 512))
a[:] = np.arange(400 * 512).reshape(400, 512)
a[::7] *= 3
a.flush()
print(a.sum(), a[:, 3].max(), np.sort(a[17])[::-1][:3])
b = np.memmap('a.bin', dtype='f8', mode='r', shape=(400, 512))
print((a == b).all(), b[399, 511])
b.tofile('b.bin')
with open('c.bin', 'wb', buffering=0) as f: print(f.write(b))
with open('b.bin', 'rb', buffering=0) as f: print(f.readinto(a[100:]), a.sum())
if os.fork() == 0:
    a[5] = 1
    os._exit(int(b[5].sum()) % 251)
print(os.wait()[1] >> 8, a[5].sum())
"
    );
    let interpreter = Path::new("/usr/bin/python3");
    let import = format!("import sys; sys.path.append({packages:?}); import numpy");
    let mut check = Command::new(interpreter);
    if !as_user(check.args(["-c", &import])).output().is_ok_and(|o| o.status.success()) {
        return runs::skip("another user has no numpy here");
    }
    let prepare = |place: &Place| drop(place.put("script.py", &script));
    let budget = Budget::kib(256).files("**/a.bin");
    same("user-numpy", &budget, interpreter, &["script.py"], prepare);
}

#[test]
fn what_a_killed_program_stored_is_in_the_file() {
    let Some(place) = Place::new("user-killed") else { return };
    let path = place.put("f", vec![1u8; 100 * PAGE]);
    for (value, manager_too) in [(50, false), (100, true)] {
        let mut session = place.session(&Budget::kib(128));
        session.expect("open 1 f rw", "ok");
        session.expect("map 1 1 0 409600 rw shared", "ok");
        for page in 0..100 {
            session.expect(&format!("put 1 {} {}", page * PAGE + 9, page + value), "ok");
        }
        if manager_too {
            let pid: u32 = session.ask("pid").parse().unwrap();
            kill_process(session.tree.pid(), Signal::KILL).unwrap();
            let gone = || !Path::new(&format!("/proc/{pid}/fd/0")).exists();
            while !gone() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            session.tree.wait(LIMIT).expect("a killed manager ends");
        } else {
            session.tell("run kill -9 $PPID");
            let done = session.end();
            assert_eq!(runs::signal_of(done.status), Some(9), "{}", done.stderr);
        }
        let stored = |content: &[u8]| {
            (0..100).all(|page| usize::from(content[page * PAGE + 9]) == page + value)
        };
        let start = std::time::Instant::now();
        // The holder writes after the programs are gone.
        while !stored(&std::fs::read(&path).unwrap()) {
            assert!(manager_too && start.elapsed() < LIMIT, "stores are lost");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_private_mapping_never_becomes_writable() {
    let Some(place) = Place::new("user-private") else { return };
    place.put("f", vec![1u8; 50 * PAGE]);
    let mut session = place.session(&Budget::kib(128));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 r private", "ok");
    session.expect("protect 1 0 4096 rw", "EACCES");
    session.expect("map 2 1 0 204800 rw private", "ok");
    session.expect("put 2 5 9", "ok");
    // No child may inherit it by the kernel's hand.
    session.expect("map 3 1 0 204800 rw shared", "ok");
    session.expect(&format!("advise 3 0 204800 {}", libc::MADV_DOFORK), "ok");
    session.expect("put 3 8200 4", "ok");
    session.expect("fork", "ok");
    for (map, at, value) in [(2, 5, "9"), (1, 5, "1"), (1, 8200, "4"), (3, 8200, "4")] {
        session.expect(&format!("get {map} {at}"), value);
    }
    session.end().ok();
}

#[test]
fn what_falls_away_is_said() {
    let Some(place) = Place::new("user-says") else { return };
    let mut doctor = Command::new(runs::pagekeeper());
    let doctor = as_user(doctor.arg("doctor").arg(place.place.path())).output().unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.status.success() && text.contains("\nrun works\n"), "{text}");
    assert!(text.contains("without userfaultfd: system calls on mapped files"), "{text}");
    assert!(text.contains("without remote-zap: references are not sampled"), "{text}");

    let mut heap = place.command(Some(&Budget::kib(256).heap(1 << 20)), "true");
    let done = finish(&place.place, &mut heap, b"", LIMIT).ok();
    assert!(done.notes().contains("heap memory is left to the kernel"), "{}", done.notes());
    assert!(done.stderr.contains("heap memory is left to the kernel"), "{}", done.stderr);

    let mut record = Command::new(runs::pagekeeper());
    record.args(["record", "--memory", "1M", "--config", "/dev/null", "-o", "r.pkt", "true"]);
    record.env("PAGEKEEPER_PRELOAD", runs::preload()).current_dir(place.place.path());
    let refused = as_user(&mut record).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(69), "{words}");
    assert!(words.contains("remote-zap"), "{words}");
}

/// Leases are to be had for one's own files.
#[test]
fn deleted_files_are_let_go_of_when_nobody_can_reach_them() {
    let Some(user) = Place::new("user-letgo") else { return };
    let program = compiled("letgo.c", &[], "letgo");
    let run = |arguments: &[&str]| {
        let mut command = user.command(Some(&Budget::kib(128)), &program);
        finish(&user.place, command.args(arguments), b"", LIMIT).ok().text()
    };
    for how in ["late", "early", "read"] {
        let descriptors: u64 = run(&[how, ".", "400", "65536"]).trim().parse().unwrap();
        assert!(descriptors < 100, "{how}: {descriptors} descriptors");
    }
    crate::letgo::all_are_kept(&run(&["keep", "."]));
}

/// A program whose user may not look at it (`PR_SET_DUMPABLE`) was not found by the holder, which knew
/// programs by what `/proc` shows of them: it read zeros when the manager had been killed.
#[test]
fn a_program_that_shows_nothing_of_itself_never_reads_zeros() {
    let Some(place) = Place::new("user-hidden") else { return };
    place.put("f", vec![7u8; 600 * PAGE]);
    let run = place.command(Some(&Budget::kib(128)), "python3");
    let hides = "\
assert m[0] == 7
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0";
    reads_no_zeros_without_its_manager(&place.place, run, hides);
}

/// A file that its maker may write to by this one descriptor could not be mapped to write (ENOMEM).
#[test]
fn who_makes_a_file_that_may_only_be_read_maps_it_to_write() {
    let script = "
import mmap, os
for mode in (0o444, 0o400, 0o600):
    fd = os.open(f'made-{mode:o}', os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    os.write(fd, b'abc' * 40000)
    with mmap.mmap(fd, 0) as m:
        for turn in range(9):
            for at in range(0, 120000, 4096):
                m[at] += turn
        print(mode, os.pread(fd, 5, 69630), m[:3])
    os.close(fd)
";
    same("user-made", &Budget::kib(64), Path::new("python3"), &["-c", script], |_| ());
}
