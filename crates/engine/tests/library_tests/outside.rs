//! What somebody outside does to a file that is a segment.

use super::*;

#[test]
fn changes_by_others_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; 3 * PAGE]).unwrap();
    let cache = tiny(0, "lru");
    let segment = cache.open(&path, Options::new().writable(true)).unwrap();
    let mut buf = [0; 3 * PAGE];
    segment.read_exact_at(&mut buf, 0).unwrap();
    assert!(!segment.refresh().unwrap());
    segment.write_at(b"mine", 5).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&path, [2; 2 * PAGE]).unwrap();
    assert!(segment.refresh().unwrap());
    assert_eq!(segment.len(), 2 * PAGE as u64);
    assert_eq!(segment.read_at(&mut buf, 0).unwrap(), 2 * PAGE);
    assert_eq!(&buf[5..9], b"mine", "what is not written back yet is ours");
    assert!(buf[PAGE..2 * PAGE].iter().all(|b| *b == 2));
}

fn set_len_outside(path: &Path, len: usize) {
    // So that the file's times change.
    std::thread::sleep(Duration::from_millis(20));
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(len as u64).unwrap();
}

/// A file that somebody else made shorter was followed under guards: bytes that were pinned became
/// zeros where the new end lay in their page, and pages behind it were waited for, for ever if the
/// guard was the thread's own.
#[test]
fn what_others_cut_off_stays_while_it_is_pinned() {
    in_time(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [1; 5 * PAGE]).unwrap();
        let cache = tiny(0, "lru");
        let segment = cache.open(&path, Options::new().writable(true)).unwrap();
        let page = PAGE as u64;
        let behind = segment.pin(3 * page..4 * page).unwrap();
        let mut cut = segment.pin_mut(page..2 * page).unwrap();
        cut.fill(2);
        segment.write_all_at(&[3; PAGE], 2 * page).unwrap();
        segment.write_all_at(&[3; PAGE], 4 * page).unwrap();
        set_len_outside(&path, PAGE + 100);
        assert!(segment.refresh().unwrap());
        assert!(*behind == [1; PAGE] && *cut == [2; PAGE]);
        assert_eq!(segment.len(), 4 * page, "up to the last page that is pinned");
        assert_eq!(errno(segment.pin(4 * page..4 * page + 1)), Some(EINVAL));
        drop(behind);
        segment.refresh().unwrap();
        assert_eq!(segment.len(), 2 * page, "up to the last page that is pinned");
        assert_eq!(*cut, [2; PAGE]);
        drop(cut);
        segment.refresh().unwrap();
        assert_eq!(segment.len(), page + 100);
        segment.flush().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), page + 100);
        segment.set_len(3 * page).unwrap();
        let mut rest = [1; 2 * PAGE];
        segment.read_exact_at(&mut rest, page).unwrap();
        assert!(rest[..100] == [2; 100] && rest[100..] == [0; 2 * PAGE - 100]);
    });
}

/// Who writes back in the background waited for the guards of one file, and no other was written.
#[test]
fn guards_of_one_segment_hold_up_no_write_back_of_others() {
    in_time(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, [1; 2 * PAGE]).unwrap();
        let builder = builder(TINY_PAGES * PAGE as u64);
        let cache = builder.write_back_period(Some(Duration::from_millis(10))).build().unwrap();
        let segment = cache.open(&path, Options::new()).unwrap();
        let pinned = segment.pin(PAGE as u64..2 * PAGE as u64).unwrap();
        set_len_outside(&path, 100);
        let other = cache.scratch(PAGE as u64).unwrap();
        for round in 0..10 {
            other.write_all_at(&[round; 8], 0).unwrap();
            while other.attributes(0..1).unwrap()[0].dirty {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(*pinned, [1; PAGE]);
    });
}

fn append_outside(path: &Path, bytes: &[u8]) {
    let mut file = File::options().append(true).open(path).unwrap();
    io::Write::write_all(&mut file, bytes).unwrap();
}

/// The write-back of a dirty last page reached to the file's present end: there were zeros where
/// somebody outside had just appended.
#[test]
fn what_others_append_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; PAGE + 96]).unwrap();
    for evicted in [false, true] {
        let cache = tiny(0, "lru");
        let segment = cache.open(&path, Options::new().writable(true).create(true)).unwrap();
        let other = cache.scratch(TINY_PAGES * PAGE as u64).unwrap();
        let end = segment.len() as usize;
        segment.write_all_at(b"mine", PAGE as u64 + 4).unwrap();
        append_outside(&path, b"theirs");
        if evicted {
            other.write_all_at(&[5; TINY_PAGES as usize * PAGE], 0).unwrap();
        }
        segment.flush().unwrap();
        let stored = std::fs::read(&path).unwrap();
        assert_eq!(&stored[PAGE + 4..PAGE + 8], b"mine");
        assert_eq!(&stored[end..], b"theirs");
        segment.refresh().unwrap();
        let mut found = [0; 6];
        segment.read_exact_at(&mut found, end as u64).unwrap();
        assert_eq!(&found, b"theirs");
    }
}

/// A segment that grew was set to its new length by `ftruncate(2)`: what somebody outside had appended
/// further out was cut off.
#[test]
fn a_segment_that_grows_cuts_nothing_off() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; PAGE + 96]).unwrap();
    let cache = tiny(0, "lru");
    let segment = cache.open(&path, Options::new().writable(true)).unwrap();
    append_outside(&path, &[2; 3 * PAGE]);
    assert_eq!(segment.write_at(b"mine", PAGE as u64 + 96).unwrap(), 4);
    segment.flush().unwrap();
    let stored = std::fs::read(&path).unwrap();
    assert_eq!(stored.len(), 4 * PAGE + 96);
    assert_eq!(&stored[PAGE + 96..PAGE + 100], b"mine");
    assert!(stored[PAGE + 100..].iter().all(|byte| *byte == 2));
    assert_eq!(segment.len() as usize, stored.len());
    // Who says how long it is to be, means that.
    append_outside(&path, &[3; PAGE]);
    segment.set_len(4 * PAGE as u64 + 100).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, 4 * PAGE + 100);
    assert_eq!(segment.len() as usize, 4 * PAGE + 100);
}
