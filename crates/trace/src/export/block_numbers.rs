//! Numbers for pages, in formats that know no segments.

use super::SEGMENT_SHIFT;
use crate::error::ExportError;
use crate::record::Reference;

/// Gives references their block numbers.
#[derive(Default)]
pub(super) struct BlockNumbers {
    /// A page of segment 0 took a number that belongs to another segment.
    took_others: bool,
    /// A segment other than 0 was seen.
    others: bool,
}

impl BlockNumbers {
    /// The block number of a reference. While segment 0 is alone, it keeps all its numbers.
    pub(super) fn of(
        &mut self,
        format: &'static str,
        reference: Reference,
    ) -> Result<u64, ExportError> {
        let Reference { segment, page, .. } = reference;
        let large = page >> SEGMENT_SHIFT != 0;
        self.others |= segment != 0;
        self.took_others |= large;
        let out_of_range = u64::from(segment) >> (64 - SEGMENT_SHIFT) != 0;
        if out_of_range || (self.others && self.took_others) {
            return Err(ExportError::NoBlockNumber { format, segment, page });
        }
        Ok((u64::from(segment) << SEGMENT_SHIFT) + page)
    }
}
