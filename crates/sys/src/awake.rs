//! Processors of a virtual machine that do not sleep for a while.
//!
//! A processor with nothing to do halts, and who wakes a thread on it asks the hypervisor to have it go on: some
//! 50 µs on some machines, where the same thread on a processor that looks for work is woken in one or two. A
//! guest of KVM may look for work before it halts (`haltpoll`), but often is set not to; then a process may ask that
//! none halts, as long as it has a file open (Documentation/admin-guide/pm/cpuidle.rst and
//! Documentation/power/pm_qos_interface.rst in the kernel's sources).

use std::fs;
use std::io::Write;
use std::path::Path;

/// The guest's own way to do without, in nanoseconds: as long as that it looks for work before it halts.
const OWN_POLL: &str = "sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// A guest that looks for work for so long is not to be kept from halting.
const OWN_POLL_NS_MIN: u64 = 50_000;

/// Keeps the processors of this machine from halting as long as it lives. The kernel ends it with the process.
#[derive(Debug)]
pub struct Awake {
    _request: fs::File,
}

impl Awake {
    /// Begins. None if that would gain nothing, or is not permitted: root may.
    pub fn begin() -> Option<Awake> {
        Awake::begin_under(Path::new("/"))
    }

    fn begin_under(root: &Path) -> Option<Awake> {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        // Elsewhere to halt is to save power, and wakes soon.
        let driver = text("sys/devices/system/cpu/cpuidle/current_driver")?;
        let own_poll_ns = text(OWN_POLL).and_then(|ns| ns.trim().parse::<u64>().ok());
        if driver.trim() != "haltpoll" || own_poll_ns.is_none_or(|ns| ns >= OWN_POLL_NS_MIN) {
            return None;
        }
        let mut request =
            fs::OpenOptions::new().write(true).open(root.join("dev/cpu_dma_latency")).ok()?;
        // How long a processor may take to go on, in µs, as the kernel has its numbers.
        request.write_all(&0i32.to_ne_bytes()).ok()?;
        Some(Awake { _request: request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_files::Files;

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
        fs::remove_file(root.path().join("dev/cpu_dma_latency")).unwrap();
        assert!(!begins(), "it is not made where there is none");
    }
}
