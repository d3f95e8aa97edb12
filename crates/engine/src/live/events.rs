//! What the kernel reports about address spaces: faults to serve, changes to follow.
//!
//! One thread reads every space's userfaultfd, and serves a fault right there or [leaves it to
//! workers](crate::live::dispatch). When the kernel answers a thread that the address space is changing,
//! that thread reads on ([`Manager::pump`]): the change waits for exactly that, and the thread that
//! usually reads may be waiting for a page that this one has claimed.

use crate::engine::core::Fault;
use crate::engine::spaces::Space;
use crate::live::dispatch::Faulting;
use crate::live::follow::Follow;
use crate::live::shortage::is_shortage;
use crate::manager::work::Work;
use crate::manager::{Manager, SETTLE_MAX};
use crate::port::{FileNo, SpaceNo};
use pagekeeper_sys::Errno;
use pagekeeper_sys::clock::monotonic_ns;
use pagekeeper_sys::event::{Interest, Ready};
use pagekeeper_sys::process;
use pagekeeper_sys::userfault::{Event, Userfault};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Number in the epoll set of the descriptor that wakes the event thread.
const KICK: u64 = u64::MAX;
/// How often address spaces are checked for being gone.
pub(crate) const REAP_EVERY: Duration = Duration::from_millis(200);
/// How long the thread that reads events may serve a fault until another reads them.
const AWAY_LONG: Duration = Duration::from_millis(100);
/// How often that one looks whether it is back.
const STAND_IN_LOOK: Duration = Duration::from_millis(10);
/// Until forks are looked at again for which there was no descriptor.
const STARVED_PAUSE: Duration = Duration::from_millis(5);

/// Since when the thread that reads events serves a fault, and whether another reads meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// CLOCK_MONOTONIC; 0 while it reads.
    since_ns: AtomicU64,
    has_stand_in: AtomicBool,
}

impl Away {
    fn begin(&self) {
        self.since_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    fn end(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
    }

    fn is_for_longer_than(&self, long: Duration) -> bool {
        let since_ns = self.since_ns.load(Ordering::Relaxed);
        since_ns != 0 && u128::from(monotonic_ns().saturating_sub(since_ns)) > long.as_nanos()
    }

    /// Whether nobody stood in, and somebody does from now on.
    fn takes_place(&self) -> bool {
        !self.has_stand_in.swap(true, Ordering::Relaxed)
    }

    fn give_place_back(&self) {
        self.has_stand_in.store(false, Ordering::Relaxed);
    }
}

/// Files that were written back because nobody mapped them any more, and when. A file that grows is unmapped
/// and mapped anew by many programs, each time: what is stored meanwhile is written back as ever, within
/// seconds.
#[derive(Default)]
pub(crate) struct Unmapped(Mutex<HashMap<FileNo, Flushed>>);

/// When a file was written back, and whether it was to be since.
struct Flushed {
    at: Instant,
    again: bool,
}

impl Flushed {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < Unmapped::EVERY
    }
}

impl Unmapped {
    /// How seldom the same file is written back for this.
    const EVERY: Duration = Duration::from_millis(100);
    /// So many are kept before those are forgotten that were written back longer ago.
    const FILES: usize = 256;

    fn is_due(&self, file: FileNo, now: Instant) -> bool {
        let mut files = self.0.lock().expect("lock");
        if let Some(flushed) = files.get_mut(&file).filter(|flushed| flushed.is_recent(now)) {
            flushed.again = true;
            return false;
        }
        if files.len() >= Self::FILES {
            files.retain(|_, flushed| flushed.again || flushed.is_recent(now));
        }
        files.insert(file, Flushed { at: now, again: false });
        true
    }

    /// Those that were not due, and are now.
    fn take_late(&self, now: Instant) -> Vec<FileNo> {
        let mut files = self.0.lock().expect("lock");
        let late = files.iter_mut().filter(|(_, flushed)| flushed.again && !flushed.is_recent(now));
        late.map(|(file, flushed)| {
            *flushed = Flushed { at: now, again: false };
            *file
        })
        .collect()
    }
}

impl Manager {
    /// Reads and serves events until `stop` says so. Runs on a thread of its own.
    pub(crate) fn event_loop(&self, stop: &dyn Fn() -> bool) {
        let _ = self.event_thread.set(std::thread::current().id());
        let _ = self.epoll.add(&self.kick, KICK, Interest::READ);
        let mut ready = Vec::new();
        let mut faults = Vec::new();
        let (mut faulting, mut follow) = (Faulting::default(), Follow::new());
        let mut reaped = Instant::now();
        while !stop() {
            ready.clear();
            let _ = self.epoll.wait(&mut ready, Some(REAP_EVERY));
            if self.read_ready(&ready, &mut faults) {
                let _ = self.kick.drain();
                reaped -= REAP_EVERY;
            }
            if self.starved.swap(false, Ordering::Relaxed) {
                // What waits is reported as ready all the time.
                std::thread::sleep(STARVED_PAUSE);
            }
            if let Some(last) = faults.last() {
                self.waits.count(faults.len());
                follow.seen(last.tid, faulting.seen(last.tid, faults.len() > 1));
                self.away.begin();
                self.engine.dispatch(&mut faults, &faulting, Some(&self.workers));
                self.away.end();
            }
            if reaped.elapsed() >= REAP_EVERY {
                reaped = Instant::now();
                self.reap();
            }
        }
    }

    /// Reads the events of spaces that have some. Whether the thread that usually does that is called.
    fn read_ready(&self, ready: &[Ready], faults: &mut Vec<Fault>) -> bool {
        let mut is_kicked = false;
        for token in ready.iter().map(|r| r.token) {
            if token == KICK {
                is_kicked = true;
            } else {
                let order = self.mapping_order.lock().expect("lock");
                self.read_space(token as SpaceNo, faults, &order);
            }
        }
        is_kicked
    }

    /// Waits until those are applied that were read.
    pub(crate) fn await_events(&self) {
        drop(self.mapping_order.lock().expect("lock"));
    }

    /// Sees to it that somebody reads events, should the thread that usually does wait for storage. From
    /// time to time.
    pub(crate) fn look_after_events(&self) {
        if self.away.is_for_longer_than(AWAY_LONG) && self.away.takes_place() {
            let stands_in = self.workers.offer(Work::StandIn);
            if stands_in.is_err() {
                self.away.give_place_back();
            }
        }
    }

    /// Reads events, and leaves faults to others, until the thread that usually does is back.
    fn stand_in(&self) {
        let (mut ready, mut faults) = (Vec::new(), Vec::new());
        let mut reaped = Instant::now();
        while self.away.is_for_longer_than(Duration::ZERO) {
            ready.clear();
            let _ = self.epoll.wait(&mut ready, Some(STAND_IN_LOOK));
            let is_kicked = self.read_ready(&ready, &mut faults);
            for fault in faults.drain(..) {
                let left = self.workers.offer(Work::Fault(fault));
                left.unwrap_or_else(|work| self.workers.push(work));
            }
            if is_kicked || self.starved.load(Ordering::Relaxed) {
                // What waits for the other thread is reported as ready all the time.
                std::thread::sleep(STARVED_PAUSE);
            }
            if reaped.elapsed() >= REAP_EVERY {
                reaped = Instant::now();
                self.reap();
            }
        }
        self.away.give_place_back();
    }

    /// Reads pending events of all spaces in the midst of other work; faults are handed over.
    pub(crate) fn pump(&self) {
        let mut faults = Vec::new();
        for no in self.engine.port().space_numbers() {
            // Whoever holds it reads, or is about to let others.
            if let Ok(order) = self.mapping_order.try_lock() {
                self.read_space(no, &mut faults, &order);
            }
        }
        for fault in faults {
            self.workers.push(Work::Fault(fault));
        }
    }

    /// Reads a space's events. The order is kept from before that until they are applied: see
    /// `mapping_order`.
    pub(crate) fn read_space(
        &self,
        no: SpaceNo,
        faults: &mut Vec<Fault>,
        _order: &MutexGuard<'_, ()>,
    ) {
        let Some(live) = self.engine.port().space(no) else { return };
        let mut events = Vec::new();
        let _applied = self.engine.hold_mappings();
        // Before they are read: one that is read has not been told of.
        let told = self.engine.failures_told();
        // One that forks waits until there is a descriptor for its child.
        match self.with_reserve(|| live.userfault.read_events(&mut events)) {
            Ok(_) => {}
            Err(errno) if is_shortage(errno) || errno == Errno::NOMEM => {
                self.note(format!("a process that forks had to wait: {errno}"));
                self.starved.store(true, Ordering::Relaxed);
                return;
            }
            Err(errno) => {
                let _ = self.epoll.remove(&live.userfault);
                let pidfd = live.process.get().and_then(|(_, pidfd)| pidfd.as_ref());
                let is_ended =
                    pidfd.is_some_and(|p| process::send_signal(p, libc::SIGKILL).is_ok());
                let what = if is_ended { "was ended" } else { "waits for them for ever" };
                self.note(format!("a process's page faults cannot be read ({errno}): it {what}"));
                return;
            }
        }
        for event in events {
            match event {
                Event::Fault { address, write, wp, tid, .. } => {
                    let fault = Fault { space: no, addr: address, write, protected: wp, tid, told };
                    if !self.probed(no, &live, fault) {
                        faults.push(fault);
                    }
                }
                Event::Fork { child } => self.forked(no, child),
                Event::Remap { from, to, len } => {
                    let moved = self.moved_bytes(no, &live, from, to, len);
                    self.engine.remapped(no, from, to, len, moved);
                }
                Event::Remove { start, end } => {
                    for cleared in self.engine.removed(no, start..end) {
                        self.workers.push(Work::Clear(cleared));
                    }
                }
                Event::Unmap { start, end } => {
                    for file in self.engine.unmapped(no, start..end) {
                        if self.may_be_unused(file) {
                            self.workers.push(Work::LetGo);
                        } else if self.unmapped.is_due(file, Instant::now()) {
                            self.workers.push(Work::Flush(file));
                        }
                    }
                }
            }
        }
        self.hand_over_orphans();
    }

    /// Heap memory that was unmapped is dropped by others: that may have to wait for pages.
    pub(crate) fn hand_over_orphans(&self) {
        for orphan in self.engine.take_orphans() {
            self.workers.push(Work::Drop(orphan));
        }
    }

    /// A process forked: its child maps what it maps.
    fn forked(&self, parent: SpaceNo, child: Userfault) {
        let content = self
            .engine
            .space_without_heap(parent)
            .map_or_else(Space::default, |s| Space { pid: 0, mends: Default::default(), ..s });
        match self.add_space(child, 0, content) {
            Ok(child) => self.heaps.forked(parent, child),
            Err(errno) => self.note(format!("a forked child could not be followed: {errno}")),
        }
    }

    /// Spaces for which there was no memory to be told of their events.
    fn listen_to_the_unheard(&self) {
        let unheard = std::mem::take(&mut *self.unheard.lock().expect("lock"));
        for no in unheard {
            let Some(live) = self.engine.port().space(no) else { continue };
            if self.epoll.add(&live.userfault, u64::from(no), Interest::READ).is_err() {
                self.unheard.lock().expect("lock").push(no);
            }
        }
    }

    /// Forgets address spaces that are gone.
    pub(crate) fn reap(&self) {
        self.listen_to_the_unheard();
        self.hold_off_no_longer();
        for file in self.unmapped.take_late(Instant::now()) {
            self.workers.push(Work::Flush(file));
        }
        let Ok(_one) = self.reaping.try_lock() else { return };
        let port = self.engine.port();
        for no in port.space_numbers() {
            let Some(live) = port.space(no) else { continue };
            if !live.userfault.is_alive() {
                let _ = self.epoll.remove(&live.userfault);
                // A fork of it may have been read, and not been noticed yet.
                self.await_events();
                for file in self.engine.dirty_files_of(no) {
                    if self.ends.note(file) {
                        self.workers.push(Work::FlushEnded(file));
                    }
                }
                for file in self.engine.close_space(no) {
                    if self.may_be_unused(file) {
                        self.workers.push(Work::LetGo);
                    }
                }
                self.hand_over_orphans();
                let heap = self.heaps.end_of_space(no);
                self.heaps.end_of_child(no);
                port.remove_space(no);
                if let Some(heap) = heap {
                    self.workers.push(Work::Retire(heap));
                }
            }
        }
        self.reap_clients();
    }

    /// Works until the queue is closed. Runs on several threads.
    pub(crate) fn work_loop(&self) {
        while let Some(work) = self.workers.next() {
            match work {
                Work::Fault(fault) => self.engine.serve(fault),
                Work::Misses(misses) => self.engine.end_misses(vec![*misses]),
                Work::Deferred(work) => self.engine.run_deferred(work),
                Work::Clear(cleared) => self.drop_cleared(&cleared),
                Work::Drop(orphan) => self.drop_orphan(&orphan),
                Work::Retire(file) => self.retire_heap(file),
                Work::StandIn => self.stand_in(),
                Work::LetGo => self.let_go(),
                Work::LetIdleGo => self.let_idle_go(),
                Work::FlushEnded(file) => {
                    self.ends.write(file, || {
                        // Afterwards a lock may be given up that what was stored is under.
                        let _ = self.engine.write_out_changing(file, SETTLE_MAX);
                    });
                }
                Work::Flush(file) => {
                    // An error stays with the file, and is reported at its next sync or the end.
                    let _ = self.engine.write_out_unheld(file, 0..u64::MAX);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second time within a tenth of a second was forgotten: somebody outside saw what had been stored
    /// seconds later.
    #[test]
    fn a_file_that_is_unmapped_again_at_once_is_written_back_a_little_later() {
        let unmapped = Unmapped::default();
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        assert!(unmapped.is_due(1, at(0)) && !unmapped.is_due(1, at(10)));
        assert!(unmapped.is_due(2, at(20)));
        assert_eq!(unmapped.take_late(at(90)), []);
        assert_eq!(unmapped.take_late(at(110)), [1]);
        assert_eq!(unmapped.take_late(at(300)), [], "once");
        assert!(unmapped.is_due(1, at(350)) && !unmapped.is_due(1, at(360)));
        // However many others come.
        (10..10 + 2 * Unmapped::FILES as FileNo)
            .for_each(|no| assert!(unmapped.is_due(no, at(500))));
        assert_eq!(unmapped.take_late(at(500)), [1]);
    }
}
