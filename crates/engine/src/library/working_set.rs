//! The working set, kept from one run of a program to the next.

use crate::library::cache::Cache;
use crate::library::segment::Inner;
use crate::port::FileNo;
use pagekeeper_sys::descriptor::beside_streams;
use pagekeeper_trace::{
    Header, Record, Reference, Segment, SegmentKind, TraceError, TraceReader, TraceWriter,
};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new file beside another, whose name it is to get: nobody else's, whoever saves to the same one.
fn beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let (pid, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{pid}-{number}.new"));
        match File::create_new(&new) {
            // Another process had the number, and was ended while it saved.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((new.into(), beside_streams(made?)?)),
        }
    }
}

/// Whether a file of this name may be replaced: one that is not there, or regular. A device's node, a FIFO or a
/// socket is somebody's who goes on looking for it there, and a rename would put a file in its place.
fn check_replaceable(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let words = format!("{} is no regular file, and is not replaced", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, words))
        }
        // What else is wrong is met again when the file is made.
        _ => Ok(()),
    }
}

/// What is wrong with a file: what the system said, or what it holds. What is to be done about a damaged trace is
/// left out: it is what the command line offers, and a working set is saved anew.
fn of_trace(error: TraceError) -> io::Error {
    match error {
        TraceError::Read { source, .. } | TraceError::Write { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other.without_remedy()),
    }
}

impl Cache {
    /// Writes down which pages are in memory, the one used longest ago first, so that a later run
    /// can begin with them ([`load_working_set`](Self::load_working_set)). The file is a trace, one
    /// reference a page; it appears whole or not at all, in the place of a regular file or link to one.
    /// Returns how many pages there are.
    ///
    /// ```
    /// use pagekeeper::library::{Cache, Options};
    /// # fn main() -> std::io::Result<()> {
    /// # let directory = tempfile::tempdir()?;
    /// # let (data, saved) = (directory.path().join("data"), directory.path().join("hot"));
    /// # std::fs::write(&data, vec![7; 1 << 20])?;
    /// let mut page = [0; 4096];
    /// {
    ///     let cache = Cache::new(256 << 10)?;
    ///     let segment = cache.open(&data, Options::new())?;
    ///     for at in [3u64, 40, 200] {
    ///         segment.read_exact_at(&mut page, at * 4096)?;
    ///     }
    ///     cache.save_working_set(&saved)?;
    /// }
    /// let cache = Cache::new(256 << 10)?;
    /// let segment = cache.open(&data, Options::new())?;
    /// cache.load_working_set(&saved)?;
    /// assert!(segment.attributes(40 * 4096..41 * 4096)?[0].resident);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of writing a file; [`io::ErrorKind::InvalidInput`]: what has the name is no regular file, nor a link
    /// to one; `EOWNERDEAD`: in a forked child.
    pub fn save_working_set(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        self.check_may_wait()?;
        let path = path.as_ref();
        check_replaceable(path)?;
        let (new, file) = beside(path)?;
        let saved = self.write_working_set(file).and_then(|pages| {
            std::fs::rename(&new, path)?;
            Ok(pages)
        });
        if saved.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        saved
    }

    fn write_working_set(&self, file: File) -> io::Result<u64> {
        let pages = self.shared().engine.by_last_use();
        let output = BufWriter::new(file);
        let header = Header::new(self.page_bytes() as u32).with("clock", "none");
        let mut trace = TraceWriter::new(output, header).map_err(of_trace)?;
        let shared = self.shared();
        for (no, inner) in shared.open_segments() {
            let Some(inner) = shared.visits.begin(no, &inner) else { continue };
            let segment = Segment {
                segment: no,
                kind: SegmentKind::File,
                bytes: inner.len(),
                name: inner.name().into_bytes(),
            };
            trace.segment(&segment).map_err(of_trace)?;
        }
        for place in &pages {
            let reference = Reference {
                time_ns: 0,
                process: 0,
                segment: place.segment.0,
                page: place.index,
                write: false,
                by_call: false,
            };
            trace.reference(reference).map_err(of_trace)?;
        }
        let output = trace.finish().map_err(of_trace)?;
        output.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(pages.len() as u64)
    }

    /// Brings pages in that were written down, of segments that are open now, as they are named
    /// now; if not all fit, those that were used last. Neighbours come together. Any trace of pages
    /// of this size will do. Returns how many pages are in memory because of it.
    ///
    /// # Errors
    /// Those of reading a file, or `InvalidData`: it is no trace, or of pages of another size;
    /// `EOWNERDEAD`: in a forked child. (What is not there any more, or cannot be read, is passed over.)
    pub fn load_working_set(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        self.check_may_wait()?;
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let input = BufReader::new(beside_streams(File::open(path)?)?);
        let mut trace = TraceReader::new(input).map_err(of_trace)?;
        if u64::from(trace.header().page_bytes) != self.page_bytes() {
            return Err(invalid(format!("pages of {} bytes", trace.header().page_bytes)));
        }
        let shared = self.shared();
        let visit = |segment: &(FileNo, Weak<Inner>)| shared.visits.begin(segment.0, &segment.1);
        // With the pages that each has.
        let mut by_name = HashMap::new();
        for segment in shared.open_segments() {
            let Some(inner) = visit(&segment) else { continue };
            let (name, pages) = (inner.name(), inner.len().div_ceil(self.page_bytes()));
            drop(inner);
            by_name.insert(name, (segment, pages));
        }
        let mut numbers = HashMap::new();
        // The last use of each page, in order.
        let mut last: HashMap<(u32, u64), u64> = HashMap::new();
        let mut count = 0u64;
        while let Some(record) = trace.next_record().map_err(of_trace)? {
            match record {
                Record::Segment(segment) => {
                    if let Some(named) = by_name.get(&*String::from_utf8_lossy(&segment.name)) {
                        numbers.insert(segment.segment, named);
                    }
                }
                Record::Reference(reference) => {
                    let known = numbers.get(&reference.segment);
                    if known.is_some_and(|(_, pages)| reference.page < *pages) {
                        last.insert((reference.segment, reference.page), count);
                        count += 1;
                    }
                }
                _ => {}
            }
        }
        let mut pages: Vec<((u32, u64), u64)> = last.into_iter().collect();
        pages.sort_unstable_by_key(|(_, when)| std::cmp::Reverse(*when));
        pages.truncate(shared.engine.free_to_use() as usize);
        let mut pages: Vec<(u32, u64)> = pages.into_iter().map(|(page, _)| page).collect();
        pages.sort_unstable();
        let mut brought = 0;
        let runs = pages.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1);
        for run in runs {
            let Some(inner) = visit(&numbers[&run[0].0].0) else { continue };
            let end = run[0].1 + run.len() as u64;
            let come = (run[0].1..end).filter(|&index| inner.bring_in(index, end - index));
            brought += come.count() as u64;
        }
        Ok(brought)
    }
}
