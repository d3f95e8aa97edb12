//! Discardable pages: dropped without being written, and made anew when they are touched again.

use crate::library::caught::Caught;
use crate::library::segment::{Advice, pages_of};
use crate::library::store::Store;
use crate::library::stores::load_within;
use crate::port::PAGE_BYTES;
use rangemap::RangeSet;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

const PAGE: usize = PAGE_BYTES as usize;

/// A store of which some pages are *discardable*: when they have to leave memory they are dropped,
/// dirty or not, and the program's own code makes them anew when they are next touched. An index
/// that can be computed again, a garbage collector's empty pages (V++'s discardable pages; Table 4's
/// regenerated index).
///
/// Pages are made discardable by [`Segment::advise`] with [`Advice::Discardable`], and the store
/// below is kept for again with [`Advice::Needed`]: then what is in memory is written as ever, and
/// what was dropped before is still made anew until it is next written. (Where there is no room for what
/// is in memory, that is `ENOSPC`, and all stay as they were.)
///
/// The page that the store ends in is discardable as far as the store reaches. Once it is longer, the page
/// is needed: its first part is made anew until it is next written, and what was added is kept.
///
/// ```
/// use pagekeeper::library::{Advice, Cache, Discardable, FileStore};
/// # fn main() -> std::io::Result<()> {
/// let cache = Cache::new(256 << 10)?;
/// // Squares of the numbers from 0 on: a table of 1 MiB, of which a quarter fits.
/// let squares = |offset: u64, pages: &mut [u8]| {
///     for (i, word) in pages.chunks_exact_mut(8).enumerate() {
///         let n = offset / 8 + i as u64;
///         word.copy_from_slice(&(n * n).to_le_bytes());
///     }
///     Ok(())
/// };
/// let scratch = FileStore::scratch(&std::env::temp_dir(), 1 << 20)?;
/// let table = cache.open_store(Discardable::new(scratch, squares), "squares")?;
/// table.advise(0..1 << 20, Advice::Discardable)?;
///
/// let mut word = [0; 8];
/// for n in [7u64, 100_000, 7] {
///     table.read_exact_at(&mut word, n * 8)?;
///     assert_eq!(u64::from_le_bytes(word), n * n);
/// }
/// # Ok(())
/// # }
/// ```
///
/// [`Segment::advise`]: crate::library::Segment::advise
pub struct Discardable<S, F> {
    below: Caught<S>,
    make: F,
    pages: Mutex<Pages>,
    made: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Pages {
    /// Not written.
    discardable: RangeSet<u64>,
    /// Made anew, since the store below does not have them: those above, and those that were
    /// among them until they are written.
    made: RangeSet<u64>,
    /// Of these of them only so many bytes: the store once ended there, and has the others.
    made_bytes: BTreeMap<u64, usize>,
    /// Those that are discardable and dirty, or about to be, without room below.
    roomless: RangeSet<u64>,
    /// The length of the store below when it was last looked at.
    len: Option<u64>,
    /// How often it was changed so far.
    lengths: u64,
}

impl Pages {
    /// Parts of a page range that are in a set, or not.
    fn split(
        &self,
        range: Range<u64>,
        set: fn(&Pages) -> &RangeSet<u64>,
    ) -> Vec<(Range<u64>, bool)> {
        let mut parts = Vec::new();
        let mut from = range.start;
        if range.is_empty() {
            return parts;
        }
        for inside in set(self).overlapping(&range) {
            let inside = inside.start.max(range.start)..inside.end.min(range.end);
            if from < inside.start {
                parts.push((from..inside.start, false));
            }
            from = inside.end;
            parts.push((inside, true));
        }
        if from < range.end {
            parts.push((from..range.end, false));
        }
        parts
    }

    /// The store below becomes so long, or is.
    fn follow(&mut self, len: u64) {
        let Some(before) = self.len.replace(len) else { return };
        // Nobody has said anything of what was not there.
        let end = before.min(len);
        let behind = end.div_ceil(PAGE_BYTES)..u64::MAX;
        self.discardable.remove(behind.clone());
        self.made.remove(behind.clone());
        self.roomless.remove(behind.clone());
        self.made_bytes.split_off(&behind.start);
        let (last, within) = (end / PAGE_BYTES, (end % PAGE_BYTES) as usize);
        if len > before && within > 0 && self.made.contains(&last) {
            self.discardable.remove(last..last + 1);
            let bytes = self.made_bytes.entry(last).or_insert(within);
            *bytes = within.min(*bytes);
        }
    }

    /// What of a range has to have room before it is needed, but for what was given some.
    fn lacking(&self, range: &Range<u64>, given: &RangeSet<u64>) -> Vec<Range<u64>> {
        let parts = self.split(range.clone(), |p| &p.roomless).into_iter();
        let lacking = parts.filter(|(_, lacks)| *lacks);
        lacking.flat_map(|(part, _)| given.gaps(&part).collect::<Vec<_>>()).collect()
    }

    /// Pages are made as a whole, or not any more.
    fn forget_bytes(&mut self, pages: &Range<u64>) {
        self.made_bytes.retain(|page, _| !pages.contains(page));
    }
}

impl<S: std::fmt::Debug, F> std::fmt::Debug for Discardable<S, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discardable").field("below", &self.below.store).finish_non_exhaustive()
    }
}

impl<S, F> Discardable<S, F>
where
    S: Store,
    F: Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync + 'static,
{
    /// A store none of whose pages are discardable yet. `make` fills whole pages from a byte offset
    /// on; it is called as [`Store::load`] is, from any thread.
    pub fn new(below: S, make: F) -> Discardable<S, F> {
        let (made, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        Discardable { below: Caught::new(below), make, pages: Mutex::default(), made, dropped }
    }

    /// Pages made anew so far.
    pub fn made_pages(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Dirty pages dropped, instead of being written, so far.
    pub fn dropped_pages(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The store below.
    pub fn below(&self) -> &S {
        &self.below.store
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("pages")
    }

    /// Pages that the store below has, which is so long.
    fn load_below(&self, first: u64, len: u64, piece: &mut [u8]) -> io::Result<()> {
        load_within(&self.below, len, first * PAGE_BYTES, piece)
    }

    /// Makes pages anew.
    fn make_pages(&self, part: &Range<u64>, piece: &mut [u8]) -> io::Result<()> {
        piece.fill(0);
        (self.make)(part.start * PAGE_BYTES, piece)?;
        self.made.fetch_add(part.end - part.start, Ordering::Relaxed);
        let cut = |(page, bytes): (&u64, &usize)| (*page, *bytes);
        let cut: Vec<_> = self.pages().made_bytes.range(part.clone()).map(cut).collect();
        for (number, bytes) in cut {
            let page = &mut piece[(number - part.start) as usize * PAGE..][..PAGE];
            let made = page[..bytes].to_vec();
            self.load_below(number, u64::MAX, page)?;
            page[..bytes].copy_from_slice(&made);
        }
        Ok(())
    }

    fn reserve_below(&self, part: &Range<u64>) -> io::Result<()> {
        self.below.reserve(part.start * PAGE_BYTES, (part.end - part.start) * PAGE_BYTES)
    }

    /// Pages are not discardable any more: all or, for want of room, none.
    fn need(&self, range: Range<u64>) -> io::Result<()> {
        let mut given = RangeSet::new();
        loop {
            let lacking = {
                let mut pages = self.pages();
                let lacking = pages.lacking(&range, &given);
                if lacking.is_empty() {
                    pages.roomless.remove(range.clone());
                    pages.discardable.remove(range);
                    return Ok(());
                }
                lacking
            };
            for part in lacking {
                self.reserve_below(&part)?;
                given.insert(part);
            }
        }
    }

    /// Bytes that leave memory or are to be written: those of discardable pages are dropped.
    fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        write: impl Fn(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        let parts = self.pages().split(pages_of(&(offset..end)), |p| &p.discardable);
        for (part, dropped) in parts {
            if dropped {
                self.pages().roomless.remove(part.clone());
                self.dropped.fetch_add(part.end - part.start, Ordering::Relaxed);
                self.below.dropped(part.start * PAGE_BYTES, (part.end - part.start) * PAGE_BYTES);
                continue;
            }
            let from = part.start * PAGE_BYTES;
            let to = (part.end * PAGE_BYTES).min(end);
            write(from, &bytes[(from - offset) as usize..(to - offset) as usize])?;
            let mut pages = self.pages();
            // What became discardable meanwhile is made anew, not read.
            let since: Vec<_> = pages.discardable.overlapping(&part).cloned().collect();
            pages.made.remove(part.clone());
            pages.forget_bytes(&part);
            for page in since {
                pages.made.insert(page.start.max(part.start)..page.end.min(part.end));
            }
        }
        Ok(())
    }
}

impl<S, F> Store for Discardable<S, F>
where
    S: Store,
    F: Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync + 'static,
{
    fn len(&self) -> io::Result<u64> {
        loop {
            let lengths = self.pages().lengths;
            let len = self.below.len()?;
            let mut pages = self.pages();
            // An older one must not be followed last.
            if pages.lengths == lengths {
                // Somebody else may have made it longer.
                pages.follow(len);
                return Ok(len);
            }
        }
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let first = offset / PAGE_BYTES;
        let count = (pages.len() / PAGE) as u64;
        // Before anything is made, which is nothing of what lies behind the end now.
        let end = self.len()?;
        let parts = self.pages().split(first..first + count, |p| &p.made);
        for (part, made) in parts {
            let bytes = (part.start - first) as usize * PAGE..(part.end - first) as usize * PAGE;
            let piece = &mut pages[bytes];
            if made {
                self.make_pages(&part, piece)?;
            } else {
                self.load_below(part.start, end, piece)?;
            }
        }
        Ok(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX).min(pages.len()))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write(offset, bytes, |offset, bytes| self.below.store(offset, bytes))
    }

    fn takes_victims(&self) -> bool {
        self.below.takes_victims()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        if dirty {
            return self
                .write(offset, bytes, |offset, bytes| self.below.retire(offset, bytes, true));
        }
        let end = offset + bytes.len() as u64;
        let parts = self.pages().split(pages_of(&(offset..end)), |p| &p.made);
        for (part, made) in parts {
            let from = part.start * PAGE_BYTES;
            let to = (part.end * PAGE_BYTES).min(end);
            if !made {
                let piece = &bytes[(from - offset) as usize..(to - offset) as usize];
                self.below.retire(from, piece, false)?;
            }
        }
        Ok(())
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        let range = pages_of(&(offset..offset + len));
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            Advice::Discardable => {
                self.len()?;
                let mut pages = self.pages();
                pages.forget_bytes(&range);
                pages.discardable.insert(range.clone());
                pages.made.insert(range);
                Ok(())
            }
            Advice::Needed => self.need(range),
            Advice::WillNeed | Advice::DontNeed => Ok(()),
        }
    }

    fn dropped(&self, offset: u64, len: u64) {
        let range = pages_of(&(offset..offset + len));
        if !range.is_empty() {
            self.pages().roomless.remove(range);
        }
        self.below.dropped(offset, len);
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let parts = {
            let mut pages = self.pages();
            let parts = pages.split(pages_of(&(offset..offset + len)), |p| &p.discardable);
            let dropped = parts.iter().filter(|(_, dropped)| *dropped);
            // They are given room when they are needed.
            dropped.for_each(|(part, _)| pages.roomless.insert(part.clone()));
            parts
        };
        let mut kept = parts.into_iter().filter(|(_, dropped)| !dropped);
        kept.try_for_each(|(part, _)| self.reserve_below(&part))
    }

    fn sparse(&self) -> bool {
        self.below.sparse()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.len()?;
        let last = before / PAGE_BYTES;
        if len > before && self.pages().roomless.contains(&last) {
            // It will be written.
            self.reserve_below(&(last..last + 1))?;
        }
        {
            let mut pages = self.pages();
            pages.lengths += 1;
            if len > before {
                // First: nothing is made where there is something.
                pages.follow(len);
                pages.roomless.remove(last..last + 1);
            }
        }
        let result = self.below.set_len(len);
        self.pages().lengths += 1;
        // If it cannot be asked for now, it is before anything else is done.
        let _ = self.len();
        result
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }
}
