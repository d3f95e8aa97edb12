//! The machine that is measured on: its description, its disk, where files are.

use crate::disk::Disk;
use crate::pattern;
use anyhow::{Context, Result, ensure};
use pagekeeper_sys::counters::{BlockDevice, ReadAheadGuard};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel's usual read-ahead. Machines like this one may have far more.
pub const READ_AHEAD_KIB: u32 = 128;

/// Where everything is.
#[derive(Debug)]
pub struct Machine {
    /// The program that is measured.
    pub pagekeeper: PathBuf,
    /// The disk that holds the files.
    pub device: BlockDevice,
    /// Its read-ahead outside measurements.
    pub own_read_ahead_kib: u32,
    /// What reads of it are limited to while something is measured.
    pub disk: Option<Disk>,
    folder: PathBuf,
    root: PathBuf,
    /// Held as long as something is measured.
    _alone: File,
}

/// Two at once read each other's recordings, and find files in memory that the other read.
fn alone(folder: &Path) -> Result<File> {
    let lock = File::create(folder.join("lock")).context("the folder for results")?;
    lock.try_lock().context("something else is measured here (target/bench/lock)")?;
    Ok(lock)
}

impl Machine {
    /// Finds the product and makes a folder for files.
    ///
    /// # Errors
    /// The product is not built, or the folder cannot be made.
    pub fn find() -> Result<Machine> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("bench/ is in the root");
        let pagekeeper = std::env::var_os("PAGEKEEPER")
            .map_or_else(|| root.join("target/release/pagekeeper"), PathBuf::from);
        ensure!(
            pagekeeper.is_file(),
            "{} is missing: run `make build`, or set PAGEKEEPER to the program",
            pagekeeper.display()
        );
        let folder = root.join("target/bench");
        fs::create_dir_all(folder.join("data")).context("the folder for results")?;
        let alone = alone(&folder)?;
        let device = BlockDevice::holding(&folder).context("the disk behind target/bench")?;
        let own_read_ahead_kib = device.read_ahead_kib()?;
        let root = root.to_owned();
        Ok(Machine {
            pagekeeper,
            device,
            own_read_ahead_kib,
            disk: None,
            folder,
            root,
            _alone: alone,
        })
    }

    /// Sets the disk's read-ahead until the guard is dropped.
    ///
    /// # Errors
    /// Not root.
    pub fn read_ahead(&self, kib: u32) -> Result<ReadAheadGuard> {
        self.device.set_read_ahead_kib(kib).with_context(|| {
            format!("cannot set the read-ahead of {} (root may)", self.device.name())
        })
    }

    /// A file beside the results.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The Python with numpy that `make setup` made.
    pub fn python(&self) -> PathBuf {
        self.root.join(".venv/bin/python")
    }

    /// The Python with what the suite's programs need, that `make bench-suite` made.
    pub fn bench_python(&self) -> PathBuf {
        self.root.join(".venv-bench/bin/python")
    }

    /// A test file of so many pages, built once.
    ///
    /// # Errors
    /// The disk is full.
    pub fn file(&self, pages: u64) -> Result<PathBuf> {
        let path = self.folder.join(format!("data/{pages}.pages"));
        self.build(path, |part| {
            let mut out = BufWriter::with_capacity(1 << 20, File::create(part)?);
            pattern::write_file(&mut out, pages)?;
            out.flush()?;
            Ok(())
        })
    }

    /// A list of page numbers, for programs that touch what it says (little-endian, 32 bits each).
    ///
    /// # Errors
    /// The disk is full.
    pub fn sequence(&self, name: &str, pages: impl Iterator<Item = u64>) -> Result<PathBuf> {
        self.built(&format!("{name}.sequence"), |part| {
            let mut out = BufWriter::with_capacity(1 << 20, File::create(part)?);
            for page in pages {
                out.write_all(&u32::try_from(page)?.to_le_bytes())?;
            }
            Ok(out.flush()?)
        })
    }

    /// One of the peers' programs, if `bench/peers/build.sh` has built it.
    pub fn peer(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join("target/peers").join(name)).filter(|program| program.is_file())
    }

    /// A file in the data folder that a function builds under another name, once.
    ///
    /// # Errors
    /// The function's.
    pub fn built(&self, name: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        self.build(self.folder.join("data").join(name), build)
    }

    /// The path comes back as the kernel knows it: a program's open file is known by that.
    fn build(&self, path: PathBuf, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if path.exists() {
            return Ok(fs::canonicalize(path)?);
        }
        eprintln!("building {}", path.display());
        let part = path.with_extension("part");
        let _ = fs::remove_file(&part).or_else(|_| fs::remove_dir_all(&part));
        build(&part)?;
        File::open(&part)?.sync_all()?;
        fs::rename(&part, &path)?;
        Ok(fs::canonicalize(path)?)
    }

    /// Writes results as JSON.
    ///
    /// # Errors
    /// The disk is full.
    pub fn save(&self, name: &str, result: Value) -> Result<()> {
        let path = self.folder.join(format!("{name}.json"));
        let all = json!({ "machine": self.describe(), "result": result });
        fs::write(&path, format!("{all:#}\n")).with_context(|| path.display().to_string())?;
        println!("({} has every run)\n", path.display());
        Ok(())
    }

    /// What a reader of results must know about it.
    pub fn describe(&self) -> Value {
        let said = |program: &str, arguments: &[&str]| {
            let out = Command::new(program).args(arguments).output().ok();
            out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
        };
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        json!({
            "date": said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            "kernel": said("uname", &["-r"]),
            "cpu": model.map(|m| m.1),
            "cpus": cpus.lines().filter(|l| l.starts_with("processor")).count(),
            "memory": memory.lines().next().map(|l| l.trim_start_matches("MemTotal:").trim()),
            "disk": self.device.name(),
            "disk_limit": self.disk.map(|disk| disk.to_string()),
            "read_ahead_kib_own": self.own_read_ahead_kib,
            "load": fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sets of figures that were taken at the same time showed a kernel that read a sixth of its pages.
    #[test]
    fn one_measures_at_a_time() {
        let folder = std::env::temp_dir().join(format!("pagekeeper-alone-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = alone(&folder).unwrap();
        assert!(alone(&folder).unwrap_err().to_string().contains("measured here"));
        drop(first);
        assert!(alone(&folder).is_ok());
        fs::remove_dir_all(&folder).unwrap();
    }
}
