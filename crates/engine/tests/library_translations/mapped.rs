//! What is mapped, and when.

use pagekeeper::library::{Cache, Options};
use pagekeeper_sys::mask::{self, Capability};
use std::path::Path;

/// KiB that this process has mapped of the frames of a file, through which nothing else is seen.
fn mapped_kib(file: &Path) -> u64 {
    let name = file.file_name().unwrap().to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let is_window = |line: &str| line.contains("memfd:pagekeeper:") && line.contains(name);
    let mut lines = maps.lines().skip_while(|line| !is_window(line));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).expect("a window is open");
    rss.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A miss read into its page through the mapping, and a hit mapped all of its neighbours: each page
/// had to be unmapped when it left, at an interrupt to every processor that ran the program.
#[test]
fn a_page_is_mapped_by_its_first_hit() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [7; 64 * 4096]).unwrap();
    let cache = Cache::builder(2 << 20).build().unwrap();
    let segment = cache.open(file.path(), Options::new()).unwrap();
    let read = |page: u64| {
        let mut word = [0; 8];
        segment.read_exact_at(&mut word, page * 4096 + 100).unwrap();
        assert_eq!(word, [7; 8]);
    };
    for page in [40, 3, 45, 60, 42, 33] {
        read(page);
    }
    assert_eq!(mapped_kib(file.path()), 0, "after misses");
    read(42);
    read(42);
    let around = !mask::allows(Capability::UserfaultUserMode);
    let kib = mapped_kib(file.path());
    assert!(kib == 4 || around && kib > 4, "{kib} KiB after a hit");
}

/// Where there is no userfaultfd, neighbours are mapped along; nothing else changes.
#[test]
fn nothing_depends_on_pages_being_mapped_one_by_one() {
    let own = std::env::current_exe().unwrap();
    let tests = [
        "library_translations::mapped::a_page_is_mapped_by_its_first_hit",
        "library_tests::threads_see_their_own_writes",
    ];
    let mut command = std::process::Command::new(own);
    let command = command.arg("--exact").args(tests).env(mask::ENV_MASK, "userfaultfd-user-mode");
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("2 passed"), "{told}");
}
