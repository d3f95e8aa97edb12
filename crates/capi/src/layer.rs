//! Stores made of others: the managers that come with the library, one upon another.

use crate::cache::{given, pk_cache, place};
use crate::error::{Error, count, number_of, status};
use crate::raw::{self, Context};
use crate::segment::pk_segment;
use crate::store::{Functions, done, pk_store};
use pagekeeper::library::{
    Codec, Compressed, Discardable, FileStore, Logged, Mirrored, Side, Store,
};
use pagekeeper_sys::cancel::Uncancelled;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Below = Arc<dyn Store>;

/// A store, or one made of others, to be laid under a segment (pk_segment_open_layer()) or under
/// another layer, once. The handle stays, to ask and to tell; what it stands for lives as long as
/// anything upon it.
pub struct pk_layer {
    store: Below,
    kind: Kind,
    /// Something is upon it.
    taken: AtomicBool,
    /// The process that made it.
    pid: u32,
}

/// What can be asked of it besides.
enum Kind {
    Plain,
    Mirrored(Arc<Mirrored<Below, Below>>),
    Logged(Arc<Logged<Below, Below>>),
}

impl std::fmt::Debug for pk_layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("pk_layer").field("taken", &self.taken).finish_non_exhaustive()
    }
}

/// Which of two mirrored stores: PK_FIRST or PK_SECOND.
pub type pk_side = u32;

/// The one that was named first.
pub const PK_FIRST: pk_side = 0;
/// The other one.
pub const PK_SECOND: pk_side = 1;

impl pk_layer {
    fn new(store: Below, kind: Kind) -> Box<pk_layer> {
        let taken = AtomicBool::new(false);
        Box::new(pk_layer { store, kind, taken, pid: std::process::id() })
    }

    /// The layer, in the process that made it.
    fn here(layer: Option<&pk_layer>) -> Result<&pk_layer, Error> {
        let layer = given(layer, "layer")?;
        if layer.pid == std::process::id() { Ok(layer) } else { Err(Error::forked()) }
    }

    /// Lays something upon layers that have nothing upon them yet; if that fails, they still have
    /// not.
    fn lay_upon<const N: usize, T>(
        layers: [&pk_layer; N],
        make: impl FnOnce([Below; N]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for (at, layer) in layers.iter().enumerate() {
            if layer.taken.swap(true, Ordering::AcqRel) {
                layers[..at].iter().for_each(|layer| layer.taken.store(false, Ordering::Release));
                let message = "something is upon the layer already".to_owned();
                return Err(Error::new(libc::EBUSY, message));
            }
        }
        let made = make(layers.map(|layer| Arc::clone(&layer.store)));
        if made.is_err() {
            layers.iter().for_each(|layer| layer.taken.store(false, Ordering::Release));
        }
        made
    }
}

fn side(side: pk_side) -> Result<Side, Error> {
    match side {
        PK_FIRST => Ok(Side::First),
        PK_SECOND => Ok(Side::Second),
        other => Err(Error::argument(format!("{other} is no side; PK_FIRST or PK_SECOND"))),
    }
}

fn mirrored(layer: Option<&pk_layer>) -> Result<&Mirrored<Below, Below>, Error> {
    match &pk_layer::here(layer)?.kind {
        Kind::Mirrored(mirrored) => Ok(mirrored),
        _ => Err(Error::argument("the layer is not a mirror (pk_layer_mirrored())")),
    }
}

/// A store that is a file.
///
/// fd: an open file, which is opened anew; it may be closed. writable: 0 or 1; if 1, it is open for
/// writing. layer: where the handle is put; null if the call fails. Close it with pk_layer_close().
///
/// Errors: -EINVAL: no regular file; -EBADF: fd is not open, or not for that; those of open(2).
///
/// Threads: any. Nobody else may change the file: unlike pk_segment_open(), this keeps nobody out.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_file(
    fd: c_int,
    writable: c_int,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_file", || {
        let layer = place(layer, "place for the layer")?;
        let store = FileStore::new(&*raw::file(fd)?, writable != 0)?;
        layer.write(Some(pk_layer::new(Arc::new(store), Kind::Plain)));
        Ok(())
    })
}

/// A store of zeros, len bytes long, in a file without a name: for working memory.
///
/// directory: where the file is; no file system in memory.
///
/// Errors: those of open(2) with O_TMPFILE.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_scratch(
    directory: *const c_char,
    len: u64,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_scratch", || {
        let layer = place(layer, "place for the layer")?;
        let directory = given(raw::path(directory), "directory")?;
        let store =
            FileStore::scratch(directory, len).map_err(|e| Error::at(directory.display(), &e))?;
        layer.write(Some(pk_layer::new(Arc::new(store), Kind::Plain)));
        Ok(())
    })
}

/// A store of functions of the program.
///
/// store: copied. Its close is called when nothing uses the layer any more, and not if this fails. With
/// another layer upon it, it is called for multiples of 4096 bytes, whatever the cache's page_bytes.
///
/// Errors: -EINVAL: len, load or store is missing; -E2BIG: the program was built for a later version
/// of the library and uses what this one lacks.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_functions(
    store: *const pk_store,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_functions", || {
        let layer = place(layer, "place for the layer")?;
        let functions = Functions::new(&raw::get(store)?, Arc::new(AtomicBool::new(true)))?;
        layer.write(Some(pk_layer::new(Arc::new(functions), Kind::Plain)));
        Ok(())
    })
}

/// Pages that leave memory are kept compressed, in memory, before they go to the layer below, and
/// are refilled from there. The oldest give way. A dirty page is written before it is dropped, and
/// by pk_segment_flush().
///
/// below: a layer with nothing upon it. cache: its budget pays for memory_bytes, as long as the layer
/// lives; at most half of it can be set aside, and less is where that becomes more than half
/// (pk_cache_set_budget()). zstd_level: 1 to 22, the higher the smaller and slower;
/// 0: LZ4, several times faster.
///
/// Errors: -EBUSY: something is upon the layer below already; -ENOMEM: more than half of the budget
/// would be set aside.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_compressed(
    below: Option<&pk_layer>,
    cache: Option<&pk_cache>,
    memory_bytes: u64,
    zstd_level: c_int,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_compressed", || {
        let layer = place(layer, "place for the layer")?;
        let below = pk_layer::here(below)?;
        let cache = pk_cache::here(cache)?;
        let codec = match zstd_level {
            0 => Codec::Lz4,
            1..=22 => Codec::Zstd(zstd_level),
            other => return Err(Error::argument(format!("{other} is no level of Zstandard"))),
        };
        let made = pk_layer::lay_upon([below], |[below]| {
            let memory = cache
                .reserve(memory_bytes)
                .map_err(|e| Error::at("more than half of the cache's budget", &e))?;
            Ok(Compressed::new(below, memory, codec))
        })?;
        layer.write(Some(pk_layer::new(Arc::new(made), Kind::Plain)));
        Ok(())
    })
}

/// Two stores that hold the same: what is written goes to both, and what one cannot give comes from
/// the other. One that misses a write is stale, and neither read nor written any more, until
/// pk_layer_resync().
///
/// An error of one side fails no call, pk_segment_flush() neither. And a mirror does not remember in
/// the next run which side was stale: made anew by this function it would read old content for new. So
/// ask pk_layer_is_stale() of both sides after each flush, and write the answer down elsewhere, durably,
/// before what was flushed counts as kept; the next run gives it to pk_layer_mirrored_with_stale().
///
/// After a crash the sides may differ in what was written and not flushed, and in length: make the
/// mirror by pk_layer_mirrored_with_stale(), of PK_SECOND unless it was written down that
/// PK_FIRST is stale, and pk_layer_resync() that side.
///
/// Either may be compressed, or have discardable pages, which a mirror then has, too. One that was stale
/// keeps all pages, until pk_segment_advise() says again which it need not.
///
/// first, second: layers with nothing upon them, of the same length.
///
/// Errors: -EINVAL: their lengths differ; -EBUSY: something is upon one already.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_mirrored(
    first: Option<&pk_layer>,
    second: Option<&pk_layer>,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_mirrored", || {
        mirror(first, second, layer, |[first, second]| {
            Mirrored::new(first, second).map_err(|e| Error::at("two stores of one length", &e))
        })
    })
}

/// Makes a mirror of two layers, as `make` does.
fn mirror(
    first: Option<&pk_layer>,
    second: Option<&pk_layer>,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
    make: impl FnOnce([Below; 2]) -> Result<Mirrored<Below, Below>, Error>,
) -> Result<(), Error> {
    let layer = place(layer, "place for the layer")?;
    let below = [pk_layer::here(first)?, pk_layer::here(second)?];
    let made = Arc::new(pk_layer::lay_upon(below, make)?);
    layer.write(Some(pk_layer::new(made.clone(), Kind::Mirrored(made))));
    Ok(())
}

/// The same of two stores of which one is stale: what an earlier run wrote down of its mirror, or
/// PK_SECOND after a crash of one whose sides were whole. pk_layer_resync() is to follow, after which
/// what was written down no longer holds; until then the other side alone is read and written.
///
/// first, second: layers with nothing upon them, in the order of the earlier run; the stale one's length
/// may be another. stale: PK_FIRST or PK_SECOND.
///
/// Errors: -EBUSY: something is upon one already.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_mirrored_with_stale(
    first: Option<&pk_layer>,
    second: Option<&pk_layer>,
    stale: pk_side,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_mirrored_with_stale", || {
        let stale = side(stale)?;
        mirror(first, second, layer, |[first, second]| {
            Ok(Mirrored::with_stale(first, second, stale))
        })
    })
}

/// Whether a side of a mirror lacks something that was written: 1, or 0. A mirror that is made anew
/// knows only what pk_layer_mirrored_with_stale() was told.
///
/// Errors: -EINVAL: the layer is not a mirror.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_is_stale(layer: Option<&pk_layer>, which: pk_side) -> c_int {
    let stale = || Ok(u64::from(mirrored(layer)?.is_stale(side(which)?)));
    // 0, 1, or an error number.
    count("pk_layer_is_stale", stale) as c_int
}

/// The latest error that a side of a mirror met since this was last asked, which no other call tells:
/// in reading, which leaves the side in use, or in writing, which makes it stale.
///
/// Returns its number, which is positive (EIO and so on), or 0 if there was none.
///
/// Errors: -EINVAL: the layer is not a mirror.
///
/// Threads: any; one of them is told.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_take_error(layer: Option<&pk_layer>, which: pk_side) -> c_int {
    let taken = || {
        let error = mirrored(layer)?.take_error(side(which)?);
        Ok(error.map_or(0, |error| u64::from(number_of(&error).unsigned_abs())))
    };
    // An error number of either sign, or 0.
    count("pk_layer_take_error", taken) as c_int
}

/// Copies the other side's content to a stale side of a mirror, which is in use again then. Reads
/// and writes wait meanwhile.
///
/// Errors: -EINVAL: the layer is not a mirror, or the other side is stale itself; the stores': the side is
/// stale still.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_resync(layer: Option<&pk_layer>, which: pk_side) -> c_int {
    status("pk_layer_resync", || Ok(mirrored(layer)?.resync(side(which)?)?))
}

/// A write-ahead log before a store: all that one pk_segment_flush() writes is in the store, or
/// nothing of it is, whatever happens to the machine. What the log holds of complete flushes goes
/// in place first, before this returns.
///
/// What is below may be compressed, and gets the pages that leave memory clean. It is not told of
/// discardable pages (-EOPNOTSUPP), for it would forget them at once, and not with a flush: lay
/// pk_layer_discardable() upon the log.
///
/// below, log: layers with nothing upon them; the log may be empty. checkpoint_bytes: pages go in
/// place when the log is longer than that.
///
/// Errors: the stores'; -EINVAL: the log is no log; -EBUSY: something is upon one already.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_logged(
    below: Option<&pk_layer>,
    log: Option<&pk_layer>,
    checkpoint_bytes: u64,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_logged", || {
        let layer = place(layer, "place for the layer")?;
        let below = [pk_layer::here(below)?, pk_layer::here(log)?];
        let made = pk_layer::lay_upon(below, |[below, log]| {
            Logged::open(below, log, checkpoint_bytes).map_err(|e| Error::at("the log", &e))
        })?;
        let made = Arc::new(made);
        layer.write(Some(pk_layer::new(made.clone(), Kind::Logged(made))));
        Ok(())
    })
}

/// Puts what a log holds of complete flushes in place, and makes it durable there. Where some of the
/// next flush has come to the log already, everything goes in place at the end of that.
///
/// Errors: -EINVAL: the layer is not one of pk_layer_logged(); the stores'.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_checkpoint(layer: Option<&pk_layer>) -> c_int {
    status("pk_layer_checkpoint", || match &pk_layer::here(layer)?.kind {
        Kind::Logged(logged) => Ok(logged.checkpoint()?),
        _ => Err(Error::argument("the layer is not one of pk_layer_logged()".to_owned())),
    })
}

/// Pages that are declared discardable (pk_segment_advise(), PK_DISCARDABLE) are dropped when they
/// have to leave, dirty or not, and made anew when they are next touched.
///
/// below: a layer with nothing upon it, for the other pages. make: fills len bytes at pages, whole
/// pages from byte offset on, and returns 0 or a negative error number; called as pk_store.load is.
/// context: what it is called with.
///
/// Errors: -EBUSY: something is upon the layer below already.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_discardable(
    below: Option<&pk_layer>,
    make: Option<
        extern "C" fn(context: *mut c_void, offset: u64, pages: *mut c_void, len: usize) -> c_int,
    >,
    context: *mut c_void,
    layer: Option<&mut MaybeUninit<Option<Box<pk_layer>>>>,
) -> c_int {
    status("pk_layer_discardable", || {
        let layer = place(layer, "place for the layer")?;
        let below = pk_layer::here(below)?;
        let make = given(make, "function `make`")?;
        let context = Context(context);
        let made = pk_layer::lay_upon([below], |[below]| {
            Ok(Discardable::new(below, move |offset, pages: &mut [u8]| {
                let _later = Uncancelled::new();
                done(make(context.pointer(), offset, pages.as_mut_ptr().cast(), pages.len()))
            }))
        })?;
        layer.write(Some(pk_layer::new(Arc::new(made), Kind::Plain)));
        Ok(())
    })
}

/// Makes a segment over a layer.
///
/// layer: with nothing upon it. name: what statistics call it, in UTF-8; null: "store". segment: where its
/// handle is put; null if the call fails.
///
/// Errors: the store's; -EBUSY: something is upon the layer already.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn pk_segment_open_layer(
    cache: Option<&pk_cache>,
    layer: Option<&pk_layer>,
    name: *const c_char,
    segment: Option<&mut MaybeUninit<Option<Box<pk_segment>>>>,
) -> c_int {
    status("pk_segment_open_layer", || {
        let segment = place(segment, "place for the segment")?;
        let cache = pk_cache::here(cache)?;
        let name = raw::text("name", name)?.unwrap_or("store");
        let opened = pk_layer::lay_upon([pk_layer::here(layer)?], |[store]| {
            cache.open_store(store, name).map_err(|e| Error::at(name, &e))
        })?;
        segment.write(Some(Box::new(pk_segment(opened))));
        Ok(())
    })
}

/// Closes a handle of a layer. What is upon the layer goes on.
///
/// layer: may be null.
///
/// Threads: any; the last use of the handle.
#[unsafe(no_mangle)]
pub extern "C" fn pk_layer_close(layer: Option<Box<pk_layer>>) -> c_int {
    status("pk_layer_close", || {
        drop(layer);
        Ok(())
    })
}
