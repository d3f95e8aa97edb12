//! The library: a managed page cache in a program of one's own.
//!
//! A [`Cache`] has a budget and a policy. In it are [`Segment`]s: files, working memory larger than
//! the machine's ([`Cache::scratch`]), or whatever stands behind a [`Store`] of the application.
//! Segments are read and written as files are, and their pages can be pinned as a database's
//! buffer manager does:
//!
//! ```
//! use pagekeeper::library::{Cache, Options, PolicySpec};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("data");
//! // 8 MiB for everything; MRU suits a scan that is repeated.
//! let cache = Cache::builder(8 << 20).policy(PolicySpec::parse("mru")?).build()?;
//! let table = cache.open(&path, Options::new().create(true))?;
//!
//! table.write_at(b"one page in memory", 0)?;
//! let mut word = [0; 3];
//! table.read_at(&mut word, 0)?;
//! assert_eq!(&word, b"one");
//!
//! let page = table.pin(0..18)?; // stays in memory, and never faults
//! assert!(page.ends_with(b"memory"));
//! drop(page);
//! table.flush()?; // written back, and durable
//! # Ok(())
//! # }
//! ```
//!
//! # What a read costs
//! A page that is in memory is found without a lock: its state word is looked up, a pin is added
//! to it in one atomic step, its bytes are copied from a mapping of the frames, and the pin is
//! taken back. No system call, no page fault. The policy hears of such uses in batches.
//!
//! Where frames are mapped as segments are, memory of a page that leaves goes back to the kernel, and a
//! page that comes takes some: so any page can be mapped by a region, and several in a row are one
//! slice. A program that needs neither finds its pages by a table ([`Translation::Table`]): the memory
//! of one that leaves is the next one's, and a short read adds no pin, but looks afterwards whether the
//! page was the same. What either saves is measured against a control: the same cache with a hash table
//! ([`Builder::translation`]).
//!
//! # Mapped regions
//! [`Segment::map`] binds a range of a segment into the address space ([`Region`]), for reading,
//! for writing, or copy-on-write. Who brings in a page that is touched is the cache's
//! [`FaultPath`]: nobody (there are no regions then), a thread of the cache, or the touching thread
//! itself, in a handler of SIGBUS. Mapped and explicit access see the same bytes.
//!
//! Of the handler holds: the signal comes out of an instruction that touched a region, never in
//! between, so whatever the thread holds, it holds where it touches regions. The library never
//! touches one while it holds a lock or a pin of its own; the handler therefore finds them free, or
//! held by another thread that goes on. It reaches pages through a mapping of its own only, blocks
//! the signals that a program may handle itself, keeps errno, does not unwind (a panic aborts), and
//! passes on what it cannot serve (an address behind the end, a page that cannot be read, somebody
//! else's SIGBUS) to the handler that was there before the cache, or to the default action. It
//! runs on the stack of the thread, of which 64 KiB must be free. It *does* allocate, and a
//! store's code runs in it: an allocator must not keep its memory in regions, and a store must not
//! touch them, nor need a lock that is held where they are touched. A handler of SIGBUS that the
//! program installs later replaces it; install it before, and it is called for what is not ours.
//!
//! # What holds
//! - **Nothing is lost silently.** A page is dirty before it is changed, and leaves memory only
//!   after its write-back succeeded. Errors are told once to each handle, by its next
//!   [`Segment::flush`]; until then the page stays in memory.
//! - **What is written is in this process until it is flushed.** If the process is killed, what was
//!   written since the last flush (or background write-back, [`Builder::write_back_period`]) is
//!   lost with it; the kernel's page cache would have kept it.
//! - **One file, one writer.** A file is one segment of a cache. A cache that writes to a file
//!   excludes other caches and runs of `pagekeeper` of the same user from it; several that only
//!   read may share it. Changes by anybody else are found when the file is opened, flushed or
//!   written back, and every write-back period ([`Segment::refresh`]).
//! - **A forked child has no part in it.** The frames are not mapped in a child, and every
//!   operation there fails with `EOWNERDEAD`: never zeros, never the parent's file written twice.
//!   It may make caches of its own.
//! - **The budget pays for everything**: frames, state for each touched page, buffers. State is kept
//!   while its segment is open (some 32 bytes a page under LRU): where a hundred times the budget was touched
//!   and more, little is left for frames. Frames that the program pins stay, whatever the budget says. With swap switched on, the kernel may write
//!   frames there.
//!
//! # Managers are extended, not rewritten
//! What a segment's manager does is replaced piece by piece. Which page leaves: [`Builder::policy`].
//! How pages are filled and written back: a [`Store`], of one's own or around another one, and
//! those around others compose:
//! - [`Compressed`]: victims stay in memory, smaller, before they go to storage;
//! - [`Discardable`]: pages that are dropped, dirty or not, and made anew by the program's code;
//! - [`Logged`]: a flush is durable as a whole or not at all;
//! - [`Mirrored`]: two stores, of which one may fail.
//!
//! When: [`Segment::set_write_back`] ties write-back to the program's commits,
//! [`Segment::prefetch`] brings in what the program knows it will need, and
//! [`Cache::load_working_set`] what an earlier run had in memory.
//!
//! # Terms
//! *Segment*, *manager* and *region* are those of V++ (Harty and Cheriton, *Application-Controlled
//! Physical Memory using External Page-Cache Management*, 1992, section 2): a segment's manager is
//! the cache's policy and the segment's [`Store`].

mod access;
mod cache;
mod caught;
mod faults;
mod frames;
mod migrate;
mod pages;
mod pinned;
mod port;
mod process;
mod regions;
mod segment;
mod store;
mod stores;
mod tables;
mod translation;
mod visits;
mod working_set;

pub use crate::compressed::{Codec, PoolCounts};
pub use crate::engine::stats::{FileCounts, FileReport, Stats};
pub use crate::port::{PAGE_BYTES, Version};
pub use cache::{BUDGET_PAGES_MIN, Builder, Cache, Options, Reserved};
pub use faults::FaultPath;
pub use frames::{PAGE_BYTES_MAX, SEGMENT_BYTES_MAX};
pub use pagekeeper_frames::{NotAShare, SamplingShare};
pub use pagekeeper_policy::PolicySpec;
pub use pinned::{Pinned, PinnedMut};
pub use regions::{Protection, Region};
pub use segment::{Advice, PageAttributes, Segment, WriteBack};
pub use store::{FileStore, Store};
pub use stores::{Compressed, Discardable, Logged, Mirrored, Side};
pub use translation::{Buckets, Translation};
