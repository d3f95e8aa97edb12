//! Tables of descriptors: full ones, and threads that have their own.

use crate::runs::{self, Budget, Finished, LIMIT, Scratch, command, compiled, finish};

fn check(mode: &str, budget: &Budget) -> Finished {
    let place = Scratch::new(mode);
    place.put("file", vec![b'a'; 1 << 20]);
    place.put("other", vec![b'o'; 1 << 20]);
    let program = compiled("descriptors.c", &["-pthread"], "descriptors");
    let mut command = command(&place, Some(budget), program);
    finish(&place, command.args([mode, "file", "other"]), b"", LIMIT).ok()
}

/// The kernel's `mmap` takes no descriptor, and ours one for a moment: while a program had none left,
/// mappings of managed files were refused.
#[test]
fn a_program_without_free_descriptors_maps_files() {
    if !runs::ready() {
        return;
    }
    for lacking in ["", "privileged-userfaultfd"] {
        let done = check("full", &Budget::kib(256).lacking(lacking)).pressed();
        assert_eq!(done.text(), "ok\n");
        assert_eq!(done.managed_files(), 1);
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
