//! Who is ended when memory is short: a program rather than the manager, whose end is all programs'.
//!
//! The kernel ends what takes most memory, and in a cgroup that many small processes fill, that is the
//! manager by the few MiB of its own code (`oom_score_adj` in proc(5)).

use std::sync::OnceLock;

const PATH: &str = "/proc/self/oom_score_adj";
/// The manager's: it holds nothing that would be free without it.
const MANAGERS: i32 = -900;
/// What programs have more than the manager where its own cannot be lowered: a fifth of what there is counts
/// for a page more, which is more than the manager has in any cgroup that it starts in.
const MORE: i32 = 200;
const MOST: i32 = 1000;

/// What this process was given.
static BEFORE: OnceLock<Option<i32>> = OnceLock::new();

/// Has the manager spared; what the programs that it starts are to have instead of what they would
/// inherit. `is_bounded` says whether a cgroup could bound its memory.
pub(crate) fn manager(is_bounded: impl FnOnce() -> bool) -> Option<i32> {
    let read = || std::fs::read_to_string(PATH).ok()?.trim().parse().ok();
    let before = (*BEFORE.get_or_init(read))?;
    if before <= MANAGERS || std::fs::write(PATH, MANAGERS.to_string()).is_ok() {
        return Some(before);
    }
    // Anybody may raise it. Where memory is the whole machine's, other programs have a rank among these.
    is_bounded().then(|| (before + MORE).min(MOST))
}
