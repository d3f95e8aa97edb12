//! Files of the HiPEC paper's programs: written from front to back, and mapped.

use memmap2::{Advice, Mmap};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Maps a file to be read, perhaps with the advice that touches are random (MADV_RANDOM).
pub fn map(path: &Path, advise_random: bool) -> Result<Mmap, Box<dyn Error>> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    // SAFETY: only this program's own files are mapped, which nobody truncates.
    let map = unsafe { Mmap::map(&file)? };
    if advise_random {
        map.advise(Advice::Random)?;
    }
    Ok(map)
}

/// Writes a file of 64-bit words.
pub fn write_words(path: &Path, words: impl Iterator<Item = u64>) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for word in words {
        out.write_all(&word.to_le_bytes())?;
    }
    Ok(out.flush()?)
}
