//! What is in files: read, written back, and changed by system calls.

use super::{Connection, Handled, errno_of, value, values};
use crate::engine::transfer::Change;
use crate::manager::work::Work;
use crate::port::{FileNo, PAGE_BYTES, Port, PortError};
use pagekeeper_sys::{Errno, process};
use pagekeeper_wire::{self as wire, Request};
use std::time::{Duration, Instant};

/// How long a read at the end waits for somebody who makes the file longer, who may be stopped; and how
/// long between two looks.
const GROWING_MAX: Duration = Duration::from_millis(50);
const GROWING_PAUSE: Duration = Duration::from_micros(50);

impl Connection {
    pub(super) fn sync(&self, r: Request) -> Handled {
        let wait = r.c as i32 & libc::MS_ASYNC == 0;
        let mut first_error = None;
        for (start, end, region) in self.all_regions(r.a, r.b) {
            let engine = &self.manager.engine;
            if !region.shared || engine.is_heap(region.file) {
                continue;
            }
            self.manager.look(region.file);
            if !wait {
                self.manager.workers.push(Work::Flush(region.file));
                continue;
            }
            let pages = region.index(start)..region.index(end - 1) + 1;
            let mut heard = self.heard(region.file);
            let mut result = engine.flush_since(region.file, pages, &mut heard);
            let live = engine.port().file(region.file);
            // The kernel says it once to this descriptor, which all programs share.
            if let Some(store) = live.as_ref().and_then(|live| live.store())
                && let Err(error) = store.sync()
            {
                engine.note_error(region.file, error);
                result = result.and(engine.tell_error(region.file, &mut heard));
            }
            self.with_client(|client| client.heard.insert(region.file, heard));
            if let Err(error) = result {
                first_error.get_or_insert(errno_of(error));
            }
        }
        match first_error {
            Some(errno) => Err(errno),
            None => value(0),
        }
    }

    pub(super) fn flush(&self, r: Request) -> Handled {
        let engine = &self.manager.engine;
        if r.a == u64::MAX {
            engine.write_for_outside().map_err(errno_of)?;
            return value(0);
        }
        let Ok(no) = self.slot(r.a) else { return value(0) };
        if r.d == 0 {
            self.manager.workers.push(Work::Flush(no));
            return value(0);
        }
        let first = r.b / PAGE_BYTES;
        let end = if r.c == 0 { u64::MAX } else { r.b.saturating_add(r.c).div_ceil(PAGE_BYTES) };
        let mut heard = r.e;
        let result = if r.d == wire::FLUSH_AT_REST {
            engine.write_out_at_rest(no)
        } else if heard == wire::HEARD_NOTHING {
            engine.write_out(no, first..end)
        } else {
            self.manager.look(no);
            engine.flush_since(no, first..end, &mut heard)
        };
        let errno = result.err().map_or(0, |error| errno_of(error).raw_os_error());
        values(errno as u64, heard)
    }

    pub(super) fn read(&self, r: Request) -> Handled {
        let no = self.permitted(r.a, |rights| rights.read)?;
        if r.e != 0 && !self.space_regions(r.d, r.c).is_empty() {
            return values(0, 1);
        }
        value(self.copy(no, r.b, r.c, r.d)?)
    }

    /// Copies file content into the client's memory; the bytes copied.
    pub(super) fn copy(&self, no: FileNo, offset: u64, len: u64, addr: u64) -> Result<u64, Errno> {
        let mut done = self.copy_known(no, offset, len, addr)?;
        // The kernel tells a new length before who made the file longer does, and who asked for it reads as far.
        let begun = Instant::now();
        while done < len {
            // In this order: who is not seen at it has said so by then.
            let is_growing = self.is_said_to_reach(no, offset + done);
            done += self.copy_known(no, offset + done, len - done, addr + done).unwrap_or(0);
            if done == len || !is_growing || begun.elapsed() >= GROWING_MAX {
                break;
            }
            std::thread::sleep(GROWING_PAUSE);
        }
        Ok(done)
    }

    /// Whether somebody makes a file longer, and the kernel says already that there is more behind an offset.
    fn is_said_to_reach(&self, no: FileNo, offset: u64) -> bool {
        let engine = &self.manager.engine;
        engine.may_grow(no) && engine.port().version(no).is_ok_and(|now| now.size_bytes > offset)
    }

    /// The same, up to the length that is known.
    fn copy_known(&self, no: FileNo, offset: u64, len: u64, addr: u64) -> Result<u64, Errno> {
        self.manager.engine.catch_up(no);
        let copied = self.manager.engine.read_for(self.pid, no, offset, len, |bytes, done| {
            match process::process_vm_write(self.pid, addr + done, bytes) {
                Ok(n) if n == bytes.len() => Ok(()),
                Ok(_) => Err(PortError::Io(libc::EFAULT)),
                Err(errno) => Err(errno.into()),
            }
        });
        copied.map_err(|error| match errno_of(error) {
            own @ (Errno::FAULT | Errno::NOMEM) => own,
            // Whatever the file system said of a direct read: reads through a cache say this.
            _ => Errno::IO,
        })
    }

    pub(super) fn change_begin(&self, r: Request) -> Handled {
        // A path may be truncated without a descriptor that may write. The kernel looks at the
        // file's permissions then, and nothing but the file's new length is believed; but others
        // are held up meanwhile, so only the manager's own user, root, and who may write to it may.
        let by_path = r.e == wire::CHANGE_TRUNCATE && self.may_write(r.a);
        let no = self.permitted(r.a, |rights| rights.write || by_path)?;
        self.manager.wait_for_takers(no);
        let engine = &self.manager.engine;
        let change = match r.e {
            wire::CHANGE_WRITE => Change::Write,
            wire::CHANGE_TRUNCATE => Change::Truncate,
            _ => Change::Other,
        };
        let (offset, len) = if r.b == wire::AT_END {
            let size = engine.port().version(no).map_err(errno_of)?.size_bytes;
            (size, u64::MAX - size)
        } else {
            (r.b, r.c)
        };
        let managed = r.d != 0 && !self.space_regions(r.d, r.c.min(1 << 40)).is_empty();
        let ticket = engine.change_begin(no, offset, len, change).map_err(errno_of)?;
        if self.with_client(|client| client.changes.push((ticket, no))).is_none() {
            // Nobody lives to make it.
            self.manager.change_left(no, ticket);
            return Err(Errno::SRCH);
        }
        let was_made = r.f == wire::CHANGE_WAS_MADE;
        let is_refused = if was_made {
            !engine.has_stored(no, offset, len, self.bytes_at(r.d))
        } else {
            managed
        };
        values(ticket, is_refused.into())
    }

    /// What the client has in memory from an address on.
    fn bytes_at(&self, address: u64) -> impl Fn(u64, &mut [u8]) -> Result<(), PortError> {
        let pid = self.pid;
        move |at, buffer| match process::process_vm_read(pid, address + at, buffer) {
            Ok(n) if n == buffer.len() => Ok(()),
            Ok(_) => Err(PortError::Io(libc::EFAULT)),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn change_end(&self, r: Request) -> Handled {
        let no = self.slot_to_end(r.a)?;
        let taken = self.with_client(|client| {
            let own = client.changes.iter().position(|c| *c == (r.b, no));
            if let Some(at) = own {
                client.changes.swap_remove(at);
            }
            let is_own = r.b == 0 || own.is_some();
            client.endings += u32::from(is_own);
            is_own
        });
        if taken != Some(true) {
            return Err(Errno::ACCESS);
        }
        // Who gives a record back that it did not use has changed nothing, which is all in memory.
        let is_unused = r.b == 0 && r.d == 0;
        let bytes = (r.e != 0 || is_unused).then_some(self.bytes_at(r.e));
        let engine = &self.manager.engine;
        let ended = if r.b == 0 {
            engine.overwrite_end(no, self.image, r.c, r.d, bytes).map_err(errno_of)
        } else {
            engine.change_end(no, r.b, r.c, r.d, bytes);
            Ok(())
        };
        self.with_client(|client| client.endings -= 1);
        ended.and_then(|()| value(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Request};
    use crate::manager::tests::{is_overwritten, manager, who_overwrites};
    use pagekeeper_sys::socket;
    use pagekeeper_wire::Op;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A process closed a file whose name was gone, and held its record for a moment to take its mapping
    /// of the frames away. The manager, which let go of the file just then, waited for it to be done, and
    /// it for the manager: for ever.
    #[test]
    fn what_ends_an_overwrite_does_not_wait_for_who_lets_go_of_the_file() {
        let manager = manager();
        let pid = std::process::id();
        let Some((image, no)) = who_overwrites(&manager, pid) else { return };
        assert!(manager.wait_active(no) && is_overwritten(&manager, no));
        let (socket, _other) = socket::Connection::pair().unwrap();
        let (manager_of, socket) = (manager.clone(), Arc::new(socket));
        let client =
            Connection { manager: manager_of, socket, pid, image, user: (0, 0), trusted: true };
        let mut end = Request::new(Op::ChangeEnd);
        end.a = no.into();
        let lets_go = manager.activating.lock().unwrap();
        let ended = std::thread::spawn(move || client.change_end(end).map(drop));
        let begun = Instant::now();
        while !ended.is_finished() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert!(ended.is_finished());
        drop(lets_go);
        ended.join().unwrap().unwrap();
        assert!(!is_overwritten(&manager, no));
    }
}
