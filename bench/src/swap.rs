//! Swap for a contender that is the kernel alone: on the disk that holds our scratch file, with zswap
//! before it, or in compressed memory (zram). It is on only while that contender runs.
//!
//! A process of its own takes it away again, when its standard input ends: at the end of the run, and
//! however this one ends.

use crate::machine::Machine;
use anyhow::{Context, Result, bail, ensure};
use pagekeeper_sys::cgroup::{MemoryCgroup, Version};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// More than any program of the bench needs: nothing ends for lack of it.
const SWAP_BYTES: u64 = 256 << 20;
/// How often is looked how large zswap's pool is: the kernel keeps no peak of it.
const LOOK: Duration = Duration::from_millis(2);
const ZSWAP: &str = "/sys/module/zswap/parameters";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// In order of preference; not every kernel has every one.
const ZSWAP_COMPRESSORS: [&str; 3] = ["lz4", "lzo-rle", "lzo"];

/// Where pages go for which the cgroup has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// A file on the disk that holds the scratch file of ours.
    File,
    /// The same, from which pages are read one by one, and not by the eight, as they usually are.
    FileAlone,
    /// The same, behind a pool of compressed pages. (Where pages that nobody asked for come along from
    /// the pool, cgroups of this size run out of pages that may go, and programs are ended.)
    Zswap,
    /// A device of compressed memory, with lz4.
    Zram,
}

/// What went to swap and came from it, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the device (a disk, or zram).
    pub device_in: u64,
    /// To the device; pages of zeros go nowhere.
    pub device_out: u64,
    /// From zswap's pool.
    pub pool_in: u64,
    /// To zswap's pool.
    pub pool_out: u64,
    /// The most compressed memory that was in use, zswap's or zram's, whoever is charged for it.
    pub pool_peak_bytes: u64,
}

impl Traffic {
    /// From swap, wherever it is.
    pub fn pages_in(&self) -> u64 {
        self.device_in + self.pool_in
    }

    /// To swap, wherever it is.
    pub fn pages_out(&self) -> u64 {
        self.device_out + self.pool_out
    }
}

impl Swap {
    /// Whether the memory for compressed pages is charged to nobody, in a cgroup of this version:
    /// zram's never is; zswap's is by version 2 alone (`obj_cgroup_charge_zswap`).
    pub fn is_free_of_charge(self, version: Version) -> bool {
        match self {
            Swap::File | Swap::FileAlone => false,
            Swap::Zswap => version == Version::V1,
            Swap::Zram => true,
        }
    }
}

/// Swap that is on; off when dropped.
#[derive(Debug)]
pub struct Swapping {
    before: Traffic,
    /// Of zram.
    statistics: Option<PathBuf>,
    /// Of zswap.
    looks: Option<Looks>,
    /// What says how pages are compressed.
    codec: Option<String>,
    // The last: everything is counted before it goes.
    keeper: Keeper,
}

impl Swapping {
    /// Sets it up.
    ///
    /// # Errors
    /// The machine has swap of its own, this is not permitted, or not to be had in this kernel.
    pub fn on(machine: &Machine, swap: Swap) -> Result<Swapping> {
        let swaps = fs::read_to_string("/proc/swaps").context("this kernel has no swap")?;
        let own = swaps.lines().nth(1);
        if let Some(own) = own {
            bail!("the machine has swap of its own already: {own}");
        }
        let mut keeper = Keeper::new()?;
        let (mut codec, mut statistics) = (None, None);
        match swap {
            Swap::File | Swap::FileAlone | Swap::Zswap => {
                let file = machine.scratch("swap");
                keeper.undo(&format!("off '{0}'; rm -f '{0}'", file.display()))?;
                let _ = fs::remove_file(&file);
                let bytes = SWAP_BYTES.to_string();
                said(Command::new("fallocate").args(["--length", &bytes]).arg(&file))?;
                said(Command::new("chmod").arg("600").arg(&file))?;
                make(&file)?;
            }
            Swap::Zram => {
                let control = Path::new(ZRAM_CONTROL);
                let number = fs::read_to_string(control.join("hot_add"))
                    .context("no zram device can be added")?;
                let number = number.trim();
                let device = PathBuf::from(format!("/dev/zram{number}"));
                let sysfs = PathBuf::from(format!("/sys/block/zram{number}"));
                keeper.undo(&format!(
                    "off {0}; echo 1 > {1}/reset; echo {number} > {ZRAM_CONTROL}/hot_remove",
                    device.display(),
                    sysfs.display(),
                ))?;
                write(&sysfs.join("comp_algorithm"), "lz4")?;
                write(&sysfs.join("disksize"), &SWAP_BYTES.to_string())?;
                make(&device)?;
                statistics = Some(sysfs.join("mm_stat"));
                codec = Some("lz4".to_owned());
            }
        }
        if matches!(swap, Swap::FileAlone | Swap::Zswap) {
            keeper.set(Path::new(PAGE_CLUSTER), "0")?;
        }
        let mut looks = None;
        if swap == Swap::Zswap {
            codec = Some(zswap_on(&mut keeper)?);
            looks = Some(Looks::begin());
        }
        let mut swapping =
            Swapping { before: Traffic::default(), statistics, looks, codec, keeper };
        swapping.before = counts()?;
        Ok(swapping)
    }

    /// Lets a cgroup swap, which ours never do. What runs in it is ended before swap goes, should
    /// anything still run.
    ///
    /// # Errors
    /// This kernel limits swap and memory together, and the limit cannot be lifted.
    pub fn permit(&mut self, cgroup: &MemoryCgroup) -> Result<()> {
        let (file, limit) = match cgroup.version() {
            Version::V1 => ("memory.memsw.limit_in_bytes", "-1"),
            Version::V2 => ("memory.swap.max", "max"),
        };
        let procs = cgroup.path().join("cgroup.procs");
        self.keeper.undo(&format!("end '{}'", procs.display()))?;
        let file = cgroup.path().join(file);
        // A kernel that does not account for swap has no such file, and no limit.
        if file.exists() { write(&file, limit) } else { Ok(()) }
    }

    /// What pages are compressed with.
    pub fn codec(&self) -> Option<&str> {
        self.codec.as_deref()
    }

    /// What was transferred since it is on: by the machine, on which nothing else has swap.
    ///
    /// # Errors
    /// The kernel does not count.
    pub fn traffic(&mut self) -> Result<Traffic> {
        let now = counts()?;
        let mut pool_peak_bytes = self.looks.as_mut().map_or(0, |looks| looks.end());
        if let Some(file) = &self.statistics {
            // The fifth is mem_used_max (Documentation/admin-guide/blockdev/zram.rst).
            let text = fs::read_to_string(file).context("what zram used")?;
            let most = text.split_whitespace().nth(4).and_then(|bytes| bytes.parse().ok());
            pool_peak_bytes = most.context("what zram used")?;
        }
        Ok(Traffic {
            device_in: now.device_in - self.before.device_in,
            device_out: now.device_out - self.before.device_out,
            pool_in: now.pool_in - self.before.pool_in,
            pool_out: now.pool_out - self.before.pool_out,
            pool_peak_bytes,
        })
    }
}

/// Makes swap of a file or device and puts it on.
fn make(place: &Path) -> Result<()> {
    said(Command::new("mkswap").arg(place))?;
    said(Command::new("swapon").arg(place))
}

/// Runs a command to its end; what it complains of is the error.
fn said(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

fn write(file: &Path, value: &str) -> Result<()> {
    fs::write(file, value).with_context(|| format!("cannot write {value} to {}", file.display()))
}

/// Puts zswap on, with the best compressor that there is, whose name comes back.
fn zswap_on(keeper: &mut Keeper) -> Result<String> {
    let folder = Path::new(ZSWAP);
    let compressor = folder.join("compressor");
    let set = ZSWAP_COMPRESSORS.iter().find(|name| keeper.set(&compressor, name).is_ok());
    set.context("zswap is missing, or has none of the compressors known here")?;
    keeper.set(&folder.join("enabled"), "Y")?;
    Ok(fs::read_to_string(compressor)?.trim().to_owned())
}

/// The kernel's counts since the machine started.
fn counts() -> Result<Traffic> {
    let text = fs::read_to_string("/proc/vmstat")?;
    let find = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok())
    };
    Ok(Traffic {
        device_in: find("pswpin").context("the kernel does not count what comes from swap")?,
        device_out: find("pswpout").context("the kernel does not count what goes to swap")?,
        pool_in: find("zswpin").unwrap_or(0),
        pool_out: find("zswpout").unwrap_or(0),
        pool_peak_bytes: 0,
    })
}

/// Looks again and again how large zswap's pool is.
#[derive(Debug)]
struct Looks {
    ended: Arc<AtomicBool>,
    most_bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Looks {
    fn begin() -> Looks {
        let ended = Arc::new(AtomicBool::new(false));
        let most_bytes = Arc::new(AtomicU64::new(0));
        let (end, most) = (ended.clone(), most_bytes.clone());
        let thread = thread::spawn(move || {
            while !end.load(Relaxed) {
                most.fetch_max(pool_bytes().unwrap_or(0), Relaxed);
                thread::sleep(LOOK);
            }
        });
        Looks { ended, most_bytes, thread: Some(thread) }
    }

    fn end(&mut self) -> u64 {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.most_bytes.load(Relaxed)
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.end();
    }
}

fn pool_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Zswap:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// A shell that reads what is to be undone, and does it when nothing more comes, the last first:
/// Ctrl-C and whatever ends this process end what it would have been told, and it heeds no signal.
#[derive(Debug)]
struct Keeper {
    child: Child,
    /// To be read from the end.
    told: Option<ChildStdin>,
}

impl Keeper {
    fn new() -> Result<Keeper> {
        // What was killed still has pages in swap for a while, and a cgroup that has no room for them
        // lets swapoff fail.
        const SCRIPT: &str = "trap '' INT TERM HUP QUIT; todo=
            end() {
                for i in $(seq 100); do
                    [ -n \"$(cat \"$1\")\" ] || return; kill -9 $(cat \"$1\"); sleep 0.05
                done
            }
            off() {
                for i in $(seq 100); do
                    grep -q \"^$1 \" /proc/swaps || return; swapoff \"$1\" || sleep 0.05
                done
            }
            while IFS= read -r line; do todo=\"$line; $todo\"; done; eval \"$todo\"";
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("sh")?;
        let told = child.stdin.take();
        Ok(Keeper { child, told })
    }

    /// What to do in the end. Told before it is done what it undoes: undoing tolerates that there is
    /// nothing to be undone.
    fn undo(&mut self, command: &str) -> Result<()> {
        let mut told = self.told.as_ref().context("nothing is undone yet")?;
        writeln!(told, "{command}").context("what undoes it has ended")
    }

    /// Sets something that becomes again what it was.
    fn set(&mut self, file: &Path, value: &str) -> Result<()> {
        let before = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        self.undo(&format!("echo '{}' > {}", before.trim(), file.display()))?;
        write(file, value)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.told.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_undone_the_last_first() {
        let file = std::env::temp_dir().join(format!("pagekeeper-keeper-{}", std::process::id()));
        fs::write(&file, "before\n").unwrap();
        let mut keeper = Keeper::new().unwrap();
        keeper.set(&file, "during").unwrap();
        keeper.undo(&format!("echo first >> '{}'", file.display())).unwrap();
        keeper.undo("false").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "during");
        let shell = keeper.child.id().to_string();
        let ended = Command::new("kill").args(["-INT", &shell]).status().unwrap();
        assert!(ended.success());
        drop(keeper);
        assert_eq!(fs::read_to_string(&file).unwrap(), "before\n");
        fs::remove_file(&file).unwrap();
    }
}
