//! Programs as text, one command a line.
//!
//! ```text
//! hipec 1                      ; the language's version
//!
//! event Init                   ; declarations
//!     Queue    active
//!     Int      zero = 0
//!     Page     page
//!     Queues   level[26]
//!     Ordered  by_time[0]      ; in order of each page's own integer 0
//!     QueueRef which
//!     System   FaultedPage
//!
//! event PageFault
//!     EnQueue  FaultedPage, active, TAIL
//!     Return
//!
//! event Replace
//! next:                        ; a label
//!     DeQueue  page, active, HEAD
//!     Ref      page
//!     Jump     leave           ; taken if the test was false
//!     Set      page, REFERENCE, RESET
//!     EnQueue  page, active, TAIL
//!     Jump     next
//! leave:
//!     Release  page
//!     Return
//!
//! event 3 make_room            ; reached by `Call make_room`
//! ```
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use crate::program::{
    Arithmetic, Bit, Command, End, Event, EventNumber, Index, Kind, Logical, NAME_BYTES_MAX,
    OPERANDS_MAX, Operand, Program, Relation, System, VERSION,
};

/// A program that was read from text, and the lines that it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assembly {
    /// The program, not yet verified.
    pub program: Program,
    /// For each event, the line of each command, counted from 1.
    pub command_lines: Vec<Vec<u32>>,
    /// The line of each operand's declaration.
    pub operand_lines: Vec<u32>,
}

/// What is wrong with a line, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}; {remedy}")]
pub struct AsmError {
    /// The line, counted from 1.
    pub line: u32,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// Reads a program.
///
/// # Errors
/// The first line that cannot be understood.
pub fn assemble(text: &str) -> Result<Assembly, AsmError> {
    let mut assembler = Assembler::default();
    for (place, line) in text.lines().enumerate() {
        let code = line.split(';').next().unwrap_or_default().trim();
        if code.is_empty() {
            continue;
        }
        let line = place as u32 + 1;
        assembler.line(code, line)?;
    }
    assembler.finish()
}

/// Writes a program as text that [`assemble`] reads back as the same program.
///
/// What names nothing (an operand or event that does not exist, a jump out of its event) is
/// written as `?` with its number, which no program can contain.
pub fn disassemble(program: &Program) -> String {
    Text(program).to_string()
}

/// Problem and remedy.
struct Wrong(String, String);

impl Wrong {
    fn at(self, line: u32) -> AsmError {
        let Wrong(problem, remedy) = self;
        AsmError { line, problem, remedy }
    }
}

fn wrong<T>(problem: impl Into<String>, remedy: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong(problem.into(), remedy.into()))
}

#[derive(Default)]
struct Assembler {
    has_version: bool,
    section: Section,
    has_init: bool,
    program: Program,
    operand_lines: Vec<u32>,
    command_lines: Vec<Vec<u32>>,
    /// Of the event that is read.
    labels: BTreeMap<String, u16>,
    /// Jumps of the event that is read: command, label, line.
    jumps: Vec<(usize, String, u32)>,
    /// Calls by name: event, command, name, line.
    calls: Vec<(usize, usize, String, u32)>,
}

#[derive(Default, PartialEq)]
enum Section {
    #[default]
    None,
    Init,
    Event,
}

impl Assembler {
    fn line(&mut self, code: &str, line: u32) -> Result<(), AsmError> {
        let (head, rest) = match code.split_once(char::is_whitespace) {
            Some((head, rest)) => (head, rest.trim()),
            None => (code, ""),
        };
        if self.has_version && head == "event" {
            self.end_event()?;
            return self.begin_event(rest).map_err(|wrong| wrong.at(line));
        }
        self.within(code, head, rest, line).map_err(|wrong| wrong.at(line))
    }

    /// A line that begins no event.
    fn within(&mut self, code: &str, head: &str, rest: &str, line: u32) -> Result<(), Wrong> {
        if !self.has_version {
            if head != "hipec" {
                return wrong("a program begins with `hipec 1`", "write that as its first line");
            }
            if rest.parse() != Ok(VERSION) {
                return wrong(
                    format!("there is no version `{rest}` of the language here"),
                    format!("write `hipec {VERSION}`"),
                );
            }
            self.has_version = true;
            return Ok(());
        }
        match self.section {
            Section::None => {
                wrong(format!("`{code}` is in no event"), "write `event Init` before it")
            }
            Section::Init => self.declare(head, rest, line),
            Section::Event => {
                if let Some(label) = code.strip_suffix(':') {
                    return self.label(label.trim());
                }
                self.command(head, rest, line)
            }
        }
    }

    fn begin_event(&mut self, text: &str) -> Result<(), Wrong> {
        if text == "Init" {
            if std::mem::replace(&mut self.has_init, true) {
                return wrong("there is an event Init already", "declare all operands there");
            }
            self.section = Section::Init;
            return Ok(());
        }
        let (number, name) = if let Some(number) = system_event(text) {
            (number, text)
        } else {
            let named = text.split_once(char::is_whitespace).and_then(|(number, name)| {
                number.parse().ok().map(|number| (EventNumber(number), name.trim()))
            });
            let Some((number, name)) = named else {
                return wrong(
                    format!("`{text}` is no event"),
                    "write Init, PageFault, Replace, Sample, Reference or Removed, or a number from \
                     3 to 252 and a name, as in `event 3 make_room`",
                );
            };
            if number.system_name().is_some() {
                return wrong(
                    format!("event {} is one that the system runs", number.0),
                    "give it a number from 3 to 252",
                );
            }
            check_name(name)?;
            (number, name)
        };
        if let Some(other) =
            self.program.events.iter().find(|event| event.number == number || event.name == name)
        {
            return wrong(
                format!("event {} {} is there already", other.number.0, other.name),
                "give this one another number and name, or remove one of them",
            );
        }
        self.section = Section::Event;
        self.program.events.push(Event { number, name: name.to_owned(), commands: Vec::new() });
        self.command_lines.push(Vec::new());
        Ok(())
    }

    fn declare(&mut self, head: &str, rest: &str, line: u32) -> Result<(), Wrong> {
        let (name, kind) = match head {
            "Int" => {
                let (name, value) = match rest.split_once('=') {
                    Some((name, value)) => (name.trim(), value.trim()),
                    None => (rest, "0"),
                };
                let Ok(initial) = value.parse() else {
                    return wrong(
                        format!("`{value}` is no initial value"),
                        "write a number of 32 bits, as in `Int two = 2`",
                    );
                };
                (name, Kind::Int { initial })
            }
            "Queue" => (rest, Kind::Queue),
            "Page" => (rest, Kind::Page),
            "QueueRef" => (rest, Kind::QueueRef),
            "Queues" => {
                let (name, len) = bracketed(rest, "Queues level[26]")?;
                (name, Kind::Queues { len })
            }
            "Ordered" => {
                let (name, slot) = bracketed(rest, "Ordered by_time[0]")?;
                (name, Kind::Ordered { slot })
            }
            "System" => {
                let Some(system) = System::ALL.into_iter().find(|it| it.name() == rest) else {
                    let names: Vec<_> = System::ALL.iter().map(|it| it.name()).collect();
                    return wrong(
                        format!("the system tells nothing called `{rest}`"),
                        format!("it tells {}", names.join(", ")),
                    );
                };
                (rest, Kind::System(system))
            }
            _ => {
                return wrong(
                    format!("`{head}` is no type"),
                    "declare Int, Queue, Page, Queues, Ordered, QueueRef or System; commands \
                     belong to other events",
                );
            }
        };
        check_name(name)?;
        if self.program.find(name).is_some() {
            return wrong(format!("`{name}` is declared already"), "choose another name");
        }
        if self.program.operands.len() == OPERANDS_MAX {
            return wrong(
                format!("more than {OPERANDS_MAX} operands are declared"),
                "use some of them twice",
            );
        }
        self.program.operands.push(Operand { name: name.to_owned(), kind });
        self.operand_lines.push(line);
        Ok(())
    }

    fn label(&mut self, label: &str) -> Result<(), Wrong> {
        check_name(label)?;
        if self.labels.contains_key(label) {
            return wrong(
                format!("label `{label}` is in this event already"),
                "choose another name",
            );
        }
        let word = self.next_word()?;
        self.labels.insert(label.to_owned(), word);
        Ok(())
    }

    /// The number of the word that comes next.
    fn next_word(&self) -> Result<u16, Wrong> {
        let commands = self.program.events.last().map_or(0, |event| event.commands.len());
        u16::try_from(commands + 1).or_else(|_| {
            wrong(
                "the event has too many commands",
                "move some to an event of their own and Call it",
            )
        })
    }

    fn operand(&self, name: &str) -> Result<Index, Wrong> {
        self.program.find(name).map_or_else(
            || {
                wrong(
                    format!("there is no operand `{name}`"),
                    "declare it in event Init, which comes first",
                )
            },
            Ok,
        )
    }

    fn command(&mut self, head: &str, rest: &str, line: u32) -> Result<(), Wrong> {
        self.next_word()?;
        let events = self.program.events.len();
        let place = self.program.events.last().map_or(0, |event| event.commands.len());
        let parts: Vec<&str> = match rest {
            "" => Vec::new(),
            rest => rest.split(',').map(str::trim).collect(),
        };
        let operands = |form: &str, count: usize| -> Result<Vec<Index>, Wrong> {
            if parts.len() != count {
                return wrong(format!("`{head}` has other operands"), format!("write `{form}`"));
            }
            parts.iter().map(|name| self.operand(name)).collect()
        };
        // The first `count` parts as operands, and the last as something else.
        let last = |form: &str, count: usize| -> Result<(Vec<Index>, &str), Wrong> {
            if parts.len() != count + 1 {
                return wrong(format!("`{head}` has other operands"), format!("write `{form}`"));
            }
            let found: Result<_, _> =
                parts[..count].iter().map(|name| self.operand(name)).collect();
            Ok((found?, parts[count]))
        };
        let command = match head {
            "Return" if parts.is_empty() => Command::Return { page: None },
            "Return" => match operands("Return page", 1)?[0] {
                // Byte 00 says that there is none.
                Index::FREE_QUEUE => return wrong("_free_queue is no page", "return a Page"),
                page => Command::Return { page: Some(page) },
            },
            "Arith" => self.arith(rest)?,
            "Comp" => self.comp(rest)?,
            "Logic" => self.logic(rest)?,
            "EmptQ" => Command::EmptQ { queue: operands("EmptQ queue", 1)?[0] },
            "InQ" => {
                let found = operands("InQ page, queue", 2)?;
                Command::InQ { page: found[0], queue: found[1] }
            }
            "Jump" => {
                if rest.is_empty() {
                    return wrong("`Jump` has no label", "write `Jump label`");
                }
                self.jumps.push((place, rest.to_owned(), line));
                Command::Jump { to: 0 }
            }
            "DeQueue" | "EnQueue" => {
                let form = format!("{head} page, queue, HEAD");
                let (found, end) = last(&form, 2)?;
                let end = match end {
                    "HEAD" => End::Head,
                    "TAIL" => End::Tail,
                    _ => return wrong(format!("`{end}` is no end"), "write HEAD or TAIL"),
                };
                let (page, queue) = (found[0], found[1]);
                match head {
                    "DeQueue" => Command::DeQueue { page, queue, end },
                    _ => Command::EnQueue { page, queue, end },
                }
            }
            "Request" => Command::Request { frames: operands("Request frames", 1)?[0] },
            "Release" => Command::Release { page: operands("Release page", 1)?[0] },
            "Flush" => Command::Flush { page: operands("Flush page", 1)?[0] },
            "Set" => {
                let form = "Set page, REFERENCE, RESET";
                let [page, bit, to] = parts[..] else {
                    return wrong("`Set` has other operands", format!("write `{form}`"));
                };
                let page = self.operand(page)?;
                let bit = match bit {
                    "MODIFY" => Bit::Modified,
                    "REFERENCE" => Bit::Referenced,
                    _ => return wrong(format!("`{bit}` is no bit"), "write REFERENCE or MODIFY"),
                };
                let to = match to {
                    "RESET" => false,
                    "SET" => true,
                    _ => return wrong(format!("a bit is not `{to}`"), "write SET or RESET"),
                };
                Command::Set { page, bit, to }
            }
            "Ref" => Command::Ref { page: operands("Ref page", 1)?[0] },
            "Mod" => Command::Mod { page: operands("Mod page", 1)?[0] },
            "FindVA" => {
                let found = operands("FindVA address, page", 2)?;
                Command::FindVA { address: found[0], page: found[1] }
            }
            "FindPA" => {
                let found = operands("FindPA page, address", 2)?;
                Command::FindPA { page: found[0], address: found[1] }
            }
            "Map" => {
                let found = operands("Map page, address", 2)?;
                Command::Map { page: found[0], address: found[1] }
            }
            "UnMap" => Command::UnMap { page: operands("UnMap page", 1)?[0] },
            "Call" => {
                if rest.is_empty() {
                    return wrong("`Call` has no event", "write `Call event`");
                }
                self.calls.push((events - 1, place, rest.to_owned(), line));
                Command::Call { event: EventNumber::INIT }
            }
            "Pick" => {
                let found = operands("Pick queue, array, number", 3)?;
                Command::Pick { queue: found[0], array: found[1], at: found[2] }
            }
            "Count" => {
                let found = operands("Count number, queue", 2)?;
                Command::Count { count: found[0], queue: found[1] }
            }
            "Load" => {
                let (found, slot) = last("Load number, page, 0", 2)?;
                Command::Load { target: found[0], page: found[1], slot: slot_number(slot)? }
            }
            "Store" => {
                let [page, slot, source] = parts[..] else {
                    return wrong("`Store` has other operands", "write `Store page, 0, number`");
                };
                let (page, source) = (self.operand(page)?, self.operand(source)?);
                Command::Store { page, slot: slot_number(slot)?, source }
            }
            "Copy" => {
                let found = operands("Copy page, other", 2)?;
                Command::Copy { target: found[0], source: found[1] }
            }
            "Has" => Command::Has { page: operands("Has page", 1)?[0] },
            "Prefetch" => {
                let found = operands("Prefetch address, number", 2)?;
                Command::Prefetch { address: found[0], pages: found[1] }
            }
            _ => {
                return wrong(
                    format!("`{head}` is no command"),
                    "commands are those of Table I, and Pick, Count, Load, Store, Copy, Has, \
                     Prefetch; a label ends with a colon",
                );
            }
        };
        if let (Some(event), Some(lines)) =
            (self.program.events.last_mut(), self.command_lines.last_mut())
        {
            event.commands.push(command);
            lines.push(line);
        }
        Ok(())
    }

    fn arith(&self, text: &str) -> Result<Command, Wrong> {
        let unary = [Arithmetic::Increment, Arithmetic::Decrement];
        for operation in unary {
            if let Some(target) = text.strip_suffix(operation.sign()) {
                let target = self.operand(target.trim())?;
                return Ok(Command::Arith { target, source: Index(0), operation });
            }
        }
        if let Some((left, right)) = text.split_once('=') {
            let left = left.trim_end();
            let operation = Arithmetic::ALL.into_iter().find(|it| {
                // `a +` is what is left of `+=`.
                it.sign().len() == 2 && !it.is_unary() && left.ends_with(&it.sign()[..1])
            });
            let (left, operation) = match operation {
                Some(operation) => (left[..left.len() - 1].trim_end(), operation),
                None => (left, Arithmetic::Assign),
            };
            let (target, source) = (self.operand(left)?, self.operand(right.trim())?);
            return Ok(Command::Arith { target, source, operation });
        }
        wrong(
            format!("`{text}` is no arithmetic"),
            "write `a = b`, `a += b`, `a -= b`, `a *= b`, `a /= b`, `a %= b`, `a++` or `a--`",
        )
    }

    fn comp(&self, text: &str) -> Result<Command, Wrong> {
        // Longer signs first: `<=` is not `<`.
        let mut relations = Relation::ALL;
        relations.sort_by_key(|it| std::cmp::Reverse(it.sign().len()));
        for relation in relations {
            if let Some((left, right)) = text.split_once(relation.sign()) {
                let (left, right) = (self.operand(left.trim())?, self.operand(right.trim())?);
                return Ok(Command::Comp { left, right, relation });
            }
        }
        wrong(format!("`{text}` is no comparison"), "write `a < b`, with >, <, ==, <=, >= or !=")
    }

    fn logic(&self, text: &str) -> Result<Command, Wrong> {
        if let Some(left) = text.strip_prefix(Logical::Not.sign()) {
            let left = self.operand(left.trim())?;
            return Ok(Command::Logic { left, right: Index(0), operation: Logical::Not });
        }
        for operation in Logical::ALL {
            if let Some((left, right)) = text.split_once(operation.sign()) {
                let (left, right) = (self.operand(left.trim())?, self.operand(right.trim())?);
                return Ok(Command::Logic { left, right, operation });
            }
        }
        wrong(
            format!("`{text}` is no logical operation"),
            "write `a && b`, `a || b`, `a ^ b` or `! a`",
        )
    }

    fn end_event(&mut self) -> Result<(), AsmError> {
        let labels = std::mem::take(&mut self.labels);
        for (place, label, line) in std::mem::take(&mut self.jumps) {
            let Some(to) = labels.get(&label) else {
                return Err(AsmError {
                    line,
                    problem: format!("the event has no label `{label}`"),
                    remedy: format!("write `{label}:` on a line before a command of this event"),
                });
            };
            if let Some(event) = self.program.events.last_mut() {
                event.commands[place] = Command::Jump { to: *to };
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Assembly, AsmError> {
        if !self.has_version {
            return Err(AsmError {
                line: 1,
                problem: "the program is empty".to_owned(),
                remedy: format!("begin with `hipec {VERSION}` and `event Init`"),
            });
        }
        self.end_event()?;
        for (event, place, name, line) in std::mem::take(&mut self.calls) {
            let called = self.program.events.iter().find(|it| it.name == name);
            let Some(number) = called.map(|it| it.number) else {
                return Err(AsmError {
                    line,
                    problem: format!("there is no event `{name}`"),
                    remedy: format!("write it, as in `event 3 {name}`"),
                });
            };
            self.program.events[event].commands[place] = Command::Call { event: number };
        }
        let Self { program, operand_lines, command_lines, .. } = self;
        Ok(Assembly { program, command_lines, operand_lines })
    }
}

fn system_event(name: &str) -> Option<EventNumber> {
    EventNumber::of_system(name).filter(|event| *event != EventNumber::INIT)
}

/// Whether a name is a C identifier of a length that fits.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn check_name(name: &str) -> Result<(), Wrong> {
    if is_name(name) {
        return Ok(());
    }
    wrong(
        format!("`{name}` is no name"),
        "a name is letters, digits and `_`, and does not begin with a digit",
    )
}

fn slot_number(text: &str) -> Result<u8, Wrong> {
    text.parse().or_else(|_| {
        wrong(format!("`{text}` is no number of a page's own integer"), "write 0 to 7")
    })
}

fn bracketed<'a, T: std::str::FromStr>(text: &'a str, form: &str) -> Result<(&'a str, T), Wrong> {
    text.strip_suffix(']')
        .and_then(|text| text.split_once('['))
        .and_then(|(name, number)| Some((name.trim(), number.trim().parse().ok()?)))
        .map_or_else(
            || wrong(format!("`{text}` has no number in brackets"), format!("write `{form}`")),
            Ok,
        )
}

struct Text<'a>(&'a Program);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "hipec {VERSION}\n\nevent Init")?;
        for Operand { name, kind } in &self.0.operands {
            let word = kind.name();
            match kind {
                Kind::Int { initial } => writeln!(f, "    {word:8} {name} = {initial}")?,
                Kind::Queues { len: number } => writeln!(f, "    {word:8} {name}[{number}]")?,
                Kind::Ordered { slot } => writeln!(f, "    {word:8} {name}[{slot}]")?,
                _ => writeln!(f, "    {word:8} {name}")?,
            }
        }
        for event in &self.0.events {
            match event.number.system_name() {
                Some(name) => writeln!(f, "\nevent {name}")?,
                None => writeln!(f, "\nevent {} {}", event.number.0, event.name)?,
            }
            let targets: BTreeSet<usize> = event
                .commands
                .iter()
                .filter_map(|command| match command {
                    Command::Jump { to } => Some(usize::from(*to)),
                    _ => None,
                })
                .collect();
            for (word, command) in (1..).zip(&event.commands) {
                if targets.contains(&word) {
                    writeln!(f, "w{word}:")?;
                }
                let line = format!("    {:8} {}", command.name(), self.operands(*command)?);
                writeln!(f, "{}", line.trim_end())?;
            }
            // A label may stand behind the last command.
            let end = event.commands.len() + 1;
            if targets.contains(&end) {
                writeln!(f, "w{end}:")?;
            }
        }
        Ok(())
    }
}

impl Text<'_> {
    fn name(&self, index: Index) -> String {
        self.0.name(index).map_or_else(|| format!("?{}", index.0), str::to_owned)
    }

    fn operands(&self, command: Command) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let list = |operands: &[Index]| {
            operands.iter().map(|it| self.name(*it)).collect::<Vec<_>>().join(", ")
        };
        let end = |end| match end {
            End::Head => "HEAD",
            End::Tail => "TAIL",
        };
        match command {
            Command::Return { page: None } => {}
            Command::Arith { target, operation, .. } if operation.is_unary() => {
                write!(text, "{}{}", self.name(target), operation.sign())?;
            }
            Command::Arith { target, source, operation } => {
                write!(text, "{} {} {}", self.name(target), operation.sign(), self.name(source))?;
            }
            Command::Comp { left, right, relation } => {
                write!(text, "{} {} {}", self.name(left), relation.sign(), self.name(right))?;
            }
            Command::Logic { left, operation, .. } if operation.is_unary() => {
                write!(text, "{} {}", operation.sign(), self.name(left))?;
            }
            Command::Logic { left, right, operation } => {
                write!(text, "{} {} {}", self.name(left), operation.sign(), self.name(right))?;
            }
            Command::Jump { to } => write!(text, "w{to}")?,
            Command::DeQueue { page, queue, end: at }
            | Command::EnQueue { page, queue, end: at } => {
                write!(text, "{}, {}", list(&[page, queue]), end(at))?;
            }
            Command::Set { page, bit, to } => {
                let bit = match bit {
                    Bit::Modified => "MODIFY",
                    Bit::Referenced => "REFERENCE",
                };
                let to = if to { "SET" } else { "RESET" };
                write!(text, "{}, {bit}, {to}", self.name(page))?;
            }
            Command::Call { event } => match self.0.event(event) {
                Some(event) => text.push_str(&event.name),
                None => write!(text, "?{}", event.0)?,
            },
            Command::Load { target, page, slot } => {
                write!(text, "{}, {slot}", list(&[target, page]))?;
            }
            Command::Store { page, slot, source } => {
                write!(text, "{}, {slot}, {}", self.name(page), self.name(source))?;
            }
            Command::Pick { queue, array, at } => text = list(&[queue, array, at]),
            Command::InQ { page: a, queue: b }
            | Command::FindVA { address: a, page: b }
            | Command::FindPA { page: a, address: b }
            | Command::Map { page: a, address: b }
            | Command::Count { count: a, queue: b }
            | Command::Copy { target: a, source: b }
            | Command::Prefetch { address: a, pages: b } => text = list(&[a, b]),
            Command::Return { page: Some(it) }
            | Command::EmptQ { queue: it }
            | Command::Request { frames: it }
            | Command::Release { page: it }
            | Command::Flush { page: it }
            | Command::Ref { page: it }
            | Command::Mod { page: it }
            | Command::UnMap { page: it }
            | Command::Has { page: it } => text = list(&[it]),
        }
        Ok(text)
    }
}
