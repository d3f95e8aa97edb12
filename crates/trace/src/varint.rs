//! Variable-length integers: seven bits a byte, low bits first, the high bit says that more
//! follow (LEB128).

/// Appends `value`.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the difference `to - from`, small in either direction.
#[inline]
pub(crate) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    let difference = to.wrapping_sub(from) as i64;
    put(out, ((difference << 1) ^ (difference >> 63)) as u64);
}

/// Undoes [`put_delta`].
#[inline]
pub(crate) fn apply_delta(from: u64, coded: u64) -> u64 {
    from.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg())
}

/// Part of a buffer that is read from its front.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    at: usize,
    end: usize,
}

/// Why a content that passed its checksum cannot be decoded: its writer is broken or hostile.
pub(crate) type Malformed = &'static str;

impl Cursor {
    /// A cursor over `at..end`, which the caller checked against the buffer.
    pub(crate) fn new(at: usize, end: usize) -> Self {
        Self { at, end }
    }

    /// Whether nothing is left.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    /// How many bytes are left.
    pub(crate) fn len(&self) -> usize {
        self.end - self.at
    }

    /// Takes one byte.
    #[inline]
    pub(crate) fn byte(&mut self, content: &[u8]) -> Result<u8, Malformed> {
        if self.is_empty() {
            return Err("a column ends early");
        }
        let byte = *content.get(self.at).ok_or("a column ends early")?;
        self.at += 1;
        Ok(byte)
    }

    /// Takes an integer.
    #[inline]
    pub(crate) fn varint(&mut self, content: &[u8]) -> Result<u64, Malformed> {
        let first = self.byte(content)?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        loop {
            let byte = self.byte(content)?;
            if shift == 63 && byte > 1 {
                return Err("an integer has more than 64 bits");
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    /// Takes an integer of 32 bits.
    #[inline]
    pub(crate) fn varint32(&mut self, content: &[u8]) -> Result<u32, Malformed> {
        u32::try_from(self.varint(content)?).map_err(|_| "an integer has more than 32 bits")
    }

    /// Takes `length` bytes.
    pub(crate) fn bytes<'c>(
        &mut self,
        content: &'c [u8],
        length: usize,
    ) -> Result<&'c [u8], Malformed> {
        if length > self.len() {
            return Err("a text is longer than its column");
        }
        let bytes = content.get(self.at..self.at + length).ok_or("a column ends early")?;
        self.at += length;
        Ok(bytes)
    }

    /// Takes a length, no more than `limit`, and as many bytes.
    pub(crate) fn text<'c>(
        &mut self,
        content: &'c [u8],
        limit: usize,
    ) -> Result<&'c [u8], Malformed> {
        let length = self.varint(content)?;
        if length > limit as u64 {
            return Err("a text is longer than allowed");
        }
        self.bytes(content, length as usize)
    }
}

/// Appends a length and the bytes.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, text.len() as u64);
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn integers_come_back(value in any::<u64>(), shift in 0u32..64, from in any::<u64>()) {
            let value = value >> shift;
            let mut out = Vec::new();
            put(&mut out, value);
            put_delta(&mut out, from, value);
            let mut cursor = Cursor::new(0, out.len());
            prop_assert_eq!(cursor.varint(&out), Ok(value));
            prop_assert_eq!(apply_delta(from, cursor.varint(&out).unwrap()), value);
            prop_assert!(cursor.is_empty());
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let mut cursor = Cursor::new(0, bytes.len());
            while cursor.varint(&bytes).is_ok() {}
            let _ = Cursor::new(0, bytes.len()).text(&bytes, 8);
        }
    }

    #[test]
    fn integers_that_are_too_long_are_refused() {
        let mut long = vec![0xff; 9];
        long.push(2);
        assert!(Cursor::new(0, 10).varint(&long).is_err());
        long[9] = 1;
        assert_eq!(Cursor::new(0, 10).varint(&long), Ok(u64::MAX));
        long[9] = 0x81;
        long.push(0);
        assert!(Cursor::new(0, 11).varint(&long).is_err());
    }
}
