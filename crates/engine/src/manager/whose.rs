//! Whose memory a space is. A connection says which process it comes from, and a userfaultfd that comes
//! with one is that process's. A forked child's comes from the kernel, which says nothing of the child: the
//! thread of its first fault does, whose number is that of the child's own process namespace.

use super::Manager;
use crate::engine::core::Fault;
use crate::live::LiveSpace;
use crate::port::{PAGE_BYTES, SpaceNo};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::userfault::Track;
use pagekeeper_sys::{Errno, process};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Name of the memory that a probe page is.
const PROBE: &str = "pagekeeper-probe";
/// [`LiveSpace::toucher`]: a thread whose number says nothing here, and which did not touch the probe page.
const UNKNOWN: u32 = u32::MAX;

impl Manager {
    /// The space of a process; the newest, if it executed several programs.
    pub(crate) fn space_of(&self, pid: u32) -> Option<SpaceNo> {
        let port = self.engine.port();
        let mut numbers = port.space_numbers();
        numbers.reverse();
        numbers.into_iter().find(|&no| {
            port.space(no).is_some_and(|s| {
                s.process.get().is_some_and(|p| p.0 == pid) && s.userfault.is_alive()
            })
        })
    }

    /// A probe page's memfd. The kernel registers only what may be written, and who may write a
    /// memfd may cut it off: each client has one of its own.
    pub(crate) fn probe_for_client(&self) -> Result<OwnedFd, Errno> {
        Memfd::create(PROBE, PAGE_BYTES, false)?.reopen_writable()
    }

    /// Registers the probe page of a space.
    pub(crate) fn set_probe(&self, space: SpaceNo, addr: u64) -> Result<(), Errno> {
        let live = self.engine.port().space(space).ok_or(Errno::SRCH)?;
        live.userfault.register(addr, PAGE_BYTES, Track::MISSING | Track::MINOR)?;
        self.engine.with_space(space, |s| s.probe = addr);
        Ok(())
    }

    /// It is known now whose memory a space is.
    pub(crate) fn is_owned_by(&self, no: SpaceNo, live: &LiveSpace, pid: u32) {
        let open = || self.with_reserve(|| process::pidfd_open(pid));
        let (_, pidfd) = live.process.get_or_init(|| (pid, open().ok()));
        if let Some(pidfd) = pidfd {
            self.tell(|witness| witness.owner(no, pid, pidfd.as_fd()));
        }
    }

    /// Learns whose memory this is, if nobody knows; answers the touch of a probe page.
    pub(crate) fn probed(&self, no: SpaceNo, live: &Arc<LiveSpace>, fault: Fault) -> bool {
        let page = fault.addr & !(PAGE_BYTES - 1);
        let probe = self.engine.with_space(no, |s| s.probe).unwrap_or(0);
        let is_probe = probe != 0 && page == probe;
        if live.process.get().is_none()
            && fault.tid != 0
            && (is_probe || live.toucher.load(Ordering::Relaxed) == 0)
        {
            match self.with_reserve(|| process::tgid_of(fault.tid)) {
                Ok(pid) if self.maps_probe(pid, probe) && self.space_of(pid).is_none() => {
                    self.belongs_to(no, live, pid);
                }
                // It says so itself when it has connected.
                _ => {
                    let toucher = if is_probe { fault.tid } else { UNKNOWN };
                    live.toucher.store(toucher, Ordering::Relaxed);
                }
            }
        }
        if !is_probe {
            return false;
        }
        let uf = &live.userfault;
        if uf.cont(page, PAGE_BYTES, false, false).is_err()
            && uf.zeropage(page, PAGE_BYTES, false).is_err()
        {
            let _ = uf.wake(page, PAGE_BYTES);
        }
        true
    }

    /// A forked child has connected, by a thread that has touched its probe page before and has this number
    /// in its own process namespace. Its memory, if the touch did not say whose it is, is the one whose
    /// toucher had this number; of several (children of one process, the first in a namespace each), nobody
    /// knows.
    pub(crate) fn connected_after_touch(&self, pid: u32, thread: u32) {
        if self.space_of(pid).is_some() {
            return;
        }
        let port = self.engine.port();
        let spaces = port.space_numbers().into_iter().filter_map(|no| Some((no, port.space(no)?)));
        let mut touched = spaces.filter(|(_, live)| {
            let toucher = live.toucher.load(Ordering::Relaxed);
            toucher == thread && live.process.get().is_none() && live.userfault.is_alive()
        });
        match (touched.next(), touched.next()) {
            (Some((no, live)), None) => self.belongs_to(no, &live, pid),
            (Some(_), Some(_)) => self.note(format!(
                "process {pid} could not be told from another that has its number in another process \
                 namespace: it can map no more files (ENOMEM)"
            )),
            (None, _) => {}
        }
    }

    fn belongs_to(&self, no: SpaceNo, live: &LiveSpace, pid: u32) {
        self.is_owned_by(no, live, pid);
        self.engine.with_space(no, |s| s.pid = pid);
    }

    /// Whether a process has the probe page that a child inherited.
    fn maps_probe(&self, pid: u32, probe: u64) -> bool {
        let mut found = false;
        let mut look = |mapping: process::Mapping<'_>| {
            found = (mapping.start, mapping.end) == (probe, probe + PAGE_BYTES);
            false
        };
        let _ = self.with_reserve(|| process::for_each_shared_mapping(pid, probe, &mut look));
        found
    }
}
