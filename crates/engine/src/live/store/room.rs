//! Which parts of a file have storage: what is stored to is given some before it is written back.

use super::Store;
use crate::port::{PAGE_BYTES, PortError};
use pagekeeper_sys::Errno;
use pagekeeper_sys::file::{self, FallocateFlags};
use std::ops::Range;

impl Store {
    /// Whether parts of it may have no blocks on storage.
    pub fn sparse(&self) -> bool {
        let access = self.access();
        let Ok(stat) = file::stat(&access.plain) else { return false };
        // Blocks behind the end, and the file system's own, count as allocated.
        let hole = rustix::fs::seek(&access.plain, rustix::fs::SeekFrom::Hole(0));
        let size = stat.version.size_bytes;
        stat.allocated_bytes < size
            || hole.is_ok_and(|hole| hole < size)
            || self.file_system.shares_blocks()
    }

    /// Gives storage to a range that has none yet, so that writing it back cannot run out of space.
    ///
    /// # Errors
    /// ENOSPC, EDQUOT and others of `fallocate(2)`.
    pub fn reserve(&self, offset: u64, len: u64) -> Result<(), PortError> {
        let write = self.access();
        if !write.writable {
            return Ok(());
        }
        let size = self.version()?.size_bytes;
        let rest = size.saturating_sub(offset);
        let len = len.min(rest);
        if len == 0 {
            return Ok(());
        }
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        let has_storage = || file::is_allocated(&write.plain, offset, len).unwrap_or(false);
        let had_storage = has_storage();
        let mut ahead = self.ahead.lock().expect("lock");
        // Another may have been given it since.
        if had_storage || ahead.concerns(&pages) && has_storage() {
            ahead.stores(&pages);
            return Ok(());
        }
        let wanted = ahead.wants(&pages, size.div_ceil(PAGE_BYTES));
        let mut flags = FallocateFlags::KEEP_SIZE;
        // Those are copied first: room for new ones is not kept.
        flags.set(FallocateFlags::UNSHARE_RANGE, self.file_system.shares_blocks());
        let reserve =
            |from: u64, to: u64| file::allocate(&write.plain, flags, from, to.min(size) - from);
        let mut given = pages.start..wanted.end;
        let reserved = match reserve(offset, (wanted.end * PAGE_BYTES).max(offset + len)) {
            // There may be room for what is asked for.
            Err(_) if wanted.end > pages.end => {
                given.end = pages.end;
                reserve(offset, offset + len)
            }
            reserved => reserved,
        };
        match reserved {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        // What nobody asked for takes no room from what somebody did.
        let before = wanted.start * PAGE_BYTES;
        if wanted.start < pages.start && reserve(before, pages.start * PAGE_BYTES).is_ok() {
            given.start = wanted.start;
        }
        ahead.reserved(&pages, &given);
        Ok(())
    }

    /// Whole pages are likely to be stored to: for how many of them, the first ones, there is storage.
    pub(crate) fn room_ahead(&self, pages: Range<u64>) -> u64 {
        let access = self.access();
        let (offset, len) = (pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES);
        if !access.writable {
            return 0;
        }
        let room = file::allocated_len(&access.plain, offset, len).unwrap_or(0) / PAGE_BYTES;
        // Else what was given storage ahead would be taken for in vain, and nothing given any more.
        if room > 0 {
            self.ahead.lock().expect("lock").stores(&(pages.start..pages.start + room));
        }
        room
    }

    /// Punches a hole (`madvise(2)` MADV_REMOVE on a mapping of the file).
    ///
    /// # Errors
    /// As `fallocate(2)`.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), PortError> {
        let access = self.access();
        let write = access.for_writing()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(file::allocate(&write.plain, flags, offset, len)?)
    }

    /// Makes the file at least so long (`fallocate(2)`, of its last byte).
    ///
    /// # Errors
    /// As `fallocate(2)`; EBADF if the store is not writable.
    pub fn grow(&self, len: u64) -> Result<(), PortError> {
        let access = self.access();
        let plain = &access.for_writing()?.plain;
        let Some(last) = len.checked_sub(1) else { return Ok(()) };
        Ok(file::allocate(plain, FallocateFlags::empty(), last, 1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// A file of zeros that has no storage, and its store.
    fn hole(name: &str, bytes: u64) -> (std::fs::File, Store) {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let options = std::fs::File::options().read(true).write(true).create(true).clone();
        let file = options.open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(bytes).unwrap();
        let store = Store::open(file.as_fd()).unwrap();
        store.allow_writes(file.as_fd()).unwrap();
        (file, store)
    }

    /// Each was given storage by itself, and so lay by itself.
    #[test]
    fn pages_of_a_hole_that_are_stored_to_by_turns_are_given_storage_together() {
        const PAGES: u64 = 4096;
        let (file, store) = hole("pagekeeper-sparse", PAGES * PAGE_BYTES + 10);
        let has_storage = |page: u64| file::is_allocated(&file, page * PAGE_BYTES, 1).unwrap();
        let mut found_without = 0;
        for page in 0..=PAGES {
            // 1, 0, 3, 2, …
            let page = if page == PAGES { page } else { page ^ 1 };
            found_without += u64::from(!has_storage(page));
            store.reserve(page * PAGE_BYTES, PAGE_BYTES).unwrap();
            if !has_storage(page) {
                eprintln!("skipped: there is no storage to be had here, or none to be seen");
                return;
            }
        }
        assert!(found_without < 64, "{found_without}");
    }

    /// Who may go on without asking is heard of all the same: what was given ahead is not in vain.
    #[test]
    fn pages_that_are_stored_to_without_asking_count_for_what_is_given_ahead() {
        const PAGES: u64 = 8192;
        let (file, store) = hole("pagekeeper-ahead", PAGES * PAGE_BYTES);
        assert_eq!(store.room_ahead(0..4), 0, "nothing was stored");
        let (mut page, mut asked) = (0, 0);
        while page < PAGES {
            store.reserve(page * PAGE_BYTES, PAGE_BYTES).unwrap();
            asked += 1;
            page += 1 + store.room_ahead(page + 1..(page + 65).min(PAGES));
        }
        if !file::is_allocated(&file, 0, PAGE_BYTES).unwrap() {
            eprintln!("skipped: there is no storage to be had here, or none to be seen");
            return;
        }
        assert_eq!(file::has_hole(&file, 0, PAGES * PAGE_BYTES), Ok(true), "it was not written to");
        assert_eq!(file::is_allocated(&file, 0, PAGES * PAGE_BYTES), Ok(true));
        assert!(asked < PAGES / 32, "{asked}");
    }
}
