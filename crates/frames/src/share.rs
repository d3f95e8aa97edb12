//! How much seeing touches may cost.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Touches of unmapped pages that take as long as one miss.
const TOUCHES_PER_MISS: u32 = 2;

/// Hundredths of a touch in one touch.
pub(crate) const TOUCH: i64 = 100;

/// The most that seeing touches may cost, in percent of what misses cost, 0 to 100. As misses take
/// no longer than the run, it is at most that share of the run's time, too.
///
/// Decisions know no clock: a page evicted stands for a miss, and two touches seen for the time of
/// one. A page that read-ahead brought in counts as a miss, and takes less time than one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SamplingShare(u32);

/// A number that is no share of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("not a share of time; write a whole percentage from 0 (no sampling) to 100, as 25")]
pub struct NotAShare;

impl SamplingShare {
    /// Nothing: no touch is made visible.
    pub const NONE: SamplingShare = SamplingShare(0);
    /// What is spent where nothing is said. With less, policies know too little of hot pages; with
    /// more, faults cost what they save (`bench/RESULTS.md`, "What sampling costs and buys").
    pub const USUAL: SamplingShare = SamplingShare(25);

    /// So many percent.
    ///
    /// # Errors
    /// More than a hundred.
    pub fn of_percent(percent: u32) -> Result<SamplingShare, NotAShare> {
        if percent <= 100 { Ok(SamplingShare(percent)) } else { Err(NotAShare) }
    }

    /// In percent.
    pub fn percent(self) -> u32 {
        self.0
    }

    /// What so many evictions pay for, in hundredths of a [`TOUCH`].
    pub(crate) fn touches_of(self, evictions: u32) -> i64 {
        i64::from(evictions) * i64::from(self.0 * TOUCHES_PER_MISS)
    }

    /// What suits the usual share, in proportion.
    pub(crate) fn scaled(self, usual: u32) -> u32 {
        let scaled = u64::from(usual) * u64::from(self.0) / u64::from(SamplingShare::USUAL.0);
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }
}

impl Default for SamplingShare {
    fn default() -> SamplingShare {
        SamplingShare::USUAL
    }
}

impl fmt::Display for SamplingShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// A whole percentage, with or without its sign.
impl FromStr for SamplingShare {
    type Err = NotAShare;

    fn from_str(text: &str) -> Result<SamplingShare, NotAShare> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NotAShare);
        }
        SamplingShare::of_percent(digits.parse().map_err(|_| NotAShare)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_percentages() {
        for (text, percent) in [("0", 0), ("1%", 1), ("25", 25), ("100%", 100), ("007", 7)] {
            assert_eq!(text.parse::<SamplingShare>().map(SamplingShare::percent), Ok(percent));
        }
        for text in ["", "%", "101", "-1", "+1", "0.5", "1 %", "25%%", "99999999999"] {
            assert_eq!(text.parse::<SamplingShare>(), Err(NotAShare), "{text}");
        }
        assert_eq!(SamplingShare::default().to_string(), "25%");
    }

    #[test]
    fn nothing_overflows() {
        let all = SamplingShare::of_percent(100).unwrap();
        assert_eq!(all.touches_of(u32::MAX), 2 * TOUCH * i64::from(u32::MAX));
        assert_eq!(all.scaled(u32::MAX), u32::MAX);
    }
}
