//! The ways to find a page: each has all tests of the library and of its managers, and some of its own.

mod control;
mod mapped;
mod table;

use pagekeeper::library::{Buckets, Translation};
use std::process::Command;

/// Names the translation of a process of tests; without it, that is the mapping.
const ENV_TRANSLATION: &str = "PAGEKEEPER_TEST_TRANSLATION";
const CONTROL: Translation = Translation::Hash(Buckets::Fixed(3));

/// The translation that this process tests.
pub(crate) fn translation() -> Translation {
    match std::env::var(ENV_TRANSLATION).as_deref() {
        Err(_) => Translation::Mapped,
        Ok("table") => Translation::Table,
        Ok("hash") => CONTROL,
        Ok(name) => panic!("{ENV_TRANSLATION}: {name} is neither table nor hash"),
    }
}

/// Runs the tests of this program over another translation, in a process of its own.
fn test_over(translation: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--skip", module_path!().split_once("::").unwrap().1]);
    let output = command.env(ENV_TRANSLATION, translation).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}");
    assert!(output.status.success() && told.contains("library_tests::"), "over {translation}");
}

#[test]
fn all_of_it_holds_over_a_table() {
    test_over("table");
}

#[test]
fn all_of_it_holds_over_a_hash_table() {
    test_over("hash");
}
