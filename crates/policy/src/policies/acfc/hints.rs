//! The hints' text, and what it says of a segment.
use std::collections::BTreeMap;

use crate::Segment;

/// What programs say of their segments.
///
/// As text, items with `+` between them, each `[PROGRAM/]SEGMENTS@PRIORITY[:POLICY]`:
///
/// | part | meaning |
/// | --- | --- |
/// | `PROGRAM` | a number for the program that gives the hint, 0 without it; only pages of one program are exchanged for each other |
/// | `SEGMENTS` | a segment's number, a range of them such as `2-5`, or `*` for all that no item names |
/// | `PRIORITY` | a whole number, perhaps negative; pages of a program's lowest priority leave first |
/// | `POLICY` | `lru` or `mru`, for all of the program's pages of this priority; `lru` without it |
///
/// So `0@1+1@-1:mru` keeps segment 0 longer than segment 1, whose pages leave newest first. These
/// are the paper's calls `set_priority` (of a file) and `set_policy` (of a priority). Its
/// `set_temppri`, which is about pages that are resident just then, has no place in hints that are
/// given beforehand.
///
/// A segment or `*` comes once, and a priority of one program has one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// By program, and then from the priority that leaves first.
    levels: Vec<LevelHint>,
    /// First segment of a range → the last one, and its level.
    segments: BTreeMap<u32, (u32, usize)>,
    others: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LevelHint {
    program: u32,
    priority: i32,
    is_mru: bool,
}

/// One item: of which segments it is, `None` for all others, and their level.
fn item(text: &str) -> Option<(Option<(u32, u32)>, LevelHint)> {
    let number = |text: &str| -> Option<u32> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
    };
    let (program, text) = text.split_once('/').unwrap_or(("0", text));
    let (segments, level) = text.split_once('@')?;
    let (priority, policy) = level.split_once(':').unwrap_or((level, "lru"));
    let segments = match segments.split_once('-') {
        _ if segments == "*" => None,
        Some((first, last)) => Some((number(first)?, number(last)?)),
        None => Some((number(segments)?, number(segments)?)),
    };
    let is_mru = match policy {
        "lru" => false,
        "mru" => true,
        _ => return None,
    };
    let ordered = segments.is_none_or(|(first, last)| first <= last);
    let priority = priority.strip_prefix('-').map_or_else(
        || number(priority)?.try_into().ok(),
        |priority| number(priority)?.try_into().ok().map(|priority: i32| -priority),
    )?;
    ordered.then_some((segments, LevelHint { program: number(program)?, priority, is_mru }))
}

impl Hints {
    /// Reads the text; `None` if it is none, names a segment twice, or gives a priority two
    /// policies. The empty text is no hints.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let items: Vec<_> = text.split('+').map(|text| item(text.trim())).collect::<Option<_>>()?;
        let mut levels: Vec<LevelHint> = items.iter().map(|(_, level)| *level).collect();
        levels.sort_by_key(|level| (level.program, level.priority));
        levels.dedup();
        let same = |pair: &[LevelHint]| {
            (pair[0].program, pair[0].priority) == (pair[1].program, pair[1].priority)
        };
        if levels.windows(2).any(same) || levels.len() >= usize::from(u16::MAX) {
            return None;
        }
        let mut hints = Self { levels, ..Self::default() };
        for (segments, level) in items {
            let level = hints.levels.iter().position(|known| *known == level)?;
            match segments {
                None if hints.others.is_none() => hints.others = Some(level),
                Some((first, last)) if !hints.names_any(first, last) => {
                    hints.segments.insert(first, (last, level));
                }
                _ => return None,
            }
        }
        Some(hints)
    }

    fn names_any(&self, first: u32, last: u32) -> bool {
        let before = self.segments.range(..=last).next_back();
        before.is_some_and(|(_, (other_last, _))| *other_last >= first)
    }

    /// Number of levels: pairs of a program and a priority. They are numbered from 0.
    pub(super) const fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The level of a segment's pages; `None` where nobody hinted.
    pub(super) fn level(&self, segment: Segment) -> Option<usize> {
        let before = self.segments.range(..=segment.0).next_back();
        let named = before.filter(|(_, (last, _))| *last >= segment.0);
        named.map(|(_, (_, level))| *level).or(self.others)
    }

    pub(super) fn is_mru(&self, level: usize) -> bool {
        self.levels[level].is_mru
    }

    /// The levels of the program that this level belongs to, the one that leaves first before the
    /// others.
    pub(super) fn levels_of_same_program(&self, level: usize) -> std::ops::Range<usize> {
        let program = self.levels[level].program;
        let first = self.levels.partition_point(|level| level.program < program);
        first..self.levels.partition_point(|level| level.program <= program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_find_their_levels() {
        let hints = Hints::parse("3@-2:mru + 5-9@1+1/2@0+1/20-21@-2+*@1").unwrap();
        // Program 0 has priorities -2 and 1, program 1 has -2 and 0.
        let levels = |segments: &[u32]| -> Vec<_> {
            segments.iter().map(|segment| hints.level(Segment(*segment))).collect()
        };
        assert_eq!(levels(&[3, 5, 7, 9]), [Some(0), Some(1), Some(1), Some(1)]);
        assert_eq!(levels(&[20, 21, 2]), [Some(2), Some(2), Some(3)]);
        assert_eq!(levels(&[0, 4, 10, 22, u32::MAX]), [Some(1); 5]);
        assert_eq!(
            (0..4).map(|level| hints.is_mru(level)).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        assert_eq!(hints.levels_of_same_program(1), 0..2);
        assert_eq!(hints.levels_of_same_program(2), 2..4);
        assert_eq!(Hints::parse("3@0").unwrap().level(Segment(4)), None);
    }

    #[test]
    fn what_is_no_hint_or_contradicts_another_is_refused() {
        for text in [
            "3",
            "3@",
            "@1",
            "x@1",
            "3@x",
            "3@1:fifo",
            "3@1:",
            "+",
            "3@1+",
            "7-5@1",
            "-@1",
            "3@--1",
            "/3@1",
            "3@1+3@2",
            "3-5@1+5-6@2",
            "1-9@0+4@1",
            "*@1+*@2",
            "3@1:mru+4@1:lru",
            "3@1+4@1:mru",
            "4294967296@1",
            "3@2147483648",
            "3@1,4@1",
        ] {
            assert_eq!(Hints::parse(text), None, "{text}");
        }
        assert_eq!(Hints::parse("").unwrap().levels(), 0);
        // Two programs may treat the same priority differently.
        assert_eq!(Hints::parse("1/3@1:mru+2/4@1").unwrap().levels(), 2);
    }
}
