//! Detection (section 3.1): which references are sequential, which looping, and with what period.
//!
//! Two tables. **Streams** are where somebody is reading just now: for each of the last
//! `window_refs` references that began or went on with one, where it ended. A reference just
//! behind an end goes on with that stream; any other begins one. **Sequences** are what streams
//! left behind, the paper's 4-tuples of file, start, end and period: a stream of `consecutive`
//! references becomes one, and a stream that walks over the pages of a sequence again measures
//! its period.
//!
//! Time is counted in references that were seen, and in nothing else.
use crate::flat::Flat;
use crate::{Page, Place, Segment};

use super::settings::DetectSettings;

/// What a reference was taken for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Class {
    /// Part of a sequence, for the first time.
    Sequential,
    /// Part of a sequence that is walked again, with this period in references.
    Looping(f32),
    /// Neither.
    Other,
    /// The page that its stream had reached already: nothing new.
    Repeat,
}

/// No sequence; others are numbered from 1.
const NONE: u32 = 0;

/// A sequence as streams remember it: its number, and which of the sequences it is that had it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Handle {
    number: u32,
    generation: u32,
}

/// Somebody reading along. `references` is 0 in a slot that was never used.
#[derive(Clone, Copy, Debug)]
struct Stream {
    end: u32,
    segment: u32,
    at: u32,
    references: u32,
    /// The sequence that it walks.
    sequence: Handle,
    /// The gap since the previous reference of the page it passed last; 0 for a new page.
    gap_refs: u32,
}

/// A page of a stream that is not long enough yet.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    page: u32,
    /// The sequence it was in before.
    sequence: Handle,
    gap_refs: u32,
}

/// The paper's 4-tuple, and how many pages are still in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sequence {
    pub(super) segment: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    /// Exponential average of the measured periods in references; 0 stands for the paper's ∞.
    pub(super) period_refs: f32,
    /// 0 for an entry that is free.
    pub(super) pages: u32,
    generation: u32,
}

/// The detection module.
#[derive(Clone, Debug)]
pub(super) struct Detector {
    settings: DetectSettings,
    streams: Vec<Stream>,
    /// `consecutive` slots for each stream.
    candidates: Vec<Candidate>,
    sequences: Vec<Sequence>,
    free_sequences: Vec<u32>,
    /// Segment + 1 and index; zero where the place was never told, or is beyond 2³² pages.
    places: Flat<[u32; 2]>,
    /// When each page was last referenced; 0 for never.
    last: Flat<u32>,
    sequence_of: Flat<u32>,
}

impl Detector {
    pub(super) fn new(settings: DetectSettings) -> Self {
        let empty = Stream {
            end: 0,
            segment: 0,
            at: 0,
            references: 0,
            sequence: Handle::default(),
            gap_refs: 0,
        };
        let none = Candidate { page: 0, sequence: Handle::default(), gap_refs: 0 };
        // One slot more than references in the window, so that one is always free.
        let slots = settings.window_refs as usize + 1;
        Self {
            settings,
            streams: vec![empty; slots],
            candidates: vec![none; slots * settings.consecutive as usize],
            sequences: Vec::new(),
            free_sequences: Vec::new(),
            places: Flat::new(),
            last: Flat::new(),
            sequence_of: Flat::new(),
        }
    }

    /// Sets where a page lives. Whether that is another place than before, in which case it is
    /// forgotten as the caller should too.
    pub(super) fn place(&mut self, page: Page, place: Place) -> bool {
        let new = u32::try_from(place.index)
            .map_or([0; 2], |index| [place.segment.0.wrapping_add(1), index]);
        let known = self.places.slot(page.index());
        let moved = *known != new;
        *known = new;
        if moved {
            self.leave_sequence(page);
            *self.last.slot(page.index()) = 0;
        }
        moved
    }

    /// Where a page lives, if that was told.
    pub(super) fn place_of(&self, page: Page) -> Option<Place> {
        let [segment, index] = self.places.get(page.index());
        let segment = Segment(segment.checked_sub(1)?);
        Some(Place { segment, index: index.into() })
    }

    /// References since the page's last one; `None` if it had none.
    pub(super) fn gap_refs(&self, page: Page, now: u32) -> Option<u32> {
        match self.last.get(page.index()) {
            0 => None,
            last => Some(now.wrapping_sub(last)),
        }
    }

    /// Whether the page is in a sequence, and that sequence's period (0 for none yet).
    pub(super) fn sequence_period(&self, page: Page) -> Option<f32> {
        match self.sequence_of.get(page.index()) {
            NONE => None,
            sequence => Some(self.sequences[sequence as usize - 1].period_refs),
        }
    }

    /// Whether the page was referenced since it is at its place.
    pub(super) fn is_known(&self, page: Page) -> bool {
        self.last.get(page.index()) != 0
    }

    pub(super) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter().filter(|sequence| sequence.pages > 0)
    }

    /// Takes in the next reference and says what it is. Pages that came earlier in its stream, and
    /// turn out to be part of a sequence only now, are added to `late`.
    pub(super) fn reference(
        &mut self,
        page: Page,
        now: u32,
        late: &mut Vec<(Page, Class)>,
    ) -> Class {
        let gap_refs = self.gap_refs(page, now).unwrap_or(0);
        *self.last.slot(page.index()) = now;
        let [segment, index] = self.places.get(page.index());
        if segment == 0 {
            return Class::Other;
        }
        let (slot, goes_on) = self.find(segment, index, now);
        let stream = &mut self.streams[slot];
        if goes_on && stream.end == index {
            stream.at = now;
            return Class::Repeat;
        }
        if goes_on {
            stream.end = index;
            stream.at = now;
            stream.references = stream.references.saturating_add(1);
        } else {
            *stream = Stream {
                end: index,
                segment,
                at: now,
                references: 1,
                sequence: Handle::default(),
                gap_refs: 0,
            };
        }
        let references = stream.references;
        let sequence = self.handle(self.sequence_of.get(page.index()));
        let candidate = Candidate { page: page.0, sequence, gap_refs };
        let consecutive = self.settings.consecutive;
        if references < consecutive {
            // Out of order as far as anybody can tell: if it is the beginning of a walk, the
            // stream will fetch it back.
            self.leave_sequence(page);
            self.candidates[slot * consecutive as usize + references as usize - 1] = candidate;
            return Class::Other;
        }
        if references == consecutive {
            let first = slot * consecutive as usize;
            for place in first..first + consecutive as usize - 1 {
                let earlier = self.candidates[place];
                // Not what went elsewhere since: touched again, or given to another place.
                let seen_at = self.last.get(earlier.page as usize);
                let [page_segment, ..] = self.places.get(earlier.page as usize);
                if seen_at == 0
                    || page_segment != segment
                    || self.sequence_of.get(earlier.page as usize) != NONE
                {
                    self.streams[slot].gap_refs = earlier.gap_refs;
                    continue;
                }
                let class = self.join(slot, earlier);
                late.push((Page(earlier.page), class));
            }
        }
        self.join(slot, candidate)
    }

    /// Forgets a page: its place stays.
    pub(super) fn forget(&mut self, page: Page) {
        if self.last.get(page.index()) != 0 {
            self.leave_sequence(page);
            *self.last.slot(page.index()) = 0;
        }
    }

    /// The stream that a reference goes on with, the one whose end is nearest; or a free slot.
    fn find(&self, segment: u32, index: u32, now: u32) -> (usize, bool) {
        let window_refs = self.settings.window_refs;
        let reach = self.settings.gap_pages + 1;
        let mut found = None;
        let mut nearest = u32::MAX;
        let mut free = 0;
        let mut oldest = 0;
        for (slot, stream) in self.streams.iter().enumerate() {
            let age_refs =
                if stream.references == 0 { u32::MAX } else { now.wrapping_sub(stream.at) };
            if age_refs > oldest {
                oldest = age_refs;
                free = slot;
            }
            let distance = index.wrapping_sub(stream.end);
            if distance <= reach
                && distance < nearest
                && stream.segment == segment
                && age_refs <= window_refs
            {
                nearest = distance;
                found = Some(slot);
            }
        }
        found.map_or((free, false), |slot| (slot, true))
    }

    /// A page that a stream of full length passes: it is in the sequence that the stream walks.
    fn join(&mut self, slot: usize, candidate: Candidate) -> Class {
        let Candidate { page, sequence, gap_refs } = candidate;
        let [segment, index] = self.places.get(page as usize);
        let before_refs = std::mem::replace(&mut self.streams[slot].gap_refs, gap_refs);
        let is_new = gap_refs == 0;
        let was_in_sequence = self.is_alive(sequence);
        if !is_new && !was_in_sequence && !is_regular(gap_refs, before_refs) {
            // Used at its own times: what passes over it now is not why.
            return Class::Other;
        }
        let walked = self.streams[slot].sequence;
        let sequence = if was_in_sequence {
            sequence
        } else if self.is_alive(walked) {
            walked
        } else {
            self.new_sequence(segment, index)
        };
        self.streams[slot].sequence = sequence;
        let number = sequence.number;
        if self.sequence_of.get(page as usize) != number {
            self.leave_sequence(Page(page));
            *self.sequence_of.slot(page as usize) = number;
            self.sequences[number as usize - 1].pages += 1;
        }
        let entry = &mut self.sequences[number as usize - 1];
        entry.start = entry.start.min(index);
        entry.end = entry.end.max(index);
        if is_new {
            return Class::Sequential;
        }
        let measured = gap_refs as f32;
        entry.period_refs = match entry.period_refs {
            0.0 => measured,
            average => average + self.settings.weight * (measured - average),
        };
        Class::Looping(entry.period_refs)
    }

    fn handle(&self, number: u32) -> Handle {
        match number {
            NONE => Handle::default(),
            _ => Handle { number, generation: self.sequences[number as usize - 1].generation },
        }
    }

    /// Whether it still is the sequence that it was, with pages in it.
    fn is_alive(&self, sequence: Handle) -> bool {
        sequence.number != NONE && {
            let entry = &self.sequences[sequence.number as usize - 1];
            entry.pages > 0 && entry.generation == sequence.generation
        }
    }

    /// An empty sequence, for a page that enters at once.
    fn new_sequence(&mut self, segment: u32, start: u32) -> Handle {
        let mut new =
            Sequence { segment, start, end: start, period_refs: 0.0, pages: 0, generation: 0 };
        let number = match self.free_sequences.pop() {
            Some(number) => {
                let entry = &mut self.sequences[number as usize - 1];
                new.generation = entry.generation.wrapping_add(1);
                *entry = new;
                number
            }
            None => {
                self.sequences.push(new);
                self.sequences.len() as u32
            }
        };
        self.handle(number)
    }

    fn leave_sequence(&mut self, page: Page) {
        let sequence = self.sequence_of.get(page.index());
        if sequence == NONE {
            return;
        }
        *self.sequence_of.slot(page.index()) = NONE;
        let entry = &mut self.sequences[sequence as usize - 1];
        entry.pages -= 1;
        if entry.pages == 0 {
            self.free_sequences.push(sequence);
        }
    }
}

/// Whether two pages, one behind the other, were last referenced about as long ago.
fn is_regular(gap_refs: u32, before_refs: u32) -> bool {
    let (short, long) = (gap_refs.min(before_refs), gap_refs.max(before_refs));
    u64::from(long) * 2 <= u64::from(short) * 3
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::Segment;

    /// A walk as people would note it down: every reference in it, oldest first.
    #[derive(Clone, Debug)]
    struct Walk {
        indices: Vec<u32>,
        at: u32,
        gaps: Vec<u32>,
        /// Which sequence each page was in when the walk came.
        before: Vec<Option<usize>>,
        sequence: Option<usize>,
    }

    /// The rules of detection over one segment, with everything remembered and searched through.
    #[derive(Default)]
    struct Model {
        history: Vec<u32>,
        last: BTreeMap<u32, u32>,
        walks: Vec<Walk>,
        sequences: Vec<BTreeSet<u32>>,
        periods: Vec<f32>,
    }

    impl Model {
        fn sequence_of(&self, page: u32) -> Option<usize> {
            self.sequences.iter().position(|pages| pages.contains(&page))
        }

        fn leave(&mut self, page: u32) {
            self.sequences.iter_mut().for_each(|pages| {
                pages.remove(&page);
            });
        }

        fn join(&mut self, walk: usize, place: usize, weight: f32) -> Class {
            let Walk { indices, gaps, before, sequence, .. } = self.walks[walk].clone();
            let (page, gap) = (indices[place], gaps[place]);
            // Gaps are compared within what is known to be a sequence.
            let neighbour = if place == 0 { 0 } else { gaps[place - 1] };
            let was_in = before[place].filter(|number| !self.sequences[*number].is_empty());
            if gap > 0 && was_in.is_none() {
                let (short, long) = (gap.min(neighbour), gap.max(neighbour));
                if f64::from(long) > 1.5 * f64::from(short) {
                    return Class::Other;
                }
            }
            let number = was_in
                .or(sequence.filter(|number| !self.sequences[*number].is_empty()))
                .unwrap_or_else(|| {
                    self.sequences.push(BTreeSet::new());
                    self.periods.push(0.0);
                    self.sequences.len() - 1
                });
            self.walks[walk].sequence = Some(number);
            self.leave(page);
            self.sequences[number].insert(page);
            if gap == 0 {
                return Class::Sequential;
            }
            let period = &mut self.periods[number];
            *period =
                if *period == 0.0 { gap as f32 } else { *period + weight * (gap as f32 - *period) };
            Class::Looping(*period)
        }

        fn reference(
            &mut self,
            page: u32,
            settings: &DetectSettings,
            late: &mut Vec<(u32, Class)>,
        ) -> Class {
            self.history.push(page);
            let now = self.history.len() as u32;
            let gap = self.last.insert(page, now).map_or(0, |last| now - last);
            let near = |walk: &Walk| {
                let end = *walk.indices.last().unwrap();
                (now - walk.at <= settings.window_refs
                    && page >= end
                    && page - end <= settings.gap_pages + 1)
                    .then_some(page.saturating_sub(end))
            };
            let found = (0..self.walks.len())
                .filter_map(|number| Some((near(&self.walks[number])?, number)))
                .min();
            let number = match found {
                Some((0, number)) => {
                    self.walks[number].at = now;
                    return Class::Repeat;
                }
                Some((_, number)) => number,
                None => {
                    self.walks.push(Walk {
                        indices: vec![],
                        at: now,
                        gaps: vec![],
                        before: vec![],
                        sequence: None,
                    });
                    self.walks.len() - 1
                }
            };
            let before = self.sequence_of(page);
            let walk = &mut self.walks[number];
            walk.at = now;
            walk.indices.push(page);
            walk.gaps.push(gap);
            walk.before.push(before);
            let (length, least) = (walk.indices.len(), settings.consecutive as usize);
            if length < least {
                self.leave(page);
                return Class::Other;
            }
            if length == least {
                for place in 0..least - 1 {
                    let earlier = self.walks[number].indices[place];
                    if self.sequence_of(earlier).is_none() {
                        let class = self.join(number, place, settings.weight);
                        late.push((earlier, class));
                    }
                }
            }
            self.join(number, length - 1, settings.weight)
        }
    }

    /// Runs of pages, forwards with small steps, mixed with lone references.
    fn references() -> impl Strategy<Value = Vec<u32>> {
        let run = prop_oneof![
            3 => (0..60_u32, prop::collection::vec(1..4_u32, 0..12)).prop_map(|(start, steps)| {
                let mut index = start;
                std::iter::once(start)
                    .chain(steps.into_iter().map(move |step| {
                        index += step;
                        index
                    }))
                    .collect::<Vec<_>>()
            }),
            1 => (0..60_u32, 4..20_u32).prop_map(|(start, pages)| (start..start + pages).collect()),
            1 => (0..80_u32).prop_map(|page| vec![page]),
        ];
        prop::collection::vec(run, 0..40).prop_map(|runs| {
            // Two at a time, taking turns.
            let mut mixed = Vec::new();
            for pair in runs.chunks(2) {
                let second = pair.get(1).cloned().unwrap_or_default();
                for place in 0..pair[0].len().max(second.len()) {
                    mixed.extend(pair[0].get(place));
                    mixed.extend(second.get(place));
                }
            }
            mixed
        })
    }

    proptest! {
        #[test]
        fn classes_and_sequences_are_those_of_the_model(
            references in references(),
            consecutive in 2..5_u32,
            gap_pages in 0..3_u32,
            window_refs in 1..12_u32,
        ) {
            let settings = DetectSettings { consecutive, gap_pages, window_refs, weight: 0.5 };
            let mut detector = Detector::new(settings);
            let mut model = Model::default();
            for (step, index) in references.into_iter().enumerate() {
                // Page numbers that are no indices.
                let page = Page(index * 7 % 101);
                let place = Place { segment: Segment(3), index: index.into() };
                detector.place(page, place);
                let (mut late, mut late_model) = (Vec::new(), Vec::new());
                let class = detector.reference(page, step as u32 + 1, &mut late);
                prop_assert_eq!(class, model.reference(index, &settings, &mut late_model));
                let late: Vec<_> = late.into_iter().map(|(page, class)| (page.0, class)).collect();
                let late_model: Vec<_> =
                    late_model.into_iter().map(|(index, class)| (index * 7 % 101, class)).collect();
                prop_assert_eq!(late, late_model);
            }
            let mut found: Vec<_> =
                detector.sequences().map(|s| (s.pages as usize, s.period_refs.to_bits())).collect();
            let mut expected: Vec<_> = model
                .sequences
                .iter()
                .zip(&model.periods)
                .filter(|(pages, _)| !pages.is_empty())
                .map(|(pages, period)| (pages.len(), period.to_bits()))
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
