//! Times of files that count in ticks of the clock.
//!
//! Before Linux 6.13, and on file systems that do not take part, all that changes a file within a tick (4 ms
//! as a rule) leaves it with the same times. Of much that somebody outside does, and of all where nobody tells who
//! writes ([`crate::live::outside`]), they are all that shows it. So a time that is seen while its tick goes on is
//! *open* ([`is_open_time`]): it is told to nobody, and a later look takes the file for changed. What ours leave,
//! and is open, is *closed*: the time of the last change of the file's bytes becomes a nanosecond later, which no
//! tick is.
//!
//! Times that are finer show that they are: one that is later than the tick, as the kernel makes it when the file
//! was looked at before in the same one (`multigrain timestamps`).

use crate::live::file_systems::FileSystem;
use crate::port::{Look, PortError, Version};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::{clock, file};
use pagekeeper_wire::is_open_time;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The longest tick that a kernel is built with: 100 a second.
const TICK_NS_MAX: i128 = 10_000_000;

/// How often a file of our own is changed to see its times: a tick may end in between.
const TRIES: u32 = 8;

/// Whether a file's times are finer than ticks, as far as that is known before anybody changes it.
pub(crate) fn has_fine_times(file_system: FileSystem) -> bool {
    static KERNEL_HAS: OnceLock<bool> = OnceLock::new();
    file_system.may_have_fine_times()
        && *KERNEL_HAS.get_or_init(|| shows_fine_times().unwrap_or(false))
}

/// Whether a file in memory shows that the kernel has finer times.
fn shows_fine_times() -> Result<bool, PortError> {
    let file = Memfd::create("pagekeeper-times", 1, false)?;
    let ticks = Ticks::default();
    ticks.begin();
    for _ in 0..TRIES {
        file.write_at(&[1], 0)?;
        ticks.look(&file)?;
    }
    Ok(!ticks.count())
}

/// Whether a file's times count in ticks.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    count: AtomicBool,
}

impl Ticks {
    /// They do, as far as is known.
    pub(crate) fn begin(&self) {
        self.count.store(true, Relaxed);
    }

    pub(crate) fn count(&self) -> bool {
        self.count.load(Relaxed)
    }

    /// Looks at the file.
    pub(crate) fn look(&self, fd: impl AsFd) -> Result<Look, PortError> {
        if !self.count() {
            return Ok(Look { version: file::stat(fd)?.version.into(), is_open: false });
        }
        let before_ns = clock::file_tick_ns();
        let version: Version = file::stat(fd)?.version.into();
        let after_ns = clock::file_tick_ns();
        let finer_ns = version.ctime_ns - after_ns;
        let is_finer = 0 < finer_ns && finer_ns < TICK_NS_MAX;
        if is_finer {
            self.count.store(false, Relaxed);
        }
        Ok(Look { version, is_open: !is_finer && is_open(version.mtime_ns, before_ns, after_ns) })
    }

    /// Closes the time that one of ours left. (Who may not set it leaves it open.)
    pub(crate) fn close(&self, fd: impl AsFd) {
        if self.count()
            && let Ok(Look { version, is_open: true }) = self.look(&fd)
        {
            let _ = file::set_mtime(fd, version.mtime_ns + 1);
        }
    }
}

/// [`is_open_time`]; times before 1970 are nobody's ticks.
fn is_open(mtime_ns: i128, before_ns: i128, after_ns: i128) -> bool {
    let wrapped = [mtime_ns, before_ns, after_ns].map(u64::try_from);
    matches!(wrapped, [Ok(mtime), Ok(before), Ok(after)] if is_open_time(mtime, before, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::store::Store;
    use crate::live::{Behind, LiveFile, LivePort, Slots};
    use crate::port::Port;
    use pagekeeper_wire as wire;
    use std::mem::offset_of;
    use std::os::unix::fs::FileExt;
    use std::sync::{Arc, atomic::Ordering::SeqCst};

    #[test]
    fn what_was_just_written_is_open_until_it_is_closed() {
        let file = tempfile::tempfile().unwrap();
        let ticks = Ticks::default();
        assert!(!ticks.look(&file).unwrap().is_open);
        // Which file systems count in ticks is not known here: all that is asked for holds for each.
        for _ in 0..20 {
            ticks.begin();
            file.write_all_at(b"x", 0).unwrap();
            let left = ticks.look(&file).unwrap();
            ticks.close(&file);
            let now = ticks.look(&file).unwrap();
            assert!(!now.is_open, "{now:?}");
            let is_marked = now.version.mtime_ns == left.version.mtime_ns + 1;
            assert!(is_marked || now.version.mtime_ns == left.version.mtime_ns);
            file.write_all_at(b"y", 0).unwrap();
            let then = ticks.look(&file).unwrap().version;
            assert!((then.mtime_ns, then.ctime_ns) != (now.version.mtime_ns, now.version.ctime_ns));
        }
    }

    /// Programs went on closing times that had shown that they are finer, where it was not a look that saw it.
    #[test]
    fn programs_are_told_when_times_are_finer() {
        let file = tempfile::tempfile().unwrap();
        let port = LivePort::default();
        port.slots.set(Slots::new().unwrap()).unwrap();
        let memfd = Memfd::create("pagekeeper:test", 1, false).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        let behind = Behind::File(store);
        port.put_file(0, Arc::new(LiveFile { memfd, memfd_ino: 0, behind }));
        let live = port.file(0).unwrap();
        let ticks = &live.store().unwrap().ticks;
        for looks in [|port: &LivePort| _ = port.look(0), |port: &LivePort| port.close_time(0)] {
            ticks.begin();
            let slots = port.slots().unwrap();
            slots.set_flags(0, wire::SLOT_TICKS);
            for _ in 0..TRIES {
                file.write_all_at(b"x", 0).unwrap();
                looks(&port);
                let _ = port.version(0).unwrap();
            }
            let flags = slots.word(0, offset_of!(wire::Slot, flags)).load(SeqCst);
            assert_eq!(flags & wire::SLOT_TICKS != 0, ticks.count());
        }
    }

    #[test]
    fn a_kernel_shows_what_it_has_each_time() {
        let has = shows_fine_times().unwrap();
        assert!((0..20).all(|_| shows_fine_times().unwrap() == has));
    }

    #[test]
    fn an_old_time_is_not_open() {
        let file = tempfile::tempfile().unwrap();
        let ticks = Ticks::default();
        ticks.begin();
        for mtime_ns in [-1_500_000_000, 0, 1, 1_000_000_000, 1_000_000_001] {
            file::set_mtime(&file, mtime_ns).unwrap();
            let look = ticks.look(&file).unwrap();
            assert_eq!((look.version.mtime_ns, look.is_open), (mtime_ns, false));
        }
        // Which somebody has set, and who writes now does not leave.
        let later_ns = clock::file_tick_ns() + 3_600_000_000_000;
        file::set_mtime(&file, later_ns).unwrap();
        assert!(!ticks.look(&file).unwrap().is_open);
    }
}
