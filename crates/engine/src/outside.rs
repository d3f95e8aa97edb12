//! Notices when somebody outside changes a managed file: an inotify watch on each.
//!
//! Writes and truncations by system calls are seen within milliseconds, ours among them; which is
//! whose follows from the file's times, noted after each write of our own. Stores through somebody
//! else's mapping are not reported by the kernel: those are found when the file is next opened,
//! mapped, locked, synced or written back.

use crate::manager::Manager;
use crate::port::FileNo;
use pagekeeper_sys::Errno;
use rustix::fs::inotify;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

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

    /// Watches the file behind a descriptor.
    pub(crate) fn add(&self, no: FileNo, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mut files = self.files.lock().expect("lock");
        let watch = inotify::add_watch(&self.fd, path.as_str(), inotify::WatchFlags::MODIFY)?;
        files.insert(watch, no);
        Ok(())
    }
}

impl Manager {
    /// Follows changes until the descriptor fails. Runs on a thread of its own.
    pub(crate) fn watch_loop(&self) {
        let Some(watches) = &self.watches else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watches.fd, &mut buffer);
        loop {
            let watch = match reader.next() {
                Ok(event) => event.wd(),
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let no = watches.files.lock().expect("lock").get(&watch).copied();
            if let Some(no) = no {
                self.engine.look_for_changes(no);
            }
        }
    }
}
