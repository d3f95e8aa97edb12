//! OPT, the optimum. It needs the future, so only the simulator can run it; this is its row in
//! the registry, and the code is in the simulator.
use crate::registry::{PolicyInfo, Runs, Source};

/// What the registry says about OPT.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "opt",
    aliases: &["min", "belady"],
    summary: "evicts the page whose next reference is farthest away: no policy has fewer faults",
    helps: "as the bound that other policies are measured against",
    hurts: "cannot run live: it knows the future",
    source: Source {
        title: "L. A. Belady: A Study of Replacement Algorithms for a Virtual-Storage Computer, \
                IBM Systems Journal 5(2), 1966",
        section: "MIN, with demand paging",
    },
    cost: "O(log frames) per reference, after one pass backwards over the trace",
    bytes_per_page: 1,
    parameters: &[],
    runs: Runs::SimulatorOnly,
};
