//! Segments that somebody works on who has no handle of them: the write-back thread, a flush of a whole
//! cache.
//!
//! A visitor may be the last to hold a segment, and closes it then, later than whoever dropped the last
//! handle. So that one waits for visitors.

use crate::library::segment::Inner;
use crate::port::FileNo;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, Weak};

thread_local! {
    /// Visits of this thread, which does not wait for itself.
    static VISITS: Cell<u32> = const { Cell::new(0) };
}

/// Who visits what.
#[derive(Default)]
pub(crate) struct Visits {
    visited: Mutex<Vec<FileNo>>,
    changed: Condvar,
}

/// A segment that is held for as long as this lives.
pub(crate) struct Visit<'a> {
    segment: Option<Arc<Inner>>,
    no: FileNo,
    visits: &'a Visits,
}

impl Visits {
    /// Begins to work on a segment, if it is not closed.
    pub(crate) fn begin(&self, no: FileNo, segment: &Weak<Inner>) -> Option<Visit<'_>> {
        VISITS.set(VISITS.get() + 1);
        // Before it is held: who drops the last handle then waits until it is not.
        self.visited.lock().expect("visited").push(no);
        let visit = Visit { segment: segment.upgrade(), no, visits: self };
        visit.segment.is_some().then_some(visit)
    }

    /// Waits until nobody visits a segment.
    pub(crate) fn await_end(&self, no: FileNo) {
        if VISITS.get() > 0 {
            return;
        }
        let visited = self.visited.lock().expect("visited");
        drop(self.changed.wait_while(visited, |visited| visited.contains(&no)).expect("visited"));
    }
}

impl Deref for Visit<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        self.segment.as_deref().expect("held until it is dropped")
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        drop(self.segment.take());
        let mut visited = self.visits.visited.lock().expect("visited");
        if let Some(at) = visited.iter().position(|no| *no == self.no) {
            visited.swap_remove(at);
        }
        self.visits.changed.notify_all();
        VISITS.set(VISITS.get() - 1);
    }
}
