//! MFU: the page with the most uses leaves.
use pagekeeper_policy::policies::mfu::Mfu;
use proptest::prelude::*;

use super::uses::UsesModel;
use super::{compare, config, events};

fn mfu_model() -> UsesModel<impl PartialOrd> {
    UsesModel::new(|uses, _| {
        let last = *uses.times.last().unwrap() as i64;
        // What is unseen is last of all to leave, and of several the oldest first.
        (-(uses.times.len() as i64), if uses.unseen { last } else { -last })
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn mfu(events in events(), frames in 1..20_u32) {
        compare(Mfu::new(), mfu_model(), frames, &events);
    }
}
