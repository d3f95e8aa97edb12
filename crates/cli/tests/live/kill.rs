//! Nothing that was acknowledged is lost when something dies: a program, one of two that share a
//! file, or the manager itself. As under the kernel, where a killed program's stores to a shared
//! mapping and its finished writes are in the file.

use crate::runs::{self, Budget, LIMIT, Scratch, Tree, command, finish, limited, programs};
use pagekeeper_sys::cgroup::MemoryCgroup;
use pagekeeper_sys::launch::ChildSetup;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PAGES: u64 = 300;
const PAGE: usize = 4096;

/// As in `programs.c`.
fn mixed(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn page_of(record: u64) -> usize {
    (mixed(record) % PAGES) as usize
}

/// Everything a writer (`programs progress`) says that it wrote has to be in the file.
#[track_caller]
fn check(file: &[u8], said: &[u8], who: usize) -> u64 {
    assert_eq!(file.len(), PAGES as usize * PAGE);
    let records = said.len() / 8;
    if records == 0 {
        return 0;
    }
    let last = u64::from_ne_bytes(said[records * 8 - 8..records * 8].try_into().unwrap());
    assert_eq!(last, records as u64, "a writer's reports are in order");
    let word = |page: usize, at: usize| {
        let at = page * PAGE + at;
        u64::from_ne_bytes(file[at..at + 8].try_into().unwrap())
    };
    let mut mapped = vec![0u64; PAGES as usize];
    let mut written = vec![0u64; PAGES as usize];
    for record in 1..=last {
        mapped[page_of(record)] = record;
        if record % 16 == 0 {
            written[page_of(record)] = record;
        }
    }
    for page in 0..PAGES as usize {
        // One more may have been written and not said.
        let next = |got: u64| got == last + 1 && page_of(got) == page;
        let got = word(page, who * 8);
        assert!(got == mapped[page] || next(got), "page {page}: {got}, not {}", mapped[page]);
        let got = word(page, 2048 + who * 8);
        assert!(got == written[page] || next(got), "page {page}: {got}, not {}", written[page]);
    }
    last
}

pub(crate) fn children(pid: Pid) -> Vec<(Pid, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let mut found = Vec::new();
    for task in tasks.into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in list.split_whitespace().filter_map(|t| t.parse().ok()) {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            found.extend(Pid::from_raw(child).map(|pid| (pid, name.trim().to_owned())));
        }
    }
    found
}

/// The processes of this name under a run.
fn named(root: Pid, name: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for (child, called) in children(pid) {
            if called == name {
                found.push(child);
            }
            open.push(child);
        }
    }
    found
}

#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not after 20 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn gone(pid: Pid) -> bool {
    // A zombie whose parent is this test's is as gone.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    test_kill_process(pid).is_err() || stat.is_ok_and(|s| s.contains(") Z "))
}

fn blank(place: &Scratch) {
    place.put("progress", vec![0u8; PAGES as usize * PAGE]);
}

/// A writer under a run, whose output goes to a file outside of the managed directory.
fn writers(
    place: &Scratch,
    budget: Budget,
    part: &str,
    count: usize,
) -> (Tree, Vec<std::path::PathBuf>) {
    let said: Vec<_> =
        (0..count).map(|who| place.path().with_extension(format!("said{who}"))).collect();
    let mut script = String::new();
    for (who, said) in said.iter().enumerate() {
        let program = programs();
        script += &format!("{} {part} . {PAGES} {who} > {} & ", program.display(), said.display());
    }
    script += "wait";
    let mut command = command(place, Some(&budget), "sh");
    command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    (Tree::start(&mut command), said)
}

pub(crate) fn read_and_remove(path: &Path) -> Vec<u8> {
    let content = std::fs::read(path).unwrap_or_default();
    let _ = std::fs::remove_file(path);
    content
}

/// Pseudo-random moments, the same in every run of the test.
fn moments(count: u64, most_ms: u64) -> impl Iterator<Item = Duration> {
    (1..=count).map(move |i| Duration::from_micros(20_000 + mixed(i * 7919) % (most_ms * 1000)))
}

#[test]
fn a_killed_program_loses_nothing_that_it_wrote() {
    if !runs::ready() {
        return;
    }
    let name = programs().file_name().unwrap().to_string_lossy()[..15].to_owned();
    let mut most = 0;
    for (round, moment) in moments(6, 400).enumerate() {
        let place = Scratch::new("kill-program");
        blank(&place);
        let budget = Budget::kib([128, 512, 4096][round % 3]);
        let (mut tree, said) = writers(&place, budget, "progress", 1);
        until("the writer begins", || said[0].metadata().is_ok_and(|m| m.len() > 0));
        std::thread::sleep(moment);
        for pid in named(tree.pid(), &name) {
            kill_process(pid, Signal::KILL).unwrap();
        }
        let status = tree.wait(LIMIT).expect("the run ends");
        assert_eq!(status.code(), Some(0), "the shell only waits");
        most = most.max(check(&place.get("progress"), &read_and_remove(&said[0]), 0));
    }
    assert!(most > 100, "the writer wrote {most} records at most");
}

#[test]
fn one_of_two_programs_that_share_a_file_is_killed() {
    if !runs::ready() {
        return;
    }
    let name = programs().file_name().unwrap().to_string_lossy()[..15].to_owned();
    for moment in moments(3, 200) {
        let place = Scratch::new("kill-one");
        blank(&place);
        let (mut tree, said) = writers(&place, Budget::kib(256), "progress", 2);
        for said in &said {
            until("the writers begin", || said.metadata().is_ok_and(|m| m.len() > 0));
        }
        std::thread::sleep(moment);
        let pids = named(tree.pid(), &name);
        assert_eq!(pids.len(), 2);
        kill_process(pids[0], Signal::KILL).unwrap();
        until("the killed one ends", || gone(pids[0]));
        // The other goes on.
        let lengths = || said.iter().map(|s| s.metadata().unwrap().len()).sum::<u64>();
        let before = lengths();
        until("the other goes on", || lengths() > before + 8 * 500);
        kill_process(pids[1], Signal::KILL).unwrap();
        tree.wait(LIMIT).expect("the run ends");
        let file = place.get("progress");
        for (who, said) in said.iter().enumerate() {
            assert!(check(&file, &read_and_remove(said), who) > 0);
        }
    }
}

/// Kills the manager of a run with writers; their records must be in the file once its holder has
/// finished.
fn kill_manager(place: &Scratch, budget: Budget, count: usize, moment: Duration) -> u64 {
    let program = programs().file_name().unwrap().to_string_lossy()[..15].to_owned();
    let (mut tree, said) = writers(place, budget, "progress", count);
    for said in &said {
        until("the writers begin", || said.metadata().is_ok_and(|m| m.len() > 0));
    }
    std::thread::sleep(moment);
    let pids = named(tree.pid(), &program);
    let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(pids.len(), count);
    kill_process(tree.pid(), Signal::KILL).unwrap();
    tree.wait(LIMIT).expect("a killed process ends");
    for pid in pids.into_iter().chain(others) {
        until("programs and holder end", || gone(pid));
    }
    let mut errors = String::new();
    let _ = tree.0.stderr.take().unwrap().read_to_string(&mut errors);
    assert!(errors.contains("pagekeeper"), "nothing was said: {errors:?}");
    let file = place.get("progress");
    said.iter().enumerate().map(|(who, said)| check(&file, &read_and_remove(said), who)).sum()
}

#[test]
fn a_killed_manager_loses_nothing_that_was_written() {
    if !runs::ready() {
        return;
    }
    let mut most = 0;
    for (round, moment) in moments(8, 400).enumerate() {
        let place = Scratch::new("kill-manager");
        blank(&place);
        let budget = Budget::kib([128, 512, 4096, 192][round % 4]);
        most = most.max(kill_manager(&place, budget, 1 + round % 2, moment));
    }
    assert!(most > 100, "the writers wrote {most} records at most");
}

/// A program stores in order, and pages behind count as dirty with those. To one of them somebody outside
/// writes, of which the manager does not hear any more.
#[test]
fn a_killed_manager_leaves_what_others_wrote() {
    if !runs::ready() {
        return;
    }
    const STORES: &str = "import mmap, os, time\n\
        m = mmap.mmap(os.open('file', os.O_RDWR), 64 * 4096)\n\
        pages = range(0, len(m), 4096)\n\
        assert {m[page] for page in pages} == {97}\n\
        for page in pages[:20]: m[page] = 7\n\
        print('stored', flush=True)\n\
        time.sleep(60)\n";
    let place = Scratch::new("kill-presumed");
    place.put("file", vec![b'a'; 64 * PAGE]);
    let said = place.path().with_extension("said");
    let output = std::fs::File::create(&said).expect("a file for what is said");
    let mut command = command(&place, Some(&Budget::kib(4096)), "python3");
    command.args(["-c", STORES]).stdout(output).stderr(Stdio::null());
    let mut tree = Tree::start(&mut command);
    until("the program has stored", || said.metadata().is_ok_and(|m| m.len() > 0));
    let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
    kill_process(tree.pid(), Signal::STOP).unwrap();
    let file = std::fs::File::options().write(true).open(place.path().join("file")).unwrap();
    file.write_all_at(&[9], 25 * PAGE as u64).unwrap();
    kill_process(tree.pid(), Signal::KILL).unwrap();
    tree.wait(LIMIT).expect("a killed process ends");
    for pid in others {
        until("program and holder end", || gone(pid));
    }
    read_and_remove(&said);
    let first_bytes: Vec<u8> = place.get("file").chunks(PAGE).map(|page| page[0]).collect();
    let mut expected = [[7; 20].as_slice(), &[b'a'; 44]].concat();
    expected[25] = 9;
    assert_eq!(first_bytes, expected);
}

/// What a program wrote is in memory only when it is killed, or the manager.
#[test]
fn delayed_writes_outlive_who_is_killed() {
    if !runs::ready() {
        return;
    }
    const AT: usize = 7 * PAGE - 3;
    let mut most = 0;
    for (round, moment) in moments(8, 400).enumerate() {
        let place = Scratch::new("kill-delayed");
        place.put("file", vec![0; 20 * PAGE]);
        let said = place.path().with_extension("said");
        let output = std::fs::File::create(&said).expect("a file for what is said");
        let budget = Budget::kib(4096).delay_writes();
        let mut command = command(&place, Some(&budget), crate::writes::writes());
        command.args(["counter", "file"]).stdout(output).stderr(Stdio::null());
        let mut tree = Tree::start(&mut command);
        until("the program counts", || said.metadata().is_ok_and(|m| m.len() > 0));
        std::thread::sleep(moment);
        let programs = named(tree.pid(), "live-program-wr");
        let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(programs.len(), 1);
        let killed = if round % 2 == 0 { programs[0] } else { tree.pid() };
        kill_process(killed, Signal::KILL).unwrap();
        tree.wait(LIMIT).expect("the run ends");
        for pid in programs.into_iter().chain(others) {
            until("programs and holder end", || gone(pid));
        }
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let told = read_and_remove(&said);
        let last = number(&told[told.len() / 8 * 8 - 8..told.len() / 8 * 8]);
        let found = number(&place.get("file")[AT..AT + 8]);
        assert!((last..last + 65).contains(&found), "round {round}: {found} after {last} was said");
        most = most.max(last);
    }
    assert!(most > 50_000, "it counted to {most} at most");
}

/// Manager, holder and programs are killed in the same moment, as by an operator who clears up.
/// Nobody is left to write anything back: what was synced is in the file all the same, and beside
/// it nothing that no program wrote.
#[test]
fn what_was_synced_needs_nobody() {
    if !runs::ready() {
        return;
    }
    let program = programs().file_name().unwrap().to_string_lossy()[..15].to_owned();
    let mut most = 0;
    for (round, moment) in moments(6, 400).enumerate() {
        let place = Scratch::new("kill-all");
        blank(&place);
        let budget = Budget::kib([128, 512, 4096][round % 3]);
        let count = 1 + round % 2;
        let (mut tree, said) = writers(&place, budget, "synced", count);
        for said in &said {
            until("the writers begin", || said.metadata().is_ok_and(|m| m.len() > 0));
        }
        std::thread::sleep(moment);
        let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
        let pids = named(tree.pid(), &program);
        let all: Vec<Pid> = [tree.pid()].into_iter().chain(others).chain(pids).collect();
        for &pid in &all {
            let _ = kill_process(pid, Signal::KILL);
        }
        tree.wait(LIMIT).expect("a killed process ends");
        for pid in all {
            until("everybody ends", || gone(pid));
        }
        let file = place.get("progress");
        for (who, said) in said.iter().enumerate() {
            let said = read_and_remove(said);
            let Some(last) = said.chunks_exact(8).next_back() else { continue };
            let last = u64::from_ne_bytes(last.try_into().unwrap());
            let mut synced = vec![0u64; PAGES as usize];
            for record in 1..=last {
                synced[page_of(record)] = record;
            }
            for (page, synced) in synced.into_iter().enumerate() {
                let at = page * PAGE + who * 8;
                let got = u64::from_ne_bytes(file[at..at + 8].try_into().unwrap());
                assert!(got >= synced, "page {page}: {got}, and {synced} was synced");
                assert!(got == 0 || page_of(got) == page, "page {page}: {got}: nobody wrote it");
            }
            most = most.max(last);
        }
        for (at, byte) in file.iter().enumerate() {
            assert!(*byte == 0 || at % PAGE < count * 8, "byte {at}: {byte}: nobody wrote it");
        }
    }
    assert!(most > 100, "the writers synced {most} records at most");
}

/// The holder kept to the user's limit of open files, and messages with descriptors beyond it
/// lost them: what had been written to those files was gone with the manager.
#[test]
fn a_killed_manager_loses_nothing_of_very_many_files() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("kill-many");
    let said = place.path().with_extension("said");
    let mut budget = command(&place, Some(&Budget::kib(16 << 10)), "python3");
    let script = "\
import mmap, os, sys, time
kept = []
for i in range(700):
    fd = os.open(f'f{i}', os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 5000)
    m = mmap.mmap(fd, 5000)
    os.close(fd)
    m[4500:4504] = b'%4d' % i
    kept.append(m)
open(sys.argv[1], 'w').write('done')
time.sleep(100)
";
    budget.args(["-c", script]).arg(&said);
    // Behind the limit that a shell sets for all of them.
    let mut limited = limited(&budget, "-Sn 1000");
    let mut tree = Tree::start(limited.stdin(Stdio::null()).stderr(Stdio::null()));
    until("the files are written", || said.metadata().is_ok_and(|m| m.len() > 0));
    let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(others.len(), 2, "a program and a holder");
    kill_process(tree.pid(), Signal::KILL).unwrap();
    tree.wait(LIMIT).expect("a killed process ends");
    for pid in others {
        until("program and holder end", || gone(pid));
    }
    let _ = std::fs::remove_file(said);
    for i in 0..700 {
        let content = place.get(&format!("f{i}"));
        assert_eq!(content[4500..4504], *format!("{i:4}").as_bytes(), "file {i}");
    }
}

/// Where the manager had no descriptors left, connections were not accepted any more, for good, and
/// what programs asked for was refused: those that came later ran unmanaged, or without their mapping.
#[test]
fn who_finds_no_descriptor_left_waits_for_one() {
    if !runs::ready() {
        return;
    }
    const PROCESSES: u64 = 60;
    let place = Scratch::new("kill-few");
    place.put("f", vec![0u8; 2 * PAGE]);
    let one = "\
import mmap, os, time
m = mmap.mmap(os.open('f', os.O_RDWR), 4096)
n = int.from_bytes(m[:8], 'little') + 1
m[:8] = n.to_bytes(8, 'little')
print(n, flush=True)
time.sleep(1)
";
    let all = format!(
        "\
import subprocess, sys
kept = []
for i in range({PROCESSES}):
    one = subprocess.Popen([sys.executable, '-S', '-E', '-c', sys.argv[1]], stdout=subprocess.PIPE)
    said = one.stdout.readline()
    assert said == b'%d\\n' % (i + 1), (i, said)
    kept.append(one)
assert all(one.wait() == 0 for one in kept)
"
    );
    let mut run = command(&place, Some(&Budget::kib(1024)), "python3");
    run.args(["-c", &all, one]);
    let mut limited = limited(&run, "-n 80");
    let mut tree = Tree::start(limited.stdin(Stdio::null()).stderr(Stdio::piped()));
    let status = tree.wait(LIMIT).expect("the run ends");
    let mut errors = String::new();
    let _ = tree.0.stderr.take().unwrap().read_to_string(&mut errors);
    assert_eq!(status.code(), Some(0), "{errors}");
    assert_eq!(place.get("f")[..8], PROCESSES.to_ne_bytes());
}

/// Of many that came at once each got a connection, and none the rest of what it needed: all waited for
/// each other, for ever. So did threads of one process for the one whose change was to end first, which had no
/// connection left to say so by.
#[test]
fn many_that_come_at_once_find_descriptors() {
    if !runs::ready() {
        return;
    }
    const PROCESSES: u64 = 40;
    let place = Scratch::new("kill-burst");
    let ones = [
        "\
import mmap, os, sys, time
m = mmap.mmap(os.open('f', os.O_RDWR), 4096)
m[int(sys.argv[1])] = 1
time.sleep(0.1)
",
        "\
import mmap, os, sys, threading
m = mmap.mmap(os.open('f', os.O_RDWR), 4096)
def work(n):
    fd = os.open('g', os.O_RDWR)
    for _ in range(20): assert os.pwrite(fd, b'1', n) == 1 == len(os.pread(fd, 1, n))
threads = [threading.Thread(target=work, args=(int(sys.argv[1]) * 6 + n,)) for n in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
m[int(sys.argv[1])] = 1
",
    ];
    let all = format!(
        "\
import subprocess, sys
one = [sys.executable, '-S', '-E', '-c', sys.argv[1]]
all = [subprocess.Popen(one + [str(n)]) for n in range({PROCESSES})]
assert not any(one.wait() for one in all)
"
    );
    for one in ones {
        place.put("f", vec![0u8; 2 * PAGE]);
        place.put("g", vec![0u8; 2 * PAGE]);
        let mut run = command(&place, Some(&Budget::kib(1024)), "python3");
        run.args(["-c", &all, one]);
        finish(&place, &mut limited(&run, "-n 128"), b"", LIMIT).ok();
        assert_eq!(place.get("f")[..PROCESSES as usize], [1; PROCESSES as usize]);
        let written = if one.contains("threading") { PROCESSES as usize * 6 } else { 0 };
        assert_eq!(place.get("g")[..written], vec![b'1'; written]);
    }
}

/// The holder is a copy of the manager. Who ends processes by their command line (`pkill -f`) must not
/// end it with the manager, and it must not keep pipes open that others wait for.
#[test]
fn the_holder_is_named_by_itself_and_holds_nothing_of_the_managers() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("kill-named");
    let mut run = command(&place, Some(&Budget::kib(128)), "sleep");
    run.arg("100").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let tree = Tree::start(&mut run);
    let holder = || children(tree.pid()).into_iter().find(|(_, called)| called == "pk-holder");
    until("there is a holder", || holder().is_some());
    let of = format!("/proc/{}", holder().unwrap().0.as_raw_pid());
    let words = || -> Vec<String> {
        let line = std::fs::read_to_string(format!("{of}/cmdline")).unwrap();
        line.split_terminator('\0').filter(|word| !word.is_empty()).map(String::from).collect()
    };
    until("it has its own name", || words() == ["pagekeeper", "holder"]);
    let open = || -> Vec<String> {
        let open = std::fs::read_dir(format!("{of}/fd")).unwrap().flatten();
        let open = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        open.map(|what| what.to_string_lossy().into_owned()).collect()
    };
    // When it has its name, it still looks at files of `/proc`.
    until("it has its socket, the two that programs connect to, and nothing else", || {
        let (null, others): (Vec<_>, Vec<_>) =
            open().into_iter().partition(|what| what == "/dev/null");
        null.len() == 3
            && others.len() == 3
            && others.iter().all(|other| other.starts_with("socket:"))
    });
}

/// A Python program hides itself by some lines of its own, and reads of a file `f` of sevens all the
/// time: when its manager is killed, it is ended before it reads anything else.
pub(crate) fn reads_no_zeros_without_its_manager(place: &Scratch, mut run: Command, hides: &str) {
    let said = place.path().with_extension("said");
    let seen = place.path().with_extension("seen");
    let script = format!(
        "\
import ctypes, mmap, os, sys, time
m = mmap.mmap(os.open('f', os.O_RDWR), 0)
{hides}
seen = open(sys.argv[2], 'wb', buffering=0)
open(sys.argv[1], 'w').write('done')
i = 0
while True:
    i = (i + 1) % 600
    if m[i * 4096] != 7: seen.write(b'zero')
    time.sleep(0.0005)
"
    );
    run.args(["-c", &script]).arg(&said).arg(&seen);
    let mut tree = Tree::start(run.stdin(Stdio::null()).stderr(Stdio::null()));
    until("the program begins", || said.metadata().is_ok_and(|m| m.len() > 0));
    let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(others.len(), 2, "a program and a holder");
    std::thread::sleep(Duration::from_millis(50));
    kill_process(tree.pid(), Signal::KILL).unwrap();
    tree.wait(LIMIT).expect("a killed process ends");
    let start = Instant::now();
    while !others.iter().all(|pid| gone(*pid)) && start.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left: Vec<&Pid> = others.iter().filter(|pid| !gone(**pid)).collect();
    left.iter().for_each(|pid| _ = kill_process(**pid, Signal::KILL));
    assert!(left.is_empty(), "runs on without a manager");
    let _ = std::fs::remove_file(said);
    assert_eq!(read_and_remove(&seen), b"", "it read zeros");
}

/// The holder knew programs by their environment alone. One that had written its title over it,
/// as servers do, ran on without a manager, and read zeros from the moment the holder ended.
#[test]
fn a_program_that_overwrote_its_environment_never_reads_zeros() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("kill-title");
    place.put("f", vec![7u8; 600 * PAGE]);
    let run = command(&place, Some(&Budget::kib(128)), "python3");
    let hides = "\
fields = open('/proc/self/stat').read().rsplit(')', 1)[1].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, ord('x'), end - start)
assert b'PAGEKEEPER' not in open('/proc/self/environ', 'rb').read()";
    reads_no_zeros_without_its_manager(&place, run, hides);
}

/// With the manager and its holder both gone, the kernel gives zeros for what is not there: a forked child that
/// computed read them, and its parent, which waited for it to say something, would have done so for ever.
#[test]
fn nobody_goes_on_who_has_lost_manager_and_holder() {
    if !runs::ready() {
        return;
    }
    for round in 0..10 {
        let place = Scratch::new("kill-served");
        place.put("f", vec![7u8; 600 * PAGE]);
        let said = place.path().with_extension("said");
        let seen = place.path().with_extension("seen");
        std::fs::write(&seen, b"").unwrap();
        let script = "\
import mmap, os, sys
f = os.open('f', os.O_RDWR)
m = mmap.mmap(f, 0)
seen, (ours, theirs), i = os.open(sys.argv[2], os.O_WRONLY), os.pipe(), m[0]
if os.fork() > 0:
    os.read(ours, 1)
    open(sys.argv[1], 'w').write('done')
    os.read(ours, 1)
os.pread(f, 1, 0)
os.write(theirs, b'x')
while True:
    i = (i * 37 + 11) % 600
    if m[i * 4096] != 7: os.write(seen, b'zero')";
        let mut run = command(&place, Some(&Budget::kib(128)), "python3");
        run.args(["-c", script]).arg(&said).arg(&seen);
        let mut tree = Tree::start(run.stdin(Stdio::null()).stderr(Stdio::null()));
        until("the programs begin", || said.metadata().is_ok_and(|m| m.len() > 0));
        std::thread::sleep(Duration::from_millis(20));
        let (holder, programs): (Vec<_>, Vec<_>) =
            children(tree.pid()).into_iter().partition(|(_, called)| called == "pk-holder");
        let child = children(programs[0].0).into_iter().next().expect("a child");
        kill_process(tree.pid(), Signal::KILL).unwrap();
        kill_process(holder[0].0, Signal::KILL).unwrap();
        tree.wait(LIMIT).expect("a killed process ends");
        let start = Instant::now();
        for pid in [programs[0].0, child.0] {
            while !gone(pid) && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(2));
            }
            assert!(
                gone(pid) || kill_process(pid, Signal::KILL).is_err(),
                "round {round}: it goes on"
            );
        }
        let _ = std::fs::remove_file(said);
        assert_eq!(read_and_remove(&seen), b"", "round {round}: zeros");
    }
}

/// What started a program again when it was stopped, as supervisors do, had it read what the file was
/// before, and what it then stored was written over.
#[test]
fn a_program_that_starts_after_the_managers_end_sees_nothing_old() {
    if !runs::ready() {
        return;
    }
    let mut most = 0;
    for moment in moments(12, 400) {
        let place = Scratch::new("kill-manager-restart");
        blank(&place);
        let said = place.path().with_extension("said");
        std::fs::write(&said, [0; PAGE]).unwrap();
        let counter = format!("{} counted . {}", programs().display(), said.display());
        let mut command = command(&place, Some(&Budget::kib(512)), "sh");
        command.args(["-c", &format!("while :; do {counter}; done")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut tree = Tree::start(&mut command);
        let count = |file: &[u8], at: usize| {
            u64::from_ne_bytes(file[at..at + 8].try_into().expect("eight bytes"))
        };
        until("it counts", || std::fs::read(&said).is_ok_and(|file| count(&file, 0) > 0));
        std::thread::sleep(moment);
        let others: Vec<Pid> = children(tree.pid()).into_iter().map(|(pid, _)| pid).collect();
        kill_process(tree.pid(), Signal::KILL).unwrap();
        tree.wait(LIMIT).expect("a killed process ends");
        for pid in others {
            until("shell and holder end", || gone(pid));
        }
        let mut errors = String::new();
        let _ = tree.0.stderr.take().unwrap().read_to_string(&mut errors);
        assert!(!errors.contains("programs.c"), "{errors}");
        let last = count(&read_and_remove(&said), 0);
        let stored = count(&place.get("progress"), PAGE);
        assert!(stored == last || stored == last + 1, "{stored} in the file, {last} stored");
        most = most.max(last);
    }
    assert!(most > 100, "it counted to {most} at most");
}

/// A run under a run: the outer one's holder ended the inner manager and the inner holder at once, both
/// of which had its tag in their environments, and the inner program read zeros from then on.
#[test]
fn a_run_under_one_whose_manager_is_killed_loses_nothing() {
    if !runs::ready() {
        return;
    }
    let program = programs().file_name().unwrap().to_string_lossy()[..15].to_owned();
    let mut most = 0;
    for moment in moments(3, 300) {
        let place = Scratch::new("kill-nested");
        let outside = Scratch::new("kill-nested-outer");
        blank(&place);
        let said = place.path().with_extension("said");
        let inner = command(&place, Some(&Budget::kib(512)), programs());
        let mut outer = command(&outside, Some(&Budget::kib(512)), inner.get_program());
        outer.args(inner.get_args()).args(["progress", ".", &PAGES.to_string(), "0"]);
        outer.current_dir(place.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        outer.stdout(std::fs::File::create(&said).expect("a file for what is said"));
        let mut tree = Tree::start(&mut outer);
        until("the writer begins", || said.metadata().is_ok_and(|m| m.len() > 0));
        std::thread::sleep(moment);
        let pids = named(tree.pid(), &program);
        assert_eq!(pids.len(), 1);
        let holders = named(tree.pid(), "pk-holder");
        assert_eq!(holders.len(), 2);
        kill_process(tree.pid(), Signal::KILL).unwrap();
        tree.wait(LIMIT).expect("a killed process ends");
        for pid in pids.into_iter().chain(holders) {
            until("program and holders end", || gone(pid));
        }
        most = most.max(check(&place.get("progress"), &read_and_remove(&said), 0));
    }
    assert!(most > 100, "the writer wrote {most} records at most");
}

/// Who is killed while mappings are taken over at the end of a standby.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Program,
    Manager,
    Holder,
}

/// What was said is in a file whose pages are full of their own numbers otherwise: word `at` of its first
/// 64 pages, one after the other.
#[track_caller]
fn check_stored(file: &[u8], said: &[u8], at: usize) {
    const STORED_PAGES: u64 = 64;
    let records = (said.len() / 8) as u64;
    for page in 0..STORED_PAGES {
        let last = (0..=records).rev().find(|i| i % STORED_PAGES == page);
        let last = last.filter(|&i| i > 0).unwrap_or(page);
        let start = page as usize * PAGE + at * 8;
        let got = u64::from_ne_bytes(file[start..start + 8].try_into().unwrap());
        // One more may have been stored and not said.
        let next = got == records + 1 && got % STORED_PAGES == page;
        assert!(got == last || next, "page {page}, word {at}: {got}, not {last} of {records}");
    }
}

/// Files become managed in the midst of a run, while threads look at them and store to them; in that
/// moment somebody is killed. How often: `STANDBY_KILLS`.
#[test]
fn nothing_is_lost_at_the_end_of_a_standby() {
    kills_at_the_end_of_a_standby("killed");
}

/// And stored by a mapping, to the kernel's pages and then to ours.
#[test]
fn nothing_stored_by_a_mapping_is_lost_at_the_end_of_a_standby() {
    kills_at_the_end_of_a_standby("killed-storing");
}

fn kills_at_the_end_of_a_standby(part: &str) {
    if !runs::ready() {
        return;
    }
    let program = runs::compiled("standby.c", &["-O2"], "standby");
    let name = program.file_name().unwrap().to_string_lossy()[..15].to_owned();
    let rounds = std::env::var("STANDBY_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(9);
    for round in 0..rounds {
        let victim = [Victim::Program, Victim::Manager, Victim::Holder][round % 3];
        let moment = Duration::from_micros(mixed(round as u64 + 1) % 60_000);
        let Ok(cgroup) = MemoryCgroup::create("pagekeeper-kill", 96 << 20) else { return };
        let place = Scratch::new(&format!("{part}-standby"));
        let content: Vec<u8> =
            (0..256u64).flat_map(|page| page.to_le_bytes().repeat(512)).collect();
        place.put("data", &content);
        place.put("trigger", vec![1; PAGE]);
        let files = place.file("{data,trigger}").display().to_string();
        let budget = Budget::kib(64 << 10).policy("auto").files(files);
        let mut run = command(&place, Some(&budget), &program);
        let said_so = place.file("errors");
        let errors = || std::fs::read_to_string(&said_so).expect("what is said");
        run.arg(part).stdin(Stdio::null()).stdout(Stdio::piped());
        run.stderr(std::fs::File::create(&said_so).expect("a file for what is said"));
        let procs = vec![cgroup.procs().expect("our own cgroup")];
        ChildSetup { cgroup_procs: procs, ..ChildSetup::default() }.apply(&mut run);
        let mut tree = Tree::start(&mut run);
        let mut out = tree.0.stdout.take().unwrap();
        out.read_exact(&mut [0; 6]).expect("it is ready");
        let all = children(tree.pid());
        let of = |whether: bool| all.iter().find(|(_, called)| (*called == name) == whether);
        let (program, holder) = (of(true).expect("a program").0, of(false).expect("a holder").0);
        std::thread::sleep(moment);
        let pid = match victim {
            Victim::Program => program,
            Victim::Manager => tree.pid(),
            Victim::Holder => holder,
        };
        kill_process(pid, Signal::KILL).unwrap();
        if victim == Victim::Holder {
            // The program goes on, and can be ended as ever.
            let said = || place.file("said2").metadata().map_or(0, |said| said.len());
            until("the program stores by its mapping", || said() > 0);
            let before = said();
            until("the program goes on", || said() > before);
            until("the manager is told", || errors().contains("holder"));
            kill_process(program, Signal::KILL).unwrap();
        }
        let status = tree.wait(LIMIT).expect("the run ends");
        assert_eq!(runs::signal_of(status), Some(9), "{victim:?} after {moment:?}");
        for (pid, called) in &all {
            until(called, || gone(*pid));
        }
        let errors = errors();
        let said = [("manager", Victim::Manager), ("holder", Victim::Holder)];
        for (word, _) in said.iter().filter(|(_, whose)| *whose == victim) {
            assert!(errors.contains(word), "{victim:?} after {moment:?}: {errors}");
        }
        assert!(!errors.contains("standby.c"), "{victim:?} after {moment:?}: {errors}");
        let mut file = place.get("data");
        assert_eq!(file.len(), content.len());
        for (name, at) in [("said1", 1), ("said2", 2)] {
            check_stored(&file, &std::fs::read(place.file(name)).unwrap_or_default(), at);
        }
        for (page, page_bytes) in file.chunks_exact_mut(PAGE).enumerate() {
            page_bytes[8..24].copy_from_slice(&(page as u64).to_le_bytes().repeat(2));
        }
        assert!(file == content, "{victim:?} after {moment:?}: bytes that nobody stored");
        // Those that ended and were not waited for yet stand there, too.
        let left = std::fs::read_to_string(cgroup.path().join("cgroup.procs")).unwrap_or_default();
        let pids = left.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        let left: Vec<Pid> = pids.filter(|pid| !gone(*pid)).collect();
        assert_eq!(left, [], "{victim:?} after {moment:?}: processes are left");
        // Another run may have the file.
        let budget = Budget::kib(1024).policy("lru");
        let mut cat = command(&place, Some(&budget), "cat");
        let done = finish(&place, cat.arg("data"), b"", LIMIT).ok();
        assert!(done.managed_files() == 1, "{}", done.stderr);
    }
}

/// In a cgroup that many small processes fill, the largest one was the manager, by its own code: the kernel ended
/// it, and the whole service with it, where without it one worker after the other is ended (11 of 11 runs).
#[test]
fn who_fills_a_cgroup_is_ended_and_not_the_manager() {
    if !runs::ready() {
        return;
    }
    let Ok(cgroup) = MemoryCgroup::create("pagekeeper-kill-full", 48 << 20) else { return };
    let place = Scratch::new("kill-full");
    // Each holds 4 MiB until all do.
    let workers = "for i in $(seq 24); do head -c 4M /dev/zero | tail -c 4M | (sleep 1; cat >/dev/null) & done
                   wait; echo over";
    let mut run = command(&place, Some(&Budget::kib(4096)), "sh");
    run.args(["-c", workers]);
    let procs = vec![cgroup.procs().expect("our own cgroup")];
    ChildSetup { cgroup_procs: procs, ..ChildSetup::default() }.apply(&mut run);
    let done = run.output().expect("it can be started");
    let errors = String::from_utf8_lossy(&done.stderr);
    assert_eq!(runs::signal_of(done.status), None, "{errors}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "over\n", "{errors}");
}
