//! Storage that fills up, fails, or is changed by somebody else while its files are mapped.

use crate::mounts::Mount;
use crate::runs::{self, Budget, LIMIT, Scratch, Session, command, finish, programs};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

fn ready() -> bool {
    runs::ready()
}

// ---- no space ------------------------------------------------------------------------------------

/// Fills a file system through a mapping of a file that is all hole.
fn fill(place: &Scratch, mount: &Mount) {
    let kept = mount.file("kept");
    std::fs::write(&kept, vec![3u8; 8 * PAGE as usize]).unwrap();
    let budget = Budget::kib(256).files(format!("{}/**", mount.path().display()));
    let mut session = Session::managed(place, budget);
    session.expect(&format!("open 1 {} rw", kept.display()), "ok");
    session.expect("map 1 1 0 32768 rw shared", "ok");
    session.expect("put 1 5 50", "ok");
    session.expect(&format!("open 2 {} rwct", mount.file("hole").display()), "ok");
    session.expect("truncate 2 16777216", "ok");
    session.expect("map 2 2 0 16777216 rw shared", "ok");
    // Reading needs no space.
    session.expect("get 2 16000000", "0");
    let mut written = 0;
    for page in 0..PAGE {
        match session.ask(&format!("put 2 {} {}", page * PAGE + 7, page % 251)).as_str() {
            "ok" => written += 1,
            "SIGBUS" => break,
            other => panic!("{other}"),
        }
    }
    assert!((100..2000).contains(&written), "{written} pages were written");
    // What was written stays, and what has blocks can be written again.
    for page in (0..written).step_by(7) {
        session.expect(&format!("get 2 {}", page * PAGE + 7), &(page % 251).to_string());
    }
    session.expect(&format!("get 2 {}", written * PAGE + 7), "0");
    session.expect(&format!("put 2 {} 1", written * PAGE + 7), "SIGBUS");
    session.expect("put 2 8 99", "ok");
    session.expect("put 1 6 51", "ok");
    session.expect("sync 1", "ok");
    session.expect("sync 2", "ok");
    // The file's own call says so too.
    let far = 3000 * PAGE;
    let wrote = session.ask(&format!("pwrite 2 {far} 65536 1"));
    assert!(wrote == "ENOSPC" || wrote.parse::<u64>().is_ok_and(|n| n < 65536), "{wrote}");
    // Somebody makes room.
    session.expect("truncate 1 4096", "ok");
    let done = session.end().ok();
    assert!(done.total("evictions") > 0);
    let file = std::fs::File::open(mount.file("hole")).unwrap();
    let mut byte = [0u8];
    for page in 0..written {
        file.read_exact_at(&mut byte, page * PAGE + 7).unwrap();
        assert_eq!(u64::from(byte[0]), page % 251, "page {page}");
    }
    file.read_exact_at(&mut byte, 8).unwrap();
    assert_eq!(byte[0], 99);
    let kept = std::fs::read(kept).unwrap();
    assert_eq!((kept.len(), kept[5], kept[6], kept[7]), (4096, 50, 51, 3));
}

#[test]
fn a_full_ext4_is_an_error_at_the_write() {
    if !ready() {
        return;
    }
    let place = Scratch::new("full-ext4");
    if let Some(mount) = Mount::image(&place, &place.file("image"), "ext4", 8192) {
        fill(&place, &mount);
    }
}

#[test]
fn a_full_tmpfs_is_an_error_at_the_write() {
    if !ready() {
        return;
    }
    let place = Scratch::new("full-tmpfs");
    if let Some(mount) = Mount::tmpfs(&place, "mounted", 4096) {
        fill(&place, &mount);
    }
}

/// They are in memory already, and the kernel never says what others store to them by their mappings.
#[test]
fn files_on_tmpfs_are_managed_if_they_are_named() {
    if !ready() {
        return;
    }
    let place = Scratch::new("tmpfs-named");
    let Some(mount) = Mount::tmpfs(&place, "mounted", 4096) else { return };
    let file = mount.file("data");
    std::fs::write(&file, vec![3u8; 64 * PAGE as usize]).unwrap();
    let script = "import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    mmap.mmap(file.fileno(), 0)[5] += 1";
    let pattern = format!("{}/**", mount.path().display());
    for (named, is_managed) in [(vec![], false), (vec!["--files", pattern.as_str()], true)] {
        let mut run = std::process::Command::new(runs::pagekeeper());
        run.env("PAGEKEEPER_PRELOAD", runs::preload()).arg("run").args(named);
        run.args(["--from-start", "--policy", "lru", "--memory", "1M", "--min-size", "64K"]);
        let stats = place.file("stats");
        run.arg("--stats")
            .arg(&stats)
            .arg("--")
            .arg(runs::python())
            .args(["-c", script])
            .arg(&file);
        let done = run.output().expect("it can be started");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        let stats = std::fs::read_to_string(stats).unwrap();
        assert_eq!(stats.contains(&file.display().to_string()), is_managed, "{stats}");
    }
    assert_eq!(std::fs::read(&file).unwrap()[5], 5);
}

/// A store by the kernel, for a call of the program's, is told by no signal: it waited for ever.
#[test]
fn a_full_disk_is_an_error_for_the_kernel_too() {
    if !ready() {
        return;
    }
    let place = Scratch::new("full-kernel");
    let Some(mount) = Mount::image(&place, &place.file("image"), "ext4", 4096) else { return };
    let program = runs::compiled("full.c", &["-O2"], "full");
    let budget = Budget::kib(1024).files(format!("{}/**", mount.path().display()));
    let [bare, managed] = [None, Some(&budget)].map(|budget| {
        let file = mount.file("hole");
        let done = finish(&place, command(&place, budget, &program).arg(&file), b"", LIMIT).ok();
        std::fs::remove_file(file).unwrap();
        done.text()
    });
    assert!(bare.contains("EFAULT") && bare.contains("ignored: signal 7"), "{bare}");
    assert_eq!(managed, bare);
}

/// Each first store to a page of a hole threw out what had been read of the file, since giving the
/// page storage changed the file's times: six times its size was read, and a page took 0.6 ms.
#[test]
fn a_hole_is_read_once_while_it_is_filled_and_stays_one_where_nothing_is_stored() {
    if !ready() {
        return;
    }
    let place = Scratch::new("sparse");
    let pages = 1024;
    let mut session = Session::managed(&place, Budget::kib(16 << 10));
    for (no, name) in [(1, "in-order"), (2, "here-and-there")] {
        session.expect(&format!("open {no} {name} rwct"), "ok");
        session.expect(&format!("truncate {no} {}", pages * PAGE), "ok");
        session.expect(&format!("map {no} {no} 0 {} rw shared", pages * PAGE), "ok");
    }
    for page in 0..pages {
        session.expect(&format!("put 1 {} {}", page * PAGE, page % 251), "ok");
    }
    for page in (0..pages).rev().step_by(64) {
        session.expect(&format!("put 2 {} {}", page * PAGE, page % 251), "ok");
    }
    for page in 0..pages {
        let stored = if page % 64 == 63 { page % 251 } else { 0 };
        session.expect(&format!("get 1 {}", page * PAGE), &(page % 251).to_string());
        session.expect(&format!("get 2 {}", page * PAGE), &stored.to_string());
    }
    let done = session.end().ok();
    assert!(done.total("read_bytes") <= 2 * pages * PAGE, "{}", done.stats);
    let blocks = |name: &str| place.file(name).metadata().unwrap().blocks() * 512;
    assert!(blocks("in-order") >= pages * PAGE);
    assert!(blocks("here-and-there") <= pages * PAGE / 4, "{}", blocks("here-and-there"));
}

/// What had been stored was not in the files yet when the kernel compared them: equal ones were different,
/// and different ones were taken for equal.
#[test]
fn files_that_are_to_share_storage_are_compared_as_they_are() {
    if !ready() {
        return;
    }
    let program = runs::compiled("dedupe.c", &["-O2"], "dedupe");
    for kind in ["btrfs", "xfs"] {
        let place = Scratch::new(&format!("dedupe-{kind}"));
        let image = Mount::image(&place, &place.file("image"), kind, 320 << 10);
        let Some(mount) = image else { continue };
        let budget = Budget::kib(256).files(format!("{}/**", mount.path().display()));
        let run = |budget: Option<&Budget>| {
            finish(&place, command(&place, budget, &program).arg(mount.path()), b"", LIMIT).ok()
        };
        let bare = run(None).text();
        assert!(bare.contains("status 0, 1048576 bytes"), "{bare}");
        for budget in [budget.clone(), budget.delay_writes()] {
            let managed = run(Some(&budget));
            assert_eq!(managed.text(), bare, "{kind}");
            assert_eq!(managed.managed_files(), 3);
        }
    }
}

// ---- errors --------------------------------------------------------------------------------------

/// Blocks that the file system cannot read: SIGBUS there, and only there.
#[test]
fn a_page_that_cannot_be_read_raises_sigbus() {
    if !ready() || !runs::has("debugfs") {
        return;
    }
    let place = Scratch::new("read-error");
    let image = place.file("image");
    let Some(mount) = Mount::image(&place, &image, "ext2", 8192) else { return };
    std::fs::write(mount.file("bad"), vec![4u8; 30 * PAGE as usize]).unwrap();
    std::fs::write(mount.file("other"), vec![5u8; 300 * PAGE as usize]).unwrap();
    drop(mount);
    // Blocks from the thirteenth on are found by a list; one of its entries is damaged here.
    let stat = Command::new("debugfs").args(["-R", "stat /bad"]).arg(&image).output().unwrap();
    let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
    let Some((_, rest)) = stat.split_once("(IND):") else {
        return runs::skip("this mkfs.ext2 makes no indirect blocks");
    };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let block: u64 = digits.parse().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&99_999_999u32.to_le_bytes(), block * PAGE + 4 * 8).unwrap();
    drop(file);
    let options = ["-o", "loop,errors=continue", image.to_str().unwrap()];
    let Some(mount) = Mount::new(place.file("mounted"), &options) else { return };
    let bad = mount.file("bad");
    let budget = Budget::kib(256).files(format!("{}/**", mount.path().display()));
    let mut session = Session::managed(&place, budget);
    session.expect(&format!("open 1 {} rw", bad.display()), "ok");
    session.expect("map 1 1 0 122880 rw shared", "ok");
    let read = std::fs::File::open(&bad).unwrap().read_at(&mut [0u8; 10], 20 * PAGE);
    let Err(error) = read else {
        return runs::skip("this kernel reads blocks behind the device's end");
    };
    eprintln!("the kernel says: {error}");
    for page in (0..30).filter(|&page| page != 20) {
        session.expect(&format!("get 1 {}", page * PAGE), "4");
    }
    for _ in 0..2 {
        session.expect(&format!("get 1 {}", 20 * PAGE), "SIGBUS");
        session.expect(&format!("put 1 {} 1", 20 * PAGE + 9), "SIGBUS");
    }
    // And when room has to be made for what is read along, which goes on side by side.
    session.expect(&format!("open 2 {} r", mount.file("other").display()), "ok");
    session.expect("map 2 2 0 1228800 r shared", "ok");
    for _ in 0..3 {
        for page in 0..300 {
            session.expect(&format!("get 2 {}", page * PAGE), "5");
        }
        for page in 0..30 {
            let answer = if page == 20 { "SIGBUS" } else { "4" };
            session.expect(&format!("get 1 {}", page * PAGE), answer);
        }
    }
    session.expect(&format!("put 1 {} 77", 4 * PAGE), "ok");
    // Reads say so by an error, where they begin at the bad page, and stop before it elsewhere.
    for _ in 0..3 {
        for (page, bytes) in [(20, 10), (20, 3 * PAGE), (20, 30000)] {
            let answer = session.ask(&format!("pread 1 {} {bytes}", page * PAGE));
            assert_eq!(answer, "EIO", "{bytes} bytes");
        }
        for (page, bytes) in [(19, 2 * PAGE), (15, 10 * PAGE)] {
            let answer = session.ask(&format!("pread 1 {} {bytes}", page * PAGE));
            let got: u64 = answer.split(' ').next().unwrap().parse().expect(&answer);
            assert!(got > 0 && got <= (20 - page) * PAGE, "{answer}");
        }
        let answer = session.ask(&format!("pread 1 {} {PAGE}", 21 * PAGE));
        assert!(answer.starts_with("4096 "), "{answer}");
    }
    session.expect("sync 1", "ok");
    let done = session.end().ok();
    assert!(done.total("failed_faults") > 0);
    let mut byte = [0u8];
    std::fs::File::open(&bad).unwrap().read_exact_at(&mut byte, 4 * PAGE).unwrap();
    assert_eq!(byte[0], 77);
}

/// A file of 400 pages on a device that has room for fewer: a loop device whose own file system is
/// full as soon as `filler` is there.
struct Unwritable {
    // Unmounted before what is under it.
    _mount: Mount,
    under: Mount,
    file: PathBuf,
    files: String,
}

impl Unwritable {
    fn new(place: &Scratch) -> Option<Unwritable> {
        let under = Mount::tmpfs(place, "under", 3072)?;
        let mount = Mount::image(place, &under.file("image"), "ext2", 16384)?;
        let file = mount.file("bad");
        // Blocks are given out, but nothing is behind them yet.
        std::fs::File::create(&file).unwrap().set_len(400 * PAGE).unwrap();
        let files = format!("{}/**", mount.path().display());
        Some(Unwritable { under, _mount: mount, file, files })
    }

    fn fill(&self) {
        std::fs::write(self.under.file("filler"), vec![1u8; 3 << 20]).unwrap_err();
    }
}

/// The device fails writes (a loop device whose own file has no room left): msync and the exit
/// code report it, the pages stay and can be read, and what can be written is.
#[test]
fn a_page_that_cannot_be_written_is_kept_and_reported() {
    if !ready() {
        return;
    }
    let place = Scratch::new("write-error");
    let Some(device) = Unwritable::new(&place) else { return };
    let (bad, budget) = (&device.file, Budget::kib(4096).files(device.files.clone()));
    let mut session = Session::managed(&place, budget);
    session.expect(&format!("open 1 {} rw", bad.display()), "ok");
    session.expect("map 1 1 0 1638400 rw shared", "ok");
    device.fill();
    let mut written = Vec::new();
    for page in 0..400 {
        if session.ask(&format!("put 1 {} {}", page * PAGE, page % 251)) == "ok" {
            written.push(page);
        }
    }
    if written.is_empty() {
        return runs::skip("this file system notices the missing space by itself");
    }
    let answer = session.ask("sync 1");
    if answer == "ok" {
        return runs::skip("the device took the writes");
    }
    assert!(answer == "EIO" || answer == "ENOSPC", "{answer}");
    for &page in &written {
        session.expect(&format!("get 1 {}", page * PAGE), &(page % 251).to_string());
    }
    let fixed = std::fs::remove_file(device.under.file("filler")).is_ok();
    assert!(fixed);
    // What was met in the background before the device was fixed is told of once more, and not twice.
    let answers = ["sync 1"; 2].map(|sync| session.ask(sync));
    let done = session.end();
    if answers.contains(&"ok".to_owned()) {
        done.ok();
        let content = std::fs::read(bad).unwrap();
        assert!(written.iter().all(|&p| u64::from(content[(p * PAGE) as usize]) == p % 251));
    } else {
        // Its metadata is damaged for good: the run must not call that a success.
        assert_eq!(done.status.code(), Some(74), "{}", done.stderr);
        assert!(done.stderr.contains("could not be stored"), "{}", done.stderr);
    }
}

/// What a program wrote and the kernel could not write on is in the kernel's cache only, and clean there. Reads
/// past that cache brought back what the file was before.
#[test]
fn what_the_kernel_could_not_write_is_read_from_its_cache() {
    if !ready() {
        return;
    }
    let place = Scratch::new("unwritten");
    let Some(device) = Unwritable::new(&place) else { return };
    let budget = Budget::kib(128).files(device.files.clone());
    let mut session = Session::managed(&place, budget);
    session.expect(&format!("open 1 {} rw", device.file.display()), "ok");
    session.expect("map 1 1 0 1638400 rw shared", "ok");
    device.fill();
    let written: Vec<u64> = (0..64)
        .filter(|page| session.ask(&format!("pwrite 1 {} 4096 9", page * PAGE)) == "4096")
        .collect();
    let answer = session.ask("fsync 1");
    if written.is_empty() || answer == "ok" {
        return runs::skip("the device took the writes, or the file system refused them");
    }
    assert!(answer == "EIO" || answer == "ENOSPC", "{answer}");
    std::fs::remove_file(device.under.file("filler")).unwrap();
    // Where the kernel tried to write before it was asked to (half a minute later), it reads some from
    // storage again by itself.
    let kernels = std::fs::File::open(&device.file).unwrap();
    let kept = |page: u64| {
        let mut byte = [0];
        kernels.read_exact_at(&mut byte, page * PAGE).unwrap();
        byte[0]
    };
    if written.iter().all(|page| kept(*page) == 0) {
        return runs::skip("the kernel had tried to write, and kept nothing");
    }
    for _ in 0..2 {
        for page in 100..400 {
            session.expect(&format!("get 1 {}", page * PAGE), "0");
        }
        for page in &written {
            session.expect(&format!("get 1 {}", page * PAGE), &kept(*page).to_string());
        }
    }
    drop(kernels);
    let done = session.end();
    assert!(done.total("evictions") > 300, "{:?}", done.stats);
}

/// Of two descriptors of a file, only the one that synced first was told that pages could not be
/// written. The kernel tells each, and so the program that comes second does not take for stored
/// what the first one gave up.
#[test]
fn a_failed_write_is_told_to_each_descriptor() {
    if !ready() {
        return;
    }
    let place = Scratch::new("told");
    let Some(device) = Unwritable::new(&place) else { return };
    let (bad, budget) = (&device.file, Budget::kib(4096).files(device.files.clone()));
    let mut session = Session::managed(&place, budget);
    session.expect(&format!("open 1 {} rw", bad.display()), "ok");
    session.expect(&format!("open 2 {} rw", bad.display()), "ok");
    // The manager hears of this one when it is used first, which is after others were told.
    session.expect(&format!("open 3 {} r", bad.display()), "ok");
    session.expect("map 1 1 0 1638400 rw shared", "ok");
    device.fill();
    let stored = (0..400).filter(|page| session.ask(&format!("put 1 {} 5", page * PAGE)) == "ok");
    if stored.count() == 0 {
        return runs::skip("this file system notices the missing space by itself");
    }
    let failed = |answer: &str| answer == "EIO" || answer == "ENOSPC";
    if !failed(&session.ask("fsync 1")) {
        return runs::skip("the device took the writes");
    }
    std::fs::remove_file(device.under.file("filler")).unwrap();
    // Written now, perhaps; and yet they must hear of it.
    session.expect(&format!("open 4 {} rw", bad.display()), "ok");
    session.ask("pwrite 4 0 1 7");
    for descriptor in [2, 3] {
        let answer = session.ask(&format!("fsync {descriptor}"));
        assert!(failed(&answer), "{descriptor}: {answer}");
    }
    // As must who asks by the mapping.
    let answer = session.ask("sync 1");
    assert!(failed(&answer), "{answer}");
    session.end();
}

// ---- storage that stands still --------------------------------------------------------------------

/// A frozen file system, thawed when it is dropped.
struct Frozen<'m>(&'m Mount);

impl Frozen<'_> {
    fn new(mount: &Mount) -> Option<Frozen<'_>> {
        let frozen = Command::new("fsfreeze").arg("-f").arg(mount.path()).status();
        frozen.is_ok_and(|status| status.success()).then_some(Frozen(mount))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0.path()).status();
    }
}

/// Everybody who needed a frame waited for the storage of somebody else's dirty pages, for as long as that
/// stood still.
#[test]
fn a_frozen_file_system_holds_up_its_own_files_only() {
    if !ready() {
        return;
    }
    let place = Scratch::new("frozen");
    let Some(mount) = Mount::image(&place, &place.file("image"), "ext4", 16 << 10) else { return };
    let written = mount.file("written");
    std::fs::write(&written, vec![1u8; 200 * PAGE as usize]).unwrap();
    let read = place.put("read", vec![2u8; 400 * PAGE as usize]);
    let budget = Budget::kib(1024).files(format!("{}/**", place.path().display()));
    let mut session = Session::managed(&place, budget);
    session.expect(&format!("open 1 {} rw", written.display()), "ok");
    session.expect("map 1 1 0 819200 rw shared", "ok");
    session.expect(&format!("open 2 {} r", read.display()), "ok");
    session.expect("map 2 2 0 1638400 r shared", "ok");
    let Some(frozen) = Frozen::new(&mount) else {
        return runs::skip("file systems cannot be frozen here");
    };
    // As many as may be dirty of it are not exceeded.
    for page in 0..80 {
        session.expect(&format!("put 1 {} 3", page * PAGE), "ok");
    }
    for _ in 0..3 {
        for page in 0..400 {
            session.expect(&format!("get 2 {}", page * PAGE), "2");
        }
    }
    drop(frozen);
    session.expect("sync 1", "ok");
    for page in 0..200 {
        session.expect(&format!("get 1 {}", page * PAGE), if page < 80 { "3" } else { "1" });
    }
    let done = session.end().ok();
    assert!(done.total("evictions") > 400, "{:?}", done.stats);
    let content = std::fs::read(&written).unwrap();
    let pages = content.chunks(PAGE as usize).map(|page| page[0]);
    assert!(pages.enumerate().all(|(page, byte)| byte == if page < 80 { 3 } else { 1 }));
}

// ---- changes by others ---------------------------------------------------------------------------

/// Asks until the answer is this: a change by others is seen soon, not at once.
#[track_caller]
fn soon(session: &mut Session, line: &str, answer: &str) {
    let start = Instant::now();
    loop {
        let got = session.ask(line);
        if got == answer {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "`{line}` is {got} still, not {answer}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_file_that_others_truncate_is_not_brought_back() {
    if !ready() {
        return;
    }
    for shared_memory in [false, true] {
        let place = match shared_memory {
            false => Scratch::new("truncated"),
            true => Scratch::inside(Path::new("/dev/shm"), "truncated"),
        };
        let path = place.put("f", vec![7u8; 100 * PAGE as usize]);
        let mut session = Session::managed(&place, Budget::kib(1024));
        session.expect("open 1 f rw", "ok");
        session.expect("map 1 1 0 409600 rw shared", "ok");
        for page in 0..100 {
            session.expect(&format!("put 1 {} 8", page * PAGE), "ok");
        }
        // By a plain process, in the middle of a page.
        let outside = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        outside.set_len(10 * PAGE + 50).unwrap();
        soon(&mut session, &format!("get 1 {}", 20 * PAGE), "SIGBUS");
        session.expect(&format!("put 1 {} 1", 11 * PAGE), "SIGBUS");
        session.expect(&format!("get 1 {}", 10 * PAGE), "8");
        session.expect(&format!("get 1 {}", 10 * PAGE + 50), "0");
        session.expect("size 1", &(10 * PAGE + 50).to_string());
        session.expect("sync 1", "ok");
        assert_eq!(path.metadata().unwrap().len(), 10 * PAGE + 50);
        // Longer again: zeros, and no old page.
        outside.set_len(30 * PAGE).unwrap();
        soon(&mut session, &format!("get 1 {}", 20 * PAGE), "0");
        session.expect(&format!("put 1 {} 9", 20 * PAGE + 1), "ok");
        session.end().ok();
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), 30 * PAGE as usize);
        for (page, byte) in content.iter().step_by(PAGE as usize).enumerate() {
            assert_eq!(*byte, if page <= 10 { 8 } else { 0 }, "page {page}");
        }
        assert_eq!(content[20 * PAGE as usize + 1], 9);
    }
}

#[test]
fn what_others_write_is_seen() {
    if !ready() {
        return;
    }
    let place = Scratch::new("rewritten");
    let path = place.put("f", vec![1u8; 50 * PAGE as usize]);
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    for page in 0..50 {
        session.expect(&format!("get 1 {}", page * PAGE), "1");
    }
    let outside = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    outside.write_all_at(&[2u8; 3 * PAGE as usize], 7 * PAGE).unwrap();
    soon(&mut session, &format!("get 1 {}", 8 * PAGE), "2");
    session.expect(&format!("get 1 {}", 10 * PAGE), "1");
    // A file opened anew shows the present content.
    outside.write_all_at(&[3u8; 10], 20 * PAGE).unwrap();
    session.expect("open 2 f r", "ok");
    session.expect("map 2 2 0 204800 r shared", "ok");
    session.expect(&format!("get 2 {}", 20 * PAGE), "3");
    session.expect(&format!("get 1 {}", 20 * PAGE), "3");
    // Replaced by rename: the old file stays mapped, the name is the new one.
    let new = place.put("g", vec![5u8; 10 * PAGE as usize]);
    std::fs::rename(new, &path).unwrap();
    session.expect(&format!("get 1 {}", 8 * PAGE), "2");
    session.expect("open 3 f r", "ok");
    session.expect("map 3 3 0 40960 r shared", "ok");
    session.expect("get 3 5", "5");
    // Lengthened: what is new can be touched in the mapping that was made before.
    let outside = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    session.expect("map 4 3 0 81920 r shared", "ok");
    session.expect(&format!("get 4 {}", 12 * PAGE), "SIGBUS");
    std::io::Write::write_all(&mut &outside, &[6u8; 5 * PAGE as usize]).unwrap();
    soon(&mut session, &format!("get 4 {}", 12 * PAGE), "6");
    session.end().ok();
}

/// What a program synced or wrote is in the file for others, at once.
#[test]
fn others_see_what_was_synced_and_written() {
    if !ready() {
        return;
    }
    let place = Scratch::new("synced");
    let path = place.put("f", vec![0u8; 50 * PAGE as usize]);
    let outside = std::fs::File::open(&path).unwrap();
    let byte = |at: u64| {
        let mut byte = [0u8];
        outside.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    };
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    session.expect(&format!("put 1 {} 1", 5 * PAGE), "ok");
    session.expect("sync 1", "ok");
    assert_eq!(byte(5 * PAGE), 1);
    session.expect(&format!("put 1 {} 2", 6 * PAGE), "ok");
    session.expect("fsync 1", "ok");
    assert_eq!(byte(6 * PAGE), 2);
    session.expect(&format!("pwrite 1 {} 10 3", 7 * PAGE), "10");
    assert_eq!(byte(7 * PAGE), 3);
    session.expect(&format!("get 1 {}", 7 * PAGE), "3");
    // Unmapped: soon.
    session.expect(&format!("put 1 {} 4", 8 * PAGE), "ok");
    session.expect("unmap 1", "ok");
    let start = Instant::now();
    while byte(8 * PAGE) != 4 {
        assert!(start.elapsed() < Duration::from_secs(5), "unmapped, and not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A record lock is where programs that share a file look at it.
    session.expect("map 2 1 0 204800 rw shared", "ok");
    session.expect(&format!("put 2 {} 5", 9 * PAGE), "ok");
    session.expect("lock 1", "ok");
    session.expect("close 1", "ok");
    session.end().ok();
    assert_eq!(byte(9 * PAGE), 5);
}

/// The second of two runs leaves the file to the kernel, and says so.
#[test]
fn a_file_has_one_manager() {
    if !ready() {
        return;
    }
    let place = Scratch::new("managers");
    place.put("f", vec![1u8; 20 * PAGE as usize]);
    let mut first = Session::managed(&place, Budget::kib(256));
    first.expect("open 1 f rw", "ok");
    first.expect("map 1 1 0 81920 rw shared", "ok");
    first.expect("put 1 5 2", "ok");
    first.expect("sync 1", "ok");
    let other = Scratch::new("managers-other");
    let budget = Budget::kib(256).files(format!("{}/**", place.path().display()));
    let mut second = Session::managed(&other, budget.clone());
    let path = place.file("f");
    second.expect(&format!("open 1 {} rw", path.display()), "ok");
    second.expect("map 1 1 0 81920 rw shared", "ok");
    second.expect("get 1 5", "2");
    let done = second.end().ok();
    assert_eq!(done.managed_files(), 0);
    let passed = done.stats["passed_through"].to_string();
    assert!(passed.contains("another pagekeeper run manages it"), "{passed}");
    assert!(done.stderr.contains("left to the kernel"), "{}", done.stderr);
    first.end().ok();
    // When the first has ended, the next one manages it.
    let mut third = Session::managed(&other, budget);
    third.expect(&format!("open 1 {} rw", path.display()), "ok");
    third.expect("map 1 1 0 81920 rw shared", "ok");
    third.expect("get 1 5", "2");
    assert_eq!(third.end().ok().managed_files(), 1);
}

/// Files of a memory file system have no direct I/O.
#[test]
fn files_of_a_memory_file_system_are_managed() {
    if !ready() {
        return;
    }
    let place = Scratch::inside(Path::new("/dev/shm"), "memory");
    for part in ["fork-shared", "moves", "ends", "buffers"] {
        let mut command = command(&place, Some(&Budget::kib(256)), programs());
        command.args([part, "."]);
        let done = finish(&place, &mut command, b"", LIMIT).ok();
        assert!(done.total("major_faults") > 0 && done.managed_files() > 0);
    }
}
