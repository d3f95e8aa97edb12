//! Deleted files that nobody uses any more are let go of, so that storage has their space back as it
//! would have under the kernel.
//!
//! A managed file is open in the manager, and in the holder if it is mapped. When its last name is
//! gone, the manager asks the kernel whether anybody else has it open still ([`Store::keep_out`]):
//! in any process, through a socket on its way to one, or mapped. It asks again whenever somebody
//! closed the file or unmapped it, and when the answer is no, nothing can lead to the file any
//! more: its pages are dropped, written back or not, every descriptor of it is closed, and its slot
//! is free for another file. The kernel's answer leaves out descriptors opened with O_PATH, which
//! can be opened anew through `/proc`; what is dirty of a file that was opened so is written back
//! first.

use crate::live::store::Store;
use crate::manager::Manager;
use crate::port::FileNo;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::FileId;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// How often a full disk is looked at again, a millisecond apart, while deleted files are in use.
const ROOM_TRIES: u32 = 20;

/// How often a program that is to be executed is looked at again, a millisecond apart.
const EXECUTE_TRIES: u32 = 20;

/// What is known of a deleted file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nobody looked, or something happened since somebody did.
    Nothing,
    /// Somebody is looking.
    Asked,
    /// It is in use.
    Used,
}

/// Deleted files that are managed.
#[derive(Default)]
pub(crate) struct Deleted(Mutex<HashMap<FileNo, Known>>);

impl Deleted {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileNo, Known>> {
        self.0.lock().expect("lock")
    }

    /// The files that have to be looked at, by the caller from now on.
    fn ask(&self) -> Vec<FileNo> {
        let mut files = self.lock();
        let unknown = files.iter_mut().filter(|(_, known)| **known == Known::Nothing);
        unknown
            .map(|(no, known)| {
                *known = Known::Asked;
                *no
            })
            .collect()
    }

    /// What came of it, unless something happened meanwhile.
    fn answer(&self, no: FileNo, answer: Known) {
        if let Some(known) = self.lock().get_mut(&no)
            && *known == Known::Asked
        {
            *known = answer;
        }
    }

    fn forget(&self, no: FileNo) {
        self.lock().remove(&no);
    }

    fn all_used(&self) -> bool {
        self.lock().values().all(|known| *known == Known::Used)
    }
}

/// Whether a deleted file was let go of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was.
    Unused,
    /// Somebody has it open or maps it: the end of that will be noticed.
    InUse,
    /// Something is going on with it that is over soon.
    Busy,
    /// The kernel does not say.
    Unknown,
}

impl Manager {
    /// A file lost a name, or may have none from the beginning; whether it has none.
    pub(crate) fn note_if_deleted(&self, no: FileNo) -> bool {
        let Some(live) = self.engine.port().file(no) else { return false };
        let is_deleted = live.store().is_some_and(|store| store.links() == Ok(0));
        if is_deleted {
            self.deleted.lock().insert(no, Known::Nothing);
        }
        is_deleted
    }

    /// Somebody closed or unmapped a file. Whether it is a deleted one.
    pub(crate) fn may_be_unused(&self, no: FileNo) -> bool {
        self.deleted.lock().get_mut(&no).map(|known| *known = Known::Nothing).is_some()
    }

    /// Finds deleted files that nobody told of.
    pub(crate) fn look_for_deleted(&self) {
        for no in self.engine.port().file_numbers() {
            self.note_if_deleted(no);
        }
    }

    /// Lets go of deleted files that are not used any more. Never waits for programs.
    pub(crate) fn let_go(&self) {
        for no in self.deleted.ask() {
            match self.try_to_let_go(no) {
                Found::Unused | Found::Unknown => {}
                Found::InUse => self.deleted.answer(no, Known::Used),
                Found::Busy => self.deleted.answer(no, Known::Nothing),
            }
        }
        self.free_slots();
    }

    /// Storage is full: lets go of what it can, and returns when storage knows.
    pub(crate) fn make_room(&self) {
        self.look_for_deleted();
        for _ in 0..ROOM_TRIES {
            self.let_go();
            if self.deleted.all_used() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The holder has them open too.
        self.tell(|witness| witness.settle());
    }

    fn try_to_let_go(&self, no: FileNo) -> Found {
        if self.engine.is_mapped_by_programs(no) {
            // By a process that has ended, perhaps.
            self.reap();
        }
        // Who opens files may be waiting for who calls this.
        let Ok(_one) = self.activating.try_lock() else { return Found::Busy };
        let found = self.retire_unused(no, |store| {
            if store.links() != Ok(0) {
                return false;
            }
            !self.has_path_holders(no) || self.engine.write_out(no, 0..u64::MAX).is_ok()
        });
        if matches!(found, Found::Unused | Found::Unknown) {
            self.deleted.forget(no);
        }
        found
    }

    /// Lets go of a file that has a name, if it is not used and nothing would be lost. What is dirty
    /// is written back.
    pub(crate) fn let_idle_file_go(&self, no: FileNo) -> bool {
        let try_it = || {
            let _one = self.activating.lock().expect("lock");
            self.retire_unused(no, |_| self.engine.is_stored(no))
        };
        match try_it() {
            // An error stays with the file, for who syncs it.
            Found::Busy if self.engine.dirty_pages(no) > 0 => {
                self.engine.write_out(no, 0..u64::MAX).is_ok() && try_it() == Found::Unused
            }
            found => found == Found::Unused,
        }
    }

    /// A program is about to be executed. The kernel executes nothing that somebody may write to
    /// (ETXTBSY), and who wrote it under us may, until we let go of the file.
    pub(crate) fn let_program_go(&self, id: FileId) {
        let Some(no) = self.active_slot(id) else { return };
        let is_ours_to_write = || {
            let live = self.engine.port().file(no);
            live.is_some_and(|live| live.store().is_some_and(Store::writable))
        };
        for _ in 0..EXECUTE_TRIES {
            if !is_ours_to_write() {
                break;
            }
            if self.engine.is_mapped_by_programs(no) {
                self.reap();
            }
            if self.let_idle_file_go(no) {
                // The holder has it open too.
                self.tell(|witness| witness.settle());
                break;
            }
            // Who wrote it has ended, perhaps, and is being forgotten.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets go of a file if nobody uses it, and if `may_go` says so while nobody can open it. Called
    /// with `activating` held: nobody shows it for the first time meanwhile.
    fn retire_unused(&self, no: FileNo, may_go: impl FnOnce(&Store) -> bool) -> Found {
        if self.engine.is_mapped_by_programs(no) {
            return Found::InUse;
        }
        let Some(live) = self.engine.port().file(no) else { return Found::Unknown };
        let Some(store) = live.store() else { return Found::Unknown };
        // Our own closing is not to be taken for somebody else's.
        let listens = self.deleted.lock().contains_key(&no);
        if listens {
            self.watch(no, store, false);
        }
        let narrow = store.narrow();
        if listens {
            self.watch(no, store, true);
        }
        if !narrow {
            return Found::Busy;
        }
        let found = match store.keep_out() {
            Ok(()) => self.is_unused(no),
            Err(Errno::AGAIN) => Found::InUse,
            Err(_) => Found::Unknown,
        };
        let found = if found == Found::Unused && !may_go(store) { Found::Busy } else { found };
        if found != Found::Unused {
            store.let_in();
            return found;
        }
        self.retire(no);
        // Who opens it now finds that it is nobody's.
        store.give_up_lease();
        // The last descriptor here: from now on storage has its space back.
        drop(live);
        self.slot_is_unused(no);
        found
    }

    /// Whether a file that nobody has open is not used in another way either.
    fn is_unused(&self, no: FileNo) -> Found {
        // In this order: a mapping that is being made is one that was made next.
        if self.is_being_mapped(no) || self.engine.is_changing(no) {
            Found::Busy
        } else if self.engine.is_mapped_by_programs(no) {
            Found::InUse
        } else {
            Found::Unused
        }
    }

    fn watch(&self, no: FileNo, store: &Store, closing: bool) {
        if let (Some(watches), Ok(fd)) = (&self.watches, store.descriptor()) {
            let _ = watches.add(no, fd.as_fd(), closing);
        }
    }

    /// Forgets a file that nobody can reach, or that everybody has to open anew.
    fn retire(&self, no: FileNo) {
        let id = self.close_slot(no);
        for files in [&self.unwatched, &self.watched] {
            files.lock().expect("lock").remove(no);
        }
        self.engine.retire(no);
        if let Some(watches) = &self.watches {
            let live = self.engine.port().file(no);
            let store = live.as_ref().and_then(|live| live.store());
            let fd = store.and_then(|store| store.descriptor().ok());
            watches.remove(no, fd.as_ref().map(|fd| fd.as_fd()));
        }
        self.engine.port().remove_file(no);
        // While it is open here: with the last descriptor goes the inode, and its number may be
        // another run's new file.
        self.unregister(id);
        self.dismiss_witness(no);
    }
}
