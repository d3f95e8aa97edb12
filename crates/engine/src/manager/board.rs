//! What programs are told without asking: see [`wire::Board`].

use crate::manager::selection::Selection;
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FileId};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::process::confined;
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_wire as wire;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A run's board.
#[derive(Debug)]
pub(crate) struct Board {
    map: SharedMap,
    memfd: Memfd,
    inode: u64,
}

impl Board {
    /// A board on which no file is managed.
    ///
    /// # Errors
    /// Shared memory cannot be made.
    pub(crate) fn create(secret: [u8; 16], selection: &Selection) -> Result<Board, Errno> {
        let (memfd, map) = SharedMap::create("pagekeeper-board", wire::BOARD_BYTES)?;
        // Programs open it by its place in `/proc`, to read it.
        let _ = memfd.set_mode(0o400);
        let inode = file::stat(&memfd)?.id.ino;
        let secret = u128::from_be_bytes(secret);
        let words = [
            (offset_of!(wire::Board, secret_high), (secret >> 64) as u64),
            (offset_of!(wire::Board, secret_low), secret as u64),
            (offset_of!(wire::Board, min_size_bytes), selection.min_size_bytes.max(1)),
        ];
        for (offset, word) in words {
            map.words::<AtomicU64>(offset, 1)[0].store(word, Ordering::Relaxed);
        }
        Ok(Board { map, memfd, inode })
    }

    /// Where clients find it, as [`wire::ENV_SOCKET`] says it.
    pub(crate) fn place(&self) -> String {
        format!("{}.{}", std::process::id(), self.memfd.as_fd().as_raw_fd())
    }

    /// Its inode: who has it mapped is a client, or may become one.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether files are the kernel's for the time being.
    pub(crate) fn stands_by(&self) -> &AtomicU32 {
        self.word(offset_of!(wire::Board, stands_by))
    }

    /// A file is about to be mapped that may be stored to.
    pub(crate) fn mark_stores(&self) {
        let stored = self.word(offset_of!(wire::Board, may_be_stored));
        if stored.swap(1, Ordering::SeqCst) == 0 {
            self.mark_confined();
        }
    }

    /// Something may be dirty from now on, and programs that are executed may be kept from the library.
    pub(crate) fn mark_confined(&self) {
        if confined::programs_may_be() {
            self.word(offset_of!(wire::Board, may_be_confined)).store(1, Ordering::SeqCst);
        }
    }

    /// Whether a program that is executed may be kept from the library, and find old bytes.
    pub(crate) fn may_be_confined(&self) -> bool {
        self.word(offset_of!(wire::Board, may_be_confined)).load(Ordering::SeqCst) != 0
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        &self.map.words(offset, 1)[0]
    }

    /// A file is about to be managed. It stays marked for the rest of the run: a mark too many costs
    /// those who open it a message.
    pub(crate) fn mark(&self, id: FileId) {
        let cells = self.map.words::<AtomicU32>(wire::PAGE_BYTES as usize, wire::CELLS);
        cells[wire::cell_of(id.dev, id.ino) as usize].store(1, Ordering::SeqCst);
    }
}
