//! Logged write-back: a write-ahead log before a store.
//!
//! The log is a store of its own, written from its start on:
//!
//! ```text
//! page 0, 1   heads: magic, epoch, checksum; the valid one with the higher epoch counts
//! from 2 on   batches: the pages of a batch as they came, then its descriptor
//! descriptor  magic, epoch, number of the batch, where it begins, where this stands, then
//!             for each write: kind, checksum of its bytes, offset, length; a checksum of all that
//! ```
//!
//! A write is bytes, a length of the whole, or nothing: bytes that were taken back, after a flush had failed.
//!
//! A batch is one flush's worth of writes. Its pages are appended as they come; its descriptor,
//! and one `sync` of the log, make it durable. Only then may its pages go in place, which they do
//! together, when the log has grown long: a *checkpoint*, after which the log begins a new epoch.
//! The other head is written and synced before anything of the old epoch is overwritten.
//!
//! Recovery applies the epoch's batches in order, up to the first whose descriptor or bytes do not
//! match their checksums: that one was not durable, so nobody was told of it. It may be done twice.

use crate::library::caught::Caught;
use crate::library::process::Maker;
use crate::library::segment::{Advice, pages_of};
use crate::library::store::Store;
use crate::library::stores::{load_known, load_within};
use crate::port::PAGE_BYTES;
use pagekeeper_sys::Errno;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{RwLock, RwLockWriteGuard};

const PAGE: usize = PAGE_BYTES as usize;
const HEAD_MAGIC: u64 = u64::from_le_bytes(*b"pkLogHd1");
const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"pkLogBt1");
/// Where the first batch of an epoch begins.
const FIRST: u64 = 2 * PAGE_BYTES;
/// The log grows by so much at a time.
const GROW_BYTES: u64 = 1 << 20;
/// Bytes that a checkpoint or a recovery copies at a time.
const COPY_BYTES: usize = 1 << 20;
/// Words at the start of a descriptor: magic, epoch, batch, begin, place, records, checksum.
const DESCRIPTOR_WORDS: usize = 7;
/// Words of a record: kind and checksum, offset, length.
const RECORD_WORDS: usize = 3;
const CHECKSUM_WORD: usize = 6;

/// What one write of a batch was.
#[derive(Clone, Copy, Debug)]
enum Record {
    /// Bytes from a page on. What is left of a write of which a part was taken back has no checksum yet.
    Bytes { offset: u64, len: u64, checksum: Option<u32> },
    /// The length became this, which cut something off or not.
    Length { len: u64, cuts: bool },
    /// So many bytes of the log that do not count.
    Nothing(u64),
}

impl Record {
    /// What it takes of the log.
    fn log_bytes(&self) -> u64 {
        match self {
            Record::Bytes { len, .. } => len.next_multiple_of(PAGE_BYTES),
            Record::Length { .. } => 0,
            Record::Nothing(len) => *len,
        }
    }

    fn words(&self) -> [u64; RECORD_WORDS] {
        match *self {
            Record::Bytes { offset, len, checksum } => {
                let checksum = checksum.expect("it was summed up");
                [u64::from(checksum) << 8, offset, len]
            }
            Record::Length { len, .. } => [1, 0, len],
            Record::Nothing(len) => [2, 0, len],
        }
    }

    fn of(words: &[u64]) -> Option<Record> {
        match (words[0] as u8, words[1], words[2]) {
            (0, offset, len) => {
                Some(Record::Bytes { offset, len, checksum: Some((words[0] >> 8) as u32) })
            }
            (1, _, len) => Some(Record::Length { len, cuts: true }),
            (2, _, len) => Some(Record::Nothing(len)),
            _ => None,
        }
    }

    /// Puts down what is left of it without some pages.
    fn without(self, taken: &BTreeMap<u64, Option<Place>>, records: &mut Vec<Record>) {
        let Record::Bytes { offset, len, .. } = self else { return records.push(self) };
        let pages = pages_of(&(offset..offset + len));
        if taken.range(pages.clone()).next().is_none() {
            return records.push(self);
        }
        for page in pages {
            let from = page * PAGE_BYTES;
            let bytes = PAGE_BYTES.min(offset + len - from);
            match (taken.contains_key(&page), records.last_mut()) {
                (true, Some(Record::Nothing(len))) => *len += PAGE_BYTES,
                (true, _) => records.push(Record::Nothing(PAGE_BYTES)),
                (false, Some(Record::Bytes { offset, len, checksum: None }))
                    if *offset + *len == from =>
                {
                    *len += bytes;
                }
                _ => records.push(Record::Bytes { offset: from, len: bytes, checksum: None }),
            }
        }
    }
}

/// Where the newest content of a page is in the log.
#[derive(Clone, Copy, Debug)]
struct Place {
    position: u64,
    len: u64,
}

#[derive(Debug)]
struct State {
    epoch: u64,
    /// Number of the batch that is being made.
    batch: u64,
    /// Where it begins, and where it is to be continued.
    begin: u64,
    end: u64,
    records: Vec<Record>,
    /// Pages that are in the log, committed or not.
    pages: BTreeMap<u64, Place>,
    /// Those that are in this batch, and where they were in the log before, if they were.
    earlier: BTreeMap<u64, Option<Place>>,
    /// Somebody was told that this batch is not durable.
    has_failed: bool,
    /// Pages whose write failed, and with what: the batch lacks them.
    failed: BTreeMap<u64, i32>,
    /// Everything goes in place when this batch is committed, however short the log is.
    checkpoint_due: bool,
    /// The epoch's head is not durable yet: what lies behind it must not be overwritten.
    head_due: bool,
    /// A sync failed: what was written since the last one may be lost by storage, which need not
    /// say so a second time.
    doubtful: bool,
    /// Length of the whole, and the shortest since the last checkpoint: what lies behind that in
    /// the store below is old.
    len: u64,
    len_min: u64,
}

impl State {
    /// Whether something was written since the last flush, or was to be.
    fn is_within_batch(&self) -> bool {
        !self.records.is_empty() || !self.failed.is_empty()
    }

    /// What this batch has of some pages is not to become durable: they are as they were before.
    fn take_back(&mut self, pages: Range<u64>) {
        let taken: BTreeMap<_, _> = self.earlier.extract_if(pages, |_, _| true).collect();
        if taken.is_empty() {
            return;
        }
        for (page, earlier) in &taken {
            match earlier {
                Some(place) => self.pages.insert(*page, *place),
                None => self.pages.remove(page),
            };
        }
        for record in std::mem::take(&mut self.records) {
            record.without(&taken, &mut self.records);
        }
    }
}

/// A store whose writes are logged before they go in place.
///
/// Each [`Segment::flush`] makes what was written since the last one durable as a whole: after a
/// crash the store below has, once it was [opened](Self::open) again, all of a flush or nothing of
/// it. (Pages that are evicted between two flushes wait in the log for the next.) A flush that
/// reports an error made nothing durable: what it was to write is so with the next that succeeds, all
/// together, but for what was [discarded](crate::library::Segment::discard) meanwhile: that is as it was
/// before, also what of it had reached the log. A segment that is closed is flushed, unless it is
/// written [on commit](crate::library::WriteBack::OnCommit) only.
///
/// What leaves memory dirty goes to the log. What leaves it clean is handed to a store below that [takes
/// victims](Store::takes_victims) ([`Compressed`](crate::library::Compressed)), unless its content is in
/// the log still: the store below has an older one. And the store below is not told of pages that are
/// [discardable](Advice::Discardable) (`EOPNOTSUPP`): it would forget at once, before the flush that
/// goes with it is durable, what an earlier flush had made so. [`Discardable`] goes above a log, which
/// then never hears of what is dropped.
///
/// Both stores are this one's alone. The log is as long as what is written between two checkpoints;
/// when it can grow no more, flushes fail with its error, and the pages stay in memory. (That pages cannot
/// go in place fails no flush, as long as the log can grow.) For each
/// page in the log some fifty bytes say where it is, and as many, until it is durable, where it was; the
/// cache's budget does not count them.
///
/// ```
/// use pagekeeper::library::{Cache, FileStore, Logged};
/// # fn main() -> std::io::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// let file = |name: &str, len: u64| -> std::io::Result<FileStore> {
///     let path = directory.path().join(name);
///     let file = std::fs::File::options().read(true).write(true).create(true).open(path)?;
///     file.set_len(len)?;
///     FileStore::new(&file, true)
/// };
/// {
///     let accounts = Logged::open(file("accounts", 1 << 20)?, file("log", 0)?, 16 << 20)?;
///     let cache = Cache::new(256 << 10)?;
///     let segment = cache.open_store(accounts, "accounts")?;
///     segment.write_all_at(b"-100", 0)?;
///     segment.write_all_at(b"+100", 500_000)?;
///     segment.flush()?; // both, or neither
/// }
/// // At the next start what the log holds goes in place.
/// drop(Logged::open(file("accounts", 1 << 20)?, file("log", 0)?, 16 << 20));
/// # Ok(())
/// # }
/// ```
///
/// [`Segment::flush`]: crate::library::Segment::flush
/// [`Discardable`]: crate::library::Discardable
#[derive(Debug)]
pub struct Logged<S, L> {
    below: Caught<S>,
    log: Caught<L>,
    checkpoint_bytes: u64,
    state: RwLock<State>,
    maker: Maker,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"))
}

fn put_words(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
}

/// A buffer of whole pages: direct I/O wants them aligned, which the store sees to.
fn load(store: &impl Store, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let had = load_known(store, u64::MAX, offset, bytes)?;
    bytes[had..].fill(0);
    Ok(())
}

fn head(epoch: u64) -> Vec<u8> {
    let mut page = Vec::with_capacity(PAGE);
    put_words(&mut page, &[HEAD_MAGIC, epoch]);
    let checksum = crc32fast::hash(&page);
    put_words(&mut page, &[u64::from(checksum)]);
    page.resize(PAGE, 0);
    page
}

/// The epoch of a head, if it is one.
fn epoch_of(page: &[u8]) -> Option<u64> {
    let sound =
        word(page, 0) == HEAD_MAGIC && word(page, 2) == u64::from(crc32fast::hash(&page[..16]));
    sound.then(|| word(page, 1))
}

impl<S: Store, L: Store> Logged<S, L> {
    /// Opens a store and its log, which may be empty; what the log holds of complete batches goes
    /// in place first. Pages go in place whenever the log is longer than `checkpoint_bytes`.
    ///
    /// # Errors
    /// The stores' own; `InvalidData`: the log is no log.
    pub fn open(below: S, log: L, checkpoint_bytes: u64) -> io::Result<Logged<S, L>> {
        let (below, log) = (Caught::new(below), Caught::new(log));
        let log_len = log.len()?;
        let mut epoch = 0;
        if log_len > 0 {
            let mut heads = vec![0; 2 * PAGE];
            load(&log, 0, &mut heads)?;
            let newest = heads.chunks(PAGE).filter_map(epoch_of).max();
            if newest.is_none() && was_begun(&log, &heads, log_len)? {
                let text = "the log has no sound head";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if let Some(newest) = newest {
                epoch = newest;
                recover(&below, &log, epoch, log_len)?;
            }
        }
        let len = below.len()?;
        let state = State {
            epoch,
            batch: 0,
            begin: FIRST,
            end: FIRST,
            records: Vec::new(),
            pages: BTreeMap::new(),
            earlier: BTreeMap::new(),
            has_failed: false,
            failed: BTreeMap::new(),
            checkpoint_due: false,
            head_due: false,
            doubtful: false,
            len,
            len_min: len,
        };
        let (state, maker) = (RwLock::new(state), Maker::new());
        let logged = Logged { below, log, checkpoint_bytes, state, maker };
        logged.begin_epoch(&mut logged.write_state())?;
        Ok(logged)
    }

    /// The store below.
    pub fn below(&self) -> &S {
        &self.below.store
    }

    /// Bytes of the log that are in use; 0 in a forked child.
    pub fn log_bytes(&self) -> u64 {
        if self.maker.is_here() { self.state.read().expect("state").end } else { 0 }
    }

    /// Puts what was flushed in place, and makes it durable there. What was written since the last flush
    /// is not made durable by this: where some of that has come to the log already, everything goes in
    /// place at the end of the next flush.
    ///
    /// # Errors
    /// The stores'; `EOWNERDEAD`: in a forked child.
    pub fn checkpoint(&self) -> io::Result<()> {
        self.maker.check()?;
        let mut state = self.write_state();
        if state.is_within_batch() {
            state.checkpoint_due = true;
            return Ok(());
        }
        self.put_in_place(&mut state)
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("state")
    }

    /// What the log holds is needed no more.
    fn begin_epoch(&self, state: &mut State) -> io::Result<()> {
        state.epoch += 1;
        (state.batch, state.begin, state.end) = (0, FIRST, FIRST);
        state.pages.clear();
        state.len_min = state.len;
        state.checkpoint_due = false;
        state.head_due = true;
        self.write_head(state)
    }

    /// Before anything is written: from here on the epoch before does not count.
    fn write_head(&self, state: &mut State) -> io::Result<()> {
        if state.head_due {
            self.make_room(FIRST)?;
            self.log.store(state.epoch % 2 * PAGE_BYTES, &head(state.epoch))?;
            self.log.sync()?;
            state.head_due = false;
        }
        Ok(())
    }

    /// Writes again what a failed sync may have lost.
    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        let mut at = state.begin;
        let mut buffer = vec![0; COPY_BYTES];
        while state.doubtful && at < state.end {
            let bytes = &mut buffer[..(state.end - at).min(COPY_BYTES as u64) as usize];
            load(&self.log, at, bytes)?;
            self.log.store(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn make_room(&self, end: u64) -> io::Result<()> {
        let len = self.log.len()?;
        if end <= len {
            return Ok(());
        }
        let round = end.next_multiple_of(GROW_BYTES);
        self.log.set_len(round).or_else(|_| self.log.set_len(end))
    }

    /// Appends to the log; padded to whole pages.
    fn append(&self, state: &mut State, bytes: &[u8]) -> io::Result<u64> {
        self.write_head(state)?;
        let position = state.end;
        let end = position + (bytes.len() as u64).next_multiple_of(PAGE_BYTES);
        self.make_room(end)?;
        let whole = bytes.len() / PAGE * PAGE;
        if whole > 0 {
            self.log.store(position, &bytes[..whole])?;
        }
        if whole < bytes.len() {
            let mut last = vec![0; PAGE];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.log.store(position + whole as u64, &last)?;
        }
        state.end = end;
        Ok(position)
    }

    fn add(&self, state: &mut State, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let position = self.append(state, bytes)?;
        let (len, checksum) = (bytes.len() as u64, Some(crc32fast::hash(bytes)));
        state.records.push(Record::Bytes { offset, len, checksum });
        for (i, page) in bytes.chunks(PAGE).enumerate() {
            let place = Place { position: position + (i * PAGE) as u64, len: page.len() as u64 };
            let page = offset / PAGE_BYTES + i as u64;
            let earlier = state.pages.insert(page, place);
            state.earlier.entry(page).or_insert(earlier);
        }
        Ok(())
    }

    /// Makes the batch durable.
    fn commit(&self, state: &mut State) -> io::Result<()> {
        let result = self.try_to_commit(state);
        state.has_failed = result.is_err();
        result
    }

    /// Sums up what is left of writes of which a part was taken back.
    fn sum_up(&self, state: &mut State) -> io::Result<()> {
        let mut at = state.begin;
        for record in &mut state.records {
            let log_bytes = record.log_bytes();
            if let Record::Bytes { len, checksum: checksum @ None, .. } = record {
                let mut bytes = vec![0; log_bytes as usize];
                load(&self.log, at, &mut bytes)?;
                *checksum = Some(crc32fast::hash(&bytes[..*len as usize]));
            }
            at += log_bytes;
        }
        Ok(())
    }

    fn try_to_commit(&self, state: &mut State) -> io::Result<()> {
        if let Some(error) = state.failed.values().next() {
            // It lacks pages, and is complete when they are written.
            return Err(io::Error::from_raw_os_error(*error));
        }
        if state.records.is_empty() {
            return Ok(());
        }
        self.rewrite(state)?;
        self.sum_up(state)?;
        let mut descriptor = Vec::new();
        let count = state.records.len() as u64;
        put_words(
            &mut descriptor,
            &[BATCH_MAGIC, state.epoch, state.batch, state.begin, state.end, count, 0],
        );
        state.records.iter().for_each(|record| put_words(&mut descriptor, &record.words()));
        let checksum = u64::from(crc32fast::hash(&descriptor));
        descriptor[CHECKSUM_WORD * 8..][..8].copy_from_slice(&checksum.to_le_bytes());
        let end = state.end;
        let durable = self.append(state, &descriptor).and_then(|_| self.log.sync());
        state.doubtful = durable.is_err();
        if let Err(error) = durable {
            // The descriptor may be there or not; the next try writes it again, perhaps further on. If there
            // is none, because what was to be committed is discarded, it is not to be found.
            let _ = self.log.store(end, &[0; PAGE]);
            state.end = end;
            return Err(error);
        }
        state.batch += 1;
        state.begin = state.end;
        state.records.clear();
        state.earlier.clear();
        Ok(())
    }

    /// Puts all that is committed in place; nothing else may be in the log.
    fn put_in_place(&self, state: &mut State) -> io::Result<()> {
        if state.end == FIRST {
            return Ok(());
        }
        if state.len_min < self.below.len()? {
            self.below.set_len(state.len_min)?;
        }
        if state.len != self.below.len()? {
            self.below.set_len(state.len)?;
        }
        let mut buffer = vec![0; COPY_BYTES];
        let mut pages = state.pages.iter().peekable();
        while let Some((&first, &place)) = pages.next() {
            // Pages that are neighbours here and there go together.
            let mut len = place.len;
            while let Some(&(&number, next)) = pages.peek()
                && number * PAGE_BYTES == first * PAGE_BYTES + len
                && next.position == place.position + len
                && len + next.len <= COPY_BYTES as u64
            {
                len += next.len;
                pages.next();
            }
            let bytes = &mut buffer[..(len as usize).next_multiple_of(PAGE)];
            load(&self.log, place.position, bytes)?;
            self.below.store(first * PAGE_BYTES, &bytes[..len as usize])?;
        }
        self.below.sync()?;
        self.begin_epoch(state)
    }
}

/// Whether a log without a sound head once had one: of a first head that was never durable there is
/// one page at most, and nothing behind it.
fn was_begun(log: &impl Store, heads: &[u8], log_len: u64) -> io::Result<bool> {
    let written = |page: &[u8]| page.iter().any(|byte| *byte != 0);
    let mut first = vec![0; PAGE];
    if log_len > FIRST {
        load(log, FIRST, &mut first)?;
    }
    Ok(written(&first) || heads.chunks(PAGE).all(written))
}

/// Puts the complete batches of an epoch in place.
fn recover(below: &impl Store, log: &impl Store, epoch: u64, log_len: u64) -> io::Result<()> {
    let mut begin = FIRST;
    let mut found = false;
    for batch in 0.. {
        let Some((end, records)) = find_batch(log, epoch, batch, begin, log_len)? else { break };
        let mut position = begin;
        for record in records {
            match record {
                Record::Length { len, .. } => below.set_len(len)?,
                Record::Nothing(_) => {}
                Record::Bytes { offset, len, .. } => {
                    let mut bytes = vec![0; record.log_bytes() as usize];
                    load(log, position, &mut bytes)?;
                    if below.len()? < offset + len {
                        below.set_len(offset + len)?;
                    }
                    below.store(offset, &bytes[..len as usize])?;
                }
            }
            position += record.log_bytes();
        }
        found = true;
        begin = end;
    }
    if found { below.sync() } else { Ok(()) }
}

/// The batch that begins here, if it is complete: where it ends, and its writes.
fn find_batch(
    log: &impl Store,
    epoch: u64,
    batch: u64,
    begin: u64,
    log_len: u64,
) -> io::Result<Option<(u64, Vec<Record>)>> {
    let mut page = vec![0; PAGE];
    let mut at = begin;
    while at + PAGE_BYTES <= log_len {
        load(log, at, &mut page)?;
        let words: [u64; DESCRIPTOR_WORDS] = std::array::from_fn(|i| word(&page, i));
        if words[..5] == [BATCH_MAGIC, epoch, batch, begin, at] {
            // A page of a program's own may look like one, but not with this place in it.
            return complete(log, begin, at, words[5], words[CHECKSUM_WORD], log_len);
        }
        at += PAGE_BYTES;
    }
    Ok(None)
}

fn complete(
    log: &impl Store,
    begin: u64,
    at: u64,
    count: u64,
    checksum: u64,
    log_len: u64,
) -> io::Result<Option<(u64, Vec<Record>)>> {
    let Some(words) = count.checked_mul(RECORD_WORDS as u64).filter(|w| *w < log_len) else {
        return Ok(None);
    };
    let len = (DESCRIPTOR_WORDS as u64 + words) * 8;
    let end = at + len.next_multiple_of(PAGE_BYTES);
    if end > log_len {
        return Ok(None);
    }
    let mut descriptor = vec![0; (end - at) as usize];
    load(log, at, &mut descriptor)?;
    let descriptor = &mut descriptor[..len as usize];
    descriptor[CHECKSUM_WORD * 8..][..8].fill(0);
    if u64::from(crc32fast::hash(descriptor)) != checksum {
        return Ok(None);
    }
    let mut records = Vec::new();
    let mut position = begin;
    for words in descriptor[DESCRIPTOR_WORDS * 8..].chunks_exact(RECORD_WORDS * 8) {
        let words: [u64; RECORD_WORDS] = std::array::from_fn(|i| word(words, i));
        let Some(record) = Record::of(&words) else { return Ok(None) };
        if position + record.log_bytes() > at {
            return Ok(None);
        }
        if let Record::Bytes { len, checksum, .. } = record {
            let mut bytes = vec![0; record.log_bytes() as usize];
            load(log, position, &mut bytes)?;
            if checksum != Some(crc32fast::hash(&bytes[..len as usize])) {
                return Ok(None);
            }
        }
        position += record.log_bytes();
        records.push(record);
    }
    Ok(Some((end, records)))
}

impl<S: Store, L: Store> Store for Logged<S, L> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.read().expect("state").len)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        // Held while it reads: a checkpoint must not begin a new epoch meanwhile.
        let state = self.state.read().expect("state");
        let first = offset / PAGE_BYTES;
        let count = (pages.len() / PAGE) as u64;
        let logged = state.pages.range(first..first + count);
        if (logged.clone().count() as u64) < count {
            // A length that is in the log only is not the store's below.
            load_within(&self.below, state.len_min, offset, pages)?;
            // What was cut off since the last checkpoint is there still.
            let sound = state.len_min.saturating_sub(offset).min(pages.len() as u64) as usize;
            pages[sound..].fill(0);
        }
        for (number, place) in logged {
            let at = (number - first) as usize * PAGE;
            let page = &mut pages[at..at + PAGE];
            load(&self.log, place.position, page)?;
            page[place.len as usize..].fill(0);
        }
        let len = state.len.saturating_sub(offset);
        Ok(usize::try_from(len).unwrap_or(usize::MAX).min(pages.len()))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.write_state();
        let added = self.add(&mut state, offset, bytes);
        for page in pages_of(&(offset..offset + bytes.len() as u64)) {
            match &added {
                Ok(()) => state.failed.remove(&page),
                Err(error) => {
                    let error = error.raw_os_error().unwrap_or(libc::EIO);
                    state.failed.insert(page, error)
                }
            };
        }
        added
    }

    fn takes_victims(&self) -> bool {
        self.below.takes_victims()
    }

    fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
        if dirty {
            return self.store(offset, bytes);
        }
        // Held meanwhile: a checkpoint must not put another content in place while the store below is
        // told that it has this one.
        let state = self.state.read().expect("state");
        let end = offset + bytes.len() as u64;
        let pages = pages_of(&(offset..end));
        let mut from = pages.start;
        let logged = state.pages.range(pages.clone()).map(|(number, _)| *number);
        for to in logged.chain([pages.end]) {
            // Behind its shortest length the store below has what was cut off, or nothing yet.
            let (first, last) = (from * PAGE_BYTES, (to * PAGE_BYTES).min(end));
            let last =
                if last > state.len_min { state.len_min / PAGE_BYTES * PAGE_BYTES } else { last };
            if first < last {
                let piece = &bytes[(first - offset) as usize..(last - offset) as usize];
                self.below.retire(first, piece, false)?;
            }
            from = to + 1;
        }
        Ok(())
    }

    fn advise(&self, offset: u64, len: u64, advice: Advice) -> io::Result<()> {
        match advice {
            Advice::WillNeed | Advice::DontNeed => self.below.advise(offset, len, advice),
            // See the words at the type.
            Advice::Discardable | Advice::Needed => Err(Errno::OPNOTSUPP.into()),
        }
    }

    fn dropped(&self, offset: u64, len: u64) {
        let pages = pages_of(&(offset..offset + len));
        let mut state = self.write_state();
        // Otherwise what is in the log was written back as any other store is written, and stays.
        if !pages.is_empty() && (state.has_failed || !state.failed.is_empty()) {
            state.take_back(pages.clone());
        }
        state.failed.retain(|page, _| !pages.contains(page));
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.write_state();
        // Whether its length can change at all is to be known now, not at some checkpoint.
        self.below.set_len(self.below.len()?)?;
        let cuts = len < state.len;
        match state.records.last_mut() {
            // Appends follow each other. What a cut took away must not come back.
            Some(Record::Length { len: last, cuts: false }) if !cuts => *last = len,
            _ => state.records.push(Record::Length { len, cuts }),
        }
        let end = len.div_ceil(PAGE_BYTES);
        state.pages.split_off(&end);
        state.earlier.split_off(&end);
        state.failed.split_off(&end);
        let last = len / PAGE_BYTES;
        let State { pages, earlier, .. } = &mut *state;
        let earlier = earlier.get_mut(&last).and_then(Option::as_mut);
        for place in [pages.get_mut(&last), earlier].into_iter().flatten() {
            place.len = place.len.min(len % PAGE_BYTES);
        }
        state.len = len;
        state.len_min = state.len_min.min(len);
        Ok(())
    }

    /// Makes what was stored since the last time durable, as a whole.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.write_state();
        self.commit(&mut state)?;
        if state.end > self.checkpoint_bytes || state.checkpoint_due {
            // It is durable in the log, from where the next flush tries again.
            let _ = self.put_in_place(&mut state);
        }
        Ok(())
    }
}
