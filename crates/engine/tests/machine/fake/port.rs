//! The machine as the engine sees it.

use super::machine::{Frame, Machine, Page, Pte, State};
use super::world::Hands;
use pagekeeper::engine::spaces::Region;
use pagekeeper::engine::{Buffer, Deferred};
use pagekeeper::port::{
    FileNo, Loading, LoadingInPlace, Look, MOVED_TOGETHER_MAX, Mapped, PAGE_BYTES, Port, PortError,
    SpaceNo, Storing, Told, Version,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub struct FakePort {
    pub machine: Arc<Machine>,
    pub hands: Option<Hands>,
}

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;

fn page_of(data: &[u8]) -> Page {
    Page::new(data.try_into().expect("a whole page"))
}

impl FakePort {
    fn changing(&self, space: SpaceNo) -> Result<(), PortError> {
        let chaos = &self.machine.chaos;
        chaos.delay();
        if chaos.hits(&chaos.again) {
            return Err(PortError::Again);
        }
        match self.machine.lock().space(space) {
            None => Err(PortError::Gone),
            Some(s) if s.changing > 0 => Err(PortError::Again),
            Some(_) => Ok(()),
        }
    }

    fn set_protection(
        &self,
        space: SpaceNo,
        addr: u64,
        pages: u64,
        to: bool,
    ) -> Result<(), PortError> {
        self.changing(space)?;
        let mut state = self.machine.lock();
        let s = state.space(space).ok_or(PortError::Gone)?;
        if s.changing > 0 {
            return Err(PortError::Again);
        }
        let end = addr + pages * PAGE_BYTES;
        if s.vma(addr).is_none() {
            return Err(PortError::Gone);
        }
        for (_, pte) in s.ptes.range_mut(addr..end) {
            if let Pte::Frame { protected, .. } = pte {
                *protected = to;
            }
        }
        if !to {
            self.machine.wake(&mut state, space, addr..end);
        }
        Ok(())
    }
}

impl FakePort {
    /// The same machine, for a transfer that is under way.
    fn again(&self) -> FakePort {
        FakePort { machine: Arc::clone(&self.machine), hands: None }
    }

    fn loses(&self) -> bool {
        self.machine.chaos.hits(&self.machine.chaos.under_way)
    }
}

/// Most pages that are read in place at a time.
const IN_PLACE_PAGES_MAX: u32 = 3;

/// A read into frames that is under way.
struct InPlace {
    port: FakePort,
    file: FileNo,
    pages: Range<u64>,
}

impl Drop for InPlace {
    fn drop(&mut self) {
        let mut state = self.port.machine.lock();
        state.files[self.file as usize].under_way.retain(|page| !self.pages.contains(page));
    }
}

impl InPlace {
    /// Puts what was read, or nothing yet, into the frames.
    fn put(&self, data: &[u8]) {
        let mut state = self.port.machine.lock();
        let frames = &mut state.files[self.file as usize].frames;
        for (index, data) in self.pages.clone().zip(data.chunks(PAGE_BYTES as usize)) {
            frames.insert(index, Frame { data: page_of(data), dirty: false });
        }
        let frames = state.frames();
        state.frames_max = state.frames_max.max(frames);
        if let Some(limit) = self.port.machine.frames_limit {
            assert!(frames <= limit, "{frames} frames in use, {limit} allowed");
        }
    }
}

/// A write under way, which ends after so many looks.
struct FakeStoring {
    port: FakePort,
    file: FileNo,
    index: u64,
    bytes: usize,
    buffer: Buffer,
    /// It is one of several, with a buffer for all.
    is_shared: bool,
    stored: Option<bool>,
    looks_left: u32,
}

impl FakePort {
    fn begin(
        &self,
        file: FileNo,
        index: u64,
        buffer: Buffer,
        pages: u64,
        is_shared: bool,
    ) -> Box<dyn Storing> {
        let port = self.again();
        let bytes = (pages * PAGE_BYTES) as usize;
        let early = index
            .is_multiple_of(2)
            .then(|| port.store(file, index, &buffer[..bytes], u64::MAX).is_ok());
        let chaos = &port.machine.chaos;
        let looks_left = if chaos.hits(&chaos.overdue) { 1 + index as u32 % 4 } else { 0 };
        let stored = early;
        Box::new(FakeStoring { port, file, index, bytes, buffer, is_shared, stored, looks_left })
    }
}

impl FakeStoring {
    fn stands_still(&self) -> bool {
        self.port.machine.lock().files[self.file as usize].stands_still
    }
}

impl Storing for FakeStoring {
    fn ends_within(&mut self, longest: Duration) -> bool {
        if self.looks_left > 0 || self.stands_still() {
            self.looks_left = self.looks_left.saturating_sub(1);
            std::thread::sleep(longest.min(Duration::from_micros(200)));
            return false;
        }
        true
    }

    fn end(self: Box<Self>) -> (Option<Buffer>, bool) {
        while self.stands_still() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let FakeStoring { port, file, index, bytes, buffer, is_shared, stored, .. } = *self;
        port.machine.chaos.delay();
        let late = || port.store(file, index, &buffer[..bytes], u64::MAX).is_ok();
        let stored = stored.unwrap_or_else(late);
        let buffer = (!is_shared).then_some(buffer);
        if port.loses() { (None, false) } else { (buffer, stored) }
    }
}

impl Port for FakePort {
    fn begins_loads(&self, _file: FileNo) -> bool {
        !self.machine.chaos.hits(&self.machine.chaos.in_place)
    }

    fn request_pages_max(&self, _file: FileNo) -> u32 {
        let chaos = &self.machine.chaos;
        if chaos.may_hit(&chaos.in_place) { IN_PLACE_PAGES_MAX } else { u32::MAX }
    }

    fn begin_load_in_place(&self, file: FileNo, index: u64, pages: u64) -> Option<LoadingInPlace> {
        if !self.machine.chaos.hits(&self.machine.chaos.in_place) || self.loses() {
            return None;
        }
        assert!(pages <= IN_PLACE_PAGES_MAX.into());
        let pages = index..index + pages;
        {
            let mut state = self.machine.lock();
            let held = &mut state.files[file as usize];
            for page in pages.clone() {
                assert!(held.under_way.insert(page), "page {page} is being read already");
                assert!(!held.frames.contains_key(&page), "page {page} is in memory");
            }
        }
        let reading = InPlace { port: self.again(), file, pages };
        let mut data = vec![0; ((reading.pages.end - index) * PAGE_BYTES) as usize];
        reading.put(&data);
        // The device reads at any time in between.
        let at_once = index.is_multiple_of(2);
        let early = at_once.then(|| self.load(file, index, &mut data).ok());
        Some(Box::new(move || {
            let port = &reading.port;
            port.machine.chaos.delay();
            let late = || port.load(file, index, &mut data).ok();
            let loaded = early.unwrap_or_else(late)?;
            if port.loses() {
                return None;
            }
            reading.put(&data);
            Some(loaded)
        }))
    }

    fn begins_loads_together(&self, _file: FileNo) -> bool {
        !self.loses()
    }

    fn begin_loads(&self, file: FileNo, ranges: &[Range<u64>]) -> Option<Vec<LoadingInPlace>> {
        let pages: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(!ranges.is_empty() && pages <= MOVED_TOGETHER_MAX);
        if self.loses() {
            return None;
        }
        let asked_for = ranges.iter().cloned().flatten().collect();
        self.machine.lock().files[file as usize].together.push(asked_for);
        let begin = |pages: &Range<u64>| -> LoadingInPlace {
            let index = pages.start;
            let mut data = vec![0; ((pages.end - index) * PAGE_BYTES) as usize];
            let port = self.again();
            // The device reads at any time in between.
            let at_once = index.is_multiple_of(2);
            let early = at_once.then(|| port.load(file, index, &mut data).ok());
            Box::new(move || {
                port.machine.chaos.delay();
                let late = || port.load(file, index, &mut data).ok();
                let loaded = early.unwrap_or_else(late)?;
                // One that goes wrong has put some pages in.
                let is_filled = port.fill(file, index, &data).is_ok();
                (is_filled && !port.loses()).then_some(loaded)
            })
        };
        Some(ranges.iter().map(begin).collect())
    }

    fn begin_load(
        &self,
        file: FileNo,
        index: u64,
        mut buffer: Buffer,
        pages: u64,
    ) -> Result<Loading, Buffer> {
        if self.loses() {
            return Err(buffer);
        }
        let port = self.again();
        let bytes = (pages * PAGE_BYTES) as usize;
        // The device reads at any time in between.
        let at_once = index.is_multiple_of(2);
        let early = at_once.then(|| port.load(file, index, &mut buffer[..bytes]).ok());
        Ok(Box::new(move || {
            port.machine.chaos.delay();
            if port.loses() {
                return (None, None);
            }
            let late = || port.load(file, index, &mut buffer[..bytes]).ok();
            let loaded = early.unwrap_or_else(late);
            (Some(buffer), loaded)
        }))
    }

    fn begin_store(
        &self,
        file: FileNo,
        index: u64,
        buffer: Buffer,
        pages: u64,
    ) -> Result<Box<dyn Storing>, Buffer> {
        if self.loses() {
            return Err(buffer);
        }
        Ok(self.begin(file, index, buffer, pages, false))
    }

    fn begins_stores(&self, _file: FileNo) -> bool {
        !self.loses()
    }

    fn begin_stores(&self, file: FileNo, ranges: &[Range<u64>]) -> Option<Vec<Box<dyn Storing>>> {
        let pages: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(ranges.len() > 1 && pages <= MOVED_TOGETHER_MAX);
        if self.loses() {
            return None;
        }
        let begin = |range: &Range<u64>| {
            let pages = range.end - range.start;
            let mut buffer = Buffer::new((pages * PAGE_BYTES) as usize).unwrap();
            self.peek(file, range.start, &mut buffer).unwrap();
            self.begin(file, range.start, buffer, pages, true)
        };
        Some(ranges.iter().map(begin).collect())
    }

    fn fill(&self, file: FileNo, index: u64, data: &[u8]) -> Result<(), PortError> {
        let machine = &self.machine;
        machine.chaos.delay();
        let fails = machine.chaos.hits(&machine.chaos.fill_enomem);
        let pages = data.len() as u64 / PAGE_BYTES;
        // A fill that fails has put some pages in.
        let pages = if fails { pages / 2 } else { pages };
        let mut state = machine.lock();
        for i in 0..pages {
            let at = (i * PAGE_BYTES) as usize;
            let data = page_of(&data[at..at + PAGE_BYTES as usize]);
            let frames = &mut state.files[file as usize].frames;
            let old = frames.insert(index + i, Frame { data, dirty: false });
            assert!(old.is_none_or(|f| !f.dirty), "page {} of {file}: filled over", index + i);
        }
        let frames = state.frames();
        state.frames_max = state.frames_max.max(frames);
        if let Some(limit) = machine.frames_limit {
            assert!(frames <= limit, "{frames} frames in use, {limit} allowed");
        }
        drop(state);
        machine.chaos.delay();
        if fails { Err(PortError::Io(ENOMEM)) } else { Ok(()) }
    }

    fn peek(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<(), PortError> {
        self.machine.chaos.delay();
        let state = self.machine.lock();
        for (i, part) in data.chunks_mut(PAGE_BYTES as usize).enumerate() {
            let frame = state.files[file as usize].frames.get(&(index + i as u64));
            part.copy_from_slice(&frame.expect("only resident pages are looked at").data[..]);
        }
        drop(state);
        self.machine.chaos.delay();
        Ok(())
    }

    fn patch(&self, file: FileNo, offset_bytes: u64, data: &[u8]) -> Result<(), PortError> {
        self.machine.chaos.delay();
        let mut state = self.machine.lock();
        let frames = &mut state.files[file as usize].frames;
        let frame = frames.get_mut(&(offset_bytes / PAGE_BYTES));
        let at = (offset_bytes % PAGE_BYTES) as usize;
        frame.expect("only resident pages are patched").data[at..at + data.len()]
            .copy_from_slice(data);
        Ok(())
    }

    fn discard(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        let machine = &self.machine;
        machine.chaos.delay();
        if machine.chaos.hits(&machine.chaos.discard_fails) {
            return Err(PortError::Io(ENOMEM));
        }
        let mut state = machine.lock();
        let range = index..index.saturating_add(pages);
        let held = &mut state.files[file as usize];
        let busy = held.under_way.range(range.clone()).next();
        assert!(busy.is_none(), "page {busy:?} of file {file} is taken away while it is read");
        let size = held.storage.len() as u64;
        let gone: Vec<u64> = held.frames.range(range.clone()).map(|(i, _)| *i).collect();
        for i in gone {
            let frame = held.frames.remove(&i).expect("listed");
            let beyond = i * PAGE_BYTES >= size || held.stored_to.contains_key(&i);
            let from = (i * PAGE_BYTES) as usize;
            // Who stored what was there need not be written back.
            let stored = held.storage.get(from..from + PAGE_BYTES as usize);
            let lost = frame.dirty && stored != Some(&frame.data[..]);
            assert!(!lost || beyond, "page {i} of file {file}: a dirty page is thrown away");
        }
        for space in state.spaces.iter_mut().flatten() {
            space.ptes.retain(|_, pte| {
                !matches!(pte, Pte::Frame { file: f, index: i, .. }
                    if *f == file && range.contains(i))
            });
        }
        drop(state);
        machine.chaos.delay();
        Ok(())
    }

    fn resize(&self, file: FileNo, pages: u64) -> Result<(), PortError> {
        self.machine.lock().files[file as usize].pages = pages;
        Ok(())
    }

    fn load(&self, file: FileNo, index: u64, data: &mut [u8]) -> Result<u64, PortError> {
        let machine = &self.machine;
        machine.chaos.delay();
        let pages = data.len() as u64 / PAGE_BYTES;
        let is_held = |state: &State| {
            let held = &state.files[file as usize].held_loads;
            held.range(index..index + pages).next().is_some()
        };
        while is_held(&machine.lock()) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut state = machine.lock();
        let held = &mut state.files[file as usize];
        for i in index..index + pages {
            *held.loads.entry(i).or_default() += 1;
        }
        if held.bad_loads.range(index..index + pages).next().is_some()
            || machine.chaos.hits(&machine.chaos.load_eio)
        {
            return Err(PortError::Io(EIO));
        }
        let from = ((index * PAGE_BYTES) as usize).min(held.storage.len());
        let to = (from + data.len()).min(held.storage.len());
        data.fill(0);
        data[..to - from].copy_from_slice(&held.storage[from..to]);
        drop(state);
        machine.chaos.delay();
        Ok((to - from) as u64)
    }

    fn store(
        &self,
        file: FileNo,
        index: u64,
        data: &[u8],
        end_bytes: u64,
    ) -> Result<(), PortError> {
        let machine = &self.machine;
        machine.chaos.delay();
        let mut state = machine.lock();
        let held = &mut state.files[file as usize];
        let fails = machine.chaos.hits(&machine.chaos.store_eio);
        for (i, part) in data.chunks(PAGE_BYTES as usize).enumerate() {
            let i = index + i as u64;
            // What comes before the failure is written, and nobody knows how much that is.
            if fails || held.bad_stores.contains(&i) {
                return Err(PortError::Io(EIO));
            }
            *held.stores.entry(i).or_default() += 1;
            if machine.chaos.hits(&machine.chaos.keeps) {
                held.kept.insert(i);
            } else {
                held.kept.remove(&i);
            }
            let from = ((i * PAGE_BYTES) as usize).min(held.storage.len());
            let end = held.storage.len().min(usize::try_from(end_bytes).unwrap_or(usize::MAX));
            let to = (from + part.len()).min(end).max(from);
            held.storage[from..to].copy_from_slice(&part[..to - from]);
            held.changed();
            held.journal_page(i);
            if let Some(frame) = held.frames.get_mut(&i)
                && frame.data[..] == *part
            {
                // What a program stores from here on, without a fault, would be lost.
                frame.dirty = false;
            }
        }
        drop(state);
        let then = machine.after_store.lock().expect("no panic").take();
        if let Some(then) = then {
            then(machine);
        }
        machine.chaos.delay();
        Ok(())
    }

    fn keeps_pages(&self, _file: FileNo) -> Option<bool> {
        let chaos = &self.machine.chaos;
        chaos.may_hit(&chaos.keeps).then(|| chaos.hits(&chaos.keeps))
    }

    /// Storage has something else from now on.
    fn take_kept(&self, file: FileNo, index: u64) -> bool {
        let mut state = self.machine.lock();
        let held = &mut state.files[file as usize];
        if !held.kept.remove(&index) {
            return false;
        }
        let from = ((index * PAGE_BYTES) as usize).min(held.storage.len());
        let to = (from + PAGE_BYTES as usize).min(held.storage.len());
        held.storage[from..to].fill(0xee);
        true
    }

    /// Each takes half of a page.
    fn kept_pages(&self) -> u32 {
        let state = self.machine.lock();
        state.files.iter().map(|held| held.kept.len() as u32).sum::<u32>() / 2
    }

    fn reserve(&self, file: FileNo, index: u64, pages: u64) -> Result<(), PortError> {
        self.machine.chaos.delay();
        let mut state = self.machine.lock();
        let held = &mut state.files[file as usize];
        if held.full.range(index..index + pages).next().is_some() {
            return Err(PortError::Io(ENOSPC));
        }
        for page in index..index + pages {
            // As fallocate(2) does.
            if held.reserved.insert(page) {
                held.changed();
            }
        }
        Ok(())
    }

    fn room_ahead(&self, file: FileNo, index: u64, pages: u64) -> u64 {
        let state = self.machine.lock();
        let held = &state.files[file as usize];
        let has_room = |page: &u64| held.reserved.contains(page) && !held.full.contains(page);
        (index..index + pages).take_while(has_room).count() as u64
    }

    fn version(&self, file: FileNo) -> Result<Version, PortError> {
        let state = self.machine.lock();
        let held = &state.files[file as usize];
        Ok(Version {
            size_bytes: held.storage.len() as u64,
            mtime_ns: held.mtime_ns,
            ctime_ns: held.mtime_ns,
        })
    }

    fn look(&self, file: FileNo) -> Result<Look, PortError> {
        let version = self.version(file)?;
        let tick_ns = self.machine.lock().files[file as usize].tick_ns;
        Ok(Look { version, is_open: tick_ns == Some(version.mtime_ns) })
    }

    fn close_time(&self, file: FileNo) {
        let held = &mut self.machine.lock().files[file as usize];
        if held.tick_ns == Some(held.mtime_ns) && !held.keeps_time {
            held.mtime_ns += 1;
        }
    }

    fn doubt(&self, file: FileNo, is_doubted: bool) {
        self.machine.lock().files[file as usize].is_doubted = is_doubted;
    }

    fn announce(&self, file: FileNo, told: Option<Told>) {
        if let Some(when_told) = &mut *self.machine.when_told.lock().expect("no panic") {
            when_told(&self.machine.lock(), file, told);
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
        assert!(!protect || self.maps_protected(), "asked for what this machine cannot do");
        self.changing(space)?;
        let mut existed = false;
        for i in 0..pages {
            let at = addr + i * PAGE_BYTES;
            let mut state = self.machine.lock();
            let s = state.space(space).ok_or(PortError::Gone)?;
            if s.changing > 0 {
                return Err(PortError::Again);
            }
            let (_, region) = s.vma(at).ok_or(PortError::Gone)?;
            let (file, index) = (region.file, region.index(at));
            let taken = matches!(s.ptes.get(&at), Some(Pte::Frame { .. } | Pte::Private(_)));
            if taken {
                existed = true;
            } else {
                let held = &state.files[file as usize];
                if index >= held.pages || !held.frames.contains_key(&index) {
                    return Err(PortError::Missing);
                }
                let pte = Pte::Frame { file, index, protected: protect };
                state.space(space).expect("looked up").ptes.insert(at, pte);
            }
            if wakes {
                self.machine.wake(&mut state, space, at..at + 1);
            }
            drop(state);
            if i + 1 < pages {
                self.machine.chaos.delay();
                if self.machine.chaos.hits(&self.machine.chaos.again) {
                    return Err(PortError::Again);
                }
            }
        }
        self.machine.chaos.delay();
        let after = self.machine.after_map.lock().unwrap().take();
        if let Some(after) = after {
            after(&self.machine);
        }
        Ok(Mapped { existed })
    }

    fn maps_protected(&self) -> bool {
        !self.machine.chaos.late.load(Ordering::Relaxed)
    }

    fn protect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        let happens = self.machine.around_protect.lock().expect("no panic").take();
        let then = happens.map(|happens| happens());
        let protected = self.set_protection(space, addr, pages, true);
        then.into_iter().for_each(|then| then());
        protected
    }

    fn unprotect(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        self.set_protection(space, addr, pages, false)
    }

    fn wake(&self, space: SpaceNo, addr: u64, pages: u64) -> Result<(), PortError> {
        let mut state = self.machine.lock();
        self.machine.wake(&mut state, space, addr..addr + pages * PAGE_BYTES);
        Ok(())
    }

    fn poison(&self, space: SpaceNo, addr: u64) -> Result<(), PortError> {
        self.changing(space)?;
        let mut state = self.machine.lock();
        let s = state.space(space).ok_or(PortError::Gone)?;
        if s.vma(addr).is_none() {
            return Err(PortError::Gone);
        }
        let free = !s.ptes.contains_key(&addr);
        if free {
            s.ptes.insert(addr, Pte::Poison);
        }
        self.machine.wake(&mut state, space, addr..addr + 1);
        if free { Ok(()) } else { Err(PortError::Io(EEXIST)) }
    }

    fn sigbus(&self, _space: SpaceNo, tid: u32, _: u64) -> Result<(), PortError> {
        self.machine.signal(tid);
        Ok(())
    }

    fn zap(&self, space: SpaceNo, ranges: &[(u64, u64)]) {
        for &(addr, pages) in ranges {
            self.machine.chaos.delay();
            let mut state = self.machine.lock();
            let Some(s) = state.space(space) else { return };
            let range = addr..addr + pages * PAGE_BYTES;
            s.ptes.retain(|a, pte| !(range.contains(a) && matches!(pte, Pte::Frame { .. })));
        }
    }

    fn resolve(&self, space: SpaceNo, addr: u64) -> Option<(Range<u64>, Region)> {
        let found = self.machine.lock().space(space)?.vma(addr);
        if let Some(happens) = self.machine.after_look.lock().expect("no panic").take() {
            happens();
        }
        // The true port cannot see it, and says this where nobody in the run may write to the file.
        found.map(|(range, region)| (range, Region { read_only: !region.shared, ..region }))
    }

    fn defer(&self) -> bool {
        self.hands.is_some()
    }

    fn hand_over(&self, work: Deferred) -> Result<(), Deferred> {
        match &self.hands {
            Some(hands) => hands.defer(work),
            None => Err(work),
        }
    }

    fn again(&self) {
        std::thread::yield_now();
    }
}
