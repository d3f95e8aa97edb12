//! The least that a fault takes: a program that touches the listed pages of a file, whose faults are
//! answered by the system calls that nobody can do without, and nothing else. First in, first out; no
//! threads, no dirty pages, one file, no errors that anybody could mend. It is what the library's
//! regions and `pagekeeper run` are compared with, and no cache of its own.

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use pagekeeper_bench::pattern::{PAGE_BYTES, first_word};
use pagekeeper_sys::area::{Access, Area};
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::bus::{self, BusError};
use pagekeeper_sys::event::{Epoll, Interest};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::userfault::{Event, Features, OpenFlags, Track, Userfault};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// Touches listed pages
#[derive(Parser, Debug)]
struct Cli {
    way: Way,
    file: PathBuf,
    /// The pages, as 32-bit numbers
    sequence: PathBuf,
    /// For frames, in bytes
    memory: u64,
    /// Of the process that serves: the userfaultfd, the memfd and the address that it was told
    #[arg(hide = true, num_args = 3)]
    inherited: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Way {
    /// The thread that touches serves its faults, in a handler of SIGBUS
    Inline,
    /// Another process serves them
    Process,
    /// That one
    #[value(hide = true)]
    Serve,
}

/// What answers faults.
struct Server {
    userfault: Userfault,
    /// A memfd as long as the file.
    frames: File,
    /// Where that is mapped.
    address: u64,
    file: File,
    buffer: Buffer,
    /// Pages in memory; the oldest is at `oldest` once there is no room.
    resident: Vec<u32>,
    oldest: usize,
}

static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();

impl Server {
    fn new(cli: &Cli, userfault: Userfault, frames: File, address: u64) -> Result<Server> {
        Ok(Server {
            userfault,
            frames,
            address,
            file: OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&cli.file)?,
            buffer: Buffer::new(PAGE_BYTES)?,
            resident: Vec::with_capacity(cli.memory as usize / PAGE_BYTES),
            oldest: 0,
        })
    }

    fn serve(&mut self, address: u64) -> Result<()> {
        let offset = (address - self.address) & !(PAGE_BYTES as u64 - 1);
        let page = (offset / PAGE_BYTES as u64) as u32;
        if self.resident.len() < self.resident.capacity() {
            self.resident.push(page);
        } else {
            let victim = std::mem::replace(&mut self.resident[self.oldest], page);
            punch(&self.frames, u64::from(victim) * PAGE_BYTES as u64)?;
            self.oldest = (self.oldest + 1) % self.resident.len();
        }
        self.file.read_exact_at(&mut self.buffer, offset)?;
        self.frames.write_all_at(&self.buffer, offset)?;
        let mapped = self.userfault.cont(self.address + offset, PAGE_BYTES as u64, true, false);
        mapped.map_err(|interrupted| anyhow::anyhow!("UFFDIO_CONTINUE: {interrupted:?}"))?;
        Ok(())
    }
}

/// Takes a page out of memory, and out of the mapping.
fn punch(frames: &File, offset: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate(2) touches no memory of this process but the page's, which is read by raw
    // pointers only.
    let result =
        unsafe { libc::fallocate(frames.as_raw_fd(), mode, offset as i64, PAGE_BYTES as i64) };
    ensure!(result == 0, "fallocate: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Answers a fault of the calling thread.
fn on_bus_error(error: BusError) -> bool {
    // The thread holds no lock when it touches a page, so that this does not wait for itself.
    let server = SERVER.get().map(|server| server.lock().expect("served without a panic"));
    server.is_some_and(|mut server| server.serve(error.address).is_ok())
}

/// Answers faults of the process that began this one, until that ends it.
fn serve(cli: &Cli) -> Result<()> {
    let [userfault, frames, address] = cli.inherited[..] else {
        anyhow::bail!("nothing is inherited")
    };
    // SAFETY: both numbers are descriptors that this process was begun with, and nobody else's in it.
    let inherit = |fd: u64| unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let userfault = Userfault::from_fd(inherit(userfault));
    let mut server = Server::new(cli, userfault, inherit(frames).into(), address)?;
    let epoll = Epoll::new()?;
    epoll.add(&server.userfault, 0, Interest::READ)?;
    let (mut ready, mut events) = (Vec::new(), Vec::new());
    loop {
        ready.clear();
        epoll.wait(&mut ready, None)?;
        events.clear();
        server.userfault.read_events(&mut events)?;
        for event in &events {
            if let Event::Fault { address, .. } = event {
                server.serve(*address)?;
            }
        }
    }
}

/// Lets a descriptor live on in a program that is executed; its number.
fn inheritable(fd: BorrowedFd<'_>) -> Result<String> {
    // SAFETY: changes a flag of a descriptor.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    ensure!(result == 0, "fcntl: {}", std::io::Error::last_os_error());
    Ok(fd.as_raw_fd().to_string())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if cli.way == Way::Serve {
        return serve(&cli);
    }
    let sequence = std::fs::read(&cli.sequence).context("the sequence")?;
    let len_bytes = cli.file.metadata()?.len();
    let frames = Memfd::create("least", len_bytes, false)?;
    let area = Area::new(&frames, 0, len_bytes as usize, Access::Read)?;
    let flags = OpenFlags { nonblocking: true, user_mode_only: false };
    // SAFETY: no reference covers the area: it is read by raw pointers.
    let userfault = unsafe { Userfault::open(flags)? };
    let wanted = Features::PAGEFAULT_FLAG_WP
        | Features::WP_HUGETLBFS_SHMEM
        | Features::MISSING_SHMEM
        | Features::MINOR_SHMEM;
    let inline = cli.way == Way::Inline;
    userfault.api(if inline { wanted | Features::SIGBUS } else { wanted })?;
    userfault.register(
        area.address(),
        len_bytes,
        Track::MISSING | Track::MINOR | Track::WRITE_PROTECT,
    )?;
    area.open()?;
    let start = Instant::now();
    let server = if inline {
        let frames = File::from(frames.as_fd().try_clone_to_owned()?);
        let server = Server::new(&cli, userfault, frames, area.address())?;
        SERVER.set(Mutex::new(server)).ok().context("one server")?;
        bus::install(on_bus_error)?;
        None
    } else {
        let fds = [inheritable(userfault.as_fd())?, inheritable(frames.as_fd())?];
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").args([&cli.file, &cli.sequence]).arg(cli.memory.to_string());
        command.args(fds).arg(area.address().to_string()).stdout(Stdio::null());
        Some(command.spawn()?)
    };
    let mut checksum = 0u64;
    for page in sequence.as_chunks::<4>().0 {
        let page = u64::from(u32::from_le_bytes(*page));
        // SAFETY: within the area, which nobody stores to while it is read.
        let word =
            unsafe { area.as_ptr().add(page as usize * PAGE_BYTES).cast::<u64>().read_volatile() };
        ensure!(word == first_word(page), "page {page} holds {word:x}");
        checksum = checksum.wrapping_add(word);
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    if let Some(mut server) = server {
        server.kill()?;
        server.wait()?;
    }
    println!(
        "{}",
        serde_json::json!({
            "elapsed_ns": elapsed_ns, "checksum": format!("{checksum:016x}"),
            "touches": sequence.len() / 4,
        })
    );
    Ok(())
}
