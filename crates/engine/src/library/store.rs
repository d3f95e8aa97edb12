//! Where a segment's pages come from and go to.

use crate::library::segment::Advice;
use crate::live::store as direct;
use crate::port::{PAGE_BYTES, PortError, Version};
use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::descriptor::beside_streams;
use pagekeeper_sys::file::{self, FileId};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Room that a file is given at a time, when it has to be given some.
const RESERVE_BYTES: u64 = 1 << 20;

/// A store: what stands behind a segment. [`FileStore`] is one; an application brings its own for
/// pages that are compressed, logged, replicated, or on another machine.
///
/// The cache calls it from whichever thread needs a page, from several at once, and never for the
/// same page at the same time. It holds no lock of its own meanwhile. Under
/// [`FaultPath::Inline`](crate::library::FaultPath::Inline) it may be called in a signal handler of
/// a thread that touched a mapped page: it must not need a lock that such a thread may hold.
///
/// **A store uses no segment of the cache that asks it**, neither the one that it stands behind nor another,
/// nor does it change that cache's budget, or set some of it aside. It is asked while pages are on their way,
/// perhaps those that it would need, and only its return lets go of them. Such a use is refused with `EDEADLK` ("Resource deadlock
/// avoided"), from the page on that is not just read out of memory; one by a region, or by another thread that
/// the store waits for, is not noticed, and waits for ever. ([`Cache::set_budget`] then does nothing, and
/// [`Cache::try_set_budget`] says so.) In [`sync`](Self::sync), [`advise`](Self::advise)
/// and [`dropped`](Self::dropped) nothing is on its way, and other segments may be used; in `advise` its own is
/// refused as above: the segment's length may be locked meanwhile. Nor does a store need
/// a lock that a thread holds where it uses the cache: any use may write any page back.
///
/// [`Cache::set_budget`]: crate::library::Cache::set_budget
/// [`Cache::try_set_budget`]: crate::library::Cache::try_set_budget
///
/// What a store keeps beside its pages, checksums or a log, lies in a cache of its own, or in a file. A log
/// that is to be durable before the data that it tells of is a store around the data's:
///
/// ```
/// use pagekeeper::library::{Cache, FileStore, Segment, Store};
/// use std::io;
///
/// struct LogFirst {
///     data: FileStore,
///     /// In another cache.
///     log: Segment,
/// }
///
/// impl Store for LogFirst {
///     fn len(&self) -> io::Result<u64> {
///         self.data.len()
///     }
///     fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
///         self.data.load(offset, pages)
///     }
///     fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
///         self.log.flush()?;
///         self.data.store(offset, bytes)
///     }
///     fn sync(&self) -> io::Result<()> {
///         self.data.sync()
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// # let directory = std::env::temp_dir();
/// let (logs, tables) = (Cache::new(256 << 10)?, Cache::new(1 << 20)?);
/// let log = logs.scratch(1 << 20)?;
/// let data = FileStore::scratch(&directory, 1 << 20)?;
/// let table = tables.open_store(LogFirst { data, log: log.clone() }, "table")?;
/// log.write_all_at(b"page 3: debit", 0)?;
/// table.write_all_at(b"debit", 3 * 4096)?;
/// table.flush()?; // the log first
/// # Ok(())
/// # }
/// ```
///
/// Errors come back to whoever needed the page, with their error number if they have one (`raw_os_error`),
/// as `EIO` otherwise; under a mapping they are SIGBUS. A page whose `store` fails stays in memory,
/// dirty, and the error is reported by the next flush. A store that panics counts as one that failed with
/// `EIO`.
pub trait Store: Send + Sync + 'static {
    /// Its length in bytes. Asked for after each change of it: where a store has become longer and then cannot
    /// say how long it is, the write or `set_len` of the segment that wanted it fails, and the segment may be
    /// longer all the same.
    ///
    /// # Errors
    /// The store's own.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// The store's own.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads whole pages: fills `pages` from byte `offset` on, both multiples of the cache's
    /// [`page_bytes`](crate::library::Builder::page_bytes), which is 4,096 or a multiple of that; below another
    /// store of the library's ([`Compressed`](crate::library::Compressed) and others, which know pages of 4,096
    /// bytes, whatever the cache's) multiples of 4,096 only, here and in all that follows. Returns how many
    /// bytes the store had there, less only at its end; the rest counts as zeros. Less in front of its
    /// [length](Self::len), or more than it was asked for, counts as `EIO`.
    ///
    /// # Errors
    /// The store's own. Several pages may be asked for at once; if that fails, those that somebody
    /// waits for are asked for alone.
    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize>;

    /// Writes bytes from `offset` on, a multiple as in [`load`](Self::load), whole pages but for the end; they never
    /// reach behind [`len`](Self::len). The page counts as clean once this returns, so what is stored must be
    /// found by `load` from then on (durable it need only be after [`sync`](Self::sync)).
    ///
    /// # Errors
    /// The store's own.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Whether pages that leave memory are handed to [`retire`](Self::retire).
    fn takes_victims(&self) -> bool {
        false
    }

    /// Pages leave memory to make room, or dirty ones are likely to, soon: as [`store`](Self::store), of dirty ones in its place, and
    /// of clean ones too, whose content is what [`load`](Self::load) gave or `store` or this was
    /// given. Called only if the store [takes victims](Self::takes_victims); a store keeps them
    /// where they are found sooner than on storage. (Pages that are truncated or discarded, or
    /// that the program says it does not need, are not handed over.)
    ///
    /// # Errors
    /// The store's own: dirty pages stay in memory then; clean ones leave all the same.
    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        if dirty { self.store(offset, bytes) } else { Ok(()) }
    }

    /// The program says how it will use a range of whole pages: [`Segment::advise`], for what the
    /// cache does not know by itself. That the page in which the store ends is needed
    /// ([`Advice::Needed`]) the cache says, too, when the store becomes longer and pages have more than 4,096
    /// bytes: how many of its own are one to the cache, a store need not know.
    ///
    /// # Errors
    /// The store's own; by default it cannot make anything anew (`EOPNOTSUPP`).
    ///
    /// [`Segment::advise`]: crate::library::Segment::advise
    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        let _ = (offset, len);
        match advice {
            Advice::WillNeed | Advice::DontNeed => Ok(()),
            Advice::Discardable | Advice::Needed => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// What pages of this range held in memory, and had not been stored, is not wanted any more:
    /// [`Segment::discard`], or they moved to another segment, or theirs was closed. For who remembers that a
    /// write failed.
    ///
    /// [`Segment::discard`]: crate::library::Segment::discard
    fn dropped(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Makes sure that [`store`](Self::store) of this range, as far as the store reaches, cannot fail for
    /// lack of space. Called before a page becomes dirty for the first time, and of one that is when the
    /// store becomes longer within it, if the store is [`sparse`](Self::sparse) or has become longer.
    ///
    /// # Errors
    /// `ENOSPC` and the store's own: the write fails with it.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Whether parts of it may have no space on storage yet.
    fn sparse(&self) -> bool {
        false
    }

    /// Makes it at least so long, and never shorter: somebody else may have made it longer still. What
    /// is gained reads as zeros.
    ///
    /// # Errors
    /// The store's own, as [`set_len`](Self::set_len).
    fn grow(&self, len: u64) -> io::Result<()> {
        if self.len()? < len { self.set_len(len) } else { Ok(()) }
    }

    /// Sets its length. What is gained reads as zeros.
    ///
    /// # Errors
    /// The store's own; by default it has a fixed length (`EINVAL`).
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(Errno::INVAL.into())
    }

    /// Makes durable what was stored.
    ///
    /// # Errors
    /// The store's own.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// The file that [`load`](Self::load) reads, if that is all that it does, at the same offsets: the
    /// cache may then have the kernel read several parts of it at a time, and not call `load` for
    /// these. By default there is none.
    fn as_file(&self) -> Option<&FileStore> {
        None
    }

    /// Tells one content from another: when it differs from what the cache's own writes led to,
    /// somebody else changed the store, and clean pages are dropped. By default only the length
    /// counts.
    ///
    /// # Errors
    /// The store's own.
    fn version(&self) -> io::Result<Version> {
        Ok(Version { size_bytes: self.len()?, ..Version::default() })
    }
}

/// A store that others hold as well: to watch it, or to tell it something, while it stands behind a
/// segment.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        (**self).load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).store(offset, bytes)
    }

    fn takes_victims(&self) -> bool {
        (**self).takes_victims()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        (**self).retire(offset, bytes, dirty)
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        (**self).advise(offset, len, advice)
    }

    fn dropped(&self, offset: u64, len: u64) {
        (**self).dropped(offset, len);
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).reserve(offset, len)
    }

    fn sparse(&self) -> bool {
        (**self).sparse()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        (**self).grow(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        (**self).set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }

    fn as_file(&self) -> Option<&FileStore> {
        (**self).as_file()
    }

    fn version(&self) -> io::Result<Version> {
        (**self).version()
    }
}

/// What came of advice; false: the store can make nothing anew, and has nothing that it may drop.
pub(crate) fn advised(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Ok(false),
        result => result.map(|()| true),
    }
}

/// A store error as the engine carries it.
pub(crate) fn port_error(error: &io::Error) -> PortError {
    PortError::Io(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

/// An engine error for a caller.
pub(crate) fn io_error(error: PortError) -> io::Error {
    match error {
        PortError::Io(errno) => io::Error::from_raw_os_error(errno),
        PortError::Missing | PortError::Gone => Errno::BADF.into(),
        PortError::Again => Errno::AGAIN.into(),
    }
}

/// Whether direct I/O can go there.
fn is_aligned(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(PAGE_BYTES as usize)
}

/// A file, read and written past the kernel's page cache where its file system allows that.
///
/// The file is opened anew through `/proc/self/fd`, so that the offset and locks of the `File` it
/// was made of are not touched; but POSIX record locks (`fcntl(2)` F_SETLK) belong to the process,
/// and closing *any* of its descriptors of the file, a store's among them, drops them. Use
/// open-file-description locks.
#[derive(Debug)]
pub struct FileStore {
    inner: direct::Store,
    /// What was reserved last, so that neighbours need not be looked up.
    reserved: Mutex<std::ops::Range<u64>>,
}

impl FileStore {
    /// A store of an open file, writable if `writable`.
    ///
    /// # Errors
    /// It is not open for reading, or for writing too if `writable` (`EBADF`); it is no regular file
    /// (`EINVAL`), or cannot be opened again.
    pub fn new(file: &File, writable: bool) -> io::Result<FileStore> {
        // Opened anew it would be what the user may do, and not what whoever handed it on meant.
        let mode = rustix::fs::fcntl_getfl(file)? & (OFlags::RWMODE | OFlags::PATH);
        if mode != OFlags::RDWR && (writable || mode != OFlags::RDONLY) {
            return Err(Errno::BADF.into());
        }
        if !file::stat(file)?.is_regular() {
            return Err(Errno::INVAL.into());
        }
        let inner = direct::Store::open(file.as_fd())?;
        if writable {
            inner.allow_writes(file.as_fd())?;
        }
        Ok(FileStore { inner, reserved: Mutex::new(0..0) })
    }

    /// A file without a name in a directory, for working memory: it is gone when the store is.
    ///
    /// # Errors
    /// `open(2)` with `O_TMPFILE`.
    pub fn scratch(directory: &Path, len: u64) -> io::Result<FileStore> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(beside_streams(fd)?);
        file::set_len_unsignalled(&file, len)?;
        FileStore::new(&file, true)
    }

    /// Which file it is.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn id(&self) -> io::Result<FileId> {
        Ok(file::stat(self.inner.descriptor()?)?.id)
    }

    /// Whether it may be written.
    pub fn writable(&self) -> bool {
        self.inner.writable()
    }

    /// What reads and writes it.
    pub(crate) fn direct(&self) -> &direct::Store {
        &self.inner
    }
}

impl Store for FileStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.version()?.size_bytes)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let had = if is_aligned(pages) {
            self.inner.load(offset, pages)
        } else {
            // A frame is aligned; what a store around this one has may not be.
            let mut buffer = Buffer::new(pages.len())?;
            let buffer = &mut buffer[..pages.len()];
            let had = self.inner.load(offset, buffer);
            pages.copy_from_slice(buffer);
            had
        };
        had.map(|n| n as usize).map_err(io_error)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if is_aligned(bytes) {
            return self.inner.store(offset, bytes, u64::MAX).map_err(io_error);
        }
        let mut buffer = Buffer::new(bytes.len())?;
        let buffer = &mut buffer[..bytes.len()];
        buffer.copy_from_slice(bytes);
        self.inner.store(offset, buffer, u64::MAX).map_err(io_error)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let wanted = offset..offset + len;
        let mut reserved = self.reserved.lock().expect("reserved");
        if reserved.start <= wanted.start && wanted.end <= reserved.end {
            return Ok(());
        }
        let round = wanted.start / RESERVE_BYTES * RESERVE_BYTES
            ..wanted.end.next_multiple_of(RESERVE_BYTES);
        // Nearly full: what is asked for may fit still.
        let got = match self.inner.reserve(round.start, round.end - round.start) {
            Ok(()) => round,
            Err(_) => {
                self.inner.reserve(offset, len).map_err(io_error)?;
                wanted
            }
        };
        // What lies behind the end was not reserved.
        *reserved = got.start..got.end.min(self.len()?);
        Ok(())
    }

    fn sparse(&self) -> bool {
        self.inner.sparse()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        // In one step: between a look and `ftruncate(2)`, what others append meanwhile would be cut.
        match self.inner.grow(len) {
            Err(_) if self.len()? < len => self.set_len(len),
            _ => Ok(()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // Held meanwhile: nobody enters a range that is being cut off.
        let mut reserved = self.reserved.lock().expect("reserved");
        *reserved = 0..0;
        self.inner.set_len(len).map_err(io_error)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync().map_err(io_error)
    }

    fn as_file(&self) -> Option<&FileStore> {
        Some(self)
    }

    fn version(&self) -> io::Result<Version> {
        self.inner.version().map_err(io_error)
    }
}
