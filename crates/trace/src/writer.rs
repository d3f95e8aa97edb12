//! Writing a trace.

use std::io::Write;

use zerocopy::IntoBytes;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::columns::Encoder;
use crate::error::TraceError;
use crate::frame::{
    ATTRIBUTES_MAX, BLOCK_RECORDS_MAX, BlockHeader, BlockMeta, CONTENT_BYTES_MAX, End, KIND_HEADER,
    KIND_INDEX, KIND_RECORDS, NAME_BYTES_MAX, START_BYTES, Start,
};
use crate::index::{BlockInfo, encode_entries};
use crate::record::{
    CpuTime, Digest, Extent, Fault, Header, Input, Policy, Process, Record, Reference, Resize,
    Sampling, Segment,
};
use crate::varint;

/// A block is closed when its columns reach this size, which leaves room for one more record.
const CONTENT_BYTES_GOAL: usize = 4 << 20;
const _: () = assert!(CONTENT_BYTES_GOAL + 2 * NAME_BYTES_MAX < CONTENT_BYTES_MAX);

/// How a trace is written.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// zstd's compression level.
    pub level: i32,
    /// Records in a block, from 1 to [`BLOCK_RECORDS_MAX`] (values beyond are brought inside).
    /// What is in an unfinished block is lost when the recorder dies.
    pub block_records: u32,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { level: 3, block_records: BLOCK_RECORDS_MAX }
    }
}

/// Writes a trace.
///
/// Records are gathered into blocks; a block is compressed and written when it is full, or on
/// [`flush_block`](Self::flush_block). Each block is one `write_all`, so `output` needs no buffer.
/// A writer that is dropped without [`finish`](Self::finish) leaves what a crash leaves: a trace
/// that is readable up to its last whole block, and is reported as unfinished.
#[must_use = "a trace that is not finished is reported as such by every reader"]
pub struct TraceWriter<W> {
    output: W,
    options: WriterOptions,
    compressor: Compressor<'static>,
    encoder: Encoder,
    content: Vec<u8>,
    frame: Vec<u8>,
    /// Where the next frame will start.
    offset: u64,
    /// Number of the next block.
    sequence: u64,
    records: u64,
    index: Vec<BlockInfo>,
    failed: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace: writes its magic and header.
    ///
    /// # Errors
    /// If the header has no page size or does not fit, or `output` cannot be written.
    pub fn new(output: W, header: Header) -> Result<Self, TraceError> {
        Self::with_options(output, header, WriterOptions::default())
    }

    /// As [`new`](Self::new), with options.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if zstd does not know the level.
    pub fn with_options(
        output: W,
        header: Header,
        mut options: WriterOptions,
    ) -> Result<Self, TraceError> {
        options.block_records = options.block_records.clamp(1, BLOCK_RECORDS_MAX);
        let compressor = Compressor::new(options.level)
            .and_then(|mut compressor| {
                compressor.set_parameter(CParameter::ChecksumFlag(true))?;
                Ok(compressor)
            })
            .map_err(|source| TraceError::Write { offset: 0, source })?;
        let mut writer = Self {
            output,
            options,
            compressor,
            encoder: Encoder::new(),
            content: Vec::new(),
            frame: Vec::new(),
            offset: 0,
            sequence: 0,
            records: 0,
            index: Vec::new(),
            failed: false,
        };
        encode_header(&header, &mut writer.content)?;
        writer
            .output
            .write_all(Start::new().as_bytes())
            .map_err(|source| TraceError::Write { offset: 0, source })?;
        writer.offset = START_BYTES as u64;
        writer.write_block(KIND_HEADER, 0, 0, 0)?;
        Ok(writer)
    }

    /// Adds a record of any kind.
    ///
    /// # Errors
    /// If a name is too long, or a full block cannot be written. After a write error, every later
    /// call is refused.
    pub fn record(&mut self, record: &Record) -> Result<(), TraceError> {
        match record {
            Record::Process(process) => self.process(process),
            Record::Segment(segment) => self.segment(segment),
            Record::Resize(resize) => self.resize(*resize),
            Record::Extent(extent) => self.extent(*extent),
            Record::Sampling(sampling) => self.sampling(*sampling),
            Record::Reference(reference) => self.reference(*reference),
            Record::Fault(fault) => self.fault(*fault),
            Record::Input(input) => self.input(*input),
            Record::Digest(digest) => self.digest(*digest),
            Record::Policy(policy) => self.policy(policy),
            Record::CpuTime(cpu_time) => self.cpu_time(*cpu_time),
        }
    }

    /// Adds a process.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn process(&mut self, process: &Process) -> Result<(), TraceError> {
        check_length("the name of a process", &process.name)?;
        self.encoder.process(process.process, process.pid, process.parent, &process.name);
        self.added()
    }

    /// Adds a segment.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn segment(&mut self, segment: &Segment) -> Result<(), TraceError> {
        check_length("the name of a segment", &segment.name)?;
        self.encoder.segment(segment.segment, segment.kind, segment.bytes, &segment.name);
        self.added()
    }

    /// Adds a change of a segment's size.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn resize(&mut self, resize: Resize) -> Result<(), TraceError> {
        self.encoder.resize(resize);
        self.added()
    }

    /// Adds what became of pages of a heap.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn extent(&mut self, extent: Extent) -> Result<(), TraceError> {
        self.encoder.extent(extent);
        self.added()
    }

    /// Adds what a process used of processors.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn cpu_time(&mut self, cpu_time: CpuTime) -> Result<(), TraceError> {
        self.encoder.cpu_time(cpu_time);
        self.added()
    }

    /// Says how the references that follow were seen.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn sampling(&mut self, sampling: Sampling) -> Result<(), TraceError> {
        self.encoder.sampling(sampling);
        self.added()
    }

    /// Adds a reference.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    #[inline]
    pub fn reference(&mut self, reference: Reference) -> Result<(), TraceError> {
        self.encoder.reference(reference);
        self.added()
    }

    /// Adds a page fault.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn fault(&mut self, fault: Fault) -> Result<(), TraceError> {
        self.encoder.fault(fault);
        self.added()
    }

    /// Adds an input of the decision code.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn input(&mut self, input: Input) -> Result<(), TraceError> {
        self.encoder.input(input);
        self.added()
    }

    /// Adds a digest of the decisions so far.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn digest(&mut self, digest: Digest) -> Result<(), TraceError> {
        self.encoder.digest(digest);
        self.added()
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// As [`record`](Self::record).
    pub fn policy(&mut self, policy: &Policy) -> Result<(), TraceError> {
        check_length("the name of a policy", &policy.name)?;
        check_length("a part of a policy's definition", &policy.definition)?;
        self.encoder.policy(policy);
        self.added()
    }

    /// Number of records added.
    pub fn records(&self) -> u64 {
        self.records + u64::from(self.encoder.records())
    }

    /// Bytes written so far, without the block that is being gathered.
    pub fn bytes_written(&self) -> u64 {
        self.offset
    }

    /// The output, to look at.
    pub fn output(&self) -> &W {
        &self.output
    }

    /// Closes the block that is being gathered, if it holds anything, and flushes the output: what
    /// was added until now survives the recorder.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn flush_block(&mut self) -> Result<(), TraceError> {
        self.close_block()?;
        let offset = self.offset;
        self.output.flush().map_err(|source| {
            self.failed = true;
            TraceError::Write { offset, source }
        })
    }

    /// Writes what was gathered, the index and the end mark, and gives the output back.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.close_block()?;
        let index_offset = self.offset;
        let index = std::mem::take(&mut self.index);
        let mut previous = 0;
        for entries in index.chunks(BLOCK_RECORDS_MAX as usize) {
            self.content.clear();
            previous = encode_entries(entries, previous, &mut self.content);
            self.write_block(KIND_INDEX, entries.len() as u32, 0, 0)?;
        }
        let end = End::new(index_offset, index.len() as u64, self.records);
        let offset = self.offset;
        self.output
            .write_all(end.as_bytes())
            .and_then(|()| self.output.flush())
            .map_err(|source| TraceError::Write { offset, source })?;
        Ok(self.output)
    }

    /// A record is in the encoder: closes the block if it is full.
    #[inline]
    fn added(&mut self) -> Result<(), TraceError> {
        if self.failed {
            self.encoder.drain_into(&mut self.content);
            self.content.clear();
            return Err(TraceError::WriterFailed { offset: self.offset });
        }
        if self.encoder.records() >= self.options.block_records
            || self.encoder.bytes() >= CONTENT_BYTES_GOAL
        {
            self.close_block()?;
        }
        Ok(())
    }

    fn close_block(&mut self) -> Result<(), TraceError> {
        if self.failed {
            return Err(TraceError::WriterFailed { offset: self.offset });
        }
        let records = self.encoder.records();
        if records == 0 {
            return Ok(());
        }
        let references = self.encoder.references();
        let first_time_ns = self.encoder.first_time_ns();
        self.content.clear();
        self.encoder.drain_into(&mut self.content);
        let (offset, sequence) = (self.offset, self.sequence);
        self.write_block(KIND_RECORDS, records, references, first_time_ns)?;
        self.records += u64::from(records);
        self.index.push(BlockInfo { offset, sequence, records, references, first_time_ns });
        Ok(())
    }

    /// Compresses and writes `self.content` as one block.
    fn write_block(
        &mut self,
        kind: u8,
        records: u32,
        references: u32,
        first_time_ns: u64,
    ) -> Result<(), TraceError> {
        let meta = BlockMeta { kind, records, references, sequence: self.sequence, first_time_ns };
        let offset = self.offset;
        self.frame.clear();
        self.frame.reserve(zstd::zstd_safe::compress_bound(self.content.len()));
        let written =
            self.compressor.compress_to_buffer(&self.content, &mut self.frame).and_then(|_| {
                let header = BlockHeader::new(&meta, self.content.len(), &self.frame);
                // One write for both, so that a crash between them is as rare as can be.
                self.content.clear();
                self.content.extend_from_slice(header.as_bytes());
                self.content.extend_from_slice(&self.frame);
                self.output.write_all(&self.content)
            });
        if let Err(source) = written {
            self.failed = true;
            return Err(TraceError::Write { offset, source });
        }
        self.offset += self.content.len() as u64;
        self.sequence += 1;
        Ok(())
    }
}

fn check_length(what: &'static str, text: &[u8]) -> Result<(), TraceError> {
    let found = text.len();
    if found > NAME_BYTES_MAX {
        return Err(TraceError::TooLong { what, found, limit: NAME_BYTES_MAX });
    }
    Ok(())
}

fn encode_header(header: &Header, out: &mut Vec<u8>) -> Result<(), TraceError> {
    if header.page_bytes == 0 {
        return Err(TraceError::NoPageBytes);
    }
    let found = header.attributes.len();
    if found > ATTRIBUTES_MAX {
        let what = "the number of attributes";
        return Err(TraceError::TooLong { what, found, limit: ATTRIBUTES_MAX });
    }
    check_length("the creator", header.creator.as_bytes())?;
    varint::put(out, header.created_unix_ns);
    varint::put(out, u64::from(header.page_bytes));
    varint::put_text(out, header.creator.as_bytes());
    varint::put(out, found as u64);
    for (key, value) in &header.attributes {
        check_length("the key of an attribute", key.as_bytes())?;
        check_length("the value of an attribute", value)?;
        varint::put_text(out, key.as_bytes());
        varint::put_text(out, value);
    }
    if out.len() > CONTENT_BYTES_MAX {
        let what = "the header";
        return Err(TraceError::TooLong { what, found: out.len(), limit: CONTENT_BYTES_MAX });
    }
    Ok(())
}
