//! Files that are deleted give their space back when nobody uses them any more, and not before.

use crate::mounts::Mount;
use crate::runs::{self, Budget, LIMIT, Scratch, command, compiled, finish};

const PAGE: u64 = 4096;

fn program() -> std::path::PathBuf {
    compiled("letgo.c", &[], "letgo")
}

/// A run once kept every file open that it had managed, deleted or not: a program that made, used
/// and deleted temporary files filled the disk.
#[test]
fn files_made_and_deleted_one_after_the_other_fit_where_one_does() {
    if !runs::ready() {
        return;
    }
    const FILES: u64 = 2000;
    const BYTES: u64 = 16 * PAGE;
    for how in ["late", "early", "read"] {
        let place = Scratch::new(&format!("letgo-{how}"));
        // Room for a handful, on either kind of file system.
        let mounts = [
            Mount::tmpfs(&place, "small", 8 * BYTES / 1024),
            Mount::image(&place, &place.file("image"), "ext4", 4 << 10),
        ];
        for mount in mounts.into_iter().flatten() {
            let budget = Budget::kib(512).files(format!("{}/**", mount.path().display()));
            let mut command = command(&place, Some(&budget), program());
            command.args([how, mount.path().to_str().unwrap()]);
            command.args([FILES.to_string(), BYTES.to_string()]);
            let done = finish(&place, &mut command, b"", LIMIT * 2).ok();
            assert!(done.total("major_faults") >= FILES);
            // A file has up to four in the manager, and three in the holder.
            let descriptors: u64 = done.text().trim().parse().unwrap();
            assert!(descriptors < 100, "{descriptors} descriptors");
            assert_eq!(done.managed_files() as u64, FILES);
        }
    }
}

/// What the program says of each way in which somebody can still reach a deleted file.
#[track_caller]
pub(crate) fn all_are_kept(said: &str) {
    let has_nameless = !said.ends_with("no file without a name here\n");
    if !has_nameless {
        runs::skip("the file system has no O_TMPFILE");
    }
    let ways = if has_nameless { 11 } else { 10 };
    assert_eq!(said.matches(": kept\n").count(), ways, "{said}");
}

/// Whoever can still reach a deleted file finds in it what was stored: by a duplicate, a mapping, a
/// descriptor on its way through a socket, a forked child, another name.
#[test]
fn deleted_files_that_somebody_can_reach_are_kept() {
    if !runs::ready() {
        return;
    }
    let done = runs::same("letgo-keep", &Budget::kib(128), program(), &["keep", "."], |_| ());
    all_are_kept(&done.ok().text());
}

/// Files that are closed stay managed, but not all of them: each costs descriptors and memory. Those
/// that are let go of lose nothing, whoever opens them in that moment.
#[test]
fn of_many_files_those_in_use_are_managed() {
    if !runs::ready() {
        return;
    }
    const FILES: usize = 1800;
    const PROCESSES: usize = 4;
    let place = Scratch::new("letgo-visit");
    for kib in [256, 8192] {
        let _ = std::fs::remove_dir_all(place.path());
        std::fs::create_dir_all(place.path()).unwrap();
        let budget = Budget::kib(kib).files(format!("{}/file*", place.path().display()));
        let mut command = command(&place, Some(&budget), program());
        command.args(["visit", place.path().to_str().unwrap()]);
        command.args([FILES.to_string(), "2500".to_owned(), PROCESSES.to_string()]);
        let done = finish(&place, &mut command, b"", LIMIT * 2).ok();
        let descriptors: u64 = done.text().trim().parse().unwrap();
        // Four for each of 1,024 and a few more.
        assert!(descriptors < 4648, "{descriptors} descriptors");
        assert_eq!(done.managed_files(), FILES);
        let counts: Vec<Vec<u8>> =
            (0..PROCESSES).map(|who| place.get(&format!("counts{who}"))).collect();
        for no in 0..FILES {
            let file = place.get(&format!("file{no}"));
            for (who, counts) in counts.iter().enumerate() {
                let at = who * 3 * PAGE as usize + 40;
                assert_eq!(file[at..at + 8], counts[no * 8..no * 8 + 8], "file {no}, {who}");
            }
        }
    }
}

/// rsync of many times its memory took a fault for each page in the end: the state of all the files
/// that it had read took the frames, since of files that nobody uses 512 stay managed.
#[test]
fn files_that_were_read_once_leave_frames_for_others() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("letgo-once");
    // 160 times the memory.
    for no in 10..50 {
        std::fs::File::create(place.file(&format!("file{no}"))).unwrap().set_len(4 << 20).unwrap();
    }
    let budget = Budget::kib(1024).files(format!("{}/file*", place.path().display()));
    let mut command = command(&place, Some(&budget), "sh");
    command.args(["-c", "cat file* | cksum"]);
    let done = finish(&place, &mut command, b"", LIMIT).ok();
    let faults = |no: usize| {
        let files = done.stats["files"].as_array().unwrap();
        let file = files.iter().find(|f| f["name"].as_str().unwrap().ends_with(&format!("{no}")));
        file.unwrap()["major_faults"].as_u64().unwrap()
    };
    assert!(faults(49) <= 2 * faults(10) + 8, "{} faults, {} before", faults(49), faults(10));
}

/// Of a thousand small files that nobody used, 512 stayed: the others were let go of, and with them what
/// was in memory, of which there was enough.
#[test]
fn files_stay_while_frames_are_free() {
    const FILES: u64 = 1000;
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("letgo-room");
    for no in 0..FILES {
        std::fs::write(place.file(&format!("file{no}")), format!("{no}")).unwrap();
    }
    let budget = Budget::kib(8192).files(format!("{}/file*", place.path().display()));
    let mut command = command(&place, Some(&budget), "sh");
    command.args(["-c", "for pass in 1 2 3; do cat file*; done | cksum"]);
    let done = finish(&place, &mut command, b"", LIMIT).ok();
    assert_eq!(done.total("major_faults"), FILES);
}
