//! SEQ: most recently used within long sequences of faults, LRU elsewhere.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::flat::Flat;
use crate::list::{Links, List};
use crate::parameters::{Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::{Admission, Page, Place, Policy, Segment};

const L: ParameterInfo = ParameterInfo {
    key: "l",
    meaning: "pages that a sequence of faults needs before it gives victims",
    kind: Kind::Integer { least: 1, most: 1 << 20 },
    default: Value::Integer(20),
};

const N: ParameterInfo = ParameterInfo {
    key: "n",
    meaning: "of several sequences, the one whose n-th last fault is the most recent gives victims",
    kind: Kind::Integer { least: 1, most: 64 },
    default: Value::Integer(5),
};

const M: ParameterInfo = ParameterInfo {
    key: "m",
    meaning: "pages behind the head of a sequence, the last fault, that it does not give",
    kind: Kind::Integer { least: 0, most: 1 << 20 },
    default: Value::Integer(20),
};

const SEQUENCES: ParameterInfo = ParameterInfo {
    key: "sequences",
    meaning: "sequences that are remembered; short ones without a recent fault are forgotten first",
    kind: Kind::Integer { least: 1, most: 1 << 16 },
    default: Value::Integer(200),
};

/// What the registry says about SEQ.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "seq",
    aliases: &[],
    summary: "within long sequences of faults on neighbouring pages evicts the newest, else as LRU",
    helps: "scans and loops over files larger than memory, beside a working set that LRU keeps",
    hurts: "files read in sequence once and then used again at random while they would fit",
    source: Source {
        title: "G. Glass, P. Cao: Adaptive Page Replacement Based on Memory Reference Behavior, \
                SIGMETRICS 1997",
        section: "The SEQ algorithm, with its L, N and M",
    },
    cost: "as LRU per reference; O(log sequences) amortised per admission and eviction",
    bytes_per_page: 32,
    parameters: &[L, N, M, SEQUENCES],
    runs: Runs::Anywhere(|parameters, _, _| {
        Box::new(Seq::new(Limits {
            length_least_pages: parameters.integer("l"),
            faults: parameters.integer("n") as usize,
            distance_least_pages: parameters.integer("m"),
            sequences_most: parameters.integer("sequences") as usize,
        }))
    }),
};

/// The paper's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// L: pages that a sequence needs before it gives victims.
    pub length_least_pages: u64,
    /// N: which of a sequence's last faults, from 1, says how recent it is.
    pub faults: usize,
    /// M: pages behind a sequence's head that it keeps.
    pub distance_least_pages: u64,
    /// Sequences that are remembered, at least one.
    pub sequences_most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
    /// One page: either.
    Unknown,
}

/// Consecutive faults on neighbouring pages of a segment.
#[derive(Clone, Debug)]
struct Sequence {
    segment: Segment,
    /// First and last page, both of it.
    low: u64,
    high: u64,
    direction: Direction,
    /// The last N faults, by their number, latest last.
    faults: VecDeque<u64>,
    /// Its resident pages, in the order of their faults: those nearer to the head than M, and the
    /// others before them.
    near: List,
    far: List,
}

impl Sequence {
    const fn length_pages(&self) -> u64 {
        self.high - self.low + 1
    }

    const fn distance_to_head(&self, index: u64) -> u64 {
        match self.direction {
            Direction::Down => index.abs_diff(self.low),
            Direction::Up | Direction::Unknown => index.abs_diff(self.high),
        }
    }

    fn last_fault(&self) -> u64 {
        self.faults.back().copied().unwrap_or(0)
    }
}

/// SEQ.
///
/// Faults on neighbouring pages, one after the other in one direction, make a sequence. A fault
/// inside a sequence cuts it off there and starts a new one; a sequence that grows into another
/// replaces it. As long as there is a sequence of L pages, the victim is its resident page nearest
/// to its head, but M pages off at least; of several, the one whose Nth last fault is the most
/// recent gives it. Without one, LRU.
///
/// A prefetched page counts as a fault that the fetching saved.
#[derive(Clone, Debug)]
pub struct Seq {
    limits: Limits,
    links: Links,
    order: List,
    /// Segment, and index in two halves.
    places: Flat<[u32; 3]>,
    member_links: Links,
    /// Sequence of a page and whether it is far from the head, as `1 + 2 × number + far`.
    members: Flat<u32>,
    sequences: Vec<Sequence>,
    unused: Vec<u32>,
    /// By segment and lowest page. They do not overlap.
    by_place: BTreeMap<(Segment, u64), u32>,
    /// Those that can give a victim, by their Nth last fault.
    givers: BTreeSet<(u64, u32)>,
    /// By how long they are, as powers of two of L, and by their last fault.
    by_worth: BTreeSet<(u32, u64, u32)>,
    faults: u64,
}

impl Seq {
    /// No pages and no sequences.
    ///
    /// # Panics
    /// If L, N or the number of sequences is 0.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.length_least_pages > 0 && limits.faults > 0 && limits.sequences_most > 0);
        Self {
            limits,
            links: Links::new(),
            order: List::new(),
            places: Flat::new(),
            member_links: Links::new(),
            members: Flat::new(),
            sequences: Vec::new(),
            unused: Vec::new(),
            by_place: BTreeMap::new(),
            givers: BTreeSet::new(),
            by_worth: BTreeSet::new(),
            faults: 0,
        }
    }

    fn place(&self, page: Page) -> Place {
        let [segment, high, low] = self.places.get(page.index());
        Place { segment: Segment(segment), index: u64::from(high) << 32 | u64::from(low) }
    }

    fn get(&mut self, number: u32) -> &mut Sequence {
        &mut self.sequences[number as usize]
    }

    fn giver_key(&self, number: u32) -> Option<(u64, u32)> {
        let sequence = &self.sequences[number as usize];
        let gives =
            sequence.length_pages() >= self.limits.length_least_pages && !sequence.far.is_empty();
        let is_full = sequence.faults.len() == self.limits.faults;
        gives.then(|| (if is_full { sequence.faults[0] } else { 0 }, number))
    }

    fn worth_key(&self, number: u32) -> (u32, u64, u32) {
        let sequence = &self.sequences[number as usize];
        let times_l = sequence.length_pages().div_ceil(self.limits.length_least_pages);
        (times_l.next_power_of_two().ilog2(), sequence.last_fault(), number)
    }

    /// Takes a sequence out of the orders, to change or forget it.
    fn take_out(&mut self, number: u32) {
        self.giver_key(number).inspect(|key| _ = self.givers.remove(key));
        self.by_worth.remove(&self.worth_key(number));
        let Sequence { segment, low, .. } = self.sequences[number as usize];
        self.by_place.remove(&(segment, low));
    }

    fn put_back(&mut self, number: u32) {
        self.giver_key(number).inspect(|key| _ = self.givers.insert(*key));
        self.by_worth.insert(self.worth_key(number));
        let Sequence { segment, low, .. } = self.sequences[number as usize];
        self.by_place.insert((segment, low), number);
    }

    fn forget(&mut self, number: u32) {
        self.take_out(number);
        let sequence = &mut self.sequences[number as usize];
        for list in [&mut sequence.near, &mut sequence.far] {
            while let Some(page) = self.member_links.pop_front(list) {
                *self.members.at(page.index()) = 0;
            }
        }
        self.unused.push(number);
    }

    /// Makes a fault the head of a sequence, which is out of the orders.
    fn extend(&mut self, number: u32, page: Page) {
        let index = self.place(page).index;
        let (now, faults_most) = (self.faults, self.limits.faults);
        let sequence = &mut self.sequences[number as usize];
        if index < sequence.low {
            (sequence.low, sequence.direction) = (index, Direction::Down);
        } else if index > sequence.high {
            (sequence.high, sequence.direction) = (index, Direction::Up);
        }
        if sequence.faults.len() == faults_most {
            sequence.faults.pop_front();
        }
        sequence.faults.push_back(now);
        self.member_links.push_back(&mut sequence.near, page);
        *self.members.slot(page.index()) = 1 + 2 * number;
        while let Some(oldest) = self.sequences[number as usize].near.front() {
            let index = self.place(oldest).index;
            let sequence = &mut self.sequences[number as usize];
            if sequence.distance_to_head(index) < self.limits.distance_least_pages {
                break;
            }
            self.member_links.remove(&mut sequence.near, oldest);
            self.member_links.push_back(&mut sequence.far, oldest);
            *self.members.at(oldest.index()) = 2 + 2 * number;
        }
        self.put_back(number);
    }

    /// Takes the page at `index` and what came after it off a sequence.
    fn cut(&mut self, number: u32, index: u64) {
        let sequence = &self.sequences[number as usize];
        let rest = match sequence.direction {
            Direction::Up => sequence.low..index,
            Direction::Down => index + 1..sequence.high + 1,
            Direction::Unknown => 0..0,
        };
        if rest.is_empty() {
            return self.forget(number);
        }
        self.take_out(number);
        let sequence = self.get(number);
        (sequence.low, sequence.high) = (rest.start, rest.end - 1);
        loop {
            let sequence = &self.sequences[number as usize];
            let Some(page) = sequence.near.back().or_else(|| sequence.far.back()) else { break };
            if rest.contains(&self.place(page).index) {
                break;
            }
            self.leave_sequence(page);
        }
        // The head went back, so pages far from it may be near now.
        while let Some(page) = self.sequences[number as usize].far.back() {
            let index = self.place(page).index;
            let sequence = &mut self.sequences[number as usize];
            if sequence.distance_to_head(index) >= self.limits.distance_least_pages {
                break;
            }
            self.member_links.remove(&mut sequence.far, page);
            self.member_links.push_front(&mut sequence.near, page);
            *self.members.at(page.index()) = 1 + 2 * number;
        }
        self.put_back(number);
    }

    fn leave_sequence(&mut self, page: Page) {
        let Some(member) = self.members.get(page.index()).checked_sub(1) else { return };
        *self.members.at(page.index()) = 0;
        let sequence = &mut self.sequences[member as usize / 2];
        let list = if member % 2 == 1 { &mut sequence.far } else { &mut sequence.near };
        self.member_links.remove(list, page);
    }

    fn fault(&mut self, page: Page) {
        self.faults += 1;
        let Place { segment, index } = self.place(page);
        let before = self.by_place.range((segment, 0)..(segment, index)).next_back();
        let before = before.map(|(_, number)| *number);
        let at = self.by_place.get(&(segment, index)).copied();
        let after = index.checked_add(1).and_then(|next| self.by_place.get(&(segment, next)));
        let after = after.copied();

        let sequence = |number: &u32| &self.sequences[*number as usize];
        let around = at.or(before.filter(|number| sequence(number).high >= index));
        let grows_up = before.filter(|number| {
            sequence(number).high + 1 == index && sequence(number).direction != Direction::Down
        });
        let grows_down = after.filter(|number| sequence(number).direction != Direction::Up);
        let latest =
            [grows_up, grows_down].into_iter().flatten().max_by_key(|n| sequence(n).last_fault());
        if let Some(number) = latest {
            around.inspect(|number| self.forget(*number));
            self.take_out(number);
            return self.extend(number, page);
        }
        around.inspect(|number| self.cut(*number, index));
        if self.by_place.len() == self.limits.sequences_most
            && let Some((.., worst)) = self.by_worth.first().copied()
        {
            self.forget(worst);
        }
        let sequence = Sequence {
            segment,
            low: index,
            high: index,
            direction: Direction::Unknown,
            faults: VecDeque::new(),
            near: List::new(),
            far: List::new(),
        };
        let number = self.unused.pop().unwrap_or(self.sequences.len() as u32);
        if number as usize == self.sequences.len() {
            self.sequences.push(sequence);
        } else {
            *self.get(number) = sequence;
        }
        self.extend(number, page);
    }

    /// A resident page leaves; its sequence may have none left to give.
    fn leave(&mut self, page: Page) {
        self.links.remove(&mut self.order, page);
        let Some(member) = self.members.get(page.index()).checked_sub(1) else { return };
        let number = member / 2;
        let key = self.giver_key(number);
        self.leave_sequence(page);
        if let Some(key) = key
            && self.giver_key(number).is_none()
        {
            self.givers.remove(&key);
        }
    }
}

impl Policy for Seq {
    fn wants_places(&self) -> bool {
        true
    }

    fn placed(&mut self, page: Page, place: Place) {
        let Place { segment, index } = place;
        *self.places.slot(page.index()) = [segment.0, (index >> 32) as u32, index as u32];
    }

    fn admitted(&mut self, page: Page, _how: Admission) {
        self.links.push_back(&mut self.order, page);
        self.fault(page);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.links.move_to_back(&mut self.order, page);
    }

    fn removed(&mut self, page: Page) {
        self.leave(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        let giver = self.givers.last().map(|(_, number)| &self.sequences[*number as usize]);
        let page = giver.and_then(|sequence| sequence.far.back()).or_else(|| self.order.front())?;
        self.leave(page);
        Some(page)
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.order.len()
    }
}
