//! How pages are compressed, and whether it is worth trying.

use lz4_flex::block;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// How sure a pool is, at most, that pages compress: each one that does counts for, each that does not
/// against it.
const HOPE_MAX: u32 = 64;
/// Below this it takes for granted that they do not.
const HOPE_LEAST: u32 = 16;

/// How pages are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Codec {
    /// LZ4 blocks: about 1 µs for 4 KiB either way.
    #[default]
    Lz4,
    /// Zstandard at a level (1 to 22): denser, several times slower.
    Zstd(i32),
}

/// Packs and unpacks pages. Threads share it, and none waits for another's work.
pub(super) struct Packer {
    codec: Codec,
    /// Contexts of Zstandard that are not in use: making one is dearer than a page.
    packers: Mutex<Vec<zstd::bulk::Compressor<'static>>>,
    unpackers: Mutex<Vec<zstd::bulk::Decompressor<'static>>>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("codec", &self.codec).finish_non_exhaustive()
    }
}

impl Packer {
    pub(super) fn new(codec: Codec) -> Packer {
        Packer { codec, packers: Mutex::default(), unpackers: Mutex::default() }
    }

    /// The compressed bytes.
    pub(super) fn pack(&self, page: &[u8]) -> io::Result<Vec<u8>> {
        let room = match self.codec {
            Codec::Lz4 => block::get_maximum_output_size(page.len()),
            Codec::Zstd(_) => zstd::zstd_safe::compress_bound(page.len()),
        };
        let mut out = vec![0; room];
        let len = match self.codec {
            Codec::Lz4 => block::compress_into(page, &mut out).map_err(io::Error::other)?,
            Codec::Zstd(level) => {
                let idle = self.packers.lock().expect("contexts").pop();
                let mut context = match idle {
                    Some(context) => context,
                    None => zstd::bulk::Compressor::new(level)?,
                };
                let len = context.compress_to_buffer(page, &mut out[..])?;
                self.packers.lock().expect("contexts").push(context);
                len
            }
        };
        out.truncate(len);
        Ok(out)
    }

    /// Fills a page with what was compressed of one as long.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`], or the codec's own: it is not.
    pub(super) fn unpack(&self, packed: &[u8], page: &mut [u8]) -> io::Result<()> {
        let len = match self.codec {
            Codec::Lz4 => block::decompress_into(packed, page).map_err(io::Error::other)?,
            Codec::Zstd(_) => {
                let idle = self.unpackers.lock().expect("contexts").pop();
                let mut context = match idle {
                    Some(context) => context,
                    None => zstd::bulk::Decompressor::new()?,
                };
                let len = context.decompress_to_buffer(packed, page)?;
                self.unpackers.lock().expect("contexts").push(context);
                len
            }
        };
        if len == page.len() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

/// Whether pages have compressed lately.
#[derive(Debug)]
pub(super) struct Hope(AtomicU32);

impl Hope {
    pub(super) fn new() -> Hope {
        Hope(AtomicU32::new(HOPE_MAX))
    }

    pub(super) fn is_high(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= HOPE_LEAST
    }

    /// A page did compress, or did not.
    pub(super) fn learn(&self, compressed: bool) {
        let to = |hope: u32| match compressed {
            true => (hope + 1).min(HOPE_MAX),
            false => hope.saturating_sub(1),
        };
        // Nothing else is told by it.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |hope| Some(to(hope)));
    }
}
