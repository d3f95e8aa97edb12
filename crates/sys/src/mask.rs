//! Capabilities of kernel, container and user by name, and the mask that hides some of them.
//!
//! Code that degrades where a feature is missing has to be tested on kernels that have it. The
//! wrappers of this crate ask [`allows`] where the feature is first used and fail as the older
//! kernel would.

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Environment variable with a comma-separated list of [`Capability`] names to hide.
pub const ENV_MASK: &str = "PAGEKEEPER_MASK";

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// Something that a kernel, a container or a user may lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Capability { $($(#[$doc])* $variant),+ }

        impl Capability {
            /// All of them, in the order in which they are reported.
            pub const ALL: &[Capability] = &[$(Capability::$variant),+];

            /// The name used in reports and in [`ENV_MASK`].
            pub const fn name(self) -> &'static str {
                match self { $(Capability::$variant => $name),+ }
            }
        }
    };
}

capabilities! {
    /// The base page has 4096 bytes.
    PageSize = "page-size",
    /// A userfaultfd that also serves faults raised inside the kernel.
    Userfault = "userfaultfd",
    /// A userfaultfd for faults raised by user code only.
    UserfaultUserMode = "userfaultfd-user-mode",
    /// A forked child inherits the registration, and its descriptor is handed to the reader.
    EventFork = "event-fork",
    /// Faults on pages that are in a memfd but not mapped (Linux 5.14).
    MinorShmem = "minor-shmem",
    /// Write protection of shared memory (Linux 5.19).
    WpShmem = "wp-shmem",
    /// Pages that are write-protected from the moment at which they are mapped (Linux 6.4).
    WpContinue = "wp-continue",
    /// Pages whose access raises SIGBUS (Linux 6.6).
    Poison = "poison",
    /// Write protection that the kernel resolves itself (Linux 6.7).
    WpAsync = "wp-async",
    /// Scan of page states with write protection in one call (Linux 6.7).
    PagemapScan = "pagemap-scan",
    /// Pages moved instead of copied (Linux 6.8).
    Move = "move",
    /// Processes have the numbers in `/proc` that they have in this PID namespace.
    OwnProc = "own-proc",
    /// Reading and writing another process's memory.
    ProcessVm = "process-vm",
    /// Unmapping shared pages of another process by `process_madvise(MADV_PAGEOUT)`.
    RemoteZap = "remote-zap",
    /// Shared memory comes page by page.
    SmallShmem = "small-shmem",
    /// Sealed memfds.
    MemfdSeals = "memfd-seals",
    /// Unix sockets in the abstract name space.
    AbstractSockets = "abstract-sockets",
    /// Reads and writes that bypass the page cache.
    DirectIo = "direct-io",
    /// Buffered reads and writes that leave nothing in the page cache (Linux 6.14).
    DontCache = "dontcache",
    /// Leases, which tell when somebody else opens a file.
    Leases = "leases",
    /// Events that tell which process wrote to a file.
    Fanotify = "fanotify",
    /// Asynchronous I/O by io_uring.
    IoUring = "io-uring",
    /// A memory cgroup of our own can be made.
    MemoryCgroup = "memory-cgroup",
    /// Enough open files are permitted.
    OpenFiles = "open-files",
    /// Who waits is woken soon: the processors of this virtual machine do not halt at once, or are kept from it.
    SoonAwake = "soon-awake",
    /// No swap device is in use, so that nobody evicts memfd pages behind our back.
    NoSwap = "no-swap",
}

impl Capability {
    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

const _: () = assert!(Capability::ALL.len() < 31, "the mask's top bit marks it as unread");

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name in a mask that is no capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a capability; `pagekeeper doctor` lists the names")]
pub struct UnknownCapability {
    /// The name as given.
    pub name: String,
}

impl FromStr for Capability {
    type Err = UnknownCapability;

    fn from_str(name: &str) -> Result<Self, UnknownCapability> {
        Self::ALL
            .iter()
            .copied()
            .find(|c| c.name() == name)
            .ok_or_else(|| UnknownCapability { name: name.to_owned() })
    }
}

/// A set of capabilities that are to be treated as missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask(u32);

impl Mask {
    /// Hides nothing.
    pub const NONE: Mask = Mask(0);

    /// The mask in [`ENV_MASK`]; empty if that is unset.
    ///
    /// # Errors
    /// A name in it is unknown.
    pub fn from_env() -> Result<Mask, UnknownCapability> {
        std::env::var(ENV_MASK).map_or(Ok(Mask::NONE), |list| list.parse())
    }

    /// This mask, hiding one more.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Mask {
        Mask(self.0 | capability.bit())
    }

    /// Everything that either hides.
    #[must_use]
    pub const fn union(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// Whether it hides this capability.
    pub const fn hides(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }

    /// The capabilities that it hides.
    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.iter().copied().filter(move |c| self.hides(*c))
    }
}

impl FromStr for Mask {
    type Err = UnknownCapability;

    /// Parses `a,b`; blanks around names and empty names are ignored.
    fn from_str(list: &str) -> Result<Self, UnknownCapability> {
        list.split(',')
            .map(str::trim)
            .filter(|n| !n.is_empty())
            .try_fold(Mask::NONE, |mask, name| Ok(mask.with(name.parse()?)))
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(c.name())?;
        }
        Ok(())
    }
}

const UNREAD: u32 = 1 << 31;
static CURRENT: AtomicU32 = AtomicU32::new(UNREAD);

/// The mask in force: what [`set`] gave, else what [`ENV_MASK`] holds.
///
/// A list in the environment with an unknown name hides nothing here; the command line parses it
/// with [`Mask::from_env`] and reports the name.
pub fn current() -> Mask {
    match CURRENT.load(Relaxed) {
        UNREAD => {
            let mask = Mask::from_env().unwrap_or(Mask::NONE);
            // A concurrent `set` wins: it is the more explicit word.
            match CURRENT.compare_exchange(UNREAD, mask.0, Relaxed, Relaxed) {
                Ok(_) => mask,
                Err(set) => Mask(set),
            }
        }
        bits => Mask(bits),
    }
}

/// Puts a mask in force for the whole process, in place of [`ENV_MASK`].
pub fn set(mask: Mask) {
    CURRENT.store(mask.0, Relaxed);
}

/// Whether the mask in force leaves this capability visible.
#[inline]
pub fn allows(capability: Capability) -> bool {
    !current().hides(capability)
}

/// How many bytes a page of this kernel has.
pub fn page_bytes() -> usize {
    // AArch64 has 4, 16 and 64 KiB.
    const OTHER: usize = 64 << 10;
    if allows(Capability::PageSize) { rustix::param::page_size() } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for &c in Capability::ALL {
            assert_eq!(c.name().parse(), Ok(c));
        }
    }

    #[test]
    fn mask_round_trips_and_names_what_it_does_not_know() {
        let mask: Mask = " poison, ,move".parse().unwrap();
        assert!(mask.hides(Capability::Poison) && mask.hides(Capability::Move));
        assert!(!mask.hides(Capability::Userfault));
        assert_eq!(mask.to_string(), "poison,move");
        assert_eq!("poison,tea".parse::<Mask>().unwrap_err().name, "tea");
    }
}
