//! Requests of disks, a line each, which become the pages that they lie in.

use super::compressed::Input;
use super::fields::{decimal, hexadecimal, words};
use super::stream::{ByLine, Kind, LineFormat, Places, Stream, Touch, Why};
use super::{Confidence, Fit, ImportOptions, Importer, Sample, vscsi};
use crate::error::ImportError;
use crate::record::SegmentKind;
use crate::source::{Dropped, Source};

/// Bytes in a sector, the unit of disk addresses.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The traces of the ARC paper (Megiddo and Modha, FAST '03, table III).
pub(super) const ARC: Arc = Arc;
/// The traces of Microsoft Research Cambridge (Narayanan et al., FAST '08).
pub(super) const MSR: Msr = Msr;

/// What requests of any format drop.
pub(super) fn dropped(other: u64, empty: u64) -> Vec<Dropped> {
    vec![
        Dropped { what: "requests that neither read nor write", count: other },
        Dropped { what: "requests of nothing", count: empty },
    ]
}

/// `start count ignored number`: a run of blocks.
pub(super) struct Arc;

impl Importer for Arc {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn summary(&self) -> &'static str {
        "the ARC paper's traces: first block, number of blocks, ignored, request number"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        sample.fits(|line| match (line.trim_ascii(), arc(line)) {
            (b"", _) => Fit::Neutral,
            (_, Some(_)) => Fit::Yes,
            _ => Fit::No,
        })
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let block_bytes = options.block_bytes.unwrap_or(SECTOR_BYTES as u32);
        let page_bytes = Some(options.page_bytes.unwrap_or(block_bytes));
        let header = ImportOptions { page_bytes, ..options.clone() }.header(self.name())?;
        let format = ArcLines {
            block_bytes: block_bytes.into(),
            page_bytes: header.page_bytes,
            segment_name: options.segment_name(),
            empty: 0,
            blank: 0,
        };
        let header = header.with("clock", "none");
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

/// The first block and their number.
fn arc(line: &[u8]) -> Option<(u64, u64)> {
    let mut numbers = words(line).map(decimal);
    let (start, count) = (numbers.next()??, numbers.next()??);
    let (_ignored, _number) = (numbers.next()??, numbers.next()??);
    numbers.next().is_none().then_some((start, count))
}

struct ArcLines {
    block_bytes: u64,
    page_bytes: u32,
    segment_name: Vec<u8>,
    empty: u64,
    blank: u64,
}

impl LineFormat for ArcLines {
    fn name(&self) -> &'static str {
        ARC.name()
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let Some((start, count)) = arc(line) else {
            if line.trim_ascii().is_empty() {
                self.blank += 1;
                return Ok(None);
            }
            return Err(
                "expected four decimal numbers of 64 bits: first block, number of blocks, \
                        ignored, number of the request"
                    .into(),
            );
        };
        let bytes = |blocks: u64| {
            let bytes = blocks.checked_mul(self.block_bytes);
            bytes.ok_or("such a block is on no disk: it lies behind the last byte of 64 bits")
        };
        let Some(touch) = Touch::bytes(bytes(start)?, bytes(count)?, self.page_bytes)? else {
            self.empty += 1;
            return Ok(None);
        };
        places.numbered(0, &self.segment_name)?;
        Ok(Some(touch))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![
            Dropped { what: "requests of nothing", count: self.empty },
            Dropped { what: "blank lines", count: self.blank },
        ]
    }
}

/// `time,host,disk,Read|Write,offset,bytes,response time`, without headings.
pub(super) struct Msr;

/// Windows counts time in ticks of 100 ns.
const TICK_NS: u64 = 100;

impl Importer for Msr {
    fn name(&self) -> &'static str {
        "msr"
    }

    fn summary(&self) -> &'static str {
        "Microsoft Research Cambridge: time,host,disk,Read or Write,offset,bytes,response"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        sample.fits(|line| match msr(line) {
            Ok(Some(_)) => Fit::Yes,
            Ok(None) => Fit::Neutral,
            Err(_) => Fit::No,
        })
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(self.name())?;
        let format = MsrLines {
            page_bytes: header.page_bytes,
            disk: Vec::new(),
            disk_number: 0,
            empty: 0,
            other: 0,
        };
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

/// A request; the disk's name is `host,number` as it stands in the line.
struct MsrRequest<'a> {
    ticks: u64,
    disk: &'a [u8],
    write: bool,
    start: u64,
    bytes: u64,
}

/// A request; `None` for blank lines and the line of headings.
fn msr(line: &[u8]) -> Result<Option<MsrRequest<'_>>, &'static str> {
    const EXPECTED: &str = "expected seven fields between commas: time, host, disk, Read or \
                            Write, offset, bytes, response time";
    let line = line.trim_ascii();
    let mut fields = [&b""[..]; 7];
    let mut count = 0;
    for field in line.split(|&byte| byte == b',') {
        *fields.get_mut(count).ok_or(EXPECTED)? = field;
        count += 1;
    }
    if line.is_empty() || fields[0].eq_ignore_ascii_case(b"timestamp") {
        return Ok(None);
    }
    if count != fields.len() {
        return Err(EXPECTED);
    }
    let [ticks, host, disk, kind, start, bytes, _response] = fields;
    let write = match kind {
        b"Read" | b"read" | b"R" => false,
        b"Write" | b"write" | b"W" => true,
        _ => return Err("the fourth field is neither Read nor Write"),
    };
    let number = |field| decimal(field).ok_or("a time, offset or size is no decimal of 64 bits");
    let name_at = ticks.len() + 1;
    Ok(Some(MsrRequest {
        ticks: number(ticks)?,
        disk: &line[name_at..name_at + host.len() + 1 + disk.len()],
        write,
        start: number(start)?,
        bytes: number(bytes)?,
    }))
}

struct MsrLines {
    page_bytes: u32,
    /// The disk of the last request, and its segment: most traces have one.
    disk: Vec<u8>,
    disk_number: u32,
    empty: u64,
    other: u64,
}

impl LineFormat for MsrLines {
    fn name(&self) -> &'static str {
        MSR.name()
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let Some(request) = msr(line)? else {
            self.other += 1;
            return Ok(None);
        };
        let MsrRequest { ticks, disk, write, start, bytes } = request;
        let Some(touch) = Touch::bytes(start, bytes, self.page_bytes)? else {
            self.empty += 1;
            return Ok(None);
        };
        if self.disk != disk {
            let name: Vec<u8> =
                disk.iter().map(|&byte| if byte == b',' { b'_' } else { byte }).collect();
            self.disk_number = places.named(&name, SegmentKind::Other)?;
            self.disk.clear();
            self.disk.extend_from_slice(disk);
        }
        let time_ns = ticks.checked_mul(TICK_NS).ok_or("the time is no number of 100 ns ticks")?;
        Ok(Some(Touch { time_ns, segment: self.disk_number, kind: Kind::of_write(write), ..touch }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![
            Dropped { what: "requests of nothing", count: self.empty },
            Dropped { what: "blank lines and headings", count: self.other },
        ]
    }
}

/// Whether a line has the headings of CloudPhysics as csv.
pub(super) fn is_cloudphysics_heading(line: &[u8]) -> bool {
    line.trim_ascii().eq_ignore_ascii_case(b"version,time,op,size,lbn")
}

/// CloudPhysics as csv: `version,time,op,size,lbn`, in seconds, hexadecimal, bytes and sectors.
pub(super) struct CloudPhysicsLines {
    page_bytes: u32,
    segment_name: Vec<u8>,
    other: u64,
    empty: u64,
    headings: u64,
}

impl CloudPhysicsLines {
    pub(super) fn new(page_bytes: u32, segment_name: Vec<u8>) -> Self {
        Self { page_bytes, segment_name, other: 0, empty: 0, headings: 0 }
    }
}

impl LineFormat for CloudPhysicsLines {
    fn name(&self) -> &'static str {
        vscsi::NAME
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let line = line.trim_ascii();
        if line.is_empty() || is_cloudphysics_heading(line) {
            self.headings += 1;
            return Ok(None);
        }
        let fields: Vec<_> = line.splitn(6, |&byte| byte == b',').collect();
        let [_version, time, op, bytes, block] = fields[..] else {
            return Err("expected five fields between commas: version, time, op, size, lbn".into());
        };
        let time_ns = super::fields::time_ns(time, 1_000_000_000)
            .ok_or("the time is no decimal number of seconds")?;
        let command = hexadecimal(op)
            .and_then(|op| u16::try_from(op).ok())
            .ok_or("op is no SCSI command in hexadecimal")?;
        let number = |field| decimal(field).ok_or("size or lbn is no decimal number of 64 bits");
        let (bytes, block) = (number(bytes)?, number(block)?);
        let Some(write) = vscsi::is_write(command) else {
            self.other += 1;
            return Ok(None);
        };
        let start =
            block.checked_mul(SECTOR_BYTES).ok_or("lbn is no block of 512 bytes on any disk")?;
        let Some(touch) = Touch::bytes(start, bytes, self.page_bytes)? else {
            self.empty += 1;
            return Ok(None);
        };
        places.numbered(0, &self.segment_name)?;
        Ok(Some(Touch { time_ns, kind: Kind::of_write(write), ..touch }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        let mut dropped = dropped(self.other, self.empty);
        dropped.push(Dropped { what: "blank lines and headings", count: self.headings });
        dropped
    }
}
