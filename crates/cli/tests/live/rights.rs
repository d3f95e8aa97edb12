//! Who may do what, and what is refused: attacks on the memory files, programs that cannot be
//! reached, descriptors and locks that must stay the program's own.

use crate::runs::{self, Budget, LIMIT, Scratch, Session, command, compiled, finish};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The manager believed a client's word about how its descriptor was opened, and handed out a
/// writable memory file for one that may only read; and a client could read every managed file of
/// the run by its number, without a descriptor of it.
#[test]
fn nobody_gets_more_than_its_descriptors_allow() {
    if !runs::ready() {
        return;
    }
    if !runs::is_root() || !cfg!(target_arch = "x86_64") {
        return runs::skip("needs root, and x86-64");
    }
    let place = Scratch::new("attack");
    if !runs::is_open_to_users(place.path()) {
        return;
    }
    let public = place.put("public", vec![b'p'; 16 * 4096]);
    let secret = place.put("secret", vec![b's'; 16 * 4096]);
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let version = format!("-DWIRE_VERSION={}", pagekeeper_wire::VERSION);
    let attack = compiled("attack.c", &[&version], "attack");
    let mut session = Session::managed(&place, Budget::kib(256));
    session.expect("open 1 secret rw", "ok");
    session.expect("map 1 1 0 65536 rw shared", "ok");
    session.expect("put 1 5 115", "ok");
    session.expect("open 2 public rw", "ok");
    session.expect("map 2 2 0 65536 rw shared", "ok");
    session.expect("put 2 20480 112", "ok");
    let path = public.display();
    session.tell(&format!("run {} {path} && echo fine", attack.display()));
    let mut said = Vec::new();
    while said.last().is_none_or(|l: &String| l.parse::<i32>().is_err()) {
        said.push(session.answer());
    }
    assert_eq!(said, ["held", "fine", "0"]);
    // Nothing of it reached anybody else.
    let sum = session.ask("sum 2 0 65536");
    session.expect("open 3 public r", "ok");
    assert!(session.ask("pread 3 0 65536").ends_with(&sum));
    session.expect("get 2 1", "112");
    session.expect("get 1 5", "115");
    session.end().ok();
    assert_eq!(std::fs::read(&public).unwrap(), vec![b'p'; 16 * 4096]);
    assert_eq!(std::fs::read(&secret).unwrap(), vec![b's'; 16 * 4096]);
}

/// Protection of a read-only descriptor's mapping, also past the library, in a process that stays
/// root: its own view may change, nobody else's does.
#[test]
fn a_read_only_mapping_never_writes_the_file() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("read-only");
    let path = place.put("f", vec![1u8; 8 * 4096]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let mut session = Session::managed(&place, Budget::kib(128));
    session.expect("open 1 f r", "ok");
    session.expect("map 1 1 0 32768 r shared", "ok");
    session.expect("map 2 1 0 32768 rw shared", "EACCES");
    session.expect("get 1 100", "1");
    session.expect("protect 1 0 4096 rw", "EACCES");
    session.expect("put 1 100 9", "SIGSEGV");
    session.expect("map 3 1 0 32768 rw private", "ok");
    session.expect("put 3 100 9", "ok");
    session.expect("get 1 100", "1");
    session.expect("get 3 100", "9");
    session.end().ok();
    assert_eq!(std::fs::read(&path).unwrap(), vec![1u8; 8 * 4096]);
}

/// Mappings of a program that gave up its rights go on, and so do its children's.
#[test]
fn a_program_that_becomes_nobody_keeps_its_mappings() {
    if !runs::ready() || !runs::is_root() {
        return;
    }
    let place = Scratch::new("nobody");
    place.put("f", vec![1u8; 100 * 4096]);
    let mut session = Session::managed(&place, Budget::kib(128));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 409600 rw shared", "ok");
    session.expect("put 1 0 5", "ok");
    session.expect("user 65534", "ok");
    for page in 0..100 {
        session.expect(&format!("put 1 {} {page}", page * 4096 + 1), "ok");
    }
    session.expect("fork", "ok");
    for page in 0..100 {
        session.expect(&format!("get 1 {}", page * 4096 + 1), &page.to_string());
        session.expect(&format!("put 1 {} 7", page * 4096 + 2), "ok");
    }
    session.expect("sync 1", "ok");
    session.end().ok().pressed();
    let content = place.get("f");
    assert!((0..100).all(|p| content[p * 4096 + 1] == p as u8 && content[p * 4096 + 2] == 7));
}

// ---- refusals ------------------------------------------------------------------------------------

#[track_caller]
fn refused(program: &Path, reason: &str) {
    let place = Scratch::new("refused");
    let done = finish(&place, &mut command(&place, Some(&Budget::kib(256)), program), b"", LIMIT);
    assert_eq!(done.status.code(), Some(126), "{}", done.stderr);
    assert!(done.stderr.contains(reason), "{}", done.stderr);
    assert!(done.stdout.is_empty());
}

#[test]
fn programs_that_cannot_be_reached_are_refused() {
    if !runs::ready() {
        return;
    }
    refused(&compiled("driver.c", &["-static"], "static"), "static");
    let place = Scratch::new("setuid");
    let setuid = place.file("program");
    std::fs::copy(runs::driver(), &setuid).unwrap();
    if runs::is_root() {
        // For root itself the bit changes nothing; its owner has to be another.
        std::os::unix::fs::chown(&setuid, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(&setuid, std::fs::Permissions::from_mode(0o4755)).unwrap();
        refused(&setuid, "set");
    }
    let place = Scratch::new("unknown");
    let mut run = command(&place, Some(&Budget::kib(256)), "/nonexistent/program");
    assert_eq!(finish(&place, &mut run, b"", LIMIT).status.code(), Some(127));
    let small = Budget { bytes: 1000, ..Budget::kib(1) };
    let done = finish(&place, &mut command(&place, Some(&small), "true"), b"", LIMIT);
    assert!(!done.status.success() && done.stderr.contains("too small"), "{}", done.stderr);
}

/// A static child reads the file by itself: what was written to mappings before has to be in the
/// file when it starts, and the user is told.
/// What was written under us was open to be written as long as we had it, so that it could not be
/// executed ("Text file busy"): a program just compiled and stripped, for one.
#[test]
fn a_program_that_was_just_written_can_be_executed() {
    if !runs::ready() {
        return;
    }
    let script = "cat /bin/echo > p; chmod +x p; ./p one; cat /bin/cat > p; echo two | ./p
printf '#!/bin/sh\\necho three\\n' > s; chmod +x s; ./s; sh -c 'exec ./s'
cp p q; dd if=/bin/echo of=q bs=4096 conv=notrunc status=none; ./q four; ./q five; rm -f p; ls";
    let budget = Budget::kib(256);
    let done = runs::same("written-program", &budget, "sh", &["-c", script], |_| ()).ok();
    assert!(done.text().starts_with("one\ntwo\nthree\nthree\n"), "{}", done.text());
    assert!(done.managed_files() >= 3, "{} files", done.managed_files());
}

#[test]
fn a_static_child_finds_everything_in_the_files() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("static-child");
    place.put("f", vec![1u8; 50 * 4096]);
    let program = compiled("driver.c", &["-static"], "static");
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    for page in 0..50 {
        session.expect(&format!("put 1 {} {page}", page * 4096), "ok");
    }
    let mine = session.ask("sum 1 0 204800");
    let script = "open 1 f r\\npread 1 0 204800\\n";
    session.tell(&format!("run printf '{script}' | {}", program.display()));
    assert_eq!(session.answer(), "ok");
    assert_eq!(session.answer(), format!("204800 {mine}"));
    assert_eq!(session.answer(), "0");
    let done = session.end().ok();
    assert!(done.notes().contains("runs outside Pagekeeper"), "{}", done.notes());
}

/// What a shell executes from a vfork child, what is executed in another root, what cannot open the library
/// there, what its environment takes out of the run, and what the manager does not find by the path that it is
/// told found the file as it was before: the manager was not told, or looked in its own root, or nowhere.
#[test]
fn children_that_the_library_cannot_follow_find_what_was_stored() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("unfollowed");
    place.put("f", vec![1u8; 50 * 4096]);
    place.put("script", "open 1 f r\npread 1 0 204800\n");
    std::fs::create_dir(place.file("root")).unwrap();
    let program = compiled("driver.c", &["-static"], "static");
    std::fs::copy(program, place.file("root/static")).unwrap();
    std::fs::hard_link(place.file("f"), place.file("root/f")).unwrap();
    let library = Path::new(&runs::preload()).parent().unwrap().display().to_string();
    let hidden = format!("mount -t tmpfs none {library} && exec sh root/inner");
    place.put("root/inner", "cksum f > theirs");
    let driver = runs::driver().display().to_string();
    let executes = compiled("executes.c", &[], "executes").display().to_string();
    let off = format!("env PAGEKEEPER_DISABLE=1 {driver} <script");
    let off_in_shell = format!("PAGEKEEPER_DISABLE=1 {driver} <script; true");
    let run = runs::pagekeeper().display().to_string();
    let inner = format!("{run} run --policy lru --memory 1M -- {driver} <script");
    let odd = ["spawn", "at", "gone", "memory"].map(|way| format!("{executes} {way} root <script"));
    let mut ways = vec!["root/static <script; true", &off, &off_in_shell, &inner];
    ways.extend(odd.iter().map(String::as_str));
    let by_number = ["/proc/self/fd", "/dev/fd", "/proc/thread-self/fd"]
        .map(|place| format!("exec 7<root/static; {place}/7 <script; true"));
    ways.extend(by_number.iter().map(String::as_str));
    let hidden = format!("unshare --mount sh -c '{hidden}'");
    let is_root = runs::is_root()
        && std::process::Command::new("unshare")
            .args(["--mount", "true"])
            .status()
            .is_ok_and(|status| status.success());
    if is_root {
        ways.extend(["chroot root /static <script", &hidden]);
    }
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    for (round, way) in ways.iter().enumerate() {
        for page in 0..50 {
            session.expect(&format!("put 1 {} {}", page * 4096 + round, page + 1), "ok");
        }
        let mine = session.ask("sum 1 0 204800");
        session.tell(&format!("run {way}"));
        if *way == hidden {
            assert_eq!(session.answer(), "0", "{way}");
            session.expect("run cksum f > ours", "0");
            assert_eq!(place.get("theirs"), place.get("ours"), "{way}");
        } else {
            let answers = [(); 3].map(|()| session.answer());
            assert_eq!(answers, ["ok", &format!("204800 {mine}"), "0"], "{way}");
        }
    }
    let done = session.end().ok();
    assert!(done.notes().contains("statically linked"), "{}", done.notes());
    assert!(
        !is_root || done.notes().contains("is not to be found in its root"),
        "{}",
        done.notes()
    );
}

/// Who is confined (AppArmor) may be kept from opening the library, which is decided as it is executed. Executed
/// from a vfork child, such a program found the file as it was before (733 of 733 pages), and what it wrote was
/// lost.
#[test]
fn a_child_that_is_confined_finds_what_was_stored() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("confined");
    place.put("f", vec![1u8; 50 * 4096]);
    place.put("script", "open 1 f rw\npread 1 0 204800\npwrite 1 100 1 9\n");
    std::fs::copy(runs::driver(), place.file("child")).unwrap();
    let profile = format!("pagekeeper-test-{}", std::process::id());
    let (at, child) = (place.path().display(), place.file("child").display().to_string());
    let rules = format!(
        "profile {profile} {child} {{ /usr/lib/** mr, /lib/** mr, /etc/** r, {at}/** rwk, {child} mr, }}"
    );
    place.put("rules", &rules);
    let parser = |how: &str| {
        let mut parser = std::process::Command::new("apparmor_parser");
        let done = parser.arg(how).arg(place.file("rules")).output();
        done.is_ok_and(|done| done.status.success())
    };
    if !parser("--replace") {
        return runs::skip("needs root, AppArmor and apparmor_parser");
    }
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    for page in 0..50 {
        session.expect(&format!("put 1 {} {}", page * 4096, page + 1), "ok");
    }
    let mine = session.ask("sum 1 0 204800");
    session.tell("run ./child <script; true");
    let answers = [(); 4].map(|()| session.answer());
    parser("--remove");
    assert_eq!(answers, ["ok", &format!("204800 {mine}"), "1", "0"]);
    session.expect("get 1 100", "9");
    let done = session.end();
    assert!(done.stderr.contains("cannot be preloaded"), "it was not confined: {}", done.stderr);
    assert_eq!(place.get("f")[100], 9);
}

/// What a child wrote that was not of the run was lost where its page was stored to: the page went over it.
#[test]
fn what_a_child_writes_that_left_the_run_stays() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("left");
    place.put("f", vec![1u8; 50 * 4096]);
    let mut session = Session::managed(&place, Budget::kib(1024));
    session.expect("open 1 f rw", "ok");
    session.expect("map 1 1 0 204800 rw shared", "ok");
    for page in 0..50 {
        session.expect(&format!("put 1 {} 2", page * 4096), "ok");
        let write = format!("dd of=f bs=1 seek={} conv=notrunc status=none", page * 4096 + 100);
        session.expect(&format!("run printf 3 | PAGEKEEPER_DISABLE=1 {write}"), "0");
    }
    let done = session.end().ok();
    assert!(done.notes().contains("its environment takes it out of the run"), "{}", done.notes());
    let content = place.get("f");
    let pages = content.chunks(4096).filter(|page| (page[0], page[100]) == (2, b'3'));
    assert_eq!(pages.count(), 50);
}

/// A library of this name that lies elsewhere was left in the environment: one of another build is refused by
/// the manager, and what it was loaded into worked on other content.
#[test]
fn a_child_is_followed_by_the_library_of_its_run() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("elsewhere");
    let library = runs::preload();
    let script = "LD_PRELOAD=$PWD/libpagekeeper_preload.so:libm.so.6 sh -c 'echo $LD_PRELOAD'
LD_PRELOAD=libm.so.6:$LD_PRELOAD sh -c 'echo $LD_PRELOAD'";
    std::fs::copy(&library, place.file("libpagekeeper_preload.so")).unwrap();
    let mut run = command(&place, Some(&Budget::kib(128)), "sh");
    let done = finish(&place, run.args(["-c", script]), b"", LIMIT).ok();
    // However it is spelt.
    let same = |name: &str| Path::new(name).canonicalize().ok() == library.canonicalize().ok();
    let spelt = |name: &str| if same(name) { "ours" } else { name }.to_owned();
    let text = done.text();
    let lists = text.lines().map(|list| Vec::from_iter(list.split(':').map(spelt)).join(":"));
    assert_eq!(Vec::from_iter(lists), ["ours:libm.so.6", "libm.so.6:ours"]);
}

/// The dynamic linker of another C library loads this one because it is told to, and fails. (Here it is glibc's
/// by another name.)
#[test]
fn a_child_with_another_dynamic_linker_is_not_told_of_the_library() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("linker");
    place.put("f", vec![1u8; 50 * 4096]);
    let own = if cfg!(target_arch = "x86_64") {
        "/lib64/ld-linux-x86-64.so.2"
    } else {
        "/lib/ld-linux-aarch64.so.1"
    };
    let linker = std::env::temp_dir().join(format!("ld-musl-{}.so.1", std::process::id()));
    let _ = std::fs::remove_file(&linker);
    std::os::unix::fs::symlink(own, &linker).unwrap();
    let source = place.put(
        "says.c",
        "#include <stdlib.h>\n#include <stdio.h>\n\
        int main(void) { char *list = getenv(\"LD_PRELOAD\"); puts(list ? list : \"none\"); }\n",
    );
    let says = place.file("says");
    let name = format!("-Wl,--dynamic-linker={}", linker.display());
    let built =
        std::process::Command::new("cc").arg(&source).args([&name, "-o"]).arg(&says).status();
    assert!(built.unwrap().success());
    // By vfork as a shell does, by fork, and by posix_spawn; and another library is left in the list.
    let script = "cat f >/dev/null; ./says; (exec ./says); env -u NONE ./says; \
        LD_PRELOAD=\"libm.so.6:$LD_PRELOAD\" ./says; \
        python3 -c 'import os; os.waitpid(os.posix_spawn(\"./says\", [\"says\"], os.environ), 0)'";
    let mut managed = command(&place, Some(&Budget::kib(256)), "sh");
    managed.args(["-c", script]);
    let done = finish(&place, &mut managed, b"", LIMIT).ok();
    let _ = std::fs::remove_file(&linker);
    assert_eq!(done.text(), "none\nnone\nnone\nlibm.so.6\nnone\n");
    assert!(done.notes().contains("runs outside Pagekeeper"), "{}", done.notes());
}

/// A child's path was looked up from the manager's directory: programs that were named relative to
/// their own were said to run outside.
#[test]
fn a_child_named_by_a_relative_path_is_followed() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("relative");
    std::fs::create_dir(place.file("sub")).unwrap();
    std::fs::copy(runs::programs(), place.file("sub/p")).unwrap();
    let mut run = command(&place, Some(&Budget::kib(128)), "sh");
    run.args(["-c", "cd sub && ./p pieces ."]);
    let done = finish(&place, &mut run, b"", LIMIT).ok().pressed();
    assert_eq!(done.notes(), "[]");
}

// ---- locks and descriptors -----------------------------------------------------------------------

/// Closing any descriptor of a file drops a process's record locks on it; none of ours may.
#[test]
fn record_locks_survive_what_the_library_does() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("locks");
    place.put("f", vec![1u8; 100 * 4096]);
    let mut session = Session::managed(&place, Budget::kib(64));
    session.expect("open 1 f rw", "ok");
    session.expect("lock 1", "ok");
    session.expect("map 1 1 0 409600 rw shared", "ok");
    for page in 0..100 {
        session.expect(&format!("put 1 {} 3", page * 4096), "ok");
    }
    session.expect("pread 1 0 10", &session_sum(&mut Session::bare(&place), "pread 1 0 10"));
    session.expect("sync 1", "ok");
    // Another process, managed or not, finds it locked.
    let mut other = Session::bare(&place);
    other.expect("open 1 f rw", "ok");
    other.expect("lock 1", "EAGAIN");
    session.expect("unmap 1", "ok");
    other.expect("lock 1", "EAGAIN");
    session.expect("close 1", "ok");
    other.expect("lock 1", "ok");
    session.end().ok();
}

fn session_sum(bare: &mut Session, line: &str) -> String {
    bare.expect("open 1 f r", "ok");
    bare.ask(line)
}

/// A program that closes every descriptor it does not know, and one that uses the highest numbers.
#[test]
fn a_program_may_close_all_descriptors() {
    if !runs::ready() || !runs::python().is_file() {
        return;
    }
    let script = "
import mmap, os
fd = os.open('f', os.O_RDWR)
m = mmap.mmap(fd, 0)
os.closerange(3, 100000)
for i in range(100):
    m[i * 4096] = i
fd = os.open('f', os.O_RDWR)
print(fd, os.pread(fd, 1, 99 * 4096), os.pwrite(fd, b'x', 7))
n = mmap.mmap(fd, 0)
print(n[7], n[50 * 4096], m[7])
if os.fork() == 0:
    os.closerange(0, 100000)
    m[20 * 4096 + 5] = 200
    os._exit(3)
print(os.wait()[1] >> 8, n[20 * 4096 + 5])
";
    let prepare = |place: &Scratch| {
        place.put("f", vec![1u8; 100 * 4096]);
        place.put("script.py", script);
    };
    let budget = Budget::kib(128);
    runs::same("closes", &budget, runs::python(), &["script.py"], prepare).ok().pressed();
}

/// The manager's name is another network namespace's: a child in one of its own was ended, or worked on
/// other content if it was executed there, and what it stored was lost.
#[test]
fn a_child_in_another_network_namespace_shares_what_is_managed() {
    if !runs::ready() || !runs::is_root() {
        return;
    }
    let program = runs::compiled("networks.c", &["-O2"], "networks");
    for how in ["executes", "itself", "forks"] {
        works_in_network(&program, how, "");
    }
}

/// What sandboxes do: in a namespace of users, or with `/proc` of its own, a child in another network
/// namespace did not find the manager's second way in either.
#[test]
fn a_child_in_a_sandbox_shares_what_is_managed() {
    if !runs::ready() || !runs::is_root() {
        return;
    }
    let sandbox =
        std::process::Command::new("unshare").args(["-U", "-n", "-p", "-f", "true"]).status();
    if !sandbox.is_ok_and(|status| status.success()) {
        eprintln!("skipped: namespaces of users are not to be had here");
        return;
    }
    let program = runs::compiled("networks.c", &["-O2"], "networks");
    // Some close all that they find before they execute anything: what leads to the manager, too.
    for how in ["executes", "itself", "forks", "clones", "closes", "marks"] {
        works_in_network(&program, how, "u");
        works_in_network(&program, how, "up");
    }
}

fn works_in_network(program: &std::path::Path, how: &str, kinds: &str) {
    let prepare = |place: &Scratch| drop(place.put("file", vec![0; 64 * 4096]));
    let arguments = [how, "file", kinds];
    let place = format!("networks{kinds}");
    let done = runs::same(&place, &Budget::kib(128), program, &arguments, prepare).ok();
    assert_eq!(done.text(), "ok\n", "{how} {kinds}");
    assert!(!done.stderr.contains("from the manager"), "{how} {kinds}: {}", done.stderr);
    assert!(done.total("evictions") > 0, "{how} {kinds}");
}
