//! Notices when somebody outside changes a managed file: an inotify watch on each.
//!
//! Writes and truncations by system calls are seen within milliseconds, ours among them; which is
//! whose follows from the file's times, noted after each write of our own. Stores through somebody
//! else's mapping are not reported by the kernel: those are found when the file is next opened,
//! mapped, locked, synced or written back. Deleted files are noticed too ([`crate::letgo`]).

use crate::manager::Manager;
use crate::port::FileNo;
use pagekeeper_sys::Errno;
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

/// Bytes of events that are read at once.
const EVENTS_BYTES: usize = 4096;

/// How long nobody listens after a file was written to.
const PAUSE: Duration = Duration::from_millis(1);

/// The watches.
pub(crate) struct Watches {
    fd: OwnedFd,
    files: Mutex<HashMap<i32, FileNo>>,
}

impl Watches {
    pub(crate) fn new() -> Result<Watches, Errno> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        Ok(Watches { fd, files: Mutex::new(HashMap::new()) })
    }

    /// Watches the file behind a descriptor: who writes to it, who removes a name of it, and with
    /// `closing` who closes it.
    pub(crate) fn add(&self, no: FileNo, fd: BorrowedFd<'_>, closing: bool) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mut files = self.files.lock().expect("lock");
        let mut what = WatchFlags::MODIFY | WatchFlags::ATTRIB;
        what.set(WatchFlags::CLOSE, closing);
        let watch = inotify::add_watch(&self.fd, path.as_str(), what)?;
        files.insert(watch, no);
        Ok(())
    }

    /// Ends a file's watch.
    pub(crate) fn remove(&self, no: FileNo) {
        let mut files = self.files.lock().expect("lock");
        files.retain(|&watch, known| {
            if *known == no {
                let _ = inotify::remove_watch(&self.fd, watch);
            }
            *known != no
        });
    }
}

impl Manager {
    /// Follows changes until the descriptor fails. Runs on a thread of its own.
    pub(crate) fn watch_loop(&self) {
        let Some(watches) = &self.watches else { return };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = inotify::Reader::new(&watches.fd, &mut buffer);
        loop {
            let (watch, what) = match reader.next() {
                Ok(event) => (event.wd(), event.events()),
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.look_for_deleted();
            }
            let no = watches.files.lock().expect("lock").get(&watch).copied();
            let is_busy = what == ReadFlags::MODIFY;
            if let Some(no) = no {
                if what.contains(ReadFlags::MODIFY) {
                    self.engine.look_for_changes(no);
                }
                if what.contains(ReadFlags::ATTRIB) {
                    self.note_if_deleted(no);
                }
                if what.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE) {
                    self.may_be_unused(no);
                }
            }
            if reader.is_buffer_empty() {
                self.let_go();
                if is_busy {
                    // Events of who goes on writing become one meanwhile, and wake nobody.
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}
