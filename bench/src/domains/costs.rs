//! What crossing into the kernel, into another process and to the disk costs: the paper's Table III.

use super::link::{Caller, Transport};
use super::{cpu_ns, system_calls};
use crate::pattern::SplitMix;
use anyhow::{Context, Result, ensure};
use memmap2::MmapMut;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

const PAGE_BYTES: usize = 4096;

/// Elapsed nanoseconds for each of `count` turns of `work`.
fn elapsed_ns_each(count: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}

/// The same in processor time, of this process and another one.
fn cpu_ns_each(count: u64, other: Option<u32>, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = cpu_ns(other);
    work()?;
    Ok((cpu_ns(other) - start) / count as f64)
}

/// `getppid(2)`.
pub(crate) fn null_system_call_ns() -> Result<f64> {
    const CALLS: u64 = 200_000;
    cpu_ns_each(CALLS, None, || {
        system_calls(CALLS);
        Ok(())
    })
}

/// `setitimer(2)` of a timer that is not set and stays so: 32 bytes are copied in.
pub(crate) fn system_call_32_bytes_ns() -> Result<f64> {
    const CALLS: u64 = 200_000;
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let value = libc::itimerval { it_interval: zero, it_value: zero };
    cpu_ns_each(CALLS, None, || {
        for _ in 0..CALLS {
            // SAFETY: setitimer(2) reads `value`, which is one; nothing is written to null.
            let done = unsafe {
                libc::setitimer(libc::ITIMER_VIRTUAL, &raw const value, std::ptr::null_mut())
            };
            ensure!(done == 0, "setitimer failed");
        }
        Ok(())
    })
}

/// A round trip of a message of 32 bytes to another process and back.
pub(crate) fn round_trip_ns(caller: &mut Caller) -> Result<f64> {
    const TRIPS: u64 = 3_000;
    cpu_ns_each(TRIPS, Some(caller.process()), || {
        for _ in 0..TRIPS {
            caller.call([0; 4])?;
        }
        Ok(())
    })
}

/// What a round trip costs by each transport, the cheapest first.
pub(crate) fn transports(
    start: impl Fn(Transport) -> Result<Caller>,
) -> Result<Vec<(Transport, f64)>> {
    let mut all = Vec::new();
    for transport in Transport::ALL {
        let mut caller = start(transport)?;
        round_trip_ns(&mut caller)?;
        let mut each = [0.0; 3];
        for ns in &mut each {
            *ns = round_trip_ns(&mut caller)?;
        }
        each.sort_by(f64::total_cmp);
        all.push((transport, each[1]));
    }
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(all)
}

/// A file that is read past the page cache.
pub(crate) struct Disk {
    file: File,
    pages: u64,
    buffer: MmapMut,
    random: SplitMix,
}

impl Disk {
    /// Opens a file of so many pages.
    ///
    /// # Errors
    /// The file system has no direct reads.
    pub(crate) fn open(path: &Path, pages: u64) -> Result<Disk> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .with_context(|| format!("opening {} for direct reads", path.display()))?;
        Ok(Disk { file, pages, buffer: MmapMut::map_anon(1 << 20)?, random: SplitMix::new(11) })
    }

    /// One page after the other, a read each.
    pub(crate) fn sequential_ns(&mut self) -> Result<f64> {
        const READS: u64 = 2560;
        let first = self.random.below(self.pages - READS);
        self.read(READS, |at| first + at)
    }

    /// Pages anywhere.
    pub(crate) fn random_ns(&mut self) -> Result<f64> {
        const READS: u64 = 2000;
        let pages: Vec<u64> = (0..READS).map(|_| self.random.below(self.pages)).collect();
        self.read(READS, |at| pages[at as usize])
    }

    /// The share of a page in 10 MiB read by 1 MiB: the paper's way.
    pub(crate) fn bandwidth_ns(&mut self) -> Result<f64> {
        const READS: u64 = 10;
        let pages_each = (self.buffer.len() / PAGE_BYTES) as u64;
        let first = self.random.below(self.pages / pages_each - READS);
        elapsed_ns_each(READS * pages_each, || {
            for read in 0..READS {
                let offset = (first + read) * self.buffer.len() as u64;
                self.file.read_exact_at(&mut self.buffer, offset)?;
            }
            Ok(())
        })
    }

    fn read(&mut self, reads: u64, page: impl Fn(u64) -> u64) -> Result<f64> {
        elapsed_ns_each(reads, || {
            for at in 0..reads {
                let offset = page(at) * PAGE_BYTES as u64;
                self.file.read_exact_at(&mut self.buffer[..PAGE_BYTES], offset)?;
            }
            Ok(())
        })
    }
}
