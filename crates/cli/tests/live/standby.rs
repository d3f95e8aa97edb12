//! Standing by: while nothing can be won, files are the kernel's, and programs notice nothing of the end of that but its speed.

use crate::mounts::Mount;
use crate::runs::{self, Budget, Finished, LIMIT, Scratch, command, compiled, finish, skip};
use pagekeeper_sys::cgroup::MemoryCgroup;
use pagekeeper_sys::counters::largest_read_ahead_kib;
use pagekeeper_sys::launch::ChildSetup;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGES: u64 = 4096;

/// Runs a part of `standby.c` under `auto` with so much memory, in a cgroup of so much; none if there
/// can be no cgroup here.
fn run(part: &str, memory_bytes: u64, cgroup_bytes: u64) -> Option<Finished> {
    let done = run_by("auto", part, memory_bytes, cgroup_bytes)?;
    assert!(!done.stats["standby"].is_null(), "there was no standby: {}", done.stderr);
    Some(done)
}

/// [`run`] under another policy.
fn run_by(
    policy: &'static str,
    part: &str,
    memory_bytes: u64,
    cgroup_bytes: u64,
) -> Option<Finished> {
    let cgroup = cgroup(cgroup_bytes)?;
    let place = Scratch::new(&format!("standby-{policy}-{part}-{}", memory_bytes / MIB));
    let budget = Budget { bytes: memory_bytes, ..Budget::kib(0).policy(policy) };
    Some(run_in(&place, place.path(), budget, part, &cgroup))
}

/// A cgroup of so much memory to stand by in; none, and said, where there can be none here.
fn cgroup(bytes: u64) -> Option<MemoryCgroup> {
    if !runs::ready() {
        return None;
    }
    MemoryCgroup::create("pagekeeper-standby", bytes).map_err(|e| skip(&e.to_string())).ok()
}

/// Runs a part of the program in this directory.
fn run_in(
    place: &Scratch,
    directory: &Path,
    budget: Budget,
    part: &str,
    cgroup: &MemoryCgroup,
) -> Finished {
    let data: Vec<u8> = (0..PAGES).flat_map(|page| page.to_le_bytes().repeat(512)).collect();
    let files = [("data", data), ("trigger", vec![1; 64 << 10]), ("log", vec![0; 64 << 10])];
    for (name, content) in files {
        std::fs::write(directory.join(name), content).expect("there is room");
        // Written, and not in the page cache: it is charged to whoever reads it.
        let file = std::fs::File::open(directory.join(name)).expect("just written");
        file.sync_all().expect("a file can be synced");
        pagekeeper_sys::counters::drop_page_cache(&file).expect("advice");
    }
    let program = compiled("standby.c", &["-O2"], "standby");
    let files = directory.join("{data,data2,trigger,log}").display().to_string();
    let mut command = command(place, Some(&budget.files(files)), program);
    command.current_dir(directory).arg(part).env("CGROUP", cgroup.path());
    let procs = vec![cgroup.procs().expect("our own cgroup")];
    ChildSetup { cgroup_procs: procs, ..ChildSetup::default() }.apply(&mut command);
    let done = finish(place, &mut command, b"", LIMIT).ok();
    assert!(done.text().ends_with(&format!("{part} ok\n")), "{}{}", done.text(), done.stderr);
    assert_eq!(done.total("failed_faults"), 0);
    done
}

/// Runs a part in which the file stays the kernel's, and the user is told.
#[track_caller]
fn runs_with_the_kernels_pages(part: &str) {
    if let Some(done) = run(part, 64 * MIB, 96 * MIB) {
        assert!(done.stats["passed_through"].to_string().contains("data"), "{}", done.stderr);
    }
}

fn end(done: &Finished) -> Option<&str> {
    done.stats["standby"]["end"].as_str()
}

/// That the standby was ended by a loop. Where a disk of this machine has a larger read-ahead than
/// usual, reading around single pages looks the same in the kernel's counts, so that it is not told.
#[track_caller]
fn assert_loop_was_seen(done: &Finished) {
    let usual_kib = 128;
    let in_order = Some("the kernel read pages again, in order, that it had evicted");
    let may_be_unseen =
        largest_read_ahead_kib().is_none_or(|kib| kib > usual_kib) && end(done).is_some();
    assert!(may_be_unseen || end(done) == in_order, "{:?}", end(done));
}

/// Threads touch pages all the time and make no calls; their mappings are taken over, whole and in
/// part, shared and private.
#[test]
fn mappings_are_taken_over_under_threads_that_read_them() {
    for memory_mib in [2, 64] {
        let Some(done) = run("take", memory_mib * MIB, (memory_mib + 32) * MIB) else {
            return;
        };
        assert!(end(&done).is_some() && done.total("major_faults") > 0, "{}", done.stderr);
    }
}

/// btrfs shows a file of another device where it is mapped than `fstat(2)` does, as overlayfs of older
/// kernels does: no mapping there was taken over.
#[test]
fn mappings_are_taken_over_whatever_device_they_show() {
    let Some(cgroup) = cgroup(96 * MIB) else { return };
    let place = Scratch::new("standby-btrfs");
    let Some(mount) = Mount::image(&place, &place.file("image"), "btrfs", 400 << 10) else {
        return;
    };
    let budget = Budget { bytes: 64 * MIB, ..Budget::kib(0).policy("auto") };
    let done = run_in(&place, mount.path(), budget, "take", &cgroup);
    assert!(end(&done).is_some() && done.total("major_faults") > 0, "{}", done.stderr);
}

/// What is at an address when it is taken over is what was looked at.
#[test]
fn mappings_are_made_and_dropped_meanwhile() {
    let Some(done) = run("change", 4 * MIB, 48 * MIB) else { return };
    assert!(end(&done).is_some() && done.total("major_faults") > 0, "{}", done.stderr);
}

#[test]
fn a_forked_child_finds_what_its_parent_had() {
    let Some(done) = run("fork", 4 * MIB, 48 * MIB) else { return };
    assert_eq!(end(&done), Some("a program that maps files forked"));
    assert!(done.total("major_faults") > 0);
}

/// A file that two processes have mapped is taken over by both or none, and one of them waits for the other's word.
#[test]
fn what_two_processes_have_mapped_stays_the_kernels() {
    let Some(done) = run("two", 4 * MIB, 48 * MIB) else { return };
    for said in [done.stats["passed_through"].to_string(), done.notes()] {
        assert!(said.contains("data") && said.contains("before memory was short"), "{said}");
    }
}

/// Files that several processes had mapped stayed the kernel's, whatever these did. They are taken over once all of
/// them are about to.
#[test]
fn what_several_have_mapped_is_taken_over_by_all() {
    for part in ["several-read", "several-store"] {
        for memory_mib in [2, 64] {
            let is_taken_over = || {
                let done = run(part, memory_mib * MIB, (memory_mib + 48) * MIB)?;
                let said = |whose| done.text() == format!("{whose}\n{part} ok\n");
                assert!(said("ours") || said("kernel"), "{}{}", done.text(), done.stderr);
                Some(said("ours"))
            };
            // They are waited for half a second at most, and this machine may be busy with others for longer.
            let mut tries = (0..3).map_while(|_| is_taken_over()).peekable();
            if tries.peek().is_none() {
                return;
            }
            assert!(tries.any(|is_taken_over| is_taken_over), "{part} in {memory_mib} MiB");
        }
    }
}

/// One of them is killed as the standby ends, or stands still for a while: the others go on, and nobody misses anything.
#[test]
fn what_several_have_mapped_is_whole_whatever_happens_to_one() {
    for part in ["several-killed", "several-stopped"] {
        run(part, 4 * MIB, 52 * MIB);
    }
}

#[test]
fn a_mapping_to_read_shows_what_is_stored_by_one_to_write() {
    run("writer", 4 * MIB, 48 * MIB);
}

#[test]
fn a_file_that_is_written_by_calls_goes_on_across_the_end() {
    let Some(done) = run("log", 4 * MIB, 48 * MIB) else { return };
    assert_eq!(end(&done), Some("a file was mapped that may be written to"));
}

#[test]
fn streams_go_on_across_the_end() {
    run("stream", 4 * MIB, 48 * MIB);
}

/// Memory gets short: the kernel reads what it evicted, in runs.
#[test]
fn a_loop_ends_the_standby_and_is_won() {
    let Some(done) = run("loop", 8 * MIB, 8 * MIB + 6 * MIB) else { return };
    assert_eq!(done.text(), "ours\nloop ok\n", "{}", done.stderr);
    assert_loop_was_seen(&done);
}

/// Frames cannot be reclaimed: a program that took memory of its own when these had filled the cgroup
/// was ended by the kernel, which takes back its own page cache. Frames give way.
#[test]
fn a_program_that_grows_beside_full_frames_is_not_ended() {
    for policy in ["auto", "lru"] {
        let Some(done) = run_by(policy, "grow", 12 * MIB, 12 * MIB + 8 * MIB) else { return };
        assert_eq!(done.text(), "ours\ngrow ok\n", "{}", done.stderr);
        assert!(done.stderr.contains("has no room for all of --memory"), "{}", done.stderr);
    }
}

/// The limit was read once, and the kernel ended the manager when frames met a lower one.
#[test]
fn a_limit_that_is_lowered_during_the_run_is_kept() {
    let Some(done) = run_by("lru", "lowered", 16 * MIB, 64 * MIB) else { return };
    assert!(done.stderr.contains("has no room for all of --memory"), "{}", done.stderr);
}

/// A file that is open to write, and only mapped to read, is the kernel's meanwhile as well: with
/// memory to spare until something else ends the standby, and until memory is short.
#[test]
fn what_is_written_by_calls_shows_in_mappings_across_the_end() {
    for (memory_mib, cgroup_mib, first) in [(64, 96, "kernel"), (8, 16, "ours")] {
        let Some(done) = run("database", memory_mib * MIB, cgroup_mib * MIB) else { return };
        assert_eq!(done.text(), format!("{first}\ndatabase ok\n"), "{}", done.stderr);
    }
}

/// Nor does what one mapping showed go away in another: nobody writes while some are taken over and
/// others are not.
#[test]
fn what_another_process_writes_by_calls_shows_in_a_mapping_across_the_end() {
    run("visitor", 64 * MIB, 96 * MIB);
}

/// Whoever maps a file to write to it waits until all mappings of it show what is stored.
#[test]
fn what_another_process_stores_by_a_mapping_shows_in_all_that_are_taken_over() {
    run("mapping-visitor", 64 * MIB, 96 * MIB);
}

/// Who stores by mappings stands by as well: what was stored to the kernel's pages, at whatever moment, shows in
/// ours, and everything is in the file in the end.
#[test]
fn what_is_stored_by_mappings_is_there_across_the_end() {
    for memory_mib in [2, 64] {
        let Some(cgroup) = cgroup((memory_mib + 48) * MIB) else { return };
        let place = Scratch::new(&format!("standby-store-{memory_mib}"));
        let budget = Budget { bytes: memory_mib * MIB, ..Budget::kib(0).policy("auto") };
        let done = run_in(&place, place.path(), budget, "store", &cgroup);
        assert!(end(&done).is_some() && done.total("major_faults") > 0, "{}", done.stderr);
        let file = place.get("data");
        for (page, bytes) in file.chunks_exact(4096).enumerate() {
            assert_eq!(bytes[9 * 8..10 * 8], (page as u64 + 7).to_le_bytes(), "page {page}");
        }
    }
}

/// Whoever opened a file before the process that has it mapped was through with the end made it the kernel's for
/// good.
#[test]
fn what_is_stored_by_mappings_shows_to_another_process_across_the_end() {
    for part in ["visited", "visited-to-read"] {
        run(part, 64 * MIB, 96 * MIB);
    }
}

/// A read past the page cache that is under way as a mapping is taken over would arrive in the kernel's page.
#[test]
fn a_writable_mapping_stays_the_kernels_where_direct_reads_may_be_under_way() {
    runs_with_the_kernels_pages("direct");
}

/// A file whose name was none of those that are managed when the standby ended was managed as soon as
/// it had its own again; an older mapping went on showing the kernel's pages.
#[test]
fn a_file_without_its_name_is_mapped_all_the_same() {
    runs_with_the_kernels_pages("renamed");
}

#[test]
fn a_mapping_of_a_deleted_file_is_taken_over() {
    run("nameless", 4 * MIB, 48 * MIB);
}

/// A program with a sealed mapping was ended, since nothing can take its place.
#[test]
fn a_sealed_mapping_stays_the_kernels() {
    run("sealed", 64 * MIB, 96 * MIB);
}

/// Where there was room for some of a file's mappings elsewhere and not for others, the others went on
/// showing the kernel's pages of a file that was managed.
#[test]
fn all_mappings_of_a_file_are_taken_over_or_none() {
    runs_with_the_kernels_pages("roomless");
}

/// A name that a file lost, or an advice for a part of a mapping, made it another mapping than was looked
/// at, and the program was ended, if others of the file had been taken over.
#[test]
fn names_and_advice_change_in_the_midst_of_a_take_over() {
    run("meddled", 64 * MIB, 96 * MIB);
}

#[test]
fn a_process_whose_first_thread_has_ended_goes_on() {
    run("leaderless", 64 * MIB, 96 * MIB);
}

#[test]
fn who_waits_in_a_mapping_is_woken_after_it_was_taken_over() {
    run("futex", 64 * MIB, 96 * MIB);
}

#[test]
fn a_program_without_the_calls_for_it_goes_on_with_the_kernels_pages() {
    for part in ["filtered", "filtered-unseen", "sandboxed"] {
        runs_with_the_kernels_pages(part);
    }
}

#[test]
fn whatever_is_done_to_a_file_shows_in_its_mappings_meanwhile() {
    for part in ["changed", "changes"] {
        run(part, 64 * MIB, 96 * MIB);
    }
}

#[test]
fn a_child_of_vfork_is_no_other_process_with_the_same_file() {
    run("vforked", 64 * MIB, 96 * MIB);
}

#[test]
fn a_process_that_executes_another_program_meanwhile_holds_nobody_up() {
    run("executes", 64 * MIB, 96 * MIB);
}

/// Whoever was interrupted just as it executed another program has another number then, and was waited for
/// by the old one for ever; it stood still as long.
#[test]
fn who_executes_another_program_as_it_is_interrupted_goes_on() {
    use pagekeeper_sys::detour::{Detour, send};
    let mut child = std::process::Command::new(compiled("standby.c", &["-O2"], "standby"))
        .arg("executes-always")
        .spawn()
        .expect("a program can be started");
    let id = child.id();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        let mut stopped = 0;
        while begun.elapsed() < Duration::from_secs(2) {
            let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten();
            let names = threads.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            for tid in names.filter_map(|name| name.parse().ok()).filter(|tid| *tid != id) {
                let nowhere = Detour { entry: 0, stack_end: 0 };
                let sent = send(id, tid, nowhere, 0, || false);
                assert_ne!(sent, Ok(true));
                stopped += u32::from(sent.is_ok());
            }
        }
        let _ = done.send(stopped);
    });
    let stopped = is_done.recv_timeout(LIMIT);
    child.kill().and_then(|()| child.wait()).expect("it runs");
    println!("{} threads stood still for a moment", stopped.expect("nobody waits for ever"));
}

/// A program that makes no calls while it loops is interrupted, and does not notice.
#[test]
fn a_loop_that_makes_no_calls_is_taken_over_too() {
    let Some(done) = run("untouched", 8 * MIB, 8 * MIB + 8 * MIB) else { return };
    assert_eq!(done.text(), "ours\nuntouched ok\n", "{}", done.stderr);
    assert_loop_was_seen(&done);
}

/// Of the functions that allocate, some did not look whether the standby was over: a program that made no
/// other calls had to be interrupted, and where none can be, its file stayed the kernel's.
#[test]
fn whichever_function_allocates_notices_the_end() {
    for name in ["reallocarray", "free", "memalign", "aligned_alloc", "valloc", "pvalloc", "usable"]
    {
        run(&format!("allocates-{name}"), 64 * MIB, 96 * MIB);
    }
}

/// A program that misses single pages misses as many whoever chooses the victims.
#[test]
fn a_program_that_reads_single_pages_in_no_order_is_left_to_the_kernel() {
    let Some(done) = run("single", 8 * MIB, 8 * MIB + 6 * MIB) else { return };
    assert_eq!(done.text(), "kernel\nsingle ok\n", "{}", done.stderr);
    assert_eq!((end(&done), done.managed_files()), (None, 0));
}

/// Whoever wants to see faults from the start says so.
#[test]
fn there_is_none_for_other_policies_and_on_request() {
    if !runs::ready() {
        return;
    }
    let Ok(_cgroup) = MemoryCgroup::create("pagekeeper-standby", 64 * MIB) else { return };
    let place = Scratch::new("standby-none");
    place.put("file", vec![1; 64 << 10]);
    for policy in ["lru", "auto"] {
        let budget = Budget::kib(1024).policy(policy);
        let mut command = runs::managing(&place, &budget, &["run", "--policy", policy]);
        command.args(["--from-start", "--stats", "stats", "--", "cat", "file"]);
        finish(&place, &mut command, b"", LIMIT).ok();
        let stats: serde_json::Value =
            serde_json::from_slice(&place.get("stats")).expect("statistics");
        assert!(stats["standby"].is_null() && stats["major_faults"].as_u64() > Some(0));
    }
}
