//! Memory cgroups: a limit on what a group of processes, and the page cache charged to it, may use.
//! Version 1 (`memory` controller mounted) or 2 (`cgroup2`), see the kernel's
//! `Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::mask::{self, Capability};
use crate::process::{errno, read_proc};
use crate::{Errno, Result};

mod bounds;

pub use bounds::{Bounds, Counts, Pressure, Usage};

/// Why no memory cgroup could be made.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Hidden by a mask.
    #[error("memory cgroups are masked ({})", mask::ENV_MASK)]
    Masked,
    /// No hierarchy with the memory controller is mounted.
    #[error(
        "no cgroup hierarchy with the memory controller is mounted; as root: \
         mount -t cgroup2 none /sys/fs/cgroup"
    )]
    NotMounted,
    /// Nowhere on the way from our own cgroup to the root may a child be made.
    #[error(
        "cannot make a memory cgroup in {place}: {errno}; run as root, or in a delegated cgroup: \
         systemd-run --user --scope -p Delegate=yes -- COMMAND"
    )]
    NotPermitted {
        /// The last directory tried.
        place: PathBuf,
        /// What the kernel said there.
        errno: Errno,
    },
    /// The limit was refused.
    #[error("cannot set {file} to {limit_bytes}: {errno}")]
    Limit {
        /// The file written.
        file: PathBuf,
        /// The limit asked for.
        limit_bytes: u64,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Version of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and so on.
    V1,
    /// `memory.max` and so on.
    V2,
}

impl Version {
    fn usage_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        }
    }

    fn limit_file(self) -> &'static str {
        match self {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        }
    }
}

/// A memory cgroup of our own; removed when dropped, its processes going to the parent.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
}

/// A place where cgroups can be made.
struct Hierarchy {
    mount: PathBuf,
    /// Our own cgroup, below the mount.
    own: PathBuf,
    version: Version,
}

impl MemoryCgroup {
    /// Makes a cgroup below our own or the nearest ancestor that permits it, and limits it.
    /// `name` is a prefix; swap is denied where the kernel can.
    ///
    /// # Errors
    /// Where it cannot be made, the reason and the remedy.
    pub fn create(name: &str, limit_bytes: u64) -> core::result::Result<MemoryCgroup, CgroupError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        if !mask::allows(Capability::MemoryCgroup) {
            return Err(CgroupError::Masked);
        }
        let hierarchy = find_hierarchy().ok_or(CgroupError::NotMounted)?;
        let leaf = format!("{name}-{}-{}", std::process::id(), SERIAL.fetch_add(1, Relaxed));
        let mut refused = None;
        for parent in hierarchy.own.ancestors().take_while(|p| p.starts_with(&hierarchy.mount)) {
            match Self::create_in(parent, &leaf, hierarchy.version) {
                Ok(cgroup) => return cgroup.limited(limit_bytes),
                Err(errno) => refused = Some((parent.to_owned(), errno)),
            }
        }
        let (place, errno) = refused.unwrap_or((hierarchy.mount, Errno::NOENT));
        Err(CgroupError::NotPermitted { place, errno })
    }

    fn create_in(parent: &Path, leaf: &str, version: Version) -> Result<MemoryCgroup> {
        if version == Version::V2 {
            let available = fs::read_to_string(parent.join("cgroup.controllers"));
            if !available.is_ok_and(|list| list.split_whitespace().any(|c| c == "memory")) {
                return Err(Errno::OPNOTSUPP);
            }
            // Fails where processes live in the parent itself, unless it is the root; then an
            // ancestor may do.
            write(&parent.join("cgroup.subtree_control"), "+memory")?;
        }
        let path = parent.join(leaf);
        fs::create_dir(&path).map_err(|e| errno(&e))?;
        Ok(MemoryCgroup { path, version })
    }

    fn limited(self, limit_bytes: u64) -> core::result::Result<Self, CgroupError> {
        self.set_limit(limit_bytes).map_err(|errno| CgroupError::Limit {
            file: self.path.join(self.version.limit_file()),
            limit_bytes,
            errno,
        })?;
        Ok(self)
    }

    /// Changes the limit. Swap is denied too, as far as the kernel accounts for it.
    ///
    /// # Errors
    /// [`Errno::BUSY`]: more is in use and cannot be reclaimed.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<()> {
        let limit = limit_bytes.to_string();
        // On version 1 the sum with swap must never be below the limit, so it goes up first and
        // comes down last. Neither file exists where swap is not accounted for: ignored.
        let swap = |value: &str, file: &str| {
            let _ = write(&self.path.join(file), value);
        };
        match self.version {
            Version::V1 => swap("-1", "memory.memsw.limit_in_bytes"),
            Version::V2 => swap("0", "memory.swap.max"),
        }
        write(&self.path.join(self.version.limit_file()), &limit)?;
        if self.version == Version::V1 {
            swap(&limit, "memory.memsw.limit_in_bytes");
        }
        Ok(())
    }

    /// Which interface it is made by.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process in, all threads of it. What it used before stays charged elsewhere.
    ///
    /// # Errors
    /// [`Errno::SRCH`]: no such process; [`Errno::PERM`]/[`Errno::ACCESS`].
    pub fn enter(&self, pid: u32) -> Result<()> {
        write(&self.path.join("cgroup.procs"), &pid.to_string())
    }

    /// `cgroup.procs`, open for writing, for [`crate::launch::ChildSetup::cgroup_procs`].
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn procs(&self) -> Result<OwnedFd> {
        let path = self.path.join("cgroup.procs");
        let file = fs::OpenOptions::new().write(true).open(path).map_err(|e| errno(&e))?;
        Ok(file.into())
    }

    /// The most that was ever in use. On version 2 before Linux 5.19: what is in use now.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn peak_bytes(&self) -> Result<u64> {
        match self.version {
            Version::V1 => self.number("memory.max_usage_in_bytes"),
            Version::V2 => self.number("memory.peak").or_else(|_| self.usage_bytes()),
        }
    }

    /// What is in use, page cache included.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn usage_bytes(&self) -> Result<u64> {
        self.number(self.version.usage_file())
    }

    /// Processes of it that were killed for lack of memory.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn oom_kills(&self) -> Result<u64> {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.keyed(file, "oom_kill")
    }

    /// A number of `memory.stat` by its key, such as `file` or `anon` (version 2), `cache` or `rss`
    /// (version 1), `pgfault`, `pgmajfault` (both).
    ///
    /// # Errors
    /// [`Errno::NOENT`]: no such key.
    pub fn stat(&self, key: &str) -> Result<u64> {
        self.keyed("memory.stat", key)
    }

    fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.path.join(file)).map_err(|e| errno(&e))
    }

    fn number(&self, file: &str) -> Result<u64> {
        read_number(&self.path.join(file))
    }

    fn keyed(&self, file: &str, key: &str) -> Result<u64> {
        find_key(&self.read(file)?, key)
    }

    /// Moves its processes to the parent and removes it.
    ///
    /// # Errors
    /// [`Errno::BUSY`]: a process is still in it, or not yet reaped.
    pub fn remove(self) -> Result<()> {
        let result = self.try_remove();
        core::mem::forget(self);
        result
    }

    fn try_remove(&self) -> Result<()> {
        // A killed process leaves the cgroup a little after it has been waited for.
        const TRIES: u32 = 50;
        let parent = self.path.parent().map(|p| p.join("cgroup.procs"));
        for attempt in 0..TRIES {
            if let (Ok(procs), Some(parent)) = (self.read("cgroup.procs"), &parent) {
                for pid in procs.lines() {
                    let _ = write(parent, pid);
                }
            }
            match fs::remove_dir(&self.path) {
                Err(e) if errno(&e) == Errno::BUSY && attempt + 1 < TRIES => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                result => return result.map_err(|e| errno(&e)),
            }
        }
        Err(Errno::BUSY)
    }
}

fn read_number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).map_err(|e| errno(&e))?;
    number_of(&text)
}

fn number_of(text: &str) -> Result<u64> {
    text.trim().parse().map_err(|_| Errno::PROTO)
}

/// The number of a key in a file of keys and numbers.
fn find_key(text: &str, key: &str) -> Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.and_then(|v| v.trim().parse().ok()).ok_or(Errno::NOENT)
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Nobody is there to be told; an empty directory is all that can be left.
        let _ = self.try_remove();
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path).map_err(|e| errno(&e))?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(|e| errno(&e))
}

fn find_hierarchy() -> Option<Hierarchy> {
    let mounts = read_proc("/proc/self/mountinfo").ok()?;
    let own = read_proc("/proc/self/cgroup").ok()?;
    locate(&mounts, &own)
}

/// Finds the hierarchy that has the memory controller, from `/proc/self/mountinfo` and
/// `/proc/self/cgroup`. Version 1 wins where both are mounted: the controller is in one only, and
/// is in version 2 only if no version 1 hierarchy names it.
fn locate(mounts: &str, own: &str) -> Option<Hierarchy> {
    let own_path = |wanted: &dyn Fn(&str, &str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(id, controllers).then_some(path)
        })
    };
    let hierarchy = |own: &str, (root, mount): (&str, PathBuf), version| {
        // In a container the mount shows a subtree only: its root.
        let below = own.strip_prefix(root.trim_end_matches('/')).unwrap_or("/");
        let own = mount.join(below.trim_start_matches('/'));
        let own = if own.is_dir() { own } else { mount.clone() };
        Hierarchy { mount, own, version }
    };
    let v1 = || {
        let own = own_path(&|_, controllers| lists(controllers, "memory"))?;
        Some(hierarchy(own, mounted_v1(mounts, "memory")?, Version::V1))
    };
    let v2 = || {
        let own = own_path(&|id, _| id == "0")?;
        Some(hierarchy(own, mounted(mounts, &|kind, _| kind == "cgroup2")?, Version::V2))
    };
    v1().or_else(v2)
}

/// Where the hierarchy of version 1 with a controller, such as `blkio`, is mounted.
pub fn mount_of_v1(controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounted_v1(&mounts, controller).map(|(_, mount)| mount)
}

fn lists(list: &str, controller: &str) -> bool {
    list.split(',').any(|one| one == controller)
}

fn mounted_v1<'a>(mounts: &'a str, controller: &str) -> Option<(&'a str, PathBuf)> {
    mounted(mounts, &|kind, options| kind == "cgroup" && lists(options, controller))
}

/// Root and mount point of a hierarchy of which type and options are wanted.
fn mounted<'a>(mounts: &'a str, wanted: &dyn Fn(&str, &str) -> bool) -> Option<(&'a str, PathBuf)> {
    mounts.lines().find_map(|line| {
        // ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS [TAGS…] - TYPE SOURCE SUPER_OPTIONS
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        wanted(kind, options).then(|| (root, PathBuf::from(mount)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_told_apart() {
        let v1 = "30 29 0:26 / /sys/fs/cgroup/memory rw - cgroup none rw,memory\n\
                  31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        let found = locate(v1, "4:memory:/nowhere\n0::/\n").unwrap();
        assert_eq!(found.version, Version::V1);
        assert_eq!(found.mount, Path::new("/sys/fs/cgroup/memory"));
        let v2 = "31 29 0:27 /box /sys/fs/cgroup rw shared:1 - cgroup2 none rw\n";
        let found = locate(v2, "0::/box/app\n").unwrap();
        assert_eq!((found.version, found.own), (Version::V2, found.mount));
        assert!(locate("", "0::/\n").is_none());
    }

    #[test]
    fn limit_holds_and_kills_are_counted() {
        let cgroup = match MemoryCgroup::create("pagekeeper-test", 32 << 20) {
            Ok(cgroup) => cgroup,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "x=$(head -c 100000000 /dev/zero | tr '\\0' a); echo ${#x}"]);
        let procs = vec![cgroup.procs().unwrap()];
        crate::launch::ChildSetup { cgroup_procs: procs, ..Default::default() }.apply(&mut command);
        let out = command.output().unwrap();
        assert!(!out.status.success(), "100 MB fit into 32 MiB: {out:?}");
        assert!(cgroup.oom_kills().unwrap() >= 1);
        assert!(cgroup.peak_bytes().unwrap() > 16 << 20);
        assert!(cgroup.usage_bytes().unwrap() <= 32 << 20);
        assert!(cgroup.stat("pgfault").unwrap() > 0);
        assert_eq!(cgroup.stat("no such key"), Err(Errno::NOENT));
        let path = cgroup.path().to_owned();
        cgroup.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn processes_go_to_the_parent_on_drop() {
        let cgroup = match MemoryCgroup::create("pagekeeper-test", 64 << 20) {
            Ok(cgroup) => cgroup,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let path = cgroup.path().to_owned();
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        cgroup.enter(child.id()).unwrap();
        drop(cgroup);
        assert!(!path.exists());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
