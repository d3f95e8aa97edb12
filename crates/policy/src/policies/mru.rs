//! Most recently used.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Place, Policy};

const AHEAD: ParameterInfo = ParameterInfo {
    key: "ahead",
    meaning: "share of the frames that prefetched pages not yet seen used may hold before the \
              oldest of them counts as used",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    default: Value::Fraction(Fraction::new(1, 32)),
};

const BY: ParameterInfo = ParameterInfo {
    key: "by",
    meaning: "whether pages leave, the last used first, or files one after the other, page by page: \
              where several are run over, some stay whole",
    kind: Kind::Choice(&["page", "file"]),
    default: Value::Choice("page"),
};

/// Numbers of files; those of more segments share some.
const FILES_MAX: u32 = 1 << 20;

/// What the registry says about MRU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "mru",
    aliases: &[],
    summary: "evicts the page that was referenced last, keeping a part of what went before",
    helps: "loops over more data than memory: repeated scans, nested-loop joins, training epochs",
    hurts: "anything with a moving working set: old pages never leave",
    source: Source {
        title: "P. C. H. Lee, R. C. Chang, M. C. Chen: HiPEC: A System for \
                Application-customized Virtual-memory Caching Management, \
                Software: Practice and Experience, 1997",
        section: "Performance evaluation, nested-loop join",
    },
    cost: "O(1) per reference, admission and eviction",
    // Four more by files.
    bytes_per_page: 9,
    parameters: &[AHEAD, BY],
    runs: Runs::Anywhere(|parameters, frames, _| {
        let mru = Mru::new(frames, parameters.fraction("ahead"));
        Box::new(if parameters.choice("by") == "file" { mru.by_file() } else { mru })
    }),
};

/// Most recently used: a list in order of last reference, victims from the recent end.
///
/// A prefetched page was not used yet, and must not be the next victim for being the newest. It
/// waits in a queue of its own until a reference is seen, or, since references may be sampled,
/// until the queue is longer than its share of the frames; then it counts as used.
///
/// # By files
/// Files leave one after the other, each to its last page: the one used last begins, and goes on, whatever
/// is used next. So of several that are run over, each in its time, most are in memory whole or not at
/// all, where by pages the end of each would leave, and come back by a request of its own; and what is used
/// beside a loop stays, though it is used last again and again. A single file is as by pages.
#[derive(Clone, Debug)]
pub struct Mru {
    /// Of used pages and those ahead.
    links: Links,
    /// Used pages, by the number of their file, which is 0 for all if files do not matter.
    files: Vec<List>,
    file_links: Links,
    /// Files with used pages, by last reference: numbers in the place of pages'.
    recency: List,
    used_pages: u32,
    is_by_file: bool,
    file_of: Flat<u32>,
    /// The file that leaves.
    leaving: Option<Page>,
    ahead: List,
    is_ahead: Flat<u8>,
    ahead_share: Fraction,
    ahead_most_pages: u32,
}

impl Mru {
    /// Empty lists. At most `ahead_share` of `frames` holds prefetched pages that wait for use.
    pub const fn new(frames: u32, ahead_share: Fraction) -> Self {
        Self {
            links: Links::new(),
            files: Vec::new(),
            file_links: Links::new(),
            recency: List::new(),
            used_pages: 0,
            is_by_file: false,
            file_of: Flat::new(),
            leaving: None,
            ahead: List::new(),
            is_ahead: Flat::new(),
            ahead_share,
            ahead_most_pages: ahead_share.of(frames),
        }
    }

    /// The same by files.
    #[must_use]
    pub fn by_file(self) -> Self {
        Self { is_by_file: true, ..self }
    }

    /// The number of the page's file, in the place of a page's.
    fn file(&self, page: Page) -> Page {
        Page(self.file_of.get(page.index()))
    }

    /// A page that is in no list was used last.
    fn enter(&mut self, page: Page) {
        let file = self.file(page);
        if self.files.len() <= file.index() {
            self.files.resize_with(file.index() + 1, List::new);
        }
        let pages = &mut self.files[file.index()];
        if pages.is_empty() {
            self.file_links.push_back(&mut self.recency, file);
        } else {
            self.file_links.move_to_back(&mut self.recency, file);
        }
        self.links.push_back(pages, page);
        self.used_pages += 1;
    }

    fn leave(&mut self, page: Page) {
        let file = self.file(page);
        let pages = &mut self.files[file.index()];
        self.links.remove(pages, page);
        if pages.is_empty() {
            self.file_links.remove(&mut self.recency, file);
        }
        self.used_pages -= 1;
    }

    /// The used page that leaves next.
    fn last(&mut self) -> Option<Page> {
        let leaving = self.leaving.filter(|file| self.file_links.is_linked(*file));
        let file = leaving.or(self.recency.back())?;
        self.leaving = Some(file);
        self.files[file.index()].back()
    }

    fn count_oldest_ahead_as_used(&mut self) {
        while self.ahead.len() > self.ahead_most_pages {
            let Some(page) = self.links.pop_front(&mut self.ahead) else { break };
            *self.is_ahead.at(page.index()) = 0;
            self.enter(page);
        }
    }
}

impl Policy for Mru {
    fn wants_places(&self) -> bool {
        self.is_by_file
    }

    fn wants_indices(&self) -> bool {
        false
    }

    fn placed(&mut self, page: Page, place: Place) {
        if self.is_by_file {
            *self.file_of.slot(page.index()) = place.segment.0 % FILES_MAX;
        }
    }

    fn admitted(&mut self, page: Page, how: Admission) {
        match how {
            Admission::Demand => {
                *self.is_ahead.slot(page.index()) = 0;
                self.enter(page);
            }
            Admission::Prefetch => {
                self.links.push_back(&mut self.ahead, page);
                *self.is_ahead.slot(page.index()) = 1;
                self.count_oldest_ahead_as_used();
            }
        }
    }

    // It waits for no use.
    fn spared(&mut self, page: Page) {
        self.admitted(page, Admission::Demand);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        let is_ahead = self.is_ahead.at(page.index());
        if *is_ahead == 0 {
            let file = self.file(page);
            self.links.move_to_back(&mut self.files[file.index()], page);
            self.file_links.move_to_back(&mut self.recency, file);
        } else {
            *is_ahead = 0;
            self.links.remove(&mut self.ahead, page);
            self.enter(page);
        }
    }

    fn wants_samples(&self) -> bool {
        false
    }

    /// Of what a program runs over, samples are single pages; as the next victims they would leave
    /// holes that each cost a request. So the order is that of admissions, and of references that
    /// stand for all.
    fn sampled(&mut self, page: Page) {
        if self.is_ahead.get(page.index()) != 0 {
            self.referenced(page);
        }
    }

    fn removed(&mut self, page: Page) {
        match self.is_ahead.get(page.index()) {
            0 => self.leave(page),
            _ => self.links.remove(&mut self.ahead, page),
        }
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let Some(last) = self.last() else {
            // With nothing but pages ahead, the oldest is the likeliest to have been used unseen.
            return self.links.pop_front(&mut self.ahead);
        };
        self.leave(last);
        Some(last)
    }

    fn resized(&mut self, frames: u32) {
        self.ahead_most_pages = self.ahead_share.of(frames);
        self.count_oldest_ahead_as_used();
    }

    fn order(&self) -> Option<Vec<Page>> {
        let used = self.files.first().cloned().unwrap_or_default();
        let pages = self.links.iter(&self.ahead).chain(self.links.iter(&used));
        (!self.is_by_file).then(|| pages.collect())
    }

    fn resident(&self) -> u32 {
        self.used_pages + self.ahead.len()
    }
}
