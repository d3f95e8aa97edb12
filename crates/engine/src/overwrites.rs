//! What clients overwrite by themselves: the manager's side of the table of overwrites.
//!
//! The protocol is told at [`wire::Overwrite`]. Everything here is called under the engine's lock,
//! and believes nothing that clients write but who is held up: a record that says nonsense keeps
//! pages of its file where they are, until its process ends.

use crate::port::FileNo;
use pagekeeper_sys::Errno;
use pagekeeper_sys::memfd::{Memfd, SealFlags};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_wire as wire;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// The table.
#[derive(Debug)]
pub struct Overwrites {
    memfd: Memfd,
    map: SharedMap,
}

impl Overwrites {
    /// An empty table for so many slots.
    ///
    /// # Errors
    /// Shared memory cannot be made.
    pub fn new(slots: usize) -> Result<Overwrites, Errno> {
        let bytes = slots * size_of::<wire::Overwrite>();
        let (memfd, map) = SharedMap::create("pagekeeper-overwrites", bytes)?;
        memfd.set_mode(0o600)?;
        Ok(Overwrites { memfd, map })
    }

    /// The table for a client that only looks at it.
    ///
    /// # Errors
    /// No descriptor is free.
    pub(crate) fn for_reader(&self) -> Result<OwnedFd, Errno> {
        self.memfd.reopen_read_only()
    }

    /// The table for a client, which can store to it, but not cut it off; none where the kernel
    /// does not see to that.
    pub fn for_writer(&self) -> Option<OwnedFd> {
        let sealed = self.memfd.seals().is_ok_and(|s| s.contains(SealFlags::SHRINK));
        sealed.then(|| self.memfd.reopen_writable().ok()).flatten()
    }

    /// Records in it.
    pub(crate) fn records(&self) -> usize {
        self.map.len_bytes() / size_of::<wire::Overwrite>()
    }

    fn long(&self, file: FileNo, field: usize) -> &AtomicU64 {
        &self.map.words(file as usize * size_of::<wire::Overwrite>() + field, 1)[0]
    }

    fn state(&self, file: FileNo) -> &AtomicU64 {
        self.long(file, offset_of!(wire::Overwrite, state))
    }

    fn moving(&self, file: FileNo) -> &AtomicU32 {
        let at = file as usize * size_of::<wire::Overwrite>();
        &self.map.words(at + offset_of!(wire::Overwrite, moving), 1)[0]
    }

    /// So many pages of a file are about to be claimed, to come or go or be written back.
    pub(crate) fn moves(&self, file: FileNo, pages: u32) {
        self.moving(file).fetch_add(pages, SeqCst);
    }

    /// So many of them are at rest again.
    pub(crate) fn rests(&self, file: FileNo, pages: u32) {
        self.moving(file).fetch_sub(pages, SeqCst);
    }

    /// The pages of a file that somebody overwrites now.
    pub(crate) fn held(&self, file: FileNo) -> Option<Range<u64>> {
        (self.state(file).load(SeqCst) & wire::OVERWRITE_HELD != 0).then(|| {
            let first = self.long(file, offset_of!(wire::Overwrite, first)).load(SeqCst);
            first..self.long(file, offset_of!(wire::Overwrite, end)).load(SeqCst)
        })
    }

    /// Which process overwrites a file now.
    pub(crate) fn holder(&self, file: FileNo) -> Option<u32> {
        let state = self.state(file).load(SeqCst);
        (state & wire::OVERWRITE_HELD != 0).then_some((state >> 32) as u32)
    }

    /// From now on nobody begins to overwrite the file, and who does so now says when it ends. The
    /// pages of that one, if there is one that was not met before.
    pub(crate) fn meet(&self, file: FileNo) -> Option<Range<u64>> {
        let before = self.state(file).fetch_or(wire::OVERWRITE_MET, SeqCst);
        let is_new = before & (wire::OVERWRITE_HELD | wire::OVERWRITE_MET) == wire::OVERWRITE_HELD;
        is_new.then(|| self.held(file)).flatten()
    }

    /// Who overwrites the file is done.
    pub(crate) fn release(&self, file: FileNo) {
        self.state(file).fetch_and(wire::OVERWRITE_MET, SeqCst);
    }

    /// Clients may overwrite the file again.
    pub(crate) fn allow(&self, file: FileNo) {
        self.state(file).fetch_and(!wire::OVERWRITE_MET, SeqCst);
    }

    /// The change time that the last overwrite left.
    pub(crate) fn ctime_ns(&self, file: FileNo) -> u64 {
        self.long(file, offset_of!(wire::Overwrite, ctime_ns)).load(SeqCst)
    }

    fn size_bytes(&self, file: FileNo) -> &AtomicU64 {
        self.long(file, offset_of!(wire::Overwrite, size_bytes))
    }

    /// The length to which overwrites brought the file, as far as that was not
    /// [followed](Self::follow).
    pub(crate) fn grown_to(&self, file: FileNo) -> u64 {
        self.size_bytes(file).load(SeqCst)
    }

    /// The file is known to be so long.
    pub(crate) fn follow(&self, file: FileNo, size_bytes: u64) {
        let _ = self.size_bytes(file).compare_exchange(size_bytes, 0, SeqCst, SeqCst);
    }

    /// Whatever overwrites added is followed.
    pub(crate) fn settle(&self, file: FileNo) {
        self.size_bytes(file).store(0, SeqCst);
    }

    /// The slot is another file's from now on, or nobody's.
    pub(crate) fn forget(&self, file: FileNo) {
        self.long(file, offset_of!(wire::Overwrite, ctime_ns)).store(0, SeqCst);
        self.size_bytes(file).store(0, SeqCst);
        self.long(file, offset_of!(wire::Overwrite, first)).store(0, SeqCst);
        self.long(file, offset_of!(wire::Overwrite, end)).store(u64::MAX, SeqCst);
        self.state(file).store(0, SeqCst);
    }
}
