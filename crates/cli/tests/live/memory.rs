//! Mapped memory behaves as under the kernel while every page is evicted again and again: C
//! programs that check themselves, and whose output and files must be those of a bare run.

use crate::runs::{
    self, Budget, Finished, LIMIT, Scratch, command, compiled, finish, programs, same,
};

#[track_caller]
fn part(name: &str, budget: Budget, arguments: &[&str]) -> Option<Finished> {
    if !runs::ready() {
        return None;
    }
    let mut all = vec![name, "."];
    all.extend(arguments);
    let place = if budget.lacking.is_empty() { name.to_owned() } else { format!("{name}-lacking") };
    Some(same(&place, &budget, programs(), &all, |_| ()).ok())
}

/// A mapping of a file that the program itself had created was passed through: the descriptor that
/// the manager needs to begin did not ride along with the request.
#[test]
fn a_file_that_the_program_made_is_managed() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("made");
    let mut session = runs::Session::managed(&place, Budget::kib(256));
    session.expect("open 1 new rwct", "ok");
    session.expect("pwrite 1 0 400000 5", "400000");
    session.expect("map 1 1 0 400000 rw shared", "ok");
    for page in 0..90 {
        session.expect(&format!("put 1 {} {page}", page * 4096), "ok");
    }
    session.expect("get 1 4097", "5");
    let done = session.end().ok().pressed();
    assert_eq!(done.managed_files(), 1);
    let content = place.get("new");
    assert!(
        (0..90).all(|page| content[page * 4096] == page as u8 && content[page * 4096 + 1] == 5)
    );
}

#[test]
fn parent_and_children_write_one_mapping_while_both_evict() {
    if let Some(done) = part("fork-shared", Budget::kib(256), &[]) {
        assert!(done.pressed().total("write_faults") > 600);
    }
}

#[test]
fn a_process_forks_while_its_threads_fault() {
    if let Some(done) = part("fork-threads", Budget::kib(256).policy("lru"), &[]) {
        done.pressed();
    }
}

#[test]
fn programs_are_started_by_vfork_exec_and_spawn() {
    if let Some(done) = part("spawn", Budget::kib(128), &[]) {
        done.pressed();
    }
}

#[test]
fn sixty_four_threads_fault_on_one_page() {
    if let Some(done) = part("one-page", Budget::kib(256).policy("fifo2"), &[]) {
        // Waiting threads are served by the fault that came first.
        assert!(done.pressed().total("major_faults") < 5_000);
    }
}

#[test]
fn private_mappings_copy_on_write() {
    // Private copies count in the budget: it has to hold them.
    if let Some(done) = part("private", Budget::kib(3072), &[]) {
        assert!(done.pressed().total("private_pages_max") >= 300);
    }
}

#[test]
fn mappings_move_and_grow() {
    if let Some(done) = part("moves", Budget::kib(256).policy("mru"), &[]) {
        done.pressed();
    }
}

#[test]
fn mappings_are_unmapped_and_replaced_in_pieces() {
    if let Some(done) = part("pieces", Budget::kib(128).policy("random"), &[]) {
        done.pressed();
    }
}

/// `madvise` at an address inside a page succeeded, since the manager was asked instead of the
/// kernel; and a MADV_REMOVE that the manager refused went on to the kernel, which punched the hole
/// into the manager's memory and not into the file.
#[test]
fn advice_does_what_it_does_under_the_kernel() {
    if let Some(done) = part("advice", Budget::kib(256), &[]) {
        done.pressed();
    }
}

#[test]
fn rights_are_those_of_the_descriptor() {
    if let Some(done) = part("rights", Budget::kib(96), &[]) {
        done.pressed();
    }
}

#[test]
fn touches_behind_the_end_raise_sigbus() {
    if let Some(done) = part("ends", Budget::kib(128), &[]) {
        assert!(done.total("major_faults") > 0);
    }
}

/// `pread` of one managed file into the mapping of another lost pages: the manager copied with
/// process_vm_writev, which holds on to up to a thousand pages before it copies; those that were
/// evicted in between took the bytes with them.
#[test]
fn system_calls_read_and_write_managed_memory() {
    if let Some(done) = part("buffers", Budget::kib(256), &[]) {
        done.pressed();
    }
}

#[test]
fn five_thousand_files_are_mapped_at_once() {
    if let Some(done) = part("many-files", Budget::kib(2048), &["5000"]) {
        assert_eq!(done.pressed().managed_files(), 5000);
    }
}

#[test]
fn a_sparse_terabyte_costs_what_is_touched() {
    if let Some(done) = part("terabyte", Budget::kib(1024), &[]) {
        let done = done.pressed();
        assert!(done.total("major_faults") <= 6_000, "{}", done.total("major_faults"));
        // Nothing but what was written, and the blocks that hold it.
        assert!(done.total("written_bytes") <= 1_100 * 4096, "{}", done.total("written_bytes"));
    }
}

/// Where the kernel makes huge pages of any memory (`always`), the first touches of the library's tables took
/// 4 MiB in each process.
#[test]
fn no_huge_page_is_made_of_what_is_hardly_used() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("memory-huge");
    place.put("file", vec![b'\n'; 64 << 10]);
    let mut run = command(&place, Some(&Budget::kib(1024)), "cat");
    let done = finish(&place, run.args(["file", "/proc/self/smaps"]), b"", LIMIT).ok();
    assert_eq!(done.managed_files(), 1, "{}", done.stderr);
    let text = done.text();
    let (mut is_private, mut kib, mut large) = (false, 0, 0);
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [_, rights, _, _, ref inode @ ..] if !line.contains(": ") => {
                is_private = rights == "rw-p" && *inode == ["0"];
            }
            ["Size:", size, _] => kib = size.parse().expect("a number"),
            // Nobody else has private memory of such a length in so small a program.
            ["VmFlags:", ref flags @ ..] if is_private && kib >= 2048 => {
                assert!(flags.contains(&"nh"), "{kib} KiB have {flags:?} only in {text}");
                large += 1;
            }
            _ => {}
        }
    }
    assert!(large > 0, "{text}");
}

#[test]
fn a_budget_of_a_few_pages_gets_through() {
    if let Some(done) = part("few-frames", Budget::kib(64), &[]) {
        done.pressed();
    }
}

/// Nine threads in three processes, each with pages of its own in one file: mapped, read and
/// written in every way, remapped, synced, with the file's tail growing and shrinking and children
/// coming and going, while all of it is evicted.
#[test]
fn everything_at_once() {
    for (kib, policy) in [(128, "lru"), (512, "clock")] {
        if let Some(done) = part("everything", Budget::kib(kib).policy(policy), &[]) {
            done.pressed();
        }
    }
}

/// What a kernel of 2022 has not: pages are protected only after they were mapped, and what cannot
/// be read is told by a signal.
const LINUX_6_1: &str = "wp-continue,poison,wp-async,pagemap-scan,move,dontcache";

/// Under Linux 6.1 the first touch of a writable mapping waited for ever.
#[test]
fn an_older_kernel_does() {
    let parts =
        [("fork-shared", 256), ("fork-threads", 256), ("private", 3072), ("everything", 512)];
    for (name, kib) in parts {
        if let Some(done) = part(name, Budget::kib(kib).lacking(LINUX_6_1), &[]) {
            done.pressed();
        }
    }
}

/// Where the kernel's pages are larger than those that everything here counts in (AArch64 has such
/// kernels), nothing is started, and the user is told why. Nor is it where no mapping could be managed (in
/// containers, by a filter) or looked up (in a process namespace with the `/proc` of another): each mapping
/// of a file failed there. Nor where programs' memory is out of reach (`kernel.yama.ptrace_scope`): each read
/// failed. Nor where each page brings 511 others: a program was ended for lack of memory.
#[test]
fn a_machine_that_lacks_what_is_needed_is_refused() {
    const INSIDE: &str = "unshare --pid --fork";
    let can = std::process::Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    for (lacking, inside, words) in [
        ("page-size", "", "pages of this kernel have 65536 bytes"),
        ("userfaultfd-user-mode", "", "userfaultfd(2)"),
        ("own-proc", "", "--mount-proc"),
        ("small-shmem", "", "echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        ("process-vm", "", "process-vm in pagekeeper doctor"),
        ("", INSIDE, "--mount-proc"),
    ] {
        if inside == INSIDE && !can.as_ref().is_ok_and(|status| status.success()) {
            eprintln!("not tried here: {inside}");
            continue;
        }
        let mut command = std::process::Command::new("sh");
        let run = "run --config /dev/null --memory 1M -- echo started";
        command.arg("-c").arg(format!("exec {inside} \"$0\" {run}")).arg(runs::pagekeeper());
        command.env("PAGEKEEPER_MASK", lacking).env("PAGEKEEPER_PRELOAD", runs::preload());
        let output = command.output().expect("a shell can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{words}: {said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// The preload library's own exercises, with the true manager behind them.
#[test]
fn every_interposed_call_does_the_same_under_the_manager() {
    if !runs::ready() {
        return;
    }
    let exercise = compiled("../../../../preload/tests/exercise.c", &[], "exercise");
    let parts = [
        "transfers",
        "opening",
        "streams",
        "mappings",
        "locks",
        "threads",
        "signals",
        "numbers",
        "random",
        "processes",
        "descriptors",
    ];
    for policy in ["lru", "clock"] {
        let subject = Scratch::new("exercise").file("subject");
        let mut arguments = vec![subject.to_str().expect("text")];
        arguments.extend(parts);
        let budget = Budget::kib(64).policy(policy);
        same("exercise", &budget, &exercise, &arguments, |_| ()).ok().pressed();
    }
}

/// Everything is off with PAGEKEEPER_DISABLE=1.
#[test]
fn disabled_means_untouched() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("disabled");
    let mut command = command(&place, Some(&Budget::kib(256)), programs());
    command.args(["pieces", "."]).env("PAGEKEEPER_DISABLE", "1");
    let done = finish(&place, &mut command, b"", LIMIT).ok();
    assert_eq!((done.text().as_str(), done.managed_files()), ("pieces\n", 0));
}

/// What had been stored behind the end of a file came to light in it when the file grew: the
/// kernel's pages have zeros there.
#[test]
fn what_is_behind_the_end_of_a_file_stays_out_of_it() {
    if !runs::ready() {
        return;
    }
    let bare = Scratch::new("behind-bare");
    let mut command = command(&bare, None, programs());
    if finish(&bare, command.args(["behind", "."]), b"", LIMIT).status.code() == Some(1) {
        eprintln!("skipped: this kernel shows what was stored behind the end by itself");
        return;
    }
    for policy in ["lru", "mru"] {
        part("behind", Budget::kib(256).policy(policy), &[]);
    }
}

/// Of lines that four processes appended at once some were lost: each was told where the file
/// ended before another's line was in it, and what came into the cached last page was not what
/// went into the file.
#[test]
fn lines_that_many_append_are_all_there() {
    if let Some(done) = part("appends", Budget::kib(256), &[]) {
        assert!(done.total("major_faults") > 0);
    }
}

/// A forked child that began with several threads at once could get a mapping beside the manager
/// in one of them, while another told the manager of the descriptor. And what several opened at once was
/// the kernel's for all but one, unsaid: they read old bytes, and their writes and stores were lost.
#[test]
fn a_forked_child_begins_with_many_threads() {
    if let Some(done) = part("fork-begin", Budget::kib(128), &[]) {
        done.pressed();
    }
}

/// A mapping of a file that was empty, or smaller than files that are managed, was the kernel's;
/// when the file had grown and was mapped again that mapping was the manager's, and neither
/// showed what was stored through the other.
#[test]
fn a_file_is_mapped_before_and_after_it_grows() {
    // Empty, and with a few bytes; mapped as far as it grows, or less.
    for arguments in [["100"].as_slice(), &["100", "x"], &["3"], &["3", "x"]] {
        if let Some(done) = part("grown", Budget::kib(128), arguments) {
            done.pressed();
        }
    }
    let budget = |min_size_bytes| Budget { min_size_bytes, ..Budget::kib(128) };
    // The first mapping says that the file is to grow.
    if let Some(done) = part("grown", budget(200_000), &["100", "x"]) {
        done.pressed();
    }
    // It does not, and stays mapped: the kernel's.
    if let Some(done) = part("grown", budget(200_000), &["3", "x"]) {
        assert_eq!(done.managed_files(), 0);
        let passed = done.stats["passed_through"].to_string();
        assert!(passed.contains("smaller than files that are managed"), "{passed}");
    }
}

/// A file that was mapped when it was small stayed the kernel's for good, however large it became: a
/// database, or a log, that a daemon began anew.
#[test]
fn a_file_is_managed_when_it_has_grown_and_its_first_mapping_is_gone() {
    let budget = || Budget { min_size_bytes: 200_000, ..Budget::kib(128) };
    // By the descriptor of then, by another, and when a child has ended that had it mapped.
    for arguments in [[].as_slice(), &["again"], &["child"]] {
        if let Some(done) = part("grown-later", budget(), arguments) {
            let done = done.pressed();
            assert_eq!(done.managed_files(), 1);
            assert_eq!(done.stats["passed_through"].as_array().map(Vec::len), Some(0));
        }
    }
}

/// Small files kept their slots for ever. Now they lose them to others, also those that are open,
/// which are known again when they are used, and managed when they have grown.
#[test]
fn descriptors_of_small_files_outlive_their_slots() {
    let budget = Budget { min_size_bytes: 200_000, ..Budget::kib(128) };
    if let Some(done) = part("many-small", budget.files("*"), &[]) {
        let files = done.pressed().stats["files"].to_string();
        assert!(files.contains("/small\""), "{files}");
    }
}

/// What was known of a file that was not managed went on to whichever file was given its inode number
/// after it: git's packs were left to the kernel "since they were mapped when they were smaller", by
/// the name of a lock file that was gone.
#[test]
fn a_file_has_the_inode_number_of_one_that_is_gone() {
    let budget = Budget { min_size_bytes: 200_000, ..Budget::kib(128) };
    if let Some(done) = part("number-again", budget, &[]) {
        let done = done.pressed();
        assert_eq!(done.managed_files(), 1);
        let name = done.stats["files"][0]["name"].to_string();
        assert!(name.contains("large"), "{name}");
    }
}

/// Two runs, or one and a program outside, that store to one page under locks of different bytes lose each
/// other's stores, and SQLite's index of a log is made of that: databases lost commits, and were corrupt (14 of
/// 15 runs with it managed).
#[test]
fn the_index_of_sqlites_log_stays_the_kernels() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("memory-index");
    for name in ["x.db-wal", "x.db-shm", "other-shm"] {
        place.put(name, vec![1; 64 << 10]);
    }
    let script = "import mmap, sys
for name in sys.argv[1:]:
    with open(name, 'r+b') as file:
        mmap.mmap(file.fileno(), 0)[5] = 7";
    let mut run = command(&place, Some(&Budget::kib(256)), runs::python());
    run.args(["-c", script, "x.db-wal", "x.db-shm", "other-shm"]);
    let done = finish(&place, &mut run, b"", LIMIT);
    let passed = done.stats["passed_through"].to_string();
    assert!(passed.contains("x.db-shm") && passed.contains("SQLite"), "{passed}");
    assert!(!passed.contains("x.db-wal") && !passed.contains("other-shm"), "{passed}");
    for name in ["x.db-wal", "x.db-shm", "other-shm"] {
        assert_eq!(place.get(name)[5], 7, "{name}");
    }
}
