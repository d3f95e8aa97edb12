//! Many writers on one file, killed, forked and moved meanwhile, each of whose stores is checked.
//! A short run of what `make stress` does for long (docs/safety.md).

use crate::runs::{self, Budget, LIMIT, Scratch, command, compiled, finish};

#[test]
fn many_writers_lose_nothing() {
    if !runs::ready() {
        return;
    }
    let stamps = compiled("stamps.c", &["-O2"], "stamps");
    for (kib, policy) in [(512, "clock"), (256, "mru")] {
        let place = Scratch::new("stamps");
        let expected = place.path().with_extension("expected");
        let mut run = command(&place, Some(&Budget::kib(kib).policy(policy)), &stamps);
        run.args(["run", "file"]).arg(&expected).args(["150000", "3", "2", "300"]);
        let done = finish(&place, &mut run, b"", LIMIT * 2).ok().pressed();
        eprint!("{}", done.text());
        assert_eq!(done.total("failed_faults"), 0);
        // What is on storage now, without a manager.
        let mut check = command(&place, None, &stamps);
        check.args(["check", "file"]).arg(&expected);
        finish(&place, &mut check, b"", LIMIT).ok();
        let _ = std::fs::remove_file(expected);
    }
}
