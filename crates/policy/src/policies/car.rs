//! CAR: ARC with clocks for its resident pages.
use super::arc::Directory;
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy, Visible};

/// What the registry says about CAR.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "car",
    aliases: &["clock-with-adaptive-replacement"],
    summary: "as ARC, with two clocks in place of its LRU lists: a reference sets a bit",
    helps: "as ARC, where references are only seen near eviction, or hits must be cheapest",
    hurts: "loops larger than memory",
    source: Source {
        title: "S. Bansal, D. S. Modha: CAR: Clock with Adaptive Replacement, FAST 2004",
        section: "Figure 2",
    },
    cost: "one bit per reference; O(1) amortised per eviction, O(1) per admission",
    bytes_per_page: 9,
    parameters: &[],
    runs: Runs::Anywhere(|_, frames, _| Box::new(Car::new(frames))),
};

/// In T1's clock.
const T1: u8 = 1;
/// In T2's clock.
const T2: u8 = 2;
/// Ghost of a page of T1.
const B1: u8 = 3;
/// Ghost of a page of T2.
const B2: u8 = 4;
const WHERE: u8 = 7;
/// The page reference bit.
const REFERENCED: u8 = 8;
/// Prefetched and not seen yet: the first reference is the one that the figure takes for granted.
const AHEAD: u8 = 16;

/// CAR.
///
/// T1 and T2 are clocks, kept as queues: the hand is at the front, what it passes goes to the back.
/// A page of T1 whose bit is set when the hand comes moves to T2. B1, B2 and the target `p` are as
/// in [`Arc`](crate::policies::arc::Arc), but `p` moves after the replacement, as the figure has
/// it.
///
/// A prefetched page enters T1 and moves no target; its first reference is taken for the one that
/// brings a page in, or, where it is remembered, sets its bit.
#[derive(Clone, Debug)]
pub struct Car {
    directory: Directory,
}

impl Car {
    /// Empty clocks for a pool of `frames`.
    pub const fn new(frames: u32) -> Self {
        Self { directory: Directory::new(frames) }
    }
}

impl Policy for Car {
    fn admitted(&mut self, page: Page, how: Admission) {
        let lists = &mut self.directory;
        let before = lists.marks.get(page.index());
        let (clock, mark) = match (how, before) {
            (Admission::Demand, B1) => {
                lists.raise_target();
                (&mut lists.t2, T2)
            }
            (Admission::Demand, B2) => {
                lists.lower_target();
                (&mut lists.t2, T2)
            }
            (Admission::Demand, _) | (Admission::Prefetch, B1 | B2) => (&mut lists.t1, T1),
            (Admission::Prefetch, _) => (&mut lists.t1, T1 | AHEAD),
        };
        match before {
            B1 => lists.links.remove(&mut lists.b1, page),
            B2 => lists.links.remove(&mut lists.b2, page),
            _ => {}
        }
        lists.links.push_back(clock, page);
        *lists.marks.slot(page.index()) = mark;
        lists.cut_ghosts();
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let mark = self.directory.marks.at(page.index());
        *mark = if *mark & AHEAD == 0 { *mark | REFERENCED } else { *mark & !AHEAD };
    }

    fn removed(&mut self, page: Page) {
        let lists = &mut self.directory;
        let clock = match std::mem::take(lists.marks.at(page.index())) & WHERE {
            T1 => &mut lists.t1,
            T2 => &mut lists.t2,
            _ => panic!("page {} is not resident in this policy", page.0),
        };
        lists.links.remove(clock, page);
    }

    /// The figure's `replace()`.
    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let lists = &mut self.directory;
        // Ends: a page passed has its bit cleared, and pages move from T1 to T2 alone.
        loop {
            let t1_is_over = f64::from(lists.t1.len()) >= lists.t1_target_pages.max(1.0);
            let (clock, ghosts, ghost) = match t1_is_over || lists.t2.is_empty() {
                true => (&mut lists.t1, &mut lists.b1, B1),
                false => (&mut lists.t2, &mut lists.b2, B2),
            };
            let page = lists.links.pop_front(clock)?;
            let mark = lists.marks.at(page.index());
            if *mark & REFERENCED == 0 {
                *mark = ghost;
                lists.links.push_back(ghosts, page);
                return Some(page);
            }
            *mark = T2;
            lists.links.push_back(&mut lists.t2, page);
        }
    }

    fn resized(&mut self, frames: u32) {
        self.directory.resized(frames);
    }

    /// The frames are a bound to who is remembered, and divide nothing.
    fn fitted(&mut self, _frames: u32, most: u32) {
        self.resized(most);
    }

    fn resident(&self) -> u32 {
        self.directory.resident()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(&mut self.directory)
    }
}
