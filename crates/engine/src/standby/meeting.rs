//! A file that several processes have mapped from the kernel is taken over by all of them, or by none.
//!
//! Each has to be in the preload library by then: one that is on its way, and one that goes on with the kernel's
//! pages, would show what the others do not. So whoever is about to take a file's first mapping over waits for
//! the others, as long as these may be expected to come.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// How often it is looked who is missing.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// For so long somebody may be found to wait, each time that it is looked.
const WAITING_MAX: Duration = Duration::from_millis(50);

/// Who of those that have a file mapped is about to take it over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attendance {
    /// All are.
    Complete,
    /// The others execute programs, and may be sent for, or are on their way.
    Coming,
    /// One waits in a system call, nobody knows for how long.
    Waiting,
    /// What one of those that are there has begun meanwhile makes it impossible.
    Refused,
}

/// Of each file, by its inode, who is about to take it over.
#[derive(Default, Debug)]
pub(super) struct Meetings {
    of: Mutex<HashMap<u64, Meeting>>,
    changed: Condvar,
}

#[derive(Default, Debug)]
struct Meeting {
    present: HashSet<u32>,
    /// Somebody looks who is missing.
    is_led: bool,
    /// Whether it is taken over, once that is known.
    verdict: Option<bool>,
}

impl Meetings {
    /// A process is about to take a file over, and returns with the others, by then at the latest: whether all
    /// do. Who comes first looks who is missing beside those that are there.
    pub(super) fn meet(
        &self,
        inode: u64,
        pid: u32,
        until: Instant,
        mut look: impl FnMut(&HashSet<u32>) -> Attendance,
    ) -> bool {
        let mut of = self.of.lock().expect("lock");
        let meeting = of.entry(inode).or_default();
        if meeting.verdict.is_none() {
            meeting.present.insert(pid);
        }
        let leads = !std::mem::replace(&mut meeting.is_led, true);
        let mut waiting_since = None;
        loop {
            let meeting = of.entry(inode).or_default();
            if let Some(verdict) = meeting.verdict {
                return verdict && meeting.present.contains(&pid);
            }
            if !leads {
                of = self.changed.wait(of).expect("lock");
                continue;
            }
            let present = meeting.present.clone();
            drop(of);
            let attendance = look(&present);
            of = self.of.lock().expect("lock");
            let now = Instant::now();
            let is_late = match attendance {
                Attendance::Waiting => *waiting_since.get_or_insert(now) + WAITING_MAX <= now,
                _ => {
                    waiting_since = None;
                    false
                }
            };
            let verdict = match attendance {
                Attendance::Complete => Some(true),
                Attendance::Coming | Attendance::Waiting => {
                    (is_late || now >= until).then_some(false)
                }
                Attendance::Refused => Some(false),
            };
            if verdict.is_some() {
                let meeting = of.entry(inode).or_default();
                meeting.verdict = meeting.verdict.or(verdict);
                self.changed.notify_all();
            } else {
                of = self.changed.wait_timeout(of, LOOK_EVERY).expect("lock").0;
            }
        }
    }

    /// One of them cannot take a file over: none does, if that is not decided yet.
    pub(super) fn refuse(&self, inode: u64) {
        self.of.lock().expect("lock").entry(inode).or_default().verdict.get_or_insert(false);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    const FILE: u64 = 12;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Who is missing of these, as long as there is a process.
    fn of(all: &[u32]) -> impl Fn(&HashSet<u32>) -> Attendance + Clone + Send {
        let all = all.to_vec();
        move |present| match all.iter().all(|pid| present.contains(pid)) {
            true => Attendance::Complete,
            false => Attendance::Coming,
        }
    }

    #[test]
    fn all_take_a_file_over_once_the_last_has_come() {
        let (meetings, all) = (Meetings::default(), of(&[1, 2, 3]));
        let is_last = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for pid in [1, 2] {
                let (meetings, all, is_last) = (&meetings, all.clone(), &is_last);
                scope.spawn(move || {
                    assert!(meetings.meet(FILE, pid, soon(), all));
                    assert!(is_last.load(SeqCst));
                });
            }
            std::thread::sleep(Duration::from_millis(30));
            is_last.store(true, SeqCst);
            assert!(meetings.meet(FILE, 3, soon(), &all));
        });
        // Asked again, as who lacks a descriptor is.
        assert!(meetings.meet(FILE, 2, soon(), &all));
        assert!(!meetings.meet(FILE, 4, soon(), &all), "it was not there");
    }

    #[test]
    fn none_takes_a_file_over_that_one_cannot() {
        for before in [true, false] {
            let (meetings, all) = (Meetings::default(), of(&[1, 2]));
            if before {
                meetings.refuse(FILE);
            }
            std::thread::scope(|scope| {
                let first = scope.spawn(|| meetings.meet(FILE, 1, soon(), &all));
                std::thread::sleep(Duration::from_millis(10));
                meetings.refuse(FILE);
                assert!(!first.join().unwrap());
            });
            assert!(!meetings.meet(FILE, 2, soon(), &all));
        }
    }

    #[test]
    fn nobody_waits_for_ever() {
        for (attendance, until) in [
            (Attendance::Coming, Instant::now()),
            (Attendance::Waiting, soon()),
            (Attendance::Refused, soon()),
        ] {
            let meetings = Meetings::default();
            assert!(!meetings.meet(FILE, 1, until, |_| attendance));
            assert!(!meetings.meet(FILE, 2, soon(), |_| Attendance::Complete), "it comes too late");
        }
    }

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let meetings = Meetings::default();
        let mut looks = 0;
        let look = |_: &HashSet<u32>| {
            looks += 1;
            if looks < 3 { Attendance::Coming } else { Attendance::Complete }
        };
        assert!(meetings.meet(FILE, 1, soon(), look));
        assert_eq!(looks, 3);
    }
}
