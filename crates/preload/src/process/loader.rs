//! Whether this library can be loaded into a program, looked up by who executes it.
//!
//! The manager knows more of programs, but a vfork child has no connection to it, and makes one only for a
//! program that is not as most are.

use crate::{raw, raw_call};
use libc::{c_char, c_int};

/// `Elf64_Ehdr` and `Elf64_Phdr`, elf(5): where their fields are.
const HEADER_BYTES: usize = 64;
const MACHINE: usize = 18;
const TABLE_OFFSET: usize = 32;
const ENTRY_BYTES: usize = 54;
const ENTRIES: usize = 56;
const PT_INTERP: u32 = 3;
#[cfg(target_arch = "x86_64")]
const OWN_MACHINE: u64 = libc::EM_X86_64 as u64;
#[cfg(target_arch = "aarch64")]
const OWN_MACHINE: u64 = libc::EM_AARCH64 as u64;

fn open(dir: c_int, path: *const c_char) -> Result<c_int, isize> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let fd = raw_call!(libc::SYS_openat, dir, path, flags);
    if fd < 0 { Err(fd) } else { Ok(fd as c_int) }
}

/// Whether the library of this path would be found: not in another root, or by a user who may not read it.
pub(crate) fn finds(library: *const c_char) -> bool {
    open(libc::AT_FDCWD, library).map(raw::close).is_ok()
}

/// Whether the program of this path, which begins in a directory as for `openat(2)`, is as most are: dynamic, of this machine, without privilege of its own,
/// and with a linker that is not musl's. So is one that is not there: the kernel will say so.
///
/// For a vfork child, which has a table of descriptors of its own, and so no locks that go with one.
pub(crate) fn is_usual(dir: c_int, path: *const c_char) -> bool {
    let fd = match open(dir, path) {
        Ok(fd) => fd,
        Err(errno) => return errno == -libc::ENOENT as isize || errno == -libc::ENOTDIR as isize,
    };
    let has_privilege = raw::fstat(fd).map_or(true, |stat| stat.st_mode & 0o6000 != 0)
        || raw_call!(libc::SYS_fgetxattr, fd, c"security.capability".as_ptr(), 0, 0) > 0;
    let is_usual = !has_privilege
        && has_usual_linker(|at, bytes: &mut [u8]| {
            let done = raw_call!(libc::SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), at);
            usize::try_from(done).unwrap_or(0)
        });
    raw::close(fd);
    is_usual
}

fn has_usual_linker(read: impl Fn(u64, &mut [u8]) -> usize) -> bool {
    // Its table of segments comes first in a program as a rule. All numbers have their lowest byte first.
    let mut head = [0u8; 1024];
    let got = read(0, &mut head);
    let head = &head[..got];
    let number = |at: usize, bytes: usize| {
        let field = head.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let linker = || {
        let (table, bytes) = (number(TABLE_OFFSET, 8)?, number(ENTRY_BYTES, 2)?);
        let place = |entry: u64| usize::try_from(table.checked_add(entry * bytes)?).ok();
        let mut segments = (0..number(ENTRIES, 2)?).map_while(place);
        number(segments.find(|at| number(*at, 4) == Some(PT_INTERP.into()))? + 8, 8)
    };
    if got < HEADER_BYTES
        || !head.starts_with(b"\x7fELF\x02\x01")
        || number(MACHINE, 2) != Some(OWN_MACHINE)
    {
        return false;
    }
    let Some(at) = linker() else { return false };
    let mut name = [0u8; 64];
    let got = read(at, &mut name);
    let name = name[..got].split(|byte| *byte == 0).next().unwrap_or_default();
    !name.is_empty() && !name.windows(4).any(|letters| letters == b"musl")
}
