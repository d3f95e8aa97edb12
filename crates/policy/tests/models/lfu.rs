//! LFU: the page with the fewest uses leaves, of several the one used longest ago.
use pagekeeper_policy::policies::lfu::Lfu;
use proptest::prelude::*;

use super::uses::UsesModel;
use super::{compare, config, events};

fn lfu_model() -> UsesModel<impl PartialOrd> {
    UsesModel::new(|uses, _| (uses.times.len(), uses.times.last().copied()))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lfu(events in events(), frames in 1..20_u32) {
        compare(Lfu::new(), lfu_model(), frames, &events);
    }
}
