//! This process's own code: kept in memory, where who serves others would wait for it.
#![allow(unsafe_code)]

use crate::pagemap::Pagemap;
use crate::process::for_each_mapping;
use crate::{PAGE_BYTES, Result, check};
use std::ops::Range;

/// Where the limit does not allow all, so much is locked as one: each range becomes a mapping of its own.
const BLOCK_BYTES: u64 = 64 << 10;

/// Keeps what this process executes, and what of its files it only reads, in memory from its next use on
/// (`mlock2(2)`, MLOCK_ONFAULT): the kernel takes code back before anything else where memory is short.
/// Where RLIMIT_MEMLOCK is below that (a container without CAP_IPC_LOCK), what of it is used by now: the
/// later, the more. What is never used takes no memory, and a forked child's is not locked. Returns how
/// many bytes are locked.
///
/// # Errors
/// [`Errno::PERM`](crate::Errno::PERM), [`Errno::NOMEM`](crate::Errno::NOMEM): the limit allows no more;
/// what was locked before stays so. Or as reading `/proc/self/maps`.
pub fn keep_in_memory() -> Result<u64> {
    let mut code = Vec::new();
    for_each_mapping(std::process::id(), |mapping| {
        if mapping.inode != 0 && mapping.read && !mapping.write && !mapping.shared {
            code.push(mapping.start..mapping.end);
        }
        true
    })?;
    let bytes = code.iter().map(|range| range.end - range.start).sum();
    if code.iter().try_for_each(lock).is_ok() {
        return Ok(bytes);
    }
    let pagemap = Pagemap::open(std::process::id())?;
    let mut locked = 0;
    for range in code {
        for start in (range.start..range.end).step_by(BLOCK_BYTES as usize) {
            let block = start..range.end.min(start + BLOCK_BYTES);
            let pages = ((block.end - block.start) / PAGE_BYTES as u64) as usize;
            if pagemap.entries(start, pages)?.iter().any(|entry| entry.is_present()) {
                lock(&block)?;
                locked += block.end - block.start;
            }
        }
    }
    Ok(locked)
}

fn lock(range: &Range<u64>) -> Result<()> {
    let bytes = (range.end - range.start) as usize;
    // SAFETY: locking changes no memory and no protection; a range that is gone by now is an error
    // (ENOMEM), and one that is something else by now only stays in memory.
    let done =
        unsafe { libc::mlock2(range.start as *const libc::c_void, bytes, libc::MLOCK_ONFAULT) };
    check(done).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_locked_as_far_as_the_limit_allows() {
        let locked_kib = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        match keep_in_memory() {
            Ok(bytes) => assert!(bytes >= 4096 && locked_kib() >= bytes / 1024, "{bytes}"),
            Err(errno) => eprintln!("skipped: {errno}"),
        }
    }
}
