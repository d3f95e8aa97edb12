//! A program maps files, and protects what it mapped.

use super::{Answer, Connection, Handled, value};
use crate::engine::spaces::Region;
use crate::live::shortage::is_shortage;
use crate::manager::Rights;
use crate::port::{FileNo, PAGE_BYTES};
use pagekeeper_sys::{Errno, process};
use pagekeeper_wire::{self as wire, Reply, Request};
use std::os::fd::{AsFd, OwnedFd};

impl Connection {
    pub(super) fn map_prepare(&self, r: Request, fd: Option<OwnedFd>) -> Handled {
        let manager = &self.manager;
        let no = u32::try_from(r.a).map_err(|_| Errno::INVAL)?;
        let fd = fd.ok_or(Errno::BADF)?;
        let (rights, flags) = Rights::proved_by(&fd)?;
        let pinned = manager.slot_of_file(no, fd.as_fd());
        if !rights.read || pinned.is_none() {
            return Err(Errno::ACCESS);
        }
        if !manager.wait_active(no) {
            // A mapping that is longer than the file shows that it is to grow.
            let size = pagekeeper_sys::file::stat(&fd)?.version.size_bytes;
            let large = size.max(r.c) >= manager.min_size_bytes().max(1);
            let managed = match large {
                true => {
                    let end = r.f.saturating_add(r.c).checked_next_multiple_of(PAGE_BYTES);
                    let trial = (self.pid, r.f..end.unwrap_or(u64::MAX));
                    manager.activate(no, fd.as_fd(), flags, None, Some(&trial)).is_ok()
                }
                false => !manager.leave_plain(no),
            };
            if !managed {
                return value(0);
            }
        }
        if rights.write {
            manager.wait_for_takers(no);
        }
        // It may have been opened before the file was managed.
        manager.allow_writes(no, fd.as_fd(), flags);
        match manager.map_prepare(no, r.b, r.c, r.e as i32, flags)? {
            Some((memfd, kind)) => {
                self.prepared(no, true);
                Ok(Answer {
                    reply: Reply { r0: 1, r1: kind as u64, ..Reply::default() },
                    fd: Some(memfd),
                })
            }
            None => value(0),
        }
    }

    pub(super) fn map_commit(&self, no: FileNo, r: Request) -> Handled {
        // The kernel checked the program's rights when the descriptor was opened; which mapping
        // type was prepared follows from the memfd the client was given.
        let shared = self.prepared_shared(no, r)?;
        let asked_shared = r.f as i32 & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let region = Region {
            file: no,
            bias: r.b.wrapping_sub(r.d),
            shared,
            // A forked child could not be given its parent's copies.
            read_only: !shared && (asked_shared || self.manager.engine.port().is_user_mode_only()),
            library: r.f & wire::MAP_LIBRARY != 0,
        };
        self.manager.map_commit(self.pid, r.d..r.d + r.c, region)?;
        value(0)
    }

    /// Whether the mapping at the address is a shared one of the memfd.
    fn prepared_shared(&self, no: FileNo, r: Request) -> Result<bool, Errno> {
        let live = self.manager.engine.port().file(no).ok_or(Errno::BADF)?;
        let found = self.manager.with_reserve(|| process::mapping_at(self.pid, r.d));
        let found = match found {
            Err(errno) if is_shortage(errno) => return Err(errno),
            found => found.ok().flatten().ok_or(Errno::FAULT)?,
        };
        // The kernel merges neighbours: the offset at the address counts, not the one at the start.
        if found.inode != live.memfd_ino || found.offset + (r.d - found.start) != r.b {
            return Err(Errno::INVAL);
        }
        Ok(found.shared)
    }

    pub(super) fn space_regions(&self, addr: u64, len: u64) -> Vec<(u64, u64, Region)> {
        let Some(no) = self.manager.space_of(self.pid) else { return Vec::new() };
        let range = addr..addr.saturating_add(len.max(1));
        self.manager
            .engine
            .with_space(no, |s| {
                s.regions
                    .overlapping(&range)
                    .map(|(r, v)| (r.start.max(range.start), r.end.min(range.end), *v))
                    .collect()
            })
            .unwrap_or_default()
    }

    /// As [`space_regions`](Self::space_regions), with what nobody told of: a mapping that grew, or a second
    /// one of the same memory (`mremap(2)` of no bytes).
    pub(super) fn all_regions(&self, addr: u64, len: u64) -> Vec<(u64, u64, Region)> {
        let known = self.space_regions(addr, len);
        let known_bytes: u64 = known.iter().map(|(start, end, _)| end - start).sum();
        if known_bytes >= len {
            return known;
        }
        let Some(space) = self.manager.space_of(self.pid) else { return known };
        let end = addr.saturating_add(len);
        let mut starts = Vec::new();
        // One that is gone has none.
        let _ = process::for_each_mapping(self.pid, |mapping| {
            let range = mapping.start.max(addr)..mapping.end.min(end);
            let behind = known.iter().map(|(_, known_end, _)| *known_end);
            starts
                .extend(std::iter::once(range.start).chain(behind).filter(|at| range.contains(at)));
            mapping.end < end
        });
        let is_known = |at: &u64| known.iter().any(|(start, end, _)| (*start..*end).contains(at));
        let find = |at: &u64| self.manager.engine.find_region(space, *at, None);
        let found = starts.iter().filter(|at| !is_known(at)).filter(|at| find(at)).count();
        if found > 0 { self.space_regions(addr, len) } else { known }
    }

    pub(super) fn protect(&self, r: Request) -> Handled {
        if r.d != 0
            && let Some(space) = self.manager.space_of(self.pid)
        {
            // All of it is one mapping, if it is there still. A move that left it behind comes first: it was
            // read, and may not have been applied.
            self.manager.await_events();
            self.manager.engine.find_region(space, r.a, Some(r.e));
        }
        let writes = r.c as i32 & libc::PROT_WRITE != 0;
        let refused = writes && self.space_regions(r.a, r.b).iter().any(|(_, _, v)| v.read_only);
        if refused { Err(Errno::ACCESS) } else { value(0) }
    }
}
