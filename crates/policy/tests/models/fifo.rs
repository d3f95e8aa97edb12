//! FIFO: a queue that no use changes.
use pagekeeper_policy::policies::fifo::Fifo;
use proptest::prelude::*;

use super::queue::QueueModel;
use super::{compare, config, events};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fifo(events in events(), frames in 1..20_u32) {
        compare(Fifo::new(), QueueModel::new(false), frames, &events);
    }
}
