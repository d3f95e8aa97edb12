//! What must hold before a program may run, and whether it does.
//!
//! Checked here, for every path: operands exist and have the type that the command needs; what
//! the system tells is not written; jumps stay inside their event; every command can reach a
//! Return, and none runs off the end; called events exist and do not call each other in a circle;
//! a page operand is not used where it surely holds none or a page given up before; a page taken
//! off a queue is not surely forgotten. What depends on the pages themselves is checked as the
//! program runs, with a defined result ([`Misuse`](crate::interpret::Misuse)).
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::asm::is_name;
use crate::image::Image;
use crate::program::{
    COMMANDS_MAX, Command, Event, EventNumber, Index, Kind, OPERANDS_MAX, PAGE_SLOTS, Program,
    System,
};

/// Most queues of a program, those of arrays counted one by one, `_free_queue` among them.
pub const QUEUES_MAX: usize = 1 << 15;

/// Where in a program something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// The program as a whole.
    Program,
    /// An operand, by its place in [`Program::operands`].
    Operand(usize),
    /// An event, by its place in [`Program::events`].
    Event(usize),
    /// A command: places of the event and of the command in it. The word is one more.
    Command {
        /// The event.
        event: usize,
        /// The command.
        command: usize,
    },
}

/// Something that keeps a program from running.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {problem}; {remedy}")]
pub struct Finding {
    /// Where it is.
    pub spot: Spot,
    /// The same for people, as in `event Replace, word 3 (DeQueue)`.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// A program that may run. Clones share its machine code, which is made once.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Program,
    calls_deep: usize,
    image: Arc<Image>,
}

impl PartialEq for Verified {
    fn eq(&self, other: &Self) -> bool {
        self.program == other.program
    }
}

impl Eq for Verified {}

impl Verified {
    /// The program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) const fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// The deepest that Calls nest.
    pub const fn calls_deep(&self) -> usize {
        self.calls_deep
    }

    /// Memory that a page number in use costs, in bytes.
    pub fn bytes_per_page(&self) -> u32 {
        // A node, bits, and the pool's own order; see `pages.rs` and FIFO2's queues.
        const ALWAYS: u32 = 16 + 1 + 8;
        // A key and a turn, and an entry of 24 in a B-tree, whose nodes are two thirds full.
        const ORDERED: u32 = 16 + 36;
        const ADDRESS: u32 = 8;
        // An entry of 12 in a B-tree.
        const FOUND: u32 = 18;
        let operands = || self.program.operands.iter().map(|operand| operand.kind);
        let mut bytes = ALWAYS;
        if operands().any(|kind| matches!(kind, Kind::Ordered { .. })) {
            bytes += ORDERED;
        }
        if self.uses_places() {
            bytes += ADDRESS;
        }
        if self.finds_pages() {
            bytes += FOUND;
        }
        let stored: std::collections::BTreeSet<u8> = self
            .program
            .events
            .iter()
            .flat_map(|event| &event.commands)
            .filter_map(|command| match command {
                Command::Store { slot, .. } => Some(*slot),
                _ => None,
            })
            .collect();
        bytes + 8 * stored.len() as u32
    }

    /// Whether the program asks where pages live.
    pub fn uses_places(&self) -> bool {
        self.image.uses_places
    }

    /// Whether the program asks which page is at an address.
    pub(crate) fn finds_pages(&self) -> bool {
        let finds = |command: &Command| matches!(command, Command::FindPA { .. });
        self.program.events.iter().any(|event| event.commands.iter().any(finds))
    }

    /// Whether references change what the program does: it tests them, counts them or is told.
    pub fn uses_references(&self) -> bool {
        let reads = |command: &Command| matches!(command, Command::Ref { .. });
        self.program.event(EventNumber::REFERENCE).is_some()
            || self.program.event(EventNumber::SAMPLE).is_some()
            || self.program.operands.iter().any(|it| it.kind == Kind::System(System::Now))
            || self.program.events.iter().any(|event| event.commands.iter().any(reads))
    }

    /// Whether pages are to be unmapped, so that their next touch is seen: a program whose Sample
    /// returns at once does without.
    pub fn uses_samples(&self) -> bool {
        let sample = self.program.event(EventNumber::SAMPLE);
        let first = sample.and_then(|event| event.commands.first());
        !matches!(first, Some(Command::Return { .. }))
    }
}

impl Verified {
    /// Whether the program asks which pages are modified.
    pub fn uses_modified(&self) -> bool {
        self.has(|command| matches!(command, Command::Mod { .. } | Command::Flush { .. }))
    }

    /// Whether the program asks for more than victims: Flush, Map, UnMap or Prefetch.
    pub fn gives_hints(&self) -> bool {
        self.has(|command| {
            matches!(
                command,
                Command::Flush { .. }
                    | Command::Map { .. }
                    | Command::UnMap { .. }
                    | Command::Prefetch { .. }
            )
        })
    }

    fn has(&self, wanted: impl Fn(&Command) -> bool) -> bool {
        self.program.events.iter().any(|event| event.commands.iter().any(&wanted))
    }
}

/// Checks a program.
///
/// # Errors
/// All that keeps it from running, in the order of the program.
pub fn verify(program: Program) -> Result<Verified, Vec<Finding>> {
    let mut verifier = Verifier { program: &program, findings: Vec::new() };
    verifier.operands();
    verifier.events();
    for event in 0..program.events.len() {
        verifier.commands(event);
    }
    let calls_deep = verifier.calls();
    // What flows where is asked only of commands that make sense one by one.
    if verifier.findings.is_empty() {
        for event in 0..program.events.len() {
            verifier.paths(event);
        }
    }
    let findings = verifier.findings;
    if !findings.is_empty() {
        return Err(findings);
    }
    let image = Arc::new(Image::new(&program, uses_places(&program)));
    Ok(Verified { program, calls_deep, image })
}

fn uses_places(program: &Program) -> bool {
    let declares = program.operands.iter().any(|operand| {
        matches!(
            operand.kind,
            Kind::System(System::FaultedAddress | System::FaultedSegment | System::FaultedIndex)
        )
    });
    let asks = |command: &Command| {
        matches!(command, Command::FindVA { .. } | Command::FindPA { .. } | Command::Map { .. })
    };
    declares || program.events.iter().any(|event| event.commands.iter().any(asks))
}

struct Verifier<'a> {
    program: &'a Program,
    findings: Vec<Finding>,
}

/// What a command does with an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    ReadInt,
    WriteInt,
    ReadPage,
    WritePage,
    Queue,
    WriteQueueRef,
    Queues,
}

impl Role {
    fn fits(self, kind: Kind) -> bool {
        match (self, kind) {
            (Role::ReadInt, Kind::System(system)) => system != System::FaultedPage,
            (Role::ReadInt | Role::WriteInt, Kind::Int { .. })
            | (Role::ReadPage | Role::WritePage, Kind::Page)
            | (Role::ReadPage, Kind::System(System::FaultedPage))
            | (Role::Queue, Kind::Queue | Kind::Ordered { .. } | Kind::QueueRef)
            | (Role::WriteQueueRef, Kind::QueueRef)
            | (Role::Queues, Kind::Queues { .. }) => true,
            _ => false,
        }
    }

    /// Whether it sets a page or queue, whatever the operand held before.
    pub(crate) const fn is_write(self) -> bool {
        matches!(self, Role::WritePage | Role::WriteQueueRef)
    }

    const fn wanted(self) -> &'static str {
        match self {
            Role::ReadInt => "an Int or a System number",
            Role::WriteInt => "an Int, which it changes",
            Role::ReadPage => "a Page",
            Role::WritePage => "a Page, which it changes",
            Role::Queue => "a Queue, Ordered or QueueRef (Pick makes one of Queues)",
            Role::WriteQueueRef => "a QueueRef, which it changes",
            Role::Queues => "Queues",
        }
    }
}

/// The operands of a command, and what it does with each.
pub(crate) fn roles(command: Command) -> Vec<(Index, Role)> {
    use Role::{Queue, Queues, ReadInt, ReadPage, WriteInt, WritePage, WriteQueueRef};
    match command {
        Command::Return { page } => page.map(|page| (page, ReadPage)).into_iter().collect(),
        Command::Arith { target, operation, .. } if operation.is_unary() => {
            vec![(target, WriteInt)]
        }
        Command::Arith { target, source, .. } => vec![(target, WriteInt), (source, ReadInt)],
        Command::Logic { left, operation, .. } if operation.is_unary() => vec![(left, ReadInt)],
        Command::Comp { left, right, .. } | Command::Logic { left, right, .. } => {
            vec![(left, ReadInt), (right, ReadInt)]
        }
        Command::EmptQ { queue } => vec![(queue, Queue)],
        Command::InQ { page, queue } | Command::EnQueue { page, queue, .. } => {
            vec![(page, ReadPage), (queue, Queue)]
        }
        Command::DeQueue { page, queue, .. } => vec![(page, WritePage), (queue, Queue)],
        Command::Jump { .. } | Command::Call { .. } => Vec::new(),
        Command::Request { frames } => vec![(frames, ReadInt)],
        Command::Release { page }
        | Command::Flush { page }
        | Command::Set { page, .. }
        | Command::Ref { page }
        | Command::Mod { page }
        | Command::UnMap { page }
        | Command::Has { page } => vec![(page, ReadPage)],
        Command::FindVA { address, page } => vec![(address, WriteInt), (page, ReadPage)],
        Command::FindPA { page, address } => vec![(page, WritePage), (address, ReadInt)],
        Command::Map { page, address } => vec![(page, ReadPage), (address, ReadInt)],
        Command::Pick { queue, array, at } => {
            vec![(queue, WriteQueueRef), (array, Queues), (at, ReadInt)]
        }
        Command::Count { count, queue } => vec![(count, WriteInt), (queue, Queue)],
        Command::Load { target, page, .. } => vec![(target, WriteInt), (page, ReadPage)],
        Command::Store { page, source, .. } => vec![(page, ReadPage), (source, ReadInt)],
        Command::Copy { target, source } => vec![(target, WritePage), (source, ReadPage)],
        Command::Prefetch { address, pages } => vec![(address, ReadInt), (pages, ReadInt)],
    }
}

impl<'a> Verifier<'a> {
    fn report(&mut self, spot: Spot, problem: impl Into<String>, remedy: impl Into<String>) {
        let place = match spot {
            Spot::Program => "program".to_owned(),
            Spot::Operand(place) => format!("operand {}", self.program.operands[place].name),
            Spot::Event(place) => format!("event {}", self.program.events[place].name),
            Spot::Command { event, command } => {
                let event = &self.program.events[event];
                let name = event.commands[command].name();
                format!("event {}, word {} ({name})", event.name, command + 1)
            }
        };
        self.findings.push(Finding { spot, place, problem: problem.into(), remedy: remedy.into() });
    }

    fn name(&self, index: Index) -> String {
        self.program.name(index).map_or_else(|| format!("{:02X}", index.0), str::to_owned)
    }

    fn operands(&mut self) {
        let program = self.program;
        if program.operands.len() > OPERANDS_MAX {
            self.report(
                Spot::Program,
                format!(
                    "it declares {} operands, and at most {OPERANDS_MAX} can be",
                    program.operands.len()
                ),
                "use some of them twice",
            );
            return;
        }
        let mut queues = 1;
        for (place, operand) in program.operands.iter().enumerate() {
            let spot = Spot::Operand(place);
            if !is_name(&operand.name) {
                self.report(
                    spot,
                    "this is no name",
                    "a name is letters, digits and `_`, and does not begin with a digit",
                );
            }
            if program.find(&operand.name) != Some(Index::declared(place)) {
                self.report(spot, "the name is taken already", "choose another one");
            }
            match operand.kind {
                Kind::Queue | Kind::Ordered { slot: 0..PAGE_SLOTS } => queues += 1,
                Kind::Queues { len: 0 } => {
                    self.report(spot, "an array has one queue at least", "give its number");
                }
                Kind::Queues { len } => queues += usize::from(len),
                Kind::Ordered { slot } => self.report(
                    spot,
                    format!("pages have no integer {slot} of their own"),
                    format!("order by one of 0 to {}", PAGE_SLOTS - 1),
                ),
                Kind::System(system) if operand.name != system.name() => self.report(
                    spot,
                    format!("it is what the system calls {}", system.name()),
                    "call it that too",
                ),
                _ => {}
            }
        }
        if queues > QUEUES_MAX {
            self.report(
                Spot::Program,
                format!("it has {queues} queues, and at most {QUEUES_MAX} can be"),
                "make the arrays shorter",
            );
        }
    }

    fn events(&mut self) {
        let program = self.program;
        for needed in [EventNumber::PAGE_FAULT, EventNumber::REPLACE] {
            if program.event(needed).is_none() {
                self.report(
                    Spot::Program,
                    format!("there is no event {}", needed.system_name().unwrap_or_default()),
                    "write it, one that only returns leaves the choice to the system",
                );
            }
        }
        for (place, event) in program.events.iter().enumerate() {
            let spot = Spot::Event(place);
            let is_taken = |other: &Event| other.number == event.number || other.name == event.name;
            if program.events[..place].iter().any(is_taken) {
                self.report(spot, "its number or name is taken", "give it another one");
            }
            if event.number == EventNumber::INIT {
                self.report(
                    spot,
                    "Init has commands, and it only declares",
                    "move them to the event that needs them",
                );
            }
            let is_named = match event.number.system_name() {
                Some(name) => name == event.name,
                None => is_name(&event.name) && EventNumber::of_system(&event.name).is_none(),
            };
            if !is_named {
                self.report(
                    spot,
                    format!("this is no name for event {}", event.number.0),
                    "a called event has a name of its own, of letters, digits and `_`",
                );
            }
            if event.commands.is_empty() {
                self.report(spot, "it has no command", "end it with Return");
            }
        }
        let commands: usize = program.events.iter().map(|event| event.commands.len()).sum();
        if commands > COMMANDS_MAX {
            self.report(
                Spot::Program,
                format!("it has {commands} commands, and at most {COMMANDS_MAX} can be"),
                "put what is there twice into an event, and Call it",
            );
        }
    }

    /// Each command by itself.
    fn commands(&mut self, event: usize) {
        let program = self.program;
        let commands = &program.events[event].commands;
        for (place, &command) in commands.iter().enumerate() {
            let spot = Spot::Command { event, command: place };
            for (operand, role) in roles(command) {
                let problem = match program.kind(operand) {
                    None => format!("there is no operand {:02X}", operand.0),
                    Some(kind) if !role.fits(kind) => {
                        format!("`{}` is {kind}", self.name(operand))
                    }
                    Some(_) => continue,
                };
                self.report(spot, problem, format!("it needs {}", role.wanted()));
            }
            match command {
                Command::Jump { to } if to == 0 || usize::from(to) > commands.len() => {
                    self.report(
                        spot,
                        format!("it goes to word {to}, and the event has 1 to {}", commands.len()),
                        "jump to a command of this event",
                    );
                }
                Command::Load { slot, .. } | Command::Store { slot, .. } if slot >= PAGE_SLOTS => {
                    self.report(
                        spot,
                        format!("pages have no integer {slot} of their own"),
                        format!("use one of 0 to {}", PAGE_SLOTS - 1),
                    );
                }
                Command::Call { event: called } => {
                    let is_run_by_call = called == EventNumber::PAGE_FAULT
                        || called == EventNumber::REPLACE
                        || called.system_name().is_none();
                    if !is_run_by_call {
                        self.report(
                            spot,
                            format!("event {} is run by the system alone", called.0),
                            "put what both need into an event of its own, and Call that",
                        );
                    } else if program.event(called).is_none() {
                        self.report(
                            spot,
                            format!("there is no event {}", called.0),
                            "write it, or call another",
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// How deep calls nest; a circle is reported.
    fn calls(&mut self) -> usize {
        let program = self.program;
        let mut depths: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        (0..program.events.len())
            .map(|event| self.depth(event, &mut depths))
            .max()
            .unwrap_or_default()
    }

    /// At most 255 deep: an event on the way is not entered twice.
    fn depth(&mut self, event: usize, depths: &mut BTreeMap<usize, Option<usize>>) -> usize {
        match depths.get(&event) {
            Some(depth) => return depth.unwrap_or_default(),
            None => depths.insert(event, None),
        };
        let program = self.program;
        let mut deepest = 0;
        for (place, command) in program.events[event].commands.iter().enumerate() {
            let Command::Call { event: called } = *command else { continue };
            let Some(called) = program.events.iter().position(|it| it.number == called) else {
                continue;
            };
            if depths.get(&called) == Some(&None) {
                self.report(
                    Spot::Command { event, command: place },
                    format!("`{}` comes to call itself", program.events[called].name),
                    "write it as a loop",
                );
            } else {
                deepest = deepest.max(self.depth(called, depths) + 1);
            }
        }
        depths.insert(event, Some(deepest));
        deepest
    }

    /// What holds on the paths through an event.
    fn paths(&mut self, event: usize) {
        let states = self.flow(event);
        let commands = &self.program.events[event].commands;
        self.ends(event, &states);
        for (place, state) in states.iter().enumerate() {
            let Some(state) = state else { continue };
            self.uses(event, place, commands[place], state);
        }
    }

    /// What may be before each command; `None` where no path leads.
    fn flow(&self, event: usize) -> Vec<Option<State>> {
        let program = self.program;
        let it = &program.events[event];
        let mut states: Vec<Option<State>> = vec![None; it.commands.len()];
        states[0] = Some(State::at_entry(program, it.number));
        let mut waiting = vec![0];
        while let Some(place) = waiting.pop() {
            let Some(state) = states[place].clone() else { continue };
            let mut after = state.clone();
            after.run(program, it.commands[place]);
            for next in successors(it.commands[place], place, state.test) {
                let Some(known) = states.get_mut(next) else { continue };
                let mut after = after.clone();
                // Has was false where its Jump is taken.
                if let (Command::Jump { .. }, Some(page), true) =
                    (it.commands[place], state.has, next != place + 1)
                {
                    after.operands[usize::from(page.0)] = NONE;
                }
                let is_news = match known {
                    Some(known) => known.join(&after),
                    None => {
                        *known = Some(after);
                        true
                    }
                };
                if is_news {
                    waiting.push(next);
                }
            }
        }
        states
    }

    /// Every command that can be reached can reach a Return, and none is followed by nothing.
    fn ends(&mut self, event: usize, states: &[Option<State>]) {
        let commands = &self.program.events[event].commands;
        let nexts: Vec<Vec<usize>> = states
            .iter()
            .enumerate()
            .map(|(place, state)| {
                state.as_ref().map_or_else(Vec::new, |state| {
                    successors(commands[place], place, state.test).collect()
                })
            })
            .collect();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); commands.len()];
        let mut off_the_end = Vec::new();
        for (place, nexts) in nexts.iter().enumerate() {
            for next in nexts {
                match before.get_mut(*next) {
                    Some(before) => before.push(place),
                    None => off_the_end.push(place),
                }
            }
        }
        for place in &off_the_end {
            self.report(
                Spot::Command { event, command: *place },
                "the event goes on after its last command",
                "end this path with Return",
            );
        }
        let mut can_end = vec![false; commands.len()];
        let mut waiting: Vec<usize> = (0..commands.len())
            .filter(|place| matches!(commands[*place], Command::Return { .. }))
            .chain(off_the_end)
            .collect();
        while let Some(place) = waiting.pop() {
            if !std::mem::replace(&mut can_end[place], true) {
                waiting.extend(&before[place]);
            }
        }
        let stuck = (0..commands.len()).find(|place| states[*place].is_some() && !can_end[*place]);
        if let Some(place) = stuck {
            self.report(
                Spot::Command { event, command: place },
                "no path from here comes to a Return",
                "leave the loop on a test that can be false",
            );
        }
    }

    /// Pages and queue references, as they are used.
    fn uses(&mut self, event: usize, place: usize, command: Command, state: &State) {
        let spot = Spot::Command { event, command: place };
        for (operand, role) in roles(command) {
            let was = state.operands[usize::from(operand.0)];
            let name = self.name(operand);
            match role {
                Role::ReadPage if matches!(command, Command::Has { .. }) => {}
                Role::ReadPage if was == NONE => self.report(
                    spot,
                    format!("`{name}` holds no page here, on any path"),
                    "set it before, with DeQueue, FindPA or Copy",
                ),
                Role::ReadPage if was == GIVEN_UP => self.report(
                    spot,
                    format!("`{name}` was given up before, on every path"),
                    "give a page up last, and once",
                ),
                Role::WritePage if is_forgotten(was) => self.report(
                    spot,
                    format!("the page in `{name}` is on no queue, and would be lost"),
                    "EnQueue or Release it before",
                ),
                Role::Queue
                    if was == NONE && self.program.kind(operand) == Some(Kind::QueueRef) =>
                {
                    self.report(
                        spot,
                        format!("`{name}` refers to no queue here, on any path"),
                        "Pick one before",
                    );
                }
                _ => {}
            }
        }
        if let Command::Return { page: returned } = command
            && self.program.events[event].number.system_name().is_some()
        {
            let gives_up = self.program.events[event].number == EventNumber::REPLACE;
            for (index, was) in (0..=u8::MAX).map(Index).zip(&state.operands) {
                if is_forgotten(*was) && !(gives_up && returned == Some(index)) {
                    let name = self.name(index);
                    self.report(
                        spot,
                        format!("the page in `{name}` is on no queue, and would be lost"),
                        "EnQueue or Release it before the event ends",
                    );
                }
            }
        }
    }
}

fn successors(command: Command, place: usize, test: bool) -> impl Iterator<Item = usize> {
    let (jump, goes_on) = match command {
        Command::Return { .. } => (None, false),
        // A test that cannot have been true since the last Jump leaves one way only.
        Command::Jump { to } => (Some(usize::from(to) - 1), test),
        _ => (None, true),
    };
    jump.into_iter().chain(goes_on.then_some(place + 1))
}

/// What an operand may hold: a set of these.
type Holds = u8;
/// Nothing.
const NONE: Holds = 1;
/// A page just taken off a queue, or nothing if that was empty.
const TAKEN: Holds = 2;
/// A page or queue of which no more is known.
const SOMETHING: Holds = 4;
/// Nothing, because the page was given up.
const GIVEN_UP: Holds = 8;

fn is_forgotten(holds: Holds) -> bool {
    holds == TAKEN
}

/// What may be before a command.
#[derive(Clone, PartialEq, Eq, Debug)]
struct State {
    /// Whether a Jump may go on to the next command.
    test: bool,
    /// The page that the command before asked for with Has, on every path.
    has: Option<Index>,
    operands: Vec<Holds>,
}

impl State {
    fn at_entry(program: &Program, event: EventNumber) -> Self {
        let mut operands = vec![0; 256];
        for (place, operand) in program.operands.iter().enumerate() {
            operands[usize::from(Index::declared(place).0)] = match operand.kind {
                // Called events get what their callers leave, and two others can be called, too.
                Kind::Page | Kind::QueueRef if is_called(program, event) => NONE | SOMETHING,
                Kind::Page | Kind::QueueRef => NONE,
                Kind::System(System::FaultedPage) if event == EventNumber::REPLACE => {
                    if is_called(program, event) { NONE | SOMETHING } else { NONE }
                }
                Kind::System(System::FaultedPage) => SOMETHING,
                _ => 0,
            };
        }
        Self { test: false, has: None, operands }
    }

    /// Adds what may be on another path; whether that is news.
    fn join(&mut self, other: &State) -> bool {
        let mut is_news = other.test && !self.test;
        self.test |= other.test;
        if self.has.is_some() && self.has != other.has {
            self.has = None;
            is_news = true;
        }
        for (holds, more) in self.operands.iter_mut().zip(&other.operands) {
            is_news |= more & !*holds != 0;
            *holds |= more;
        }
        is_news
    }

    fn run(&mut self, program: &Program, command: Command) {
        if command.is_test() {
            self.test = true;
        }
        self.has = match command {
            Command::Has { page } if program.kind(page) == Some(Kind::Page) => Some(page),
            _ => None,
        };
        let mut set = |index: Index, holds| self.operands[usize::from(index.0)] = holds;
        match command {
            Command::Jump { .. } => self.test = false,
            Command::DeQueue { page, .. } => set(page, TAKEN),
            Command::FindPA { page, .. } => set(page, NONE | SOMETHING),
            Command::Copy { target, source } => {
                set(target, NONE | SOMETHING);
                // Either may put it on a queue now. What the system tells stays what it is.
                if program.kind(source) == Some(Kind::Page) {
                    set(source, NONE | SOMETHING);
                }
            }
            Command::EnQueue { page, .. } => set(page, SOMETHING),
            Command::Release { page } if program.kind(page) == Some(Kind::Page) => {
                set(page, GIVEN_UP);
            }
            Command::Pick { queue, .. } => set(queue, SOMETHING),
            Command::Call { .. } => {
                self.test = false;
                for (place, operand) in program.operands.iter().enumerate() {
                    if matches!(operand.kind, Kind::Page | Kind::QueueRef) {
                        set(Index::declared(place), NONE | SOMETHING);
                    }
                }
            }
            _ => {}
        }
    }
}

fn is_called(program: &Program, event: EventNumber) -> bool {
    event.system_name().is_none()
        || program
            .events
            .iter()
            .flat_map(|it| &it.commands)
            .any(|command| *command == Command::Call { event })
}
