//! Round trips of a message of 32 bytes between two processes, in each of the ways that Linux has.

use anyhow::{Context, Result, bail, ensure};
use memmap2::MmapMut;
use pagekeeper_sys::memfd::Memfd;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A message: 32 bytes, as in the paper's measurements.
pub(crate) type Message = [u64; 4];

/// How a message goes to the other process and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// Two pipes.
    Pipes,
    /// A stream socket pair.
    Sockets,
    /// Memory of both, and a futex to wait on. Nobody spins.
    Futexes,
}

impl Transport {
    /// All of them.
    pub(crate) const ALL: [Transport; 3] =
        [Transport::Pipes, Transport::Sockets, Transport::Futexes];

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Pipes => "pipes",
            Transport::Sockets => "sockets",
            Transport::Futexes => "futexes",
        }
    }

    /// The one of this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn named(name: &str) -> Result<Transport> {
        let found = Transport::ALL.into_iter().find(|it| it.name() == name);
        found.with_context(|| format!("there is no transport {name}"))
    }
}

/// Entries of the log of references in the memory that both processes have.
pub(crate) const LOG_ENTRIES: usize = 1 << 16;

const REQUEST_TURN: usize = 0;
const REPLY_TURN: usize = 64;
const REQUEST: usize = 128;
const REPLY: usize = 192;
const LOG: usize = 4096;
const SHARED_BYTES: usize = LOG + 4 * LOG_ENTRIES;

/// The memory that both processes have.
#[derive(Debug)]
pub(crate) struct Shared {
    map: MmapMut,
}

impl Shared {
    fn of(file: &File) -> Result<Shared> {
        // SAFETY: the memory is anonymous, is not truncated while it is mapped, and its two users
        // take turns: what one writes the other reads after a message said so.
        let map = unsafe { MmapMut::map_mut(file) }.context("mapping what both have")?;
        ensure!(map.len() == SHARED_BYTES, "memory of another length");
        Ok(Shared { map })
    }

    fn turn(&self, at: usize) -> &AtomicU32 {
        // SAFETY: a word within the mapping, aligned since `at` is a multiple of 64, and only ever
        // used as an atomic.
        unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU32>() }
    }

    fn message(&self, at: usize) -> Message {
        let word = |n: usize| {
            let bytes = &self.map[at + 8 * n..at + 8 * n + 8];
            u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
        };
        [word(0), word(1), word(2), word(3)]
    }

    fn set_message(&mut self, at: usize, message: Message) {
        self.map[at..at + 32].copy_from_slice(&bytes_of(message));
    }

    /// An entry of the log.
    pub(crate) fn log(&self, entry: usize) -> u32 {
        let bytes = &self.map[LOG + 4 * entry..LOG + 4 * entry + 4];
        u32::from_ne_bytes(bytes.try_into().expect("four bytes"))
    }

    /// Writes an entry of the log.
    pub(crate) fn set_log(&mut self, entry: usize, value: u32) {
        self.map[LOG + 4 * entry..LOG + 4 * entry + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn pass(&self, at: usize, turn: u32) {
        self.turn(at).store(turn, Ordering::Release);
        // SAFETY: futex(2) FUTEX_WAKE only reads the address as a key.
        unsafe {
            libc::syscall(libc::SYS_futex, self.turn(at).as_ptr(), libc::FUTEX_WAKE, 1);
        }
    }

    fn wait(&self, at: usize, turn: u32) {
        loop {
            let now = self.turn(at).load(Ordering::Acquire);
            if now == turn {
                return;
            }
            // SAFETY: futex(2) FUTEX_WAIT reads the word, which is mapped, and has no time-out.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.turn(at).as_ptr(),
                    libc::FUTEX_WAIT,
                    now,
                    std::ptr::null::<libc::timespec>(),
                );
            }
        }
    }
}

/// The other process's program, built beside this one (a test's is a folder below).
pub(crate) fn decider() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this program is")?;
    let folders = own.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join("pagekeeper-decider"))
        .find(|path| path.is_file())
        .context("pagekeeper-decider is missing: build pagekeeper-bench")
}

fn bytes_of(message: Message) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(message) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn message_of(bytes: [u8; 32]) -> Message {
    let mut message = [0; 4];
    for (word, from) in message.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(from.try_into().expect("eight bytes"));
    }
    message
}

enum Way {
    Stream { to: File, from: File },
    Futex { turn: u32 },
}

/// The side that asks. The other process ends when this is dropped.
pub(crate) struct Caller {
    way: Option<Way>,
    /// What both have.
    pub(crate) shared: Shared,
    child: Child,
}

impl Caller {
    /// Starts the program `pagekeeper-decider` as the other side.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(transport: Transport, arguments: &[String]) -> Result<Caller> {
        let memory = Memfd::create("pagekeeper-bench", SHARED_BYTES as u64, false)?;
        let memory = File::from(memory.reopen_writable()?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let mut command = Command::new(decider()?);
        command.arg(transport.name()).arg(path).args(arguments);
        let way = match transport {
            Transport::Pipes => {
                let ((from, its_to), (its_from, to)) = (std::io::pipe()?, std::io::pipe()?);
                command.stdin(its_from).stdout(its_to);
                Way::Stream { to: OwnedFd::from(to).into(), from: OwnedFd::from(from).into() }
            }
            Transport::Sockets => {
                let (here, there) = UnixStream::pair()?;
                command.stdin(OwnedFd::from(there.try_clone()?)).stdout(OwnedFd::from(there));
                let (to, from) = (OwnedFd::from(here.try_clone()?), OwnedFd::from(here));
                Way::Stream { to: to.into(), from: from.into() }
            }
            Transport::Futexes => {
                command.stdin(Stdio::null());
                Way::Futex { turn: 0 }
            }
        };
        let shared = Shared::of(&memory)?;
        let child = command.spawn().context("starting pagekeeper-decider")?;
        let mut caller = Caller { way: Some(way), shared, child };
        // Its first answer says that it has the memory, so that the descriptor may go.
        caller.call([0; 4])?;
        Ok(caller)
    }

    /// The other process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// A round trip.
    ///
    /// # Errors
    /// The other process is gone.
    pub(crate) fn call(&mut self, request: Message) -> Result<Message> {
        match self.way.as_mut().context("the link is open until it is dropped")? {
            Way::Stream { to, from } => {
                to.write_all(&bytes_of(request))?;
                let mut reply = [0; 32];
                from.read_exact(&mut reply)?;
                Ok(message_of(reply))
            }
            Way::Futex { turn } => {
                *turn += 1;
                let turn = *turn;
                self.shared.set_message(REQUEST, request);
                self.shared.pass(REQUEST_TURN, turn);
                self.shared.wait(REPLY_TURN, turn);
                Ok(self.shared.message(REPLY))
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.way = None;
        // By its own id, since futexes do not tell it that this side is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The side that answers, until the asking one is gone.
///
/// # Errors
/// The memory cannot be had, or `answer` fails.
pub(crate) fn serve(
    transport: Transport,
    memory: &str,
    mut answer: impl FnMut(&Shared, Message) -> Result<Message>,
) -> Result<()> {
    let memory = File::options().read(true).write(true).open(memory)?;
    let mut shared = Shared::of(&memory)?;
    if transport == Transport::Futexes {
        for turn in 1.. {
            shared.wait(REQUEST_TURN, turn);
            let reply = answer(&shared, shared.message(REQUEST))?;
            shared.set_message(REPLY, reply);
            shared.pass(REPLY_TURN, turn);
        }
        bail!("turns are at their end");
    }
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut request = [0; 32];
    while from.read_exact(&mut request).is_ok() {
        let reply = answer(&shared, message_of(request))?;
        to.write_all(&bytes_of(reply))?;
        to.flush()?;
    }
    Ok(())
}
