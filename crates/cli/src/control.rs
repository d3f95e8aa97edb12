//! Changing a program's policy while it runs: a socket of each `pagekeeper run`, and who speaks to
//! it.
//!
//! The socket's name is abstract, so that nothing is left behind, and has no permissions: each side
//! checks that the other is of the same user. Who asks sends the length of the program's binary
//! form (8 bytes, little-endian; 0 for a policy of the registry) and the policy's text, then the
//! program in parts; the answer is a byte, 0 if it was done, and a text. The program is verified
//! on both sides.

use crate::failure::{Failure, Kind};
use crate::policy_text;
use crate::report::{count, say};
use crate::threads;
use crate::watch::Saved;
use pagekeeper::launch::{Control, Source};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::Errno;
use pagekeeper_sys::process::parent_of;
use pagekeeper_sys::socket::{Connection, Listener};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a program in a message.
const PART_BYTES: usize = 32 << 10;
/// The longest program; one of as many commands as fit has half of it.
const PROGRAM_BYTES_MAX: usize = 1 << 20;
/// Before a caller that could not be accepted is looked at again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

fn name_of(pid: u32) -> Vec<u8> {
    format!("pagekeeper-control-{pid}").into_bytes()
}

fn is_ours(connection: &Connection) -> bool {
    connection.peer().is_ok_and(|peer| peer.uid == rustix::process::geteuid().as_raw())
}

fn is_of(connection: &Connection, pid: u32) -> bool {
    connection.peer().is_ok_and(|peer| peer.pid == pid)
}

/// Answers whoever of this user wants another policy for this run.
pub(crate) fn serve(control: Control) -> Option<Box<dyn Source>> {
    // Without abstract sockets the policy stays.
    let listener = Listener::bind(&name_of(std::process::id()), true).ok()?;
    Some(Box::new(Callers { listener, control }))
}

struct Callers {
    listener: Listener,
    control: Control,
}

impl Source for Callers {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn serve(&mut self) -> bool {
        match self.listener.accept(false) {
            Ok(Some(caller)) if is_ours(&caller) => self.answer(caller),
            Ok(_) => {}
            Err(Errno::BADF | Errno::INVAL | Errno::NOTSOCK) => return false,
            // Descriptors, or the kernel's memory: there will be others, and the caller stays queued.
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
        true
    }
}

impl Callers {
    /// Answers on a thread of its own: the caller may take its time.
    fn answer(&self, caller: Connection) {
        let (caller, control) = (Arc::new(caller), self.control.clone());
        let heard = caller.clone();
        if let Err(why) = spawn("pk-control", move || answer(&heard, &control)) {
            reply(&caller, &Err(why));
        }
    }
}

fn answer(caller: &Connection, control: &Control) {
    let answer = receive(caller).and_then(|spec| {
        let pages = control.replace_policy(&spec)?;
        Ok(switched(&spec, pages))
    });
    if let Ok(text) = &answer {
        say(text);
    }
    reply(caller, &answer);
}

fn reply(caller: &Connection, answer: &Result<String, String>) {
    let (status, text) = match answer {
        Ok(text) => (0, text),
        Err(text) => (1, text),
    };
    let mut message = vec![status];
    message.extend_from_slice(&text.as_bytes()[..text.len().min(PART_BYTES)]);
    let _ = caller.send(&message, None);
}

fn switched(spec: &PolicySpec, pages: u32) -> String {
    format!("{spec} decides from now on, over {} pages in memory", count(pages.into()))
}

/// Starts a thread that nobody waits for. Without it the run goes on.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    threads::start(name, work).map(drop).map_err(|failure| failure.to_string())
}

fn receive(caller: &Connection) -> Result<PolicySpec, String> {
    let broken = || "the request ended early".to_owned();
    let mut buffer = vec![0; PART_BYTES];
    let next = |buffer: &mut Vec<u8>| -> Result<Vec<u8>, String> {
        let got = caller.recv(buffer).ok().flatten().filter(|got| !got.truncated);
        Ok(buffer[..got.ok_or_else(broken)?.bytes].to_vec())
    };
    let first = next(&mut buffer)?;
    let (length, text) = first.split_first_chunk::<8>().ok_or_else(broken)?;
    let text = std::str::from_utf8(text).map_err(|_| "the policy's name is no text")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > PROGRAM_BYTES_MAX {
        return Err("the program is too long".to_owned());
    }
    let mut program = Vec::new();
    while program.len() < length {
        program.extend(next(&mut buffer)?);
    }
    policy_text::restore(text, &program)
}

/// Asks the run that `pid` belongs to for another policy, and says what became of it. `pid` is
/// that of the run, or of a program in it.
pub(crate) fn ask(pid: u32, spec: &PolicySpec) -> Result<String, Failure> {
    let failed =
        |errno: Errno| Failure::new(Kind::Failure, format!("the run of process {pid}: {errno}"));
    let run = connect(pid)?;
    let definition = spec.definition().unwrap_or_default();
    let mut first = (definition.len() as u64).to_le_bytes().to_vec();
    first.extend_from_slice(spec.to_string().as_bytes());
    if first.len() > PART_BYTES {
        return Err(Failure::new(Kind::Usage, "the policy's name is too long"));
    }
    let mut parts = std::iter::once(&first[..]).chain(definition.chunks(PART_BYTES));
    match parts.try_for_each(|part| run.send(part, None)) {
        // Who cannot be served is answered unheard.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let mut buffer = vec![0; PART_BYTES + 1];
    let got = match run.recv(&mut buffer) {
        // That what was sent is lost is told before the answer.
        Err(Errno::CONNRESET) => run.recv(&mut buffer),
        got => got,
    };
    let got = got.map_err(failed)?.ok_or_else(|| failed(Errno::CONNRESET))?;
    let text = String::from_utf8_lossy(&buffer[1..got.bytes]).into_owned();
    match buffer[0] {
        0 => Ok(text),
        _ => Err(Failure::new(Kind::Failure, format!("the policy stays as it was: {text}"))),
    }
}

/// The run that a process is, or that it was started by.
fn connect(pid: u32) -> Result<Connection, Failure> {
    let mut at = pid;
    loop {
        match Connection::connect(&name_of(at)) {
            // Names are of the network's name space, and numbers of the processes': there may be such a run
            // elsewhere.
            Ok(run) if !is_of(&run, at) => {}
            Ok(run) if is_ours(&run) => return Ok(run),
            Ok(_) => {
                let text = format!("the run of process {pid} is another user's");
                return Err(Failure::new(Kind::Failure, text));
            }
            Err(_) => {}
        }
        at = match parent_of(at) {
            Ok(parent) if parent > 1 => parent,
            _ if !Path::new(&format!("/proc/{pid}")).exists() => {
                return Err(Failure::new(Kind::Failure, format!("there is no process {pid}")));
            }
            _ => {
                let text = format!(
                    "process {pid} is no `pagekeeper run`, and was started by none that can be \
                     reached from here"
                );
                return Err(Failure::new(Kind::Failure, text));
            }
        };
    }
}

/// Has the program at `path` decide anew whenever its file is saved, until the process ends. A
/// program that is refused changes nothing.
pub(crate) fn follow_file(control: Control, text: String, path: PathBuf, known: Vec<u8>) {
    let file = path.display().to_string();
    let mut saved = Saved::since(path, known);
    let following = spawn("pk-follow", move || {
        loop {
            saved.wait();
            let switched = policy_text::parse(&text)
                .and_then(|spec| Ok(switched(&spec, control.replace_policy(&spec)?)));
            match switched {
                Ok(text) => say(&text),
                Err(error) => say(&format!("the policy stays as it was: {error}")),
            }
        }
    });
    if let Err(why) = following {
        say(&format!("{file} is not followed: {why}"));
    }
}
