//! Page tables of caches: a gigabyte of address space each, which lives as long as the process and
//! is used again by later caches.

use crate::engine::table::{EXTENTS_BYTES, Table, WORDS_BYTES};
use pagekeeper_sys::Errno;
use pagekeeper_sys::shared::SharedMap;
use std::sync::Mutex;

/// Tables that no cache has.
pub(crate) type Unused = Mutex<Vec<Maps>>;

/// What tables are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Maps {
    words: &'static SharedMap,
    extents: &'static SharedMap,
}

/// Tables of one cache, which are another's when this is dropped: nobody uses them then. (In a forked
/// child they are the parent's: it must not drop them.)
#[derive(Debug)]
pub(crate) struct Tables {
    maps: Maps,
    unused: &'static Unused,
}

impl Tables {
    /// Tables without an entry.
    pub(crate) fn take(unused: &'static Unused) -> Result<Tables, Errno> {
        if let Some(maps) = unused.lock().expect("unused").pop() {
            return Ok(Tables { maps, unused });
        }
        let map = |name, bytes| -> Result<&'static SharedMap, Errno> {
            let map = match SharedMap::create(name, bytes) {
                Ok((_, map)) => map,
                // The program may make no such long file, and did not ask for one.
                Err(Errno::FBIG) => SharedMap::without_file(bytes)?,
                Err(errno) => return Err(errno),
            };
            Ok(Box::leak(Box::new(map)))
        };
        let words = map("pagekeeper-words", WORDS_BYTES)?;
        let maps = Maps { words, extents: map("pagekeeper-extents", EXTENTS_BYTES)? };
        Ok(Tables { maps, unused })
    }

    pub(crate) fn table(&self) -> Table {
        Table::new(self.maps.words.all(), self.maps.extents.all())
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let emptied = self.maps.words.remove(0, WORDS_BYTES).is_ok()
            && self.maps.extents.remove(0, EXTENTS_BYTES).is_ok();
        if emptied {
            self.unused.lock().expect("unused").push(self.maps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of a cache that could not be made after all were nobody's: a gigabyte of address space for
    /// each attempt.
    #[test]
    fn tables_are_used_again_whoever_dropped_them() {
        static UNUSED: Unused = Mutex::new(Vec::new());
        let address = |tables: &Tables| tables.maps.words.address();
        let (first, second) = (Tables::take(&UNUSED).unwrap(), Tables::take(&UNUSED).unwrap());
        let was = address(&first);
        assert_ne!(was, address(&second));
        drop(first);
        assert_eq!(address(&Tables::take(&UNUSED).unwrap()), was);
    }
}
