//! Pinned pages.

use crate::cache::{given, place};
use crate::error::{Error, pointer, status};
use crate::segment::{extent, here, pk_segment};
use pagekeeper::library::{Pinned, PinnedMut, Segment};
use self_cell::self_cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

/// How a range is pinned: PK_PIN_SHARED or PK_PIN_EXCLUSIVE.
pub type pk_pin_mode = u32;

/// For reading, beside others that read.
pub const PK_PIN_SHARED: pk_pin_mode = 0;
/// For reading and writing, alone: waits until nobody else reads or writes the pages. They are
/// dirty from then on.
pub const PK_PIN_EXCLUSIVE: pk_pin_mode = 1;

// A guard borrows from a handle of its segment, which lives beside it.
self_cell!(
    struct SharedPin {
        owner: Segment,
        #[covariant]
        dependent: Pinned,
    }
);
self_cell!(
    struct ExclusivePin {
        owner: Segment,
        #[covariant]
        dependent: PinnedMut,
    }
);

enum Guard {
    Shared(SharedPin),
    /// With its first byte.
    Exclusive(ExclusivePin, AtomicPtr<u8>),
}

/// Bytes of a segment that stay in memory until pk_unpin(), and never fault.
pub struct pk_pin(Guard);

impl pk_pin {
    /// The pin, in the process that pinned. A forked child has none of the memory: what lies there is
    /// nothing, or something of its own.
    fn here(pin: Option<&pk_pin>) -> Result<&Guard, Error> {
        let guard = &given(pin, "pin")?.0;
        let segment = match guard {
            Guard::Shared(pinned) => pinned.borrow_owner(),
            Guard::Exclusive(pinned, _) => pinned.borrow_owner(),
        };
        if segment.is_here() { Ok(guard) } else { Err(Error::forked()) }
    }
}

impl std::fmt::Debug for pk_pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("pk_pin").finish_non_exhaustive()
    }
}

/// Pins a range: brings its pages in, and keeps them in memory. While a page is pinned, pins are
/// locks: pk_segment_write_at() of it waits for all of them, pins for PK_PIN_EXCLUSIVE wait for all
/// others, also for those of their own thread, and a flush waits for exclusive ones. Threads that
/// pin several ranges for writing do so in the order of their offsets.
///
/// Pinned pages are memory that the policy cannot use: pin little, or raise the budget. That one range
/// is at most half of the budget is seen to; many pins together may hold more than all of it, and what
/// else is needed comes beyond it then. The range has at least a byte, ends within the segment, and
/// crosses no multiple of 1 GiB.
///
/// mode: a pk_pin_mode. pin: where its handle is put; null if the call fails.
///
/// Errors: -EINVAL: no such range; -ENOMEM: it is more than half of the budget, or no address space is left
/// (pk_cache_create()); -EUSERS: a page of it has 2048 pins; -EOPNOTSUPP: it is several pages of a cache
/// with PK_TRANSLATION_TABLE; for PK_PIN_EXCLUSIVE -EBADF: the segment is open for reading, -ENOSPC, and
/// -ENOMEM, as pk_segment_write_at(); the store's.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_pin(
    segment: Option<&pk_segment>,
    offset: u64,
    len: usize,
    mode: pk_pin_mode,
    pin: Option<&mut MaybeUninit<Option<Box<pk_pin>>>>,
) -> c_int {
    status("pk_segment_pin", || {
        let pin = place(pin, "place for the pin")?;
        let segment = here(segment)?;
        let range = extent(offset, len as u64)?;
        let words = format_args!("bytes {offset}..{} of {}", range.end, segment.len()).to_string();
        let refused = |error| Error::at(&words, &error);
        let guard = match mode {
            PK_PIN_SHARED => {
                let pinned = SharedPin::try_new(segment.clone(), |own| own.pin(range));
                Guard::Shared(pinned.map_err(refused)?)
            }
            PK_PIN_EXCLUSIVE => {
                let pinned = ExclusivePin::try_new(segment.clone(), |own| own.pin_mut(range));
                let mut pinned = pinned.map_err(refused)?;
                let data = pinned.with_dependent_mut(|_, guard| guard.as_mut_ptr());
                Guard::Exclusive(pinned, AtomicPtr::new(data))
            }
            other => return Err(Error::argument(format!("{other} is no pk_pin_mode"))),
        };
        pin.write(Some(Box::new(pk_pin(guard))));
        Ok(())
    })
}

/// The first of the pinned bytes, for reading; valid until pk_unpin(). They do not change under
/// PK_PIN_SHARED. Null if pin is null, or in a forked child, which has none of the pinned memory.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_pin_data(pin: Option<&pk_pin>) -> *const c_void {
    pointer("pk_pin_data", || {
        Ok(match pk_pin::here(pin)? {
            Guard::Shared(guard) => guard.borrow_dependent().as_ptr().cast_mut().cast(),
            Guard::Exclusive(_, data) => data.load(Ordering::Relaxed).cast(),
        })
    })
}

/// The first of the pinned bytes, for writing; valid until pk_unpin(). Null if pin is null or not
/// PK_PIN_EXCLUSIVE, or in a forked child.
///
/// Threads: any; those that use the bytes agree among themselves.
#[unsafe(no_mangle)]
pub extern "C" fn pk_pin_data_mut(pin: Option<&pk_pin>) -> *mut c_void {
    pointer("pk_pin_data_mut", || match pk_pin::here(pin)? {
        Guard::Shared(_) => {
            Err(Error::argument("the pin is PK_PIN_SHARED; pin with PK_PIN_EXCLUSIVE to write"))
        }
        Guard::Exclusive(_, data) => Ok(data.load(Ordering::Relaxed).cast()),
    })
}

/// Lets pinned pages go; null is no pin, and fine. Pointers to their bytes are no longer valid.
///
/// Returns 0. In a forked child it frees the child's copy; the parent's pin stays.
///
/// Threads: any, also another than the one that pinned; the pin is not used any more.
#[unsafe(no_mangle)]
pub extern "C" fn pk_unpin(pin: Option<Box<pk_pin>>) -> c_int {
    status("pk_unpin", move || {
        drop(pin);
        Ok(())
    })
}
