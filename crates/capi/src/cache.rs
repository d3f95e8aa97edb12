//! Caches.

use crate::error::{Error, count, count_quick, status};
use crate::raw::{self, Context};
use pagekeeper::library::{
    BUDGET_PAGES_MIN, Cache, FaultPath, PAGE_BYTES_MAX, PolicySpec, SamplingShare, Translation,
};
use pagekeeper_sys::cancel::Uncancelled;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Bytes in a page, unless pk_cache_options.page_bytes says otherwise.
pub const PK_PAGE_BYTES: u64 = 4096;

/// Fewest pages that a budget has room for, whatever their size.
pub const PK_BUDGET_PAGES_MIN: u64 = 8;
const _: () = assert!(PK_BUDGET_PAGES_MIN == BUDGET_PAGES_MIN);

/// As a length: up to the end of the segment.
pub const PK_TO_END: u64 = u64::MAX;

/// A cache of pages within a budget.
#[derive(Debug)]
pub struct pk_cache(pub(crate) Cache);

/// How pages of mapped regions are brought in when they are touched: PK_FAULT_EXPLICIT,
/// PK_FAULT_THREAD or PK_FAULT_INLINE.
pub type pk_fault_path = u32;

/// Never: segments are read, written and pinned, but not mapped. Needs nothing of the kernel.
pub const PK_FAULT_EXPLICIT: pk_fault_path = 0;
/// By a thread of the cache. System calls on regions work as well, where the user may have a full
/// userfaultfd (`pagekeeper doctor` says).
pub const PK_FAULT_THREAD: pk_fault_path = 1;
/// By the thread that touched the page, in a handler of SIGBUS: faster, and there for every user
/// (x86-64). Such a thread has 64 KiB of its stack free, does not block SIGBUS, and holds no lock
/// that an allocator or a pk_store needs. A system call on a page that is not there fails with
/// EFAULT: give it pinned pages. A SIGBUS handler of the program is installed before the cache is
/// made; it gets what is not ours.
pub const PK_FAULT_INLINE: pk_fault_path = 2;

/// How the bytes of a page are found: PK_TRANSLATION_MAPPED or PK_TRANSLATION_TABLE.
pub type pk_translation = u32;

/// By their place: for segments that are mapped, or pinned many pages at once.
pub const PK_TRANSLATION_MAPPED: pk_translation = 0;
/// By a table: for segments that are read and written by calls alone, and pinned page by page. Memory of
/// a page that leaves is the next page's, so misses and scans cost less, and frames lie in huge pages
/// where the machine has them. Needs PK_FAULT_EXPLICIT.
pub const PK_TRANSLATION_TABLE: pk_translation = 1;

/// As `workers`: no thread. Whoever needs a page fetches ahead as well.
pub const PK_NO_WORKERS: i32 = -1;
/// As `write_back_period_ms`: on eviction and flush only.
pub const PK_NEVER: u32 = u32::MAX;

/// As `sampling_percent`: no touch of a mapped region is made visible; policies see misses only.
pub const PK_NO_SAMPLING: u64 = u64::MAX;

/// What a cache is made with. Zero stands for the usual value of each member but the first two.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pk_cache_options {
    /// sizeof(pk_cache_options).
    pub struct_bytes: usize,
    /// All that the cache may use: frames, state of pages, buffers. PK_BUDGET_PAGES_MIN pages at least:
    /// 32 KiB of the usual ones.
    pub budget_bytes: u64,
    /// Bytes in a page: what is fetched, written back, evicted and pinned as one. A power of two
    /// from 4096 to 2 MiB. Large pages cost less to find, to fault
    /// in and to decide on, and more memory and I/O where little of each is used. 0: 4096.
    pub page_bytes: u64,
    /// Which page leaves when room is needed: "mru", "lirs:hir=0.05", or the path of a program that
    /// ends with ".hipec" (`pagekeeper policies` lists them). Null: "lru".
    pub policy: *const c_char,
    /// PK_FAULT_EXPLICIT, PK_FAULT_THREAD or PK_FAULT_INLINE.
    pub fault_path: pk_fault_path,
    /// Threads that fetch ahead, so that nobody waits for what is not needed yet. 0: one.
    /// PK_NO_WORKERS: none.
    pub workers: i32,
    /// Most pages that one step of read-ahead fetches. 0: as many as make 1 MiB. 1: no read-ahead.
    pub read_ahead_pages_max: u32,
    /// How often dirty pages are written back in the background, and changes of files by others
    /// looked for. 0: every 5,000 ms. PK_NEVER: not at all.
    pub write_back_period_ms: u32,
    /// Where scratch segments keep what does not fit into the budget; no file system in memory.
    /// Null: $TMPDIR, or /tmp.
    pub scratch_directory: *const c_char,
    /// Called by pk_cache_set_budget() with the new budget, on its thread: the program may trade
    /// memory for time then. It must not call pk_cache_set_budget(). Null: nobody is told.
    pub on_budget_change: Option<extern "C" fn(context: *mut c_void, budget_bytes: u64)>,
    /// What on_budget_change is called with.
    pub on_budget_change_context: *mut c_void,
    /// The most that seeing touches of mapped regions may cost, in percent of the time that misses
    /// take, up to 100. Reads, writes and pins are seen for nothing. 0: 25. PK_NO_SAMPLING: none are
    /// seen. (64 bits, so that no padding is left where a later member would be.)
    pub sampling_percent: u64,
    /// PK_TRANSLATION_MAPPED or PK_TRANSLATION_TABLE. (64 bits, as above.)
    pub translation: u64,
    /// Not 0: processors of this machine are kept from halting while more than a thousand misses a second are
    /// waited for. It is for virtual machines that take long to wake a processor (`pagekeeper doctor` says
    /// so: soon-awake), where a miss costs less then. It concerns all of the machine, takes time of the host's,
    /// and needs the right to open /dev/cpu_dma_latency: without that, and elsewhere, nothing changes. (64
    /// bits, as above.)
    pub keep_awake: u64,
}

/// A handle argument.
pub(crate) fn given<T>(what: Option<T>, name: &str) -> Result<T, Error> {
    what.ok_or_else(|| Error::argument(format!("the {name} is null")))
}

/// Where a new handle is put: null until there is one.
pub(crate) fn place<'a, T>(
    out: Option<&'a mut MaybeUninit<Option<Box<T>>>>,
    name: &str,
) -> Result<&'a mut MaybeUninit<Option<Box<T>>>, Error> {
    let out = given(out, name)?;
    out.write(None);
    Ok(out)
}

impl pk_cache {
    /// The cache, in the process that made it.
    pub(crate) fn here(cache: Option<&pk_cache>) -> Result<&Cache, Error> {
        let cache = &given(cache, "cache")?.0;
        if cache.is_here() { Ok(cache) } else { Err(Error::forked()) }
    }
}

fn policy(text: &str) -> Result<PolicySpec, Error> {
    pagekeeper_hipec::text::parse(text, |path| std::fs::read(path)).map_err(Error::argument)
}

fn share(percent: u64) -> Result<SamplingShare, Error> {
    let share = u32::try_from(percent).ok().and_then(|p| SamplingShare::of_percent(p).ok());
    share.ok_or_else(|| {
        let most = "up to 100, 0 for the usual or PK_NO_SAMPLING";
        Error::argument(format!("sampling_percent is {percent}; {most}"))
    })
}

/// Whether there can be pages of this size, and enough of them.
fn check_sizes(budget_bytes: u64, page_bytes: u64) -> Result<(), Error> {
    if !page_bytes.is_power_of_two() || !(PK_PAGE_BYTES..=PAGE_BYTES_MAX).contains(&page_bytes) {
        let message = format!("page_bytes is {page_bytes}; a power of two from 4096 to 2 MiB");
        return Err(Error::argument(message));
    }
    let least = PK_BUDGET_PAGES_MIN * page_bytes;
    if budget_bytes < least {
        return Err(Error::argument(format!(
            "budget_bytes is {budget_bytes}; it has room for PK_BUDGET_PAGES_MIN pages, {least} bytes"
        )));
    }
    Ok(())
}

/// Makes a cache.
///
/// options: with struct_bytes and budget_bytes at least. cache: where its handle is put; null if
/// the call fails. Close it with pk_cache_close().
///
/// Errors: -EINVAL: there is no such policy, or it runs in the simulator alone; the size of pages is
/// none, or the budget is less than PK_BUDGET_PAGES_MIN of them; -E2BIG: the program was built for a later version of the library and uses what this one lacks; those of
/// memfd_create(2) and mmap(2); -ENOMEM also where address space is limited (RLIMIT_AS): it takes 1.6 GB of
/// that, 5.7 GB with PK_TRANSLATION_TABLE, little of it memory. For PK_FAULT_THREAD and PK_FAULT_INLINE also
/// those of userfaultfd(2), and -EBUSY: the process has another SIGBUS handler of Pagekeeper's.
///
/// Each segment in which something is touched takes address space as well: 16 MiB, or as much as it is
/// long, up to 1 GiB for each GiB that is touched, rounded up to a power of two (once it grew, up to 1.6 GiB
/// for the first); 2 MiB for each GiB with PK_TRANSLATION_TABLE. Who touches it where there is no more gets
/// -ENOMEM.
///
/// A cache has threads of its own (but for PK_NO_WORKERS with PK_NEVER and PK_FAULT_EXPLICIT, and without
/// keep_awake), which live until it ends (pk_cache_close()). They block all signals that others send, which
/// are for the program's threads. So a program whose main thread leaves by pthread_exit(3) closes the cache
/// first: else the process stays when its own threads have ended, and SIGTERM waits for ever for one that
/// takes it.
///
/// Threads: any, with 64 KiB of stack; 128 KiB where policy is a program's file (.hipec), here and in
/// pk_cache_set_policy().
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_create(
    options: *const pk_cache_options,
    cache: Option<&mut MaybeUninit<Option<Box<pk_cache>>>>,
) -> c_int {
    status("pk_cache_create", || {
        let cache = place(cache, "place for the cache")?;
        let options = raw::get(options)?;
        let page_bytes = match options.page_bytes {
            0 => PK_PAGE_BYTES,
            bytes => bytes,
        };
        check_sizes(options.budget_bytes, page_bytes)?;
        let mut builder = Cache::builder(options.budget_bytes);
        if let Some(text) = raw::text("policy", options.policy)? {
            builder = builder.policy(policy(text)?);
        }
        builder = builder.fault_path(match options.fault_path {
            PK_FAULT_EXPLICIT => FaultPath::Explicit,
            PK_FAULT_THREAD => FaultPath::Thread,
            PK_FAULT_INLINE => FaultPath::Inline,
            other => return Err(Error::argument(format!("{other} is no fault_path"))),
        });
        builder = builder.translation(match u32::try_from(options.translation) {
            Ok(PK_TRANSLATION_MAPPED) => Translation::Mapped,
            Ok(PK_TRANSLATION_TABLE) if options.fault_path == PK_FAULT_EXPLICIT => {
                Translation::Table
            }
            Ok(PK_TRANSLATION_TABLE) => {
                let what = "PK_TRANSLATION_TABLE needs PK_FAULT_EXPLICIT: its pages are not mapped";
                return Err(Error::argument(what.to_owned()));
            }
            _ => {
                return Err(Error::argument(format!("{} is no translation", options.translation)));
            }
        });
        builder = match options.workers {
            0 => builder,
            PK_NO_WORKERS => builder.workers(0),
            threads => match usize::try_from(threads) {
                Ok(threads) => builder.workers(threads),
                Err(_) => return Err(Error::argument(format!("workers is {threads}"))),
            },
        };
        builder = builder.page_bytes(page_bytes);
        if options.read_ahead_pages_max != 0 {
            builder = builder.read_ahead_pages_max(options.read_ahead_pages_max);
        }
        builder = match options.write_back_period_ms {
            0 => builder,
            PK_NEVER => builder.write_back_period(None),
            period => builder.write_back_period(Some(Duration::from_millis(period.into()))),
        };
        if options.keep_awake != 0 {
            builder = builder.keep_awake();
        }
        builder = match options.sampling_percent {
            0 => builder,
            PK_NO_SAMPLING => builder.sampling(SamplingShare::NONE),
            percent => builder.sampling(share(percent)?),
        };
        if let Some(directory) = raw::path(options.scratch_directory) {
            builder = builder.scratch_directory(directory);
        }
        if let Some(listener) = options.on_budget_change {
            let context = Context(options.on_budget_change_context);
            builder = builder.on_budget_change(move |bytes| {
                let _later = Uncancelled::new();
                listener(context.pointer(), bytes);
            });
        }
        let made = builder.build().map_err(|error| match error.raw_os_error() {
            Some(_) if options.fault_path == PK_FAULT_EXPLICIT => Error::of_explicit_cache(&error),
            Some(_) => Error::at("the cache", &error),
            None => Error::in_words(&error),
        })?;
        cache.write(Some(Box::new(pk_cache(made))));
        Ok(())
    })
}

/// Closes a handle of a cache; null is no handle, and fine. With the last of its handles, segments,
/// pins and regions the cache ends; its threads have ended when this returns then.
///
/// Returns 0. In a forked child it frees the child's copy and touches nothing of the parent's.
///
/// Threads: the handle is not used any more.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_close(cache: Option<Box<pk_cache>>) -> c_int {
    status("pk_cache_close", move || {
        drop(cache);
        Ok(())
    })
}

/// The budget in bytes.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_budget(cache: Option<&pk_cache>) -> i64 {
    count_quick("pk_cache_budget", || Ok(pk_cache::here(cache)?.budget_bytes()))
}

/// Bytes in a page: what pk_cache_options.page_bytes said.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_page_bytes(cache: Option<&pk_cache>) -> i64 {
    count_quick("pk_cache_page_bytes", || Ok(pk_cache::here(cache)?.page_bytes()))
}

/// Changes the budget. Pages beyond it leave before this returns, as far as they can: what is
/// pinned, or cannot be written back, stays until it can. Less than PK_BUDGET_PAGES_MIN pages is that
/// many, and pk_cache_budget() says so. on_budget_change is called, with what the budget is then.
/// pk_layer_compressed() has at most half of the budget: what it keeps beyond that is written to the layer
/// below.
///
/// Errors: -EINVAL: it is 0; -EDEADLK: in a function of a pk_store that the cache calls (other than sync and
/// advise).
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_set_budget(cache: Option<&pk_cache>, budget_bytes: u64) -> c_int {
    status("pk_cache_set_budget", || {
        let cache = pk_cache::here(cache)?;
        if budget_bytes == 0 {
            return Err(Error::argument("the budget is 0; say how much memory it may use"));
        }
        cache.try_set_budget(budget_bytes).map_err(|error| Error::at("the budget", &error))
    })
}

/// The policy that decides now, as it was asked for.
///
/// text: gets the words and a NUL, cut off at text_bytes; may be null if text_bytes is 0. Returns
/// the length of the words without the NUL, as snprintf(3) does: they were cut off if that is
/// text_bytes or more.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_policy(
    cache: Option<&pk_cache>,
    text: *mut c_char,
    text_bytes: usize,
) -> i64 {
    count("pk_cache_policy", || {
        let words = pk_cache::here(cache)?.policy().to_string();
        put_words(&words, text, text_bytes)
    })
}

/// Words for a buffer of C.
pub(crate) fn put_words(words: &str, text: *mut c_char, text_bytes: usize) -> Result<u64, Error> {
    let buffer = raw::bytes_mut(text.cast(), text_bytes)?;
    if let Some(room) = buffer.len().checked_sub(1) {
        let len = words.len().min(room);
        buffer[..len].copy_from_slice(&words.as_bytes()[..len]);
        buffer[len] = 0;
    }
    Ok(words.len() as u64)
}

/// Another policy decides from now on. Pages stay where they are, in memory or not.
///
/// policy: as pk_cache_options.policy. Returns how many pages are in memory.
///
/// Errors: -EINVAL: there is no such policy, or it runs in the simulator alone; the old one goes on.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_set_policy(cache: Option<&pk_cache>, policy_text: *const c_char) -> i64 {
    count("pk_cache_set_policy", || {
        let cache = pk_cache::here(cache)?;
        let text = given(raw::text("policy", policy_text)?, "policy")?;
        Ok(cache.set_policy(policy(text)?).map_err(|error| Error::at(text, &error))?.into())
    })
}

/// How pages of mapped regions are brought in: a pk_fault_path.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_fault_path(cache: Option<&pk_cache>) -> c_int {
    let path = count("pk_cache_fault_path", || {
        Ok(u64::from(match pk_cache::here(cache)?.fault_path() {
            FaultPath::Explicit => PK_FAULT_EXPLICIT,
            FaultPath::Thread => PK_FAULT_THREAD,
            FaultPath::Inline => PK_FAULT_INLINE,
        }))
    });
    c_int::try_from(path).unwrap_or(c_int::MIN)
}

/// Writes back what is dirty in all segments, and makes it durable.
///
/// Errors: the first of a segment's; each handle of the segment is told as well, by its own
/// pk_segment_flush().
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_flush(cache: Option<&pk_cache>) -> c_int {
    status("pk_cache_flush", || {
        pk_cache::here(cache)?.flush().map_err(|error| Error::at("write-back", &error))
    })
}

/// Writes down which pages are in memory, by segments' names, for pk_cache_load_working_set() of a
/// later run.
///
/// path: a regular file, replaced when the new one is whole, or none yet. Returns how many pages there are.
///
/// Errors: those of writing a file; -EINVAL: what has the name is no regular file, nor a link to one.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_save_working_set(cache: Option<&pk_cache>, path: *const c_char) -> i64 {
    count("pk_cache_save_working_set", || {
        let cache = pk_cache::here(cache)?;
        let path = given(raw::path(path), "path")?;
        cache.save_working_set(path).map_err(|error| match error.kind() {
            // It names the path itself.
            io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => {
                Error::in_words(&error)
            }
            _ => Error::at(path.display(), &error),
        })
    })
}

/// Brings in pages that were written down, of segments that are open now, as they are named now; if
/// not all fit, those that were used last. A trace of `pagekeeper record` does as well.
///
/// Returns how many pages are in memory because of it. What is not there any more, or cannot be
/// read, is passed over.
///
/// Errors: those of reading a file; -EINVAL: it is no trace, or of pages of another size.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_cache_load_working_set(cache: Option<&pk_cache>, path: *const c_char) -> i64 {
    count("pk_cache_load_working_set", || {
        let cache = pk_cache::here(cache)?;
        let path = given(raw::path(path), "path")?;
        cache.load_working_set(path).map_err(|error| Error::at(path.display(), &error))
    })
}
