//! Files that processes which ended had stored to, until they are written back.
//!
//! A program that is begun then may read them without this library's help (the dynamic linker does), so it waits
//! for what ended before. However many processes end, a file has one writer: storage that stands still must
//! not take all workers.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[derive(Default, Debug)]
struct Known {
    /// How many ends were noted, of all files.
    noted: u64,
    files: HashMap<u32, Ended>,
}

/// Of a file, by [`Known::noted`].
#[derive(Debug)]
struct Ended {
    /// It was written back after all ends before this one.
    first: u64,
    /// The last end that concerns it.
    last: u64,
}

#[derive(Default, Debug)]
pub(crate) struct Ends {
    known: Mutex<Known>,
    written: Condvar,
}

impl Ends {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("ends")
    }

    /// A process ended that had stored to a file. True: [`write`](Self::write) is to be called; else somebody is
    /// about it, and begins anew.
    pub(crate) fn note(&self, file: u32) -> bool {
        let mut known = self.known();
        known.noted += 1;
        let last = known.noted;
        let is_new = !known.files.contains_key(&file);
        known.files.entry(file).or_insert(Ended { first: last, last }).last = last;
        is_new
    }

    /// Writes a file back until that was done after the last end.
    pub(crate) fn write(&self, file: u32, write_back: impl Fn()) {
        let last = |known: &Known| known.files.get(&file).map(|ended| ended.last);
        let mut next = last(&self.known());
        while let Some(before) = next {
            write_back();
            let mut known = self.known();
            next = last(&known).filter(|last| *last != before);
            if next.is_none() {
                known.files.remove(&file);
            } else if let Some(ended) = known.files.get_mut(&file) {
                ended.first = before + 1;
            }
            self.written.notify_all();
        }
    }

    /// Waits, for so long at most, until all is written back that was noted by now.
    pub(crate) fn settle(&self, at_most: Duration) {
        let known = self.known();
        let noted = known.noted;
        let is_left = |known: &mut Known| known.files.values().any(|ended| ended.first <= noted);
        drop(self.written.wait_timeout_while(known, at_most, is_left).expect("ends"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Instant;

    #[test]
    fn a_file_is_written_once_for_all_ends_before_and_again_for_those_meanwhile() {
        let ends = Ends::default();
        assert!(ends.note(1) && !ends.note(1) && ends.note(2));
        let writes = Cell::new(0);
        ends.write(1, || {
            writes.set(writes.get() + 1);
            if writes.get() == 1 {
                assert!(!ends.note(1) && !ends.note(1));
            }
        });
        assert_eq!(writes.get(), 2);
        ends.write(1, || panic!("nobody ended"));
        assert!(ends.note(1), "somebody is to be about it again");
    }

    #[test]
    fn who_settles_waits_for_the_ends_before() {
        let ends = Ends::default();
        let waits = || {
            let start = Instant::now();
            ends.settle(Duration::from_millis(20));
            start.elapsed() >= Duration::from_millis(20)
        };
        assert!(!waits());
        ends.note(1);
        assert!(waits());
        let rounds = Cell::new(0);
        ends.write(1, || {
            rounds.set(rounds.get() + 1);
            if rounds.get() < 3 {
                ends.note(1);
            }
            assert!(waits(), "it is not written yet");
        });
        assert!(!waits());
        std::thread::scope(|scope| {
            ends.note(2);
            let waiter = scope.spawn(|| ends.settle(Duration::from_secs(60)));
            ends.write(2, || std::thread::sleep(Duration::from_millis(10)));
            waiter.join().unwrap();
        });
    }
}
