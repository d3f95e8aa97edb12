//! LRU: a queue, to whose end every use moves a page.
use pagekeeper_policy::policies::lru::Lru;
use proptest::prelude::*;

use super::queue::QueueModel;
use super::{compare, config, events};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lru(events in events(), frames in 1..20_u32) {
        compare(Lru::new(), QueueModel::new(true), frames, &events);
    }
}
