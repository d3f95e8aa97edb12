//! Mapped regions.

use crate::cache::{given, place};
use crate::error::{Error, count_quick, pointer, status};
use crate::segment::{extent, here, pk_segment};
use pagekeeper::library::{Protection, Region};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// A range of a segment, bound into the address space.
#[derive(Debug)]
pub struct pk_region(Region);

impl pk_region {
    /// The region, in the process that bound it.
    fn here(region: Option<&pk_region>) -> Result<&Region, Error> {
        let region = &given(region, "region")?.0;
        if region.is_here() { Ok(region) } else { Err(Error::forked()) }
    }
}

/// What may be done in a region: PK_MAP_READ, PK_MAP_READ_WRITE or PK_MAP_COPY_ON_WRITE.
pub type pk_protection = u32;

/// Read; a store raises SIGSEGV.
pub const PK_MAP_READ: pk_protection = 0;
/// Read and write: stores are writes of the segment.
pub const PK_MAP_READ_WRITE: pk_protection = 1;
/// Read and write: a store changes a private copy of the page, all of it however large, which lives
/// as long as the region, takes memory of the budget and never leaves it: more of them than the budget
/// has room for are memory beyond it (pk_stats.private_pages_max). Where a page has none, the segment's
/// content shows, also what is written later.
pub const PK_MAP_COPY_ON_WRITE: pk_protection = 2;

/// Binds a range into the address space. Its pages are brought in when they are touched, as the
/// cache's pk_fault_path says; a page that cannot be brought in, or lies behind the end of the
/// segment by now (behind the 4096 bytes that it ends in), raises SIGBUS. A forked child does not have
/// the region (SIGSEGV there).
///
/// offset: a multiple of pk_cache_page_bytes(). The range has at least a byte and lies within the segment's
/// pages, the last of which may reach behind its end. protection: a pk_protection. region: where
/// its handle is put; null if the call fails. Unbind it with pk_region_unmap().
///
/// Errors: -EOPNOTSUPP: the cache has PK_FAULT_EXPLICIT, or it is PK_MAP_COPY_ON_WRITE of pages above
/// 4096 bytes before Linux 6.4; -EINVAL: no such range; -EBADF:
/// PK_MAP_READ_WRITE, and the segment is open for reading; those of mmap(2) and ioctl_userfaultfd(2).
///
/// Threads: any. What threads do with the bytes is between them, and anybody who changes the
/// segment meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_map(
    segment: Option<&pk_segment>,
    offset: u64,
    len: u64,
    protection: pk_protection,
    region: Option<&mut MaybeUninit<Option<Box<pk_region>>>>,
) -> c_int {
    status("pk_segment_map", || {
        let region = place(region, "place for the region")?;
        let segment = here(segment)?;
        let protection = match protection {
            PK_MAP_READ => Protection::Read,
            PK_MAP_READ_WRITE => Protection::ReadWrite,
            PK_MAP_COPY_ON_WRITE => Protection::CopyOnWrite,
            other => return Err(Error::argument(format!("{other} is no pk_protection"))),
        };
        let range = extent(offset, len)?;
        let bound = segment.map(range.clone(), protection);
        let bound = bound.map_err(|error| {
            let place = format!("bytes {offset}..{} of {}", range.end, segment.len());
            Error::at(place, &error)
        })?;
        region.write(Some(Box::new(pk_region(bound))));
        Ok(())
    })
}

/// A region's first byte, valid until pk_region_unmap(); null if region is null, or in a forked child,
/// which does not have the region. What the protection does not allow must not be tried.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_region_data(region: Option<&pk_region>) -> *mut c_void {
    pointer("pk_region_data", || Ok(pk_region::here(region)?.as_mut_ptr().cast()))
}

/// A region's length in bytes.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_region_len(region: Option<&pk_region>) -> i64 {
    count_quick("pk_region_len", || Ok(pk_region::here(region)?.len() as u64))
}

/// Unbinds a region; null is no region, and fine. What was stored in it is in the segment (but for
/// PK_MAP_COPY_ON_WRITE); pointers into it are no longer valid.
///
/// Returns 0. In a forked child it frees the child's copy; the parent's region stays.
///
/// Threads: the region is not used any more, nor its bytes.
#[unsafe(no_mangle)]
pub extern "C" fn pk_region_unmap(region: Option<Box<pk_region>>) -> c_int {
    status("pk_region_unmap", move || {
        drop(region);
        Ok(())
    })
}
