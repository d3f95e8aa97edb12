//! Tells a waiting person, on stderr and only if that is a terminal, what is going on.

use crate::report;
use crate::size::Size;
use crate::threads;
use indicatif::ProgressBar;
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nobody needs to be told of what takes less.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often what is shown changes.
const TICK: Duration = Duration::from_millis(120);

/// Shows that something is being done, once it has taken two seconds, until dropped.
pub(crate) struct Waiting(Option<(Sender<()>, JoinHandle<()>)>);

/// How much of a file was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    read: AtomicU64,
    /// 0 if unknown.
    total: AtomicU64,
}

impl Meter {
    /// The same file, counted.
    pub(crate) fn count<R: Read>(&self, file: R, total_bytes: u64) -> impl Read + use<R> {
        self.0.total.store(total_bytes, Ordering::Relaxed);
        Metered { file, bytes: Arc::clone(&self.0) }
    }

    fn shown(&self) -> String {
        let read = self.0.read.load(Ordering::Relaxed);
        match self.0.total.load(Ordering::Relaxed) {
            0 => Size(read).to_string(),
            total => format!("{} of {}", report::percent(read as f64 / total as f64), Size(total)),
        }
    }
}

struct Metered<R> {
    file: R,
    bytes: Arc<Bytes>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Waiting {
    /// Something starts.
    pub(crate) fn for_end_of(what: impl Into<String>) -> Waiting {
        Waiting::start(what.into(), None)
    }

    /// Something starts, which takes as long as a file is read.
    pub(crate) fn for_end_of_file(what: impl Into<String>, meter: &Meter) -> Waiting {
        Waiting::start(what.into(), Some(meter.clone()))
    }

    fn start(what: String, meter: Option<Meter>) -> Waiting {
        if !io::stderr().is_terminal() {
            return Waiting(None);
        }
        let (done, is_done) = channel::<()>();
        let work = move || {
            if is_done.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = ProgressBar::new_spinner().with_message(what.clone());
            spinner.enable_steady_tick(TICK);
            if let Some(meter) = meter {
                while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    spinner.set_message(format!("{what}: {}", meter.shown()));
                }
            }
            let _ = is_done.recv();
            spinner.finish_and_clear();
        };
        // Whoever gets no thread works without being watched.
        Waiting(threads::start("pk-progress", work).ok().map(|thread| (done, thread)))
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
