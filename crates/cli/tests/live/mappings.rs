//! What is stored through mappings, and what reads it without the program's own calls.

use crate::runs::{self, Budget, LIMIT, Scratch, command, compiled, finish, same};

/// The dynamic linker opens and maps libraries by itself: it found what was there before the program's
/// stores, and in a forked child whose first call that was still did. What loads nothing costs nothing.
#[test]
fn a_library_that_was_stored_to_is_loaded_as_it_is() {
    if !runs::ready() {
        return;
    }
    let library = compiled("mappings.c", &["-DLIBRARY", "-shared", "-fPIC"], "library");
    for how in ["dlopen", "dlmopen", "dlopen-child", "dlopen-nothing"] {
        let place = Scratch::new(how);
        place.put("library.so", std::fs::read(&library).expect("a library"));
        let mut run =
            command(&place, Some(&Budget::kib(256)), compiled("mappings.c", &[], "mappings"));
        let done = finish(&place, run.args([how, "./library.so"]), b"", LIMIT).ok();
        assert_eq!(done.text(), "MARKER-NEW\n");
        assert_eq!(done.managed_files(), 1);
    }
}

/// A thread that mapped a file over something looked a name up, for which it waited for the thread that was
/// loading a library, and that one for it.
#[test]
fn a_mapping_is_replaced_while_a_library_is_loaded() {
    if !runs::ready() {
        return;
    }
    let library = compiled("mappings.c", &["-DSTARTS", "-shared", "-fPIC"], "starts");
    let place = Scratch::new("starts");
    place.put("library.so", std::fs::read(&library).expect("a library"));
    place.put("file", vec![b'a'; 1 << 16]);
    let mut run = command(&place, Some(&Budget::kib(256)), compiled("mappings.c", &[], "mappings"));
    let done = finish(&place, run.args(["starts", "./library.so"]), b"", LIMIT).ok();
    assert_eq!(done.text(), "started\n");
}

/// A mapping that was to be put into a hole by a program with threads was made in that hole first, could not be
/// moved to where it was, and was refused (ENOMEM); and so was one with bits of protection that nobody knows.
#[test]
fn a_file_is_mapped_into_a_hole() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("ring");
    place.put("file", vec![b'a'; 2 << 20]);
    let program = compiled("mappings.c", &[], "mappings");
    let mut run = command(&place, Some(&Budget::kib(256)), program);
    let done = finish(&place, run.args(["ring", "file"]), b"", LIMIT).ok();
    assert_eq!(done.text(), "a ring\n");
    assert_eq!(done.managed_files(), 1);
}

/// A library behind this one whose `mremap` unmaps waited for itself.
#[test]
fn a_call_that_is_made_of_others_does_not_wait_for_itself() {
    if !runs::ready() {
        return;
    }
    let wraps = compiled("mappings.c", &["-DWRAPS", "-shared", "-fPIC"], "wraps");
    let program = compiled("mappings.c", &[], "mappings");
    let place = Scratch::new("wraps");
    place.put("file", vec![b'a'; 2 << 20]);
    let script = format!(
        "LD_PRELOAD=$LD_PRELOAD:{} exec {} wrapped file",
        wraps.display(),
        program.display()
    );
    let mut run = command(&place, Some(&Budget::kib(256)), "sh");
    let done = finish(&place, run.args(["-c", &script]), b"", LIMIT).ok();
    assert_eq!(done.text(), "wrapped\n");
    assert_eq!(done.managed_files(), 1);
}

/// A fork is told of late, like other changes: one beside another thread's `munmap` or `mremap` could be heard of
/// after that, and its child had mappings that nobody knew of. (With libc's list of streams locked, in a stream's
/// function, they are not waited with: the fork waits for that.)
#[test]
fn children_forked_beside_changes_have_what_they_should() {
    if !runs::ready() {
        return;
    }
    let program = compiled("mappings.c", &[], "mappings");
    for how in ["forks-unmap", "forks-move", "forks-flush"] {
        let place = Scratch::new("forks");
        place.put("file", vec![b'a'; 1 << 20]);
        let mut run = command(&place, Some(&Budget::kib(512)), &program);
        let done = finish(&place, run.args([how, "file"]), b"", LIMIT).ok();
        assert_eq!(done.text(), "forks\n", "{how}");
        assert_eq!(done.managed_files(), 1, "{how}");
    }
}

/// What a program looked up in libc by its handle (Python's `ctypes.CDLL("libc.so.6")`, Java's `Linker`) was not
/// this library's: what it wrote so was not seen by mappings, and lost. Another preloaded library may look
/// up so what is behind it, which must not be this library, if it comes later.
#[test]
fn functions_that_are_found_by_a_librarys_handle_are_seen() {
    if !runs::ready() {
        return;
    }
    let beside = compiled("mappings.c", &["-DBESIDE", "-shared", "-fPIC"], "beside");
    let program = compiled("mappings.c", &[], "mappings");
    let (beside, program) = (beside.display(), program.display());
    for preloaded in
        ["$LD_PRELOAD".to_owned(), format!("$LD_PRELOAD:{beside}"), format!("{beside}:$LD_PRELOAD")]
    {
        let place = Scratch::new("handle");
        place.put("file", vec![b'a'; 1 << 20]);
        let script = format!("LD_PRELOAD={preloaded} exec {program} handle file");
        let mut run = command(&place, Some(&Budget::kib(256)), "sh");
        let done = finish(&place, run.args(["-c", &script]), b"", LIMIT).ok();
        assert_eq!(done.text(), "by handle\n", "{preloaded}");
        assert_eq!(done.managed_files(), 1, "{preloaded}");
    }
}

/// `remap_file_pages` showed zeros, and what was stored there was lost.
#[test]
fn pages_are_not_put_elsewhere_behind_the_managers_back() {
    if !runs::ready() {
        return;
    }
    for how in ["remap", "remap-number"] {
        let place = Scratch::new(how);
        let content = (0..512 * 4096).map(|i| b'a' + (i / 4096 % 26) as u8).collect::<Vec<_>>();
        place.put("file", content);
        let mut run =
            command(&place, Some(&Budget::kib(256)), compiled("mappings.c", &[], "mappings"));
        let done = finish(&place, run.args([how, "file"]), b"", LIMIT).ok();
        assert_eq!(done.text(), "Invalid argument\n");
        assert!(done.notes().contains("remap_file_pages"), "{}", done.notes());
    }
}

/// What a private mapping of a descriptor to read only grew by, or left behind (MREMAP_DONTUNMAP), could not
/// be made writable when nobody had the file open to write; and what a shared one left behind could, where
/// somebody had.
#[test]
fn what_comes_of_a_mapping_may_be_written_to_if_it_may() {
    if !runs::ready() {
        return;
    }
    let content: Vec<u8> = (0..512 * 4096).map(|i| b'a' + (i / 4096 % 26) as u8).collect();
    for kind in ["private", "shared"] {
        for others in ["none", "writer"] {
            let arguments = ["rights", "file", kind, others];
            // Copies of one's own count.
            let budget = Budget::kib(2048);
            let program = compiled("mappings.c", &[], "mappings");
            let prepare = |place: &Scratch| _ = place.put("file", &content);
            let done = same("mapping-rights", &budget, program, &arguments, prepare).ok();
            let refused = done.text().matches("Permission denied").count();
            assert_eq!(refused, if kind == "shared" { 5 } else { 0 }, "{}", done.text());
            assert_eq!(done.managed_files(), 1);
        }
    }
}

/// The number of a child in a process namespace of its own was taken for the process that has it outside:
/// 1 is init. Its memory was looked at instead, and the child could map no other file.
#[test]
fn a_child_in_a_namespace_of_its_own_is_not_another_process() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("apart");
    let content: Vec<u8> = (0..512 * 4096).map(|i| b'a' + (i / 4096 % 26) as u8).collect();
    place.put("one", &content);
    place.put("other", &content);
    let mut run = command(&place, Some(&Budget::kib(256)), compiled("mappings.c", &[], "mappings"));
    let done = finish(&place, run.args(["apart", "one", "other"]), b"", LIMIT).ok();
    if done.text() == "none\n" {
        return println!("skipped: this user may make no process namespace");
    }
    assert_eq!((done.text(), done.managed_files()), ("ok\n".to_owned(), 2));
    for name in ["one", "other"] {
        assert_eq!(std::fs::read(place.file(name)).expect("a file")[0], b'd');
    }
}
