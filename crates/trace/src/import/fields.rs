//! Fields of a line of text.

/// A decimal number without a sign; `None` if it is none, or needs more than 64 bits.
#[inline]
pub(super) fn decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0u64, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// A hexadecimal number, with or without `0x`.
#[inline]
pub(super) fn hexadecimal(field: &[u8]) -> Option<u64> {
    let digits = field.strip_prefix(b"0x").or_else(|| field.strip_prefix(b"0X")).unwrap_or(field);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        if number >> 60 != 0 {
            return None;
        }
        Some(number << 4 | u64::from(digit))
    })
}

/// A decimal number with or without a fraction, in nanoseconds where 1 is `unit_ns`. Digits beyond
/// the ninth of the fraction are cut off.
pub(super) fn time_ns(field: &[u8], unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = match memchr::memchr(b'.', field) {
        Some(at) => (&field[..at], &field[at + 1..]),
        None => (field, &b""[..]),
    };
    let whole = decimal(whole)?.checked_mul(unit_ns)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = &fraction[..fraction.len().min(9)];
    let scale = 10u128.pow(digits.len() as u32);
    let part = u128::from(decimal(digits)?) * u128::from(unit_ns) / scale;
    whole.checked_add(part as u64)
}

/// The fields between spaces and tabs.
#[inline]
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_and_what_is_none() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(hexadecimal(b"0xffffffffffffffff"), Some(u64::MAX));
        assert_eq!(hexadecimal(b"04Fe"), Some(0x4fe));
        for none in ["", "-1", "+1", "1 ", "18446744073709551616", "1x"] {
            assert_eq!(decimal(none.as_bytes()), None, "{none}");
        }
        for none in ["", "0x", "g", "0x10000000000000000", "-1"] {
            assert_eq!(hexadecimal(none.as_bytes()), None, "{none}");
        }
        assert_eq!(time_ns(b"1231.623876", 1_000_000_000), Some(1_231_623_876_000));
        assert_eq!(time_ns(b"0.5", 1), Some(0));
        assert_eq!(time_ns(b"7", 1_000), Some(7_000));
        for none in [".5", "1.x", "1e3", "18446744073709551615"] {
            assert_eq!(time_ns(none.as_bytes(), 1_000_000_000), None, "{none}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number: u64) {
            prop_assert_eq!(decimal(number.to_string().as_bytes()), Some(number));
            prop_assert_eq!(hexadecimal(format!("{number:x}").as_bytes()), Some(number));
            prop_assert_eq!(hexadecimal(format!("{number:#X}").as_bytes()), Some(number));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30), unit in 1u64..1 << 40) {
            let _ = (decimal(&bytes), hexadecimal(&bytes), time_ns(&bytes, unit));
        }
    }
}
