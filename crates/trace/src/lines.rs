//! Lines of a text, in a buffer that does not grow.

use std::io::{self, Read};

/// Longest line, with its end.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 4 * LINE_BYTES_MAX;

/// Why there is no next line.
#[derive(Debug)]
pub(crate) enum LineError {
    /// The input cannot be read.
    Read(io::Error),
    /// The line is longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Reads lines.
pub(crate) struct Lines<R> {
    input: R,
    buffer: Box<[u8]>,
    /// The part of the buffer that was read and not given out.
    start: usize,
    end: usize,
    at_end: bool,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { input, buffer, start: 0, end: 0, at_end: false, number: 0 }
    }

    /// Number of the line that was given out last, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The next line, without its `\n`; `None` at the end. The last needs no `\n`.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, LineError> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(length) = memchr::memchr(b'\n', &unread[searched..]) {
                let line = self.start..self.start + searched + length;
                self.start = line.end + 1;
                self.number += 1;
                if line.len() >= LINE_BYTES_MAX {
                    return Err(LineError::TooLong);
                }
                return Ok(Some(&self.buffer[line]));
            }
            searched = unread.len();
            if searched >= LINE_BYTES_MAX {
                self.number += 1;
                return Err(LineError::TooLong);
            }
            if self.at_end {
                if searched == 0 {
                    return Ok(None);
                }
                let line = self.start..self.end;
                self.start = self.end;
                self.number += 1;
                return Ok(Some(&self.buffer[line]));
            }
            self.refill().map_err(LineError::Read)?;
        }
    }

    /// The first bytes that were not given out, to show in a message.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn refill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    self.at_end = count == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives as many bytes at a time as it is told.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    proptest! {
        #[test]
        fn lines_are_those_of_a_split(
            text in "[ab\n]{0,80}",
            step in 1usize..9,
        ) {
            let mut lines = Lines::new(Trickle(text.as_bytes(), step));
            let mut found = Vec::new();
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
            let mut expected: Vec<_> = text.split('\n').map(str::to_owned).collect();
            if expected.last().is_some_and(String::is_empty) {
                expected.pop();
            }
            prop_assert_eq!(lines.number(), expected.len() as u64);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_line_without_end_is_refused_in_bounded_memory() {
        let mut lines = Lines::new(io::Cursor::new(b"1\n").chain(io::repeat(b'7')));
        assert_eq!(lines.next().unwrap(), Some(&b"1"[..]));
        assert!(matches!(lines.next(), Err(LineError::TooLong)));
        assert_eq!(lines.number(), 2);
        assert!(lines.ahead().starts_with(b"777"));
    }
}
