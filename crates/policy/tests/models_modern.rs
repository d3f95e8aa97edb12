//! The policies of the last two decades, each against a slow, obvious model of it.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::policies::sieve::Sieve;
use pagekeeper_policy::{Admission, Checked, Page, Policy, PolicySpec};
use proptest::prelude::*;

mod model;
use model::{Model, compare, config, drop_page, events};

fn build(spec: &str, frames: u32) -> Box<dyn Policy> {
    PolicySpec::parse(spec).unwrap().build(frames, 7).unwrap()
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
    for spec in ["sieve", "s3fifo", "lirs", "wtinylfu", "clockpro", "mglru", "hyperbolic"] {
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
