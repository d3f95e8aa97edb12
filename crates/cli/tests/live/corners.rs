//! Corners of streams, descriptors and large transfers, in which programs found something else than libc
//! and the kernel have there.

use crate::runs::{self, Budget, LIMIT, Scratch, command, finish};

/// The program checks what must hold, bare and managed, and leaves the same.
fn check(budget: &Budget, what: &str) {
    if !runs::ready() {
        return;
    }
    let program = runs::compiled("corners.c", &["-O2"], "corners");
    let name = format!("corners-{what}{}", if budget.delay_writes { "-delayed" } else { "" });
    let library = runs::compiled("plugin.c", &["-shared", "-fPIC"], "plugin.so");
    let mut arguments = vec![what, "file"];
    arguments.extend(library.to_str().filter(|_| what == "deep"));
    let done = runs::same(&name, budget, program, &arguments, |_| ()).ok();
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

/// libc's own standard output, put on a file by `dup2(2)`, wrote past the library: what lay in a page that
/// was stored to as well was lost, and what was appended not read.
#[test]
fn a_standard_stream_is_put_on_a_file() {
    check(&Budget::kib(256), "standard");
    check(&Budget::kib(2048).delay_writes(), "standard");
}

/// Bad addresses ended a program of an ordinary user's that hears no signals, or has mapped nothing yet.
#[test]
fn bad_addresses_are_errors() {
    check(&Budget::kib(2048), "wild");
    check(&Budget::kib(2048).lacking("userfaultfd"), "wild");
}

/// What was dirty when a file became immutable could not be written back any more.
#[test]
fn a_file_becomes_immutable_with_what_is_in_it() {
    check(&Budget::kib(2048), "flags");
}

/// Libraries loaded with RTLD_DEEPBIND wrote past the library.
#[test]
fn a_library_that_finds_libc_first_is_seen() {
    check(&Budget::kib(256), "deep");
}

/// Functions went on to another one's namesake behind this library (`open` to `openat`): libraries preloaded beside
/// it whose own do the same called each other without end, or were passed by. And a name that is nowhere was
/// looked up, for which the dynamic linker allocates, before there was an environment that the program's
/// allocator could ask.
#[test]
fn other_libraries_and_allocators_are_where_they_would_be() {
    if !runs::ready() {
        return;
    }
    let hooks = runs::compiled("hooks.c", &["-shared", "-fPIC", "-DLIBRARY"], "hooks.so");
    let program = runs::compiled("hooks.c", &[], "hooks");
    let place = Scratch::new("hooks");
    std::fs::write(place.path().join("file"), vec![7; 1 << 20]).unwrap();
    let script = format!("LD_PRELOAD={} {}", hooks.display(), program.display());
    let run = |budget: Option<&Budget>| {
        let mut command = command(&place, budget, "sh");
        finish(&place, command.args(["-c", &script]), b"", LIMIT).ok()
    };
    let done = run(Some(&Budget::kib(256)));
    assert!(done.text().starts_with("hooks ok"), "{}", done.text());
    assert_eq!(done.text(), run(None).text());
    assert!(done.managed_files() > 0, "{}", done.notes());
}
