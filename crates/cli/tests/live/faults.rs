//! Faults that user-space pagers are known for (UMap's among them), one test each. That a page
//! which cannot be read raises SIGBUS and the program may go on is in `storage.rs`.

use crate::runs::{self, Budget, LIMIT, Scratch, Session, command, finish, programs};
use std::os::unix::fs::MetadataExt;

const PAGE: u64 = 4096;

/// Page `n` is full of `n + 1`.
fn numbered(place: &Scratch, name: &str, pages: u8) {
    let content: Vec<u8> = (0..pages).flat_map(|page| [page + 1; PAGE as usize]).collect();
    place.put(name, content);
}

#[test]
fn a_mapping_begins_at_its_offset() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("offset");
    numbered(&place, "f", 100);
    let mut session = Session::managed(&place, Budget::kib(128));
    session.expect("open 1 f rw", "ok");
    session.expect(&format!("map 1 1 {} {} rw shared", 5 * PAGE, 60 * PAGE), "ok");
    session.expect(&format!("map 2 1 {} {} r private", 77 * PAGE, 23 * PAGE), "ok");
    for page in 0..60 {
        session.expect(&format!("get 1 {}", page * PAGE + 9), &(page + 6).to_string());
        session.expect(&format!("put 1 {} {}", page * PAGE + 1, 200), "ok");
    }
    for page in 0..23 {
        session.expect(&format!("get 2 {}", page * PAGE), &(page + 78).to_string());
    }
    session.end().ok().pressed();
    let content = place.get("f");
    for (page, bytes) in content.chunks(PAGE as usize).enumerate() {
        let stored = if (5..65).contains(&page) { 200 } else { page as u8 + 1 };
        assert_eq!((bytes[0], bytes[1]), (page as u8 + 1, stored), "page {page}");
    }
}

/// Bytes of the run's memory files of this name.
fn memory_bytes(session: &Session, name: &str) -> u64 {
    let directory = format!("/proc/{}/fd", session.tree.pid().as_raw_pid());
    let open = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    let ends = format!("/{name} (deleted)");
    let named = open.filter(|path| {
        std::fs::read_link(path).is_ok_and(|link| {
            let link = link.to_string_lossy();
            link.starts_with("/memfd:pagekeeper:") && link.ends_with(&ends)
        })
    });
    named.take(1).map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum()
}

fn resident_kib(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn memory_comes_back_when_it_is_unmapped() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("returned");
    for name in ["a", "b"] {
        numbered(&place, name, 250);
    }
    let mut session = Session::managed(&place, Budget::kib(800).policy("lru"));
    let pid = session.ask("pid");
    let bytes = 250 * PAGE;
    let mut most = 0;
    for (name, number) in [("a", 1), ("b", 2)] {
        let before = resident_kib(&pid);
        session.expect(&format!("open {number} {name} rw"), "ok");
        session.expect(&format!("map {number} {number} 0 {bytes} rw shared"), "ok");
        for page in 0..250 {
            session.expect(&format!("get {number} {}", page * PAGE), &(page + 1).to_string());
        }
        let mapped = resident_kib(&pid) - before;
        assert!((200..=800).contains(&mapped), "{mapped} KiB mapped");
        most = most.max(memory_bytes(&session, "a") + memory_bytes(&session, "b"));
        session.expect(&format!("unmap {number}"), "ok");
        session.expect(&format!("close {number}"), "ok");
        assert!(resident_kib(&pid) < before + 40, "what was unmapped is the program's no more");
    }
    assert!(most <= 800 << 10, "{most} bytes in memory");
    // What nobody uses any more made room for what is used.
    let (a, b) = (memory_bytes(&session, "a"), memory_bytes(&session, "b"));
    assert!(a < b / 4, "{a} bytes of a file that was closed, {b} of the one after it");
    session.end().ok();
}

#[test]
fn a_last_page_ends_in_zeros() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("last-page");
    numbered(&place, "other", 60);
    place.put("short", vec![9u8; 2 * PAGE as usize + 100]);
    let mut session = Session::managed(&place, Budget::kib(96));
    session.expect("open 1 other rw", "ok");
    session.expect("open 2 short rw", "ok");
    session.expect(&format!("map 1 1 0 {} rw shared", 60 * PAGE), "ok");
    session.expect(&format!("map 2 2 0 {} rw shared", 3 * PAGE), "ok");
    let zeros = session.ask(&format!("sum 2 {} {}", 2 * PAGE + 100, PAGE - 100));
    for round in 0..6 {
        // Frames that others used come to the short file's last page.
        for page in 0..60 {
            session.expect(&format!("get 1 {}", page * PAGE + 2000), &(page + 1).to_string());
        }
        for at in [100, 101, 2000, PAGE - 1] {
            session.expect(&format!("get 2 {}", 2 * PAGE + at), "0");
        }
        assert_eq!(session.ask(&format!("sum 2 {} {}", 2 * PAGE + 100, PAGE - 100)), zeros);
        session.expect(&format!("put 2 {} {round}", 2 * PAGE + 99), "ok");
    }
    session.end().ok().pressed();
    let content = place.get("short");
    assert_eq!((content.len() as u64, content[2 * PAGE as usize + 99]), (2 * PAGE + 100, 5));
}

#[test]
fn a_forked_child_reads_what_is_there() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("child");
    numbered(&place, "f", 100);
    let mut session = Session::managed(&place, Budget::kib(128));
    session.expect("open 1 f rw", "ok");
    session.expect(&format!("map 1 1 0 {} rw shared", 100 * PAGE), "ok");
    for page in 0..100 {
        session.expect(&format!("put 1 {} {}", page * PAGE + 3, 99 - page), "ok");
    }
    // From here on a child answers; later a child of the child.
    for _ in 0..2 {
        session.expect("fork", "ok");
        for page in (0..100).rev() {
            session.expect(&format!("get 1 {}", page * PAGE), &(page + 1).to_string());
            session.expect(&format!("get 1 {}", page * PAGE + 3), &(99 - page).to_string());
        }
    }
    session.expect("put 1 4 44", "ok");
    session.end().ok().pressed();
    let content = place.get("f");
    for (page, bytes) in content.chunks(PAGE as usize).enumerate() {
        assert_eq!((bytes[0], bytes[3]), (page as u8 + 1, 99 - page as u8), "page {page}");
    }
    assert_eq!(content[4], 44);
}

/// The kernel maps pages within one area only: pages that were to be mapped together, on both sides
/// of where the protection changes, were not mapped at all, and who had touched one waited for ever.
#[test]
fn parts_of_a_mapping_may_differ_in_protection() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("parts");
    numbered(&place, "f", 100);
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect(&format!("map 1 1 0 {} rw shared", 100 * PAGE), "ok");
    session.expect(&format!("map 2 1 0 {} rw shared", 100 * PAGE), "ok");
    for page in (5..100).step_by(6) {
        session.expect(&format!("protect 1 {} {PAGE} none", page * PAGE), "ok");
        session.expect(&format!("protect 2 {} {PAGE} r", page * PAGE), "ok");
    }
    for map in [1, 2] {
        for page in 0..100 {
            let closed = map == 1 && page % 6 == 5;
            let answer = if closed { "SIGSEGV".to_owned() } else { (page + 1).to_string() };
            session.expect(&format!("get {map} {}", page * PAGE + 7), &answer);
        }
    }
    session.end().ok();
}

/// Threads that flush all the time, in every way there is, and threads whose stores evict what is
/// being flushed: all of them come to their end.
#[test]
fn flushing_and_evicting_wait_for_each_other_without_end_never() {
    if !runs::ready() {
        return;
    }
    for (kib, policy) in [(64, "lru"), (128, "mru"), (256, "clock")] {
        let place = Scratch::new("flushes");
        let mut run = command(&place, Some(&Budget::kib(kib).policy(policy)), programs());
        run.args(["flushes", "."]);
        finish(&place, &mut run, b"", LIMIT).ok().pressed();
    }
}
