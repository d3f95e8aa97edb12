//! Less common ways to a managed file: transfers that are asynchronous or inside the kernel, times that
//! are set, descriptors that come by calls of their own, and arguments that are no good. A program finds
//! what it would find without a manager.

use crate::runs::{self, Budget};

/// The program checks what must hold, bare and managed, and leaves the same.
fn check(budget: &Budget, arguments: &[&str]) {
    checked(budget, arguments);
}

fn checked(budget: &Budget, arguments: &[&str]) -> Option<runs::Finished> {
    if !runs::ready() {
        return None;
    }
    let program = runs::compiled("ways.c", &["-O2"], "ways");
    let name =
        format!("ways-{}{}", arguments[0], if budget.delay_writes { "-delayed" } else { "" });
    let done = runs::same(&name, budget, program, arguments, |_| ()).ok();
    assert_eq!(done.text(), format!("{} ok\n", arguments[0]));
    assert_eq!(done.total("failed_faults"), 0);
    assert!(done.managed_files() > 0, "{}", done.notes());
    Some(done)
}

/// What was stored through a mapping is written back later, which must not make the file younger than
/// it was said to be.
#[test]
fn a_time_that_is_set_stays() {
    check(&Budget::kib(256), &["times", "file"]);
    check(&Budget::kib(256).delay_writes(), &["times", "file"]);
}

/// libc makes the transfers of `aio_read(3)` and its kin by calls of its own, of which nobody heard:
/// writes were lost, and reads did not find what was stored.
#[test]
fn asynchronous_transfers_are_those_of_the_file() {
    check(&Budget::kib(256), &["asynchronous", "file"]);
    check(&Budget::kib(256).delay_writes(), &["asynchronous", "file"]);
}

/// The kernel made transfers of `io_submit(2)` when it liked: what they wrote was lost.
#[test]
fn submitted_transfers_are_those_of_the_file_or_refused() {
    check(&Budget::kib(256), &["submitted", "file"]);
}

/// What is served without libc is no cancellation point of libc's: such threads went on for ever. And one that
/// was cancelled while it closed a file waited there for a signal that was held.
#[test]
fn threads_are_cancelled_where_they_read_and_write() {
    check(&Budget::kib(256), &["cancelled", "file"]);
    check(&Budget::kib(256).delay_writes(), &["cancelled", "file"]);
}

/// The offset was moved before bytes were copied: who left a call by `siglongjmp(3)` lost what it was moved over.
#[test]
fn handlers_that_jump_lose_nothing() {
    check(&Budget::kib(4096), &["jumps", "file"]);
    check(&Budget::kib(256), &["jumps", "file"]);
    check(&Budget::kib(4096).delay_writes(), &["jumps", "file"]);
}

/// Mappings that may be executed were the kernel's, and did not show what was stored through others.
#[test]
fn code_is_what_was_written_through_another_mapping() {
    check(&Budget::kib(256), &["code", "file"]);
}

/// Of a mapping that grows where it is nobody is told. A write from such a buffer held its file in the kernel
/// while the manager waited to read a page of it: for ever.
#[test]
fn buffers_may_lie_in_what_a_mapping_grew_by() {
    check(&Budget::kib(256), &["grown", "file"]);
    check(&Budget::kib(256).delay_writes(), &["grown", "file"]);
}

/// The kernel took offsets from a page that nobody brings in before the copy is over: that never ended.
#[test]
fn offsets_of_copies_may_lie_in_what_they_change() {
    check(&Budget::kib(256), &["offsets", "file"]);
    check(&Budget::kib(256).delay_writes(), &["offsets", "file"]);
}

/// Such a request emptied what the kernel had, and what had been stored before came back.
#[test]
fn space_that_is_given_back_by_a_request_is_empty() {
    check(&Budget::kib(256), &["space", "file"]);
    check(&Budget::kib(256).delay_writes(), &["space", "file"]);
}

/// All of the file was dropped from memory each time, and read again: a database that grew read 600 MB of 30.
#[test]
fn a_file_that_is_given_room_stays_in_memory() {
    if let Some(done) = checked(&Budget::kib(8192), &["longer", "file"]) {
        let pages = done.total("read_bytes") / 4096;
        assert!(pages < 1200, "{pages} pages of 512 were read");
    }
}

/// Holes were made where the kernel refuses to, and what is not mapped was not told. Advice to the own memory
/// by `process_madvise(2)` was the kernel's, which has the manager's memory there: stores were lost.
#[test]
fn advice_is_refused_as_the_kernel_refuses_it() {
    check(&Budget::kib(256), &["advice", "file"]);
}

/// libc writes such text by a call of its own: it was lost, and not seen.
#[test]
fn formatted_text_is_written_to_the_file() {
    check(&Budget::kib(256), &["formatted", "file"]);
    check(&Budget::kib(256).delay_writes(), &["formatted", "file"]);
}

/// Programs try reads to find out what the kernel asks of direct ones: qemu-img made an image of another
/// length.
#[test]
fn direct_reads_are_refused_as_the_kernel_refuses_them() {
    check(&Budget::kib(256), &["direct", "file"]);
    check(&Budget::kib(256).delay_writes(), &["direct", "file"]);
}

/// The file was healthy, and reads of it failed with EIO.
#[test]
fn what_a_direct_read_is_refused_is_read_by_the_cache() {
    check(&Budget { min_size_bytes: 1, ..Budget::kib(256) }, &["faulted", "file"]);
}

#[test]
fn a_reopened_stream_is_buffered_as_a_new_one() {
    check(&Budget::kib(256), &["reopened", "file"]);
}

/// The new environment had more room on the stack than such a thread has.
#[test]
fn threads_with_little_stack_spawn_children() {
    check(&Budget::kib(256), &["stacks", "file"]);
}

/// libc executes these without a call of ours. A child that got an environment of its own found the file as
/// it was stored last, and what it wrote was lost.
#[test]
fn children_that_libc_starts_find_what_was_stored() {
    check(&Budget::kib(4096), &["listed", "file"]);
    check(&Budget::kib(4096).delay_writes(), &["listed", "file"]);
}

/// glibc does not count on by what a stream wrote that has functions of its own, and sought from where
/// that began.
#[test]
fn a_stream_is_moved_on_from_where_it_wrote() {
    check(&Budget::kib(256), &["seeks", "file"]);
    check(&Budget::kib(256).delay_writes(), &["seeks", "file"]);
}

/// Of a file that somebody appends to no page leaves for that moment: as many victims as there are pages
/// were chosen one within the other, and the manager had no stack for that.
#[test]
fn the_tail_of_a_file_is_read_while_it_grows() {
    check(&Budget::kib(2048).policy("lru"), &["tail", "file"]);
}

/// Where the kernel puts bytes at a descriptor's own offset, that is known only when it does.
#[test]
fn copies_in_the_kernel_go_where_the_offset_is() {
    check(&Budget::kib(4096), &["copies", "file"]);
}

/// Descriptors that came by these calls were the kernel's: what was stored was not seen by them, and
/// what they wrote was lost.
#[test]
fn descriptors_are_seen_however_they_come() {
    check(&Budget::kib(256), &["arrivals", "file"]);
}

/// Whoever has got a descriptor may change its flags.
#[test]
fn a_descriptor_that_went_in_one_of_several_messages_is_shared() {
    check(&Budget::kib(4096).delay_writes(), &["sent", "file"]);
    check(&Budget::kib(4096), &["sent", "file"]);
}

/// A stream that `tmpfile(3)` makes is of a file like others.
#[test]
fn a_temporary_file_is_managed() {
    if runs::ready() {
        let name = format!("/tmp/pagekeeper-ways-{}", std::process::id());
        check(&Budget::kib(256).files("/tmp/**"), &["temporary", &name]);
    }
}

/// A pipe from which pages are moved into a file waits, or does not, as if the file was no matter.
#[test]
fn a_pipe_into_a_file_waits_as_it_is_told() {
    check(&Budget::kib(256), &["pipes", "file"]);
}

#[test]
fn flags_of_reads_are_heeded() {
    check(&Budget::kib(256), &["flags", "file"]);
}

/// As much is read as there is room for.
#[test]
fn a_buffer_that_ends_too_soon_is_filled() {
    check(&Budget::kib(256), &["room", "file"]);
}

/// A wrong address ended the program in place of the call.
#[test]
fn buffers_that_are_said_to_be_where_nothing_is_are_an_error() {
    check(&Budget::kib(256), &["vectors", "file"]);
}

/// With SIGSEGV blocked it is not tried whether memory is there.
#[test]
fn buffers_may_be_described_in_a_mapping() {
    check(&Budget::kib(256), &["blocked", "file"]);
}

/// A forked child that had no mapping and had said nothing yet did not count as somebody who uses files:
/// when the run had ended, it was ended by its next call. They are the kernel's by then.
#[test]
fn a_child_that_outlives_the_run_has_the_kernels_file() {
    if !runs::ready() {
        return;
    }
    let place = runs::Scratch::new("ways-outlives");
    let program = runs::compiled("ways.c", &["-O2"], "ways");
    let mut command = runs::command(&place, Some(&Budget::kib(4096)), program);
    // Up to the last word of whoever has the pipe.
    let output = command.args(["outlives", "file"]).output().expect("pagekeeper can be started");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "outlives ok\n", "{output:?}");
    assert!(place.get("file").starts_with(b"lateA"));
}
