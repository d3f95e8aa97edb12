//! What is stored through mappings, and what reads it without the program's own calls.

use crate::runs::{self, Budget, LIMIT, Scratch, command, compiled, finish};

/// The dynamic linker opens and maps libraries by itself: it found what was there before the program's
/// stores.
#[test]
fn a_library_that_was_stored_to_is_loaded_as_it_is() {
    if !runs::ready() {
        return;
    }
    let library = compiled("mappings.c", &["-DLIBRARY", "-shared", "-fPIC"], "library");
    for how in ["dlopen", "dlmopen"] {
        let place = Scratch::new(how);
        place.put("library.so", std::fs::read(&library).expect("a library"));
        let mut run =
            command(&place, Some(&Budget::kib(256)), compiled("mappings.c", &[], "mappings"));
        let done = finish(&place, run.args([how, "./library.so"]), b"", LIMIT).ok();
        assert_eq!(done.text(), "MARKER-NEW\n");
        assert_eq!(done.managed_files(), 1);
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
