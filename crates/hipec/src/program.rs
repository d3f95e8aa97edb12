//! What a program is made of, and its binary form.
//!
//! ```text
//! command    [ opcode 8 | a 8 | b 8 | c 8 ]      a, b: operands;  c: a selector
//! jump       [ 06 | 00 | word 16 ]               words of an event count from MAGIC, word 0
//! operand    [ index 8 | type 8 | detail 16 ]    an Int is followed by its initial value
//!
//! file       MAGIC, version, number of operands, their names,
//!            number of events, and for each: number, name, number of words, MAGIC, words
//!            (words big-endian, so that a dump reads like Figure 3; names: length 8, UTF-8)
//! ```
//!
//! Opcodes 00 to 13 (hexadecimal) are the paper's Table I. Those from 20 on are ours, as are the
//! operand types from 10 on and the events [`EventNumber::SAMPLE`], [`EventNumber::REFERENCE`] and
//! [`EventNumber::REMOVED`]. Selectors are those of Figure 3; where it shows none, they are ours.
use std::fmt;

mod binary;
mod command;

pub use binary::{DecodeError, EncodeError};
pub use command::{Arithmetic, Bit, Command, End, Logical, Relation, WordError};

/// First word of a file and of each event's words.
pub const MAGIC: u32 = u32::from_be_bytes(*b"HiPE");

/// The version of the format and of the language that is written.
pub const VERSION: u32 = 1;

/// Operands that exist undeclared: [`Index::FREE_QUEUE`] and [`Index::FREE_COUNT`].
pub const PRESET_OPERANDS: usize = 2;

/// Most operands that a program may declare: an operand's index is a byte.
pub const OPERANDS_MAX: usize = 256 - PRESET_OPERANDS;

/// Most commands of a program: a jump's target is two bytes, and word 0 is the magic one.
pub const COMMANDS_MAX: usize = u16::MAX as usize;

/// Most events of a program, Init among them: an event's number is a byte.
pub const EVENTS_MAX: u32 = 256;

/// Longest name of an operand or event, in bytes.
pub const NAME_BYTES_MAX: usize = u8::MAX as usize;

/// Number of integers that each page has of its own, see [`Command::Load`].
pub const PAGE_SLOTS: u8 = 8;

/// An index into the operand array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Index(pub u8);

impl Index {
    /// `_free_queue`: the pages that the program gave up and that have not left yet.
    pub const FREE_QUEUE: Index = Index(0);
    /// `_free_count`: frames that hold no page, and pages on the free queue. Set before each event
    /// is run; what an event writes to it lasts until that event ends.
    pub const FREE_COUNT: Index = Index(1);

    /// The operand that is declared as number `place`, counted from zero.
    ///
    /// # Panics
    /// If `place` is not below [`OPERANDS_MAX`].
    pub fn declared(place: usize) -> Self {
        assert!(place < OPERANDS_MAX, "a program declares at most {OPERANDS_MAX} operands");
        Self((place + PRESET_OPERANDS) as u8)
    }
}

/// An operand: a name for people, and what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operand {
    /// A C identifier, at most [`NAME_BYTES_MAX`] long.
    pub name: String,
    /// What it holds, and what that is at first.
    pub kind: Kind,
}

/// What an operand holds.
///
/// Integers have 64 bits; an initial value has 32. Integers and queues keep what they hold from
/// one event to the next; pages and queue references are empty when an event begins, since a page
/// may leave between two events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An integer.
    Int {
        /// What it is before the first event.
        initial: i32,
    },
    /// A queue of pages, empty at first.
    Queue,
    /// A page, or none.
    Page,
    /// Ours: an array of queues, for policies that choose one by a number ([`Command::Pick`]).
    Queues {
        /// Number of queues, at least 1.
        len: u16,
    },
    /// Ours: a queue in rising order of one of each page's own integers, as it was when the page
    /// was put there; of equal ones, the page that came first.
    Ordered {
        /// Which of the page's integers, below [`PAGE_SLOTS`].
        slot: u8,
    },
    /// Ours: a reference to a queue, or to none.
    QueueRef,
    /// Ours, but for `FaultedAddress`: a number that the system sets before each event and that a
    /// program only reads.
    System(System),
}

impl Kind {
    /// Its name in programs.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Int { .. } => "Int",
            Kind::Queue => "Queue",
            Kind::Page => "Page",
            Kind::Queues { .. } => "Queues",
            Kind::Ordered { .. } => "Ordered",
            Kind::QueueRef => "QueueRef",
            Kind::System(_) => "System",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Queues { len } => write!(f, "Queues[{len}]"),
            Kind::Ordered { slot } => write!(f, "Ordered by {slot}"),
            Kind::System(system) => write!(f, "System {}", system.name()),
            kind => f.write_str(kind.name()),
        }
    }
}

/// What the system tells a program. All but [`System::FaultedPage`] are integers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum System {
    /// The address of the event's page, in pages: `FaultedAddress` of Figures 3 and 9. See
    /// [`Command::FindVA`].
    FaultedAddress,
    /// The event's page itself: what faulted, was referenced or is removed; none in Replace.
    FaultedPage,
    /// The number of the segment (the file) that the event's page is in.
    FaultedSegment,
    /// The index of the event's page in its segment.
    FaultedIndex,
    /// Frames that the program manages.
    Frames,
    /// Pages that are resident, the event's page among them.
    Resident,
    /// References seen so far, the event's among them, admissions counting as one each.
    Now,
    /// 1 if the event's page was fetched ahead of need, or else 0.
    Prefetched,
}

impl System {
    /// All of them, in order of their codes, from zero.
    pub const ALL: [System; 8] = [
        System::FaultedAddress,
        System::FaultedPage,
        System::FaultedSegment,
        System::FaultedIndex,
        System::Frames,
        System::Resident,
        System::Now,
        System::Prefetched,
    ];

    /// Its name in programs.
    pub const fn name(self) -> &'static str {
        match self {
            System::FaultedAddress => "FaultedAddress",
            System::FaultedPage => "FaultedPage",
            System::FaultedSegment => "FaultedSegment",
            System::FaultedIndex => "FaultedIndex",
            System::Frames => "Frames",
            System::Resident => "Resident",
            System::Now => "Now",
            System::Prefetched => "Prefetched",
        }
    }
}

/// Which event: what happened, or the number by which Call reaches it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventNumber(pub u8);

impl EventNumber {
    /// The declarations. Every program has it.
    pub const INIT: EventNumber = EventNumber(0);
    /// A page came in. Every program has it.
    pub const PAGE_FAULT: EventNumber = EventNumber(1);
    /// A page must leave. Every program has it.
    pub const REPLACE: EventNumber = EventNumber(2);
    /// The first event that only Call reaches.
    pub const FIRST_CALLED: EventNumber = EventNumber(3);
    /// The last event that only Call reaches.
    pub const LAST_CALLED: EventNumber = EventNumber(0xFC);
    /// Ours, optional: as [`REFERENCE`](Self::REFERENCE), which it stands in for, of a page that was
    /// unmapped so that its next touch is seen; others around it may have been touched unseen.
    pub const SAMPLE: EventNumber = EventNumber(0xFD);
    /// Ours, optional: a reference to a resident page was seen.
    pub const REFERENCE: EventNumber = EventNumber(0xFE);
    /// Ours, optional: a resident page is leaving by somebody else's choice.
    pub const REMOVED: EventNumber = EventNumber(0xFF);

    /// Init, and the events that the system runs.
    pub const SYSTEM: [EventNumber; 6] =
        [Self::INIT, Self::PAGE_FAULT, Self::REPLACE, Self::SAMPLE, Self::REFERENCE, Self::REMOVED];

    /// The event of this name, if it is Init or one that the system runs.
    pub fn of_system(name: &str) -> Option<EventNumber> {
        Self::SYSTEM.into_iter().find(|number| number.system_name() == Some(name))
    }

    /// The name of an event that the system runs.
    pub const fn system_name(self) -> Option<&'static str> {
        match self {
            EventNumber::INIT => Some("Init"),
            EventNumber::PAGE_FAULT => Some("PageFault"),
            EventNumber::REPLACE => Some("Replace"),
            EventNumber::SAMPLE => Some("Sample"),
            EventNumber::REFERENCE => Some("Reference"),
            EventNumber::REMOVED => Some("Removed"),
            _ => None,
        }
    }
}

/// An event's commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Which event.
    pub number: EventNumber,
    /// Its name for people: [`EventNumber::system_name`] where there is one.
    pub name: String,
    /// The first is word 1.
    pub commands: Vec<Command>,
}

/// A program. Init is its operands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// The declared operands; the first has index 2.
    pub operands: Vec<Operand>,
    /// The events but Init, each once.
    pub events: Vec<Event>,
}

impl Program {
    /// The operand of this index, preset ones included.
    pub fn kind(&self, index: Index) -> Option<Kind> {
        match index {
            Index::FREE_QUEUE => Some(Kind::Queue),
            Index::FREE_COUNT => Some(Kind::Int { initial: 0 }),
            _ => self.operands.get(usize::from(index.0) - PRESET_OPERANDS).map(|it| it.kind),
        }
    }

    /// The name of the operand of this index, preset ones included.
    pub fn name(&self, index: Index) -> Option<&str> {
        match index {
            Index::FREE_QUEUE => Some("_free_queue"),
            Index::FREE_COUNT => Some("_free_count"),
            _ => {
                self.operands.get(usize::from(index.0) - PRESET_OPERANDS).map(|it| it.name.as_str())
            }
        }
    }

    /// The operand of this name, preset ones included.
    pub fn find(&self, name: &str) -> Option<Index> {
        match name {
            "_free_queue" => Some(Index::FREE_QUEUE),
            "_free_count" => Some(Index::FREE_COUNT),
            _ => self.operands.iter().position(|it| it.name == name).map(Index::declared),
        }
    }

    /// The event of this number.
    pub fn event(&self, number: EventNumber) -> Option<&Event> {
        self.events.iter().find(|event| event.number == number)
    }
}
