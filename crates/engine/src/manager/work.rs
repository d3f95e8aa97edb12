//! The manager's worker threads and their queue.

use crate::engine::Deferred;
use crate::engine::core::Fault;
use crate::engine::together::Misses;
use pagekeeper_sys::Errno;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;

/// Most threads that are started for what can wait for others: more of them would only take turns.
const FEW: usize = 6;

/// Something for a worker.
#[derive(Debug)]
pub(crate) enum Work {
    /// A fault to serve.
    Fault(Fault),
    /// Faults whose pages are on their way.
    Misses(Box<Misses>),
    /// Fetching ahead, unmapping for sampling.
    Deferred(Deferred),
    /// Heap memory that is to be zeros.
    Clear(crate::engine::heap::Cleared),
    /// Heap memory that was unmapped.
    Drop(crate::engine::heap::Orphan),
    /// The heap of a process that is gone.
    Retire(u32),
    /// Letting go of deleted files.
    LetGo,
    /// Letting go of files that nobody uses.
    LetIdleGo,
    /// Reading faults while the thread that usually does waits for storage.
    StandIn,
    /// Writing a file's dirty pages back.
    Flush(u32),
    /// The same of one that a process stored to that has ended: see
    /// [`Manager::settle_ends`](crate::manager::Manager::settle_ends).
    FlushEnded(u32),
}

#[derive(Debug, Default)]
struct Queue {
    /// These go before all else, in the order in which they came: where there are more of them than
    /// threads, none is to wait until there are fewer.
    faults: VecDeque<Work>,
    work: VecDeque<Work>,
    idle: usize,
    closed: bool,
    hired: Vec<JoinHandle<()>>,
}

impl Queue {
    fn len(&self) -> usize {
        self.faults.len() + self.work.len()
    }
}

/// Starts a thread that takes work until there is none to come; `None` if there are too many.
type Start = Box<dyn Fn() -> Option<JoinHandle<()>> + Send + Sync>;

/// A queue that workers wait on. Faults go first: a program waits for them.
pub(crate) struct Workers {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// Most threads to hire, and how.
    hire: OnceLock<(usize, Start)>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Workers {
    pub(crate) fn new() -> Workers {
        Workers {
            queue: Mutex::new(Queue::default()),
            ready: Condvar::new(),
            hire: OnceLock::new(),
        }
    }

    /// Starts a thread now, and up to `most` when there is more work than idle ones: a run that
    /// has little to do costs no more than it needs.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn hire(&self, most: usize, start: Start) -> Result<(), Errno> {
        let (_, start) = self.hire.get_or_init(|| (most, start));
        let first = start().ok_or(Errno::AGAIN)?;
        self.queue.lock().expect("lock").hired.push(first);
        Ok(())
    }

    pub(crate) fn push(&self, work: Work) {
        let mut queue = self.queue.lock().expect("lock");
        if queue.len() >= queue.idle {
            // Without another thread it waits for those that there are.
            self.hire_up_to(FEW, &mut queue);
        }
        self.put(&mut queue, work);
    }

    /// The same, if a thread has nothing else to do, or one more can be had.
    ///
    /// # Errors
    /// The work: it would wait for other work to be done.
    pub(crate) fn offer(&self, work: Work) -> Result<(), Work> {
        let mut queue = self.queue.lock().expect("lock");
        if queue.len() < queue.idle || self.hire_up_to(usize::MAX, &mut queue) {
            self.put(&mut queue, work);
            return Ok(());
        }
        Err(work)
    }

    /// [`offer`](Self::offer)s faults whose pages are on their way; gives them back if nobody takes them.
    pub(crate) fn offer_misses(&self, misses: Misses) -> Option<Misses> {
        match self.offer(Work::Misses(Box::new(misses))) {
            Err(Work::Misses(misses)) => Some(*misses),
            _ => None,
        }
    }

    fn put(&self, queue: &mut Queue, work: Work) {
        match work {
            Work::Fault(_) | Work::Misses(_) => queue.faults.push_back(work),
            _ => queue.work.push_back(work),
        }
        if queue.idle > 0 {
            self.ready.notify_one();
        }
    }

    /// One more thread, if there are fewer than so many.
    fn hire_up_to(&self, some: usize, queue: &mut Queue) -> bool {
        let Some((most, start)) = self.hire.get() else { return false };
        if queue.closed || queue.hired.len() >= some.min(*most) {
            return false;
        }
        let hired = queue.hired.len();
        queue.hired.extend(start());
        queue.hired.len() > hired
    }

    /// The next work; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Work> {
        let mut queue = self.queue.lock().expect("lock");
        loop {
            let next = queue.faults.pop_front().or_else(|| queue.work.pop_front());
            if next.is_some() {
                return next;
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.ready.wait(queue).expect("lock");
            queue.idle -= 1;
        }
    }

    /// Ends the threads once the queue is empty; those that were hired are the caller's to join.
    pub(crate) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut queue = self.queue.lock().expect("lock");
        queue.closed = true;
        self.ready.notify_all();
        std::mem::take(&mut queue.hired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::sync::{Arc, Barrier};

    /// Workers that meet at a barrier for each work, so that each of `most` must have its own
    /// thread; `(workers, barrier, receiver of one message a thread started)`.
    fn meeting(most: usize) -> (Arc<Workers>, Arc<Barrier>, mpsc::Receiver<()>) {
        let workers = Arc::new(Workers::new());
        let barrier = Arc::new(Barrier::new(most + 1));
        let (started, starts) = mpsc::channel();
        let (weak, at) = (Arc::downgrade(&workers), barrier.clone());
        workers
            .hire(
                most,
                Box::new(move || {
                    let (workers, barrier) = (weak.upgrade()?, at.clone());
                    started.send(()).ok()?;
                    Some(std::thread::spawn(move || {
                        while workers.next().is_some() {
                            barrier.wait();
                        }
                    }))
                }),
            )
            .unwrap();
        (workers, barrier, starts)
    }

    #[test]
    fn more_work_than_idle_threads_starts_another_up_to_the_most() {
        let (workers, barrier, starts) = meeting(3);
        assert_eq!(starts.try_iter().count(), 1, "one is there from the start");
        for _ in 0..3 {
            // Each waits for the two others and for this one: with fewer threads this hangs.
            (0..3).for_each(|_| workers.push(Work::LetGo));
            barrier.wait();
        }
        assert_eq!(starts.try_iter().count(), 2, "two more, once");
        for thread in workers.close() {
            thread.join().unwrap();
        }
        workers.push(Work::LetGo);
        assert_eq!(starts.try_iter().count(), 0, "none is started after the end");
        assert!(workers.next().is_some() && workers.next().is_none(), "what was left is not lost");
    }

    /// The last came first: with more of them than threads, the first waited for as long as others came.
    #[test]
    fn faults_go_first_in_the_order_in_which_they_came() {
        let workers = Workers::new();
        let fault = |tid| {
            let fault = Fault { space: 0, addr: 0, write: false, protected: false, tid, told: 0 };
            Work::Fault(fault)
        };
        workers.push(Work::LetGo);
        workers.push(fault(1));
        workers.push(fault(2));
        workers.push(Work::Flush(7));
        workers.push(fault(3));
        assert!(workers.close().is_empty());
        let order: Vec<String> = std::iter::from_fn(|| workers.next())
            .map(|work| match work {
                Work::Fault(fault) => fault.tid.to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(order, ["1", "2", "3", "LetGo", "Flush(7)"]);
    }

    #[test]
    fn only_what_is_not_to_wait_has_many_threads_started() {
        let workers = Workers::new();
        let (starts, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(21)));
        let (count, end) = (starts.clone(), ended.clone());
        let start = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let end = end.clone();
            // It is busy all the time.
            Some(std::thread::spawn(move || _ = end.wait()))
        };
        workers.hire(20, Box::new(start)).unwrap();
        (0..30).for_each(|_| workers.push(Work::LetGo));
        assert_eq!(starts.load(Ordering::Relaxed), FEW);
        let fault = Fault { space: 0, addr: 0, write: false, protected: false, tid: 1, told: 0 };
        let taken = (0..30).filter(|_| workers.offer(Work::Fault(fault)).is_ok()).count();
        assert_eq!((taken, starts.load(Ordering::Relaxed)), (20 - FEW, 20));
        ended.wait();
        workers.close().into_iter().for_each(|thread| thread.join().unwrap());
    }
}
