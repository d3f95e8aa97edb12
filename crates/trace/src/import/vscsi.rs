//! CloudPhysics: requests of virtual disks, binary as VMware's vscsi tracing wrote them, or as csv.
//!
//! Binary records of both versions hold the request's serial number, its bytes, its parts, the
//! SCSI command, the version, the logical block (512 bytes each) and the microsecond; version 2
//! also how long it took. The csv has the headings `version,time,op,size,lbn`. Commands that
//! neither read nor write are dropped and counted.

use super::blocks::{self, CloudPhysicsLines, SECTOR_BYTES};
use super::compressed::{self, Input};
use super::stream::{ByLine, ByRecord, Kind, Places, RecordFormat, Stream, Touch, Why};
use super::{Confidence, ImportOptions, Importer, SAMPLE_BYTES, Sample};
use crate::error::ImportError;
use crate::source::{Dropped, Source};

pub(super) const NAME: &str = "cloudphysics";
const MICROSECOND_NS: u64 = 1_000;

/// Where the fields of a record are.
#[derive(Clone, Copy)]
struct Layout {
    record_bytes: usize,
    /// In the upper half of the record's version.
    version: u8,
    bytes: usize,
    command: usize,
    version_at: usize,
    block: usize,
    time: usize,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        record_bytes: 40,
        version: 2,
        bytes: 8,
        command: 0,
        version_at: 2,
        block: 16,
        time: 24,
    },
    Layout {
        record_bytes: 32,
        version: 1,
        bytes: 4,
        command: 12,
        version_at: 14,
        block: 16,
        time: 24,
    },
];

impl Layout {
    fn u16(record: &[u8], at: usize) -> u16 {
        u16::from_le_bytes(record[at..at + 2].try_into().expect("two bytes"))
    }

    fn u64(record: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Whether all whole records of a sample are of this layout.
    fn fits(&self, sample: &[u8]) -> bool {
        let mut records = sample.chunks_exact(self.record_bytes).take(16).peekable();
        records.peek().is_some()
            && records.all(|record| {
                Self::u16(record, self.version_at) == u16::from(self.version) << 8
                    && Self::u16(record, self.command) <= 0xff
            })
    }
}

/// CloudPhysics.
pub(super) struct CloudPhysics;

impl Importer for CloudPhysics {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "requests of virtual disks: binary (vscsi), or csv under version,time,op,size,lbn"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let is_csv = sample.lines().next().is_some_and(blocks::is_cloudphysics_heading);
        if is_csv {
            Confidence::Certain
        } else if LAYOUTS.iter().any(|layout| layout.fits(sample.start)) {
            if sample.is_named("vscsi") { Confidence::Certain } else { Confidence::Likely }
        } else {
            Confidence::No
        }
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(NAME)?;
        let page_bytes = header.page_bytes;
        let segment_name = options.segment_name();
        let (start, input) = compressed::peek(input, SAMPLE_BYTES).map_err(|source| {
            let place = crate::error::Place::Byte(0);
            ImportError::Read { format: NAME, place, source }
        })?;
        if let Some(layout) = LAYOUTS.iter().find(|layout| layout.fits(&start)) {
            let format = Records { layout: *layout, page_bytes, segment_name, other: 0, empty: 0 };
            let parser = ByRecord::new(input, layout.record_bytes, format);
            return Ok(Box::new(Stream::new(header, parser)));
        }
        if start.iter().any(|byte| !byte.is_ascii_graphic() && !byte.is_ascii_whitespace()) {
            let why = "expected records of vscsi version 1 (32 bytes) or 2 (40 bytes), or csv";
            return Err(ImportError::Record {
                format: NAME,
                record: 1,
                offset: 0,
                why: why.to_owned(),
            });
        }
        let lines = CloudPhysicsLines::new(page_bytes, segment_name);
        Ok(Box::new(Stream::new(header, ByLine::new(input, lines))))
    }
}

struct Records {
    layout: Layout,
    page_bytes: u32,
    segment_name: Vec<u8>,
    other: u64,
    empty: u64,
}

impl RecordFormat for Records {
    const NAME: &'static str = NAME;

    fn record(&mut self, record: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let layout = &self.layout;
        let version = Layout::u16(record, layout.version_at);
        if version != u16::from(layout.version) << 8 {
            return Err(format!(
                "its version is {version:#06x}, and the first record's is {:#06x}",
                u16::from(layout.version) << 8
            )
            .into());
        }
        let Some(write) = is_write(Layout::u16(record, layout.command)) else {
            self.other += 1;
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(
            record[layout.bytes..layout.bytes + 4].try_into().expect("four bytes"),
        );
        let block = Layout::u64(record, layout.block);
        let time_ns = Layout::u64(record, layout.time).saturating_mul(MICROSECOND_NS);
        let start = block
            .checked_mul(SECTOR_BYTES)
            .ok_or("its block is no block of 512 bytes on any disk")?;
        let Some(touch) = Touch::bytes(start, bytes.into(), self.page_bytes)? else {
            self.empty += 1;
            return Ok(None);
        };
        places.numbered(0, &self.segment_name)?;
        Ok(Some(Touch { time_ns, kind: Kind::of_write(write), ..touch }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        blocks::dropped(self.other, self.empty)
    }
}

/// Whether a SCSI command writes; `None` if it neither reads nor writes.
pub(super) fn is_write(command: u16) -> Option<bool> {
    match command {
        // READ(6), (10), (16), (12).
        0x08 | 0x28 | 0x88 | 0xa8 => Some(false),
        // WRITE(6), (10), (16), (12).
        0x0a | 0x2a | 0x8a | 0xaa => Some(true),
        _ => None,
    }
}
