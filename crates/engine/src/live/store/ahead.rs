//! How much of a hole is given storage at once.
//!
//! Page by page it costs many times what it costs in order, and several threads that store side by side
//! would leave a file in as many pieces as it has pages. So who goes on near what was given storage lately
//! is given more, as much as was stored there. What nobody stores to is storage in vain: that is bounded, for
//! each run of pages and for the file.

use rangemap::RangeSet;
use std::ops::Range;

/// Most pages that are given storage at once behind one that is stored to, and that may be in vain in a run.
const AHEAD_PAGES_MAX: u64 = 256;
/// So many runs are known: as many threads may each store at a place of its own.
const RUNS_MAX: usize = 8;
/// No more pages of a file are given storage in vain than [`AHEAD_PAGES_MAX`] and this part of what was
/// stored.
const VAIN_PART: u64 = 4;

/// What was given storage lately.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The one that was stored to last comes last.
    runs: Vec<Run>,
    /// Pages that were stored to when, or since, they were given storage.
    stored_pages: u64,
    /// Pages of runs that are not known any more, to which nobody had stored.
    lost_pages: u64,
}

/// Pages one after the other that were given storage.
#[derive(Debug)]
struct Run {
    pages: Range<u64>,
    /// Those of them that were stored to.
    stored: RangeSet<u64>,
}

impl Run {
    fn stored_pages(&self) -> u64 {
        self.stored.iter().map(count).sum()
    }

    fn vain_pages(&self) -> u64 {
        count(&self.pages) - self.stored_pages()
    }

    fn overlaps(&self, pages: &Range<u64>) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }

    fn touches(&self, pages: &Range<u64>) -> bool {
        self.pages.start <= pages.end && pages.start <= self.pages.end
    }
}

fn count(pages: &Range<u64>) -> u64 {
    pages.end - pages.start
}

impl Ahead {
    /// Whether some of these pages were given storage, as far as is known.
    pub(crate) fn concerns(&self, pages: &Range<u64>) -> bool {
        self.runs.iter().any(|run| run.overlaps(pages))
    }

    /// Pages are stored to that have storage.
    pub(crate) fn stores(&mut self, pages: &Range<u64>) {
        let Some(at) = self.runs.iter().rposition(|run| run.overlaps(pages)) else { return };
        let mut run = self.runs.remove(at);
        let inside = pages.start.max(run.pages.start)..pages.end.min(run.pages.end);
        self.stored_pages += run.stored.gaps(&inside).map(|gap| count(&gap)).sum::<u64>();
        run.stored.insert(inside);
        self.runs.push(run);
    }

    /// What is to be given storage when pages are stored to that have none, in a file of so many pages:
    /// those, and what lies behind them, or between them and a run.
    pub(crate) fn wants(&self, pages: &Range<u64>, file_pages: u64) -> Range<u64> {
        let asked = count(pages);
        let vain = self.lost_pages + self.runs.iter().map(Run::vain_pages).sum::<u64>();
        let vain_max = AHEAD_PAGES_MAX + (self.stored_pages + asked) / VAIN_PART;
        let room = vain_max.saturating_sub(vain);
        for run in self.runs.iter().rev().filter(|run| !run.overlaps(pages)) {
            let stored = run.stored_pages() + asked;
            let most = stored + stored.min(AHEAD_PAGES_MAX);
            let between = match pages.start >= run.pages.end {
                true => run.pages.end..pages.start,
                false => pages.end..run.pages.start,
            };
            let gap = count(&between);
            if gap > room || count(&run.pages) + gap + asked > most {
                continue;
            }
            if pages.end <= run.pages.start {
                return pages.start..run.pages.start;
            }
            let end = (run.pages.start + most)
                .min(pages.start + AHEAD_PAGES_MAX)
                .min(pages.end + room - gap)
                .min(file_pages);
            return run.pages.end..end.max(pages.end);
        }
        pages.clone()
    }

    /// Pages are stored to that had no storage, and were given it, perhaps with others around.
    pub(crate) fn reserved(&mut self, pages: &Range<u64>, given: &Range<u64>) {
        let mut run = Run { pages: given.clone(), stored: RangeSet::new() };
        run.stored.insert(pages.clone());
        for other in std::mem::take(&mut self.runs) {
            if other.overlaps(pages) {
                // It has been taken away since (a hole was punched, the file cut).
                self.lost_pages += other.vain_pages();
            } else if other.touches(given) {
                run.pages =
                    run.pages.start.min(other.pages.start)..run.pages.end.max(other.pages.end);
                run.stored.extend(other.stored);
            } else {
                self.runs.push(other);
            }
        }
        self.stored_pages += count(pages);
        self.runs.push(run);
        if self.runs.len() > RUNS_MAX {
            self.lost_pages += self.runs.remove(0).vain_pages();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FILE_PAGES: u64 = 1 << 20;

    /// A file, and how often some of it was given storage.
    #[derive(Default)]
    struct Sparse {
        ahead: Ahead,
        given: BTreeSet<u64>,
        stored: BTreeSet<u64>,
        reservations: usize,
    }

    impl Sparse {
        fn store(&mut self, page: u64) {
            let pages = page..page + 1;
            self.stored.insert(page);
            if self.given.contains(&page) {
                return self.ahead.stores(&pages);
            }
            let given = self.ahead.wants(&pages, FILE_PAGES);
            assert!(given.contains(&page) && given.end <= FILE_PAGES);
            self.given.extend(given.clone());
            self.ahead.reserved(&pages, &given);
            self.reservations += 1;
            assert!(self.vain() as u64 <= AHEAD_PAGES_MAX + self.stored.len() as u64 / VAIN_PART);
        }

        fn after(pages: impl IntoIterator<Item = u64>) -> Sparse {
            let mut file = Sparse::default();
            pages.into_iter().for_each(|page| file.store(page));
            file
        }

        fn vain(&self) -> usize {
            self.given.len() - self.stored.len()
        }
    }

    /// Numbers in no order (xorshift).
    fn random() -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    /// Two threads that stored to alternating pages had each page given storage by itself, and the file
    /// was in ten thousand pieces.
    #[test]
    fn threads_side_by_side_are_given_storage_as_one_is() {
        const PAGES: u64 = 15_360;
        let most = PAGES / AHEAD_PAGES_MAX + 20;
        let one = Sparse::after(0..PAGES);
        assert!(one.reservations as u64 <= most, "{}", one.reservations);
        for threads in [2, 4, 8] {
            // In rounds, in each of which they overtake each other.
            let mut dice = random();
            let mut pages: Vec<u64> = (0..PAGES).collect();
            for round in pages.chunks_mut(threads) {
                round.sort_by_cached_key(|_| dice.next());
            }
            let several = Sparse::after(pages);
            assert!(several.reservations as u64 <= most + 20, "{}", several.reservations);
            assert!(several.vain() as u64 <= AHEAD_PAGES_MAX);
        }
        // One is a hundred pages ahead of the other.
        let even = (0..PAGES).step_by(2);
        let both =
            (1..PAGES).step_by(2).zip(even.clone().skip(100)).flat_map(|(odd, even)| [odd, even]);
        let two = Sparse::after(even.take(100).chain(both));
        assert!(two.reservations as u64 <= PAGES / 64, "{}", two.reservations);
    }

    #[test]
    fn threads_at_places_of_their_own_are_given_storage_ahead() {
        let places = RUNS_MAX as u64;
        let all = (0..8000).flat_map(|page| (0..places).map(move |place| place * 100_000 + page));
        let several = Sparse::after(all);
        let most = 8000 * places / AHEAD_PAGES_MAX + places * 40;
        assert!(several.reservations as u64 <= most, "{}", several.reservations);
    }

    /// ([`Sparse::store`] asserts the file's bound.)
    #[test]
    fn what_nobody_stores_to_is_hardly_given_storage() {
        let scattered = Sparse::after(random().map(|dice| dice % FILE_PAGES).take(5000));
        assert!(scattered.vain() < 50, "{}", scattered.vain());
        for step in 2..8 {
            let stepping = Sparse::after((0..5000).map(|page| page * step));
            assert!(step < 4 || stepping.vain() == 0, "{step}: {}", stepping.vain());
        }
        let records = random().map(|dice| dice % (FILE_PAGES / 16) * 16).take(2000);
        Sparse::after(records.flat_map(|first| first..first + 5));
        // Who stores again and again to the same page stores there once.
        Sparse::after((0..2000).flat_map(|page| [page * 3; 10]));
    }

    #[test]
    fn what_was_given_and_is_taken_away_is_given_anew() {
        let mut file = Sparse::after(0..4000);
        file.given.clear();
        file.stored.clear();
        let before = file.reservations;
        let ahead = &mut file.ahead;
        assert!(ahead.concerns(&(100..101)));
        let mut reservations = 0;
        let mut end = 100;
        for page in 100..1100 {
            if page < end {
                ahead.stores(&(page..page + 1));
                continue;
            }
            let given = ahead.wants(&(page..page + 1), FILE_PAGES);
            ahead.reserved(&(page..page + 1), &given);
            end = given.end;
            reservations += 1;
        }
        assert!(reservations < before + 10, "{reservations}");
    }

    #[test]
    fn the_end_of_the_file_is_the_end() {
        let mut ahead = Ahead::default();
        ahead.reserved(&(0..100), &(0..100));
        assert_eq!(ahead.wants(&(100..101), 110), 100..110);
        assert_eq!(ahead.wants(&(100..101), FILE_PAGES), 100..202);
        assert_eq!(ahead.wants(&(100..1000), FILE_PAGES), 100..1000, "no more than was asked for");
        assert_eq!(ahead.wants(&(140..141), FILE_PAGES), 100..202);
        assert_eq!(ahead.wants(&(300..301), FILE_PAGES), 300..301, "too far");
    }
}
