//! The policies of the last two decades, each against a slow, obvious model of it.
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::policies::sieve::Sieve;
use pagekeeper_policy::{Admission, Checked, Page, Policy, PolicySpec};
use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::model;
use model::{Model, compare, config, drop_page, events};

const SEED: u64 = 7;

fn build(spec: &str, frames: u32) -> Box<dyn Policy> {
    PolicySpec::parse(spec).unwrap().build(frames, SEED).unwrap()
}

/// The paper's Algorithm 1: a queue from oldest to newest, and the hand's place in it.
#[derive(Default)]
struct SieveModel {
    queue: Vec<(u32, u32)>,
    hand: usize,
}

impl Model for SieveModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        // A hand past the newest page looks at the oldest next, not at whoever comes now.
        if self.hand == self.queue.len() {
            self.hand = 0;
        }
        self.queue.push((page, u32::from(how == Admission::Demand)));
    }
    fn referenced(&mut self, page: u32) {
        self.queue.iter_mut().find(|entry| entry.0 == page).unwrap().1 += 1;
    }
    fn removed(&mut self, page: u32) {
        let place = self.queue.iter().position(|entry| entry.0 == page).unwrap();
        self.queue.remove(place);
        if place < self.hand {
            self.hand -= 1;
        }
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if self.queue.is_empty() {
            return None;
        }
        loop {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
            let (page, uses) = &mut self.queue[self.hand];
            if *uses < 2 {
                let page = *page;
                self.queue.remove(self.hand);
                return Some(page);
            }
            *uses = 1;
            self.hand += 1;
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.queue.iter().map(|entry| entry.0).collect()
    }
}

/// S3-FIFO's three queues from oldest to newest, and what was used how often.
struct S3FifoModel {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    /// Uses after the first; -1 for a prefetched page not used yet.
    reuses: BTreeMap<u32, i32>,
    frames: usize,
    is_paper: bool,
    has_evicted: bool,
}

impl S3FifoModel {
    fn new(frames: u32, is_paper: bool) -> Self {
        Self {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            reuses: BTreeMap::new(),
            frames: frames as usize,
            is_paper,
            has_evicted: false,
        }
    }

    fn small_target(&self) -> usize {
        self.frames / 10
    }

    /// The paper's `evictM`.
    fn evict_main(&mut self) -> Option<u32> {
        loop {
            let page = self.main.pop_front()?;
            let reuses = self.reuses.get_mut(&page).unwrap();
            if *reuses <= 0 {
                return Some(page);
            }
            *reuses -= 1;
            self.main.push_back(page);
        }
    }

    fn trim(&mut self, coming: Option<u32>) {
        let coming = coming.filter(|page| self.ghosts.contains(page));
        let most = self.frames * 9 / 10 + usize::from(coming.is_some());
        while self.ghosts.len() > most {
            let oldest = self.ghosts.iter().position(|page| Some(*page) != coming).unwrap();
            self.ghosts.remove(oldest);
        }
    }
}

impl Model for S3FifoModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let was_ghost = drop_page(&mut self.ghosts, page);
        let is_filling =
            !self.is_paper && !self.has_evicted && self.small.len() >= self.small_target();
        if was_ghost && how == Admission::Demand || is_filling {
            self.main.push_back(page);
        } else {
            self.small.push_back(page);
        }
        self.reuses.insert(page, if how == Admission::Demand { 0 } else { -1 });
    }
    fn referenced(&mut self, page: u32) {
        self.reuses.entry(page).and_modify(|reuses| *reuses = 3.min(*reuses + 1));
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.small, page) || drop_page(&mut self.main, page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        self.has_evicted = true;
        let main_target = self.frames - self.small_target();
        let from_small = if self.is_paper {
            self.small.len() >= self.small_target()
        } else {
            self.main.len() <= main_target
        };
        if !from_small && !self.main.is_empty() {
            return self.evict_main();
        }
        while let Some(page) = self.small.pop_front() {
            if self.reuses[&page] < 2 {
                self.ghosts.push_back(page);
                self.trim(incoming);
                return Some(page);
            }
            self.reuses.insert(page, 0);
            self.main.push_back(page);
            if self.is_paper && self.main.len() > main_target {
                break;
            }
        }
        self.evict_main()
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.trim(None);
    }
    fn resident(&self) -> Vec<u32> {
        self.small.iter().chain(&self.main).copied().collect()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Lir,
    Hir,
    Departed,
}

/// The paper's Figure 2: stack S from bottom to top, queue Q from front to end, and what each page
/// in either is. `departed` has the non-resident pages in the order in which they left.
#[derive(Default)]
struct LirsModel {
    stack: Vec<u32>,
    queue: VecDeque<u32>,
    departed: VecDeque<u32>,
    status: BTreeMap<u32, Status>,
    lir_most: usize,
    stack_most: usize,
}

impl LirsModel {
    fn new(frames: u32) -> Self {
        let mut model = Self::default();
        model.resized(frames);
        model
    }

    fn lirs(&self) -> usize {
        self.status.values().filter(|status| **status == Status::Lir).count()
    }

    fn is_in_stack(&self, page: u32) -> bool {
        self.stack.contains(&page)
    }

    fn forget(&mut self, page: u32) {
        self.stack.retain(|other| *other != page);
        drop_page(&mut self.queue, page);
        drop_page(&mut self.departed, page);
        self.status.remove(&page);
    }

    /// Whatever the paper's rules ask for after a step: no more LIR pages than fit, a LIR page at
    /// the bottom, no page remembered that is neither resident nor in the stack, a short stack.
    fn settle(&mut self) {
        while self.lirs() > self.lir_most {
            let bottom =
                self.stack.iter().position(|page| self.status[page] == Status::Lir).unwrap();
            let page = self.stack.remove(bottom);
            self.status.insert(page, Status::Hir);
            self.queue.push_back(page);
        }
        while self.stack.first().is_some_and(|page| self.status[page] != Status::Lir) {
            let page = self.stack.remove(0);
            if self.status[&page] == Status::Departed {
                self.forget(page);
            }
        }
        while self.stack.len() > self.stack_most && !self.departed.is_empty() {
            self.forget(self.departed[0]);
        }
    }
}

impl Model for LirsModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        drop_page(&mut self.departed, page);
        self.status.insert(page, Status::Hir);
        self.queue.push_back(page);
        if how == Admission::Demand {
            self.referenced(page);
        }
    }
    fn referenced(&mut self, page: u32) {
        let was_in_stack = self.is_in_stack(page);
        self.stack.retain(|other| *other != page);
        self.stack.push(page);
        if self.status[&page] == Status::Hir {
            drop_page(&mut self.queue, page);
            if was_in_stack || self.lirs() < self.lir_most {
                self.status.insert(page, Status::Lir);
            } else {
                self.queue.push_back(page);
            }
        }
        self.settle();
    }
    fn removed(&mut self, page: u32) {
        self.forget(page);
        self.settle();
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if let Some(page) = self.queue.pop_front() {
            if self.is_in_stack(page) {
                self.status.insert(page, Status::Departed);
                self.departed.push_back(page);
            } else {
                self.status.remove(&page);
            }
            return Some(page);
        }
        let page = *self.stack.first()?;
        self.removed(page);
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        let frames = frames as usize;
        self.lir_most = frames - (frames / 4).max(1);
        self.stack_most = 2 * frames;
        self.settle();
    }
    fn resident(&self) -> Vec<u32> {
        let resident = self.status.iter().filter(|(_, status)| **status != Status::Departed);
        resident.map(|(page, _)| *page).collect()
    }
}

/// Three queues from oldest to newest, and true frequencies: for thirty pages the sketch has room
/// enough to be exact.
#[derive(Default)]
struct WTinyLfuModel {
    window: VecDeque<u32>,
    probation: VecDeque<u32>,
    protected: VecDeque<u32>,
    uses: BTreeMap<u32, u32>,
    counted: usize,
    frames: usize,
}

impl WTinyLfuModel {
    fn new(frames: u32) -> Self {
        Self { frames: frames as usize, ..Self::default() }
    }

    /// A quarter in the test, a hundredth by default.
    fn window_most(&self) -> usize {
        (self.frames / 4).max(1)
    }

    fn count(&mut self, page: u32) {
        let uses = self.uses.entry(page).or_default();
        *uses = 15.min(*uses + 1);
        self.counted += 1;
        if self.counted >= 10 * self.frames {
            self.counted /= 2;
            self.uses.values_mut().for_each(|uses| *uses /= 2);
        }
    }

    fn settle(&mut self) {
        while self.window.len() > self.window_most() {
            self.probation.extend(self.window.pop_front());
        }
        let protected_most = (self.frames - self.window_most()) * 4 / 5;
        while self.protected.len() > protected_most {
            self.probation.extend(self.protected.pop_front());
        }
    }
}

impl Model for WTinyLfuModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.window.push_back(page);
        if how == Admission::Demand {
            self.count(page);
        }
        self.settle();
    }
    fn referenced(&mut self, page: u32) {
        self.count(page);
        if drop_page(&mut self.window, page) {
            self.window.push_back(page);
        } else {
            let _ = drop_page(&mut self.probation, page) || drop_page(&mut self.protected, page);
            self.protected.push_back(page);
        }
        // Not the window: a smaller one hands pages on when the next comes or is asked for.
        let window = std::mem::take(&mut self.window);
        self.settle();
        self.window = window;
    }
    fn removed(&mut self, page: u32) {
        for queue in [&mut self.window, &mut self.probation, &mut self.protected] {
            drop_page(queue, page);
        }
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        self.settle();
        let oldest = self.probation.front().or(self.protected.front()).copied();
        let newcomer = self.window.front().copied();
        let uses = |page| self.uses.get(&page).copied().unwrap_or_default();
        let victim = match (newcomer, oldest) {
            (Some(newcomer), Some(oldest)) if self.window.len() >= self.window_most() => {
                if uses(newcomer) > uses(oldest) {
                    self.probation.extend(self.window.pop_front());
                    oldest
                } else {
                    newcomer
                }
            }
            (newcomer, oldest) => oldest.or(newcomer)?,
        };
        self.removed(victim);
        Some(victim)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        let window = std::mem::take(&mut self.window);
        self.settle();
        self.window = window;
    }
    fn resident(&self) -> Vec<u32> {
        self.window.iter().chain(&self.probation).chain(&self.protected).copied().collect()
    }
}

/// A page in CLOCK-Pro's circle.
#[derive(Clone, Copy)]
struct ProPage {
    page: u32,
    resident: bool,
    hot: bool,
    test: bool,
    referenced: bool,
}

/// The paper's Figure 2: the circle from the hot hand on, and the pages that the other two hands
/// are at (none: where the hot hand is).
struct ClockProModel {
    circle: Vec<ProPage>,
    cold_hand: Option<u32>,
    test_hand: Option<u32>,
    cold_target: usize,
    frames: usize,
}

impl ClockProModel {
    fn new(frames: u32) -> Self {
        let frames = frames as usize;
        let cold_target = (frames / 4).max(1);
        Self { circle: Vec::new(), cold_hand: None, test_hand: None, cold_target, frames }
    }

    fn place(&self, page: u32) -> Option<usize> {
        self.circle.iter().position(|entry| entry.page == page)
    }

    fn number(&self, test: impl Fn(&ProPage) -> bool) -> usize {
        self.circle.iter().filter(|entry| test(entry)).count()
    }

    fn after(&self, place: usize) -> Option<u32> {
        self.circle.get(place + 1).map(|entry| entry.page)
    }

    fn remove(&mut self, place: usize) -> ProPage {
        let next = self.after(place);
        let gone = self.circle[place].page;
        for hand in [&mut self.cold_hand, &mut self.test_hand] {
            if *hand == Some(gone) {
                *hand = next;
            }
        }
        self.circle.remove(place)
    }

    fn end_test(&mut self, place: usize, coming: Option<u32>) -> bool {
        let entry = &mut self.circle[place];
        if !entry.test || Some(entry.page) == coming {
            return false;
        }
        if !entry.referenced {
            entry.test = false;
            self.cold_target = 1.max(self.cold_target - 1);
        }
        let departed = !entry.resident;
        if departed {
            self.remove(place);
        }
        departed
    }

    fn run_hot(&mut self, most: usize, coming: Option<u32>) {
        while self.number(|entry| entry.hot) > most {
            if self.circle[0].hot {
                if self.circle[0].referenced {
                    self.circle[0].referenced = false;
                } else {
                    self.circle[0].hot = false;
                }
            } else if self.end_test(0, coming) {
                continue;
            }
            self.circle.rotate_left(1);
        }
    }

    fn run_test(&mut self, coming: Option<u32>) {
        let most = self.frames + usize::from(coming.is_some());
        while self.number(|entry| !entry.resident) > most {
            let place = self.test_hand.map_or(0, |page| self.place(page).unwrap());
            self.test_hand = self.after(place).or(Some(self.circle[0].page));
            self.end_test(place, coming);
        }
    }
}

impl Model for ClockProModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let is_demand = how == Admission::Demand;
        if let Some(place) = self.place(page) {
            if !is_demand {
                self.circle[place].resident = true;
                return;
            }
            self.remove(place);
            self.cold_target = self.frames.min(self.cold_target + 1);
            let (resident, hot, test, referenced) = (true, true, false, false);
            self.circle.push(ProPage { page, resident, hot, test, referenced });
            self.run_hot(self.frames - self.cold_target, None);
        } else {
            let hot_most = self.frames - self.cold_target;
            let hot = is_demand && self.resident().len() < hot_most;
            let (resident, test, referenced) = (true, is_demand && !hot, false);
            self.circle.push(ProPage { page, resident, hot, test, referenced });
        }
    }
    fn referenced(&mut self, page: u32) {
        let place = self.place(page).unwrap();
        self.circle[place].referenced = true;
    }
    fn removed(&mut self, page: u32) {
        self.remove(self.place(page).unwrap());
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let coming = incoming.filter(|page| self.place(*page).is_some());
        if self.resident().is_empty() {
            return None;
        }
        loop {
            let hot = self.number(|entry| entry.hot);
            if self.resident().len() == hot {
                self.run_hot(hot - 1, coming);
            }
            let place = self.cold_hand.map_or(0, |page| self.place(page).unwrap());
            self.cold_hand = self.after(place).or(Some(self.circle[0].page));
            let entry = self.circle[place];
            if !entry.resident || entry.hot {
                continue;
            }
            if !entry.referenced {
                if entry.test {
                    self.circle[place].resident = false;
                    self.run_test(coming);
                } else {
                    self.remove(place);
                }
                return Some(entry.page);
            }
            self.remove(place);
            let (hot, test) = (entry.test, !entry.test);
            self.circle.push(ProPage { hot, test, referenced: false, ..entry });
            if hot {
                self.cold_target = self.frames.min(self.cold_target + 1);
                self.run_hot(self.frames - self.cold_target, coming);
            }
        }
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames as usize;
        self.cold_target = self.cold_target.clamp(1, self.frames);
        self.run_hot(self.frames - self.cold_target, None);
        self.run_test(None);
    }
    fn resident(&self) -> Vec<u32> {
        self.circle.iter().filter(|entry| entry.resident).map(|entry| entry.page).collect()
    }
}

/// Generations from oldest to youngest, and the pages referenced since the last aging, in order.
struct MgLruModel {
    gens: VecDeque<VecDeque<u32>>,
    referenced: Vec<u32>,
    /// Notes in the order of first references, those of pages that have left since among them.
    notes: Vec<u32>,
    min_gens: usize,
    max_gens: usize,
}

impl MgLruModel {
    fn new(min_gens: usize, max_gens: usize) -> Self {
        let gens = (0..min_gens).map(|_| VecDeque::new()).collect();
        Self { gens, referenced: Vec::new(), notes: Vec::new(), min_gens, max_gens }
    }

    fn take(&mut self, page: u32) -> bool {
        self.referenced.retain(|other| *other != page);
        self.gens.iter_mut().any(|list| drop_page(list, page))
    }

    fn should_age(&self) -> bool {
        let total: usize = self.gens.iter().map(VecDeque::len).sum();
        let ideal = self.min_gens + 1;
        self.gens.len() < ideal
            || self.gens.len() == ideal
                && (self.gens.back().unwrap().len() * self.min_gens > total
                    || self.gens[0].len() * (self.min_gens + 2) < total)
    }

    fn age(&mut self) {
        for page in std::mem::take(&mut self.notes) {
            if self.referenced.contains(&page) {
                self.take(page);
                self.gens.back_mut().unwrap().push_back(page);
            }
        }
        if self.gens.len() == self.max_gens {
            let mut oldest = self.gens.pop_front().unwrap();
            oldest.append(&mut self.gens[0]);
            self.gens[0] = oldest;
        }
        self.gens.push_back(VecDeque::new());
    }
}

impl Model for MgLruModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let youngest = self.gens.len() - 1;
        let place = if how == Admission::Demand { youngest } else { youngest.min(1) };
        self.gens[place].push_back(page);
    }
    fn referenced(&mut self, page: u32) {
        if !self.referenced.contains(&page) {
            self.referenced.push(page);
            self.notes.push(page);
        }
    }
    fn removed(&mut self, page: u32) {
        self.take(page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        if self.resident().is_empty() {
            return None;
        }
        loop {
            if self.should_age() {
                self.age();
            }
            while self.gens[0].is_empty() && self.gens.len() > self.min_gens {
                self.gens.pop_front();
            }
            if self.gens.len() > self.min_gens {
                let page = self.gens[0][0];
                let was_referenced = self.referenced.contains(&page);
                self.take(page);
                if !was_referenced {
                    return Some(page);
                }
                self.gens.back_mut().unwrap().push_back(page);
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.gens.iter().flatten().copied().collect()
    }
}

/// Every resident page with its uses and when it came in.
#[derive(Default)]
struct HyperbolicModel {
    pages: BTreeMap<u32, (u64, u64)>,
    now: u64,
}

impl Model for HyperbolicModel {
    fn admitted(&mut self, page: u32, _: Admission) {
        self.now += 1;
        self.pages.insert(page, (1, self.now));
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        self.pages.get_mut(&page).unwrap().0 += 1;
    }
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let now = self.now + 1;
        let priority = |(uses, since): (u64, u64)| uses as f64 / (now - since) as f64;
        let worst = self.pages.iter().min_by(|(_, one), (_, other)| {
            // Equal ratios of small numbers are equal floating-point numbers.
            let (a, b) = (priority(**one), priority(**other));
            a.total_cmp(&b).then(one.1.cmp(&other.1))
        });
        let page = *worst?.0;
        self.pages.remove(&page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}

/// LeCaR's and Cacheus's draws, as their files promise them.
struct Draws(Xoshiro256PlusPlus);

impl Draws {
    fn new() -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(SEED))
    }

    fn draw(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn reweigh(w_lru: &mut f64, blamed_lru: bool, regret: f64) {
    let (mut lru, mut lfu) = (*w_lru, 1.0 - *w_lru);
    *(if blamed_lru { &mut lru } else { &mut lfu }) *= (-regret).exp();
    *w_lru = (lru / (lru + lfu)).clamp(0.01, 0.99);
}

/// The paper's Algorithms 1 and 2, searching for both experts' candidates.
struct LecarModel {
    /// Uses, and when last used.
    resident: BTreeMap<u32, (u32, u64)>,
    /// Of LRU and of LFU, oldest first: page, uses, when evicted.
    histories: [VecDeque<(u32, u32, u64)>; 2],
    /// Uses of pages about to come back.
    recalled: BTreeMap<u32, u32>,
    w_lru: f64,
    draws: Draws,
    now: u64,
    frames: u32,
    keeps: bool,
}

impl LecarModel {
    fn new(frames: u32, keeps: bool) -> Self {
        Self {
            resident: BTreeMap::new(),
            histories: [VecDeque::new(), VecDeque::new()],
            recalled: BTreeMap::new(),
            w_lru: 0.5,
            draws: Draws::new(),
            now: 0,
            frames,
            keeps,
        }
    }

    fn recall(&mut self, page: u32, is_needed: bool) {
        for which in 0..2 {
            let history = &mut self.histories[which];
            let Some(place) = history.iter().position(|entry| entry.0 == page) else { continue };
            let (_, uses, evicted) = history.remove(place).unwrap();
            if is_needed {
                let discount = 0.005_f64.powf(1.0 / f64::from(self.frames));
                let regret = 0.45 * discount.powf((self.now - evicted) as f64);
                reweigh(&mut self.w_lru, which == 0, regret);
                self.recalled.insert(page, uses);
            }
        }
    }
}

impl Model for LecarModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.recall(page, how == Admission::Demand);
        let recalled = self.recalled.remove(&page).filter(|_| self.keeps).unwrap_or(0);
        self.now += 1;
        let uses = if how == Admission::Demand { recalled + 1 } else { 0 };
        self.resident.insert(page, (uses, self.now));
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        let (uses, last) = self.resident.get_mut(&page).unwrap();
        (*uses, *last) = (*uses + 1, self.now);
    }
    fn removed(&mut self, page: u32) {
        self.resident.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        incoming.inspect(|page| self.recall(*page, true));
        let lru = *self.resident.iter().min_by_key(|(_, (_, last))| *last)?.0;
        let lfu = *self.resident.iter().min_by_key(|(_, key)| **key)?.0;
        let which = usize::from(self.draws.draw() >= self.w_lru);
        let page = [lru, lfu][which];
        let (uses, _) = self.resident.remove(&page).unwrap();
        if lru != lfu {
            self.histories[which].push_back((page, uses, self.now));
            self.resized(self.frames);
        }
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.frames = frames;
        for history in &mut self.histories {
            while history.len() > frames as usize / 2 {
                history.pop_front();
            }
        }
    }
    fn resident(&self) -> Vec<u32> {
        self.resident.keys().copied().collect()
    }
}

#[derive(Clone, Copy)]
struct CacheusPage {
    uses: u32,
    time: u64,
    demoted: bool,
    new: bool,
}

/// Cacheus as its authors' code has it: `s` and `q` from oldest to newest, counts by counting.
struct CacheusModel {
    pages: BTreeMap<u32, CacheusPage>,
    s: VecDeque<u32>,
    q: VecDeque<u32>,
    lru_history: VecDeque<u32>,
    lfu_history: VecDeque<u32>,
    recalled: BTreeMap<u32, u32>,
    q_limit: u32,
    frames: u32,
    has_evicted: bool,
    now: u64,
    w_lru: f64,
    draws: Draws,
    rate: f64,
    rate_reset: f64,
    rate_previous: f64,
    hit_ratio_previous: f64,
    zero_count: u32,
    negative_count: u32,
    hits: u32,
    references: u32,
}

impl CacheusModel {
    fn new(frames: u32) -> Self {
        let rate = (2.0 * 2.0_f64.ln() / f64::from(frames)).sqrt();
        let mut model = Self {
            pages: BTreeMap::new(),
            s: VecDeque::new(),
            q: VecDeque::new(),
            lru_history: VecDeque::new(),
            lfu_history: VecDeque::new(),
            recalled: BTreeMap::new(),
            q_limit: (f64::from(frames) / 4.0 + 0.5) as u32,
            frames,
            has_evicted: false,
            now: 0,
            w_lru: 0.5,
            draws: Draws::new(),
            rate,
            rate_reset: rate.clamp(0.001, 1.0),
            rate_previous: 0.0,
            hit_ratio_previous: 0.0,
            zero_count: 0,
            negative_count: 0,
            hits: 0,
            references: 0,
        };
        model.limit();
        model
    }

    fn limit(&mut self) {
        self.q_limit = self.q_limit.clamp(1, 1.max(self.frames.saturating_sub(1)));
    }

    fn s_limit(&self) -> usize {
        (self.frames - self.q_limit) as usize
    }

    fn demoted(&self) -> usize {
        self.q.iter().filter(|page| self.pages[page].demoted).count()
    }

    fn new_in_history(&self) -> usize {
        self.lru_history.iter().filter(|page| self.pages[page].new).count()
    }

    fn step(numerator: usize, denominator: usize) -> u32 {
        1.max((numerator as f64 / 1.max(denominator) as f64 + 0.5) as u32)
    }

    fn demote(&mut self) {
        if let Some(page) = self.s.pop_front() {
            self.pages.get_mut(&page).unwrap().demoted = true;
            self.q.push_back(page);
        }
    }

    fn recall(&mut self, page: u32, is_needed: bool) {
        let new = self.new_in_history();
        if drop_page(&mut self.lru_history, page) {
            let entry = self.pages.remove(&page).unwrap();
            if is_needed {
                if entry.new {
                    self.q_limit += Self::step(self.demoted(), new - 1);
                    self.limit();
                }
                reweigh(&mut self.w_lru, true, self.rate);
                self.recalled.insert(page, entry.uses);
            }
        } else if drop_page(&mut self.lfu_history, page) {
            let entry = self.pages.remove(&page).unwrap();
            if is_needed {
                reweigh(&mut self.w_lru, false, self.rate);
                self.recalled.insert(page, entry.uses);
            }
        }
    }

    fn count(&mut self, is_hit: bool) {
        self.references += 1;
        self.hits += u32::from(is_hit);
        if self.references < self.frames {
            return;
        }
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        let hit_ratio = round(f64::from(self.hits) / f64::from(self.references));
        let change = round(hit_ratio - self.hit_ratio_previous);
        let rate_change = round(self.rate) - round(self.rate_previous);
        self.rate_previous = self.rate;
        if change * rate_change > 0.0 {
            self.rate = (self.rate + (self.rate * rate_change).abs()).min(1.0);
            (self.zero_count, self.negative_count) = (0, 0);
        } else if change * rate_change < 0.0 {
            self.rate = (self.rate - (self.rate * rate_change).abs()).max(0.001);
            (self.zero_count, self.negative_count) = (0, 0);
        } else if change <= 0.0 {
            if hit_ratio <= 0.0 && change == 0.0 {
                self.zero_count += 1;
            }
            if change < 0.0 {
                self.negative_count += 1;
                self.zero_count += 1;
            }
            if self.zero_count >= 10 {
                self.rate = self.rate_reset;
                self.zero_count = 0;
            } else if change < 0.0 {
                if self.negative_count >= 10 {
                    self.rate = self.rate_reset;
                    self.negative_count = 0;
                } else if self.rate >= 1.0 {
                    self.rate = 0.9;
                } else if self.rate <= 0.001 {
                    self.rate = 0.005;
                } else if self.draws.draw() < 0.5 {
                    self.rate = (self.rate * 1.25).min(1.0);
                } else {
                    self.rate = (self.rate * 0.75).max(0.001);
                }
            }
        }
        self.hit_ratio_previous = hit_ratio;
        (self.hits, self.references) = (0, 0);
    }

    fn trim(&mut self) {
        for history in [&mut self.lru_history, &mut self.lfu_history] {
            while history.len() > self.frames as usize / 2 {
                self.pages.remove(&history.pop_front().unwrap());
            }
        }
    }
}

impl Model for CacheusModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        let is_demand = how == Admission::Demand;
        self.recall(page, is_demand);
        let recalled = self.recalled.remove(&page).filter(|_| is_demand);
        self.now += 1;
        let uses = if is_demand { recalled.unwrap_or(0) + 1 } else { 0 };
        let mut entry = CacheusPage { uses, time: self.now, demoted: false, new: false };
        let mut bounds = true;
        if recalled.is_some() {
            self.s.push_back(page);
        } else if is_demand && self.q.is_empty() && self.s.len() < self.s_limit() {
            self.s.push_back(page);
            bounds = false;
        } else {
            let is_filling = is_demand && !self.has_evicted;
            bounds = !(is_filling && self.q.len() < self.q_limit as usize);
            entry.new = bounds;
            self.q.push_back(page);
        }
        self.pages.insert(page, entry);
        while bounds && !self.s.is_empty() && self.s.len() >= self.s_limit() {
            self.demote();
        }
        if is_demand {
            self.count(false);
        }
    }
    fn referenced(&mut self, page: u32) {
        self.count(true);
        self.now += 1;
        let (demoted, new) = (self.demoted(), self.new_in_history());
        let entry = self.pages.get_mut(&page).unwrap();
        entry.uses += 1;
        entry.time = self.now;
        let (uses, was_demoted) = (entry.uses, std::mem::take(&mut entry.demoted));
        if drop_page(&mut self.s, page) {
            self.s.push_back(page);
            return;
        }
        drop_page(&mut self.q, page);
        if uses == 1 {
            self.q.push_back(page);
            return;
        }
        if was_demoted {
            self.q_limit = self.q_limit.saturating_sub(Self::step(new, demoted));
            self.limit();
        }
        if self.s.len() >= self.s_limit() {
            self.demote();
        }
        self.s.push_back(page);
    }
    fn removed(&mut self, page: u32) {
        let _ = drop_page(&mut self.s, page) || drop_page(&mut self.q, page);
        self.pages.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        self.has_evicted = true;
        incoming.inspect(|page| self.recall(*page, true));
        let lru = *self.q.front().or(self.s.front())?;
        let resident = self.resident();
        let lfu = *resident
            .iter()
            .min_by_key(|page| (self.pages[page].uses, Reverse(self.pages[page].time)))?;
        let from_lru = self.draws.draw() < self.w_lru;
        let page = if from_lru { lru } else { lfu };
        let entry = self.pages[&page];
        self.removed(page);
        if lru != lfu {
            self.pages.insert(page, CacheusPage { demoted: false, ..entry });
            match from_lru {
                true => self.lru_history.push_back(page),
                false => self.lfu_history.push_back(page),
            }
            self.trim();
        }
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.q_limit = self.q_limit * frames / self.frames;
        self.frames = frames;
        self.limit();
        while self.s.len() > self.s_limit() {
            self.demote();
        }
        self.trim();
    }
    fn resident(&self) -> Vec<u32> {
        self.s.iter().chain(&self.q).copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sieve(events in events(), frames in 1..20_u32) {
        compare(Sieve::new(), SieveModel::default(), frames, &events);
    }

    #[test]
    fn s3fifo(events in events(), frames in 1..20_u32) {
        compare(build("s3fifo", frames), S3FifoModel::new(frames, true), frames, &events);
    }

    #[test]
    fn s3fifo_variant(events in events(), frames in 1..20_u32) {
        let model = S3FifoModel::new(frames, false);
        compare(build("s3fifo:variant=libcachesim", frames), model, frames, &events);
    }

    #[test]
    fn lirs(events in events(), frames in 1..20_u32) {
        compare(build("lirs:hir=1/4", frames), LirsModel::new(frames), frames, &events);
    }

    #[test]
    fn wtinylfu(events in events(), frames in 1..20_u32) {
        compare(build("wtinylfu:window=1/4", frames), WTinyLfuModel::new(frames), frames, &events);
    }

    #[test]
    fn clockpro(events in events(), frames in 1..20_u32) {
        compare(build("clockpro:cold=1/4", frames), ClockProModel::new(frames), frames, &events);
    }

    #[test]
    fn mglru(events in events(), frames in 1..20_u32, gens in 1..4_usize, more in 1..4_usize) {
        let spec = format!("mglru:min_gens={gens},max_gens={}", gens + more);
        compare(build(&spec, frames), MgLruModel::new(gens, gens + more), frames, &events);
    }

    #[test]
    fn lecar(events in events(), frames in 1..20_u32, keeps: bool) {
        let spec = format!("lecar:frequency={}", if keeps { "kept" } else { "forgotten" });
        compare(build(&spec, frames), LecarModel::new(frames, keeps), frames, &events);
    }

    #[test]
    fn cacheus(events in events(), frames in 1..20_u32) {
        compare(build("cacheus:scan=1/4", frames), CacheusModel::new(frames), frames, &events);
    }

    /// No more pages than the sample has: all are looked at.
    #[test]
    fn hyperbolic(events in events(), frames in 1..20_u32) {
        compare(build("hyperbolic", frames), HyperbolicModel::default(), frames, &events);
    }
}

/// The worst of 64 drawn from many is, on average, the 65th part from the worst of all.
#[test]
fn hyperbolic_takes_the_worst_of_a_sample() {
    const PAGES: u32 = 4000;
    let mut policy = build("hyperbolic", PAGES);
    for page in 0..PAGES {
        policy.admitted(Page(page), Admission::Demand);
    }
    // Page n is used n times more, so pages are in order of priority.
    for page in 0..PAGES {
        (0..page).for_each(|_| policy.referenced(Page(page)));
    }
    let mut left: Vec<u32> = (0..PAGES).collect();
    let draws = 1000;
    let mut parts = 0.0;
    for _ in 0..draws {
        let page = policy.victim(None).unwrap().0;
        let rank = left.binary_search(&page).unwrap();
        parts += (rank as f64 + 0.5) / left.len() as f64;
        left.remove(rank);
    }
    let mean = parts / f64::from(draws);
    assert!((mean - 1.0 / 65.0).abs() < 0.002, "{mean}");
}

/// A scan of pages that come once leaves what is used often alone, whatever else a policy does.
#[test]
fn a_scan_does_not_displace_what_is_used_often() {
    for spec in
        ["sieve", "s3fifo", "lirs", "wtinylfu", "clockpro", "cacheus", "mglru", "hyperbolic", "lhd"]
    {
        let frames = 200;
        let mut policy = Checked::new(build(spec, frames), frames);
        let mut touch = |page: u32| {
            let is_hit = policy.is_resident(Page(page));
            if is_hit {
                policy.referenced(Page(page));
            } else {
                if policy.resident() == frames {
                    policy.victim(Some(Page(page)));
                }
                policy.admitted(Page(page), Admission::Demand);
            }
            is_hit
        };
        for _ in 0..20 {
            (0..100).for_each(|page| {
                touch(page);
            });
        }
        let mut hits = 0;
        for step in 0..5000 {
            touch(1000 + step);
            hits += u32::from(touch(step % 100));
        }
        assert!(hits > 4700, "{spec}: {hits} of 5000");
    }
}

/// Loops over half as many pages again as there are frames, of which LRU keeps none: LHD learns that
/// a page is worth the same at every age, and lets the same ones stay.
#[test]
fn lhd_learns_a_loop() {
    let (frames, pages) = (200, 300);
    let mut policy = Checked::new(build("lhd", frames), frames);
    let mut late_hits = 0;
    for step in 0..200 * pages {
        let page = Page(step % pages);
        if policy.is_resident(page) {
            policy.referenced(page);
            late_hits += u32::from(step >= 100 * pages);
        } else {
            if policy.resident() == frames {
                policy.victim(Some(page));
            }
            policy.admitted(page, Admission::Demand);
        }
    }
    let hits_percent = late_hits * 100 / (100 * pages);
    // The optimum is 66.
    assert!(hits_percent >= 50, "{hits_percent}");
}

/// Pages used twice, a hundred references apart, and never again, among pages used once: what was
/// used twice leaves before what may yet be used a second time.
#[test]
fn lhd_learns_that_a_second_use_is_the_last() {
    let frames = 150;
    let mut policy = Checked::new(build("lhd", frames), frames);
    let (mut hits, mut second_uses) = (0, 0);
    for step in 0..60_000_u32 {
        for page in [Some(step), step.checked_sub(100)].into_iter().flatten().map(Page) {
            let is_second = page.0 != step;
            second_uses += u32::from(is_second && step >= 30_000);
            if policy.is_resident(page) {
                policy.referenced(page);
                hits += u32::from(step >= 30_000);
            } else {
                if policy.resident() == frames {
                    policy.victim(Some(page));
                }
                policy.admitted(page, Admission::Demand);
            }
        }
    }
    // LRU needs 200 frames for any hit; the optimum has them all.
    assert!(hits * 100 >= second_uses * 60, "{hits} of {second_uses}");
}
