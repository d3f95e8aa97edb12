//! Processes that have to wait until the manager has a descriptor or a thread for them.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Who is sent away comes again within milliseconds: after so long a pause nobody waited.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After so long they are told of.
const TOLD_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Since {
    first: Instant,
    last: Instant,
    why: String,
    is_told: bool,
}

#[derive(Default, Debug)]
pub(crate) struct Waiting(Mutex<Option<Since>>);

impl Waiting {
    /// A connection was sent away.
    pub(crate) fn note(&self, why: &str, now: Instant) {
        let mut since = self.0.lock().expect("waiting");
        match since.as_mut().filter(|since| now.duration_since(since.last) < PAUSE_MAX) {
            Some(since) => since.last = now,
            None => {
                *since = Some(Since { first: now, last: now, why: why.to_owned(), is_told: false })
            }
        }
    }

    /// What people are to be told, once, of those that go on waiting.
    pub(crate) fn complaint(&self, now: Instant) -> Option<String> {
        let mut since = self.0.lock().expect("waiting");
        let since = since.as_mut().filter(|since| !since.is_told)?;
        let waits = now.duration_since(since.last) < PAUSE_MAX;
        if !waits || since.last.duration_since(since.first) < TOLD_AFTER {
            return None;
        }
        since.is_told = true;
        Some(format!(
            "processes wait for the manager, and go on when others end: {} (each takes some four descriptors and a \
             thread of the manager's: ulimit -n, ulimit -u)",
            since.why
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_long_is_told_of_once() {
        let waiting = Waiting::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        for ms in (0..5100).step_by(100) {
            waiting.note("no more threads", at(ms));
            assert_eq!(waiting.complaint(at(ms)).is_some(), ms == 5000, "{ms}");
        }
        // One that waits a moment, later.
        waiting.note("no more threads", at(9000));
        assert_eq!(waiting.complaint(at(9100)), None);
        waiting.note("no more threads", at(20_000));
        assert_eq!(waiting.complaint(at(20_000)), None);
    }
}
