//! What ends a process, seen from outside: each check is of a child in one of the `roles`.

use crate::library_model::PAGE;
use crate::roles::ROLE;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// Runs the test of [`roles`](crate::roles) in a process of its own, in a role.
fn child(role: &str, before: &[&str]) -> ExitStatus {
    let own = std::env::current_exe().unwrap();
    let mut command = match before {
        [] => Command::new(&own),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&own);
            command
        }
    };
    command.args(["--exact", "roles::in_a_process_of_its_own", "--nocapture", "--test-threads=1"]);
    let output = command.env(ROLE, role).output().unwrap();
    println!("{role}: {}", String::from_utf8_lossy(&output.stdout));
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

fn unless_skipped(status: ExitStatus, check: impl FnOnce(ExitStatus)) {
    if status.code() == Some(77) {
        println!("skipped: the fault path is missing here");
    } else {
        check(status);
    }
}

#[test]
fn what_cannot_be_served_is_sigbus() {
    for path in ["thread", "inline"] {
        let small = ["unreadable", "left", "truncated"].map(|what| (what, PAGE));
        let large = ["unreadable", "left", "cut", "short"].map(|what| (what, 64 << 10));
        for (what, page) in small.into_iter().chain(large).chain([("unreadable", 2 << 20)]) {
            unless_skipped(child(&format!("{path} {what} {page}"), &[]), |status| {
                assert_eq!(status.signal(), Some(libc::SIGBUS), "{path} {what} {page}: {status}");
            });
        }
        unless_skipped(child(&format!("{path} handled {PAGE}"), &[]), |status| {
            assert_eq!(status.code(), Some(42), "{path}: the program's own handler: {status}");
        });
        for what in [
            "tries_again 4096",
            "tries_again 65536",
            "copies_again 4096",
            "copies_again 65536",
            "grows 65536",
        ] {
            unless_skipped(child(&format!("{path} {what}"), &[]), |status| {
                assert!(status.success(), "{path}, {what}: {status}");
            });
        }
        unless_skipped(child(&format!("{path} forked {PAGE}"), &[]), |status| {
            assert!(status.success(), "{path}, forked: {status}");
        });
    }
}

/// A store that is refused room is told by a signal, which reaches no thread that waits in the kernel, or
/// blocks it: it waited for ever.
#[test]
fn who_hears_no_signal_is_refused_room_all_the_same() {
    for page in [PAGE, 64 << 10] {
        unless_skipped(child(&format!("thread full {page}"), &[]), |status| {
            assert!(status.success(), "{page}: {status}");
        });
        unless_skipped(child(&format!("thread full_and_deaf {page}"), &[]), |status| {
            assert_eq!(status.signal(), Some(libc::SIGBUS), "{page}: {status}");
        });
    }
}

/// A fault thread that had no descriptors to wait by ended at once, and nobody was told: the cache was
/// there, and who touched a region of it waited for ever.
#[test]
fn a_cache_that_cannot_serve_its_regions_is_none() {
    for path in ["thread", "inline"] {
        unless_skipped(child(&format!("{path} lacks_descriptors {PAGE}"), &[]), |status| {
            assert!(status.success(), "{path}: {status}");
        });
    }
}

#[test]
fn an_ordinary_user_may() {
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let may = Command::new(nobody[0]).args(&nobody[1..]).arg("true").status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: cannot become another user (needs root and setpriv)");
        return;
    }
    for path in ["explicit", "inline"] {
        unless_skipped(child(&format!("{path} works {PAGE}"), &nobody), |status| {
            assert!(status.success(), "{path}: {status}");
        });
    }
}
