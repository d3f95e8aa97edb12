//! What a trace holds: a header, and records in stream order.

use std::collections::BTreeMap;

/// What is known about a trace as a whole. Holds nothing that depends on the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The program that made the trace, for example `pagekeeper 0.1.0`.
    pub creator: String,
    /// When the trace was begun, in nanoseconds since 1970 (UTC); 0 if unknown.
    pub created_unix_ns: u64,
    /// Bytes in a page, for every page number in the trace. Never 0.
    pub page_bytes: u32,
    /// Free-form attributes. Values may be any bytes (command lines are). Customary keys:
    /// `policy`, `memory_bytes`, `command`, `source_format`, `processors`, and `clock`, whose value
    /// `none` says that the times in the trace mean nothing.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

impl Header {
    /// A header for a trace of pages of `page_bytes`, made at an unknown time.
    pub fn new(page_bytes: u32) -> Self {
        Self {
            creator: concat!("pagekeeper ", env!("CARGO_PKG_VERSION")).to_owned(),
            created_unix_ns: 0,
            page_bytes,
            attributes: BTreeMap::new(),
        }
    }

    /// The same header with one more attribute.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.attributes.insert(key.into(), value.into());
        self
    }

    /// The value of an attribute.
    pub fn attribute(&self, key: &str) -> Option<&[u8]> {
        self.attributes.get(key).map(Vec::as_slice)
    }
}

/// One record of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A process appears.
    Process(Process),
    /// A segment appears.
    Segment(Segment),
    /// A segment has a new size.
    Resize(Resize),
    /// Something became of pages of a heap.
    Extent(Extent),
    /// From here on, references were seen in this way.
    Sampling(Sampling),
    /// A page was touched.
    Reference(Reference),
    /// A page fault was handled.
    Fault(Fault),
    /// The decision code was given an input.
    Input(Input),
    /// A digest of the decisions so far.
    Digest(Digest),
    /// A policy that decides, or a further part of its definition.
    Policy(Policy),
    /// A process had used so much processor time.
    CpuTime(CpuTime),
}

/// A process, under the number that later records call it by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Number within the trace. A program that is executed in the same process gets a new number.
    pub process: u32,
    /// Its process id when it was recorded.
    pub pid: u32,
    /// The number (not the id) of its parent, if that is in the trace.
    pub parent: Option<u32>,
    /// The program's name: any bytes.
    pub name: Vec<u8>,
}

/// A range of pages with a store behind it, under the number that later records call it by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Number within the trace.
    pub segment: u32,
    /// What is behind it.
    pub kind: SegmentKind,
    /// Size in bytes when it appeared; 0 if unknown.
    pub bytes: u64,
    /// A file's path, or another name: any bytes, possibly hostile.
    pub name: Vec<u8>,
}

/// What is behind a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum SegmentKind {
    /// A file.
    File = 0,
    /// Anonymous memory.
    Anonymous = 1,
    /// A program's heap.
    Heap = 2,
    /// Something else, or unknown (most imported traces).
    Other = 3,
}

/// A segment's size changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// The segment.
    pub segment: u32,
    /// Its new size in bytes.
    pub bytes: u64,
}

/// Something became of neighbouring pages of a heap, which are zeros without a read until they are
/// first written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The segment.
    pub segment: u32,
    /// First page.
    pub first: u64,
    /// Number of pages from there on.
    pub pages: u64,
    /// What became of them.
    pub event: ExtentEvent,
}

/// What becomes of pages of a heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ExtentEvent {
    /// They are part of an allocation from now on: worth fetching ahead.
    Allocated = 0,
    /// They are part of none any more: out of memory, unwritten, and zeros if they are used again.
    Freed = 1,
    /// They hold what a forked child has of its parent, on storage.
    Inherited = 2,
    /// Those that were dirty were written out, and stayed in memory (before a fork).
    Stored = 3,
}

/// How references were seen. Until a record says otherwise, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sampling {
    /// Every touch is in the trace.
    #[default]
    Exact,
    /// Touches of the pages that were mapped most recently are not in the trace, because the MMU
    /// served them.
    Window {
        /// How many pages the window holds.
        mapped_pages: u32,
    },
    /// Referenced bits were read every so often: at most one touch a page and interval is in the
    /// trace.
    Interval {
        /// Length of the interval in nanoseconds.
        ns: u64,
    },
}

/// A touch of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reference {
    /// When, in nanoseconds on the recorder's monotonic clock. Threads may race, so that times
    /// need not rise.
    pub time_ns: u64,
    /// Which process.
    pub process: u32,
    /// Which segment.
    pub segment: u32,
    /// Page number within the segment.
    pub page: u64,
    /// Whether the touch was a write.
    pub write: bool,
    /// Whether it was made for the program by a call that copies, such as read(2), and not by the
    /// program itself through a mapping.
    pub by_call: bool,
}

/// A page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When, as in [`Reference::time_ns`].
    pub time_ns: u64,
    /// Which process.
    pub process: u32,
    /// Which segment.
    pub segment: u32,
    /// Page number within the segment.
    pub page: u64,
    /// Of which kind.
    pub kind: FaultKind,
}

/// Kinds of page faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// The page had to be fetched.
    Major,
    /// The page was resident but not mapped.
    Minor,
    /// The first write to a clean page.
    Write,
}

/// An input of the decision code, recorded so that a replay takes the same decisions. The trace
/// gives `code`, `a` and `b` no meaning: that is the recorder's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input {
    /// When, as in [`Reference::time_ns`].
    pub time_ns: u64,
    /// What kind of input.
    pub code: u8,
    /// First argument.
    pub a: u64,
    /// Second argument.
    pub b: u64,
}

/// A digest of every decision that was taken, for a replay to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// How many [`Input`]s of this trace it covers.
    pub after_inputs: u64,
    /// The digest.
    pub value: u64,
}

/// A policy that decides in the recorded run: number 0 from the beginning, others from the input
/// that names them on. What is longer than a record may hold comes in several of one number, in
/// order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Number within the trace.
    pub number: u32,
    /// The policy as it was asked for: any bytes.
    pub name: Vec<u8>,
    /// What makes it what it is, or a part of that; empty for one that is known by its name.
    pub definition: Vec<u8>,
}

/// What a process had used of processors by the time of the next reference or fault of its own,
/// whose time this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuTime {
    /// Which process.
    pub process: u32,
    /// Of all its threads, in the kernel and outside, in nanoseconds since it began.
    pub ns: u64,
}

macro_rules! into_record {
    ($($kind:ident),*) => { $(
        impl From<$kind> for Record {
            fn from(record: $kind) -> Self {
                Self::$kind(record)
            }
        }
    )* };
}
into_record!(
    Process, Segment, Resize, Extent, Sampling, Reference, Fault, Input, Digest, Policy, CpuTime
);
