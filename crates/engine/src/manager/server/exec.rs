//! Another program follows in a process, which the library may not be able to follow into.

use super::Connection;
use pagekeeper_sys::{elf, file, process};
use pagekeeper_wire as wire;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

impl Connection {
    /// Another program follows in this process or a child: if the library cannot follow into it,
    /// it must find everything in the files. `how` are the bits of [`wire::Op::Exec`], and `shown` is the
    /// program. Whether its dynamic linker would look for the library all the same.
    pub(super) fn exec(&self, text: &[u8], how: u64, shown: Option<OwnedFd>) -> bool {
        let path = String::from_utf8_lossy(text).into_owned();
        let is_elsewhere = how & wire::EXEC_ELSEWHERE != 0;
        let held = RefCell::new(Vec::new());
        let place = |at: &Path| match &shown {
            Some(fd) if at == Path::new(&path) => place_of_descriptor(fd),
            // The client's path, from its own directory and root.
            _ => self.place_of(at, &mut held.borrow_mut()),
        };
        let found = (!is_elsewhere).then(|| file::stat_path(&place(Path::new(&path))));
        let found = match found {
            Some(Ok(found)) if found.is_regular() => Some(found),
            // The call fails.
            Some(Ok(_)) if shown.is_some() => return false,
            _ => None,
        };
        let user = process::effective_ids(self.pid).unwrap_or(self.user);
        let program = found.is_some().then(|| elf::inspect_for(Path::new(&path), user, &place));
        let obstacle = program.as_ref().and_then(|program| program.reasons.first());
        let library_is_gone = how & wire::EXEC_LIBRARY_IS_GONE != 0;
        let reason = match obstacle {
            Some(reason) => Some(reason.to_string()),
            None if how & wire::EXEC_LEAVES != 0 => Some(format!(
                "its environment takes it out of the run: {}=1, or another run's {}",
                wire::ENV_DISABLE,
                wire::ENV_SOCKET
            )),
            None if library_is_gone => Some(format!(
                "{} is not to be found in its root, or not for its user: install it where it is for all",
                wire::LIBRARY
            )),
            None => None,
        };
        if let Some(reason) = &reason {
            self.manager.note(format!(
                "{path} runs outside Pagekeeper ({reason}); dirty pages were written back before it started"
            ));
        }
        let may_be_confined = self.manager.board.get().is_some_and(|board| board.may_be_confined());
        // What was not shown may be anything: its path may lead elsewhere from here. What is confined says
        // so itself, if it is kept from us.
        if reason.is_some() || found.is_none() || shown.is_none() || may_be_confined {
            let _ = self.manager.engine.write_for_outside();
        }
        let vain = library_is_gone || matches!(obstacle, Some(elf::Obstacle::ForeignLinker(..)));
        // Who lets go of a file looks who has it open.
        drop(shown);
        if let Some(found) = found {
            self.manager.let_program_go(found.id);
        }
        vain
    }

    /// What the client finds by a path, as a path of this process; `held` keeps that valid.
    fn place_of(&self, path: &Path, held: &mut Vec<OwnedFd>) -> PathBuf {
        let process = Path::new("/proc").join(self.pid.to_string());
        let Ok(inside) = path.strip_prefix("/") else { return process.join("cwd").join(path) };
        match file::open_in_root(&process.join("root"), inside) {
            Ok(found) => {
                let place = place_of_descriptor(&found);
                held.push(found);
                place
            }
            Err(_) => process.join("root").join(inside),
        }
    }
}

fn place_of_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
