//! The figures that there are.
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

macro_rules! kinds {
    ($($kind:ident $name:literal $what:literal)*) => {
        /// A kind of figure. A report may have several of one kind: one a policy, or a memory size.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = $what] $kind,)*
        }

        impl Kind {
            /// All kinds, in the order of a report.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// Its name in commands and files.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
            }

            /// What it shows, in a few words.
            pub const fn what(self) -> &'static str {
                match self { $(Kind::$kind => $what),* }
            }
        }
    };
}

kinds! {
    MissRatio "miss-ratio" "misses per reference at every memory size"
    HitRatio "hit-ratio" "hits per reference at every memory size"
    Statistics "statistics" "counts of each policy; mean, least, most and deviation of the fault rate"
    FaultRate "fault-rate" "faults over time, by references passed"
    FaultTime "fault-time" "faults over time, by the clock, where the trace has times"
    SpaceTime "space-time" "which pages were referenced when"
    FaultMap "fault-map" "which pages faulted when"
    ReuseDistance "reuse-distance" "how deep in the LRU stack references find their pages"
    Gaps "gaps" "references between two to the same page: of all, and of the hits"
    HitGaps "hit-gaps" "gaps of the hits as memory grows"
    WorkingSet "working-set" "Denning's working set by window"
    WorkingSetTime "working-set-time" "Denning's working set over time"
    Classes "classes" "what a policy takes pages for, over time and space"
    ClassShare "class-share" "what a policy takes references for, over time"
    Gauges "gauges" "a policy's own numbers over time, such as partition sizes"
    Curves "curves" "the functions that a policy decides by, such as marginal gains"
    Notes "notes" "what a policy says happened"
}

impl Kind {
    /// Whether it is a table alone, and is never drawn.
    pub const fn is_table(self) -> bool {
        matches!(self, Kind::Statistics | Kind::Notes)
    }
}

/// Text that names no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no figure `{name}`; figures are {}", names())]
pub struct UnknownKind {
    /// The name given.
    name: String,
}

fn names() -> String {
    Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        let known = Kind::ALL.iter().find(|kind| kind.name() == name);
        known.copied().ok_or_else(|| UnknownKind { name: name.to_owned() })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
