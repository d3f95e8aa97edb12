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

/// Arithmetic of [`Command::Arith`]; the numbers are Figure 3's selectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    /// `+=`: 01.
    Add,
    /// `-=`: 02.
    Subtract,
    /// `*=`: 03.
    Multiply,
    /// `/=`, towards zero: 04.
    Divide,
    /// `++`: 05.
    Increment,
    /// `--`: 06.
    Decrement,
    /// `=`: 07.
    Assign,
    /// Ours: `%=`, with the sign of what is divided: 08.
    Remainder,
}

impl Arithmetic {
    /// All of them, in order of their selectors, from 1.
    pub const ALL: [Arithmetic; 8] = [
        Arithmetic::Add,
        Arithmetic::Subtract,
        Arithmetic::Multiply,
        Arithmetic::Divide,
        Arithmetic::Increment,
        Arithmetic::Decrement,
        Arithmetic::Assign,
        Arithmetic::Remainder,
    ];

    /// Whether it has no second operand.
    pub const fn is_unary(self) -> bool {
        matches!(self, Arithmetic::Increment | Arithmetic::Decrement)
    }

    /// How it is written.
    pub const fn sign(self) -> &'static str {
        match self {
            Arithmetic::Add => "+=",
            Arithmetic::Subtract => "-=",
            Arithmetic::Multiply => "*=",
            Arithmetic::Divide => "/=",
            Arithmetic::Increment => "++",
            Arithmetic::Decrement => "--",
            Arithmetic::Assign => "=",
            Arithmetic::Remainder => "%=",
        }
    }
}

/// Relations of [`Command::Comp`]. Figure 3 shows the selectors 02 and 04.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// `>`: 01.
    Greater,
    /// `<`: 02.
    Less,
    /// `==`: 03.
    Equal,
    /// `<=`: 04.
    LessOrEqual,
    /// `>=`: 05.
    GreaterOrEqual,
    /// `!=`: 06.
    NotEqual,
}

impl Relation {
    /// All of them, in order of their selectors, from 1.
    pub const ALL: [Relation; 6] = [
        Relation::Greater,
        Relation::Less,
        Relation::Equal,
        Relation::LessOrEqual,
        Relation::GreaterOrEqual,
        Relation::NotEqual,
    ];

    /// How it is written.
    pub const fn sign(self) -> &'static str {
        match self {
            Relation::Greater => ">",
            Relation::Less => "<",
            Relation::Equal => "==",
            Relation::LessOrEqual => "<=",
            Relation::GreaterOrEqual => ">=",
            Relation::NotEqual => "!=",
        }
    }
}

/// Connectives of [`Command::Logic`]; an integer is true if it is not 0. Selectors are ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logical {
    /// `&&`: 01.
    And,
    /// `||`: 02.
    Or,
    /// `!` of the first operand: 03.
    Not,
    /// `^`: 04.
    Xor,
}

impl Logical {
    /// All of them, in order of their selectors, from 1.
    pub const ALL: [Logical; 4] = [Logical::And, Logical::Or, Logical::Not, Logical::Xor];

    /// Whether it has no second operand.
    pub const fn is_unary(self) -> bool {
        matches!(self, Logical::Not)
    }

    /// How it is written.
    pub const fn sign(self) -> &'static str {
        match self {
            Logical::And => "&&",
            Logical::Or => "||",
            Logical::Not => "!",
            Logical::Xor => "^",
        }
    }
}

/// An end of a queue; the numbers are Figure 3's selectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Where pages leave first: 01.
    Head,
    /// 02.
    Tail,
}

/// A bit that [`Command::Set`] changes. Figure 3 shows 02 for REFERENCE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bit {
    /// MODIFY: 01.
    Modified,
    /// REFERENCE: 02.
    Referenced,
}

/// A command. Which operands it reads and writes, its errors and its cost are in the language's
/// reference, `docs/hipec-language.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `00`: Ends the event; in Replace, gives up the page if there is one. No page is the byte 00.
    Return {
        /// A Page.
        page: Option<Index>,
    },
    /// `01`: Arithmetic on an Int, in place; wraps around at 64 bits.
    Arith {
        /// An Int; is changed.
        target: Index,
        /// An Int or System; [`Index`] 0 and unused for `++` and `--`.
        source: Index,
        /// What is done.
        operation: Arithmetic,
    },
    /// `02`: Test: compares two integers.
    Comp {
        /// An Int or System.
        left: Index,
        /// An Int or System.
        right: Index,
        /// What is asked.
        relation: Relation,
    },
    /// `03`: Test: a logical operation on two integers.
    Logic {
        /// An Int or System.
        left: Index,
        /// An Int or System; [`Index`] 0 and unused for `!`.
        right: Index,
        /// What is asked.
        operation: Logical,
    },
    /// `04`: Test: whether a queue is empty.
    EmptQ {
        /// A queue of any kind.
        queue: Index,
    },
    /// `05`: Test: whether a page is on a queue.
    InQ {
        /// A Page.
        page: Index,
        /// A queue of any kind.
        queue: Index,
    },
    /// `06`: Goes to a word unless a test was true since the last Jump, Call or event's beginning
    /// (a later test counts, not an earlier one). So a Jump after a test is taken if that test
    /// was false, and a Jump after none is always taken.
    Jump {
        /// The word, from 1.
        to: u16,
    },
    /// `07`: Takes a page off a queue; none if the queue is empty.
    DeQueue {
        /// A Page; is changed.
        page: Index,
        /// A queue of any kind.
        queue: Index,
        /// From which end.
        end: End,
    },
    /// `08`: Puts a page on a queue; a page on another queue, or this one, moves.
    EnQueue {
        /// A Page.
        page: Index,
        /// A queue of any kind; an Ordered one finds the place itself.
        queue: Index,
        /// At which end.
        end: End,
    },
    /// `09`: Test: asks the system for frames; true if it gave them.
    Request {
        /// An Int or System: how many.
        frames: Index,
    },
    /// `0A`: Gives a page up for good.
    Release {
        /// A Page; is none afterwards.
        page: Index,
    },
    /// `0B`: Has a page written to its file if it is modified.
    Flush {
        /// A Page.
        page: Index,
    },
    /// `0C`: Sets or resets a page's referenced or modified bit (selector 01: reset, 02: set).
    Set {
        /// A Page.
        page: Index,
        /// Which bit.
        bit: Bit,
        /// What it becomes.
        to: bool,
    },
    /// `0D`: Test: whether a page was referenced since its bit was reset.
    Ref {
        /// A Page.
        page: Index,
    },
    /// `0E`: Test: whether a page is modified.
    Mod {
        /// A Page.
        page: Index,
    },
    /// `0F`: The virtual address of a page, in pages.
    FindVA {
        /// An Int; is changed.
        address: Index,
        /// A Page.
        page: Index,
    },
    /// `10`: The resident page at an address; none if there is none.
    FindPA {
        /// A Page; is changed.
        page: Index,
        /// An Int or System.
        address: Index,
    },
    /// `11`: Maps a page at its address again.
    Map {
        /// A Page.
        page: Index,
        /// An Int or System.
        address: Index,
    },
    /// `12`: Unmaps a page, so that its next reference is seen.
    UnMap {
        /// A Page.
        page: Index,
    },
    /// `13`: Runs another event, and goes on after it.
    Call {
        /// Which.
        event: EventNumber,
    },
    /// `20`, ours: Makes a reference to one queue of an array.
    Pick {
        /// A QueueRef; is changed.
        queue: Index,
        /// A Queues.
        array: Index,
        /// An Int or System: which queue, from 0.
        at: Index,
    },
    /// `21`, ours: The number of pages on a queue.
    Count {
        /// An Int; is changed.
        count: Index,
        /// A queue of any kind.
        queue: Index,
    },
    /// `22`, ours: Reads one of a page's own integers, 0 at first. They outlive the page's
    /// residence.
    Load {
        /// An Int; is changed.
        target: Index,
        /// A Page.
        page: Index,
        /// Which, below [`PAGE_SLOTS`].
        slot: u8,
    },
    /// `23`, ours: Writes one of a page's own integers.
    Store {
        /// A Page.
        page: Index,
        /// Which, below [`PAGE_SLOTS`].
        slot: u8,
        /// An Int or System.
        source: Index,
    },
    /// `24`, ours: Another name for a page.
    Copy {
        /// A Page; is changed.
        target: Index,
        /// A Page.
        source: Index,
    },
    /// `25`, ours: Test: whether a Page operand holds a page.
    Has {
        /// A Page.
        page: Index,
    },
    /// `26`, ours: Asks that pages be fetched ahead of need.
    Prefetch {
        /// An Int or System: the address of the first, in pages.
        address: Index,
        /// An Int or System: how many.
        pages: Index,
    },
}

impl Command {
    /// Its name in programs.
    pub const fn name(self) -> &'static str {
        match self {
            Command::Return { .. } => "Return",
            Command::Arith { .. } => "Arith",
            Command::Comp { .. } => "Comp",
            Command::Logic { .. } => "Logic",
            Command::EmptQ { .. } => "EmptQ",
            Command::InQ { .. } => "InQ",
            Command::Jump { .. } => "Jump",
            Command::DeQueue { .. } => "DeQueue",
            Command::EnQueue { .. } => "EnQueue",
            Command::Request { .. } => "Request",
            Command::Release { .. } => "Release",
            Command::Flush { .. } => "Flush",
            Command::Set { .. } => "Set",
            Command::Ref { .. } => "Ref",
            Command::Mod { .. } => "Mod",
            Command::FindVA { .. } => "FindVA",
            Command::FindPA { .. } => "FindPA",
            Command::Map { .. } => "Map",
            Command::UnMap { .. } => "UnMap",
            Command::Call { .. } => "Call",
            Command::Pick { .. } => "Pick",
            Command::Count { .. } => "Count",
            Command::Load { .. } => "Load",
            Command::Store { .. } => "Store",
            Command::Copy { .. } => "Copy",
            Command::Has { .. } => "Has",
            Command::Prefetch { .. } => "Prefetch",
        }
    }

    /// Whether it sets what the next Jump acts on.
    pub const fn is_test(self) -> bool {
        matches!(
            self,
            Command::Comp { .. }
                | Command::Logic { .. }
                | Command::EmptQ { .. }
                | Command::InQ { .. }
                | Command::Request { .. }
                | Command::Ref { .. }
                | Command::Mod { .. }
                | Command::Has { .. }
        )
    }

    /// The command as a word.
    pub const fn encode(self) -> u32 {
        let [opcode, a, b, c] = match self {
            Command::Return { page: None } => [0x00, 0, 0, 0],
            Command::Return { page: Some(page) } => [0x00, page.0, 0, 0],
            Command::Arith { target, source, operation } => {
                [0x01, target.0, source.0, operation as u8 + 1]
            }
            Command::Comp { left, right, relation } => [0x02, left.0, right.0, relation as u8 + 1],
            Command::Logic { left, right, operation } => {
                [0x03, left.0, right.0, operation as u8 + 1]
            }
            Command::EmptQ { queue } => [0x04, queue.0, 0, 0],
            Command::InQ { page, queue } => [0x05, page.0, queue.0, 0],
            Command::Jump { to } => [0x06, 0, (to >> 8) as u8, to as u8],
            Command::DeQueue { page, queue, end } => [0x07, page.0, queue.0, end as u8 + 1],
            Command::EnQueue { page, queue, end } => [0x08, page.0, queue.0, end as u8 + 1],
            Command::Request { frames } => [0x09, frames.0, 0, 0],
            Command::Release { page } => [0x0A, page.0, 0, 0],
            Command::Flush { page } => [0x0B, page.0, 0, 0],
            Command::Set { page, bit, to } => [0x0C, page.0, bit as u8 + 1, to as u8 + 1],
            Command::Ref { page } => [0x0D, page.0, 0, 0],
            Command::Mod { page } => [0x0E, page.0, 0, 0],
            Command::FindVA { address, page } => [0x0F, address.0, page.0, 0],
            Command::FindPA { page, address } => [0x10, page.0, address.0, 0],
            Command::Map { page, address } => [0x11, page.0, address.0, 0],
            Command::UnMap { page } => [0x12, page.0, 0, 0],
            Command::Call { event } => [0x13, event.0, 0, 0],
            Command::Pick { queue, array, at } => [0x20, queue.0, array.0, at.0],
            Command::Count { count, queue } => [0x21, count.0, queue.0, 0],
            Command::Load { target, page, slot } => [0x22, target.0, page.0, slot],
            Command::Store { page, slot, source } => [0x23, page.0, slot, source.0],
            Command::Copy { target, source } => [0x24, target.0, source.0, 0],
            Command::Has { page } => [0x25, page.0, 0, 0],
            Command::Prefetch { address, pages } => [0x26, address.0, pages.0, 0],
        };
        u32::from_be_bytes([opcode, a, b, c])
    }

    /// The command that a word is.
    ///
    /// # Errors
    /// If there is no such opcode or selector, or an unused byte is not 00.
    pub fn decode(word: u32) -> Result<Self, WordError> {
        let [opcode, a, b, c] = word.to_be_bytes();
        let (page, queue) = (Index(a), Index(b));
        let command = match opcode {
            0x00 => Command::Return { page: (a != 0).then_some(page) },
            0x01 => Command::Arith {
                target: Index(a),
                source: Index(b),
                operation: selected(&Arithmetic::ALL, c)?,
            },
            0x02 => Command::Comp {
                left: Index(a),
                right: Index(b),
                relation: selected(&Relation::ALL, c)?,
            },
            0x03 => Command::Logic {
                left: Index(a),
                right: Index(b),
                operation: selected(&Logical::ALL, c)?,
            },
            0x04 => Command::EmptQ { queue: Index(a) },
            0x05 => Command::InQ { page, queue },
            0x06 => Command::Jump { to: u16::from_be_bytes([b, c]) },
            0x07 => Command::DeQueue { page, queue, end: selected(&[End::Head, End::Tail], c)? },
            0x08 => Command::EnQueue { page, queue, end: selected(&[End::Head, End::Tail], c)? },
            0x09 => Command::Request { frames: Index(a) },
            0x0A => Command::Release { page },
            0x0B => Command::Flush { page },
            0x0C => Command::Set {
                page,
                bit: selected(&[Bit::Modified, Bit::Referenced], b)?,
                to: selected(&[false, true], c)?,
            },
            0x0D => Command::Ref { page },
            0x0E => Command::Mod { page },
            0x0F => Command::FindVA { address: Index(a), page: Index(b) },
            0x10 => Command::FindPA { page, address: Index(b) },
            0x11 => Command::Map { page, address: Index(b) },
            0x12 => Command::UnMap { page },
            0x13 => Command::Call { event: EventNumber(a) },
            0x20 => Command::Pick { queue: Index(a), array: Index(b), at: Index(c) },
            0x21 => Command::Count { count: Index(a), queue },
            0x22 => Command::Load { target: Index(a), page: Index(b), slot: c },
            0x23 => Command::Store { page, slot: b, source: Index(c) },
            0x24 => Command::Copy { target: Index(a), source: Index(b) },
            0x25 => Command::Has { page },
            0x26 => Command::Prefetch { address: Index(a), pages: Index(b) },
            _ => return Err(WordError::Opcode(opcode)),
        };
        // Whatever a command does not use is zero, so that a word and its command are one to one.
        let is_unary = match command {
            Command::Arith { operation, .. } => operation.is_unary(),
            Command::Logic { operation, .. } => operation.is_unary(),
            _ => false,
        };
        if command.encode() != word || is_unary && b != 0 {
            return Err(WordError::Unused);
        }
        Ok(command)
    }
}

fn selected<T: Copy>(all: &[T], selector: u8) -> Result<T, WordError> {
    let place = usize::from(selector).checked_sub(1);
    place
        .and_then(|place| all.get(place).copied())
        .ok_or(WordError::Selector { selector, most: all.len() as u8 })
}

/// Why a word is no command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WordError {
    /// No command has the opcode.
    #[error("opcode {0:02X} is no command; commands are 00 to 13 and 20 to 26")]
    Opcode(u8),
    /// The command has no such selector.
    #[error("selector {selector:02X} is none of this command's; it has 01 to {most:02X}")]
    Selector {
        /// The byte.
        selector: u8,
        /// The highest that there is.
        most: u8,
    },
    /// A byte that the command does not use is not zero.
    #[error("a byte that this command does not use is not 00; write 00 there")]
    Unused,
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

    const fn code(self) -> [u8; 3] {
        match self {
            Kind::Int { .. } => [0x01, 0, 0],
            Kind::Queue => [0x02, 0, 0],
            Kind::Page => [0x03, 0, 0],
            Kind::Queues { len } => [0x10, (len >> 8) as u8, len as u8],
            Kind::Ordered { slot } => [0x11, slot, 0],
            Kind::QueueRef => [0x12, 0, 0],
            Kind::System(system) => [0x13, system as u8, 0],
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

impl Program {
    /// Init as words, MAGIC first: what Figure 3 shows as `event[0]`.
    pub fn init_words(&self) -> Vec<u32> {
        let mut words = vec![MAGIC];
        for (place, operand) in self.operands.iter().enumerate() {
            let [code, high, low] = operand.kind.code();
            words.push(u32::from_be_bytes([(place + PRESET_OPERANDS) as u8, code, high, low]));
            if let Kind::Int { initial } = operand.kind {
                words.push(initial as u32);
            }
        }
        words
    }

    /// The binary form.
    ///
    /// # Errors
    /// If there are more operands, commands or letters in a name than the format has room for.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        fn word(bytes: &mut Vec<u8>, word: u32) {
            bytes.extend(word.to_be_bytes());
        }
        fn name(bytes: &mut Vec<u8>, name: &str) -> Result<(), EncodeError> {
            let len = u8::try_from(name.len()).map_err(|_| EncodeError::Name(name.to_owned()))?;
            bytes.push(len);
            bytes.extend(name.bytes());
            Ok(())
        }
        if self.operands.len() > OPERANDS_MAX {
            return Err(EncodeError::Operands(self.operands.len()));
        }
        let mut bytes = Vec::new();
        word(&mut bytes, MAGIC);
        word(&mut bytes, VERSION);
        word(&mut bytes, self.operands.len() as u32);
        for operand in &self.operands {
            name(&mut bytes, &operand.name)?;
        }
        word(&mut bytes, self.events.len() as u32 + 1);
        let mut event = |number: EventNumber, label: &str, words: &[u32]| {
            word(&mut bytes, number.0.into());
            name(&mut bytes, label)?;
            word(&mut bytes, words.len() as u32);
            words.iter().for_each(|it| word(&mut bytes, *it));
            Ok(())
        };
        event(EventNumber::INIT, "Init", &self.init_words())?;
        for it in &self.events {
            if it.commands.len() > COMMANDS_MAX {
                return Err(EncodeError::Commands(it.name.clone(), it.commands.len()));
            }
            event(it.number, &it.name, &it.words())?;
        }
        Ok(bytes)
    }

    /// Reads the binary form. The program is well-formed then, and not yet verified.
    ///
    /// # Errors
    /// If the bytes are not a program of this version, with the event and word.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { bytes };
        if reader.word()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        match reader.word()? {
            VERSION => {}
            version => return Err(DecodeError::Version(version)),
        }
        let declared = reader.word()? as usize;
        if declared > OPERANDS_MAX {
            return Err(DecodeError::Operands(declared));
        }
        let names = (0..declared).map(|_| reader.name()).collect::<Result<Vec<_>, _>>()?;
        let mut program = Program::default();
        let events = reader.word()?;
        if events == 0 {
            return Err(DecodeError::InitFirst);
        }
        if events > EVENTS_MAX {
            return Err(DecodeError::Events(events));
        }
        for place in 0..events {
            let number = reader.word()?;
            let number = u8::try_from(number).map_err(|_| DecodeError::Event(number))?;
            let number = EventNumber(number);
            let name = reader.name()?;
            let words = reader.words()?;
            if words.first() != Some(&MAGIC) {
                return Err(DecodeError::EventMagic(name));
            }
            if (place == 0) != (number == EventNumber::INIT) {
                return Err(DecodeError::InitFirst);
            }
            if number.system_name().is_some_and(|system_name| system_name != name) {
                return Err(DecodeError::EventName(number.0, name));
            }
            if place == 0 {
                program.operands = decode_init(&words, &names)?;
                continue;
            }
            if words.len() > COMMANDS_MAX + 1 {
                return Err(DecodeError::Commands(name));
            }
            let commands = words
                .iter()
                .enumerate()
                .skip(1)
                .map(|(word, it)| {
                    Command::decode(*it).map_err(|source| DecodeError::Word {
                        event: name.clone(),
                        word,
                        source,
                    })
                })
                .collect::<Result<_, _>>()?;
            program.events.push(Event { number, name, commands });
        }
        if !reader.bytes.is_empty() {
            return Err(DecodeError::Trailing(reader.bytes.len()));
        }
        Ok(program)
    }
}

impl Event {
    /// The commands as words, MAGIC first.
    pub fn words(&self) -> Vec<u32> {
        std::iter::once(MAGIC).chain(self.commands.iter().map(|it| it.encode())).collect()
    }
}

fn decode_init(words: &[u32], names: &[String]) -> Result<Vec<Operand>, DecodeError> {
    let mut operands = Vec::with_capacity(names.len());
    let mut rest = words.iter().copied().enumerate().skip(1);
    while let Some((word, it)) = rest.next() {
        let wrong = |problem| DecodeError::Init { word, problem };
        let [index, code, high, low] = it.to_be_bytes();
        if usize::from(index) != operands.len() + PRESET_OPERANDS {
            return Err(wrong("its index is not the next one; declare operands in order, from 02"));
        }
        let kind = match code {
            0x01 => {
                let (_, initial) = rest
                    .next()
                    .ok_or_else(|| wrong("an Int's initial value must follow as a word"))?;
                Kind::Int { initial: initial as i32 }
            }
            0x02 => Kind::Queue,
            0x03 => Kind::Page,
            0x10 => Kind::Queues { len: u16::from_be_bytes([high, low]) },
            0x11 => Kind::Ordered { slot: high },
            0x12 => Kind::QueueRef,
            0x13 => Kind::System(
                *System::ALL
                    .get(usize::from(high))
                    .ok_or_else(|| wrong("there is no such System value; they are 00 to 07"))?,
            ),
            _ => return Err(wrong("there is no such type; types are 01 to 03 and 10 to 13")),
        };
        if kind.code() != [code, high, low] {
            return Err(wrong("a byte that this type does not use is not 00; write 00 there"));
        }
        let name = names
            .get(operands.len())
            .ok_or_else(|| wrong("the operand has no name; name as many as Init declares"))?;
        operands.push(Operand { name: name.clone(), kind });
    }
    if operands.len() != names.len() {
        return Err(DecodeError::Init {
            word: words.len(),
            problem: "there are more names than operands; name as many as Init declares",
        });
    }
    Ok(operands)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, DecodeError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(u32::from_be_bytes(*word))
    }

    fn words(&mut self) -> Result<Vec<u32>, DecodeError> {
        let count = self.word()? as usize;
        let bytes = self.take(count.checked_mul(4).ok_or(DecodeError::Short)?)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|word| u32::from_be_bytes(*word)).collect())
    }

    fn name(&mut self) -> Result<String, DecodeError> {
        let len = self.take(1)?[0];
        let bytes = self.take(len.into())?;
        let name = std::str::from_utf8(bytes).map_err(|_| DecodeError::Name)?;
        Ok(name.to_owned())
    }
}

/// Why a program has no binary form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// Too many operands.
    #[error("{0} operands are declared, and at most {OPERANDS_MAX} can be; use some of them twice")]
    Operands(usize),
    /// An event is too long.
    #[error(
        "event {0} has {1} commands, and at most {COMMANDS_MAX} fit; move some to an event of \
         their own and Call it"
    )]
    Commands(String, usize),
    /// A name is too long.
    #[error("`{0}` has more than {NAME_BYTES_MAX} bytes; shorten it")]
    Name(String),
}

/// Why bytes are not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is something else.
    #[error("this is no compiled HiPEC program: it does not begin with `HiPE`")]
    Magic,
    /// It was written by a later version.
    #[error("the program is of version {0}, and this reads version {VERSION}; compile it again")]
    Version(u32),
    /// It ends too early.
    #[error("the program is cut off; compile it again")]
    Short,
    /// Something follows it.
    #[error("{0} bytes follow the program's end; compile it again")]
    Trailing(usize),
    /// A name is not text.
    #[error("a name is not UTF-8; compile the program again")]
    Name,
    /// Too many operands.
    #[error("{0} operands are declared, and at most {OPERANDS_MAX} can be")]
    Operands(usize),
    /// Too many events.
    #[error("{0} events are declared, and at most {EVENTS_MAX} can be")]
    Events(u32),
    /// An event's number is too high.
    #[error("event number {0} is above 255")]
    Event(u32),
    /// An event is too long.
    #[error("event {0} has more than {COMMANDS_MAX} commands")]
    Commands(String),
    /// An event does not begin with the magic word.
    #[error("event {0}: its first word must be the magic one, `HiPE`")]
    EventMagic(String),
    /// The declarations are not where they must be.
    #[error("event Init (number 0) must come first, and once; it may declare nothing")]
    InitFirst,
    /// An event of the system has another's name.
    #[error("event {0} is called `{1}`, which is not its name; compile the program again")]
    EventName(u8, String),
    /// A declaration is wrong.
    #[error("event Init, word {word}: {problem}")]
    Init {
        /// Counted from the magic word.
        word: usize,
        /// What is wrong with it and what to do.
        problem: &'static str,
    },
    /// A word is no command.
    #[error("event {event}, word {word}: {source}")]
    Word {
        /// The event's name.
        event: String,
        /// Counted from the magic word.
        word: usize,
        /// Why.
        source: WordError,
    },
}
