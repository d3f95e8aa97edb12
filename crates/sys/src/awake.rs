//! Processors of a virtual machine that do not sleep for a while.
//!
//! A processor with nothing to do halts, and who wakes a thread on it asks the hypervisor to have it go on: some
//! 50 µs on some machines, where the same thread on a processor that looks for work is woken in one or two. A
//! guest of KVM may look for work before it halts (`haltpoll`), but often is set not to; then a process may ask that
//! none halts, as long as it has a file open (Documentation/admin-guide/pm/cpuidle.rst and
//! Documentation/power/pm_qos_interface.rst in the kernel's sources).

use crate::mask::{self, Capability};
use crate::unforked::Unforked;
use std::fs;
use std::io::Write;
use std::path::Path;

/// The guest's own way to do without, in nanoseconds: as long as that it looks for work before it halts.
pub(crate) const OWN_POLL: &str = "sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// What that is by the kernel's default.
pub(crate) const OWN_POLL_NS: u64 = 200_000;
/// A guest that looks for work for so long is not to be kept from halting.
const OWN_POLL_NS_MIN: u64 = 50_000;
/// What has processors kept awake while it is open.
const LATENCY: &str = "dev/cpu_dma_latency";

/// What processors do that have nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Halting {
    /// They look for work for a while, or wake soon.
    Late,
    /// They halt at once, but can be kept from it.
    Prevented,
    /// They halt at once, and take long to wake.
    AtOnce,
}

/// What they do here.
pub(crate) fn halting() -> Halting {
    halting_under(Path::new("/"))
}

fn halting_under(root: &Path) -> Halting {
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    // Elsewhere to halt is to save power, and wakes soon.
    let driver = text("sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    let own_poll_ns = text(OWN_POLL).and_then(|ns| ns.trim().parse::<u64>().ok());
    if driver.trim() != "haltpoll" || own_poll_ns.is_none_or(|ns| ns >= OWN_POLL_NS_MIN) {
        return Halting::Late;
    }
    let is_permitted = mask::allows(Capability::SoonAwake) && open_latency(root).is_ok();
    if is_permitted { Halting::Prevented } else { Halting::AtOnce }
}

/// Nothing is asked for before it is written to.
fn open_latency(root: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().write(true).open(root.join(LATENCY))
}

/// Keeps the processors of this machine from halting as long as it lives. The kernel ends it with the process,
/// of whose children none has it.
#[derive(Debug)]
pub struct Awake {
    /// Open as long as it is asked for.
    #[allow(dead_code)]
    request: Unforked,
}

impl Awake {
    /// Begins. None if that would gain nothing, or is not permitted: root may.
    pub fn begin() -> Option<Awake> {
        Awake::begin_under(Path::new("/"))
    }

    fn begin_under(root: &Path) -> Option<Awake> {
        if halting_under(root) != Halting::Prevented {
            return None;
        }
        let mut request = open_latency(root).ok()?;
        // How long a processor may take to go on, in µs, as the kernel has its numbers.
        request.write_all(&0i32.to_ne_bytes()).ok()?;
        Some(Awake { request: Unforked::new(request.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_files::Files;
    use crate::in_child::in_child;
    use rustix::io::fcntl_getfd;
    use std::os::fd::AsFd;

    #[test]
    fn only_guests_that_halt_at_once_are_kept_awake() {
        let root = Files::new();
        let asked = || fs::read(root.path().join("dev/cpu_dma_latency")).unwrap();
        let begins = || Awake::begin_under(root.path()).is_some();
        assert!(!begins());
        root.put("dev/cpu_dma_latency", "");
        root.put("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
        root.put(OWN_POLL, "0\n");
        assert!(!begins());
        root.put("sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
        root.put(OWN_POLL, "200000\n");
        assert!(!begins());
        assert!(asked().is_empty());
        root.put(OWN_POLL, "0\n");
        assert!(begins());
        assert_eq!(asked(), [0; 4]);
        assert_eq!(halting_under(root.path()), Halting::Prevented);
        // A child would keep processors awake for as long as it lives.
        let awake = Awake::begin_under(root.path()).unwrap();
        let is_open = || fcntl_getfd(awake.request.as_fd()).is_ok();
        assert!(is_open());
        assert_eq!(in_child(|| is_open().into()), 0);
        drop(awake);
        fs::remove_file(root.path().join(LATENCY)).unwrap();
        assert!(!begins(), "it is not made where there is none");
        assert_eq!(halting_under(root.path()), Halting::AtOnce);
    }
}
