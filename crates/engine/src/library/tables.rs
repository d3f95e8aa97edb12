//! Page tables of caches: a gigabyte of address space each, which lives as long as the process and
//! is used again by later caches.

use crate::table::{EXTENTS_BYTES, Table, WORDS_BYTES};
use pagekeeper_sys::Errno;
use pagekeeper_sys::shared::SharedMap;
use std::sync::Mutex;

/// Tables of one cache.
#[derive(Debug)]
pub(crate) struct Tables {
    words: &'static SharedMap,
    extents: &'static SharedMap,
}

impl Tables {
    pub(crate) fn table(&self) -> Table {
        Table::new(self.words.all(), self.extents.all())
    }
}

/// Tables without an entry.
pub(crate) fn take(unused: &Mutex<Vec<Tables>>) -> Result<Tables, Errno> {
    if let Some(tables) = unused.lock().expect("unused").pop() {
        return Ok(tables);
    }
    let map = |name, bytes| -> Result<&'static SharedMap, Errno> {
        Ok(Box::leak(Box::new(SharedMap::create(name, bytes)?.1)))
    };
    let words = map("pagekeeper-words", WORDS_BYTES)?;
    Ok(Tables { words, extents: map("pagekeeper-extents", EXTENTS_BYTES)? })
}

/// Nobody uses these any more.
pub(crate) fn give_back(tables: Tables, unused: &Mutex<Vec<Tables>>) {
    let emptied = tables.words.remove(0, WORDS_BYTES).is_ok()
        && tables.extents.remove(0, EXTENTS_BYTES).is_ok();
    if emptied {
        unused.lock().expect("unused").push(tables);
    }
}
