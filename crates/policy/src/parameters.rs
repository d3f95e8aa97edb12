//! Parameters of policies: what may be set, and what was set.
use std::borrow::Cow;
use std::fmt;

/// A share written as a ratio, so that two thirds of a number of pages is exact.
#[derive(Clone, Copy, Debug)]
pub struct Fraction {
    numerator: u32,
    denominator: u32,
}

impl Fraction {
    /// `numerator / denominator`.
    ///
    /// # Panics
    /// If the denominator is zero.
    pub const fn new(numerator: u32, denominator: u32) -> Self {
        assert!(denominator != 0, "a fraction's denominator is not zero");
        Self { numerator, denominator }
    }

    /// This share of `count`, rounded down, at most `u32::MAX`.
    pub const fn of(self, count: u32) -> u32 {
        let share = self.numerator as u64 * count as u64 / self.denominator as u64;
        if share > u32::MAX as u64 { u32::MAX } else { share as u32 }
    }

    /// The ratio as a floating-point number.
    pub fn to_f64(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// Reads `2/3`, `0.25` (up to nine decimals) or `25%`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((numerator, denominator)) = text.split_once('/') {
            let denominator = number(denominator)?;
            return (denominator != 0)
                .then_some(Self { numerator: number(numerator)?, denominator });
        }
        let (text, scale) = match text.strip_suffix('%') {
            Some(percent) => (percent, 100),
            None => (text, 1),
        };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() && decimals.is_empty() || decimals.len() > 9 {
            return None;
        }
        let denominator = 10_u64.pow(decimals.len() as u32);
        let whole: u64 = if whole.is_empty() { 0 } else { number(whole)?.into() };
        let part: u64 = if decimals.is_empty() { 0 } else { number(decimals)?.into() };
        Self::reduced(whole * denominator + part, denominator * scale)
    }

    fn reduced(numerator: u64, denominator: u64) -> Option<Self> {
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(Self {
            numerator: (numerator / a).try_into().ok()?,
            denominator: (denominator / a).try_into().ok()?,
        })
    }
}

/// A `u32` of plain digits: no sign, no space.
fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl PartialEq for Fraction {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(std::cmp::Ordering::Equal)
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        let left = u64::from(self.numerator) * u64::from(other.denominator);
        let right = u64::from(other.numerator) * u64::from(self.denominator);
        Some(left.cmp(&right))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

/// What values a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number within the bounds, both included.
    Integer {
        /// The lowest value.
        least: u64,
        /// The highest value.
        most: u64,
    },
    /// A share within the bounds, both included: `2/3`, `0.25` or `25%`.
    Fraction {
        /// The lowest value.
        least: Fraction,
        /// The highest value.
        most: Fraction,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text that the policy reads itself, such as a list with `+` between its items; this says
    /// what it is, for people. A comma cannot be in it.
    Text {
        /// What the text has to be, as in "must be …".
        what: &'static str,
        /// Whether the policy can read it.
        reads: fn(&str) -> bool,
    },
    /// Text that another parameter's text has to agree with, such as one item of a list there.
    Item {
        /// What the text has to be, as in "must be …".
        what: &'static str,
        /// The other parameter's key; that one is of [`Kind::Text`].
        of: &'static str,
        /// Whether the other parameter's text, which comes first, has this one.
        has: fn(&str, &str) -> bool,
    },
}

impl Kind {
    /// Reads a value of this kind; `None` if the text is none, or out of bounds.
    pub fn parse(self, text: &str) -> Option<Value> {
        match self {
            Kind::Integer { least, most } => {
                let value = text.parse().ok().filter(|value| (least..=most).contains(value))?;
                Some(Value::Integer(value))
            }
            Kind::Fraction { least, most } => {
                let value = Fraction::parse(text).filter(|v| *v >= least && *v <= most)?;
                Some(Value::Fraction(value))
            }
            Kind::Choice(words) => {
                words.iter().find(|word| **word == text).map(|word| Value::Choice(word))
            }
            Kind::Text { reads, .. } => {
                reads(text).then(|| Value::Text(Cow::Owned(text.to_owned())))
            }
            // All parameters have to be known first.
            Kind::Item { .. } => Some(Value::Text(Cow::Owned(text.to_owned()))),
        }
    }
}

/// For people: "a whole number from 1 to 8".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Integer { least, most } => write!(f, "a whole number from {least} to {most}"),
            Kind::Fraction { least, most } => {
                write!(f, "a share from {least} to {most}, such as 2/3, 0.25 or 25%")
            }
            Kind::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Text { what, .. } | Kind::Item { what, .. } => f.write_str(what),
        }
    }
}

/// A parameter's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Integer`].
    Integer(u64),
    /// Of [`Kind::Fraction`].
    Fraction(Fraction),
    /// Of [`Kind::Choice`].
    Choice(&'static str),
    /// Of [`Kind::Text`] and [`Kind::Item`].
    Text(Cow<'static, str>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Integer(value) => value.fmt(f),
            Value::Fraction(value) => value.fmt(f),
            Value::Choice(word) => f.write_str(word),
            Value::Text(text) => f.write_str(text),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Value {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A parameter that a policy takes.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ParameterInfo {
    /// Its name in `policy:key=value`.
    pub key: &'static str,
    /// What it does, in one line.
    pub meaning: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// Its value when none is given.
    pub default: Value,
}

/// Values for all parameters of one policy: those given, and defaults for the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    pub(crate) infos: &'static [ParameterInfo],
    pub(crate) values: Vec<Value>,
}

impl PartialEq for ParameterInfo {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Parameters {
    /// All defaults.
    pub fn defaults(infos: &'static [ParameterInfo]) -> Self {
        Self { infos, values: infos.iter().map(|info| info.default.clone()).collect() }
    }

    /// The value of a parameter.
    ///
    /// # Panics
    /// If the policy's row names no such parameter: an error in that policy's file.
    pub fn value(&self, key: &str) -> Value {
        match self.infos.iter().position(|info| info.key == key) {
            Some(place) => self.values[place].clone(),
            None => panic!("the registry row has no parameter `{key}`"),
        }
    }

    /// The value of an integer parameter.
    ///
    /// # Panics
    /// If the row names no such parameter, or one of another kind.
    pub fn integer(&self, key: &str) -> u64 {
        match self.value(key) {
            Value::Integer(value) => value,
            _ => panic!("parameter `{key}` is not an integer"),
        }
    }

    /// The value of a fraction.
    ///
    /// # Panics
    /// If the row names no such parameter, or one of another kind.
    pub fn fraction(&self, key: &str) -> Fraction {
        match self.value(key) {
            Value::Fraction(value) => value,
            _ => panic!("parameter `{key}` is not a share"),
        }
    }

    /// The word chosen.
    ///
    /// # Panics
    /// If the row names no such parameter, or one of another kind.
    pub fn choice(&self, key: &str) -> &'static str {
        match self.value(key) {
            Value::Choice(word) => word,
            _ => panic!("parameter `{key}` is not a choice"),
        }
    }

    /// The text given.
    ///
    /// # Panics
    /// If the row names no such parameter, or one of another kind.
    pub fn text(&self, key: &str) -> String {
        match self.value(key) {
            Value::Text(text) => text.into_owned(),
            _ => panic!("parameter `{key}` is not text"),
        }
    }

    /// The first whose text does not agree with the parameter that it goes with: its key, its text,
    /// and what that has to be.
    pub(crate) fn disagreeing(&self) -> Option<(&'static str, String, String)> {
        self.infos.iter().find_map(|info| {
            let Kind::Item { what, of, has } = info.kind else { return None };
            let (list, item) = (self.text(of), self.text(info.key));
            (!has(&list, &item)).then(|| (info.key, item, format!("{what} in `{of}={list}`")))
        })
    }

    /// Parameters whose value is not the default, as key and value.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        self.infos
            .iter()
            .zip(&self.values)
            .filter(|(info, value)| info.default != **value)
            .map(|(info, value)| (info.key, value.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_read_in_every_form_and_are_exact() {
        assert_eq!(Fraction::parse("2/3"), Some(Fraction::new(2, 3)));
        assert_eq!(Fraction::parse("0.25"), Some(Fraction::new(1, 4)));
        assert_eq!(Fraction::parse(".5"), Some(Fraction::new(1, 2)));
        assert_eq!(Fraction::parse("25%"), Some(Fraction::new(1, 4)));
        assert_eq!(Fraction::parse("2.5%"), Some(Fraction::new(1, 40)));
        assert_eq!(Fraction::parse("1"), Some(Fraction::new(1, 1)));
        assert_eq!(Fraction::parse("0"), Some(Fraction::new(0, 1)));
        for text in ["", ".", "%", "1/0", "-1", "+1", "1/-2", "x", "0.0000000001", "1e3", "1//2"] {
            assert_eq!(Fraction::parse(text), None, "{text}");
        }
        for count in [0, 1, 2, 3, 300, 3_000_000_000] {
            assert_eq!(u64::from(Fraction::new(2, 3).of(count)), u64::from(count) * 2 / 3);
        }
        assert_eq!(Fraction::new(3, 1).of(u32::MAX), u32::MAX);
    }
}
