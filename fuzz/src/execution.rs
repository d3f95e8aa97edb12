//! Verified programs that run: made from bytes, mended until the verifier lets them, and told a
//! string of events. They keep the policy's contract and their budget, and lose no page, by a table
//! of frames kept here; and compiled they decide, and count, as interpreted.

use arbitrary::{Result, Unstructured};
use pagekeeper_hipec::asm::assemble;
use pagekeeper_hipec::compile::Execution;
use pagekeeper_hipec::interpret::HINTS_MAX;
use pagekeeper_hipec::load::form_of;
use pagekeeper_hipec::policy::{BUDGET_COMMANDS, BUDGET_COMMANDS_PER_FRAME, PAGE_FAULT_WAITS_MAX};
use pagekeeper_hipec::program::{
    Event, EventNumber, Kind, Operand, PAGE_SLOTS, PRESET_OPERANDS, Relation, System,
};
use pagekeeper_hipec::source::compile;
use pagekeeper_hipec::verify::{Spot, Verified, verify};
use pagekeeper_hipec::{Command, Form, HipecPolicy, Index, Program};
use pagekeeper_policy::{Admission, Page, Place, Policy, Segment, Visible};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// Page numbers that events are about.
const PAGES: u8 = 40;
/// Most frames of a pool.
const FRAMES_MAX: u8 = 12;
/// Most events that a program is told.
const CALLS_MAX: usize = 1024;
/// Rounds of mending.
const MENDINGS_MAX: usize = 48;

/// Programs that some inputs begin with. Inputs name them by number, so new ones go last.
pub(crate) const EXAMPLES: &[&str] = &[
    include_str!("../../policies/fifo.hipec"),
    include_str!("../../policies/lru.hipec"),
    include_str!("../../policies/mru.hipec"),
    include_str!("../../policies/lru-2.hipec"),
    include_str!("../../policies/mpfifo2.hipec"),
    include_str!("../../policies/btree-levels.hipec"),
    include_str!("../../policies/scan-resistant.hipec"),
    include_str!("../../policies/second-chance.hipec"),
    include_str!("../../crates/hipec/tests/source/constructs.hipec"),
    include_str!("../../crates/hipec/tests/policies/clock.asm"),
    include_str!("../../crates/hipec/tests/policies/fifo2.asm"),
    include_str!("../../crates/hipec/tests/policies/lru2.asm"),
];

static PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(|| {
    let program = |text: &&str| {
        if form_of(text.as_bytes()) == Form::Assembler {
            assemble(text).expect("an example").program
        } else {
            compile(text).expect("an example").program
        }
    };
    EXAMPLES.iter().map(program).collect()
});

/// Makes a program of bytes, and runs it.
pub fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok(program) = program(&mut input) else { return };
    let Some(verified) = mended(program) else { return };
    events(&Arc::new(verified), &mut input);
}

/// An example with some commands changed, or a program of drawn commands.
fn program(input: &mut Unstructured<'_>) -> Result<Program> {
    let which = usize::from(input.arbitrary::<u8>()?);
    let Some(example) = PROGRAMS.get(which % (PROGRAMS.len() * 2)) else {
        return made(input);
    };
    let mut program = example.clone();
    for _ in 0..input.arbitrary::<u8>()? % 8 {
        let events = program.events.len();
        let event = usize::from(input.arbitrary::<u8>()?) % events;
        let commands = program.events[event].commands.len();
        let place = usize::from(input.arbitrary::<u8>()?) % commands;
        program.events[event].commands[place] = command(input, &program, commands)?;
    }
    Ok(program)
}

fn made(input: &mut Unstructured<'_>) -> Result<Program> {
    let mut program = Program::default();
    for place in 0..4 + input.arbitrary::<u8>()? % 16 {
        let kind = kind(input)?;
        let name = match kind {
            Kind::System(system) => system.name().to_owned(),
            _ => format!("o{place}"),
        };
        if program.find(&name).is_none() {
            program.operands.push(Operand { name, kind });
        }
    }
    let events: u8 = input.arbitrary()?;
    let numbers = [1, 2, 3, 4, 5, 0xFE, 0xFF].into_iter().enumerate();
    let numbers = numbers.filter(|(place, _)| *place < 2 || events >> place & 1 != 0);
    for (_, number) in numbers {
        let number = EventNumber(number);
        let name = number.system_name().map_or_else(|| format!("e{}", number.0), str::to_owned);
        let len = usize::from(input.arbitrary::<u8>()? % 24);
        let mut commands = Vec::with_capacity(len + 1);
        for _ in 0..len {
            commands.push(command(input, &program, len + 1)?);
        }
        commands.push(Command::Return { page: None });
        program.events.push(Event { number, name, commands });
    }
    Ok(program)
}

fn kind(input: &mut Unstructured<'_>) -> Result<Kind> {
    Ok(match input.arbitrary::<u8>()? % 16 {
        0..4 => Kind::Int { initial: i32::from(input.arbitrary::<i8>()?) },
        4 => Kind::Int { initial: input.arbitrary()? },
        5..8 => Kind::Page,
        8..10 => Kind::Queue,
        10 => Kind::Queues { len: 1 + u16::from(input.arbitrary::<u8>()? % 32) },
        11 => Kind::Ordered { slot: input.arbitrary::<u8>()? % PAGE_SLOTS },
        12 => Kind::QueueRef,
        13 => Kind::System(System::FaultedPage),
        _ => Kind::System(System::ALL[usize::from(input.arbitrary::<u8>()?) % System::ALL.len()]),
    })
}

/// What a byte of a command's word is drawn from.
#[derive(Clone, Copy)]
enum Byte {
    Unused,
    Int,
    Number,
    Page,
    AnyPage,
    Queue,
    QueueRef,
    Queues,
    OneOf(&'static [u8]),
    Called,
    Word,
}

/// Every command, those that move pages more than once.
const SHAPES: &[(u8, [Byte; 3])] = {
    use Byte::{AnyPage, Called, Int, Number, OneOf, Page, Queue, QueueRef, Queues, Unused, Word};
    const ENDS: Byte = OneOf(&[1, 2]);
    const SLOTS: Byte = OneOf(&[0, 1, 7]);
    &[
        (0x00, [Unused, Unused, Unused]),
        (0x00, [AnyPage, Unused, Unused]),
        (0x01, [Int, Number, OneOf(&[1, 2, 3, 4, 7, 8])]),
        (0x01, [Int, Unused, OneOf(&[5, 6])]),
        (0x02, [Number, Number, OneOf(&[1, 2, 3, 4, 5, 6])]),
        (0x02, [Number, Number, OneOf(&[1, 2, 3, 4, 5, 6])]),
        (0x03, [Number, Number, OneOf(&[1, 2, 4])]),
        (0x03, [Number, Unused, OneOf(&[3])]),
        (0x04, [Queue, Unused, Unused]),
        (0x05, [AnyPage, Queue, Unused]),
        (0x06, [Unused, Unused, Word]),
        (0x06, [Unused, Unused, Word]),
        (0x06, [Unused, Unused, Word]),
        (0x07, [Page, Queue, ENDS]),
        (0x07, [Page, Queue, ENDS]),
        (0x07, [Page, Queue, ENDS]),
        (0x08, [AnyPage, Queue, ENDS]),
        (0x08, [AnyPage, Queue, ENDS]),
        (0x08, [AnyPage, Queue, ENDS]),
        (0x09, [Number, Unused, Unused]),
        (0x0A, [AnyPage, Unused, Unused]),
        (0x0A, [AnyPage, Unused, Unused]),
        (0x0B, [AnyPage, Unused, Unused]),
        (0x0C, [AnyPage, OneOf(&[1, 2]), OneOf(&[1, 2])]),
        (0x0D, [AnyPage, Unused, Unused]),
        (0x0E, [AnyPage, Unused, Unused]),
        (0x0F, [Int, AnyPage, Unused]),
        (0x10, [Page, Number, Unused]),
        (0x11, [AnyPage, Number, Unused]),
        (0x12, [AnyPage, Unused, Unused]),
        (0x13, [Called, Unused, Unused]),
        (0x20, [QueueRef, Queues, Number]),
        (0x21, [Int, Queue, Unused]),
        (0x22, [Int, AnyPage, SLOTS]),
        (0x23, [AnyPage, SLOTS, Number]),
        (0x24, [Page, AnyPage, Unused]),
        (0x25, [AnyPage, Unused, Unused]),
        (0x26, [Number, Number, Unused]),
    ]
};

/// A command that fits the program's operands, for an event of so many words.
fn command(input: &mut Unstructured<'_>, program: &Program, words: usize) -> Result<Command> {
    let (opcode, shape) = SHAPES[usize::from(input.arbitrary::<u8>()?) % SHAPES.len()];
    let mut word = [opcode, 0, 0, 0];
    for (place, byte) in shape.into_iter().enumerate() {
        word[place + 1] = match byte {
            Byte::Unused => 0,
            Byte::OneOf(bytes) => bytes[usize::from(input.arbitrary::<u8>()?) % bytes.len()],
            Byte::Called => input.arbitrary::<u8>()? % 6,
            Byte::Word => 1 + input.arbitrary::<u8>()? % words.min(255) as u8,
            operand => {
                let fits =
                    |index: &Index| program.kind(*index).is_some_and(|it| holds(operand, it));
                let all = (0..(PRESET_OPERANDS + program.operands.len()) as u8).map(Index);
                let fitting: Vec<Index> = all.filter(fits).collect();
                let drawn: u8 = input.arbitrary()?;
                match fitting.len() {
                    0 => return Ok(HARMLESS),
                    len => fitting[usize::from(drawn) % len].0,
                }
            }
        };
    }
    Ok(Command::decode(u32::from_be_bytes(word)).unwrap_or(HARMLESS))
}

fn holds(byte: Byte, kind: Kind) -> bool {
    match byte {
        Byte::Int => matches!(kind, Kind::Int { .. }),
        Byte::Number => match kind {
            Kind::System(system) => system != System::FaultedPage,
            kind => matches!(kind, Kind::Int { .. }),
        },
        Byte::Page => kind == Kind::Page,
        Byte::AnyPage => matches!(kind, Kind::Page | Kind::System(System::FaultedPage)),
        Byte::Queue => matches!(kind, Kind::Queue | Kind::Ordered { .. } | Kind::QueueRef),
        Byte::QueueRef => kind == Kind::QueueRef,
        Byte::Queues => matches!(kind, Kind::Queues { .. }),
        Byte::Unused | Byte::OneOf(_) | Byte::Called | Byte::Word => false,
    }
}

/// A test, which can stand anywhere.
const HARMLESS: Command = Command::Comp {
    left: Index::FREE_COUNT,
    right: Index::FREE_COUNT,
    relation: Relation::Greater,
};

/// Takes out what the verifier finds, round after round.
fn mended(mut program: Program) -> Option<Verified> {
    for round in 0..MENDINGS_MAX {
        let findings = match verify(program.clone()) {
            Ok(verified) => return Some(verified),
            Err(findings) => findings,
        };
        for finding in findings {
            let Spot::Command { event, command } = finding.spot else { return None };
            let commands = &mut program.events[event].commands;
            match commands[command] {
                // A page would be forgotten here: none is taken off a queue, then.
                Command::Return { .. } if finding.problem.contains("would be lost") => {
                    for command in commands {
                        if matches!(command, Command::DeQueue { .. }) {
                            *command = HARMLESS;
                        }
                    }
                }
                Command::Return { .. } => commands[command] = Command::Return { page: None },
                _ if round > MENDINGS_MAX / 2 => commands[command] = Command::Return { page: None },
                _ => commands[command] = HARMLESS,
            }
        }
    }
    None
}

/// The program under test and its companion, with what must be of them.
struct Pool {
    policy: HipecPolicy,
    companion: HipecPolicy,
    /// Pages in frames.
    table: BTreeSet<Page>,
    frames: u32,
    victims: u64,
}

impl Pool {
    fn both<T: PartialEq + std::fmt::Debug>(
        &mut self,
        waits: u32,
        pages: usize,
        call: impl Fn(&mut HipecPolicy) -> T,
    ) -> T {
        let before = self.policy.counts();
        let was_revoked = self.policy.revoked().is_some();
        let answer = call(&mut self.policy);
        let again = call(&mut self.companion);
        assert_eq!(answer, again, "the companion decided otherwise");
        let after = self.policy.counts();
        assert_eq!(after, self.companion.counts(), "the companion did otherwise");
        let events = after.events - before.events;
        assert!(events <= u64::from(!was_revoked), "{events} events in a call");
        let pages = self.frames.max(pages as u32);
        let budget = BUDGET_COMMANDS + BUDGET_COMMANDS_PER_FRAME * u64::from(pages);
        let most = budget * u64::from(waits + 1);
        let commands = after.commands - before.commands;
        assert!(commands <= most, "{commands} commands in an event, at most {most} may be");
        assert!(after.waits - before.waits <= waits.into());
        answer
    }

    fn place(page: Page) -> Place {
        Place { segment: Segment(page.0 / 16), index: (page.0 % 16).into() }
    }

    fn admit(&mut self, page: Page, how: Admission) {
        while self.table.len() as u32 >= self.frames {
            self.evict(Some(page));
        }
        let pages = self.table.len();
        self.both(0, pages, |it| it.placed(page, Self::place(page)));
        self.both(PAGE_FAULT_WAITS_MAX, pages + 1, |it| it.admitted(page, how));
        self.table.insert(page);
    }

    fn evict(&mut self, incoming: Option<Page>) {
        let pages = self.table.len();
        let victim = self.both(0, pages, |it| it.victim(incoming));
        match victim {
            Some(page) => assert!(self.table.remove(&page), "{page:?} left and was in no frame"),
            None => assert!(self.table.is_empty(), "{pages} pages, and none may leave"),
        }
        self.victims += u64::from(victim.is_some());
        let counts = self.policy.counts();
        assert_eq!(counts.chosen + counts.passed_over, self.victims);
    }

    fn reference(&mut self, page: Page) {
        self.both(0, self.table.len(), |it| it.referenced(page));
    }

    fn remove(&mut self, page: Page) {
        self.both(0, self.table.len(), |it| it.removed(page));
        self.table.remove(&page);
    }

    fn look(&mut self) {
        let hints = self.both(0, self.table.len(), |it| {
            let mut hints = Vec::new();
            it.take_hints(&mut hints);
            hints
        });
        assert!(hints.len() <= HINTS_MAX);
        self.both(0, self.table.len(), HipecPolicy::take_notes);
        assert!(self.policy.gauges().iter().all(|gauge| gauge.value.is_finite()));
        assert_eq!(self.policy.revoked(), self.companion.revoked());
    }
}

fn events(verified: &Arc<Verified>, input: &mut Unstructured<'_>) {
    let frames = u32::from(1 + input.arbitrary::<u8>().unwrap_or(3) % FRAMES_MAX);
    let mut pool = Pool {
        // Compiled where there is a compiler for the host.
        policy: HipecPolicy::new(verified.clone(), frames),
        companion: HipecPolicy::with_execution(verified.clone(), frames, Execution::Interpreted)
            .expect("any host interprets"),
        table: BTreeSet::new(),
        frames,
        victims: 0,
    };
    for _ in 0..CALLS_MAX {
        let (Ok(what), Ok(page)) = (input.arbitrary::<u8>(), input.arbitrary::<u8>()) else {
            break;
        };
        let number = page;
        let page = Page((number % PAGES).into());
        let is_resident = pool.table.contains(&page);
        match what % 32 {
            0 if is_resident => pool.remove(page),
            1 => pool.evict(None),
            2 => {
                let frames = u32::from(1 + number % FRAMES_MAX);
                pool.both(0, pool.table.len(), |it| it.resized(frames));
                pool.frames = frames;
            }
            3 => pool.look(),
            4 if !is_resident => pool.admit(page, Admission::Prefetch),
            _ if is_resident => pool.reference(page),
            _ => pool.admit(page, Admission::Demand),
        }
        assert_eq!(pool.policy.resident() as usize, pool.table.len());
    }
    pool.look();
    while !pool.table.is_empty() {
        pool.evict(None);
    }
    pool.evict(None);
}
