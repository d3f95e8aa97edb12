//! Writes without a message: what programs and their neighbours see of a file that is written to,
//! made longer, cut and mapped is what the kernel would show them.

use crate::runs::{self, Budget, Finished, LIMIT, Scratch, command, compiled, finish};
use pagekeeper_sys::fanotify::Fanotify;
use std::path::PathBuf;

pub(crate) fn writes() -> PathBuf {
    compiled("writes.c", &["-O2"], "writes")
}

fn check(budget: &Budget, arguments: &[&str]) -> Finished {
    let delayed = if budget.delay_writes { "-delayed" } else { "" };
    let place = Scratch::new(&format!("writes-{}{delayed}", arguments[0]));
    let mut command = command(&place, Some(budget), writes());
    let done = finish(&place, command.args(arguments), b"", LIMIT * 2).ok();
    assert_eq!(done.text(), format!("{} ok\n", arguments[0]));
    assert_eq!(done.total("failed_faults"), 0);
    done
}

/// What one process adds to a file, another reads and finds in its mapping, old or new.
#[test]
fn what_is_added_is_seen_at_once() {
    if runs::ready() {
        check(&Budget::kib(96), &["grow", "file"]);
        check(&Budget::kib(4096), &["grow", "file"]);
    }
}

/// The kernel told a new length before mappings reached as far: who touched what it had been told of found
/// zeros there, or SIGBUS. And of a file that somebody outside had cut, who had been told so read what had been
/// there (45 of 60 times).
#[test]
fn what_a_program_is_told_of_a_length_is_there() {
    if !runs::ready() {
        return;
    }
    let lengths = compiled("lengths.c", &["-O2"], "lengths");
    for how in ["fstat", "statx", "seek", "cut", "shorter"] {
        let place = Scratch::new(&format!("lengths-{how}"));
        let mut command = command(&place, Some(&Budget::kib(1024)), &lengths);
        let done = finish(&place, command.args(["file", how]), b"", LIMIT).ok();
        assert_eq!(done.text(), "lengths ok\n");
    }
}

/// All connections of a process were in the hands of threads that waited for a change to end, whose thread
/// had none left to say so.
#[test]
fn more_threads_than_connections_write_to_a_page() {
    if runs::ready() {
        check(&Budget::kib(96), &["crowd", "file"]);
        check(&Budget { delay_writes: true, ..Budget::kib(4096) }, &["crowd", "file"]);
    }
}

/// What one thread wrote passed for somebody outside's when another synced: the whole file was read again,
/// and again.
#[test]
fn threads_that_write_beside_syncs_are_nobody_outside() {
    if !runs::ready() || !has_fanotify() {
        return;
    }
    let place = Scratch::new("writes-several");
    place.put("file", vec![1; 4 << 20]);
    let mut command = command(&place, Some(&Budget::kib(16 << 10)), writes());
    let done = finish(&place, command.args(["several", "file"]), b"", LIMIT).ok();
    assert_eq!(done.text(), "several ok\n");
    assert!(done.total("read_bytes") < 6 << 20, "{:?}", done.stats);
}

#[test]
fn records_that_several_append_are_all_there() {
    if runs::ready() {
        check(&Budget::kib(96), &["append", "file"]);
        check(&Budget::kib(4096), &["append", "file"]);
    }
}

/// A page that was in memory changed milliseconds after its writer's death, under the eyes of who had waited
/// for that.
#[test]
fn what_a_killed_process_was_writing_does_not_come_later() {
    if runs::ready() {
        check(&Budget::kib(4096), &["killed", "file"]);
        check(&Budget::kib(96), &["killed", "file"]);
    }
}

/// Writes anywhere, appends, truncations, reads and stores beside a copy in memory.
#[test]
fn a_file_is_as_a_model_says() {
    if !runs::ready() {
        return;
    }
    for (seed, kib, policy) in [("1", 96, "lru"), ("2", 256, "clock"), ("3", 4096, "mru")] {
        check(&Budget::kib(kib).policy(policy), &["mixed", "file", seed]);
    }
}

/// Blocks of all sizes, one behind the other, over what is in memory and what is not.
#[test]
fn a_file_that_is_written_through_again_and_again_is_as_a_model_says() {
    if !runs::ready() {
        return;
    }
    for (seed, kib, policy) in [("1", 96, "lru"), ("2", 800, "mru"), ("3", 4096, "clock")] {
        check(&Budget::kib(kib).policy(policy), &["through", "file", seed]);
    }
}

/// Where a write goes follows from the flags that the descriptor has now, whoever set them.
#[test]
fn writes_go_where_flags_of_the_moment_say() {
    if runs::ready() {
        check(&Budget::kib(4096), &["flags", "file"]);
    }
}

/// Each file that a program opened for the first time was a message to the manager, however short it was.
#[test]
fn files_too_short_to_be_managed_ask_nobody() {
    if runs::ready() {
        check(&Budget { min_size_bytes: 1 << 20, ..Budget::kib(4096) }, &["short", "file"]);
    }
}

/// The manager hears nothing of a file that is too short to be managed, nor of who writes to it. When it
/// is managed after all, what is written in that very moment is not lost, beside stores to the same pages.
#[test]
fn what_is_written_as_a_file_becomes_managed_is_there() {
    if runs::ready() {
        let budget = Budget { min_size_bytes: 1 << 20, ..Budget::kib(16 << 10) };
        let done = check(&budget, &["becomes", "file"]);
        assert!(done.total("major_faults") > 0, "{:?}", done.stats);
        // Where a read does not wait for a write of the same file that is under way.
        let file = format!("/dev/shm/pagekeeper-becomes-{}", std::process::id());
        let done = check(&Budget { files: vec![file.clone()], ..budget }, &["becomes", &file]);
        std::fs::remove_file(file).expect("it was made there");
        assert!(done.total("major_faults") > 0, "{:?}", done.stats);
    }
}

/// A database that locks its file for each query asked the manager twice for each.
#[test]
fn locks_of_a_file_that_nobody_changes_ask_nobody() {
    if runs::ready() {
        check(&Budget::kib(4096), &["locks", "file"]);
    }
}

// ---- delayed --------------------------------------------------------------------------------------

/// All of the above holds among programs that run together where writes are delayed. (But for what
/// a system call does of which nobody hears.)
#[test]
fn delayed_writes_are_as_a_model_says() {
    if !runs::ready() {
        return;
    }
    let budget = |kib: u64, policy| Budget::kib(kib).policy(policy).delay_writes();
    check(&budget(4096, "clock"), &["grow", "file"]);
    check(&budget(96, "lru"), &["append", "file"]);
    for (seed, kib, policy) in [("1", 96, "lru"), ("2", 256, "clock"), ("3", 4096, "mru")] {
        check(&budget(kib, policy), &["mixed", "file", seed]);
        check(&budget(kib, policy), &["through", "file", seed]);
    }
    check(&budget(4096, "clock"), &["flags", "file"]);
}

/// As on NFS.
#[test]
fn what_was_synced_unlocked_or_closed_is_seen_outside() {
    if !runs::ready() {
        return;
    }
    let opened = |budget: &Budget| check(budget, &["seen", "file"]).total("write_faults");
    // A mapping is stored to, too, once before each of ten write-backs.
    assert!(opened(&Budget::kib(4096)) <= 10);
    assert!(opened(&Budget::kib(4096).delay_writes()) > 20);
}

/// Threads and a child overwrite what comes and goes; when all is over it is in the file.
#[test]
fn delayed_writes_are_in_the_file_in_the_end() {
    if !runs::ready() {
        return;
    }
    for (kib, policy) in [(96, "lru"), (512, "clock"), (4096, "mru")] {
        let place = Scratch::new("writes-cells");
        let budget = Budget::kib(kib).policy(policy).delay_writes();
        let mut command = command(&place, Some(&budget), writes());
        let done = finish(&place, command.args(["cells", "file"]), b"", LIMIT * 2).ok();
        assert_eq!(done.text(), "cells ok\n");
        assert!(done.total("write_faults") > 20, "{}", done.stderr);
        let file = place.get("file");
        for cell in 0..200 * 4 {
            let at = cell / 4 * 4096 + cell % 4 * 8 + 3;
            let found = u64::from_ne_bytes(file[at..at + 8].try_into().expect("eight bytes"));
            assert_eq!(found, cell as u64, "cell {cell} under {policy} in {kib} KiB");
        }
    }
}

/// A descriptor may become another file's by a system call that nobody hears of.
#[test]
fn a_write_to_a_descriptor_that_was_reused_reaches_the_file_behind_it() {
    if runs::ready() {
        check(&Budget::kib(4096), &["reused", "file"]);
    }
}

/// A counter that a managed and an unmanaged process raise under a lock loses nothing: each sees
/// what the other wrote before it got the lock.
#[test]
fn a_lock_holds_against_others_outside() {
    if !runs::ready() {
        return;
    }
    for delayed in [false, true] {
        let budget = Budget { delay_writes: delayed, ..Budget::kib(1024) };
        count_beside_others(&budget);
    }
    // By times alone.
    count_beside_others(&Budget::kib(1024).lacking("fanotify"));
}

/// What somebody outside had written before a program's own write, which left a time that was known
/// then, went unseen by who took a lock afterwards.
#[test]
fn what_others_wrote_before_a_write_is_seen_under_a_lock() {
    if runs::ready() {
        check(&Budget::kib(1024), &["behind", "file"]);
        check(&Budget::kib(1024).delay_writes(), &["behind", "file"]);
    }
}

/// Only a lock that was released by `fcntl` or `flock` had what was stored under it written back first:
/// not one that became a shared one, went with a descriptor or with its process, or was taken and
/// given up by `lockf` or by number.
#[test]
fn what_was_stored_under_a_lock_is_there_however_it_is_given_up() {
    if runs::ready() {
        check(&Budget::kib(1024), &["gives", "file"]);
        check(&Budget::kib(1024).delay_writes(), &["gives", "file"]);
    }
}

/// Locks on another file (`FILE.lock`), which is the kernel's, protected nothing: a counter in a mapping lost
/// all that one of two processes had added.
#[test]
fn what_is_stored_under_a_lock_on_another_file_is_there() {
    if runs::ready() {
        check(&Budget::kib(1024), &["guards", "file", "0"]);
        // Which is managed itself.
        check(&Budget::kib(1024), &["guards", "file", "65536"]);
        check(&Budget::kib(1024).delay_writes(), &["guards", "file", "0"]);
        // By times alone.
        check(&Budget::kib(1024).lacking("fanotify"), &["guards", "file", "0"]);
    }
}

/// Only locks that a program took itself had what it stored written back before they were given up: not those
/// that it was executed with. A counter lost up to 195 of 300 increments.
#[test]
fn what_was_stored_under_a_lock_that_was_handed_on_is_there() {
    if runs::ready() {
        check(&Budget::kib(1024), &["hands", "file"]);
        check(&Budget::kib(1024).delay_writes(), &["hands", "file"]);
    }
}

/// A shell that had waited for a program gave up the lock around it before what that had stored was in the file.
#[test]
fn what_a_child_stored_is_there_when_it_was_waited_for() {
    if runs::ready() {
        check(&Budget::kib(1024), &["waits", "file"]);
        check(&Budget::kib(1024).delay_writes(), &["waits", "file"]);
    }
}

/// `cp` asks for data and copied holes, and the dynamic linker read zeros of a library that a process
/// had just stored and left.
#[test]
fn what_was_stored_in_a_hole_is_data() {
    if runs::ready() {
        check(&Budget::kib(1024), &["holes", "file"]);
    }
}

/// Whether the kernel tells who writes to files; says so if not.
fn has_fanotify() -> bool {
    let place = Scratch::new("fanotify");
    let file = std::fs::File::create(place.file("watched")).expect("it can be made");
    let told = Fanotify::new().and_then(|fanotify| fanotify.add(&file));
    if let Err(errno) = told {
        runs::skip(&format!("nobody tells here who writes to a file (fanotify: {errno})"));
    }
    told.is_ok()
}

/// The kernel tells nobody of what it writes for `io_submit(2)`: old pages were in memory until the file was
/// opened, locked or synced, and a store to one undid what had been written there.
#[test]
fn what_nobody_is_told_of_is_seen_a_little_later() {
    if runs::ready() {
        check(&Budget::kib(1024), &["untold", "file"]);
    }
}

/// What somebody outside wrote while pages were written back, or while a program wrote, was taken for a
/// part of that: the time that was there afterwards was known, and who took a lock read what was old.
#[test]
fn what_others_write_beside_writes_is_seen_under_a_lock() {
    if runs::ready() && has_fanotify() {
        check(&Budget::kib(1024), &["beside", "file", "stores"]);
        check(&Budget::kib(1024), &["beside", "file", "writes"]);
        check(&Budget::kib(1024).delay_writes(), &["beside", "file", "writes"]);
    }
}

/// An append by message told the manager where the file had ended before it, wherever it went: beside a
/// process outside that appended, too, who read it found something else, and its line where the other's
/// was.
#[test]
fn appends_beside_those_of_others_are_where_they_went() {
    if !runs::ready() {
        return;
    }
    for how in ["mapped", "stored", "plain"] {
        check(&Budget::kib(4096), &["lines", "file", how]);
        check(&Budget::kib(4096).delay_writes(), &["lines", "file", how]);
    }
}

/// Of several threads that append, each taking its place first, one that was overtaken asked the manager, and
/// so did all others meanwhile.
#[test]
fn appends_that_overtake_each_other_ask_nobody() {
    if runs::ready() {
        check(&Budget::kib(4096), &["overtaken", "file"]);
        check(&Budget::kib(4096).delay_writes(), &["overtaken", "file"]);
    }
}

/// What a program had appended and stored over was read from storage again, when somebody looked between two
/// appends, and the store was lost (3 of 6 in five seconds).
#[test]
fn what_is_stored_over_what_was_appended_stays() {
    if runs::ready() {
        check(&Budget::kib(4096), &["owned", "file"]);
        check(&Budget::kib(4096).delay_writes(), &["owned", "file"]);
    }
}

/// Where a mapping was replaced by another of the same, there was for a moment none that may be read.
#[test]
fn a_mapping_is_replaced_in_one_step() {
    if runs::ready() {
        check(&Budget::kib(2048), &["again", "file"]);
    }
}

/// The kernel tells of moves over each other when they are done, and not in their order; and what it had told
/// of, and was not applied yet, met pages that were just being mapped. Pages of one file were taken for another's,
/// and what was stored there was lost.
#[test]
fn mappings_that_replace_each_other_lose_nothing() {
    if runs::ready() {
        check(&Budget::kib(4096), &["over", "file"]);
    }
}

/// A mapping moved to where another thread's had just been, and the manager heard of that first: what the other
/// thread did then was taken for the new mapping's. Programs that share nothing but addresses lost stores, or
/// waited for ever.
#[test]
fn mappings_that_take_each_others_places_are_their_own() {
    if runs::ready() {
        check(&Budget::kib(512), &["places", "file"]);
    }
}

/// A write moved the offset before it was made, and back when it failed, and whoever shared the offset
/// wrote in between: its next record was written over its last one.
#[test]
fn a_write_that_fails_leaves_the_records_of_those_who_share_the_offset() {
    if runs::ready() {
        check(&Budget::kib(16 << 10), &["offset", "file"]);
        check(&Budget::kib(512), &["offset", "file"]);
    }
}

/// What a thread had begun when another executed a program was ended when the last of the process's
/// connections was: a forked child has them, too. The program waited for it for ever.
#[test]
fn a_program_that_is_executed_in_the_midst_of_writes_can_write() {
    if runs::ready() {
        check(&Budget::kib(4096), &["image", "file"]);
    }
}

fn count_beside_others(budget: &Budget) {
    let place = Scratch::new("writes-count");
    place.put("file", vec![0; 64 << 10]);
    let outside = std::thread::scope(|scope| {
        let outside = scope.spawn(|| {
            let mut command = command(&place, None, writes());
            finish(&place, command.args(["count", "file", "3000"]), b"", LIMIT * 2).ok()
        });
        let mut command = command(&place, Some(budget), writes());
        finish(&place, command.args(["count", "file", "3000"]), b"", LIMIT * 2).ok();
        outside.join().expect("no panic")
    });
    assert_eq!(outside.text(), "count ok\n");
    let counter = &place.get("file")[5 * 4096 - 8..5 * 4096];
    assert_eq!(u64::from_le_bytes(counter.try_into().expect("eight bytes")), 6000);
}
