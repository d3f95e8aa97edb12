//! How programs of a run find its manager: by what their environment says.

use super::{Options, RunError, machine};
use crate::launch::holder::Holder;
use crate::manager::board::Board;
use crate::manager::registry;
use pagekeeper_sys::descriptor::duplicate;
use pagekeeper_sys::file;
use pagekeeper_sys::socket::Listener;
use pagekeeper_wire as wire;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What programs are given to find their manager, and to be believed by it.
pub(super) struct Invitation {
    pub(super) secret: [u8; 16],
    /// What they are told without asking.
    pub(super) board: Arc<Board>,
    /// The socket's name.
    name: String,
    /// What [`wire::ENV_SOCKET`] says.
    value: String,
    side: Option<SideDoor>,
    /// Until somebody waits there.
    bell: Option<Listener>,
    /// What programs ring it by.
    rope: OwnedFd,
}

impl Invitation {
    /// Invites to a manager that may follow programs into their system calls and forks, or may not.
    pub(super) fn new(options: &Options, may_follow: bool) -> Result<Invitation, RunError> {
        let secret = random_bytes().map_err(|e| RunError::Machine(format!("/dev/urandom: {e}")))?;
        let name = format!("pagekeeper-{}-{}", std::process::id(), hex(&secret[..8]));
        let how = match &options.heap {
            _ if !may_follow => wire::USER_MODE_ONLY.to_owned(),
            Some(heap) => heap.min_bytes.to_string(),
            None => String::new(),
        };
        let board =
            Board::create(secret, &options.selection).map_err(machine("no shared memory"))?;
        let side = SideDoor::open(&name);
        let side_place = side.as_ref().map_or_else(String::new, SideDoor::place);
        let (bell, rope) = Listener::bell().map_err(machine("no socket"))?;
        let inode = file::stat(&rope).map_err(machine("no socket"))?.id.ino;
        // 0 is nobody's.
        let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |network| network.ino());
        let secret_digits = hex(&secret);
        let place = board.place();
        let value = format!("{name}:{secret_digits}:{how}:{place}{side_place}:{inode}.{network}");
        let (board, bell) = (Arc::new(board), Some(bell));
        Ok(Invitation { secret, board, name, value, side, bell, rope })
    }

    /// The assignment by which a process of the run is known.
    pub(super) fn tag(&self) -> String {
        format!("{}={}", wire::ENV_SOCKET, self.value)
    }

    /// Where they come to: by name, which the holder keeps from others, at the side door, and by the bell. To be
    /// called once; the invitation is to be kept as long as somebody may come.
    pub(super) fn listen(&mut self, holder: &Holder) -> Result<Vec<Listener>, RunError> {
        let listener = Listener::bind(self.name.as_bytes(), true).map_err(machine("no socket"))?;
        holder.keep_listener(&listener).map_err(machine("the holder process has ended"))?;
        let side = self.side.as_mut().and_then(|side| side.listener.take());
        let bell = self.bell.take();
        if let Some(bell) = &bell {
            holder.keep_listener(bell).map_err(machine("the holder process has ended"))?;
        }
        Ok([Some(listener), side, bell].into_iter().flatten().collect())
    }

    /// What the bell is rung by, for programs that ask for it ([`wire::Op::Bell`]).
    pub(super) fn rope(&self) -> Result<OwnedFd, RunError> {
        duplicate(&self.rope).map_err(machine("no socket"))
    }

    /// Gives it to a program.
    pub(super) fn hand_to(&self, command: &mut Command, library: &Path) {
        command.env("LD_PRELOAD", preload_list(library)).env(wire::ENV_SOCKET, &self.value);
    }
}

/// A second way in, for programs that the first one's name means nothing to.
struct SideDoor {
    /// Until somebody waits there.
    listener: Option<Listener>,
    /// Open as long as somebody may come.
    place: OwnedFd,
}

impl SideDoor {
    /// None where there is no place for one.
    fn open(name: &str) -> Option<SideDoor> {
        registry::DIRECTORIES.into_iter().find_map(|directory| {
            let bound = Listener::bind_nameless(directory.as_ref(), name, true);
            bound.ok().map(|(listener, place)| SideDoor { listener: Some(listener), place })
        })
    }

    /// Where it is, behind the board's place in [`wire::ENV_SOCKET`].
    fn place(&self) -> String {
        format!(".{}", self.place.as_raw_fd())
    }
}

fn preload_list(library: &Path) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD")
        && !others.is_empty()
    {
        list.push(":");
        list.push(others);
    }
    list
}

fn random_bytes() -> std::io::Result<[u8; 16]> {
    use std::io::Read;
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
