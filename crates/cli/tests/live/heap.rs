//! Heap memory of unmodified programs under a policy: C programs that check what they keep there,
//! whose output must be that of a bare run, while every page goes to the scratch file and comes
//! back.

use crate::runs::{
    self, Budget, Finished, LIMIT, Scratch, command, compiled, finish, python, same,
};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn heap() -> PathBuf {
    compiled("heap.c", &["-Wl,--no-as-needed", "-lm"], "heap")
}

/// Allocations of 64 KiB and more are managed.
fn budget(kib: u64) -> Budget {
    Budget::kib(kib).heap(64 << 10)
}

#[track_caller]
fn part(name: &str, budget: Budget, arguments: &[&str]) -> Option<Finished> {
    if !runs::ready() {
        return None;
    }
    let mut all = vec![name];
    all.extend(arguments);
    let place = format!("heap-{name}-{}-{}", budget.policy, budget.compress_percent);
    Some(same(&place, &budget, heap(), &all, |_| ()).ok())
}

/// Pages that came from the scratch file.
fn fetched(done: &Finished) -> u64 {
    done.total("read_bytes") / 4096
}

#[test]
fn memory_is_what_the_kernel_promises_of_it() {
    if let Some(done) = part("semantics", budget(4096), &[]) {
        let done = done.pressed();
        assert!(done.total("written_bytes") > 4 << 20);
    }
}

/// `forkpty` and `daemon` did not look at the stack as `fork` does, and waited for themselves for ever.
#[test]
fn whoever_forks_on_a_stack_that_is_managed_is_told() {
    part("large-stack", budget(4096), &[]);
}

/// Advice that discards and that the manager did not know left what was there; a move onto itself destroyed
/// it, where the kernel refuses.
#[test]
fn unknown_advice_and_moves_that_cannot_be_change_nothing() {
    for name in ["guards", "refused-moves"] {
        part(name, budget(4096), &[]);
    }
}

/// SM, Tables 1 and 2: cyclic passes over more than there is memory for.
#[test]
fn a_transform_is_the_same_under_any_policy_and_mru_fetches_least() {
    let run = |policy| part("fft", budget(1536).policy(policy), &["1"]);
    let Some(lru) = run("lru") else { return };
    let [mru, fifo2, clock] = ["mru", "fifo2", "clock"].map(|policy| run(policy).unwrap());
    assert!(fetched(&mru) * 3 < fetched(&lru) * 2, "{} and {}", fetched(&mru), fetched(&lru));
    for done in [lru, fifo2, clock] {
        done.pressed();
    }
}

#[test]
fn matrices_are_multiplied_the_same_and_mru_fetches_least() {
    // Less than one of the matrices takes.
    let run = |policy| part("multiply", budget(560).policy(policy), &["300"]);
    let Some(lru) = run("lru") else { return };
    let mru = run("mru").unwrap();
    assert!(fetched(&mru) < fetched(&lru), "{} and {}", fetched(&mru), fetched(&lru));
}

/// The kernel puts what a direct read brings into the pages that it looked up when the read began;
/// those that had left by then had zeros, or what they had before.
#[test]
fn what_is_read_asynchronously_is_there() {
    if let Some(done) = part("asynchronous", budget(4096).policy("mru"), &["32"]) {
        done.pressed();
    }
}

#[test]
fn threads_allocate_resize_and_free_at_random() {
    if let Some(done) = part("stress", budget(6144), &["3", "50", "1024", "0"]) {
        done.pressed();
    }
}

#[test]
fn children_and_parents_have_each_their_own_memory() {
    if let Some(done) = part("forks", budget(3072), &[]) {
        done.pressed();
    }
    if let Some(done) = part("stress", budget(6144).policy("lru"), &["1", "60", "1024", "1"]) {
        done.pressed();
    }
}

/// A `forkpty` that failed before it forked ended the fork before it: that one's child found nothing to inherit
/// (exit code 70, 99 of 100).
#[test]
fn a_fork_that_fails_is_not_the_one_before() {
    part("no-terminal", budget(8192), &[]);
}

/// A child whose parent's last child had just ended could be taken for that one, whose heap was
/// about to go: it began with no memory at all.
#[test]
fn a_child_begins_as_another_ends() {
    part("generations", budget(4096), &["150"]);
}

/// What a child inherits went with its parent: one whose parent ended at once, as `daemon(3)` has it,
/// was ended.
#[test]
fn a_child_outlives_a_parent_that_ends_at_once() {
    part("daemons", budget(4096), &["200"]);
}

/// What a thread had freed while another forked was in the child's copy of what is stored, where its
/// next allocation was. What a thread cleared meanwhile was there again.
#[test]
fn what_a_child_allocates_is_zeros() {
    part("fresh", budget(32 << 10), &["200"]);
}

/// Runtimes that make their system calls themselves (Go's) found in memory that they had given back what it had
/// had before.
#[test]
fn memory_that_was_given_back_without_libc_is_zeros() {
    for kib in [1024, 16384] {
        let _ = part("behind-libc", budget(kib).policy("lru"), &[]);
    }
}

/// libc looked at streams in memory that a forked child did not have yet, and each child of a program with
/// threads ended (redis saved nothing).
#[test]
fn children_of_a_program_with_threads_find_its_streams() {
    if !runs::ready() {
        return;
    }
    let program = compiled("own.c", &[], "own");
    let _ = same("own-streams", &budget(2048), &program, &[], |_| ()).ok();
}

/// Who gave memory back so went on when that was read, and what was mapped around another thread's page
/// came after it: old content was there again, and what was stored then was lost.
#[test]
fn memory_that_is_given_back_beside_other_threads_is_zeros() {
    for policy in ["lru", "clock"] {
        let _ = part("side-by-side", budget(4096).policy(policy), &[]);
    }
}

/// Pages that memory grew over, just after it had lost them, did not count as allocated: when what
/// came before them was freed, all of it was given to the next allocation.
#[test]
fn memory_that_shrank_and_grew_again_is_nobody_elses() {
    part("shrink-and-grow", budget(16 << 10), &["2000"]);
}

/// Growth that the kernel refused counted as allocated, for good.
#[test]
fn memory_that_could_not_grow_is_given_back() {
    let Some(done) = part("grow-in-vain", budget(4096), &["1000"]) else { return };
    // All of it would be 250 MiB, and twice that.
    let files = done.stats["files"].as_array().expect("files");
    let bytes: u64 = files.iter().map(|file| file["bytes"].as_u64().expect("a count")).sum();
    // It is given back by and by.
    assert!(bytes < 125 << 20, "{bytes} bytes were allocated at once");
}

/// Where something failed between the manager's giving a range and its being mapped, the range counted as
/// allocated, for good; and the mapping of the kernel's that had been made for it stayed.
#[test]
fn memory_that_could_not_be_mapped_is_given_back() {
    part("mapped-in-vain", budget(4096), &["40"]);
}

#[test]
fn a_process_forks_while_its_threads_write() {
    part("fork-threads", budget(1024), &[]);
}

/// glibc waits for its list of streams where a fork has stores to memory held already. A thread that
/// flushed all streams, one of which stored to such memory, had the list, and waited for the fork.
#[test]
fn a_process_forks_while_a_thread_flushes_all_streams() {
    part("fork-streams", budget(8192), &["40"]);
}

/// First touches of memory read zeros, and nothing was ever on storage.
#[test]
fn memory_that_is_never_written_costs_no_io() {
    if let Some(done) = part("zeros", budget(2048), &["16"]) {
        let done = done.pressed();
        assert_eq!(done.total("read_bytes"), 0);
        // The allocator stores to the first page, which is written if that takes five seconds.
        assert!(done.total("written_bytes") <= 4096, "{}", done.stats);
    }
}

/// Each page's first store was a fault of its own, two for each page that is filled, and later one for
/// every sixth: programs whose working memory fits took up to twice as long.
#[test]
fn memory_that_is_filled_in_order_has_few_faults() {
    let Some(done) = part("fft", budget(64 << 10), &["8"]) else { return };
    let (pages, faults) = (2 * 8 * 256, done.total("write_faults") + done.total("major_faults"));
    assert!(faults * 64 < pages, "{faults} faults of {pages} pages");
    assert_eq!(done.total("written_bytes"), 0);
}

/// Each process's heap had a line of its own in the report, and a number that was never used again.
#[test]
fn the_heaps_of_many_processes_are_summed_in_the_report() {
    if !runs::ready() {
        return;
    }
    let script = format!("for i in $(seq 130); do {} zeros 1; done", heap().display());
    let done = same("heap-many", &budget(8192), "/bin/sh", &["-c", &script], |_| ()).ok();
    let files = done.stats["files"].as_array().expect("files");
    let heaps: Vec<&str> = files
        .iter()
        .filter_map(|file| file["name"].as_str().filter(|name| name.starts_with("heap:")))
        .collect();
    assert!((101..110).contains(&heaps.len()), "{heaps:?}");
    assert!(heaps.iter().any(|name| name.ends_with(" others that ended")), "{heaps:?}");
    assert!(done.total("major_faults") >= 130, "{}", done.stderr);
}

/// Without the option nothing of it is managed.
#[test]
fn heap_memory_is_left_alone_unless_asked_for() {
    if let Some(done) = part("zeros", Budget::kib(2048), &["16"]) {
        assert_eq!(done.managed_files(), 0);
    }
}

/// The same programs, whose pages stay compressed as long as there is room, and come back from there
/// or from the scratch file. What came back was in its frame alone: counted as clean, it was lost.
#[test]
fn compressed_memory_is_what_was_stored() {
    let mut found = 0;
    for (name, kib, percent, arguments) in [
        ("semantics", 4096, 30, &[][..]),
        ("asynchronous", 4096, 50, &["32"]),
        ("stress", 6144, 20, &["3", "50", "1024", "0"]),
        ("stress", 6144, 50, &["1", "60", "1024", "1"]),
        ("forks", 3072, 40, &[]),
        ("generations", 4096, 30, &["60"]),
        ("fork-threads", 1024, 40, &[]),
    ] {
        let Some(done) = part(name, budget(kib).compress(percent).policy("lru"), arguments) else {
            return;
        };
        // Segments of chunks are taken whole, and the limit is on what lies in them: pages that came back
        // leave holes.
        let limit = done.compressed("limit_bytes");
        let most = limit + limit / 8 + (64 << 10);
        assert!(done.compressed("memory_bytes_max") < most);
        found += done.compressed("found_pages");
    }
    assert!(found > 1000, "{found} pages came back");
}

/// Of text in less memory than it takes nothing has to be read: it fits, compressed. Nor is any of it
/// written to the scratch file.
#[test]
fn what_fits_compressed_costs_no_io() {
    let script = "
import numpy
lines = [b'%08d - - GET /items/%04d HTTP/1.1 200' % (i, i * 7919 % 5000) for i in range(200000)]
a = numpy.array(lines)
b = numpy.concatenate([a[1::2], a[::2]])
for _ in range(3):
    a, b = b[::-1].copy(), a
print(a[12345], b[54321], int(a.view(numpy.uint8).astype(numpy.uint32).sum()))
";
    let budget = |percent| budget(32 << 10).compress(percent);
    let Some(plain) = in_python("heap-text", &budget(0), script) else { return };
    let done = in_python("heap-text-compressed", &budget(60), script).expect("it ran before");
    assert!(plain.total("read_bytes") > 4 << 20, "{}", plain.total("read_bytes"));
    // But for the few pages that do not compress.
    let moved = done.total("read_bytes") + done.total("written_bytes");
    assert!(moved < 1 << 20, "{moved} bytes");
    assert!(done.compressed("kept_pages") > 1000);
}

/// What does not fit the budget goes to the scratch directory, which is empty to look at.
fn filling(name: &str, seconds: u64) -> (Scratch, runs::Tree) {
    let place = Scratch::new(name);
    let mut command = command(&place, Some(&budget(2048)), heap());
    command.args(["fill", "16", &seconds.to_string(), "2"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut tree = runs::Tree::start(&mut command);
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    let stdout = tree.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("the program fills its memory");
    assert_eq!(line, "filled\n");
    (place, tree)
}

fn child_of(pid: u32) -> Pid {
    let children = std::fs::read_dir("/proc").expect("there is /proc").flatten().filter_map(|e| {
        let pid: i32 = e.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(e.path().join("status")).ok()?;
        let name = status.lines().find_map(|l| l.strip_prefix("Name:\t"))?.to_owned();
        let parent = status.lines().find_map(|l| l.strip_prefix("PPid:\t"))?.parse().ok()?;
        Some((pid, parent, name))
    });
    let of: Vec<(i32, u32, String)> = children.filter(|c| c.1 == pid).collect();
    let program = of.iter().find(|c| c.2.starts_with("live-program")).expect("the program runs");
    Pid::from_raw(program.0).expect("a process id")
}

#[test]
fn a_killed_program_takes_its_memory_along() {
    if !runs::ready() {
        return;
    }
    let (_place, mut tree) = filling("heap-killed", 60);
    kill_process(child_of(tree.0.id()), Signal::KILL).expect("it can be killed");
    let started = Instant::now();
    assert!(tree.wait(Duration::from_secs(20)).is_some(), "the run ends with its program");
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Nobody could give the program its memory: it must not go on with zeros.
#[test]
fn a_program_ends_with_its_manager() {
    if !runs::ready() {
        return;
    }
    let (_place, mut tree) = filling("heap-orphaned", 60);
    let program = child_of(tree.0.id());
    kill_process(tree.pid(), Signal::KILL).expect("it can be killed");
    tree.wait(Duration::from_secs(5)).expect("it is dead");
    let started = Instant::now();
    while std::fs::read_to_string(format!("/proc/{}/stat", program.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.contains(") Z "))
    {
        assert!(started.elapsed() < Duration::from_secs(20), "the program goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A scratch directory of 8 MiB: the program is told by SIGBUS, and the user in words.
#[test]
fn a_full_scratch_directory_is_out_of_memory() {
    if !runs::ready() || !runs::is_root() {
        return;
    }
    let place = Scratch::new("heap-full");
    let small = place.file("small");
    std::fs::create_dir(&small).expect("a directory can be made");
    let mount = |arguments: &[&str]| {
        std::process::Command::new("mount").args(arguments).arg(&small).status()
    };
    if !mount(&["-t", "tmpfs", "-o", "size=8M", "tmpfs"]).is_ok_and(|s| s.success()) {
        runs::skip("no file system can be mounted here");
        return;
    }
    let mut command = std::process::Command::new(runs::pagekeeper());
    command.env("PAGEKEEPER_PRELOAD", runs::preload()).current_dir(place.path());
    command.args(["run", "--policy", "clock", "--memory", "4M", "--config", "/dev/null"]);
    command.args(["--heap=64K", "--heap-dir", "small", "--"]).arg(heap()).args(["fill", "64"]);
    let done = finish(&place, &mut command, b"", LIMIT);
    let _ = std::process::Command::new("umount").arg(&small).status();
    assert_eq!(runs::signal_of(done.status), Some(libc::SIGBUS), "{}", done.stderr);
    assert!(done.stderr.contains("no more room"), "{}", done.stderr);
}

#[track_caller]
fn in_python(name: &str, budget: &Budget, script: &str) -> Option<Finished> {
    if !runs::ready() {
        return None;
    }
    if !python().is_file() {
        runs::skip("there is no python with numpy");
        return None;
    }
    Some(same(name, budget, python(), &["-c", script], |_| ()).ok())
}

#[test]
fn numpy_arrays_are_sorted_and_multiplied() {
    let script = "
import numpy, hashlib
r = numpy.random.default_rng(1)
a = r.random(1500000)
b = numpy.sort(a)
c = a.reshape(1000, 1500) @ b.reshape(1500, 1000)
a.resize(3000000)
print(a.sum(), b[::7].sum(), hashlib.sha1(c.round(6).tobytes()).hexdigest())
";
    if let Some(done) = in_python("heap-numpy", &budget(12 << 10), script) {
        done.pressed();
    }
}

#[test]
fn python_forks_workers_that_inherit_arrays() {
    let script = "
import numpy, multiprocessing as mp
a = numpy.arange(1000000, dtype=numpy.int64)
def work(k):
    global a
    s = int(a[k::8].sum())
    a[:] = k
    return s, int(a.sum())
mp.set_start_method('fork')
with mp.Pool(2) as pool:
    got = pool.map(work, [3], chunksize=1)
print(got, int(a.sum()))
";
    if let Some(done) = in_python("heap-fork", &budget(6 << 10), script) {
        done.pressed();
    }
}

// ---- allocators of programs -----------------------------------------------------------------------

/// Where Debian's libjemalloc2 is.
fn jemalloc() -> Option<PathBuf> {
    let places =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places.iter().map(|place| PathBuf::from(place).join("libjemalloc.so.2"));
    let found = found.into_iter().find(|library| library.is_file());
    if found.is_none() {
        runs::skip("there is no libjemalloc.so.2 (Debian: libjemalloc2)");
    }
    found
}

/// With jemalloc linked, its own state is in managed memory, and its handlers of forks run before
/// this library's do. They locked it in memory that nobody could write to any more: a thread that
/// forked hung.
#[test]
fn jemalloc_linked_allocates_forks_and_has_threads() {
    let Some(library) = jemalloc().filter(|_| runs::ready()) else { return };
    let flags = [library.to_str().unwrap(), "-Wl,--no-as-needed", "-lm"];
    let program = compiled("heap.c", &flags, "heap-jemalloc");
    for (name, arguments) in [
        ("threads", ["stress", "3", "50", "1024", "0"]),
        ("forks", ["stress", "3", "40", "1024", "1"]),
    ] {
        let name = format!("jemalloc-linked-{name}");
        let done = same(&name, &budget(6144).policy("lru"), &program, &arguments, |_| ()).ok();
        assert!(fetched(&done.pressed()) > 1000);
    }
}

/// Before or behind this library in LD_PRELOAD. Before it, the program's allocations are jemalloc's
/// and its arenas are managed; behind it, large ones are ours.
#[test]
fn jemalloc_preloaded_allocates_forks_and_has_threads() {
    let Some(library) = jemalloc().filter(|_| runs::ready()) else { return };
    let library = library.display();
    let program = heap();
    let program = program.display();
    for order in [format!("{library}:$LD_PRELOAD"), format!("$LD_PRELOAD:{library}")] {
        for what in ["stress 3 50 1024 1", "fft 4"] {
            let script = format!("LD_PRELOAD={order} exec {program} {what}");
            let budget = budget(5120).policy("lru");
            let done = same("jemalloc-preloaded", &budget, "sh", &["-c", &script], |_| ()).ok();
            assert!(fetched(&done.pressed()) > 1000, "{script}");
        }
    }
}

/// A real program with an allocator of its own, in less memory than it uses.
#[test]
fn python_on_jemalloc_sorts_and_forks() {
    let Some(library) = jemalloc() else { return };
    let script = format!(
        "
import os, sys
if 'again' not in sys.argv:
    os.environ['LD_PRELOAD'] = '{}:' + os.environ.get('LD_PRELOAD', '')
    os.execv(sys.executable, [sys.executable, '-c', sys.orig_argv[2], 'again'])
import numpy, multiprocessing as mp, threading, hashlib
arrays = [numpy.random.default_rng(seed).random(500000) for seed in range(4)]
def sort(i):
    arrays[i].sort()
threads = [threading.Thread(target=sort, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
def digest(i):
    arrays[i] += 1
    return hashlib.sha1(arrays[i].tobytes()).hexdigest()
mp.set_start_method('fork')
with mp.Pool(2) as pool:
    print(pool.map(digest, range(4)))
print([a[::1000].sum() for a in arrays])
",
        library.display()
    );
    let done = in_python("jemalloc-python", &budget(10 << 10).policy("lru"), &script);
    if let Some(done) = done {
        assert!(fetched(&done.pressed()) > 1000);
    }
}

#[test]
fn python_forks_with_large_bytearrays() {
    let script = "
import os, hashlib
a = bytearray(os.urandom(16)) * (1 << 18)
b = bytearray(len(a))
b[:] = a[::-1]
a.extend(b)
pids = []
for k in range(3):
    pid = os.fork()
    if pid == 0:
        a[k::4096] = bytes(len(a[k::4096]))
        os._exit(sum(a[k::4096]) + (a[100:4096] != b[:-4097:-1][100:]))
    pids.append(pid)
print([os.waitpid(pid, 0)[1] for pid in pids], a[:1 << 22][::-1] == b, len(a))
";
    if let Some(done) = in_python("heap-bytearray", &budget(6 << 10).policy("lru"), script) {
        assert!(fetched(&done.pressed()) > 1000);
    }
}
