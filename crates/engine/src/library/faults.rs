//! Faults of a program's own address space: who serves them.
//!
//! In *thread* mode a thread of the cache reads them from the userfaultfd. In *inline* mode the
//! kernel raises SIGBUS in the thread that touched a page (`UFFD_FEATURE_SIGBUS`), and its handler
//! brings the page in, right there: no switch to another thread. Both give them to the same engine.

use crate::engine::core::{Core, Fault};
use crate::engine::word::State;
use crate::engine::{Again, Engine};
use crate::library::cache::Shared;
use crate::library::port::LibraryPort;
use crate::library::process::{self, Process};
use crate::library::regions::HERE;
use crate::live::dispatch::Faulting;
use crate::manager::work::Workers;
use crate::port::{PAGE_BYTES, Port};
use pagekeeper_sys::Errno;
use pagekeeper_sys::bus::{self, BusError};
use pagekeeper_sys::event::{Epoll, EventFd, Interest};
use pagekeeper_sys::userfault::{Event, Features, OpenFlags, Userfault};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a page that could not be had goes on raising SIGBUS: whoever waited for it touches it once
/// more, and has to find out. If that comes too late, it is one more attempt.
const MARK_LASTS: Duration = Duration::from_millis(10);

/// How pages of mapped regions are brought in when they are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultPath {
    /// Never: segments are read, written and pinned, but not mapped. Needs nothing of the kernel,
    /// and is there for every user.
    #[default]
    Explicit,
    /// By a thread of the cache. The kernel's own accesses are served as well (a region may be a
    /// buffer of `read(2)`), where the user may have a full userfaultfd.
    Thread,
    /// By the thread that touched the page, in a SIGBUS handler: faster, and there for every user.
    /// A system call on a region's page that is not mapped just then fails with `EFAULT`; give it
    /// pinned pages ([`Segment::pin`](crate::library::Segment::pin)) instead. A thread that touches
    /// regions has 64 KiB of its stack free, and does not block SIGBUS.
    Inline,
}

/// Opens the descriptor of a fault path.
#[allow(unsafe_code)]
pub(crate) fn open(path: FaultPath) -> Result<Option<Userfault>, Errno> {
    let wanted = Features::PAGEFAULT_FLAG_WP
        | Features::WP_HUGETLBFS_SHMEM
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM;
    let features = match path {
        FaultPath::Explicit => return Ok(None),
        FaultPath::Thread => wanted | Features::THREAD_ID,
        FaultPath::Inline => wanted | Features::SIGBUS,
    };
    let full = OpenFlags { nonblocking: true, user_mode_only: false };
    let user = OpenFlags { user_mode_only: true, ..full };
    // SAFETY: the descriptor is used for regions only, whose bytes the library reaches by no
    // reference, and whose users are told what changes them (`Region::as_slice`).
    let userfault = match unsafe { Userfault::open(full) } {
        // SAFETY: as above.
        Err(Errno::PERM) => unsafe { Userfault::open(user) },
        result => result,
    }?;
    userfault.api(features)?;
    if path == FaultPath::Inline {
        bus::install(on_bus_error)?;
    }
    Ok(Some(userfault))
}

/// Opens a descriptor whose ranges get one page for each touch, and no fault for us: the kernel maps
/// what is in memory around a touched page along, but not where pages might be write-protected.
#[allow(unsafe_code)]
pub(crate) fn one_by_one() -> Option<Userfault> {
    let flags = OpenFlags { nonblocking: true, user_mode_only: true };
    // SAFETY: nothing of what a descriptor can do to a range's bytes is ever asked of it.
    let userfault = unsafe { Userfault::open(flags) }.ok()?;
    userfault.api(Features::PAGEFAULT_FLAG_WP | Features::WP_HUGETLBFS_SHMEM).ok()?;
    Some(userfault)
}

pub(crate) fn add_inline(process: &Process, range: Range<u64>, shared: Weak<Shared>) {
    process.inline.write().expect("regions").push((range, shared));
}

pub(crate) fn remove_inline(process: &Process, range: &Range<u64>) {
    process.inline.write().expect("regions").retain(|(known, _)| known != range);
}

fn on_bus_error(error: BusError) -> bool {
    let found = {
        let Some(process) = process::known() else { return false };
        let Ok(regions) = process.inline.read() else { return false };
        let hit = regions.iter().find(|(range, _)| range.contains(&error.address));
        hit.and_then(|(_, shared)| shared.upgrade())
    };
    let Some(shared) = found else { return false };
    if error.poisoned {
        return false;
    }
    // Numbers threads apart from one another, which is all that the engine asks.
    let tid = thread_number();
    let (addr, write, told) = (error.address, error.write, shared.engine.failures_told());
    let fault = Fault { space: HERE, addr, write, protected: false, tid, told };
    let (port, page) = (shared.engine.port(), error.address & !(PAGE_BYTES - 1));
    // An earlier touch of it may have gone on when the page came, and have been served once more
    // nevertheless, by who found it waiting: what became of that is nobody's concern any more.
    port.take_failure(tid, page);
    shared.engine.serve_inline(fault) && !port.take_failure(tid, page)
}

fn thread_number() -> u32 {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    thread_local! {
        static MINE: Cell<u32> = const { Cell::new(0) };
    }
    MINE.with(|mine| {
        if mine.get() == 0 {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}

impl<P: Port> Engine<P> {
    /// Serves a fault of the calling thread, waiting for its page. False if there is no such page.
    /// The access is to be made again: the page may have left meanwhile.
    pub(crate) fn serve_inline(&self, fault: Fault) -> bool {
        let mut again = Again::new();
        let at_rest = |core: &mut Core| {
            let Some(region) = core.region(fault.space, fault.addr) else { return Some(false) };
            let (place, _) = core.place_of(region, fault.addr);
            if core.is_behind_the_end(region, fault.addr) {
                return Some(false);
            }
            let (page, state) = core.state(place);
            let word = page.map(|page| core.word(page));
            let ready = match state {
                State::Absent => !core.unfetchable(place),
                State::Resident => word.is_some_and(|word| !word.doomed()),
                _ => false,
            };
            let clean = word.is_none_or(|word| !word.dirty());
            let barred = fault.write && region.shared && clean && core.unwritable(place);
            (ready && !barred).then_some(true)
        };
        let (core, found) = self.wait_until(&mut again, at_rest);
        drop(core);
        if found {
            again.push_front(fault);
        }
        self.serve_all(&mut again);
        found
    }
}

impl Engine<LibraryPort> {
    /// Takes the marks away that pages got which could not be had: whoever touches them again asks
    /// anew. Returns how long until there is more to do.
    fn take_marks_away(&self) -> Option<Duration> {
        loop {
            let addr = match self.port.next_mark(MARK_LASTS) {
                Ok(addr) => addr,
                Err(left) => return left,
            };
            // Nobody maps or copies anything meanwhile.
            let _layout = self.layout.write().expect("layout");
            let has_copy = {
                let core = self.lock();
                let Some(region) = core.region(HERE, addr) else { continue };
                let (_, start) = core.place_of(region, addr);
                !region.shared && core.is_own_copy(HERE, start)
            };
            if !has_copy {
                self.port.cut(HERE, addr, 1);
            }
        }
    }
}

const STOP: u64 = 1;
const MARKED: u64 = 2;

/// What a fault thread waits for.
pub(crate) struct Awaited {
    epoll: Epoll,
    marked: Arc<EventFd>,
}

impl Awaited {
    /// Faults, and that the descriptor in `stop` is written to. Made before the thread is, by who makes
    /// the cache: without it nobody would serve faults, and who touched a region would wait for ever.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(shared: &Shared, stop: &EventFd) -> Result<Awaited, Errno> {
        let port = shared.engine.port();
        let (epoll, marked) = (Epoll::new()?, Arc::new(EventFd::new()?));
        epoll.add(port.userfault().ok_or(Errno::OPNOTSUPP)?, 0, Interest::READ)?;
        epoll.add(stop, STOP, Interest::READ)?;
        epoll.add(&*marked, MARKED, Interest::READ)?;
        port.tell_of_marks(marked.clone());
        Ok(Awaited { epoll, marked })
    }
}

/// Reads and serves faults until it is to stop.
pub(crate) fn fault_loop(shared: &Shared, workers: &Arc<Workers>, awaited: &Awaited) {
    let Some(userfault) = shared.engine.port().userfault() else { return };
    let Awaited { epoll, marked } = awaited;
    let (mut ready, mut events) = (Vec::new(), Vec::new());
    let (mut faults, mut faulting) = (Vec::new(), Faulting::default());
    loop {
        ready.clear();
        let _ = epoll.wait(&mut ready, shared.engine.take_marks_away());
        if ready.iter().any(|r| r.token == STOP) {
            return;
        }
        let _ = marked.drain();
        events.clear();
        // Before they are read.
        let told = shared.engine.failures_told();
        if userfault.read_events(&mut events).is_err() {
            return;
        }
        for event in events.drain(..) {
            let Event::Fault { address, write, wp, tid, .. } = event else { continue };
            faults.push(Fault { space: HERE, addr: address, write, protected: wp, tid, told });
        }
        if let Some(last) = faults.last() {
            faulting.seen(last.tid, faults.len() > 1);
            let workers = shared.engine.port().has_workers().then_some(&**workers);
            shared.engine.dispatch(&mut faults, &faulting, workers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::{Cache, Protection};

    /// A touch that went on when its page came, and was served once more by another thread, left that
    /// one's failure to the next touch of its own, of whichever page: SIGBUS for a page that was there.
    #[test]
    #[allow(unsafe_code)]
    fn a_failure_is_that_of_one_touch_of_one_page() {
        let builder = Cache::builder(1 << 20).fault_path(FaultPath::Inline);
        let Ok(cache) = builder.write_back_period(None).build() else {
            println!("skipped: no inline fault path here; see `pagekeeper doctor`");
            return;
        };
        let segment = cache.scratch(4 * PAGE_BYTES).unwrap();
        let region = segment.map(0..4 * PAGE_BYTES, Protection::Read).unwrap();
        let (port, tid) = (cache.shared().engine.port(), thread_number());
        let page = |no: u64| region.as_ptr() as u64 + no * PAGE_BYTES;
        port.sigbus(HERE, tid, page(0)).unwrap();
        for no in [1, 0] {
            // SAFETY: in the region, which nobody stores to.
            assert_eq!(unsafe { std::ptr::read_volatile(page(no) as *const u8) }, 0);
        }
        assert!(!port.take_failure(tid, page(0)), "the touch of the page took it");
        port.sigbus(HERE, tid, page(3)).unwrap();
        let last = page(3);
        drop(region);
        assert!(!port.take_failure(tid, last), "kept for a region that is gone");
    }
}
