//! LRFU by the definition of its CRF; and at its ends, LFU and LRU.
use pagekeeper_policy::Fraction;
use pagekeeper_policy::policies::lfu::Lfu;
use pagekeeper_policy::policies::lrfu::Lrfu;
use pagekeeper_policy::policies::lru::Lru;
use proptest::prelude::*;

use super::uses::UsesModel;
use super::{AsModel, compare, config, events};

/// The definition of the CRF, summed anew each time.
fn lrfu_model(lambda: f64) -> UsesModel<impl PartialOrd> {
    UsesModel::new(move |uses, now| {
        let weigh = |time: &u64| 0.5_f64.powf(lambda * (now - time) as f64);
        (uses.times.iter().map(weigh).sum::<f64>(), uses.times.last().copied())
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lrfu(
        events in events(),
        frames in 1..20_u32,
        lambda in prop::sample::select(vec![(0, 1), (1, 1000), (1, 10), (2, 3), (1, 1)]),
    ) {
        let lambda = Fraction::new(lambda.0, lambda.1);
        compare(Lrfu::new(lambda), lrfu_model(lambda.to_f64()), frames, &events);
    }

    /// What the paper's title says, victim by victim.
    #[test]
    fn lrfu_subsumes_lfu_and_lru(events in events(), frames in 1..20_u32) {
        compare(Lrfu::new(Fraction::new(0, 1)), AsModel::new(Lfu::new()), frames, &events);
        compare(Lrfu::new(Fraction::new(1, 1)), AsModel::new(Lru::new()), frames, &events);
    }
}
