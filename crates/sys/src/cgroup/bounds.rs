//! What bounds this process's memory: the limits of its own cgroup and of those above it, and how much of
//! them is in use. Limits may change at any time, so each is read whenever it is looked at.

use super::{Hierarchy, Version, find_hierarchy, find_key, number_of};
use crate::mask::{self, Capability};
use crate::process::{CpuTimes, errno};
use crate::{Errno, Result};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// More bytes than any machine has: version 1 shows so large a number where there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// Kernel memory is looked at more closely when it is so large a part of the limit.
const KERNEL_PART: u64 = 64;
/// What an unused directory entry and an unused inode take at least.
const ENTRY_BYTES: u64 = 192;
const INODE_BYTES: u64 = 600;
/// One part in so many of what unused entries and inodes take is sure to come back: the others may lie
/// beside what is in use.
const UNUSED_PART: u64 = 2;

/// Memory cgroups that may bound this process.
#[derive(Debug)]
pub struct Bounds {
    /// Its own first.
    levels: Vec<Level>,
}

/// One of them. The files stay open, for who looks at them often.
#[derive(Debug)]
struct Level {
    path: PathBuf,
    version: Version,
    limits: Vec<fs::File>,
    usage: fs::File,
    stat: fs::File,
    /// On version 1: kernel memory in use.
    kernel: Option<fs::File>,
}

/// What a cgroup that has a limit uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Which it is: 0 is this process's own, 1 the one above it, and so on.
    pub level: usize,
    /// The most that its processes, and the page cache charged to them, may use.
    pub limit_bytes: u64,
    /// What is in use, page cache included.
    pub used_bytes: u64,
}

/// What the kernel counts of a cgroup that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Its limit, and what is in use.
    pub usage: Usage,
    /// Page cache that the kernel can take back; memory files such as frames are not among it.
    pub cache_bytes: u64,
    /// Of it, what programs have mapped, and have touched or lies right beside that.
    pub mapped_bytes: u64,
    /// Directory entries and inodes that nobody uses, which it can take back as well: what there must be of
    /// them, by what the whole machine has of anything else. There may be more.
    pub slab_bytes: u64,
    /// How short of memory its processes are.
    pub pressure: Pressure,
}

/// How short of memory the processes of a cgroup are; counts since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Pages of files that were read again after they had been evicted.
    pub refaults: u64,
    /// Faults on mappings that waited for storage.
    pub major_faults: u64,
}

impl Usage {
    /// What is left of the limit.
    pub fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

impl Counts {
    /// What the kernel could take back.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.cache_bytes + self.slab_bytes
    }

    /// In use, and nothing that the kernel could take back.
    pub fn kept_bytes(&self) -> u64 {
        self.usage.used_bytes.saturating_sub(self.reclaimable_bytes())
    }

    /// How much more may be in use if all is taken back that can be; less than nothing: less has to be.
    pub fn room_bytes(&self) -> i64 {
        self.usage.limit_bytes.cast_signed() - self.kept_bytes().cast_signed()
    }
}

impl Bounds {
    /// `None` if this process is in no memory cgroup that could have a limit, they are masked, or the kernel
    /// does not count there what [`Counts`] shows: refaults of files since Linux 5.9.
    pub fn of_this_process() -> Option<Bounds> {
        if !mask::allows(Capability::MemoryCgroup) {
            return None;
        }
        Bounds::within(&find_hierarchy()?)
    }

    fn within(hierarchy: &Hierarchy) -> Option<Bounds> {
        let Hierarchy { mount, own, version } = hierarchy;
        let places = own.ancestors().take_while(|place| place.starts_with(mount));
        // The root of version 2 has no such files.
        let levels: Vec<_> = places.filter_map(|place| Level::open(place, *version).ok()).collect();
        let unlimited = Usage { level: 0, limit_bytes: UNLIMITED_BYTES, used_bytes: 0 };
        let is_counted = |level: &Level| level.counts_of(unlimited).is_ok();
        levels.first().is_some_and(is_counted).then_some(Bounds { levels })
    }

    /// The lowest limit now; `None` if there is none.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.levels.iter().filter_map(Level::limit_bytes).min()
    }

    /// The cgroup of which least is free, page cache that could be taken back not counted as such; `None` if
    /// there is no limit now.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn fullest(&self) -> Result<Option<Usage>> {
        Ok(self.usages()?.into_iter().min_by_key(Usage::free_bytes))
    }

    /// Counts of the cgroup that has least room if all is taken back that can be; `None` if there is no
    /// limit now. Each look makes the kernel add up what all processors counted: some 50 µs.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn tightest(&self) -> Result<Option<Counts>> {
        let mut usages = self.usages()?;
        usages.sort_by_key(Usage::free_bytes);
        let mut tightest: Option<Counts> = None;
        for usage in usages {
            // What is free is room.
            let free_bytes = usage.free_bytes().cast_signed();
            if tightest.is_some_and(|found| found.room_bytes() <= free_bytes) {
                break;
            }
            let counts = self.levels[usage.level].counts_of(usage)?;
            if tightest.is_none_or(|found| counts.room_bytes() < found.room_bytes()) {
                tightest = Some(counts);
            }
        }
        Ok(tightest)
    }

    /// What each of a cgroup's other processes, and of those below it, used of processors in user mode, in
    /// the order of their numbers.
    ///
    /// # Errors
    /// As reading `cgroup.procs`.
    pub fn user_times_of_others(&self, level: usize) -> Result<Vec<(u32, Duration)>> {
        let mut pids = Vec::new();
        collect_processes(&self.levels[level].path, &mut pids)?;
        pids.sort_unstable();
        let me = std::process::id();
        let others = pids.into_iter().filter(|pid| *pid != me);
        Ok(others.filter_map(|pid| Some((pid, CpuTimes::of(pid).ok()?.user))).collect())
    }

    fn usages(&self) -> Result<Vec<Usage>> {
        let mut usages = Vec::new();
        for (level, files) in self.levels.iter().enumerate() {
            if let Some(limit_bytes) = files.limit_bytes() {
                usages.push(Usage { level, limit_bytes, used_bytes: number_in(&files.usage)? });
            }
        }
        Ok(usages)
    }
}

impl Level {
    fn open(path: &Path, version: Version) -> Result<Level> {
        let open = |file: &str| fs::File::open(path.join(file)).map_err(|e| errno(&e));
        let mut limits = vec![open(version.limit_file())?];
        let mut kernel = None;
        match version {
            Version::V1 => kernel = open("memory.kmem.usage_in_bytes").ok(),
            Version::V2 => limits.extend(open("memory.high")),
        }
        let (usage, stat) = (open(version.usage_file())?, open("memory.stat")?);
        Ok(Level { path: path.to_owned(), version, limits, usage, stat, kernel })
    }

    fn limit_bytes(&self) -> Option<u64> {
        // "max" on version 2.
        let limits = self.limits.iter().filter_map(|file| number_in(file).ok());
        limits.filter(|bytes| *bytes < UNLIMITED_BYTES).min()
    }

    fn counts_of(&self, usage: Usage) -> Result<Counts> {
        let text = read_again(&self.stat)?;
        // On version 1 those of descendants are counted apart.
        let prefix = if self.version == Version::V1 { "total_" } else { "" };
        let key = |key| find_key(&text, &format!("{prefix}{key}"));
        let kernel = match self.version {
            Version::V1 => self.kernel.as_ref().and_then(|file| number_in(file).ok()),
            Version::V2 => key("slab_reclaimable").ok(),
        };
        let kernel = kernel.filter(|bytes| *bytes > usage.limit_bytes / KERNEL_PART);
        let slab_bytes = kernel.map_or(0, |bytes| self.slab_bytes(bytes));
        let refaults = key("workingset_refault_file")?;
        let mapped = if self.version == Version::V1 { "mapped_file" } else { "file_mapped" };
        // Memory files are counted with it, and may all be mapped.
        let mapped_bytes = key(mapped).unwrap_or(0).saturating_sub(key("shmem").unwrap_or(0));
        Ok(Counts {
            usage,
            cache_bytes: key("active_file")? + key("inactive_file")?,
            mapped_bytes,
            slab_bytes,
            pressure: Pressure { refaults, major_faults: key("pgmajfault")? },
        })
    }

    /// Of so much reclaimable slab (on version 1 kernel memory of any kind, since it does not count them
    /// apart), what nobody uses for sure.
    fn slab_bytes(&self, kernel_bytes: u64) -> u64 {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let machine = text("/proc/meminfo");
        let others = match self.version {
            Version::V1 => kernel_memory_bytes(&machine),
            Version::V2 => memory_bytes(&machine, "SReclaimable"),
        };
        let unused_bytes =
            unused_bytes(&text("/proc/sys/fs/dentry-state"), &text("/proc/sys/fs/inode-nr"));
        let in_use = others.map(|bytes| bytes.saturating_sub(unused_bytes));
        in_use
            .map_or(0, |in_use| kernel_bytes.saturating_sub(in_use).min(unused_bytes) / UNUSED_PART)
    }
}

/// A number of `/proc/meminfo`.
fn memory_bytes(machine: &str, key: &str) -> Option<u64> {
    let value = machine.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix(" kB")?.parse().ok().map(|kib: u64| kib << 10)
}

/// All memory of a machine that is neither free nor the content of programs and files, as
/// `/proc/meminfo` shows it: slab, page tables, stacks, and what nothing counts, such as pipes.
fn kernel_memory_bytes(machine: &str) -> Option<u64> {
    let others = ["MemFree", "Buffers", "Cached", "SwapCached", "AnonPages"];
    let known: Option<u64> = others.into_iter().map(|key| memory_bytes(machine, key)).sum();
    Some(memory_bytes(machine, "MemTotal")?.saturating_sub(known?))
}

/// What unused directory entries and inodes of the machine take at least: the second numbers of
/// `/proc/sys/fs/dentry-state` and `inode-nr`, proc_sys_fs(5). An inode that an unused entry names is
/// among those in use.
fn unused_bytes(entries: &str, inodes: &str) -> u64 {
    let unused = |text: &str| text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    unused(entries).unwrap_or(0) * ENTRY_BYTES + unused(inodes).unwrap_or(0) * INODE_BYTES
}

/// Processes of a cgroup and of those below it.
fn collect_processes(place: &Path, pids: &mut Vec<u32>) -> Result<()> {
    let procs = fs::read_to_string(place.join("cgroup.procs")).map_err(|e| errno(&e))?;
    // 0: not of this process's name space.
    pids.extend(procs.lines().filter_map(|pid| pid.parse::<u32>().ok()).filter(|pid| *pid != 0));
    for entry in fs::read_dir(place).map_err(|e| errno(&e))?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // One that has gone meanwhile has none.
            let _ = collect_processes(&entry.path(), pids);
        }
    }
    Ok(())
}

fn number_in(file: &fs::File) -> Result<u64> {
    number_of(&read_again(file)?)
}

/// What a file of the kernel's says now; it makes its text anew when it is read from the beginning.
/// By position, since several threads look.
fn read_again(file: &fs::File) -> Result<String> {
    let mut text = vec![0; 8 << 10];
    let mut len = 0;
    loop {
        match file.read_at(&mut text[len..], len as u64).map_err(|e| errno(&e))? {
            0 => break,
            n => len += n,
        }
        if len == text.len() {
            text.resize(2 * len, 0);
        }
    }
    text.truncate(len);
    String::from_utf8(text).map_err(|_| Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_files::Files;

    const STAT: &str = "workingset_refault_file 1\npgmajfault 2\nactive_file 5\ninactive_file 6\n\
                        slab_reclaimable 7\nfile_mapped 8\nshmem 3\n\
                        total_workingset_refault_file 30\ntotal_pgmajfault 40\n\
                        total_active_file 50\ntotal_inactive_file 60\n\
                        total_mapped_file 80\ntotal_shmem 30\n";

    /// A place that looks like a hierarchy of cgroups, some with a limit.
    struct Place(Files);

    impl Place {
        fn new() -> Place {
            Place(Files::new())
        }

        fn put(&self, cgroup: &str, file: &str, text: &str) {
            self.0.put(&format!("{cgroup}/{file}"), text);
        }

        fn cgroup(&self, name: &str, limit: &str, used_bytes: u64, stat: &str) {
            self.put(name, "memory.max", limit);
            self.put(name, "memory.current", &format!("{used_bytes}\n"));
            self.put(name, "memory.stat", stat);
        }

        fn bounds(&self, own: &str, version: Version) -> Option<Bounds> {
            let mount = self.0.path().to_owned();
            Bounds::within(&Hierarchy { own: mount.join(own), mount, version })
        }
    }

    #[test]
    fn descendants_are_counted_on_either_version() {
        let place = Place::new();
        // Longer than what is read at first.
        let stat = format!("{}{STAT}", "other 1\n".repeat(2000));
        place.cgroup("v2", "100000\n", 4096, &stat);
        place.put("v1", "memory.limit_in_bytes", "100000\n");
        place.put("v1", "memory.usage_in_bytes", "4096\n");
        place.put("v1", "memory.stat", &stat);
        let usage = Usage { level: 0, limit_bytes: 100_000, used_bytes: 4096 };
        let v2 = place.bounds("v2", Version::V2).unwrap();
        let counts = v2.tightest().unwrap().unwrap();
        let pressure = Pressure { refaults: 1, major_faults: 2 };
        let (cache_bytes, mapped_bytes) = (11, 5);
        let expected = Counts { usage, cache_bytes, mapped_bytes, slab_bytes: 0, pressure };
        assert_eq!(counts, expected);
        assert_eq!(counts.kept_bytes(), 4096 - 11);
        let v1 = place.bounds("v1", Version::V1).unwrap();
        let pressure = Pressure { refaults: 30, major_faults: 40 };
        let (cache_bytes, mapped_bytes) = (110, 50);
        let expected = Counts { usage, cache_bytes, mapped_bytes, slab_bytes: 0, pressure };
        assert_eq!(v1.tightest(), Ok(Some(expected)));
        // Each is read anew.
        place.cgroup("v2", "100000\n", 8192, "pgmajfault 2\nactive_file 5\ninactive_file 6\n");
        assert_eq!(v2.fullest().unwrap().unwrap().used_bytes, 8192);
        assert_eq!(v2.tightest(), Err(Errno::NOENT));
        // A kernel that does not count refaults.
        assert!(place.bounds("v2", Version::V2).is_none());
    }

    #[test]
    fn the_tightest_limit_on_the_way_up_counts() {
        let place = Place::new();
        let own = "pod/container";
        place.cgroup(own, "max\n", 1_000_000, STAT);
        place.cgroup("pod", "max\n", 1_500_000, STAT);
        let bounds = place.bounds(own, Version::V2).unwrap();
        assert_eq!((bounds.limit_bytes(), bounds.tightest()), (None, Ok(None)));
        // A limit that is set, raised or lowered later is seen.
        let level = |bounds: &Bounds| {
            let counts = bounds.tightest().unwrap().unwrap();
            (counts.usage.level, counts.usage.limit_bytes)
        };
        place.put("pod", "memory.max", "2000000\n");
        assert_eq!((bounds.limit_bytes(), level(&bounds)), (Some(2_000_000), (1, 2_000_000)));
        place.put(own, "memory.max", "1800000\n");
        // Lower, but more of it is left.
        assert_eq!((bounds.limit_bytes(), level(&bounds)), (Some(1_800_000), (1, 2_000_000)));
        place.put(own, "memory.max", "1200000\n");
        assert_eq!(level(&bounds), (0, 1_200_000));
        let fullest = bounds.fullest().unwrap().unwrap();
        assert_eq!((fullest.level, fullest.free_bytes()), (0, 200_000));
        // Full, but of what can be taken back.
        let cache = STAT.replace("\nactive_file 5\n", "\nactive_file 900000\n");
        place.put(own, "memory.stat", &cache);
        assert_eq!(bounds.fullest().unwrap().unwrap().level, 0);
        assert_eq!(level(&bounds), (1, 2_000_000));
        // Already more than there may be.
        place.put("pod", "memory.max", "1400000\n");
        assert_eq!(bounds.tightest().unwrap().unwrap().room_bytes(), -100_000 + 11);
        place.put(own, "memory.high", "1100000\n");
        let bounds = place.bounds(own, Version::V2).unwrap();
        assert_eq!(bounds.limit_bytes(), Some(1_100_000));
    }

    #[test]
    fn what_nothing_counts_is_kernel_memory() {
        let machine = "MemTotal: 9000 kB\nMemFree:       2000 kB\nMemAvailable: 8000 kB\nBuffers: 1000 kB\n\
                       Cached:  3000 kB\nSwapCached:       0 kB\nAnonPages: 500 kB\nSlab: 100 kB\n";
        assert_eq!(kernel_memory_bytes(machine), Some(2500 << 10));
        assert_eq!(memory_bytes(machine, "Slab"), Some(100 << 10));
        assert_eq!(kernel_memory_bytes("MemTotal: 9000 kB\n"), None);
    }

    #[test]
    fn only_what_nobody_uses_is_sure_to_come_back() {
        assert_eq!(unused_bytes("1000\t900\t45\t0\t800\t0\n", "500\t10\n"), 900 * 192 + 10 * 600);
        assert_eq!(unused_bytes("", ""), 0);
    }

    #[test]
    fn time_of_processes_below_is_seen() {
        let place = Place::new();
        let mut busy = std::process::Command::new("/bin/sh");
        let child = Child(busy.args(["-c", "while :; do :; done"]).spawn().unwrap());
        place.cgroup("own", "max\n", 0, STAT);
        place.put("own", "cgroup.procs", &format!("{}\n", std::process::id()));
        place.put("own/below", "cgroup.procs", &format!("0\n{}\n", child.0.id()));
        let bounds = place.bounds("own", Version::V2).unwrap();
        let used = || {
            let times = bounds.user_times_of_others(0).unwrap();
            assert!(times.iter().all(|(pid, _)| *pid == child.0.id()), "{times:?}");
            times.first().map_or(Duration::ZERO, |(_, time)| *time)
        };
        while used() < Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A child that is ended with the test, whatever comes of it.
    struct Child(std::process::Child);

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
