//! Tells a waiting person, on stderr and only if that is a terminal, what is going on.

use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nobody needs to be told of what takes less.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows that something is being done, once it has taken two seconds, until dropped.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

impl Waiting {
    /// Something starts.
    pub(crate) fn for_end_of(what: impl Into<String>) -> Waiting {
        if !std::io::stderr().is_terminal() {
            return Waiting(None);
        }
        let what = what.into();
        let (done, is_done) = channel::<()>();
        let thread = std::thread::spawn(move || {
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let spinner = ProgressBar::new_spinner().with_message(what);
                spinner.enable_steady_tick(Duration::from_millis(120));
                let _ = is_done.recv();
                spinner.finish_and_clear();
            }
        });
        Waiting(Some((done, thread)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            let _ = thread.join();
        }
    }
}
