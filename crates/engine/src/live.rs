//! The live port: memfds for frames, userfaultfds for mappings, files for storage.

pub(crate) mod dispatch;
pub(crate) mod events;
pub(crate) mod file_systems;
mod follow;
pub(crate) mod forks;
mod moved;
pub(crate) mod outside;
pub(crate) mod shortage;
pub mod store;
mod ticks;

use crate::engine::spaces::Region;
use crate::engine::{Buffer, Deferred};
use crate::heaps::scratch::{HeapStore, Scratch};
use crate::live::store::Store;
use crate::port::{
    FileNo, Loading, LoadingInPlace, Look, MOVED_TOGETHER_MAX, Mapped, PAGE_BYTES, Port, PortError,
    SpaceNo, Storing, Told, Version,
};
use pagekeeper_frames::GAP_READ_PAGES;
use pagekeeper_sys::Errno;
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::process;
use pagekeeper_sys::ring::{Rings, batch};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::userfault::Userfault;
use pagekeeper_wire as wire;
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

/// A managed file's frames and storage.
#[derive(Debug)]
pub struct LiveFile {
    /// Where its pages are while they are in memory; offset in it = offset in the file.
    pub memfd: Memfd,
    /// The memfd's device and inode, as `/proc/PID/maps` shows it.
    pub memfd_ino: u64,
    /// What is behind it.
    pub behind: Behind,
}

/// Where pages go that leave memory.
#[derive(Debug)]
pub enum Behind {
    /// The program's file.
    File(Store),
    /// The scratch file: the memory is a process's heap.
    Scratch(HeapStore),
}

impl LiveFile {
    /// The file, if it is one of the program's.
    pub fn store(&self) -> Option<&Store> {
        match &self.behind {
            Behind::File(store) => Some(store),
            Behind::Scratch(_) => None,
        }
    }

    /// What is stored of the heap, if it is one.
    pub fn heap(&self) -> Option<&HeapStore> {
        match &self.behind {
            Behind::File(_) => None,
            Behind::Scratch(heap) => Some(heap),
        }
    }

    fn writable(&self) -> bool {
        self.store().is_none_or(Store::writable)
    }
}

/// A process image's descriptors.
#[derive(Debug)]
pub struct LiveSpace {
    /// Its faults.
    pub userfault: Userfault,
    /// Its process id and descriptor, once known.
    pub process: OnceLock<(u32, Option<OwnedFd>)>,
    /// While it is not known: the thread that touched the probe page, by its number in its own process
    /// namespace; 0: nothing was touched.
    pub(crate) toucher: AtomicU32,
}

/// What the manager lends to the port: the queue of its workers, and the noticing of events.
pub trait Hands: Send + Sync {
    /// Takes deferred work, or gives it back.
    fn hand_over(&self, work: Deferred) -> Result<(), Deferred>;
    /// Notices pending changes of address spaces.
    fn again(&self);
    /// Returns when every change that was read is also applied.
    fn settled(&self);
    /// Gives storage back what deleted files occupy.
    fn make_room(&self);
}

/// Most files with a slot in one run.
pub const SLOTS_MAX: usize = 1 << 20;

/// The table of file slots, which programs map read-only.
#[derive(Debug)]
pub struct Slots {
    memfd: Memfd,
    map: SharedMap,
}

impl Slots {
    /// An empty table.
    ///
    /// # Errors
    /// Shared memory cannot be made.
    pub fn new() -> Result<Slots, Errno> {
        let (memfd, map) =
            SharedMap::create("pagekeeper-slots", SLOTS_MAX * size_of::<wire::Slot>())?;
        memfd.set_mode(0o400)?;
        Ok(Slots { memfd, map })
    }

    /// The table, read-only, for a client.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn for_client(&self) -> Result<OwnedFd, Errno> {
        self.memfd.reopen_read_only()
    }

    fn word(&self, no: FileNo, offset: usize) -> &AtomicU32 {
        &self.map.words(no as usize * size_of::<wire::Slot>() + offset, 1)[0]
    }

    fn long(&self, no: FileNo, offset: usize) -> &AtomicU64 {
        &self.map.words(no as usize * size_of::<wire::Slot>() + offset, 1)[0]
    }

    /// Sets flags ([`wire::SLOT_ACTIVE`], [`wire::SLOT_DIRECT`]) of a slot.
    pub fn set_flags(&self, no: FileNo, flags: u32) {
        self.word(no, offset_of!(wire::Slot, flags)).fetch_or(flags, Ordering::SeqCst);
    }

    /// A slot's file is the kernel's from now on.
    pub(crate) fn clear_flags(&self, no: FileNo) {
        self.word(no, offset_of!(wire::Slot, flags)).store(0, Ordering::SeqCst);
    }

    /// Takes flags of a slot away.
    fn drop_flags(&self, no: FileNo, flags: u32) {
        self.word(no, offset_of!(wire::Slot, flags)).fetch_and(!flags, Ordering::SeqCst);
    }

    /// The slot is about to be another file's, or free.
    pub fn next_incarnation(&self, no: FileNo) {
        self.word(no, offset_of!(wire::Slot, flags)).store(0, Ordering::SeqCst);
        self.word(no, offset_of!(wire::Slot, incarnation)).fetch_add(1, Ordering::SeqCst);
    }

    /// What clients know of a file; `None` while it changes. One thread at a time for a file.
    fn announce(&self, no: FileNo, told: Option<Told>) {
        let generation = self.word(no, offset_of!(wire::Slot, generation));
        let changing = generation.load(Ordering::Relaxed) % 2 == 1;
        if let Some(told) = told {
            // Longer beside an unchanged generation is right at either moment.
            let size = self.long(no, offset_of!(wire::Slot, size_bytes));
            size.store(told.size_bytes, Ordering::SeqCst);
            self.long(no, offset_of!(wire::Slot, stamp)).store(told.stamp, Ordering::SeqCst);
        }
        if changing == told.is_some() {
            generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Which of the files that have a slot one after the other has it.
    pub(crate) fn incarnation(&self, no: FileNo) -> u32 {
        self.word(no, offset_of!(wire::Slot, incarnation)).load(Ordering::SeqCst)
    }

    fn missed(&self, no: FileNo) {
        self.word(no, offset_of!(wire::Slot, misses)).fetch_add(1, Ordering::Relaxed);
    }
}

/// Descriptors by number.
#[derive(Default)]
pub struct LivePort {
    slots: OnceLock<Slots>,
    files: RwLock<Vec<Option<Arc<LiveFile>>>>,
    spaces: RwLock<Vec<Option<Arc<LiveSpace>>>>,
    by_memfd_ino: RwLock<HashMap<u64, FileNo>>,
    hands: OnceLock<Arc<dyn Hands>>,
    /// Behind heap memory, if that is managed.
    scratch: OnceLock<Arc<Scratch>>,
    user_mode_only: OnceLock<()>,
    rings: Arc<Rings>,
}

impl LivePort {
    /// A port without files or spaces.
    pub fn new() -> LivePort {
        LivePort::default()
    }

    /// The table of file slots that [`Port::announce`] writes to. Once, before the first file.
    pub fn set_slots(&self, slots: Slots) {
        let _ = self.slots.set(slots);
    }

    /// Heap memory is managed, and goes here when it does not fit. Once.
    pub fn set_scratch(&self, scratch: Arc<Scratch>) {
        let _ = self.scratch.set(scratch);
    }

    /// Where heap memory goes, if it is managed.
    pub fn scratch(&self) -> Option<&Arc<Scratch>> {
        self.scratch.get()
    }

    /// The table of file slots.
    pub fn slots(&self) -> Option<&Slots> {
        self.slots.get()
    }

    /// Connects the port to the manager's threads. Once.
    pub fn set_hands(&self, hands: Arc<dyn Hands>) {
        let _ = self.hands.set(hands);
    }

    /// From now on only faults of user code are served, and forks are followed by hand. Before the
    /// first space.
    pub fn set_user_mode_only(&self) {
        let _ = self.user_mode_only.set(());
    }

    /// Whether only faults of user code are served.
    pub fn is_user_mode_only(&self) -> bool {
        self.user_mode_only.get().is_some()
    }

    /// Makes a file known.
    pub fn put_file(&self, no: FileNo, file: Arc<LiveFile>) {
        let ino = file.memfd_ino;
        put(&self.files, no, Some(file));
        self.by_memfd_ino.write().expect("lock").insert(ino, no);
    }

    /// Forgets a file.
    pub fn remove_file(&self, no: FileNo) {
        if let Some(file) = take(&self.files, no) {
            self.by_memfd_ino.write().expect("lock").remove(&file.memfd_ino);
        }
    }

    /// A file's descriptors.
    pub fn file(&self, no: FileNo) -> Option<Arc<LiveFile>> {
        self.files.read().expect("lock").get(no as usize)?.clone()
    }

    /// The files there are.
    pub fn file_numbers(&self) -> Vec<FileNo> {
        let files = self.files.read().expect("lock");
        (0..files.len()).filter(|&i| files[i].is_some()).map(|i| i as FileNo).collect()
    }

    /// Makes a space known; returns its number.
    pub fn put_space(&self, space: Arc<LiveSpace>) -> SpaceNo {
        let mut spaces = self.spaces.write().expect("lock");
        let at = spaces.iter().position(Option::is_none).unwrap_or(spaces.len());
        if at == spaces.len() {
            spaces.push(None);
        }
        spaces[at] = Some(space);
        at as SpaceNo
    }

    /// Forgets a space.
    pub fn remove_space(&self, no: SpaceNo) -> Option<Arc<LiveSpace>> {
        take(&self.spaces, no)
    }

    /// A space's descriptors.
    pub fn space(&self, no: SpaceNo) -> Option<Arc<LiveSpace>> {
        self.spaces.read().expect("lock").get(no as usize)?.clone()
    }

    /// The spaces there are.
    pub fn space_numbers(&self) -> Vec<SpaceNo> {
        let spaces = self.spaces.read().expect("lock");
        (0..spaces.len()).filter(|&i| spaces[i].is_some()).map(|i| i as SpaceNo).collect()
    }

    /// Whether it is one of the programs' files.
    fn has_store(&self, no: FileNo) -> bool {
        self.file(no).is_some_and(|live| live.store().is_some())
    }

    /// Whether transfers of a file, which go past the kernel's page cache, may begin together.
    fn may_batch(&self, no: FileNo, is_direct: impl Fn(&Store) -> bool) -> bool {
        const { assert!(MOVED_TOGETHER_MAX * PAGE_BYTES <= batch::BYTES_MAX as u64) };
        let is_direct = |live: Arc<LiveFile>| live.store().is_some_and(is_direct);
        self.rings.may_begin() && self.file(no).is_some_and(is_direct)
    }

    /// Begins a transfer of a file; gives the buffer back if there is no storage of that kind.
    fn with_store<T>(
        &self,
        no: FileNo,
        buffer: Buffer,
        begin: impl FnOnce(&Store, Buffer) -> Result<T, Buffer>,
    ) -> Result<T, Buffer> {
        match self.file(no).as_ref().and_then(|live| live.store()) {
            Some(store) => begin(store, buffer),
            None => Err(buffer),
        }
    }

    fn need_file(&self, no: FileNo) -> Result<Arc<LiveFile>, PortError> {
        self.file(no).ok_or(PortError::Missing)
    }

    fn need_space(&self, no: SpaceNo) -> Result<Arc<LiveSpace>, PortError> {
        self.space(no).ok_or(PortError::Gone)
    }
}

fn put<T>(list: &RwLock<Vec<Option<T>>>, no: u32, value: Option<T>) {
    let mut list = list.write().expect("lock");
    if list.len() <= no as usize {
        list.resize_with(no as usize + 1, || None);
    }
    list[no as usize] = value;
}

fn take<T>(list: &RwLock<Vec<Option<T>>>, no: u32) -> Option<T> {
    list.write().expect("lock").get_mut(no as usize)?.take()
}

/// What an error of a userfault operation means for the engine.
pub(crate) fn userfault_error(errno: Errno) -> PortError {
    match errno {
        Errno::AGAIN => PortError::Again,
        // Not registered: unmapped meanwhile. Who waits there is to be woken, and finds out.
        Errno::SRCH | Errno::NOENT => PortError::Gone,
        Errno::FAULT | Errno::INVAL => PortError::Missing,
        other => PortError::Io(other.raw_os_error()),
    }
}

/// Maps resident frames at an address range: [`Port::map`]. What is mapped already is stepped over by
/// the page of `page_bytes`.
pub(crate) fn map_pages(
    userfault: &Userfault,
    addr: u64,
    pages: u64,
    page_bytes: u64,
    protect: bool,
    wakes: bool,
) -> Result<Mapped, PortError> {
    let end = addr + pages * PAGE_BYTES;
    let mut at = addr;
    let mut step = end - at;
    let mut existed = None;
    let mut result = Ok(());
    while at < end {
        let stopped = match userfault.cont(at, step.min(end - at), protect, !wakes) {
            Ok(done) => {
                at += done;
                continue;
            }
            Err(stopped) => stopped,
        };
        at += stopped.done_bytes;
        match stopped.errno {
            // The kernel maps within one area only, and parts of a mapping that differ in their
            // protection are several: page by page then, or whoever waits would wait for ever.
            Errno::NOENT if step > PAGE_BYTES => step = PAGE_BYTES,
            Errno::EXIST => {
                existed.get_or_insert(at);
                at = (addr + ((at - addr) / page_bytes + 1) * page_bytes).min(end);
            }
            Errno::AGAIN if stopped.done_bytes > 0 => {}
            errno => {
                result = Err(userfault_error(errno));
                break;
            }
        }
    }
    // One call for all that was stepped over.
    if let Some(from) = existed.filter(|_| wakes) {
        userfault.wake(from, at - from).map_err(userfault_error)?;
    }
    result.map(|()| Mapped { existed: existed.is_some() })
}

/// Takes write access away from a range of addresses, or gives it and wakes who waits.
pub(crate) fn set_protection(
    userfault: &Userfault,
    addr: u64,
    pages: u64,
    protect: bool,
) -> Result<(), PortError> {
    let set = |addr, pages| userfault.write_protect(addr, pages * PAGE_BYTES, protect, false);
    let result = match set(addr, pages) {
        // Linux before 6.4 takes one mapping at a time, and parts of one that differ in their
        // protection are several. What is mapped no longer is nobody's to store to.
        Err(Errno::NOENT) if pages > 1 => {
            let mut result = Err(Errno::NOENT);
            for page in 0..pages {
                match set(addr + page * PAGE_BYTES, 1) {
                    Err(Errno::NOENT) => {}
                    Ok(()) => result = Ok(()),
                    Err(errno) => return Err(userfault_error(errno)),
                }
            }
            result
        }
        result => result,
    };
    result.map_err(userfault_error)
}

impl LivePort {
    /// Looks at a file's times, and tells programs when they show that they are finer than ticks.
    fn ticking<T>(&self, file: FileNo, store: &Store, look: impl FnOnce(&Store) -> T) -> T {
        let did_count = store.ticks.count();
        let seen = look(store);
        if did_count
            && !store.ticks.count()
            && let Some(slots) = self.slots.get()
        {
            slots.drop_flags(file, wire::SLOT_TICKS);
        }
        seen
    }
}

impl Port for LivePort {
    fn fill(&self, file: FileNo, index: u64, data: &[u8]) -> Result<(), PortError> {
        Ok(self.need_file(file)?.memfd.write_at(data, index * PAGE_BYTES)?)
    }

    fn peek(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<(), PortError> {
        Ok(self.need_file(file)?.memfd.read_at(data, index * PAGE_BYTES)?)
    }

    fn patch(&self, file: FileNo, offset_bytes: u64, data: &[u8]) -> Result<(), PortError> {
        Ok(self.need_file(file)?.memfd.write_at(data, offset_bytes)?)
    }

    fn discard(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        Ok(self.need_file(file)?.memfd.punch(index * PAGE_BYTES, pages * PAGE_BYTES)?)
    }

    fn resize(&self, file: FileNo, pages: u64) -> Result<(), PortError> {
        Ok(pagekeeper_sys::file::set_len(&self.need_file(file)?.memfd, pages * PAGE_BYTES)?)
    }

    fn load(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<u64, PortError> {
        match &self.need_file(file)?.behind {
            Behind::File(store) => store.load(index * PAGE_BYTES, data),
            Behind::Scratch(heap) => heap.load(index, data),
        }
    }

    fn load_in_place(
        &self,
        file: FileNo,
        index: u64,
        pages: u64,
    ) -> Option<Result<u64, PortError>> {
        let live = self.file(file)?;
        live.heap().filter(|heap| heap.is_zeros(index..index + pages))?;
        // The kernel has zeros of its own.
        let populated = live.memfd.populate(index * PAGE_BYTES, pages * PAGE_BYTES);
        Some(populated.map(|()| 0).map_err(PortError::from))
    }

    fn begins_loads(&self, file: FileNo) -> bool {
        self.has_store(file)
    }

    fn begin_load(
        &self,
        file: FileNo,
        index: u64,
        buffer: Buffer,
        pages: u64,
    ) -> Result<Loading, Buffer> {
        let bytes = (pages * PAGE_BYTES) as usize;
        self.with_store(file, buffer, |store, buffer| {
            store.begin_load(&self.rings, index * PAGE_BYTES, buffer, bytes)
        })
    }

    fn begins_loads_together(&self, file: FileNo) -> bool {
        self.may_batch(file, Store::reads_directly)
    }

    fn begin_loads(&self, file: FileNo, ranges: &[Range<u64>]) -> Option<Vec<LoadingInPlace>> {
        let live = self.file(file)?;
        let store = live.store()?;
        let frames = Arc::clone(&live);
        let fill = move |offset, data: &[u8]| Ok(frames.memfd.write_at(data, offset)?);
        store.begin_loads(self.rings.batch()?, ranges, fill)
    }

    fn begin_store(
        &self,
        file: FileNo,
        index: u64,
        buffer: Buffer,
        pages: u64,
    ) -> Result<Box<dyn Storing>, Buffer> {
        let bytes = (pages * PAGE_BYTES) as usize;
        self.with_store(file, buffer, |store, buffer| {
            store.begin_store(&self.rings, index * PAGE_BYTES, buffer, bytes)
        })
    }

    fn begins_stores(&self, file: FileNo) -> bool {
        self.may_batch(file, Store::writes_directly)
    }

    fn begin_stores(&self, file: FileNo, ranges: &[Range<u64>]) -> Option<Vec<Box<dyn Storing>>> {
        let live = self.file(file)?;
        let mut batch = self.rings.batch()?;
        for range in ranges {
            let (offset, bytes) =
                (range.start * PAGE_BYTES, (range.end - range.start) * PAGE_BYTES);
            let data = batch.add(bytes as usize, offset)?;
            live.memfd.read_at(data, offset).ok()?;
        }
        live.store()?.begin_stores(batch)
    }

    fn gap_pages_max(&self, file: FileNo) -> u64 {
        if self.has_store(file) { GAP_READ_PAGES } else { 0 }
    }

    fn store(
        &self,
        file: FileNo,
        index: u64,
        data: &[u8],
        end_bytes: u64,
    ) -> Result<(), PortError> {
        match &self.need_file(file)?.behind {
            Behind::File(store) => store.store(index * PAGE_BYTES, data, end_bytes),
            Behind::Scratch(heap) => heap.store(index, data),
        }
    }

    fn keeps_pages(&self, file: FileNo) -> Option<bool> {
        self.scratch()?.compresses().filter(|_| !self.has_store(file))
    }

    fn take_kept(&self, file: FileNo, index: u64) -> bool {
        self.file(file).is_some_and(|live| live.heap().is_some_and(|heap| heap.take_kept(index)))
    }

    fn kept_pages(&self) -> u32 {
        let kept_bytes = self.scratch().map_or(0, |scratch| scratch.kept_bytes());
        u32::try_from(kept_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
    }

    fn reserve(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        let live = self.need_file(file)?;
        let reserve = || match &live.behind {
            Behind::File(store) => store.reserve(index * PAGE_BYTES, pages * PAGE_BYTES),
            Behind::Scratch(heap) => heap.reserve(),
        };
        match reserve() {
            Err(PortError::Io(libc::ENOSPC | libc::EDQUOT)) => {
                self.hands.get().inspect(|hands| hands.make_room());
                reserve()
            }
            reserved => reserved,
        }
    }

    fn room_ahead(&self, file: FileNo, index: u64, pages: u64) -> u64 {
        match self.need_file(file).as_ref().map(|live| &live.behind) {
            Ok(Behind::File(store)) => store.room_ahead(index..index + pages),
            _ => 0,
        }
    }

    fn await_writes(&self, file: FileNo) {
        if let Ok(live) = self.need_file(file)
            && let Behind::File(store) = &live.behind
        {
            store.await_writes();
        }
    }

    fn version(&self, file: FileNo) -> Result<Version, PortError> {
        match &self.need_file(file)?.behind {
            Behind::File(store) => store.version(),
            // Nobody else changes it.
            Behind::Scratch(_) => Ok(crate::engine::heap::VERSION),
        }
    }

    fn look(&self, file: FileNo) -> Result<Look, PortError> {
        match &self.need_file(file)?.behind {
            Behind::File(store) => self.ticking(file, store, Store::look),
            Behind::Scratch(_) => Ok(Look { version: self.version(file)?, is_open: false }),
        }
    }

    fn close_time(&self, file: FileNo) {
        if let Ok(live) = self.need_file(file)
            && let Behind::File(store) = &live.behind
        {
            self.ticking(file, store, Store::close_time);
        }
    }

    fn map(
        &self,
        space: SpaceNo,
        addr: u64,
        pages: u64,
        protect: bool,
        wakes: bool,
    ) -> Result<Mapped, PortError> {
        map_pages(&self.need_space(space)?.userfault, addr, pages, PAGE_BYTES, protect, wakes)
    }

    fn maps_protected(&self) -> bool {
        pagekeeper_sys::doctor::maps_protected()
    }

    fn protect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        let live = self.need_space(space)?;
        let protected = set_protection(&live.userfault, addr, pages, true);
        // A fork that was read but not applied yet left a child with the old access, and a move that was
        // took the mapping elsewhere: whoever protects looks for new mappings next, and must find it.
        if let Some(hands) = self.hands.get() {
            hands.settled();
        }
        protected
    }

    fn unprotect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        set_protection(&self.need_space(space)?.userfault, addr, pages, false)
    }

    fn wake(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        let space = self.need_space(space)?;
        space.userfault.wake(addr, pages * PAGE_BYTES).map_err(userfault_error)
    }

    fn poison(&self, space: SpaceNo, addr: u64) -> Result<(), PortError> {
        let space = self.need_space(space)?;
        match space.userfault.poison(addr, PAGE_BYTES, false) {
            Ok(_) => Ok(()),
            Err(stopped) => Err(userfault_error(stopped.errno)),
        }
    }

    fn is_deaf(&self, space: SpaceNo, tid: u32) -> bool {
        let Some(space) = self.space(space) else { return false };
        let pid = space.process.get().map(|&(pid, _)| pid);
        pid.is_some_and(|pid| process::is_deaf(pid, tid, libc::SIGBUS))
    }

    fn sigbus(&self, space: SpaceNo, tid: u32, addr: u64) -> Result<(), PortError> {
        let space = self.need_space(space)?;
        let Some(&(pid, _)) = space.process.get() else { return Err(PortError::Gone) };
        let (signal, code) = (libc::SIGBUS, wire::SIGBUS_CODE);
        pagekeeper_sys::signal::tell_thread(pid, tid, signal, code, addr).map_err(userfault_error)
    }

    fn zap(&self, space: SpaceNo, ranges: &[(u64, u64)]) {
        let Some(space) = self.space(space) else { return };
        let Some((_, Some(pidfd))) = space.process.get() else { return };
        let bytes: Vec<(u64, u64)> = ranges.iter().map(|&(a, p)| (a, p * PAGE_BYTES)).collect();
        for part in bytes.chunks(512) {
            // Best effort: a page that stays mapped is a page whose touches are not seen.
            let _ = process::zap(pidfd.as_fd(), part);
        }
    }

    fn resolve(&self, space: SpaceNo, addr: u64) -> Option<(Range<u64>, Region)> {
        let live = self.space(space)?;
        let &(pid, _) = live.process.get()?;
        let found = process::mapping_at(pid, addr).ok()??;
        let file = *self.by_memfd_ino.read().expect("lock").get(&found.inode)?;
        let writable = self.file(file)?.writable();
        let region = Region {
            file,
            bias: found.offset.wrapping_sub(found.start),
            shared: found.shared,
            read_only: !found.shared && (!writable || self.is_user_mode_only()),
            library: false,
        };
        Some((found.start..found.end, region))
    }

    fn announce(&self, file: FileNo, told: Option<Told>) {
        if let Some(slots) = self.slots.get() {
            slots.announce(file, told);
        }
    }

    fn doubt(&self, file: FileNo, is_doubted: bool) {
        if let Some(slots) = self.slots.get() {
            match is_doubted {
                true => slots.set_flags(file, wire::SLOT_DOUBTED),
                false => slots.drop_flags(file, wire::SLOT_DOUBTED),
            }
        }
    }

    fn shared(&self, file: FileNo) {
        if let Some(slots) = self.slots.get() {
            slots.set_flags(file, wire::SLOT_SHARED);
        }
    }

    fn missed(&self, file: FileNo) {
        if let Some(slots) = self.slots.get() {
            slots.missed(file);
        }
    }

    fn defer(&self) -> bool {
        self.hands.get().is_some()
    }

    fn hand_over(&self, work: Deferred) -> Result<(), Deferred> {
        match self.hands.get() {
            Some(hands) => hands.hand_over(work),
            None => Err(work),
        }
    }

    fn again(&self) {
        match self.hands.get() {
            Some(hands) => hands.again(),
            None => std::thread::yield_now(),
        }
    }
}
