//! Segments.

use crate::cache::{given, pk_cache, place};
use crate::error::{Error, count, count_quick, status};
use crate::raw;
use pagekeeper::library::{Advice, Options, Segment, WriteBack};
use pagekeeper_sys::cancel::Uncancelled;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Pages with a store behind them, in a cache.
///
/// Reads and writes mean what pread(2) and pwrite(2) mean. A write is seen by every later read and
/// region of the segment in this process, and is in the store after pk_segment_flush(). A read sees
/// each page as it was before or after a write, never half.
#[derive(Debug)]
pub struct pk_segment(pub(crate) Segment);

/// How a file is opened: PK_OPEN_READ, or PK_OPEN_WRITE, PK_OPEN_CREATE and PK_OPEN_TRUNCATE joined
/// by |.
pub type pk_open_flags = u32;

/// For reading.
pub const PK_OPEN_READ: pk_open_flags = 0;
/// For reading and writing.
pub const PK_OPEN_WRITE: pk_open_flags = 1;
/// Made if it does not exist; for writing, too.
pub const PK_OPEN_CREATE: pk_open_flags = 2;
/// Emptied first; for writing, too.
pub const PK_OPEN_TRUNCATE: pk_open_flags = 4;

/// How a range will be used: PK_WILL_NEED, PK_DONT_NEED, PK_DISCARDABLE or PK_NEEDED.
pub type pk_advice = u32;

/// Soon: it is fetched.
pub const PK_WILL_NEED: pk_advice = 0;
/// Not soon: its clean pages leave memory.
pub const PK_DONT_NEED: pk_advice = 1;
/// What its whole pages hold can be made anew by the store: they need not be written back.
pub const PK_DISCARDABLE: pk_advice = 2;
/// Takes that back: what its pages hold from now on is kept.
pub const PK_NEEDED: pk_advice = 3;

/// When dirty pages are written back: PK_WRITE_BACK_ANY_TIME, PK_WRITE_BACK_ON_COMMIT or
/// PK_WRITE_BACK_WHEN_FULL.
pub type pk_write_back_mode = u32;

/// When room is needed, in the background, and when the program asks for it.
pub const PK_WRITE_BACK_ANY_TIME: pk_write_back_mode = 0;
/// Only when the program asks for it.
pub const PK_WRITE_BACK_ON_COMMIT: pk_write_back_mode = 1;
/// At any time, and a page at once when a write reaches its end.
pub const PK_WRITE_BACK_WHEN_FULL: pk_write_back_mode = 2;

/// What is known of a page: PK_PAGE_RESIDENT, _DIRTY, _BUSY, _PINNED and _REFERENCED joined by |.
pub type pk_page_attributes = u32;

/// In memory, its content valid.
pub const PK_PAGE_RESIDENT: pk_page_attributes = 1;
/// Its content is newer than the store's.
pub const PK_PAGE_DIRTY: pk_page_attributes = 2;
/// On its way in or out, or being written back.
pub const PK_PAGE_BUSY: pk_page_attributes = 4;
/// Pinned: it cannot leave.
pub const PK_PAGE_PINNED: pk_page_attributes = 8;
/// Known to have been used since it was brought in, not only fetched ahead.
pub const PK_PAGE_REFERENCED: pk_page_attributes = 16;

/// Most pages that are asked about at a time: what is known of them takes memory, too.
const ATTRIBUTES_PAGES: usize = 4096;

/// A range whose end is a number.
pub(crate) fn extent(offset: u64, len: u64) -> Result<Range<u64>, Error> {
    let end = offset.checked_add(len);
    let end = end.ok_or_else(|| Error::argument(format!("{offset} + {len} is no offset")))?;
    Ok(offset..end)
}

/// A range that may reach as far as offsets do.
fn open_extent(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}

fn the(segment: Option<&pk_segment>) -> Result<&Segment, Error> {
    Ok(&given(segment, "segment")?.0)
}

/// The segment, in the process that opened it.
pub(crate) fn here(segment: Option<&pk_segment>) -> Result<&Segment, Error> {
    let segment = the(segment)?;
    if segment.is_here() { Ok(segment) } else { Err(Error::forked()) }
}

/// Opens a file as a segment. One file is one segment of a cache, however often it is opened.
///
/// A cache that writes to a file excludes other caches and runs of `pagekeeper` of the same user
/// from it; several that only read may share it. What is written is in this process until it is
/// flushed, or written back in the background.
///
/// It takes three descriptors: two of the file, by the kernel's page cache and past it (one where the file
/// system has no direct I/O), and one for its pages in memory, which PK_TRANSLATION_TABLE does without. All
/// files of a cache together take one more, by which they are registered.
///
/// flags: pk_open_flags. segment: where its handle is put; null if the call fails. Close it with
/// pk_segment_close().
///
/// Errors: those of open(2); -EBUSY: somebody else writes to the file, or reads it and this would
/// write, or this cache has it open for reading alone and this would write, or PK_OPEN_TRUNCATE would cut
/// a page that is pinned; -EINVAL: no regular file; -EFBIG: it is longer than 128 TiB, or, but with
/// PK_TRANSLATION_TABLE, than the process may make files (RLIMIT_FSIZE): the memory of its pages is one.
///
/// Threads: any. POSIX record locks of the process on the file are lost when the segment closes
/// (fcntl(2)): use open-file-description locks.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_open(
    cache: Option<&pk_cache>,
    path: *const c_char,
    flags: pk_open_flags,
    segment: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_open", || {
        let segment = place(segment, "place for the segment")?;
        let cache = pk_cache::here(cache)?;
        let path = given(raw::path(path), "path")?;
        check_flags(flags, PK_OPEN_WRITE | PK_OPEN_CREATE | PK_OPEN_TRUNCATE)?;
        let options = Options::new()
            .writable(flags & PK_OPEN_WRITE != 0)
            .create(flags & PK_OPEN_CREATE != 0)
            .truncate(flags & PK_OPEN_TRUNCATE != 0);
        let opened = cache.open(path, options);
        let opened = opened.map_err(|error| Error::at(path.display(), &error))?;
        segment.write(Some(Box::new(pk_segment(opened))));
        Ok(())
    })
}

fn check_flags(flags: u32, known: u32) -> Result<(), Error> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Error::argument(format!("flags {unknown:#x} are not known here"))),
    }
}

/// Opens a file that the program has open as a segment, as pk_segment_open() does.
///
/// fd: stays the program's, and need not stay open. flags: PK_OPEN_READ, or PK_OPEN_WRITE if fd is
/// open for reading and writing. name: what statistics call it, in UTF-8; null: "fd".
///
/// Errors: as pk_segment_open(); -EBADF: fd is not open, or not for that.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_open_fd(
    cache: Option<&pk_cache>,
    fd: c_int,
    flags: pk_open_flags,
    name: *const c_char,
    segment: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_open_fd", || {
        let segment = place(segment, "place for the segment")?;
        let cache = pk_cache::here(cache)?;
        let name = raw::text("name", name)?.unwrap_or("fd");
        check_flags(flags, PK_OPEN_WRITE)?;
        let file = raw::file(fd)?;
        let opened = cache.open_file(&file, flags & PK_OPEN_WRITE != 0, name);
        let opened = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EBADF) => Error::new(libc::EBADF, format!("{fd} is not open")),
            _ => Error::at(name, &error),
        })?;
        segment.write(Some(Box::new(pk_segment(opened))));
        Ok(())
    })
}

/// Makes working memory of so many zero bytes, which may be more than the machine has: what does
/// not fit into the budget goes to a file without a name in the scratch directory, never to swap.
/// It is gone when the segment is closed.
///
/// segment: where its handle is put; null if the call fails.
///
/// Errors: those of open(2) with O_TMPFILE; -EFBIG: as pk_segment_open().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_scratch(
    cache: Option<&pk_cache>,
    len_bytes: u64,
    segment: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_scratch", || {
        let segment = place(segment, "place for the segment")?;
        let made = pk_cache::here(cache)?.scratch(len_bytes);
        let made = made.map_err(|error| Error::at(format!("{len_bytes} bytes"), &error))?;
        segment.write(Some(Box::new(pk_segment(made))));
        Ok(())
    })
}

/// Makes another handle of a segment. Each handle is told once of every error in writing back.
///
/// copy: where it is put; null if the call fails.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_duplicate(
    segment: Option<&pk_segment>,
    copy: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_duplicate", || {
        let copy = place(copy, "place for the copy")?;
        copy.write(Some(Box::new(pk_segment(here(segment)?.clone()))));
        Ok(())
    })
}

/// Closes a handle of a segment; null is no handle, and fine. With the last of its handles, pins
/// and regions the segment is written back and gone. Errors in that have nobody to go to: flush
/// first.
///
/// Returns 0. In a forked child it frees the child's copy and touches nothing of the parent's.
///
/// Threads: the handle is not used any more.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_close(segment: Option<Box<pk_segment>>) -> c_int {
    status("pk_segment_close", move || {
        drop(segment);
        Ok(())
    })
}

/// Makes a handle of the cache that a segment is in.
///
/// cache: where it is put; null if the call fails. Close it with pk_cache_close().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_cache(
    segment: Option<&pk_segment>,
    cache: Option<&mut MaybeUninit<Option<Box<pk_cache>>>>,
) -> c_int {
    status("pk_segment_cache", || {
        let cache = place(cache, "place for the cache")?;
        cache.write(Some(Box::new(pk_cache(here(segment)?.cache()))));
        Ok(())
    })
}

/// The length in bytes.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_len(segment: Option<&pk_segment>) -> i64 {
    count_quick("pk_segment_len", || Ok(here(segment)?.len()))
}

/// 1 if the handle may write, 0 if it may not.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_writable(segment: Option<&pk_segment>) -> c_int {
    i32::from(match here(segment) {
        Ok(segment) => segment.writable(),
        Err(error) => return status("pk_segment_writable", || Err(error)),
    })
}

/// Reads len bytes at an offset, as pread(2). A page that is in memory costs neither a system call
/// nor a lock.
///
/// Returns the bytes read: fewer than len only at the end of the segment, or before a page that
/// cannot be read (ask for the rest to learn why).
///
/// Errors: the store's, for the first page; -EINVAL: the offset is above 2^63.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_read_at(
    segment: Option<&pk_segment>,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    count_quick("pk_segment_read_at", || {
        let read = the(segment)?.read_at(raw::bytes_mut(buffer, len)?, offset);
        read.map(|n| n as u64).map_err(|error| at(offset, len as u64, &error))
    })
}

#[cold]
fn at(offset: u64, len: u64, error: &io::Error) -> Error {
    Error::at(format_args!("{len} bytes at {offset}"), error)
}

/// Writes len bytes at an offset, as pwrite(2), and makes the segment longer where it reaches
/// behind its end. Waits for whoever has a page of the range pinned: a thread that has one itself
/// waits for ever.
///
/// Returns the bytes written: fewer than len only before a page that cannot be written (write the
/// rest to learn why).
///
/// Errors: -EBADF: the segment is open for reading; -ENOSPC and others of the store, for the first
/// page; -EFBIG, -EINVAL: the range is too far out, or the store has a fixed length; -ENOMEM: as many
/// pages as may wait for a commit do (pk_segment_set_write_back()), or no address space is left
/// (pk_cache_create()).
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_write_at(
    segment: Option<&pk_segment>,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    count_quick("pk_segment_write_at", || {
        let (segment, bytes) = (the(segment)?, raw::bytes(buffer, len)?);
        let grows = offset.saturating_add(len as u64) > segment.len();
        let _later = grows.then(Uncancelled::new);
        let written = segment.write_at(bytes, offset);
        written.map(|n| n as u64).map_err(|error| at(offset, len as u64, &error))
    })
}

/// Sets the length, as ftruncate(2). What is cut off is gone, and not written back; what is gained
/// reads as zeros. Waits for nobody's pins: pages that are pinned are not cut, and a segment grows
/// beside them.
///
/// Errors: -EBADF: the segment is open for reading; -EBUSY: a page that would go, or be cut in two, is
/// pinned, whichever of its bytes; the store's (-EINVAL: its length is fixed).
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_set_len(segment: Option<&pk_segment>, len_bytes: u64) -> c_int {
    status("pk_segment_set_len", || {
        let set = the(segment)?.set_len(len_bytes);
        set.map_err(|error| Error::at(format_args!("{len_bytes} bytes"), &error))
    })
}

/// Writes dirty pages back and makes them durable, as fdatasync(2). Waits for pages that are pinned
/// for writing.
///
/// Errors: the store's, now or in any write-back since this handle was last told; once per handle.
/// Pages that could not be written stay in memory, dirty, and the next flush tries again; what was written
/// and could not be made durable counts as written, as after fsync(2).
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_flush(segment: Option<&pk_segment>) -> c_int {
    status("pk_segment_flush", || {
        the(segment)?.flush().map_err(|error| Error::at("write-back", &error))
    })
}

/// Writes dirty pages of a range back, without making them durable. len: may be PK_TO_END. What has left
/// memory already, and waits in pk_layer_compressed(), is written by pk_segment_flush().
///
/// Errors: as pk_segment_flush().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_write_back(
    segment: Option<&pk_segment>,
    offset: u64,
    len: u64,
) -> c_int {
    status("pk_segment_write_back", || {
        let written = the(segment)?.write_back(open_extent(offset, len));
        written.map_err(|error| at(offset, len, &error))
    })
}

/// Says when dirty pages of the segment, by whichever handle, are written back. Under
/// PK_WRITE_BACK_ON_COMMIT nothing is written but by pk_segment_flush(), pk_segment_write_back() and
/// pk_cache_flush(): a commit is a flush, and pk_segment_discard() takes back what was written since
/// the last. Pages that wait for it stay in memory; once half of the budget's pages wait, writes
/// fail (-ENOMEM) until some are committed or taken back.
///
/// mode: a pk_write_back_mode.
///
/// Errors: -EBADF: the segment is open for reading.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_set_write_back(
    segment: Option<&pk_segment>,
    mode: pk_write_back_mode,
) -> c_int {
    status("pk_segment_set_write_back", || {
        let when = match mode {
            PK_WRITE_BACK_ANY_TIME => WriteBack::Background,
            PK_WRITE_BACK_ON_COMMIT => WriteBack::OnCommit,
            PK_WRITE_BACK_WHEN_FULL => WriteBack::WhenFull,
            other => return Err(Error::argument(format!("{other} is no pk_write_back_mode"))),
        };
        the(segment)?.set_write_back(when).map_err(|error| Error::at("the segment", &error))
    })
}

/// Follows changes of the store by others: its length is looked at, and clean pages are dropped if
/// its content is not what the cache left. Also done when a file is opened again, when something is
/// written back, and every write-back period. Where somebody made it shorter, pages that are pinned stay
/// as they are until they are let go, and so long the segment reaches to the last of them.
///
/// Returns 1 if somebody changed it, else 0.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_refresh(segment: Option<&pk_segment>) -> c_int {
    let mut changed = false;
    let result = status("pk_segment_refresh", || {
        changed = the(segment)?.refresh().map_err(|error| Error::at("the store", &error))?;
        Ok(())
    });
    if result < 0 { result } else { changed.into() }
}

/// Fetches what is absent of a range, as far as a quarter of the budget. len: may be PK_TO_END.
///
/// Returns how many bytes from the offset on are in memory or on their way. What cannot be fetched
/// is found when it is read.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_prefetch(segment: Option<&pk_segment>, offset: u64, len: u64) -> i64 {
    count("pk_segment_prefetch", || {
        the(segment)?.prefetch(open_extent(offset, len)).map_err(|error| at(offset, len, &error))
    })
}

/// Says how a range will be used, as posix_fadvise(2). len: may be PK_TO_END. advice: a pk_advice.
///
/// Errors: of PK_DISCARDABLE and PK_NEEDED the store's (-EOPNOTSUPP: it can make nothing anew), and
/// -EBADF: the segment is open for reading; of PK_NEEDED -ENOMEM, as pk_segment_write_at().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_advise(
    segment: Option<&pk_segment>,
    offset: u64,
    len: u64,
    advice: pk_advice,
) -> c_int {
    status("pk_segment_advise", || {
        let advice = match advice {
            PK_WILL_NEED => Advice::WillNeed,
            PK_DONT_NEED => Advice::DontNeed,
            PK_DISCARDABLE => Advice::Discardable,
            PK_NEEDED => Advice::Needed,
            other => return Err(Error::argument(format!("{other} is no pk_advice"))),
        };
        let advised = the(segment)?.advise(open_extent(offset, len), advice);
        advised.map_err(|error| at(offset, len, &error))
    })
}

/// Takes the whole pages of a range out of memory without writing them back: what was not written
/// back is lost, and the store's content shows again. For data that can be made anew. Pages that
/// are pinned stay. len: may be PK_TO_END.
///
/// Errors: -EBADF: the segment is open for reading.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_discard(segment: Option<&pk_segment>, offset: u64, len: u64) -> c_int {
    status("pk_segment_discard", || {
        let discarded = the(segment)?.discard(open_extent(offset, len));
        discarded.map_err(|error| at(offset, len, &error))
    })
}

/// What is known of the pages of a range, as mincore(2). len: may be PK_TO_END.
///
/// attributes: gets pk_page_attributes, a number for each page that the range touches and the
/// segment has, up to pages_max; may be null if that is 0. Returns how many there are, which may be
/// more than pages_max. Four bytes a page are the caller's, and some 20 KiB are needed beside them, beyond the
/// budget.
///
/// Threads: any. What others do may change it at once.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_attributes(
    segment: Option<&pk_segment>,
    offset: u64,
    len: u64,
    attributes: *mut pk_page_attributes,
    pages_max: usize,
) -> i64 {
    count("pk_segment_attributes", || {
        let segment = here(segment)?;
        let out = raw::slice_mut(attributes, pages_max)?;
        let range = open_extent(offset, len);
        let range = range.start..range.end.min(segment.len()).max(range.start);
        let page_bytes = segment.page_bytes();
        let first = range.start / page_bytes;
        let pages = if range.is_empty() { 0 } else { range.end.div_ceil(page_bytes) - first };
        let asked = usize::try_from(pages).unwrap_or(usize::MAX).min(out.len());
        let mut page = first;
        for out in out[..asked].chunks_mut(ATTRIBUTES_PAGES) {
            let end = page + out.len() as u64;
            let bytes = page * page_bytes..end * page_bytes;
            page = end;
            let known = segment.attributes(bytes).map_err(|error| at(offset, len, &error))?;
            // It may have become shorter.
            out.fill(0);
            for (out, page) in out.iter_mut().zip(known) {
                let bit = |is: bool, bit: u32| if is { bit } else { 0 };
                *out = bit(page.resident, PK_PAGE_RESIDENT)
                    | bit(page.dirty, PK_PAGE_DIRTY)
                    | bit(page.busy, PK_PAGE_BUSY)
                    | bit(page.pinned, PK_PAGE_PINNED)
                    | bit(page.referenced, PK_PAGE_REFERENCED);
            }
        }
        Ok(pages)
    })
}

/// Moves pages, with what they hold, to another segment of the same or another cache. There they
/// are dirty, as if they had been written; here they show what the store holds, as if they had been
/// discarded. Each page moves as a whole: a read or write of it comes before or after. Waits for whoever
/// has a page pinned, here or there, and holds none of its own meanwhile.
///
/// page, pages: numbers of pages (offset / pk_cache_page_bytes()). Returns the pages moved, fewer than
/// asked for only at an error behind the first.
///
/// Errors: -EBADF: one of the segments is open for reading; -EINVAL: a page lies behind the end of
/// its segment, the ranges overlap, or the caches have pages of different sizes; those of reading and writing, for the first page.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_migrate(
    segment: Option<&pk_segment>,
    page: u64,
    pages: u64,
    to: Option<&pk_segment>,
    to_page: u64,
) -> i64 {
    count("pk_segment_migrate", || {
        let (segment, to) = (here(segment)?, &given(to, "segment that takes the pages")?.0);
        let moved = segment.migrate(extent(page, pages)?, to, to_page);
        moved.map_err(|error| {
            Error::at(format_args!("{pages} pages from {page} on to {to_page}"), &error)
        })
    })
}
