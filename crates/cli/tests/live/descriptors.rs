//! Tables of descriptors: full ones, and threads that have their own.

use crate::runs::{self, Budget, Finished, LIMIT, Scratch, command, compiled, finish, limited};

fn check(mode: &str, budget: &Budget) -> Finished {
    check_of(mode, "", budget)
}

fn check_of(mode: &str, kind: &str, budget: &Budget) -> Finished {
    let place = Scratch::new(&format!("{mode}-{kind}"));
    place.put("file", vec![b'a'; 1 << 20]);
    place.put("other", vec![b'o'; 1 << 20]);
    let program = compiled("descriptors.c", &["-pthread"], "descriptors");
    let mut command = command(&place, Some(budget), program);
    command.args([mode, "file"]);
    if !kind.is_empty() {
        command.arg(kind);
    }
    finish(&place, &mut command, b"", LIMIT).ok()
}

/// The kernel's `mmap` takes no descriptor, and ours one for a moment: while a program had none left,
/// mappings of managed files were refused.
#[test]
fn a_program_without_free_descriptors_maps_files() {
    if !runs::ready() {
        return;
    }
    let done = check("full", &Budget::kib(256)).pressed();
    assert_eq!(done.text(), "ok\n");
    assert_eq!(done.managed_files(), 1);
}

/// A process all of whose connections were closed unseen was taken to be gone: it came back by another number,
/// and went on overwriting by its old one. It waited for itself then, and the run for it, for ever.
#[test]
fn who_lost_its_connections_unseen_goes_on() {
    if !runs::ready() {
        return;
    }
    for how in ["call", "child"] {
        let done = check_of("closed-unseen", how, &Budget::kib(512)).pressed();
        assert_eq!(done.text(), "ok\n");
    }
}

/// A userfaultfd that could not be made for want of a descriptor was never asked for again: every
/// mapping of a managed file was refused as long as the process lived.
#[test]
fn a_moment_without_descriptors_passes() {
    if !runs::ready() {
        return;
    }
    let done = check("moment", &Budget::kib(256)).pressed();
    assert_eq!(done.text(), "mmap: Too many open files\nok\n");
    assert!(done.notes().contains("no descriptor left"), "{}", done.notes());
    assert!(!done.stderr.contains("not permitted"), "{}", done.stderr);
}

/// Where the manager had as many descriptors as it keeps for a need and no other, a file was left to the
/// kernel for good in place of for the time being.
#[test]
fn files_are_managed_when_the_manager_has_descriptors_again() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("manager-full");
    let program = compiled("descriptors.c", &["-pthread"], "descriptors");
    let mut run = command(&place, Some(&Budget::kib(8192)), program);
    run.args(["many", "-"]);
    let done = finish(&place, &mut limited(&run, "-n 128"), b"", LIMIT).ok();
    assert_eq!(done.text(), "ok\n");
    assert!(!done.stderr.contains("Too many open files"), "{}", done.stderr);
}

/// The library has one table of descriptors, and a thread may have its own: another's descriptor of the
/// same number was read as the file that it was in the first.
#[test]
fn threads_may_have_descriptors_of_their_own() {
    if !runs::ready() {
        return;
    }
    for kind in ["unshare", "syscall", "range", "close"] {
        for kib in [256, 8192] {
            check_of("threads", kind, &Budget::kib(kib));
            check_of("threads", kind, &Budget::kib(kib).delay_writes());
        }
    }
}

/// A slot of the pool that another table had was connected anew in a thread's own, by the other again, and
/// so on: hundreds of connections in each.
#[test]
fn threads_with_tables_of_their_own_keep_few_connections() {
    if runs::ready() {
        check("tables", &Budget::kib(256)).pressed();
    }
}

/// A child got the limit that was raised just then.
#[test]
fn a_forked_child_has_its_parents_limit() {
    if runs::ready() {
        check("limits", &Budget::kib(8192));
    }
}

/// The descriptor of the heap's memory was lost where there was no room for it.
#[test]
fn a_program_without_free_descriptors_has_managed_heap_memory() {
    if runs::ready() {
        check("heap", &Budget::kib(4096).heap(256 << 10)).pressed();
    }
}
