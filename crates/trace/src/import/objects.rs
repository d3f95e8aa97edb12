//! Objects of many sizes, as pages.

use std::collections::HashMap;

use super::stream::Why;

/// How many pages an object of a trace is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Objects {
    /// One, whatever its size: as the figures in the literature count.
    #[default]
    Unit,
    /// As many as its size needs, all touched one after the other.
    Pages,
}

/// Bits of a page number that count the pages of one object, where objects are several.
const PAGES_OF_OBJECT_BITS: u32 = 32;

/// Gives objects their pages.
pub(super) struct ObjectPages {
    page_bytes: u64,
    /// The number of each object, where objects are several pages. They are numbered as they
    /// appear, so memory grows with how many there are.
    numbers: Option<HashMap<u64, u32>>,
}

impl ObjectPages {
    pub(super) fn new(objects: Objects, page_bytes: u32) -> Self {
        let numbers = (objects == Objects::Pages).then(HashMap::new);
        Self { page_bytes: page_bytes.into(), numbers }
    }

    /// The first and last page of an object of at least one byte.
    pub(super) fn of(&mut self, object: u64, bytes: u64) -> Result<(u64, u64), Why> {
        let Some(numbers) = &mut self.numbers else { return Ok((object, object)) };
        let last = bytes.saturating_sub(1) / self.page_bytes;
        if last >> PAGES_OF_OBJECT_BITS != 0 {
            let most = 1u64 << PAGES_OF_OBJECT_BITS;
            return Err(format!(
                "an object has more than {most} pages of {} bytes",
                self.page_bytes
            )
            .into());
        }
        let next = numbers.len();
        let number = match numbers.get(&object) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(next)
                    .map_err(|_| "more than 4294967296 objects: count each as one page")?;
                numbers.insert(object, number);
                number
            }
        };
        let first = u64::from(number) << PAGES_OF_OBJECT_BITS;
        Ok((first, first + last))
    }
}
