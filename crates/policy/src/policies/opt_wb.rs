//! OPT for faults and write-backs. It needs the future, so only the simulator can run it; this is
//! its row in the registry, and the code is in the simulator.
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};

const COST: ParameterInfo = ParameterInfo {
    key: "cost",
    meaning: "what a page written back costs, in faults",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1000, 1) },
    default: Value::Fraction(Fraction::new(1, 1)),
};

/// What the registry says about OPT-WB.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "opt-wb",
    aliases: &[],
    summary: "knows the future and counts write-backs as well as faults: near the least cost of both",
    helps: "as the mark for programs that write: opt may write back far more than it has to",
    hurts: "cannot run live: it knows the future; near the optimum, which is NP-hard, not at it",
    source: Source {
        title: "Pagekeeper's own; N. Beckmann, P. B. Gibbons, B. Haeupler, C. McGuffey: \
                Writeback-Aware Caching, APOCS 2020",
        section: "the heuristic; the problem, its hardness, and bounds are theirs",
    },
    cost: "O(log frames) per reference, three times over, after a pass backwards over the trace",
    bytes_per_page: 10,
    parameters: &[COST],
    runs: Runs::SimulatorOnly,
};
