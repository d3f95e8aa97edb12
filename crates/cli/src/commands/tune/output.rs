//! What a run of the program wrote to standard output, to compare runs.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::path::Path;
use twox_hash::XxHash3_64;

const BUFFER_BYTES: usize = 64 << 10;

/// The output of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    bytes: u64,
    hash: u64,
    /// The first byte that is not that of the first run, where both were at hand.
    differs_at: Option<u64>,
}

/// What is done with output while it is read.
pub(super) enum Handling<'a> {
    /// Shown to the user; and kept in a file, if byte for byte comparison is asked for.
    Show(&'a mut dyn Write, Option<&'a Path>),
    /// Compared with what was kept.
    Compare(Option<&'a Path>),
}

/// Reads output to its end.
///
/// # Errors
/// It cannot be read, or shown or kept.
pub(super) fn take(mut pipe: impl Read, handling: Handling<'_>) -> io::Result<Output> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut hasher = XxHash3_64::new();
    let mut output = Output::default();
    let (mut show, mut keep, mut kept) = match handling {
        Handling::Show(show, keep) => (Some(show), keep.map(File::create).transpose()?, None),
        Handling::Compare(kept) => (None, None, kept.map(File::open).transpose()?),
    };
    loop {
        let n = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let part = &buffer[..n];
        hasher.write(part);
        if let Some(to) = &mut show
            && to.write_all(part).and_then(|()| to.flush()).is_err()
        {
            // Whoever watched has gone; the runs go on.
            show = None;
        }
        if let Some(file) = &mut keep {
            file.write_all(part)?;
        }
        if let Some(file) = &mut kept
            && output.differs_at.is_none()
        {
            let mut expected = Vec::with_capacity(n);
            Read::by_ref(file).take(n as u64).read_to_end(&mut expected)?;
            let equal = expected.iter().zip(part).take_while(|(a, b)| a == b).count();
            output.differs_at = (equal < n).then_some(output.bytes + equal as u64);
        }
        output.bytes += n as u64;
    }
    output.hash = hasher.finish();
    Ok(output)
}

impl Output {
    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How another run's output differs from this one's, in words.
    pub(super) fn difference(&self, other: &Output) -> Option<String> {
        if let Some(at) = other.differs_at {
            return Some(format!("its output differs from byte {at} on"));
        }
        if self.bytes != other.bytes {
            return Some(format!("it wrote {} bytes, not {}", other.bytes, self.bytes));
        }
        (self.hash != other.hash).then(|| "its output differs".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes in pieces of odd sizes.
    struct Pieces<'a>(&'a [u8]);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(buffer.len()).min(7 + self.0.len() % 1000);
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn outputs_are_compared_whatever_pieces_they_come_in() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("kept");
        let text: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let mut shown = Vec::new();
        let first = take(&text[..], Handling::Show(&mut shown, Some(&kept))).unwrap();
        assert_eq!(shown, text);
        for path in [Some(kept.as_path()), None] {
            let other = take(Pieces(&text), Handling::Compare(path)).unwrap();
            assert_eq!(first.difference(&other), None);
            let mut changed = text.clone();
            changed[123_456] ^= 1;
            let other = take(Pieces(&changed), Handling::Compare(path)).unwrap();
            let found = first.difference(&other).unwrap();
            assert_eq!(found.contains("byte 123456 on"), path.is_some(), "{found}");
            for other in [&text[..9], &[&text[..], b"x"].concat()] {
                let other = take(Pieces(other), Handling::Compare(path)).unwrap();
                assert!(first.difference(&other).is_some());
            }
        }
    }
}
