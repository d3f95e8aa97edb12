//! Another program follows in a process, which the library may not be able to follow into.

use super::Connection;
use pagekeeper_sys::{Errno, elf, file, process};
use pagekeeper_wire as wire;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

impl Connection {
    /// Another program follows in this process or a child: if the library cannot follow into it,
    /// it must find everything in the files. Whether its dynamic linker would look for the library all the same.
    pub(super) fn exec(&self, text: &[u8], library_is_gone: bool) -> bool {
        let path = String::from_utf8_lossy(text).into_owned();
        // The client's path, from its own directory and root.
        let held = RefCell::new(Vec::new());
        let place = |path: &Path| self.place_of(path, &mut held.borrow_mut());
        let found = match file::stat_path(&place(Path::new(&path))) {
            Ok(found) if found.is_regular() => Some(found),
            // The call fails, or the next directory of PATH is tried.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return false,
            Err(_) => None,
        };
        let user = process::effective_ids(self.pid).unwrap_or(self.user);
        let program = found.is_some().then(|| elf::inspect_for(Path::new(&path), user, &place));
        let obstacle = program.as_ref().and_then(|program| program.reasons.first());
        let reason = match obstacle {
            Some(reason) => Some(reason.to_string()),
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
        // What cannot be looked at may be anything.
        if reason.is_some() || found.is_none() {
            let _ = self.manager.engine.write_behind();
        }
        if let Some(found) = found {
            self.manager.let_program_go(found.id);
        }
        library_is_gone || matches!(obstacle, Some(elf::Obstacle::ForeignLinker(..)))
    }

    /// What the client finds by a path, as a path of this process; `held` keeps that valid.
    fn place_of(&self, path: &Path, held: &mut Vec<OwnedFd>) -> PathBuf {
        let process = Path::new("/proc").join(self.pid.to_string());
        let Ok(inside) = path.strip_prefix("/") else { return process.join("cwd").join(path) };
        match file::open_in_root(&process.join("root"), inside) {
            Ok(found) => {
                let place = format!("/proc/self/fd/{}", found.as_raw_fd());
                held.push(found);
                place.into()
            }
            Err(_) => process.join("root").join(inside),
        }
    }
}
