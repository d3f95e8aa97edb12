//! The threads that a manager needs once it manages something.
//!
//! They are started then, and not with the run: while it stands by there is nothing for them to do,
//! and to start and end them takes as long as executing a program.

use crate::manager::Manager;
use pagekeeper_sys::Errno;
use std::sync::Mutex;
use std::thread::JoinHandle;

/// Ends the process if a thread of the manager's panics: programs would wait for it, and for the locks
/// that it held, for ever. The holder has what they stored.
pub(crate) struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Starts a thread of the manager's, of this name.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Errno> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _all = EndsAll;
        work();
    });
    thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
}

/// Starts the threads, and keeps those that are to be waited for.
type Start = Box<dyn FnOnce(&mut Vec<JoinHandle<()>>) -> Result<(), Errno> + Send>;

#[derive(Default)]
struct State {
    start: Option<Start>,
    started: Option<Result<(), Errno>>,
    threads: Vec<JoinHandle<()>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Crew(Mutex<State>);

impl Crew {
    /// How to start them.
    pub(crate) fn set(&self, start: Start) {
        self.0.lock().expect("lock").start = Some(start);
    }

    /// Whether they were started.
    pub(crate) fn is_here(&self) -> bool {
        self.0.lock().expect("lock").started.is_some()
    }

    /// Starts them, unless that was done.
    fn call(&self) -> Result<(), Errno> {
        let state = &mut *self.0.lock().expect("lock");
        if let Some(start) = state.start.take() {
            state.started = Some(start(&mut state.threads));
        }
        // Without any, there is nobody to start.
        state.started.unwrap_or(Ok(()))
    }

    /// Starts none from now on; those that there are are the caller's to join.
    pub(crate) fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.0.lock().expect("lock");
        state.start = None;
        std::mem::take(&mut state.threads)
    }
}

impl Manager {
    /// Something is about to be managed: whoever works on that is there when this returns.
    ///
    /// # Errors
    /// A thread cannot be started: nothing may become managed.
    pub(crate) fn call_crew(&self) -> Result<(), Errno> {
        self.crew.call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn threads_are_started_once_and_none_after_the_end() {
        let started = Arc::new(AtomicU32::new(0));
        let crew = || {
            let (crew, started) = (Crew::default(), started.clone());
            crew.set(Box::new(move |threads| {
                let work = move || {
                    started.fetch_add(1, SeqCst);
                };
                threads.push(spawn("one", work)?);
                Ok(())
            }));
            crew
        };
        let called = crew();
        assert!(!called.is_here());
        assert_eq!((called.call(), called.call(), called.is_here()), (Ok(()), Ok(()), true));
        for thread in called.close() {
            thread.join().unwrap();
        }
        let closed = crew();
        assert!(closed.close().is_empty() && closed.call().is_ok() && closed.close().is_empty());
        assert_eq!(started.load(SeqCst), 1);
    }

    #[test]
    fn what_could_not_be_started_once_is_missing_for_good() {
        let crew = Crew::default();
        crew.set(Box::new(|threads| {
            threads.push(spawn("one", || {})?);
            Err(Errno::AGAIN)
        }));
        assert_eq!((crew.call(), crew.call()), (Err(Errno::AGAIN), Err(Errno::AGAIN)));
        assert_eq!(crew.close().len(), 1, "it is waited for all the same");
    }
}
