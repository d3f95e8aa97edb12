//! One name per line, of any kind: an object id, a key, a path.
//!
//! Each name becomes a page of segment 0, whose number is the name's hash (XXH3, 64 bits, seed 0):
//! no name has to be remembered, so memory does not grow. Two of *n* names share a page with a
//! probability of n²/2⁶⁵. Blank lines are dropped and counted.

use twox_hash::XxHash3_64;

use super::compressed::Input;
use super::stream::{ByLine, LineFormat, Places, Stream, Touch, Why};
use super::{Confidence, ImportOptions, Importer, Sample};
use crate::error::ImportError;
use crate::source::{Dropped, Source};

const NAME: &str = "ids";

/// One name per line.
pub(super) struct Ids;

/// The page that a name stands for.
pub(super) fn page_of_name(name: &[u8]) -> u64 {
    XxHash3_64::oneshot(name)
}

impl Importer for Ids {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "one name of any kind per line, each a page of its own"
    }

    fn recognises(&self, _sample: &Sample<'_>) -> Confidence {
        // Any text would be.
        Confidence::No
    }

    fn open(&self, input: Input, options: &ImportOptions) -> Result<Box<dyn Source>, ImportError> {
        let header = options.header(NAME)?.with("clock", "none");
        let format = Names { segment_name: options.segment_name(), blank: 0 };
        Ok(Box::new(Stream::new(header, ByLine::new(input, format))))
    }
}

struct Names {
    segment_name: Vec<u8>,
    blank: u64,
}

impl LineFormat for Names {
    fn name(&self) -> &'static str {
        NAME
    }

    fn line(&mut self, line: &[u8], places: &mut Places) -> Result<Option<Touch>, Why> {
        let name = line.trim_ascii();
        if name.is_empty() {
            self.blank += 1;
            return Ok(None);
        }
        places.numbered(0, &self.segment_name)?;
        Ok(Some(Touch::page(page_of_name(name))))
    }

    fn dropped(&self) -> Vec<Dropped> {
        vec![Dropped { what: "blank lines", count: self.blank }]
    }
}
