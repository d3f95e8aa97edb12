//! What the engine needs of the machine. The live port speaks to Linux; tests have one that fails,
//! delays and reorders.

use crate::engine::spaces::Region;
use crate::engine::{Buffer, Deferred};
use pagekeeper_frames::Place;
use pagekeeper_policy::Page;
use pagekeeper_sys::memfd::{self, HUGE_SETTING, SMALLER};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// Number of a managed file; also its segment number in the brain.
pub type FileNo = u32;
/// Number of an address space (a process image) that maps managed files.
pub type SpaceNo = u32;
/// Bytes in a page of the machine's, and in one of a cache unless it says more.
pub const PAGE_BYTES: u64 = 4096;

/// What is the matter where this kernel has other pages, in words.
pub(crate) fn other_pages() -> Option<String> {
    let bytes = pagekeeper_sys::mask::page_bytes();
    (bytes as u64 != PAGE_BYTES).then(|| {
        format!(
            "the pages of this kernel have {bytes} bytes, and Pagekeeper works with pages of \
             {PAGE_BYTES}: boot a kernel that is built for those"
        )
    })
}

/// What is the matter where this machine's memory does not come page by page, in words.
pub(crate) fn huge_pages() -> Option<String> {
    memfd::huge_by_setting().map(|word| {
        format!(
            "pages of shared memory come 512 at a time here ({HUGE_SETTING} is {word}), so that many times \
             the memory that is allowed would be taken. To change it, {SMALLER}"
        )
    })
}

/// Why a port call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PortError {
    /// The address space is changing (a fork, munmap or mremap is waiting to be noticed): notice
    /// it and try again.
    #[error("the address space is changing")]
    Again,
    /// The address space is gone.
    #[error("the process is gone")]
    Gone,
    /// The kernel knows nothing at this address or offset.
    #[error("nothing is mapped there")]
    Missing,
    /// Storage failed.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Io(i32),
}

/// What tells one content of a file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Version {
    /// Length in bytes.
    pub size_bytes: u64,
    /// Time of the last change of content, nanoseconds.
    pub mtime_ns: i128,
    /// Time of the last change of anything, nanoseconds.
    pub ctime_ns: i128,
}

impl Version {
    /// Both times in a word, as programs know them.
    pub fn stamp(self) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        pagekeeper_wire::stamp(self.ctime_ns as u64, self.mtime_ns as u64)
    }
}

/// What programs may know of a file without asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its length in bytes.
    pub size_bytes: u64,
    /// Its [stamp](Version::stamp) as long as nobody else changes it; 0 if somebody may have.
    pub stamp: u64,
}

/// What a look at a file shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The file as it was.
    pub version: Version,
    /// Its time is open: whoever changes it afterwards may leave the same one.
    pub is_open: bool,
}

/// How a [`Port::map`] went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// At least one page was mapped before: its write protection may differ from what was asked.
    pub existed: bool,
}

/// Waits for a read that is under way, which dropping it does too. Returns the buffer, and the bytes
/// that the file really had there; what lies beyond the end of the file is zero. Without them the
/// pages are to be read again.
pub type Loading = Box<dyn FnOnce() -> (Option<Buffer>, Option<u64>) + Send>;
/// Waits for a read into frames that is under way, which dropping it does too. Returns the bytes that
/// the file really had there; without them the pages are to be read again.
pub type LoadingInPlace = Box<dyn FnOnce() -> Option<u64> + Send>;

/// Most pages of one [`Port::begin_stores`] or [`Port::begin_loads`].
pub const MOVED_TOGETHER_MAX: u64 = 128;

/// A write that is under way. Dropping it waits for its end.
pub trait Storing: Send {
    /// Waits for its end, but for so long at most; whether it has ended.
    fn ends_within(&mut self, longest: Duration) -> bool;
    /// Waits for its end. Returns the buffer, if it has one of its own, and whether all was written; else it is
    /// to be written again.
    fn end(self: Box<Self>) -> (Option<Buffer>, bool);
}

/// The machine under an engine.
pub trait Port: Send + Sync + 'static {
    /// Bytes in a page: what is decided on, fetched, written and evicted as one. A power of two,
    /// [`PAGE_BYTES`] or more, for ever the same. What is mapped is counted in pages of
    /// [`PAGE_BYTES`], the machine's, whatever this is.
    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    /// Puts whole pages into the file's frames. They become visible to faults as resident, but are
    /// mapped nowhere.
    fn fill(&self, file: FileNo, index: u64, data: &[u8]) -> Result<(), PortError>;
    /// Copies frames out.
    fn peek(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<(), PortError>;
    /// Overwrites bytes of resident frames.
    fn patch(&self, file: FileNo, offset_bytes: u64, data: &[u8]) -> Result<(), PortError>;
    /// Takes frames out of memory and out of every address space.
    fn discard(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError>;
    /// Changes how many pages of the file may be mapped.
    fn resize(&self, file: FileNo, pages: u64) -> Result<(), PortError>;

    /// Reads pages from storage; what lies beyond the end of the file is zero. Returns the bytes
    /// that the file really had there.
    fn load(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<u64, PortError>;
    /// Whether [`begin_load`](Self::begin_load) is worth a buffer for this file.
    fn begins_loads(&self, _file: FileNo) -> bool {
        false
    }
    /// Begins to [`load`](Self::load) pages into a buffer, and returns meanwhile. It gives the buffer
    /// back if that cannot be.
    fn begin_load(
        &self,
        _file: FileNo,
        _index: u64,
        buffer: Buffer,
        _pages: u64,
    ) -> Result<Loading, Buffer> {
        Err(buffer)
    }
    /// Whether [`begin_loads`](Self::begin_loads) is worth asking for this file.
    fn begins_loads_together(&self, _file: FileNo) -> bool {
        false
    }
    /// Begins to read several ranges of claimed pages, at most [`MOVED_TOGETHER_MAX`] in all, with one request
    /// to the machine, and returns meanwhile. Each goes into the file's frames when it is waited for, and not
    /// before. `None`: nothing has begun.
    fn begin_loads(&self, _file: FileNo, _ranges: &[Range<u64>]) -> Option<Vec<LoadingInPlace>> {
        None
    }
    /// Pages between two runs of a file that are better read for nothing than left out by a second
    /// request.
    fn gap_pages_max(&self, _file: FileNo) -> u64 {
        0
    }
    /// Writes pages to storage, not beyond the file's present end, nor beyond `end_bytes`, where it is
    /// known to end: what lies between is somebody else's.
    fn store(&self, file: FileNo, index: u64, data: &[u8], end_bytes: u64)
    -> Result<(), PortError>;
    /// Begins to [`store`](Self::store) pages that are in a buffer, and returns meanwhile. It gives
    /// the buffer back if that cannot be. None of them reaches beyond where the file is known to end.
    fn begin_store(
        &self,
        _file: FileNo,
        _index: u64,
        buffer: Buffer,
        _pages: u64,
    ) -> Result<Box<dyn Storing>, Buffer> {
        Err(buffer)
    }
    /// Whether [`begin_stores`](Self::begin_stores) is worth asking for this file.
    fn begins_stores(&self, _file: FileNo) -> bool {
        false
    }
    /// Begins to store several ranges of claimed pages, at most [`MOVED_TOGETHER_MAX`] in all, with one request
    /// to the machine, and returns meanwhile. None of them reaches beyond where the file is known to end.
    /// `None`: nothing has begun.
    fn begin_stores(&self, _file: FileNo, _ranges: &[Range<u64>]) -> Option<Vec<Box<dyn Storing>>> {
        None
    }
    /// Reads claimed pages from storage straight into the file's frames, as [`load`](Self::load)
    /// and [`fill`](Self::fill) do in two steps. `None`: it cannot, and those are called.
    fn load_in_place(
        &self,
        _file: FileNo,
        _index: u64,
        _pages: u64,
    ) -> Option<Result<u64, PortError>> {
        None
    }
    /// Begins to [load](Self::load_in_place) claimed pages, and returns meanwhile. They stay claimed
    /// until the read is over. `None`: it cannot, or so few pages are not worth it.
    fn begin_load_in_place(
        &self,
        _file: FileNo,
        _index: u64,
        _pages: u64,
    ) -> Option<LoadingInPlace> {
        None
    }
    /// Most pages of one request: of a longer run several are under way at a time, and the first can
    /// be used while the others are on their way.
    fn request_pages_max(&self, _file: FileNo) -> u32 {
        u32::MAX
    }
    /// Writes claimed pages to storage straight from their frames, as [`peek`](Self::peek) and
    /// [`store`](Self::store) do in two steps. `None`: it cannot, and those are called.
    fn store_in_place(
        &self,
        _file: FileNo,
        _index: u64,
        _pages: u64,
    ) -> Option<Result<(), PortError>> {
        None
    }
    /// Whether storage asks for the content of pages that leave memory: see [`retire`](Self::retire).
    fn takes_victims(&self, _file: FileNo) -> bool {
        false
    }
    /// A page is about to be at rest in memory: its number, and whether the brain wants to hear of its
    /// first use. Called under the engine's lock, before anybody can use the page.
    fn arrived(&self, _place: Place, _page: Page, _is_told: bool) {}
    /// Gives storage the content of claimed pages that leave memory, now or (dirty ones) soon, if it
    /// asks for that. `None`: it does not, and dirty pages are written as ever.
    fn retire(
        &self,
        _file: FileNo,
        _index: u64,
        _pages: u64,
        _dirty: bool,
    ) -> Option<Result<(), PortError>> {
        None
    }
    /// Whether storage may keep pages of the file in memory, in the budget, before it writes them; and
    /// if so, whether it does with most just now.
    fn keeps_pages(&self, _file: FileNo) -> Option<bool> {
        None
    }
    /// A page that storage may keep is in its frame now: storage need not keep it any longer. True:
    /// nobody else has its content from now on. Called under the engine's lock; never waits.
    fn take_kept(&self, _file: FileNo, _index: u64) -> bool {
        false
    }
    /// Memory, in pages, that storage keeps pages in now.
    fn kept_pages(&self) -> u32 {
        0
    }
    /// Makes sure that storage has room for these pages, so that writing them back cannot fail for
    /// lack of space.
    fn reserve(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError>;
    /// Pages are likely to be stored to next: for how many of them, the first ones, storage has room as it
    /// is.
    fn room_ahead(&self, _file: FileNo, _index: u64, _pages: u64) -> u64 {
        0
    }
    /// Waits for a write by others that the kernel is carrying out: the file's times change as it begins,
    /// and its bytes later.
    fn await_writes(&self, _file: FileNo) {}
    /// The file as it is now.
    fn version(&self, file: FileNo) -> Result<Version, PortError>;
    /// The same, and whether all later changes will show.
    fn look(&self, file: FileNo) -> Result<Look, PortError> {
        Ok(Look { version: self.version(file)?, is_open: false })
    }
    /// Ours changed the file just now. If its time is [open](Look::is_open), it becomes one that nobody else
    /// leaves, as far as that can be.
    fn close_time(&self, _file: FileNo) {}

    /// Maps resident frames at an address range, write-protected or not, and `wakes` who waits
    /// there, or leaves that to the caller. Of a page of [`page_bytes`](Self::page_bytes) whose first
    /// part was mapped before, the rest may be left as it is.
    fn map(
        &self,
        space: SpaceNo,
        addr: u64,
        pages: u64,
        protect: bool,
        wakes: bool,
    ) -> Result<Mapped, PortError>;
    /// Whether [`map`](Self::map) can write-protect. If not, it is never asked to, and what is stored
    /// to a page before it is [protected](Self::protect) is found out by comparing.
    fn maps_protected(&self) -> bool {
        true
    }
    /// Write-protects a range.
    fn protect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError>;
    /// Gives write access and wakes who waits.
    fn unprotect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError>;
    /// Wakes who waits in a range; they touch again.
    fn wake(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError>;
    /// Puts private copies of pages at an address range, with these bytes, in place of what is mapped
    /// there, and wakes who waits. Pages of [`PAGE_BYTES`] are copied by the kernel instead, at the
    /// store.
    fn copy(&self, _space: SpaceNo, _addr: u64, _data: &[u8]) -> Result<(), PortError> {
        Err(PortError::Missing)
    }
    /// Unmaps what lies behind the end of a file in its last page, private copies too, and takes
    /// back that touches there raise SIGBUS. Pages of [`PAGE_BYTES`] have nothing there.
    fn cut(&self, _space: SpaceNo, _addr: u64, _pages: u64) {}
    /// Makes touches of a page of the machine's raise SIGBUS.
    fn poison(&self, space: SpaceNo, addr: u64) -> Result<(), PortError>;
    /// Whether a thread that waits for a page would go on waiting, whatever signal it is sent: it is in a
    /// system call, or blocks or ignores SIGBUS. Only by the page is it told.
    fn is_deaf(&self, _space: SpaceNo, _tid: u32) -> bool {
        false
    }
    /// Raises SIGBUS in one thread, which touched a page of the machine's.
    fn sigbus(&self, space: SpaceNo, tid: u32, addr: u64) -> Result<(), PortError>;
    /// Unmaps pages (address, pages) without taking them out of memory. Best effort. Whatever the
    /// addresses mean by now, no content may be lost by it.
    fn zap(&self, space: SpaceNo, ranges: &[(u64, u64)]);

    /// What the kernel says is mapped at an address, when the engine does not know. No change of a
    /// mapping is entered meanwhile.
    fn resolve(&self, space: SpaceNo, addr: u64) -> Option<(Range<u64>, Region)>;

    /// Tells programs what they may know of a file without asking; `None` while its length or the
    /// place of its content changes. Called under the engine's lock.
    fn announce(&self, _file: FileNo, _told: Option<Told>) {}
    /// Tells programs whether the change time that they are told may be due to somebody outside who was
    /// not heard of yet: then they ask when they need to know. Called under the engine's lock, before
    /// that time is [announced](Self::announce).
    fn doubt(&self, _file: FileNo, _is_doubted: bool) {}
    /// Tells programs that somebody outside writes to the file, so that a change time that their own write
    /// left says nothing. Called under the engine's lock.
    fn shared(&self, _file: FileNo) {}
    /// Tells programs that a page of the file was absent when it was needed.
    fn missed(&self, _file: FileNo) {}

    /// Whether work that no fault waits for should go to another thread.
    fn defer(&self) -> bool;
    /// Hands such work over, for a thread that calls
    /// [`Engine::run_deferred`](crate::engine::Engine::run_deferred); gives it back if nobody takes
    /// it.
    fn hand_over(&self, work: Deferred) -> Result<(), Deferred>;

    /// Called without any lock (but with pages pinned) after [`PortError::Again`]: lets pending
    /// changes be noticed. It may call the engine's `open_space`, `close_space`, `unmapped`,
    /// `remapped` and `removed`, which wait for no page; nothing else of the engine.
    fn again(&self);
}
