//! Sizes as people write them, in binary units.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `65536`, `64k`, `64M`, `1.5G`, `1T`. Units are powers of 1024, in either
/// case, with or without `iB` or `B`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Size(pub(crate) u64);

/// Text that is no size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotASize;

impl fmt::Display for NotASize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a size; write bytes as 65536, 64k, 64M or 1.5G (binary units)")
    }
}

impl std::error::Error for NotASize {}

const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Size, NotASize> {
        let lower = text.trim().to_ascii_lowercase();
        let digits_end =
            lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits_end);
        let shift = match unit.trim_start() {
            "" | "b" => 0,
            unit => {
                let (name, shift) =
                    *UNITS.iter().find(|u| unit.starts_with(u.0)).ok_or(NotASize)?;
                match unit.strip_prefix(name) {
                    Some("" | "b" | "ib") => shift,
                    _ => return Err(NotASize),
                }
            }
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || decimals.len() > 9 || number.ends_with('.') {
            return Err(NotASize);
        }
        let scale = 10u128.pow(decimals.len() as u32);
        let whole: u128 = whole.parse().map_err(|_| NotASize)?;
        let part: u128 =
            if decimals.is_empty() { 0 } else { decimals.parse().map_err(|_| NotASize)? };
        let units = whole.checked_mul(scale).and_then(|w| w.checked_add(part)).ok_or(NotASize)?;
        let bytes = units.checked_mul(1 << shift).ok_or(NotASize)? / scale;
        u64::try_from(bytes).map(Size).map_err(|_| NotASize)
    }
}

/// For people: `64 MiB`, `1.5 GiB`, `100 B`; three digits or more, rounded.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit < 4 {
            value /= 1024.0;
            unit += 1;
        }
        let unit = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
        if value.fract() == 0.0 || value >= 100.0 {
            write!(f, "{value:.0} {unit}")
        } else {
            write!(f, "{value:.1} {unit}")
        }
    }
}

impl<'de> serde::Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Memory for a simulation: a number of frames, or a size that is divided by the page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frames {
    /// So many frames.
    Count(u32),
    /// So many bytes.
    Bytes(Size),
}

impl Frames {
    /// The number of frames, each of `page_bytes`.
    pub(crate) fn count(self, page_bytes: u32) -> Option<u32> {
        match self {
            Frames::Count(frames) => Some(frames),
            Frames::Bytes(Size(bytes)) => u32::try_from(bytes / u64::from(page_bytes)).ok(),
        }
    }
}

impl FromStr for Frames {
    type Err = String;

    fn from_str(text: &str) -> Result<Frames, String> {
        if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
            return match text.parse() {
                Ok(0) => Err("a simulation needs at least one frame".into()),
                Ok(frames) => Ok(Frames::Count(frames)),
                Err(_) => Err(format!("at most {} frames", u32::MAX)),
            };
        }
        match text.parse() {
            Ok(size) => Ok(Frames::Bytes(size)),
            Err(NotASize) => Err("write a number of frames, as 1000, or a size, as 64M".into()),
        }
    }
}

/// A whole number, for options.
pub(crate) fn number<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<u64>().ok().and_then(|n| N::try_from(n).ok()));
    match number {
        Some(Some(number)) => Ok(number),
        Some(None) => Err("it is too large".to_owned()),
        None => Err("write a whole number, 0 or more, as 1000".to_owned()),
    }
}

/// A whole number between two.
pub(crate) fn number_in<const LEAST: u32, const MOST: u32>(text: &str) -> Result<u32, String> {
    let number = number::<u32>(text).ok().filter(|number| (LEAST..=MOST).contains(number));
    number.ok_or_else(|| match MOST {
        u32::MAX => format!("write a whole number, {LEAST} or more"),
        _ => format!("write a whole number from {LEAST} to {MOST}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_in_every_form() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65536),
            ("64k", 65536),
            ("64K", 65536),
            ("64KiB", 65536),
            ("1kB", 1024),
            ("64M", 64 << 20),
            ("1.5G", 3 << 29),
            (" 2 T ", 2 << 40),
            ("0.000000001k", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        let long = "9".repeat(60);
        for text in [
            "",
            "k",
            ".5M",
            "1.",
            "1..2",
            "-1",
            "1e3",
            "64X",
            "64Mi",
            "64MM",
            "0x10",
            "18446744073709551616",
            "16777216T",
            "1.0000000001k",
            &long,
        ] {
            assert_eq!(text.parse::<Size>(), Err(NotASize), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        for (bytes, text) in [
            (100, "100 B"),
            (1 << 20, "1 MiB"),
            (3 << 29, "1.5 GiB"),
            (64 << 20, "64 MiB"),
            (u64::MAX, "16777216 TiB"),
            (1234567, "1.2 MiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn frames_are_counts_or_sizes() {
        assert_eq!("1000".parse::<Frames>().unwrap().count(4096), Some(1000));
        assert_eq!("64M".parse::<Frames>().unwrap().count(4096), Some(16384));
        assert_eq!("64M".parse::<Frames>().unwrap().count(65536), Some(1024));
        for text in ["0", "", "-1", "x", "99999999999"] {
            assert!(text.parse::<Frames>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_refused_in_words() {
        assert_eq!(number::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(number::<u64>("18446744073709551616"), Err("it is too large".to_owned()));
        assert_eq!(number::<u32>("4294967296"), Err("it is too large".to_owned()));
        for text in ["", "-1", "+1", "1.5", "x", "0x1"] {
            assert!(number::<u64>(text).unwrap_err().contains("0 or more"), "{text}");
        }
        assert_eq!(number_in::<1, 9>("9"), Ok(9));
        for text in ["0", "10", "-1", "x"] {
            assert!(number_in::<1, 9>(text).unwrap_err().ends_with("from 1 to 9"), "{text}");
        }
        assert!(number_in::<1, { u32::MAX }>("0").unwrap_err().ends_with("1 or more"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(count in 0u64..1 << 23, unit in 0usize..5, upper: bool) {
            let unit = ["", "k", "m", "g", "t"][unit];
            let unit = if upper { unit.to_uppercase() } else { unit.to_owned() };
            let shift = UNITS.iter().find(|u| unit.eq_ignore_ascii_case(&u.0.to_string()));
            let expected = count << shift.map_or(0, |u| u.1);
            prop_assert_eq!(format!("{count}{unit}").parse(), Ok(Size(expected)));
            prop_assert_eq!(format!("{count}.0{unit}").parse(), Ok(Size(expected)));
        }

        #[test]
        fn decimals_are_a_share_of_the_unit(whole in 0u64..1000, thousandths in 0u64..1000) {
            let text = format!("{whole}.{thousandths:03}M");
            let expected = ((whole * 1000 + thousandths) << 20) / 1000;
            prop_assert_eq!(text.parse(), Ok(Size(expected)));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Frames>();
        }
    }
}
