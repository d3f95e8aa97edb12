//! Changes of files by others that the machine tells of.
//!
//! A file's times show that it was changed, and not by whom: what somebody outside writes while pages
//! are written back, or while a client writes, is taken for a part of that. Where the machine tells who
//! wrote ([`Engine::hears`]), it is known nevertheless, though later than the time is seen: the kernel
//! sets the time when a write begins, and tells of it before the call returns. So a time that was seen
//! is *doubted*, and programs ask when they need to know (a lock was taken), until what was told was
//! heard long enough after it.
//!
//! A question costs a program more than all else that a lock does. So a time that is due to programs'
//! own writes is doubted only once somebody outside has been heard of, for as long as the file is
//! managed.

use crate::engine::Engine;
use crate::engine::core::File;
use crate::port::{FileNo, Port};
use pagekeeper_sys::clock;

/// How long a write call of somebody outside may take between its being seen in the file's times and
/// its being told of. Not less than a tick of the clock, in which times count before Linux 6.13.
const QUIET_NS: u64 = 20_000_000;

impl<P: Port> Engine<P> {
    /// From now on [`changed_outside`](Self::changed_outside) is called for whatever somebody outside
    /// does to a file by system calls.
    pub fn hears(&self, file: FileNo) {
        let mut core = self.lock();
        if let Some(f) = core.file_mut(file) {
            f.is_heard = true;
            self.doubt(f, file);
        }
    }

    /// Somebody outside changed a file, whatever its times say. Until nothing old is left
    /// ([`refresh_size`](Self::refresh_size) sees to that), programs know no time of it.
    pub fn changed_outside(&self, file: FileNo) {
        let mut core = self.lock();
        if let Some(f) = core.file_mut(file).filter(|f| !f.gone) {
            f.foreign.find();
            if !std::mem::replace(&mut f.is_shared, true) {
                self.port.shared(file);
            }
            self.doubt(f, file);
            self.announce(f, file);
        }
    }

    /// The file's change time was seen, and is about to be told.
    pub(crate) fn doubt(&self, f: &mut File, file: FileNo) {
        let is_new = f.is_heard && f.doubted_ns.replace(clock::monotonic_ns()).is_none();
        if is_new {
            self.port.doubt(file, true);
        }
    }

    /// All was heard that the machine had to tell of a file at a time ([`clock::monotonic_ns`]): if its
    /// change time was seen long before, there is nothing to doubt.
    pub fn end_doubt(&self, file: FileNo, heard_ns: u64) {
        let mut core = self.lock();
        let Some(f) = core.file_mut(file) else { return };
        let is_over = f.doubted_ns.is_some_and(|since| since + QUIET_NS <= heard_ns);
        if is_over && !f.foreign.is_stale() {
            f.doubted_ns = None;
            self.port.doubt(file, false);
        }
    }
}
