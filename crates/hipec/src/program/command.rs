//! Commands, and the word that each is.
use super::{EventNumber, Index};

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
        /// Which, below [`PAGE_SLOTS`](super::PAGE_SLOTS).
        slot: u8,
    },
    /// `23`, ours: Writes one of a page's own integers.
    Store {
        /// A Page.
        page: Index,
        /// Which, below [`PAGE_SLOTS`](super::PAGE_SLOTS).
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
