//! Stores made of functions of C.

use crate::cache::{given, pk_cache, place};
use crate::error::{Error, status};
use crate::raw::{self, Context};
use crate::segment::{PK_DISCARDABLE, PK_NEEDED, pk_advice, pk_segment};
use pagekeeper::library::{Advice, Store, Version};
use pagekeeper_sys::cancel::Uncancelled;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// In pk_store.flags: parts of the store may have no space yet; reserve is called before a page
/// becomes dirty for the first time.
pub const PK_STORE_SPARSE: u32 = 1;

/// What stands behind a segment: functions of the program, for pages that are compressed, logged,
/// replicated, or on another machine.
///
/// The cache calls them from whichever thread needs a page (threads of the cache among them), from
/// several at once, and never for the same page at the same time. It holds no lock of its own
/// meanwhile. They may block, allocate, and use other caches; they must not use any segment of the
/// cache that calls them, nor its budget (pk_cache_set_budget()), nor wait for a thread that does,
/// nor fork. Such a use is refused with -EDEADLK, from the page on that is not just read out of
/// memory; one by a region, or by another thread, waits for ever. In sync and advise other
/// segments than their own may be used, and the budget changed; in advise their own is refused. Nor
/// do they need a lock that a thread holds where it uses that cache: any use may write any page back.
/// What a store keeps beside its pages, checksums or a log, lies in a cache of its own, or in a file.
/// Under PK_FAULT_INLINE they may be called in a signal handler of a thread that touched a region: then
/// they must not need a lock that such a thread may hold. They return by returning: no longjmp, no C++
/// exception.
///
/// A function fails by returning a negative error number (-EIO and so on), which comes back to
/// whoever needed the page; under a mapping it is SIGBUS. A page that cannot be stored stays in
/// memory, dirty, and the error is reported by the next flush.
///
/// Zero stands for "there is none" in all members but struct_bytes, len, load and store.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pk_store {
    /// sizeof(pk_store).
    pub struct_bytes: usize,
    /// What the functions are called with.
    pub context: *mut c_void,
    /// PK_STORE_SPARSE, or 0.
    pub flags: u32,
    /// Returns the store's length in bytes. Where a store has become longer and this fails then, so does the
    /// call that made it longer, and the segment may be longer all the same.
    pub len: Option<extern "C" fn(context: *mut c_void) -> i64>,
    /// Fills len bytes at pages with the store's content from byte offset on; both are multiples of
    /// the cache's page_bytes, or, where the store is a layer with another upon it (pk_layer_functions()),
    /// of 4096 only, here and in all that follows: layers know pages of 4096 bytes. Returns how many
    /// bytes the store had there, less than len only at its end; the rest counts as zeros. Less in front
    /// of its end, or more than len, is -EIO. Several pages may be asked for at once; if that fails, those
    /// that somebody waits for are asked for alone.
    pub load: Option<
        extern "C" fn(context: *mut c_void, offset: u64, pages: *mut c_void, len: usize) -> i64,
    >,
    /// Stores len bytes from byte offset on, a multiple as in load; they never reach behind the store's
    /// length. The pages count as clean when this returns 0: load finds them from then on. Durable they
    /// need only be after sync.
    pub store: Option<
        extern "C" fn(context: *mut c_void, offset: u64, bytes: *const c_void, len: usize) -> c_int,
    >,
    /// Pages leave memory, or are likely to, soon: as store, of dirty ones in its place, and of clean
    /// ones (dirty is 0) too, whose content is what load gave or this or store was given. For a
    /// store that keeps them where they are found sooner, compressed for instance. None: dirty ones
    /// go to store, and clean ones nowhere.
    pub retire: Option<
        extern "C" fn(
            context: *mut c_void,
            offset: u64,
            bytes: *const c_void,
            len: usize,
            dirty: c_int,
        ) -> c_int,
    >,
    /// The program says of whole pages that they can be made anew (PK_DISCARDABLE) or no longer can
    /// (PK_NEEDED). None: -EOPNOTSUPP.
    pub advise: Option<
        extern "C" fn(context: *mut c_void, offset: u64, len: u64, advice: pk_advice) -> c_int,
    >,
    /// Makes sure that storing this range cannot fail for lack of space; -ENOSPC if it could.
    pub reserve: Option<extern "C" fn(context: *mut c_void, offset: u64, len: u64) -> c_int>,
    /// Sets the length; what is gained reads as zeros. None: the length is fixed.
    pub set_len: Option<extern "C" fn(context: *mut c_void, len: u64) -> c_int>,
    /// Makes durable what was stored. None: it is when it is stored.
    pub sync: Option<extern "C" fn(context: *mut c_void) -> c_int>,
    /// Returns a number that differs after every change of the content, by store as by others. If
    /// it is not the one that the cache's own calls left, somebody else changed the content, and
    /// clean pages are dropped (pk_segment_refresh()). None: only a change of the length is seen.
    pub generation: Option<extern "C" fn(context: *mut c_void) -> i64>,
    /// Called once, when nothing uses the store any more: the context may be freed. Not called in
    /// forked children, nor if pk_segment_open_store() or pk_layer_functions() fails.
    pub close: Option<extern "C" fn(context: *mut c_void)>,
}

/// A store of these functions, of which those that have to be there are.
pub(crate) struct Functions {
    context: Context,
    len: extern "C" fn(*mut c_void) -> i64,
    load: extern "C" fn(*mut c_void, u64, *mut c_void, usize) -> i64,
    store: extern "C" fn(*mut c_void, u64, *const c_void, usize) -> c_int,
    sparse: bool,
    retire: Option<extern "C" fn(*mut c_void, u64, *const c_void, usize, c_int) -> c_int>,
    advise: Option<extern "C" fn(*mut c_void, u64, u64, pk_advice) -> c_int>,
    reserve: Option<extern "C" fn(*mut c_void, u64, u64) -> c_int>,
    set_len: Option<extern "C" fn(*mut c_void, u64) -> c_int>,
    sync: Option<extern "C" fn(*mut c_void) -> c_int>,
    generation: Option<extern "C" fn(*mut c_void) -> i64>,
    close: Option<extern "C" fn(*mut c_void)>,
    /// The process whose store it is.
    pid: u32,
    /// It is in use: the context is ours to close.
    ours: Arc<AtomicBool>,
}

impl Functions {
    pub(crate) fn new(store: &pk_store, ours: Arc<AtomicBool>) -> Result<Functions, Error> {
        if store.flags & !PK_STORE_SPARSE != 0 {
            let message = format!("flags of pk_store are {:#x}; PK_STORE_SPARSE or 0", store.flags);
            return Err(Error::argument(message));
        }
        Ok(Functions {
            context: Context(store.context),
            len: given(store.len, "function `len` of pk_store")?,
            load: given(store.load, "function `load` of pk_store")?,
            store: given(store.store, "function `store` of pk_store")?,
            sparse: store.flags & PK_STORE_SPARSE != 0,
            retire: store.retire,
            advise: store.advise,
            reserve: store.reserve,
            set_len: store.set_len,
            sync: store.sync,
            generation: store.generation,
            close: store.close,
            pid: std::process::id(),
            ours,
        })
    }

    /// Calls a function. A cancellation point of it is none here: it would be left through Rust's code.
    fn ask<T>(&self, ask: impl FnOnce(*mut c_void) -> T) -> T {
        let _later = Uncancelled::new();
        ask(self.context.pointer())
    }
}

/// What a function returned: a number, or a negative error number.
fn returned(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| {
        // A number that is none of an error is one all the same.
        let errno = i32::try_from(result.unsigned_abs()).ok().filter(|errno| *errno < 4096);
        io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))
    })
}

/// What a function returned: 0, or a negative error number.
pub(crate) fn done(result: c_int) -> io::Result<()> {
    match returned(result.into())? {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

impl Store for Functions {
    fn len(&self) -> io::Result<u64> {
        returned(self.ask(|context| (self.len)(context)))
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let (data, len) = (pages.as_mut_ptr().cast(), pages.len());
        let got = self.ask(|context| (self.load)(context, offset, data, len));
        let got = returned(got)?;
        let got = usize::try_from(got).ok().filter(|got| *got <= pages.len());
        // More than there is room for: what it did then is anybody's guess.
        got.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (data, len) = (bytes.as_ptr().cast(), bytes.len());
        done(self.ask(|context| (self.store)(context, offset, data, len)))
    }

    fn takes_victims(&self) -> bool {
        self.retire.is_some()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        let (data, len) = (bytes.as_ptr().cast(), bytes.len());
        match self.retire {
            Some(retire) => {
                done(self.ask(|context| retire(context, offset, data, len, dirty.into())))
            }
            None if dirty => self.store(offset, bytes),
            None => Ok(()),
        }
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::WillNeed | Advice::DontNeed => return Ok(()),
            Advice::Discardable => PK_DISCARDABLE,
            Advice::Needed => PK_NEEDED,
        };
        match self.advise {
            Some(advise) => done(self.ask(|context| advise(context, offset, len, advice))),
            None => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.reserve {
            Some(reserve) => done(self.ask(|context| reserve(context, offset, len))),
            None => Ok(()),
        }
    }

    fn sparse(&self) -> bool {
        self.sparse
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.set_len {
            Some(set_len) => done(self.ask(|context| set_len(context, len))),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync.map_or(Ok(()), |sync| done(self.ask(|context| sync(context))))
    }

    fn version(&self) -> io::Result<Version> {
        let generation = match self.generation {
            Some(generation) => returned(self.ask(|context| generation(context)))?,
            None => 0,
        };
        Ok(Version { size_bytes: self.len()?, mtime_ns: generation.into(), ctime_ns: 0 })
    }
}

impl Drop for Functions {
    fn drop(&mut self) {
        let ours = self.ours.load(Ordering::Acquire) && self.pid == std::process::id();
        if let Some(close) = self.close.filter(|_| ours) {
            self.ask(|context| close(context));
        }
    }
}

/// Makes a segment over a store of the program.
///
/// store: copied. name: what statistics call it, in UTF-8; null: "store". segment: where its handle is put;
/// null if the call fails.
///
/// Errors: the store's; -EINVAL: len, load or store is missing; -E2BIG: the program was built for a
/// later version of the library and uses what this one lacks.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_open_store(
    cache: Option<&pk_cache>,
    store: *const pk_store,
    name: *const c_char,
    segment: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_open_store", || {
        let segment = place(segment, "place for the segment")?;
        let cache = pk_cache::here(cache)?;
        let name = raw::text("name", name)?.unwrap_or("store");
        let ours = Arc::new(AtomicBool::new(false));
        let functions = Functions::new(&raw::get(store)?, ours.clone())?;
        let opened = cache.open_store(functions, name).map_err(|e| Error::at(name, &e))?;
        ours.store(true, Ordering::Release);
        segment.write(Some(Box::new(pk_segment(opened))));
        Ok(())
    })
}
