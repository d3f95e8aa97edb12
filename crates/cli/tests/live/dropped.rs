//! Programs that root starts and that become another user's, as those of containers do.

use crate::runs::{self, Budget, NOBODY, Scratch, compiled};
use std::os::unix::fs::chown;

/// postgres did not start: the manager's programs were taken to be root's, so that one that was not
/// got no userfaultfd, and mappings of what others had read were refused (ENOMEM): of its shared
/// memory, too, which is no file worth managing. Nor could it truncate what it had not opened.
#[test]
fn who_gave_roots_rights_up_has_managed_files() {
    if !runs::ready() {
        return;
    }
    if !runs::is_root() {
        return runs::skip("only root can become another user");
    }
    let program = compiled("dropped.c", &[], "dropped");
    let open = Scratch::new("dropped-open");
    if !runs::is_open_to_users(open.path()) {
        return;
    }
    for how in ["stay", "exec"] {
        let prepare = |place: &Scratch| {
            let bytes: Vec<u8> = (0..300 * 4096_u32).map(|n| (n >> 3) as u8 ^ n as u8).collect();
            let file = place.put("f", bytes);
            for path in [file.as_path(), place.path()] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        };
        // Whatever there is, shared memory too.
        let budget = Budget::kib(256).files("*");
        let name = format!("dropped-{how}");
        let done = runs::same(&name, &budget, &program, &[how, "f"], prepare).ok().pressed();
        assert!(done.text().contains("shared 0, 1 y"), "{}", done.text());
        assert!(!done.stderr.contains("pass through"), "{}", done.stderr);
        assert!(done.total("major_faults") >= 30, "{} faults", done.total("major_faults"));
    }
}
