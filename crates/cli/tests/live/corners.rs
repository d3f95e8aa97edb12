//! Corners of streams, descriptors and large transfers, in which programs found something else than libc
//! and the kernel have there.

use crate::runs::{self, Budget};

/// The program checks what must hold, bare and managed, and leaves the same.
fn check(budget: &Budget, what: &str) {
    if !runs::ready() {
        return;
    }
    let program = runs::compiled("corners.c", &["-O2"], "corners");
    let name = format!("corners-{what}{}", if budget.delay_writes { "-delayed" } else { "" });
    let done = runs::same(&name, budget, program, &[what, "file"], |_| ()).ok();
    assert_eq!(done.text(), format!("{what} ok\n"));
    assert!(done.managed_files() > 0, "{}", done.notes());
}

/// `fdopen(3)` made a descriptor append unseen: what was appended went to where the descriptor stood.
#[test]
fn a_stream_appends_by_a_descriptor_that_was_written_to() {
    check(&Budget::kib(2048), "appended");
    check(&Budget::kib(2048).delay_writes(), "appended");
}

/// What `memfd_create(2)` made was a file, of which the maker's mapping showed one copy and others another.
#[test]
fn memory_with_a_descriptor_is_the_kernels() {
    check(&Budget::kib(256), "memory");
}

/// The stream that stands for the standard output was freed when it was closed, which glibc's never is.
#[test]
fn a_closed_standard_stream_stays_where_it_is() {
    check(&Budget::kib(256), "closed");
}

/// A stream whose descriptor the program had closed got another, and lost it at once.
#[test]
fn a_stream_is_opened_again_whose_descriptor_is_closed() {
    check(&Budget::kib(256), "reopened");
}

/// A read of each buffer on its own lost what was left of each packet.
#[test]
fn packets_are_read_whole() {
    check(&Budget::kib(256), "packets");
}

/// Such a write took as much of the program's memory as it was long.
#[test]
fn a_write_from_a_mapping_may_be_of_any_length() {
    check(&Budget::kib(1024), "large");
}

/// Descriptors were forgotten for a `close_range(2)` that the kernel refused, and a bad address ended the
/// program.
#[test]
fn what_is_refused_changes_nothing() {
    check(&Budget::kib(256), "refused");
}
