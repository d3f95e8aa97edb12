//! Anonymous files in memory: `memfd_create(2)`, the frames that pages live in.

use std::ffi::CString;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SeekFrom};

use crate::descriptor::beside_streams;
use crate::mask::{self, Capability};
use crate::{Errno, Result, file};

pub use rustix::fs::SealFlags;

/// The kernel's setting of transparent huge pages in memfds.
pub const HUGE_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// How that is changed where it makes all of them huge.
pub const SMALLER: &str = "as root: echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Whether pages of memfds come 512 at a time on this machine, for whoever wants one: the word of
/// [`HUGE_SETTING`] that makes it so. Who keeps single pages there keeps many times as many.
pub fn huge_by_setting() -> Option<String> {
    if !mask::allows(Capability::SmallShmem) {
        return Some("masked".to_owned());
    }
    huge_setting().filter(|word| HUGE_FOR_ALL.contains(&&**word))
}

/// The word of [`HUGE_SETTING`] that holds; none without huge pages.
pub fn huge_setting() -> Option<String> {
    let setting = std::fs::read_to_string(HUGE_SETTING).ok()?;
    chosen(&setting).map(str::to_owned)
}

/// Settings under which nobody asks for huge pages and all get them.
const HUGE_FOR_ALL: [&str; 3] = ["always", "within_size", "force"];

/// Of words of which one is in brackets, that one.
fn chosen(setting: &str) -> Option<&str> {
    let (_, from) = setting.split_once('[')?;
    from.split_once(']').map(|(word, _)| word)
}

/// A file that has no name and lives in memory until its last descriptor and mapping are gone.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len_bytes: u64,
}

impl Memfd {
    /// Makes a memfd of `len_bytes` zero bytes, all of it hole; with `sealing`, seals can be added.
    /// `name` shows in `/proc/PID/maps`; it is cut at 200 bytes and at a NUL.
    ///
    /// # Errors
    /// `memfd_create(2)`, `ftruncate(2)`, without SIGXFSZ; [`Errno::INVAL`]: sealing is masked.
    pub fn create(name: &str, len_bytes: u64, sealing: bool) -> Result<Memfd> {
        if sealing && !mask::allows(Capability::MemfdSeals) {
            return Err(Errno::INVAL);
        }
        let name: Vec<u8> = name.bytes().take_while(|b| *b != 0).take(200).collect();
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut flags = MemfdFlags::CLOEXEC;
        if sealing {
            flags |= MemfdFlags::ALLOW_SEALING;
        }
        let fd = beside_streams(rustix::fs::memfd_create(&*name, flags)?)?;
        file::set_len_unsignalled(&fd, len_bytes)?;
        Ok(Memfd { fd, len_bytes })
    }

    /// Its length, as last set here.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// `ftruncate(2)`: grows by a hole, or drops pages from the end.
    ///
    /// # Errors
    /// [`Errno::PERM`]: a seal forbids it.
    pub fn set_len(&mut self, len_bytes: u64) -> Result<()> {
        file::set_len_unsignalled(&self.fd, len_bytes)?;
        self.len_bytes = len_bytes;
        Ok(())
    }

    /// A descriptor of the same memory that cannot write, nor be mapped shared and writable: to
    /// hand out. Its receiver can still reopen it through `/proc/self/fd` as far as
    /// [`Memfd::set_mode`] lets it.
    ///
    /// # Errors
    /// `open(2)` on `/proc/self/fd/N`: `/proc` must be mounted.
    pub fn reopen_read_only(&self) -> Result<OwnedFd> {
        file::reopen(&self.fd, rustix::fs::OFlags::RDONLY)
    }

    /// A second, writable descriptor with a file position of its own.
    ///
    /// # Errors
    /// `open(2)` on `/proc/self/fd/N`.
    pub fn reopen_writable(&self) -> Result<OwnedFd> {
        file::reopen(&self.fd, rustix::fs::OFlags::RDWR)
    }

    /// `fchmod(2)`. A memfd is made with mode 0777; whoever holds a descriptor can reopen it with
    /// the rights that the mode gives, so hand it out with 0400 (root is not held back).
    ///
    /// # Errors
    /// As `fchmod(2)`.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode))
    }

    /// `fallocate(2)` PUNCH_HOLE: gives the frames of a range back, unmapping them everywhere.
    /// Whole pages go; the rest of the range is zeroed. Write-protection and poison marks stay.
    ///
    /// # Errors
    /// [`Errno::PERM`]: a seal forbids it.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.fd, flags, offset, len))
    }

    /// `fallocate(2)`: reserves frames for the range. They read as zeros, and count as a hole for
    /// [`Memfd::next_populated`] until something is stored in them.
    ///
    /// # Errors
    /// [`Errno::NOSPC`]/[`Errno::NOMEM`]: no memory.
    pub fn populate(&self, offset: u64, len: u64) -> Result<()> {
        retry(|| rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len))
    }

    /// The next range at or behind `offset` that has frames with content, as `(start, end)`.
    ///
    /// Moves the descriptor's file position, so one thread at a time.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn next_populated(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        file::next_data(&self.fd, offset)
    }

    /// All ranges of pages in which something was stored (zeros count).
    pub fn populated(&self) -> impl Iterator<Item = Result<(u64, u64)>> {
        let mut offset = Some(0);
        core::iter::from_fn(move || {
            let next = self.next_populated(offset?).transpose();
            offset = match &next {
                Some(Ok((_, end))) => Some(*end),
                _ => None,
            };
            next
        })
    }

    /// Bytes of memory in use, from `fstat(2)`.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(rustix::fs::fstat(&self.fd)?.st_blocks as u64 * 512)
    }

    /// Adds seals.
    ///
    /// # Errors
    /// [`Errno::PERM`]: not made with sealing; [`Errno::BUSY`]: a writable mapping exists.
    pub fn add_seals(&self, seals: SealFlags) -> Result<()> {
        rustix::fs::fcntl_add_seals(&self.fd, seals)
    }

    /// The seals in force.
    ///
    /// # Errors
    /// As `fcntl(2)` F_GET_SEALS.
    pub fn seals(&self) -> Result<SealFlags> {
        rustix::fs::fcntl_get_seals(&self.fd)
    }

    /// Reads all of `buf` at `offset`; holes read as zeros and stay holes.
    ///
    /// # Errors
    /// [`Errno::IO`]: the end of the file comes first.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut [IoSliceMut::new(&mut buf[done..])];
            match retry(|| rustix::io::preadv(&self.fd, rest, offset + done as u64))? {
                0 => return Err(Errno::IO),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Writes all of `buf` at `offset`, allocating frames.
    ///
    /// # Errors
    /// [`Errno::PERM`]: a seal forbids it; [`Errno::NOSPC`]/[`Errno::NOMEM`]: no memory.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &[IoSlice::new(&buf[done..])];
            done += retry(|| rustix::io::pwritev(&self.fd, rest, offset + done as u64))?;
        }
        Ok(())
    }

    /// The file position of this descriptor; only [`Memfd::next_populated`] moves it.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn position(&self) -> Result<u64> {
        rustix::fs::seek(&self.fd, SeekFrom::Current(0))
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn the_chosen_setting_is_in_brackets() {
        assert_eq!(chosen("always within_size [advise] never deny force\n"), Some("advise"));
        assert_eq!(chosen("[always] within_size advise never deny force\n"), Some("always"));
        assert_eq!((chosen(""), chosen("always [never")), (None, None));
    }

    #[test]
    fn populated_ranges_follow_writes_and_punches() {
        let memfd = Memfd::create("t", 64 * PAGE, true).unwrap();
        assert_eq!(memfd.populated().count(), 0);
        memfd.write_at(&[7; 3 * PAGE_BYTES], 8 * PAGE).unwrap();
        memfd.populate(32 * PAGE, PAGE).unwrap();
        let ranges: Vec<_> = memfd.populated().map(Result::unwrap).collect();
        assert_eq!(ranges, [(8 * PAGE, 11 * PAGE)], "a reserved frame is not content");
        assert_eq!(memfd.used_bytes(), Ok(4 * PAGE));
        memfd.punch(9 * PAGE, PAGE).unwrap();
        let mut byte = [9];
        memfd.read_at(&mut byte, 9 * PAGE).unwrap();
        assert_eq!(byte, [0], "a hole reads as zero");
        assert_eq!(memfd.populated().count(), 2, "and stays a hole");
        assert_eq!(memfd.read_at(&mut byte, 64 * PAGE), Err(Errno::IO));
    }

    #[test]
    fn read_only_descriptor_cannot_write_and_seals_hold() {
        let mut memfd = Memfd::create("t", PAGE, true).unwrap();
        let reader = memfd.reopen_read_only().unwrap();
        assert_eq!(rustix::io::pwrite(&reader, b"x", 0), Err(Errno::BADF));
        memfd.set_mode(0o400).unwrap();
        assert_eq!(rustix::fs::fstat(&reader).unwrap().st_mode & 0o777, 0o400);
        memfd.add_seals(SealFlags::SHRINK | SealFlags::SEAL).unwrap();
        assert!(memfd.seals().unwrap().contains(SealFlags::SHRINK));
        assert_eq!(memfd.set_len(0), Err(Errno::PERM));
        memfd.set_len(2 * PAGE).unwrap();
        assert_eq!(memfd.len_bytes(), 2 * PAGE);
    }
}
