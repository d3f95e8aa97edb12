//! libCacheSim's oracleGeneral: a time, an object, its size, and when it is touched next.
//!
//! Records of 24 bytes without padding, all little-endian, as in libCacheSim's
//! `oracleGeneralBin.h`: seconds (u32), object (u64), bytes (u32), and the number of the request
//! that touches the same object next, from 1 (i64, -1 if none). What comes next is not kept: it
//! follows from the trace. Requests of 0 bytes are dropped and counted, as libCacheSim does.

use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::compressed::Input;
use super::objects::ObjectPages;
use super::stream::{ByRecord, Places, RecordFormat, Stream, Touch, Why};
use super::{Confidence, ImportOptions, Importer, Sample};
use crate::error::ImportError;
use crate::source::{Dropped, Source};

/// The format's name.
pub(crate) const NAME: &str = "oracleGeneral";
const SECOND_NS: u64 = 1_000_000_000;
/// Fewer records than this prove nothing.
const PROOF_RECORDS: usize = 8;
/// No trace has more requests.
const REQUESTS_MAX: i64 = 1 << 40;

/// A request, as it stands in the file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Request {
    pub(crate) time_s: U32,
    pub(crate) object: U64,
    pub(crate) bytes: U32,
    /// Number, from 1, of the next request for the object; -1 if there is none.
    pub(crate) next: I64,
}

const _: () = assert!(size_of::<Request>() == 24);

/// libCacheSim's oracleGeneral.
pub(super) struct OracleGeneral;

impl Importer for OracleGeneral {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "libCacheSim's binary traces: time, object, size, next access"
    }

    fn recognises(&self, sample: &Sample<'_>) -> Confidence {
        let named = sample.is_named(NAME);
        let (requests, _) = <[Request]>::ref_from_prefix_with_elems(
            sample.start,
            sample.start.len() / size_of::<Request>(),
        )
        .expect("whole records fit");
        match (named, is_plausible(requests)) {
            // A file so called whose content is not is damaged, and the error says how.
            (true, _) if !sample.start.is_empty() => Confidence::Certain,
            (false, true) if requests.len() >= PROOF_RECORDS => Confidence::Likely,
            _ => Confidence::No,
        }
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(NAME)?;
        let format = Requests {
            segment_name: options.segment_name(),
            pages: ObjectPages::new(options.objects, header.page_bytes),
            empty: 0,
        };
        let parser = ByRecord::new(input, size_of::<Request>(), format);
        Ok(Box::new(Stream::new(header, parser)))
    }
}

/// Whether times do not fall, and every next access that can be checked is one.
fn is_plausible(requests: &[Request]) -> bool {
    let rising = requests.windows(2).all(|pair| pair[0].time_s.get() <= pair[1].time_s.get());
    let next_is_right = |(index, request): (usize, &Request)| match request.next.get() {
        -1 | i64::MAX => true,
        next if next <= index as i64 + 1 || next > REQUESTS_MAX => false,
        next => requests.get(next as usize - 1).is_none_or(|r| r.object == request.object),
    };
    rising && requests.iter().enumerate().all(next_is_right)
}

struct Requests {
    segment_name: Vec<u8>,
    pages: ObjectPages,
    empty: u64,
}

impl RecordFormat for Requests {
    const NAME: &'static str = NAME;

    fn record(&mut self, record: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let request = Request::ref_from_bytes(record).expect("records come whole");
        if request.bytes == 0 {
            self.empty += 1;
            return Ok(None);
        }
        let (first_page, last_page) =
            self.pages.of(request.object.get(), request.bytes.get().into())?;
        places.numbered(0, &self.segment_name)?;
        let time_ns = u64::from(request.time_s.get()) * SECOND_NS;
        Ok(Some(Touch { time_ns, last_page, ..Touch::page(first_page) }))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![Dropped { what: "requests of 0 bytes", count: self.empty }]
    }
}
