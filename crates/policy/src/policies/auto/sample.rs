//! Which pages the models see: spatial sampling, as in C. A. Waldspurger, N. Park, A. Garthwaite,
//! I. Ahmad: Efficient MRC Construction with SHARDS, FAST 2015.
use crate::flat::Flat;
use crate::{Page, Place, Segment};

/// Mark of a page that is not sampled; sampled ones have 2 + their number.
const LEFT_OUT: u32 = 1;

/// Picks one page out of every group of neighbours, by hashes of the group, and numbers the picked
/// ones densely, so that what is kept of them is small.
///
/// A page is in the sample or out of it for good, so every reuse of a sampled page is seen. One
/// out of each group (where SHARDS draws each page alone) keeps the sample's size exact for what
/// lies together, and order: a scan of the pages is a scan of the sample. Neighbours are
/// neighbours in their segment where places are known, else in page number.
///
/// A sample is [made smaller](Self::thin) by leaving pages out: of two groups that become one, the
/// page of one is the page of both.
///
/// 4 bytes per page.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// A group has 2^shift pages, and had 2^`drawn_shift` when they were drawn.
    shift: u32,
    drawn_shift: u32,
    seed: u64,
    marks: Flat<u32>,
    numbered: u32,
}

impl Sample {
    pub(super) const fn new(shift: u32, seed: u64) -> Self {
        Self { shift, drawn_shift: shift, seed, marks: Flat::new(), numbered: 0 }
    }

    pub(super) const fn shift(&self) -> u32 {
        self.shift
    }

    /// The page's number in the sample, if it is in, and was met before.
    #[inline]
    pub(super) fn get(&self, page: Page) -> Option<Page> {
        self.marks.get(page.index()).checked_sub(LEFT_OUT + 1).map(Page)
    }

    /// The page's number in the sample, if it is in. Where it lives is asked when it is first met.
    #[inline]
    pub(super) fn meet(
        &mut self,
        page: Page,
        place: impl FnOnce() -> Option<Place>,
    ) -> Option<Page> {
        if self.marks.get(page.index()) == 0 {
            let place = place().unwrap_or(placeless(page));
            *self.marks.slot(page.index()) = if self.draws(place) {
                self.numbered += 1;
                self.numbered + LEFT_OUT
            } else {
                LEFT_OUT
            };
        }
        self.get(page)
    }

    /// Whether the page there is its group's: the one that was drawn, and since groups became larger, in
    /// the half of each that is drawn.
    fn draws(&self, place: Place) -> bool {
        let segment = self.seed ^ mix(u64::from(place.segment.0));
        let in_group = (1 << self.drawn_shift) - 1;
        let drawn = mix(segment ^ (place.index >> self.drawn_shift)) & in_group;
        place.index & in_group == drawn
            && (self.drawn_shift + 1..=self.shift).all(|level| {
                let half = mix(segment ^ mix(place.index >> level) ^ u64::from(level)) & 1;
                place.index >> (level - 1) & 1 == half
            })
    }

    /// Groups become larger, where pages were met without their places. Tells the numbers of those that
    /// are in the sample no longer.
    pub(super) fn thin(&mut self, shift: u32, mut left_out: impl FnMut(Page)) {
        debug_assert!(shift >= self.shift);
        self.shift = shift;
        for index in 0..self.marks.as_slice().len() {
            let page = Page(index as u32);
            if let Some(number) = self.get(page)
                && !self.draws(placeless(page))
            {
                *self.marks.at(index) = LEFT_OUT;
                left_out(number);
            }
        }
    }

    /// The page's number stands for another place from now on. What it was in the sample.
    pub(super) fn forget(&mut self, page: Page) -> Option<Page> {
        let number = self.get(page);
        if self.marks.get(page.index()) != 0 {
            *self.marks.at(page.index()) = 0;
        }
        number
    }

    /// Where a sampled page lives among the sampled: neighbouring groups are neighbours.
    pub(super) const fn place(&self, place: Place) -> Place {
        Place { segment: place.segment, index: place.index >> self.shift }
    }
}

/// Where a page counts as living when nobody knows.
fn placeless(page: Page) -> Place {
    Place { segment: Segment(u32::MAX), index: u64::from(page.0) }
}

/// SplitMix64's finaliser: every bit of the result depends on every bit of `value`.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_page_of_every_group_is_sampled_and_stays_so() {
        let mut sample = Sample::new(4, 7);
        let drawn: Vec<(u32, Page)> = (0..1600)
            .filter_map(|page| sample.meet(Page(page), || None).map(|number| (page, number)))
            .collect();
        assert_eq!(drawn.len(), 100);
        for (group, (page, number)) in drawn.iter().enumerate() {
            assert_eq!((*page / 16, number.0), (group as u32, group as u32));
            assert_eq!(sample.get(Page(*page)), Some(*number));
        }
        // Not always the same one of a group, or a stride would be seen whole or not at all.
        let offsets: std::collections::BTreeSet<u32> = drawn.iter().map(|(p, _)| p % 16).collect();
        assert!(offsets.len() > 12, "{offsets:?}");
        // Everything, when the group is one page.
        let mut all = Sample::new(0, 7);
        assert!((0..100).all(|page| all.meet(Page(page), || None) == Some(Page(page))));
    }

    /// A sample that had to be made smaller was another, of which nothing was known.
    #[test]
    fn a_smaller_sample_is_a_part_of_the_larger_one() {
        let pages = || (0..4096).map(Page);
        let sampled = |sample: &mut Sample| -> Vec<Page> {
            pages().filter(|page| sample.meet(*page, || None).is_some()).collect()
        };
        for first in [0, 2] {
            let mut sample = Sample::new(first, 7);
            let mut before = sampled(&mut sample);
            for shift in [first + 1, first + 3, 6] {
                let numbers: Vec<_> =
                    before.iter().map(|page| (sample.get(*page).unwrap(), *page)).collect();
                let mut gone = Vec::new();
                sample.thin(shift, |number| gone.push(number));
                let small = sampled(&mut sample);
                // One of each group, known or met later.
                let groups: Vec<u32> = small.iter().map(|page| page.0 >> shift).collect();
                assert_eq!(groups, (0..4096 >> shift).collect::<Vec<_>>());
                let mut unmet = Sample { marks: Flat::new(), ..sample.clone() };
                assert_eq!(sampled(&mut unmet), small);
                for (number, page) in numbers {
                    let is_gone = gone.contains(&number);
                    assert_eq!(sample.get(page), (!is_gone).then_some(number));
                }
                before = small;
            }
        }
    }

    #[test]
    fn groups_are_by_place_where_places_are_known() {
        let place = |segment, index| Some(Place { segment: Segment(segment), index });
        let mut sample = Sample::new(3, 1);
        let mut drawn = [0; 2];
        for index in 0..80 {
            for segment in 0..2 {
                let page = Page(index as u32 * 2 + segment);
                drawn[segment as usize] +=
                    u32::from(sample.meet(page, || place(segment, index)).is_some());
            }
        }
        assert_eq!(drawn, [10, 10]);
        let old = (0..160).map(Page).find(|page| sample.get(*page).is_some()).unwrap();
        assert!(sample.forget(old).is_some());
        assert_eq!(sample.get(old), None);
    }
}
