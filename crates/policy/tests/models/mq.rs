//! Multi-Queue: queues by numbers of uses, with a lifetime that is given or learned.
use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::policies::mq::Mq;
use pagekeeper_policy::{Admission, Fraction};
use proptest::prelude::*;

use super::{Model, compare, config, drop_page, events, spare};

#[derive(Default)]
struct MqModel {
    queues: Vec<VecDeque<u32>>,
    out: VecDeque<u32>,
    out_most: usize,
    now: u32,
    life: u32,
    /// Counts of distances by class, while the lifetime is learned.
    classes: Option<Vec<(u32, u32)>>,
    count: BTreeMap<u32, u32>,
    last: BTreeMap<u32, u32>,
    expires: BTreeMap<u32, u32>,
}

impl MqModel {
    fn new(frames: u32, queues: usize, life: u32) -> Self {
        Self {
            queues: vec![VecDeque::new(); queues],
            out_most: 2 * frames as usize,
            life: if life == 0 { frames } else { life },
            classes: (life == 0).then(Vec::new),
            ..Self::default()
        }
    }
    fn forget(&mut self, extra: usize) {
        while self.out.len() > self.out_most + extra {
            let page = self.out.pop_front().unwrap();
            self.count.remove(&page);
            self.last.remove(&page);
        }
    }
    fn reference(&mut self, page: u32) {
        *self.count.entry(page).or_default() += 1;
        let Some(last) = self.last.insert(page, self.now) else { return };
        let Some(classes) = &mut self.classes else { return };
        // Class k has the distances from 2^k up to 2^(k+1) - 1; the first to reach the highest
        // count is the peak.
        let class = (0..31).find(|class| (self.now - last).max(1) >> class == 1).unwrap();
        match classes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, count)) => *count += 1,
            None => classes.push((class, 1)),
        }
        let peak = classes[0].1;
        let place = classes.iter().position(|(known, _)| *known == class).unwrap();
        if classes[place].1 > peak {
            classes.swap(0, place);
        }
        self.life = (2 << classes[0].0) - 1;
    }
    fn enter(&mut self, page: u32) {
        let count = self.count.get(&page).copied().unwrap_or(0);
        let mut queue = 0;
        while count >> (queue + 1) > 0 && queue + 1 < self.queues.len() {
            queue += 1;
        }
        self.queues[queue].push_back(page);
        self.expires.insert(page, self.now + self.life);
    }
    fn adjust(&mut self) {
        self.now += 1;
        for queue in 1..self.queues.len() {
            let Some(page) = self.queues[queue].front().copied() else { continue };
            if self.expires[&page] < self.now {
                self.queues[queue].pop_front();
                self.queues[queue - 1].push_back(page);
                self.expires.insert(page, self.now + self.life);
            }
        }
    }
}

impl Model for MqModel {
    fn admitted(&mut self, page: u32, how: Admission) {
        drop_page(&mut self.out, page);
        if how == Admission::Demand {
            self.reference(page);
        }
        self.enter(page);
        if how == Admission::Demand {
            self.adjust();
        }
        self.forget(0);
    }
    fn referenced(&mut self, page: u32) {
        self.queues.iter_mut().for_each(|queue| _ = drop_page(queue, page));
        self.reference(page);
        self.enter(page);
        self.adjust();
    }
    fn removed(&mut self, page: u32) {
        self.queues.iter_mut().for_each(|queue| _ = drop_page(queue, page));
        self.count.remove(&page);
        self.last.remove(&page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let page = self.queues.iter_mut().find_map(VecDeque::pop_front)?;
        let coming = spare(&mut self.out, incoming);
        self.out.push_back(page);
        self.forget(usize::from(coming));
        Some(page)
    }
    fn resized(&mut self, frames: u32) {
        self.out_most = 2 * frames as usize;
        self.forget(0);
    }
    fn resident(&self) -> Vec<u32> {
        self.queues.iter().flatten().copied().collect()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mq(events in events(), frames in 1..20_u32, queues in 1..5_usize, life in 0..40_u32) {
        let model = MqModel::new(frames, queues, life);
        compare(Mq::new(frames, queues, life, Fraction::new(2, 1)), model, frames, &events);
    }
}
