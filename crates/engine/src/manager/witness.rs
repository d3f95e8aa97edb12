//! Somebody outlives the manager, and is told what must not be lost with it.

use super::Manager;
use crate::live::shortage::is_shortage;
use crate::port::{FileNo, SpaceNo};
use pagekeeper_sys::{Errno, process};
use std::os::fd::{AsFd, BorrowedFd};

/// Told when files become managed and processes appear, so that another process can hold on to
/// what must not be lost with this one.
pub trait Witness: Send + Sync {
    /// A file is about to be mapped for the first time, or became writable.
    fn file(&self, no: FileNo, memfd: BorrowedFd<'_>, store: BorrowedFd<'_>);
    /// A process's heap, which nobody writes anywhere when this process is gone.
    fn memory(&self, no: FileNo, memfd: BorrowedFd<'_>);
    /// A heap is gone, or a file not managed any more.
    fn forget(&self, no: FileNo);
    /// Returns when what was told before is carried out.
    fn settle(&self);
    /// A process's faults.
    fn space(&self, no: SpaceNo, userfault: BorrowedFd<'_>);
    /// Whose they are.
    fn owner(&self, no: SpaceNo, pid: u32, process: BorrowedFd<'_>);
    /// A process, which may store to what it was shown.
    fn client(&self, pid: u32, process: BorrowedFd<'_>);
    /// What ends it when nobody has this any more.
    fn leash(&self, pid: u32, held: BorrowedFd<'_>);
    /// Nothing ends it any more.
    fn leash_gone(&self, pid: u32);
    /// It has no connection any more.
    fn client_gone(&self, pid: u32);
}

impl Manager {
    /// Someone who holds on to descriptors. Once.
    pub fn set_witness(&self, witness: Box<dyn Witness>) {
        let _ = self.witness.set(witness);
    }

    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Witness)) {
        if let Some(witness) = self.witness.get() {
            what(&**witness);
        }
    }

    /// Tells the witness of a process that has made its first connection.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(super) fn tell_of_client(&self, pid: u32) -> Result<(), Errno> {
        let Some(witness) = self.witness.get() else { return Ok(()) };
        match self.with_reserve(|| process::pidfd_open(pid)) {
            Ok(process) => witness.client(pid, process.as_fd()),
            Err(errno) if is_shortage(errno) => return Err(errno),
            // One that has ended already stores nothing.
            Err(_) => {}
        }
        Ok(())
    }

    /// Tells the witness of a file that is about to be mapped, or stored to: only from then on may it
    /// have pages that storage lacks, and processes that have to be found. With `again`, of another
    /// descriptor of one that it knows.
    pub(crate) fn tell_witness(&self, no: FileNo, again: bool) {
        let Some(witness) = self.witness.get() else { return };
        let Some(live) = self.engine.port().file(no) else { return };
        let Some(store) = live.store() else { return witness.memory(no, live.memfd.as_fd()) };
        // Held until it is told: nobody maps the file before.
        let mut witnessed = self.witnessed.lock().expect("lock");
        if witnessed.contains(&no) != again {
            return;
        }
        match self.with_reserve(|| store.descriptor()) {
            Ok(store) => {
                witness.file(no, live.memfd.as_fd(), store.as_fd());
                witnessed.insert(no);
            }
            // It is told the next time.
            Err(e) => {
                witnessed.remove(&no);
                self.note(format!("what is written would be lost with this process: {e}"));
            }
        }
    }

    /// The witness needs not know of a file any more.
    pub(crate) fn dismiss_witness(&self, no: FileNo) {
        if self.witnessed.lock().expect("lock").remove(&no) {
            self.tell(|witness| witness.forget(no));
        }
    }
}
