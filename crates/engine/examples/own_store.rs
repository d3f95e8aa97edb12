//! A store of one's own, with a checksum for every page:
//! `cargo run --release -p pagekeeper --example own_store`.
//!
//! The cache knows nothing of checksums. A page whose bytes rotted is an error of the read that
//! needs it (EIO), and of no other.

use pagekeeper::library::{Advice, Cache, Store};
use std::collections::HashMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::{Arc, Mutex};

/// Pages with their checksums, in memory; a file or an object store would do as well.
#[derive(Default)]
struct Checked {
    pages: Mutex<HashMap<u64, (Vec<u8>, u64)>>,
}

const LEN: u64 = 1 << 20;

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

struct Handle(Arc<Checked>);

impl Store for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(LEN)
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        let stored = self.0.pages.lock().expect("pages");
        for (i, page) in pages.chunks_mut(4096).enumerate() {
            match stored.get(&(offset + i as u64 * 4096)) {
                Some((bytes, sum)) if checksum(bytes) == *sum => page.copy_from_slice(bytes),
                Some(_) => return Err(io::Error::other("a page has rotted")),
                None => page.fill(0),
            }
        }
        Ok(pages.len())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut stored = self.0.pages.lock().expect("pages");
        for (i, page) in bytes.chunks(4096).enumerate() {
            stored.insert(offset + i as u64 * 4096, (page.to_vec(), checksum(page)));
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let checked = Arc::new(Checked::default());
    // A quarter of the store fits.
    let cache = Cache::new(256 << 10)?;
    let segment = cache.open_store(Handle(checked.clone()), "checked")?;
    for at in (0..LEN).step_by(4096) {
        segment.write_all_at(&at.to_le_bytes(), at)?;
    }
    segment.flush()?;
    // Nothing stays in memory, and what is stored rots.
    segment.advise(0..LEN, Advice::DontNeed)?;
    checked.pages.lock().expect("pages").get_mut(&0).expect("stored").0[7] ^= 1;
    let mut word = [0; 8];
    let error = segment.read_at(&mut word, 0).expect_err("a checksum that does not match");
    segment.read_exact_at(&mut word, 4096)?;
    println!("page 0: {error}; page 1: {}", u64::from_le_bytes(word));
    Ok(())
}
