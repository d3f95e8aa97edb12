//! Pages with the times of all their uses, for the models that choose by them: LFU's, MFU's and
//! LRFU's.
use std::collections::BTreeMap;

use pagekeeper_policy::Admission;

use super::Model;

/// Pages with the times at which they were used; what makes a victim of them is a function.
pub(super) struct UsesModel<K> {
    pages: BTreeMap<u32, Uses>,
    now: u64,
    /// The least leaves.
    key: Key<K>,
}

/// Of uses, at a time.
type Key<K> = Box<dyn Fn(&Uses, u64) -> K>;

pub(super) struct Uses {
    pub(super) times: Vec<u64>,
    /// Prefetched, and no use of it seen yet: the one time is that of admission.
    pub(super) unseen: bool,
}

impl<K: PartialOrd> UsesModel<K> {
    pub(super) fn new(key: impl Fn(&Uses, u64) -> K + 'static) -> Self {
        Self { pages: BTreeMap::new(), now: 0, key: Box::new(key) }
    }
}

impl<K: PartialOrd> Model for UsesModel<K> {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.now += 1;
        let unseen = how == Admission::Prefetch;
        self.pages.insert(page, Uses { times: vec![self.now], unseen });
    }
    fn referenced(&mut self, page: u32) {
        self.now += 1;
        let uses = self.pages.get_mut(&page).unwrap();
        if std::mem::take(&mut uses.unseen) {
            uses.times.clear();
        }
        uses.times.push(self.now);
    }
    fn removed(&mut self, page: u32) {
        self.pages.remove(&page);
    }
    fn victim(&mut self, _: Option<u32>) -> Option<u32> {
        let keys = self.pages.iter().map(|(page, uses)| ((self.key)(uses, self.now), *page));
        let least = keys.reduce(|least, other| if other.0 < least.0 { other } else { least });
        let page = least?.1;
        self.pages.remove(&page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.pages.keys().copied().collect()
    }
}
