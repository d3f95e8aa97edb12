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

/// MiB of address space that each alias of a file's frames takes, the shortest first.
fn aliases_mib(file: &Path) -> Vec<u64> {
    let name = file.file_name().unwrap().to_str().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_window = |line: &&str| line.contains("memfd:pagekeeper:") && line.contains(name);
    let number = |digits| u64::from_str_radix(digits, 16).unwrap();
    let mut mib = Vec::new();
    for line in maps.lines().filter(is_window) {
        let mut fields = line.split(' ');
        let (start, end) = fields.next().unwrap().split_once('-').unwrap();
        let (mut from, mut left) = (number(fields.nth(1).unwrap()), number(end) - number(start));
        // None crosses a gigabyte of the file; the kernel shows two as one where the next one of the file
        // happens to lie behind the other.
        while left > 0 {
            let bytes = left.min((1 << 30) - from % (1 << 30));
            mib.push(bytes >> 20);
            (from, left) = (from + bytes, left - bytes);
        }
    }
    mib.sort_unstable();
    mib
}

/// A file of a page took a gigabyte of address space once it was touched: under a limit on that, a program
/// with three files could not have a third.
#[test]
fn a_short_segment_takes_little_address_space_and_more_as_it_grows() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = Cache::builder(4 << 20).build().unwrap();
    let segment = cache.open(file.path(), Options::new().writable(true)).unwrap();
    let mib = || aliases_mib(file.path());
    let put = |at: u64, byte: u8| segment.write_all_at(&[byte; 8192], at).unwrap();
    let shows = |at: u64, byte: u8| {
        let mut word = [0; 8];
        for _ in 0..2 {
            segment.read_exact_at(&mut word, at).unwrap();
            assert_eq!(word, [byte; 8], "at {at}");
        }
    };
    put(0, 1);
    shows(8, 1);
    assert_eq!(mib(), [16]);
    segment.set_len(20 << 20).unwrap();
    put((16 << 20) - 8192, 2);
    shows((16 << 20) - 8, 2);
    assert_eq!(mib(), [16], "what lies behind it is not touched yet");
    // Who holds a page by the first one goes on.
    let first = segment.pin(0..8192).unwrap();
    put(16 << 20, 3);
    shows(16 << 20, 3);
    assert_eq!(mib(), [16, 128]);
    shows(0, 1);
    // What begins in one and ends in the next is in one piece all the same.
    let mut across = segment.pin_mut((16 << 20) - 4096..(16 << 20) + 4096).unwrap();
    assert!(across[..4096] == [2; 4096] && across[4096..] == [3; 4096]);
    across.fill(4);
    drop(across);
    shows((16 << 20) - 8, 4);
    shows(16 << 20, 4);
    segment.set_len((1 << 30) + 8192).unwrap();
    put((1 << 30) - 8192, 5);
    shows((1 << 30) - 8, 5);
    assert_eq!(mib(), [16, 128, 1024]);
    put(1 << 30, 6);
    shows(1 << 30, 6);
    assert_eq!(mib(), [16, 128, 1024, 1024]);
    assert_eq!(*first, [1; 8192]);
    shows(0, 1);
    shows(16 << 20, 4);
    shows((1 << 30) - 8, 5);
}

/// What it is long as it is first touched, rounded up.
#[test]
fn a_segment_takes_as_much_address_space_as_it_is_long() {
    for (len_mib, is_mib) in [(1, 16), (17, 32), (32, 32), (100, 128), (600, 1024), (3000, 1024)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(len_mib << 20).unwrap();
        let cache = Cache::builder(2 << 20).build().unwrap();
        let segment = cache.open(file.path(), Options::new()).unwrap();
        let mut word = [1; 8];
        segment.read_exact_at(&mut word, 4096).unwrap();
        assert_eq!(word, [0; 8]);
        assert_eq!(aliases_mib(file.path()), [is_mib], "of {len_mib} MiB");
    }
}

/// Threads read what is at rest while others make the segment longer, and each alias with it.
#[test]
fn readers_go_on_while_a_segment_grows() {
    const STEP: u64 = 3 << 20;
    const STEPS: u64 = 60;
    let cache = Cache::builder(4 << 20).build().unwrap();
    let segment = cache.scratch(8).unwrap();
    segment.write_all_at(&0u64.to_le_bytes(), 0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let segment = segment.clone();
            scope.spawn(move || {
                for round in 0.. {
                    let steps = (segment.len() - 8) / STEP;
                    let step = (round * 7 + thread) % (steps + 1);
                    let mut word = [0; 8];
                    segment.read_exact_at(&mut word, step * STEP).unwrap();
                    assert!([step, 0].contains(&u64::from_le_bytes(word)), "{step}: {word:?}");
                    if steps == STEPS {
                        break;
                    }
                }
            });
        }
        for step in 1..=STEPS {
            segment.write_all_at(&step.to_le_bytes(), step * STEP).unwrap();
        }
    });
    for step in 0..=STEPS {
        let page = segment.pin(step * STEP..step * STEP + 8).unwrap();
        assert_eq!(*page, step.to_le_bytes());
    }
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
