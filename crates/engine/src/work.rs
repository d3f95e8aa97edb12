//! The manager's worker threads and their queue.

use crate::core::Fault;
use crate::engine::Deferred;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

/// Something for a worker.
#[derive(Debug)]
pub(crate) enum Work {
    /// A fault to serve.
    Fault(Fault),
    /// Fetching ahead, unmapping for sampling.
    Deferred(Deferred),
    /// Heap memory that was unmapped.
    Drop(crate::heap::Orphan),
    /// The heap of a process that is gone.
    Retire(u32),
    /// Letting go of deleted files.
    LetGo,
    /// Letting go of files that nobody uses.
    LetIdleGo,
    /// Writing a file's dirty pages back.
    Flush(u32),
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    idle: usize,
    closed: bool,
}

/// A queue that workers wait on. Faults go first: a program waits for them.
#[derive(Debug)]
pub(crate) struct Workers {
    queue: Mutex<Queue>,
    ready: Condvar,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        Workers { queue: Mutex::new(Queue::default()), ready: Condvar::new() }
    }

    pub(crate) fn push(&self, work: Work) {
        let mut queue = self.queue.lock().expect("lock");
        match work {
            Work::Fault(_) => queue.work.push_front(work),
            _ => queue.work.push_back(work),
        }
        if queue.idle > 0 {
            self.ready.notify_one();
        }
    }

    /// The next work; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock().expect("lock");
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.ready.wait(queue).expect("lock");
            queue.idle -= 1;
        }
    }

    pub(crate) fn close(&self) {
        self.queue.lock().expect("lock").closed = true;
        self.ready.notify_all();
    }
}
