//! MQ, the multi-queue.
use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Gauge, Page, Policy, Visible};

const QUEUES_MOST: usize = 16;

const QUEUES: ParameterInfo = ParameterInfo {
    key: "queues",
    meaning: "LRU queues; a page referenced f times is in queue log2 f",
    kind: Kind::Integer { least: 1, most: QUEUES_MOST as u64 },
    default: Value::Integer(8),
};

const LIFE: ParameterInfo = ParameterInfo {
    key: "life",
    meaning: "references after which an unused page goes a queue down; 0 to learn it, as the \
              distance between two references to a page that is most frequent",
    kind: Kind::Integer { least: 0, most: i32::MAX as u64 },
    default: Value::Integer(0),
};

const QOUT: ParameterInfo = ParameterInfo {
    key: "qout",
    meaning: "evicted pages whose count of references is remembered, as a share of the frames",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(16, 1) },
    default: Value::Fraction(Fraction::new(4, 1)),
};

/// What the registry says about MQ.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "mq",
    aliases: &["multi-queue"],
    summary: "LRU queues by frequency; what is not used for a lifetime sinks, and is remembered",
    helps: "a cache below another cache, where pages come back late: frequency outlives recency",
    hurts: "fast changes of the working set: frequent pages take several lifetimes to leave",
    source: Source {
        title: "Y. Zhou, J. F. Philbin, K. Li: The Multi-Queue Replacement Algorithm for Second \
                Level Buffer Caches, USENIX Annual Technical Conference 2001",
        section: "The multi-queue algorithm; the lifetime from the peak temporal distance",
    },
    cost: "O(queues) per reference and admission, without touching pages; O(1) per eviction",
    bytes_per_page: 20,
    parameters: &[QUEUES, LIFE, QOUT],
    runs: Runs::Anywhere(|parameters, frames, _| {
        let queues = parameters.integer("queues") as usize;
        let life_refs = parameters.integer("life") as u32;
        Box::new(Mq::new(frames, queues, life_refs, parameters.fraction("qout")))
    }),
};

/// A queue number that stands for Qout.
const OUT: u32 = QUEUES_MOST as u32;

/// What is kept of a page is three numbers. The first is its queue, or `OUT`, in the low bits, and
/// its count of references in the others. Times are counts of references modulo 2³².
const PLACE: usize = 0;
const EXPIRES: usize = 1;
const LAST_REFERENCED: usize = 2;

const QUEUE_BITS: u32 = 5;
const COUNT_MOST: u32 = u32::MAX >> QUEUE_BITS;

const fn queue_of(place: u32) -> u32 {
    place & ((1 << QUEUE_BITS) - 1)
}

/// MQ.
///
/// A page referenced `f` times goes to the recent end of queue ⌊log₂ f⌋. At every reference the
/// oldest page of each queue goes one queue down if its lifetime is over. The victim is the oldest
/// page of the lowest queue that has any; Qout remembers its count, first in, first out.
///
/// The lifetime is the peak temporal distance, as the authors advise: of distances between two
/// references to the same page, remembered ones included, in classes of powers of two, the upper
/// end of the class with most. Until a page is referenced again it is the number of frames.
///
/// A prefetched page has a count of 0 more than what Qout remembers, until it is referenced.
#[derive(Clone, Debug)]
pub struct Mq {
    links: Links,
    queues: Vec<List>,
    out: List,
    entries: Flat<[u32; 3]>,
    /// When the oldest page of each queue expires.
    expiries: [u32; QUEUES_MOST],
    now_refs: u32,
    life_refs: u32,
    /// How many distances of each binary logarithm were seen, if the lifetime is learned.
    distances: Option<[u32; 32]>,
    /// The binary logarithm seen most.
    peak: usize,
    qout: Fraction,
    out_most_pages: u32,
}

impl Mq {
    /// Empty queues for a pool of `frames`. A lifetime of 0 is learned. Qout remembers the share
    /// `qout` of the frames.
    ///
    /// # Panics
    /// If there is no queue, or more than sixteen.
    pub fn new(frames: u32, queues: usize, life_refs: u32, qout: Fraction) -> Self {
        assert!((1..=QUEUES_MOST).contains(&queues), "MQ has one to sixteen queues");
        let is_learned = life_refs == 0;
        Self {
            links: Links::new(),
            queues: vec![List::new(); queues],
            out: List::new(),
            entries: Flat::new(),
            expiries: [0; QUEUES_MOST],
            now_refs: 0,
            life_refs: if is_learned { frames.min(i32::MAX as u32) } else { life_refs },
            distances: is_learned.then_some([0; 32]),
            peak: 0,
            qout,
            out_most_pages: qout.of(frames),
        }
    }

    fn learn(&mut self, distance_refs: u32) {
        let Some(distances) = &mut self.distances else { return };
        let class = distance_refs.max(1).ilog2() as usize;
        distances[class] = distances[class].saturating_add(1);
        if distances[class] > distances[self.peak] || distances[self.peak] == 0 {
            self.peak = class;
        }
        self.life_refs = ((2_u64 << self.peak) - 1).min(i32::MAX as u64) as u32;
    }

    /// Counts a reference to a page that is in no list, if it is one, and puts it in its queue.
    fn enter(&mut self, page: Page, is_reference: bool) {
        let entry = *self.entries.slot(page.index());
        let mut count = entry[PLACE] >> QUEUE_BITS;
        if is_reference {
            if count > 0 {
                self.learn(self.now_refs.wrapping_sub(entry[LAST_REFERENCED]));
            }
            count = COUNT_MOST.min(count + 1);
        }
        let queue = count.max(1).ilog2().min(self.queues.len() as u32 - 1);
        let entry = self.entries.at(page.index());
        entry[PLACE] = count << QUEUE_BITS | queue;
        entry[EXPIRES] = self.now_refs.wrapping_add(self.life_refs);
        if is_reference {
            entry[LAST_REFERENCED] = self.now_refs;
        }
        self.push(queue as usize, page);
    }

    fn push(&mut self, queue: usize, page: Page) {
        if self.queues[queue].is_empty() {
            self.expiries[queue] = self.entries.at(page.index())[EXPIRES];
        }
        self.links.push_back(&mut self.queues[queue], page);
    }

    fn take(&mut self, queue: usize, page: Page) {
        let was_oldest = self.queues[queue].front() == Some(page);
        self.links.remove(&mut self.queues[queue], page);
        if was_oldest && let Some(oldest) = self.queues[queue].front() {
            self.expiries[queue] = self.entries.at(oldest.index())[EXPIRES];
        }
    }

    /// The paper's `Adjust`.
    fn adjust(&mut self) {
        self.now_refs = self.now_refs.wrapping_add(1);
        for queue in 1..self.queues.len() {
            let over_refs = self.now_refs.wrapping_sub(self.expiries[queue]) as i32;
            if over_refs <= 0 {
                continue;
            }
            let Some(page) = self.queues[queue].front() else { continue };
            self.take(queue, page);
            let entry = self.entries.at(page.index());
            entry[PLACE] -= 1;
            entry[EXPIRES] = self.now_refs.wrapping_add(self.life_refs);
            self.push(queue - 1, page);
        }
    }

    fn forget_down_to(&mut self, pages: u32) {
        while self.out.len() > pages {
            let Some(page) = self.links.pop_front(&mut self.out) else { break };
            *self.entries.at(page.index()) = [0; 3];
        }
    }
}

impl Policy for Mq {
    fn admitted(&mut self, page: Page, how: Admission) {
        if queue_of(self.entries.get(page.index())[PLACE]) == OUT {
            self.links.remove(&mut self.out, page);
        }
        self.enter(page, how == Admission::Demand);
        if how == Admission::Demand {
            self.adjust();
        }
        self.forget_down_to(self.out_most_pages);
    }

    fn referenced(&mut self, page: Page) {
        let queue = queue_of(self.entries.get(page.index())[PLACE]) as usize;
        assert!(
            self.links.is_linked(page) && queue < self.queues.len(),
            "page {} is not resident in this policy",
            page.0
        );
        self.take(queue, page);
        self.enter(page, true);
        self.adjust();
    }

    fn removed(&mut self, page: Page) {
        let queue = queue_of(std::mem::take(self.entries.at(page.index()))[PLACE]);
        self.take(queue as usize, page);
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let queue = self.queues.iter().position(|queue| !queue.is_empty())?;
        let page = self.queues[queue].front()?;
        self.take(queue, page);
        // The page that comes counts as gone from Qout, and must not be forgotten to make room for
        // the memory of this one.
        let coming =
            incoming.filter(|coming| queue_of(self.entries.get(coming.index())[PLACE]) == OUT);
        if let Some(coming) = coming {
            self.links.move_to_back(&mut self.out, coming);
        }
        let place = &mut self.entries.at(page.index())[PLACE];
        *place = *place & !(queue_of(u32::MAX)) | OUT;
        self.links.push_back(&mut self.out, page);
        self.forget_down_to(self.out_most_pages.saturating_add(coming.is_some().into()));
        Some(page)
    }

    fn resized(&mut self, frames: u32) {
        self.out_most_pages = self.qout.of(frames);
        self.forget_down_to(self.out_most_pages);
    }

    fn resident(&self) -> u32 {
        self.queues.iter().map(List::len).sum()
    }

    fn visible(&mut self) -> Option<&mut dyn Visible> {
        Some(self)
    }
}

impl Visible for Mq {
    fn gauges(&self) -> Vec<Gauge> {
        vec![
            Gauge { name: "life_refs", value: self.life_refs.into() },
            Gauge { name: "remembered_pages", value: self.out.len().into() },
        ]
    }
}
