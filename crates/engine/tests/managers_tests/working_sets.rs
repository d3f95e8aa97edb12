//! Working sets that are saved and brought back.

use super::*;

#[test]
fn a_working_set_is_brought_back_hottest_first() {
    let directory = tempfile::tempdir().unwrap();
    let (path, saved) = (directory.path().join("data"), directory.path().join("hot"));
    std::fs::write(&path, content(7, 300 * PAGE)).unwrap();
    let big = builder(2 << 20).read_ahead_pages_max(1).build().unwrap();
    let segment = big.open(&path, Options::new()).unwrap();
    let order: Vec<u64> = (0..100).map(|i| i * 37 % 300).collect();
    let read = |segment: &Segment, page: u64| {
        segment.read_exact_at(&mut [0; 8], page * PAGE as u64).unwrap();
    };
    order.iter().for_each(|page| read(&segment, *page));
    assert_eq!(big.save_working_set(&saved).unwrap(), 100);
    drop((segment, big));

    let small = builder(256 << 10).read_ahead_pages_max(1).build().unwrap();
    let segment = small.open(&path, Options::new()).unwrap();
    let brought = small.load_working_set(&saved).unwrap();
    let resident = |page: u64| {
        let at = page * PAGE as u64;
        segment.attributes(at..at + 1).unwrap()[0].resident
    };
    assert!((40..64).contains(&brought), "{brought} pages in 256 KiB");
    let hot = order.iter().rev().take(40).filter(|page| resident(**page)).count();
    assert!(hot >= 38, "{hot} of the 40 used last");
    assert!(!order[..30].iter().any(|page| resident(*page)), "those used first do not fit");
    // Nothing of it is read twice.
    let before = small.stats().total.major_faults;
    order.iter().rev().take(35).for_each(|page| read(&segment, *page));
    assert!(small.stats().total.major_faults - before <= 2);

    // What is set aside counted twice.
    let other = builder(256 << 10).read_ahead_pages_max(1).build().unwrap();
    let _aside = other.reserve(24 * PAGE as u64).unwrap();
    let _segment = other.open(&path, Options::new()).unwrap();
    assert_eq!(other.load_working_set(&saved).unwrap(), brought - 24);

    std::fs::write(&saved, b"no trace at all").unwrap();
    let error = small.load_working_set(&saved).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// Threads that saved to one path wrote one file between them, or had it renamed under them (ENOENT).
#[test]
fn a_working_set_is_saved_by_several_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("hot");
    let cache = tiny(0);
    let segment = cache.scratch(64 << 10).unwrap();
    segment.write_all_at(&[1; 64 << 10], 0).unwrap();
    let pages = cache.save_working_set(&saved).unwrap();
    assert!(pages > 0);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                for _ in 0..30 {
                    assert_eq!(cache.save_working_set(&saved).unwrap(), pages);
                    cache.load_working_set(&saved).unwrap();
                }
            });
        }
    });
    let left = |directory: &std::path::Path| std::fs::read_dir(directory).unwrap().count();
    assert_eq!(left(directory.path()), 1, "nothing else is left");
    let taken = directory.path().join("a directory");
    std::fs::create_dir(&taken).unwrap();
    cache.save_working_set(&taken).unwrap_err();
    assert_eq!(left(directory.path()), 2, "nor where it could not be saved");
}

/// Whatever had the name was replaced: a device's node, where the user may, was a file from then on.
#[test]
fn a_working_set_replaces_files_only() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let cache = tiny(0);
    let segment = cache.scratch(64 << 10).unwrap();
    segment.write_all_at(&[1; 64 << 10], 0).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::os::unix::fs::symlink("fifo", at("link to a fifo")).unwrap();
    for name in ["fifo", "directory", "link to a fifo"] {
        let before = std::fs::symlink_metadata(at(name)).unwrap().file_type();
        let refused = cache.save_working_set(at(name)).unwrap_err();
        let words = refused.to_string();
        assert!(words.contains(&*at(name).to_string_lossy()), "{words}");
        assert!(words.contains("no regular file"), "{words}");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(std::fs::symlink_metadata(at(name)).unwrap().file_type(), before);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3, "nothing else is left");
    // What a link leads to stays as it is: the link is replaced.
    std::fs::write(at("old"), b"old").unwrap();
    std::os::unix::fs::symlink("old", at("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("broken link")).unwrap();
    for name in ["link", "broken link"] {
        let pages = cache.save_working_set(at(name)).unwrap();
        assert!(pages > 0 && std::fs::symlink_metadata(at(name)).unwrap().is_file());
    }
    assert_eq!(std::fs::read(at("old")).unwrap(), b"old");
    assert!(!at("nowhere").exists());
}

/// A directory was told of as a damaged disk, and a damaged file with an option that a program has not.
#[test]
fn a_working_set_that_cannot_be_read_is_told_as_what_it_is() {
    const EISDIR: i32 = 21;
    let directory = tempfile::tempdir().unwrap();
    let saved = directory.path().join("hot");
    let cache = tiny(0);
    let segment = cache.scratch(64 << 10).unwrap();
    segment.write_all_at(&[1; 64 << 10], 0).unwrap();
    cache.save_working_set(&saved).unwrap();
    let load = || cache.load_working_set(&saved).unwrap_err();
    let whole = std::fs::read(&saved).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    for (content, what) in [
        (&b"no trace at all"[..], "not a Pagekeeper trace"),
        (&whole[..whole.len() / 2], "the trace is cut"),
        (&damaged, "the trace is damaged"),
    ] {
        std::fs::write(&saved, content).unwrap();
        let error = load();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let words = error.to_string();
        assert!(words.starts_with(what) && !words.contains("--"), "{words}");
    }
    std::fs::remove_file(&saved).unwrap();
    std::fs::create_dir(&saved).unwrap();
    assert_eq!(load().raw_os_error(), Some(EISDIR));
}
