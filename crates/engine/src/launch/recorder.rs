//! Writes what a run sees into a trace. The engine appends under its lock; a thread of ours
//! compresses and writes.

use crate::engine::core::Log;
use pagekeeper_frames::{Input, Place, Segment};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::process::{self, CpuClock};
use pagekeeper_trace as trace;
use pagekeeper_trace::{TraceError, TraceWriter};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Records handed to the writing thread at a time.
const BATCH_RECORDS: usize = 8192;
/// Batches that may wait before the engine has to.
const BATCHES_WAITING_MAX: usize = 64;

/// A process's clock is looked at so often at the most: a look takes half a microsecond.
const CLOCK_LOOKS_APART_NS: u64 = 100_000;

/// Bytes of a policy's definition in a record.
const DEFINITION_PART_BYTES: usize = 32 << 10;

/// What of a run is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    /// How references were seen.
    pub sampling: trace::Sampling,
    /// Also every input of the brain, for exact replay.
    pub inputs: bool,
}

/// The engine's side: appends to memory, hands batches over.
pub struct Recorder {
    batch: Vec<trace::Record>,
    sender: SyncSender<Vec<trace::Record>>,
    start: Instant,
    content: Content,
    inputs: u64,
    digest: u64,
    known: HashSet<u32>,
    /// Each process seen, by its id.
    processes: HashMap<u32, Process>,
}

/// A process whose references are recorded, or an ancestor of one.
#[derive(Clone, Copy)]
struct Process {
    /// In the trace.
    number: u32,
    /// None of one that is gone.
    clock: Option<CpuClock>,
    /// When its clock was looked at last.
    looked_ns: Option<u64>,
}

/// A recording for which all is there, and of which nothing is in its file yet: what was recorded there
/// before is lost only when it [begins](Self::begin).
pub struct Prepared {
    recorder: Recorder,
    writing: Writing,
    file: File,
    made: Made,
    /// Takes the file to the thread.
    begin: SyncSender<File>,
}

/// A file that was made for a recording; without one, it goes again.
struct Made(Option<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The writing side, to be finished at the end.
pub struct Writing {
    thread: JoinHandle<Result<u64, TraceError>>,
}

/// Prepares to record into a file what happens under a policy.
///
/// # Errors
/// The file cannot be made or opened, the header does not fit, or no thread can be started.
pub fn prepare(
    path: &Path,
    header: trace::Header,
    content: Content,
    policy: &PolicySpec,
) -> Result<Prepared, TraceError> {
    let failed = |source| TraceError::Write { source, offset: 0 };
    // Whether it fits.
    drop(TraceWriter::new(io::sink(), header.clone())?);
    let (file, made) = open(path).map_err(failed)?;
    let (sender, receiver) = sync_channel(BATCHES_WAITING_MAX);
    let (begin, begun) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("pk-recorder".into())
        .spawn(move || match begun.recv() {
            Ok(file) => write_all(file, header, content.sampling, receiver),
            Err(_) => Ok(0),
        })
        .map_err(failed)?;
    let mut recorder = Recorder {
        batch: Vec::with_capacity(BATCH_RECORDS),
        sender,
        start: Instant::now(),
        content,
        inputs: 0,
        digest: 0,
        known: HashSet::new(),
        processes: HashMap::new(),
    };
    recorder.policy(0, policy);
    Ok(Prepared { recorder, writing: Writing { thread }, file, made, begin })
}

/// Opens a file as it is.
fn open(path: &Path) -> io::Result<(File, Made)> {
    let mut options = File::options();
    options.write(true);
    match options.clone().create_new(true).open(path) {
        Ok(file) => Ok((file, Made(Some(path.to_owned())))),
        // Also where a link leads to nothing, at whose end one is made.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((options.create(true).truncate(false).open(path)?, Made(None)))
        }
        Err(error) => Err(error),
    }
}

impl Prepared {
    /// From here on the file is this recording's.
    pub fn begin(mut self) -> (Recorder, Writing) {
        self.made.0 = None;
        // The thread waits for it.
        let _ = self.begin.send(self.file);
        (self.recorder, self.writing)
    }
}

fn write_all(
    file: File,
    header: trace::Header,
    sampling: trace::Sampling,
    receiver: Receiver<Vec<trace::Record>>,
) -> Result<u64, TraceError> {
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if is_regular {
        file.set_len(0).map_err(|source| TraceError::Write { source, offset: 0 })?;
    }
    let mut writer = TraceWriter::new(BufWriter::new(file), header)?;
    writer.sampling(sampling)?;
    let mut records = 0;
    for batch in receiver {
        for record in &batch {
            writer.record(record)?;
        }
        records += batch.len() as u64;
    }
    writer.finish()?;
    Ok(records)
}

impl Writing {
    /// Waits until all is written; call after the recorder was dropped. Returns the records.
    ///
    /// # Errors
    /// The trace could not be written to its end; what came before is readable.
    pub fn finish(self) -> Result<u64, TraceError> {
        self.thread.join().expect("the recording thread does not panic")
    }
}

impl Recorder {
    fn push(&mut self, record: trace::Record) {
        self.batch.push(record);
        if self.batch.len() == BATCH_RECORDS {
            let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_RECORDS));
            // The thread is gone only after a write error, which it reports at the end.
            let _ = self.sender.send(batch);
        }
    }

    /// The process's number; process 0 stands for what is nobody's.
    fn process(&mut self, pid: u32) -> u32 {
        if pid == 0 {
            return 0;
        }
        if let Some(process) = self.processes.get(&pid) {
            return process.number;
        }
        // Those between the manager and it tell who started after whom, referencing or not.
        let parent = process::parent_of(pid).ok();
        let parent = parent.filter(|parent| *parent > 1 && *parent != std::process::id());
        let parent = parent.map(|parent| self.process(parent));
        let number = self.processes.len() as u32 + 1;
        let clock = CpuClock::of(pid).ok();
        self.processes.insert(pid, Process { number, clock, looked_ns: None });
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.push(trace::Record::Process(trace::Process {
            process: number,
            pid,
            parent,
            name: name.trim_ascii_end().to_vec(),
        }));
        // Of one that references nothing itself: what it did to start the other.
        self.record_clock(pid);
        number
    }

    /// Records a process's own time, if it is time to.
    fn look_at_clock(&mut self, time_ns: u64, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let is_soon = |looked_ns| time_ns < looked_ns + CLOCK_LOOKS_APART_NS;
        if process.looked_ns.is_some_and(is_soon) {
            return;
        }
        process.looked_ns = Some(time_ns);
        self.record_clock(pid);
    }

    fn record_clock(&mut self, pid: u32) {
        let Some(process) = self.processes.get(&pid) else { return };
        if let Some(ns) = process.clock.and_then(|clock| clock.used_ns().ok()) {
            let process = process.number;
            self.push(trace::Record::CpuTime(trace::CpuTime { process, ns }));
        }
    }

    fn touch(&mut self, time_ns: u64, process: u32, place: Place, write: bool, by_call: bool) {
        self.push(trace::Record::Reference(trace::Reference {
            time_ns,
            process,
            segment: place.segment.0,
            page: place.index,
            write,
            by_call,
        }));
    }

    fn fault(&mut self, time_ns: u64, process: u32, place: Place, kind: trace::FaultKind) {
        self.push(trace::Record::Fault(trace::Fault {
            time_ns,
            process,
            segment: place.segment.0,
            page: place.index,
            kind,
        }));
    }
}

impl Log for Recorder {
    fn input(&mut self, input: Input, digest: u64, pid: u32) {
        let time_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if self.content.inputs {
            let (code, a, b) = input.encode();
            self.push(trace::Record::Input(trace::Input { time_ns, code, a, b }));
            self.inputs += 1;
            self.digest = digest;
        }
        let process = match input {
            Input::Major { .. } | Input::Touch { .. } | Input::Write { .. } => self.process(pid),
            _ => 0,
        };
        if process != 0 {
            self.look_at_clock(time_ns, pid);
        }
        match input {
            Input::Major { place, want, write, map } => {
                // What a call reads is told page by page when it is copied.
                let seen = if map { u64::from(want) } else { 0 };
                for i in 0..seen {
                    let place = Place { index: place.index + i, ..place };
                    self.touch(time_ns, process, place, write, false);
                }
                self.fault(time_ns, process, place, trace::FaultKind::Major);
            }
            Input::Touch { place, write, map } => {
                self.touch(time_ns, process, place, write, !map);
                if map {
                    self.fault(time_ns, process, place, trace::FaultKind::Minor);
                }
            }
            Input::Write { place } => {
                self.touch(time_ns, process, place, true, false);
                self.fault(time_ns, process, place, trace::FaultKind::Write);
            }
            Input::Segment { segment, pages } if self.known.contains(&segment.0) => {
                let bytes = pages * crate::port::PAGE_BYTES;
                self.push(trace::Record::Resize(trace::Resize { segment: segment.0, bytes }));
            }
            _ => {}
        }
    }

    fn policy(&mut self, number: u32, policy: &PolicySpec) {
        if !self.content.inputs {
            return;
        }
        let name = policy.to_string().into_bytes();
        let definition = policy.definition().unwrap_or_default();
        let parts = definition.chunks(DEFINITION_PART_BYTES);
        // At least one, for a policy that is known by its name.
        let none: &[u8] = &[];
        let first = parts.len().eq(&0).then_some(none);
        for part in first.into_iter().chain(parts) {
            let (name, definition) = (name.clone(), part.to_vec());
            self.push(trace::Record::Policy(trace::Policy { number, name, definition }));
        }
    }

    fn extent(&mut self, segment: Segment, pages: Range<u64>, event: trace::ExtentEvent) {
        let (first, pages) = (pages.start, pages.end - pages.start);
        let segment = segment.0;
        self.push(trace::Record::Extent(trace::Extent { segment, first, pages, event }));
    }

    fn segment(&mut self, segment: Segment, name: &str, bytes: Option<u64>) {
        let kind = match bytes {
            Some(_) => trace::SegmentKind::File,
            None => trace::SegmentKind::Heap,
        };
        // A heap's length is room for growth, and means nothing.
        if bytes.is_some() {
            self.known.insert(segment.0);
        }
        self.push(trace::Record::Segment(trace::Segment {
            segment: segment.0,
            kind,
            bytes: bytes.unwrap_or(0),
            name: name.as_bytes().to_vec(),
        }));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.content.inputs {
            let digest = trace::Digest { after_inputs: self.inputs, value: self.digest };
            self.push(trace::Record::Digest(digest));
        }
        let _ = self.sender.send(std::mem::take(&mut self.batch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn prepared(path: &Path) -> Prepared {
        let sampling = trace::Sampling::Window { mapped_pages: 8 };
        let content = Content { sampling, inputs: false };
        let policy = PolicySpec::parse("lru").unwrap();
        prepare(path, trace::Header::new(4096), content, &policy).unwrap()
    }

    /// Whoever refused to start a program had emptied the recording of the last run.
    #[test]
    fn a_recording_that_does_not_begin_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("old.pkt"), "x".repeat(100_000)).unwrap();
        drop(prepared(&at("old.pkt")));
        drop(prepared(&at("new.pkt")));
        assert_eq!(fs::read(at("old.pkt")).unwrap().len(), 100_000);
        assert!(!at("new.pkt").exists());

        std::os::unix::fs::symlink("end.pkt", at("link.pkt")).unwrap();
        for name in ["old.pkt", "new.pkt", "link.pkt"] {
            let (recorder, writing) = prepared(&at(name)).begin();
            drop(recorder);
            writing.finish().unwrap();
        }
        let read = |name: &str| fs::read(at(name)).unwrap();
        assert!(at("link.pkt").is_symlink());
        assert!(read("old.pkt") == read("new.pkt") && read("old.pkt") == read("end.pkt"));
        trace::TraceReader::new(&read("old.pkt")[..])
            .unwrap()
            .for_each(|record| drop(record.unwrap()));
    }
}
