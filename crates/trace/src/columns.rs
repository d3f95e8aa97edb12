//! The content of a block of records, in columns, so that like stands by like and compresses.
//!
//! Every block starts from the same state, so that each can be decoded on its own. The layout is
//! described in `docs/trace-format.md`.

use std::collections::HashMap;

use crate::frame::NAME_BYTES_MAX;
use crate::record::{
    CpuTime, Digest, Extent, ExtentEvent, Fault, FaultKind, Input, Policy, Process, Record,
    Reference, Resize, Sampling, Segment, SegmentKind,
};
use crate::varint::{self, Cursor, Malformed};

// What an operation byte says, in its low four bits.
const PROCESS: u8 = 0;
const SEGMENT: u8 = 1;
const RESIZE: u8 = 2;
const SAMPLING: u8 = 3;
const READ: u8 = 4;
const WRITE: u8 = 5;
const MAJOR_FAULT: u8 = 6;
const MINOR_FAULT: u8 = 7;
const WRITE_FAULT: u8 = 8;
const INPUT: u8 = 9;
const DIGEST: u8 = 10;
const POLICY: u8 = 11;
const EXTENT: u8 = 12;
const CPU_TIME: u8 = 13;
const KIND_BITS: u8 = 0x0f;
/// The process is the one of the reference or fault before, and is not in its column.
const SAME_PROCESS: u8 = 0x10;
/// The segment is the one of the reference or fault before, and is not in its column.
const SAME_SEGMENT: u8 = 0x20;
/// The reference was made by a call.
const BY_CALL: u8 = 0x40;

// Which column is where.
const OPERATIONS: usize = 0;
const TIMES: usize = 1;
const PROCESSES: usize = 2;
const SEGMENTS: usize = 3;
const PAGES: usize = 4;
const INPUT_CODES: usize = 5;
const INPUT_A: usize = 6;
const INPUT_B: usize = 7;
const REST: usize = 8;
const COLUMNS: usize = 9;

/// The numbers that the next record is told apart from.
struct State {
    time_ns: u64,
    process: u32,
    /// Index of the current segment in the block's own list, and its id.
    segment: Option<(usize, u32)>,
    /// Id of each segment of the block's own list, in order of first appearance, and the page in
    /// it that was named last.
    segments: Vec<(u32, u64)>,
    /// Arguments of the last input of each code.
    inputs: Box<[(u64, u64); 256]>,
}

impl State {
    fn new() -> Self {
        Self {
            time_ns: 0,
            process: 0,
            segment: None,
            segments: Vec::new(),
            inputs: Box::new([(0, 0); 256]),
        }
    }

    fn clear(&mut self) {
        self.time_ns = 0;
        self.process = 0;
        self.segment = None;
        self.segments.clear();
        self.inputs.fill((0, 0));
    }
}

/// Gathers records into columns.
pub(crate) struct Encoder {
    columns: [Vec<u8>; COLUMNS],
    state: State,
    /// Index of each segment in the block's own list.
    segment_index: HashMap<u32, usize>,
    references: u32,
    first_time_ns: Option<u64>,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            columns: Default::default(),
            state: State::new(),
            segment_index: HashMap::new(),
            references: 0,
            first_time_ns: None,
        }
    }

    /// Number of records gathered.
    pub(crate) fn records(&self) -> u32 {
        self.columns[OPERATIONS].len() as u32
    }

    /// Number of references among them.
    pub(crate) fn references(&self) -> u32 {
        self.references
    }

    /// Time of the first record that has one, or 0.
    pub(crate) fn first_time_ns(&self) -> u64 {
        self.first_time_ns.unwrap_or(0)
    }

    /// Bytes gathered.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Appends the content of the block to `out`, and starts the next.
    pub(crate) fn drain_into(&mut self, out: &mut Vec<u8>) {
        for column in &self.columns {
            varint::put(out, column.len() as u64);
        }
        for column in &mut self.columns {
            out.extend_from_slice(column);
            column.clear();
        }
        self.state.clear();
        self.segment_index.clear();
        self.references = 0;
        self.first_time_ns = None;
    }

    pub(crate) fn process(&mut self, process: u32, pid: u32, parent: Option<u32>, name: &[u8]) {
        self.columns[OPERATIONS].push(PROCESS);
        let rest = &mut self.columns[REST];
        varint::put(rest, u64::from(process));
        varint::put(rest, u64::from(pid));
        varint::put(rest, parent.map_or(0, |parent| u64::from(parent) + 1));
        varint::put_text(rest, name);
    }

    pub(crate) fn segment(&mut self, segment: u32, kind: SegmentKind, bytes: u64, name: &[u8]) {
        self.columns[OPERATIONS].push(SEGMENT);
        let rest = &mut self.columns[REST];
        varint::put(rest, u64::from(segment));
        rest.push(kind as u8);
        varint::put(rest, bytes);
        varint::put_text(rest, name);
    }

    pub(crate) fn resize(&mut self, resize: Resize) {
        self.columns[OPERATIONS].push(RESIZE);
        varint::put(&mut self.columns[REST], u64::from(resize.segment));
        varint::put(&mut self.columns[REST], resize.bytes);
    }

    pub(crate) fn extent(&mut self, extent: Extent) {
        self.columns[OPERATIONS].push(EXTENT);
        let rest = &mut self.columns[REST];
        varint::put(rest, u64::from(extent.segment));
        rest.push(extent.event as u8);
        varint::put(rest, extent.first);
        varint::put(rest, extent.pages);
    }

    pub(crate) fn cpu_time(&mut self, cpu_time: CpuTime) {
        self.columns[OPERATIONS].push(CPU_TIME);
        varint::put(&mut self.columns[REST], u64::from(cpu_time.process));
        varint::put(&mut self.columns[REST], cpu_time.ns);
    }

    pub(crate) fn sampling(&mut self, sampling: Sampling) {
        self.columns[OPERATIONS].push(SAMPLING);
        let (code, argument) = match sampling {
            Sampling::Exact => (0, 0),
            Sampling::Window { mapped_pages } => (1, u64::from(mapped_pages)),
            Sampling::Interval { ns } => (2, ns),
        };
        self.columns[REST].push(code);
        varint::put(&mut self.columns[REST], argument);
    }

    #[inline]
    pub(crate) fn reference(&mut self, r: Reference) {
        let kind = if r.write { WRITE } else { READ };
        let operation = if r.by_call { kind | BY_CALL } else { kind };
        self.references += 1;
        self.located(operation, r.time_ns, r.process, r.segment, r.page);
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        let operation = match fault.kind {
            FaultKind::Major => MAJOR_FAULT,
            FaultKind::Minor => MINOR_FAULT,
            FaultKind::Write => WRITE_FAULT,
        };
        self.located(operation, fault.time_ns, fault.process, fault.segment, fault.page);
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.columns[OPERATIONS].push(INPUT);
        self.time(input.time_ns);
        let last = &mut self.state.inputs[usize::from(input.code)];
        self.columns[INPUT_CODES].push(input.code);
        varint::put_delta(&mut self.columns[INPUT_A], last.0, input.a);
        varint::put_delta(&mut self.columns[INPUT_B], last.1, input.b);
        *last = (input.a, input.b);
    }

    pub(crate) fn digest(&mut self, digest: Digest) {
        self.columns[OPERATIONS].push(DIGEST);
        varint::put(&mut self.columns[REST], digest.after_inputs);
        self.columns[REST].extend_from_slice(&digest.value.to_le_bytes());
    }

    pub(crate) fn policy(&mut self, policy: &Policy) {
        self.columns[OPERATIONS].push(POLICY);
        let rest = &mut self.columns[REST];
        varint::put(rest, u64::from(policy.number));
        varint::put_text(rest, &policy.name);
        varint::put_text(rest, &policy.definition);
    }

    #[inline]
    fn time(&mut self, time_ns: u64) {
        self.first_time_ns.get_or_insert(time_ns);
        varint::put_delta(&mut self.columns[TIMES], self.state.time_ns, time_ns);
        self.state.time_ns = time_ns;
    }

    #[inline]
    fn located(&mut self, mut operation: u8, time_ns: u64, process: u32, segment: u32, page: u64) {
        self.time(time_ns);
        if process == self.state.process {
            operation |= SAME_PROCESS;
        } else {
            let from = u64::from(self.state.process);
            varint::put_delta(&mut self.columns[PROCESSES], from, u64::from(process));
            self.state.process = process;
        }
        let index = match self.state.segment {
            Some((index, id)) if id == segment => {
                operation |= SAME_SEGMENT;
                index
            }
            _ => self.other_segment(segment),
        };
        let last = &mut self.state.segments[index].1;
        varint::put_delta(&mut self.columns[PAGES], *last, page);
        *last = page;
        self.columns[OPERATIONS].push(operation);
    }

    fn other_segment(&mut self, segment: u32) -> usize {
        let known = self.state.segments.len();
        let index = *self.segment_index.entry(segment).or_insert(known);
        let column = &mut self.columns[SEGMENTS];
        varint::put(column, index as u64);
        if index == known {
            varint::put(column, u64::from(segment));
            self.state.segments.push((segment, 0));
        }
        self.state.segment = Some((index, segment));
        index
    }
}

/// Gives the records of a block, whose content stays with the caller.
pub(crate) struct Decoder {
    columns: [Cursor; COLUMNS],
    state: State,
}

impl Decoder {
    /// A decoder that has no records.
    pub(crate) fn new() -> Self {
        Self { columns: Default::default(), state: State::new() }
    }

    /// Starts on the content of a block that should hold `records`.
    pub(crate) fn start(&mut self, content: &[u8], records: u32) -> Result<(), Malformed> {
        self.state.clear();
        self.columns = Default::default();
        let mut cursor = Cursor::new(0, content.len());
        let mut lengths = [0u64; COLUMNS];
        for length in &mut lengths {
            *length = cursor.varint(content)?;
        }
        let mut columns = [Cursor::default(); COLUMNS];
        let mut at = content.len() - cursor.len();
        for (column, length) in columns.iter_mut().zip(lengths) {
            if length > (content.len() - at) as u64 {
                return Err("a column is longer than its block");
            }
            let end = at + length as usize;
            *column = Cursor::new(at, end);
            at = end;
        }
        if at != content.len() {
            return Err("a block is longer than its columns");
        }
        if columns[OPERATIONS].len() as u64 != u64::from(records) {
            return Err("a block has another number of records than its header says");
        }
        self.columns = columns;
        Ok(())
    }

    /// The next record; `None` at the end of the block.
    #[inline]
    pub(crate) fn next(&mut self, content: &[u8]) -> Result<Option<Record>, Malformed> {
        if self.columns[OPERATIONS].is_empty() {
            if self.columns.iter().any(|column| !column.is_empty()) {
                return Err("a column is longer than its records");
            }
            return Ok(None);
        }
        let operation = self.columns[OPERATIONS].byte(content)?;
        let kind = operation & KIND_BITS;
        if let READ..=WRITE_FAULT = kind {
            return self.located(content, operation).map(Some);
        }
        if operation != kind {
            return Err("a record has flags that it cannot have");
        }
        self.unlocated(content, kind).map(Some)
    }

    #[inline]
    fn located(&mut self, content: &[u8], operation: u8) -> Result<Record, Malformed> {
        let kind = operation & KIND_BITS;
        let own_flags = if matches!(kind, READ | WRITE) { BY_CALL } else { 0 };
        if operation & !(KIND_BITS | SAME_PROCESS | SAME_SEGMENT | own_flags) != 0 {
            return Err("a record has flags that it cannot have");
        }
        let time_ns = self.time(content)?;
        if operation & SAME_PROCESS == 0 {
            let delta = self.columns[PROCESSES].varint(content)?;
            self.state.process =
                u32::try_from(varint::apply_delta(self.state.process.into(), delta))
                    .map_err(|_| "a process number has more than 32 bits")?;
        }
        if operation & SAME_SEGMENT == 0 {
            self.other_segment(content)?;
        }
        let (index, segment) =
            self.state.segment.ok_or("a record has the segment of the one before, and is first")?;
        let last = &mut self.state.segments[index].1;
        let page = varint::apply_delta(*last, self.columns[PAGES].varint(content)?);
        *last = page;
        let process = self.state.process;
        let kind = match kind {
            READ | WRITE => {
                let (write, by_call) = (kind == WRITE, operation & BY_CALL != 0);
                let reference = Reference { time_ns, process, segment, page, write, by_call };
                return Ok(Record::Reference(reference));
            }
            MAJOR_FAULT => FaultKind::Major,
            MINOR_FAULT => FaultKind::Minor,
            _ => FaultKind::Write,
        };
        Ok(Record::Fault(Fault { time_ns, process, segment, page, kind }))
    }

    fn unlocated(&mut self, content: &[u8], kind: u8) -> Result<Record, Malformed> {
        if kind == INPUT {
            let time_ns = self.time(content)?;
            let code = self.columns[INPUT_CODES].byte(content)?;
            let (a, b) = self.state.inputs[usize::from(code)];
            let a = varint::apply_delta(a, self.columns[INPUT_A].varint(content)?);
            let b = varint::apply_delta(b, self.columns[INPUT_B].varint(content)?);
            self.state.inputs[usize::from(code)] = (a, b);
            return Ok(Record::Input(Input { time_ns, code, a, b }));
        }
        let rest = &mut self.columns[REST];
        Ok(match kind {
            PROCESS => Record::Process(Process {
                process: rest.varint32(content)?,
                pid: rest.varint32(content)?,
                parent: match rest.varint(content)? {
                    0 => None,
                    next => Some(
                        u32::try_from(next - 1)
                            .map_err(|_| "a process number has more than 32 bits")?,
                    ),
                },
                name: rest.text(content, NAME_BYTES_MAX)?.to_vec(),
            }),
            SEGMENT => Record::Segment(Segment {
                segment: rest.varint32(content)?,
                kind: match rest.byte(content)? {
                    0 => SegmentKind::File,
                    1 => SegmentKind::Anonymous,
                    2 => SegmentKind::Heap,
                    3 => SegmentKind::Other,
                    _ => return Err("a segment is of a kind that does not exist"),
                },
                bytes: rest.varint(content)?,
                name: rest.text(content, NAME_BYTES_MAX)?.to_vec(),
            }),
            RESIZE => Record::Resize(Resize {
                segment: rest.varint32(content)?,
                bytes: rest.varint(content)?,
            }),
            EXTENT => Record::Extent(Extent {
                segment: rest.varint32(content)?,
                event: match rest.byte(content)? {
                    0 => ExtentEvent::Allocated,
                    1 => ExtentEvent::Freed,
                    2 => ExtentEvent::Inherited,
                    3 => ExtentEvent::Stored,
                    _ => return Err("something became of a heap's pages that does not exist"),
                },
                first: rest.varint(content)?,
                pages: rest.varint(content)?,
            }),
            CPU_TIME => Record::CpuTime(CpuTime {
                process: rest.varint32(content)?,
                ns: rest.varint(content)?,
            }),
            SAMPLING => {
                let code = rest.byte(content)?;
                let argument = rest.varint(content)?;
                Record::Sampling(match code {
                    0 => Sampling::Exact,
                    1 => Sampling::Window {
                        mapped_pages: u32::try_from(argument)
                            .map_err(|_| "a sampling window has more than 32 bits")?,
                    },
                    2 => Sampling::Interval { ns: argument },
                    _ => return Err("a way of sampling does not exist"),
                })
            }
            DIGEST => Record::Digest(Digest {
                after_inputs: rest.varint(content)?,
                value: u64::from_le_bytes(
                    rest.bytes(content, 8)?.try_into().map_err(|_| "a digest ends early")?,
                ),
            }),
            POLICY => Record::Policy(Policy {
                number: rest.varint32(content)?,
                name: rest.text(content, NAME_BYTES_MAX)?.to_vec(),
                definition: rest.text(content, NAME_BYTES_MAX)?.to_vec(),
            }),
            _ => return Err("a record is of a kind that does not exist"),
        })
    }

    #[inline]
    fn time(&mut self, content: &[u8]) -> Result<u64, Malformed> {
        let delta = self.columns[TIMES].varint(content)?;
        self.state.time_ns = varint::apply_delta(self.state.time_ns, delta);
        Ok(self.state.time_ns)
    }

    fn other_segment(&mut self, content: &[u8]) -> Result<(), Malformed> {
        let column = &mut self.columns[SEGMENTS];
        let index = column.varint(content)?;
        let known = self.state.segments.len();
        if index > known as u64 {
            return Err("a segment is named before it is listed");
        }
        let index = index as usize;
        if index == known {
            self.state.segments.push((column.varint32(content)?, 0));
        }
        self.state.segment = Some((index, self.state.segments[index].0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(content: &[u8], records: u32) -> Result<usize, Malformed> {
        let mut decoder = Decoder::new();
        decoder.start(content, records)?;
        let mut count = 0;
        while decoder.next(content)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    proptest! {
        /// Contents that pass a checksum may still be hostile.
        #[test]
        fn random_content_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = drain(&bytes, 3);
        }

        /// As above, but with column lengths that add up, so that records are reached.
        #[test]
        fn random_columns_never_panic(
            columns in proptest::array::uniform9(proptest::collection::vec(
                prop_oneof![0u8..12, 0x10u8..0x3c, any::<u8>()], 0..24)),
        ) {
            let mut content = Vec::new();
            for column in &columns {
                varint::put(&mut content, column.len() as u64);
            }
            for column in &columns {
                content.extend_from_slice(column);
            }
            let records = columns[OPERATIONS].len();
            if let Ok(count) = drain(&content, records as u32) {
                prop_assert_eq!(count, records);
            }
        }
    }
}
