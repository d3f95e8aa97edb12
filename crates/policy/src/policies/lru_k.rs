//! LRU-K.
use crate::flat::Flat;
use crate::parameters::{Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::rising::Rising;
use crate::{Admission, Page, Policy};

const K: ParameterInfo = ParameterInfo {
    key: "k",
    meaning: "which reference, counted back from the last, says how recently a page was used",
    kind: Kind::Integer { least: 1, most: 4 },
    default: Value::Integer(2),
};

const CORRELATED: ParameterInfo = ParameterInfo {
    key: "correlated_refs",
    meaning: "Correlated Reference Period: references to any pages within which two references \
              to a page count as one, and the page stays",
    kind: Kind::Integer { least: 0, most: u32::MAX as u64 },
    // The authors speak of seconds, and set none in their own measurements.
    default: Value::Integer(0),
};

const RETAINED: ParameterInfo = ParameterInfo {
    key: "retained_refs",
    meaning: "Retained Information Period: references to any pages since a page's last for which \
              its history is remembered after it left",
    kind: Kind::Integer { least: 0, most: u32::MAX as u64 },
    // History is as good as kept for ever: it costs nothing to keep in an array by page number.
    default: Value::Integer(u32::MAX as u64),
};

/// What the registry says about LRU-K.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lru-k",
    aliases: &["lru2", "lru-2", "lruk"],
    summary: "evicts the page whose K-th last reference is longest ago; K is 2 if not set",
    helps: "hot pages among many used once: scans pass by; indexes beside their records",
    hurts: "loops larger than memory; hot sets that move faster than two references show",
    source: Source {
        title: "E. J. O'Neil, P. E. O'Neil, G. Weikum: The LRU-K Page Replacement Algorithm for \
                Database Disk Buffering, ACM SIGMOD 1993",
        section: "2 Concepts of LRU-K Page Replacement, Figure 2.1",
    },
    cost: "K steps per reference; O(log frames) per admission and, amortised, per eviction",
    // History of 24, a mark of 4, and an entry of 16 in the queue.
    bytes_per_page: 44,
    parameters: &[K, CORRELATED, RETAINED],
    runs: Runs::Anywhere(|parameters, _, _| {
        Box::new(LruK::new(
            parameters.integer(K.key) as usize,
            parameters.integer(CORRELATED.key),
            parameters.integer(RETAINED.key),
        ))
    }),
};

/// LRU-K: evicts the page with the maximum backward K-distance, that is, the oldest K-th last
/// reference. Pages with fewer references have an infinite one and go first, among themselves in
/// order of their last reference.
///
/// Time is the number of references seen, admissions among them. References to a page within
/// `correlated_refs` of its last one belong to the same use of it, which takes no time: its older
/// history moves by as much as the use lasted. Until the period is over the page is no victim,
/// unless all are in theirs; then it is the one whose ends first. (Where the figure's loops would
/// overwrite what they read, history is shifted as its text says.)
///
/// What is known of a page outlives its eviction by `retained_refs`. It is kept by page number,
/// and so passes on to the next page of that number when a file was closed in between: an error
/// of one reference in what is known of that page.
///
/// Only references that are seen count. A prefetched page counts as referenced when it comes in,
/// and the first reference seen moves that one to its own time: pages fetched ahead of a scan look
/// no hotter than others.
#[derive(Clone, Debug)]
pub struct LruK {
    history: History,
    correlated_refs: u64,
    retained_refs: u64,
    /// References so far.
    now: u64,
    /// Pages by backward K-distance.
    ranked: Rising<u64>,
    /// Pages that were within their correlated period when they were to leave, by its end.
    correlated: Rising<u64>,
}

impl LruK {
    /// No pages.
    ///
    /// # Panics
    /// If `k` is zero.
    pub fn new(k: usize, correlated_refs: u64, retained_refs: u64) -> Self {
        assert!(k > 0, "LRU-K looks at one reference at least");
        Self {
            history: History { k, times: Flat::new() },
            correlated_refs,
            retained_refs,
            now: 0,
            ranked: Rising::new(),
            correlated: Rising::new(),
        }
    }
}

impl Policy for LruK {
    fn admitted(&mut self, page: Page, how: Admission) {
        let is_in = self.correlated.contains(page);
        assert!(!is_in, "page {} is resident in this policy already", page.0);
        self.now += 1;
        let history = &mut self.history;
        history.make_room(page);
        if self.now - history.last(page) > self.retained_refs {
            history.forget(page);
        }
        history.referenced(page, self.now, 0);
        history.set_last(page, self.now, how == Admission::Prefetch);
        self.ranked.insert(page, history.rank(page));
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.now += 1;
        let history = &mut self.history;
        let last = history.last(page);
        if history.is_unseen(page) {
            history.move_newest(page, self.now);
        } else if self.now - last > self.correlated_refs {
            history.referenced(page, self.now, last - history.newest(page));
        }
        history.set_last(page, self.now, false);
    }

    fn removed(&mut self, page: Page) {
        if self.correlated.contains(page) {
            self.correlated.remove(page);
        } else {
            self.ranked.remove(page);
        }
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let Self { history, ranked, correlated, .. } = self;
        // The room is for the next reference, so the last is one ago.
        let (now, correlated_refs) = (self.now, self.correlated_refs);
        let until = |page| history.last(page) + correlated_refs;
        while let Some(page) = correlated.take_least_if(until, |until| until <= now) {
            ranked.insert(page, history.rank(page));
        }
        while let Some(page) = ranked.take_least(|page| history.rank(page)) {
            if until(page) <= now {
                return Some(page);
            }
            correlated.insert(page, until(page));
        }
        correlated.take_least(until)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.ranked.len() + self.correlated.len()
    }
}

/// Whether the reference of the last time was not seen: the page was prefetched.
const UNSEEN: u64 = 1;
/// Ranks pages with K references above those with fewer.
const HAS_K: u64 = 1 << 63;

/// When pages were referenced: K + 1 times per page. The first is the paper's LAST, doubled to
/// make room for [`UNSEEN`]; then HIST(1) to HIST(K), 0 where there was no such reference.
#[derive(Clone, Debug)]
struct History {
    k: usize,
    times: Flat<u64>,
}

impl History {
    #[inline]
    fn at(&self, page: Page) -> usize {
        page.index() * (self.k + 1)
    }

    /// Every other change is to a page that has room.
    fn make_room(&mut self, page: Page) {
        let end = self.at(page) + self.k;
        self.times.slot(end);
    }

    #[inline]
    fn last(&self, page: Page) -> u64 {
        self.times.get(self.at(page)) >> 1
    }

    #[inline]
    fn is_unseen(&self, page: Page) -> bool {
        self.times.get(self.at(page)) & UNSEEN != 0
    }

    #[inline]
    fn set_last(&mut self, page: Page, now: u64, is_unseen: bool) {
        let at = self.at(page);
        *self.times.at(at) = now << 1 | u64::from(is_unseen);
    }

    /// HIST(1).
    #[inline]
    fn newest(&self, page: Page) -> u64 {
        self.times.get(self.at(page) + 1)
    }

    #[inline]
    fn move_newest(&mut self, page: Page, now: u64) {
        let at = self.at(page);
        *self.times.at(at + 1) = now;
    }

    /// The references before move up by one, and by the time that the last use took.
    #[inline]
    fn referenced(&mut self, page: Page, now: u64, use_refs: u64) {
        let at = self.at(page);
        for i in (2..=self.k).rev() {
            let newer = self.times.get(at + i - 1);
            *self.times.at(at + i) = if newer == 0 { 0 } else { newer + use_refs };
        }
        self.move_newest(page, now);
    }

    fn forget(&mut self, page: Page) {
        let at = self.at(page);
        (at..=at + self.k).for_each(|time| *self.times.at(time) = 0);
    }

    /// What orders victims: HIST(K), or the last reference where there is none.
    #[inline]
    fn rank(&self, page: Page) -> u64 {
        match self.times.get(self.at(page) + self.k) {
            0 => self.last(page),
            kth => HAS_K | kth,
        }
    }
}
