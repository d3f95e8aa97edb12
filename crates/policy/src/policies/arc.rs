//! ARC, the adaptive replacement cache.
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Policy, Visible};

mod directory;
pub(super) use directory::Directory;

/// What the registry says about ARC.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "arc",
    aliases: &["adaptive-replacement-cache"],
    summary: "pages seen once and pages seen again share the frames as misses on past pages tell",
    helps: "recency and frequency in changing shares; scans; no parameter to set",
    hurts: "loops larger than memory; references that are seldom seen, for a second one decides",
    source: Source {
        title: "N. Megiddo, D. S. Modha: ARC: A Self-Tuning, Low Overhead Replacement Cache, \
                FAST 2003",
        section: "Figure 4",
    },
    cost: "O(1) per reference, admission and eviction",
    bytes_per_page: 9,
    parameters: &[],
    runs: Runs::Anywhere(|_, frames, _| Box::new(Arc::new(frames))),
};

/// Resident, seen once.
const T1: u8 = 1;
/// In T1, prefetched and not seen yet.
const T1_AHEAD: u8 = 2;
/// As `T1_AHEAD`, and a ghost before: its first reference is what the paper's fault is.
const T1_AGAIN: u8 = 3;
/// Resident, seen at least twice.
const T2: u8 = 4;
/// Ghost of a page of T1.
const B1: u8 = 5;
/// Ghost of a page of T2.
const B2: u8 = 6;

/// ARC.
///
/// T1 has the pages seen once recently, T2 those seen again, both in LRU order; B1 and B2 remember
/// what left them. A fault on a page of B1 says that T1 was too small, and raises its target `p`; a
/// fault on a page of B2 lowers it.
///
/// The ghost lists are cut after an admission, and not before an eviction as in the figure. What
/// remains is the same: an eviction moves a page from T1 to B1 or from T2 to B2, so no bound on
/// `T1 + B1` or on all four is crossed before the admission. Whether the page that comes leaves its
/// ghost list before or after REPLACE changes nothing either, for REPLACE does not ask.
///
/// A prefetched page enters T1, moves no target, and its first reference counts as the one that the
/// figure takes for granted.
#[derive(Clone, Debug)]
pub struct Arc {
    directory: Directory,
    /// The ghost whose fault has moved the target already.
    adapted_for: Option<Page>,
}

impl Arc {
    /// Empty lists for a pool of `frames`.
    pub const fn new(frames: u32) -> Self {
        Self { directory: Directory::new(frames), adapted_for: None }
    }

    /// Cases II and III: a fault on a ghost moves the target, once, however many victims the fault
    /// asks for.
    fn adapt(&mut self, page: Page) {
        if self.adapted_for == Some(page) {
            return;
        }
        match self.directory.marks.get(page.index()) {
            B1 => self.directory.raise_target(),
            B2 => self.directory.lower_target(),
            _ => return,
        }
        self.adapted_for = Some(page);
    }
}

impl Policy for Arc {
    fn admitted(&mut self, page: Page, how: Admission) {
        let before = self.directory.marks.get(page.index());
        if how == Admission::Demand {
            self.adapt(page);
        }
        self.adapted_for = None;
        let lists = &mut self.directory;
        match before {
            B1 => lists.links.remove(&mut lists.b1, page),
            B2 => lists.links.remove(&mut lists.b2, page),
            _ => {}
        }
        let mark = match (how, before) {
            (Admission::Demand, B1 | B2) => T2,
            (Admission::Demand, _) => T1,
            (Admission::Prefetch, B1 | B2) => T1_AGAIN,
            (Admission::Prefetch, _) => T1_AHEAD,
        };
        lists.links.push_back(if mark == T2 { &mut lists.t2 } else { &mut lists.t1 }, page);
        *lists.marks.slot(page.index()) = mark;
        lists.cut_ghosts();
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let lists = &mut self.directory;
        let mark = lists.marks.at(page.index());
        match *mark {
            T2 => lists.links.move_to_back(&mut lists.t2, page),
            T1 | T1_AGAIN => {
                *mark = T2;
                lists.links.remove(&mut lists.t1, page);
                lists.links.push_back(&mut lists.t2, page);
            }
            T1_AHEAD => {
                *mark = T1;
                lists.links.move_to_back(&mut lists.t1, page);
            }
            _ => panic!("page {} is not resident in this policy", page.0),
        }
    }

    fn removed(&mut self, page: Page) {
        let lists = &mut self.directory;
        let list = match std::mem::take(lists.marks.at(page.index())) {
            T1 | T1_AHEAD | T1_AGAIN => &mut lists.t1,
            T2 => &mut lists.t2,
            _ => panic!("page {} is not resident in this policy", page.0),
        };
        lists.links.remove(list, page);
    }

    /// REPLACE.
    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        if let Some(page) = incoming {
            self.adapt(page);
        }
        let lists = &mut self.directory;
        let comes_from_b2 = incoming.is_some_and(|page| lists.marks.get(page.index()) == B2);
        let (t1, target) = (f64::from(lists.t1.len()), lists.t1_target_pages);
        let t1_is_over = t1 > target || comes_from_b2 && t1 == target;
        let from_t1 = t1_is_over && !lists.t1.is_empty() || lists.t2.is_empty();
        let (from, ghosts, mark) = match from_t1 {
            true => (&mut lists.t1, &mut lists.b1, B1),
            false => (&mut lists.t2, &mut lists.b2, B2),
        };
        let page = lists.links.pop_front(from)?;
        lists.links.push_back(ghosts, page);
        *lists.marks.at(page.index()) = mark;
        Some(page)
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
