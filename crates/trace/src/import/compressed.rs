//! Inputs that were compressed as a whole, by zstd or gzip, read as they are.

use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files are read in pieces of this size.
const BUFFER_BYTES: usize = 256 << 10;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The first byte of a zstd skippable frame's magic is one of 0x50 to 0x5f; parallel compressors
/// start files with one. Our own format starts with 0x5e.
const SKIPPABLE_MAGIC: [u8; 3] = [0x2a, 0x4d, 0x18];
const OWN_SKIPPABLE: u8 = 0x5e;
const GZIP_MAGIC: [u8; 3] = [0x1f, 0x8b, 0x08];

/// Anything that can be read.
pub(super) type Input = Box<dyn Read + Send>;

/// Takes up to `bytes` from the front, and gives back an input that still has them. An error
/// behind the first byte comes where it came: after what was read before it.
pub(super) fn peek(mut input: Input, bytes: usize) -> io::Result<(Vec<u8>, Input)> {
    let mut start = Vec::with_capacity(bytes);
    let error = (&mut input).take(bytes as u64).read_to_end(&mut start).err();
    if start.is_empty()
        && let Some(error) = error
    {
        return Err(error);
    }
    let whole = Cursor::new(start.clone()).chain(Failing(error)).chain(input);
    Ok((start, Box::new(BufReader::with_capacity(BUFFER_BYTES, whole))))
}

/// Gives an error once, if it has one.
struct Failing(Option<io::Error>);

impl Read for Failing {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// As [`peek`], of what is inside a compressed input.
pub(super) fn peek_inside(input: Input, bytes: usize) -> io::Result<(Vec<u8>, Input)> {
    let read_bytes = Arc::new(AtomicU64::new(0));
    let counted = Counted { input, read_bytes: Arc::clone(&read_bytes) };
    let (start, input) = peek(Box::new(counted), bytes)?;
    let skippable = start.len() >= 4
        && start[0] & 0xf0 == 0x50
        && start[0] != OWN_SKIPPABLE
        && start[1..4] == SKIPPABLE_MAGIC;
    let (format, decoder): (_, Input) = if start.starts_with(&ZSTD_MAGIC) || skippable {
        ("zstd", Box::new(zstd::stream::read::Decoder::new(input)?))
    } else if start.starts_with(&GZIP_MAGIC) {
        ("gzip", Box::new(flate2::read::MultiGzDecoder::new(input)))
    } else {
        return Ok((start, input));
    };
    peek(Box::new(Decompressed { decoder, format, read_bytes }), bytes)
}

/// The name of what is inside a compressed file.
pub(super) fn name_inside(name: &Path) -> &Path {
    match name.extension().and_then(|extension| extension.to_str()) {
        Some("zst" | "zstd" | "gz") => name.file_stem().map_or(name, Path::new),
        _ => name,
    }
}

struct Counted {
    input: Input,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

struct Decompressed {
    decoder: Input,
    format: &'static str,
    read_bytes: Arc<AtomicU64>,
}

impl Read for Decompressed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| {
            // What the system says is about the disk; all else is about the data.
            if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            let (format, before) = (self.format, self.read_bytes.load(Ordering::Relaxed));
            let text = format!(
                "the {format} data is cut or damaged within the first {before} compressed bytes \
                 ({error}); check it with `{format} -t` and fetch it again"
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}
