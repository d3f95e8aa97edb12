//! Any program: what tests of all programs draw from.
use std::sync::Arc;

use pagekeeper_hipec::asm::assemble;
use pagekeeper_hipec::program::{Event, PAGE_SLOTS, Relation};
use pagekeeper_hipec::verify::Spot;
use pagekeeper_hipec::{Command, EventNumber, Index, Program, Verified, verify};
use proptest::prelude::*;

/// Operands of every kind; commands are drawn to fit them.
const INIT: &str = "hipec 1
event Init
    Int a = 3
    Int b = -1
    Int c
    Page p
    Page q
    Queue one
    Queue two
    Ordered by[0]
    Queues many[3]
    QueueRef which
    System FaultedPage
    System FaultedAddress
    System Now
";

/// Weighted choices of an operand by the names above.
fn operand(names: &'static [&'static str]) -> impl Strategy<Value = Index> {
    let program = assemble(INIT).unwrap().program;
    prop::sample::select(names).prop_map(move |name| program.find(name).unwrap())
}

const INTS: &[&str] = &["a", "b", "c", "_free_count"];
const NUMBERS: &[&str] = &["a", "b", "c", "FaultedAddress", "Now"];
const PAGES: &[&str] = &["p", "q"];
const ANY_PAGES: &[&str] = &["p", "p", "q", "FaultedPage"];
const QUEUES: &[&str] = &["one", "one", "one", "two", "by", "which", "_free_queue"];

/// A command of which the bytes that are no operands are as drawn.
fn command() -> impl Strategy<Value = Command> {
    let selector = 1..9_u8;
    let queues = || operand(QUEUES);
    let word = |opcode: u8, a: u8, b: u8, c: u8| {
        Command::decode(u32::from_be_bytes([opcode, a, b, c])).ok()
    };
    prop_oneof![
        1 => (operand(INTS), operand(NUMBERS), selector.clone())
            .prop_map(move |(a, b, c)| word(1, a.0, if matches!(c, 5 | 6) { 0 } else { b.0 }, c)),
        2 => (operand(NUMBERS), operand(NUMBERS), selector.clone())
            .prop_map(move |(a, b, c)| word(2, a.0, b.0, c)),
        1 => (operand(NUMBERS), operand(NUMBERS), selector)
            .prop_map(move |(a, b, c)| word(3, a.0, if c == 3 { 0 } else { b.0 }, c)),
        1 => queues().prop_map(|queue| Some(Command::EmptQ { queue })),
        1 => (operand(ANY_PAGES), queues())
            .prop_map(|(page, queue)| Some(Command::InQ { page, queue })),
        4 => (1..12_u16).prop_map(|to| Some(Command::Jump { to })),
        4 => (operand(PAGES), queues(), 1..3_u8)
            .prop_map(move |(a, b, c)| word(7, a.0, b.0, c)),
        6 => (operand(ANY_PAGES), queues(), 1..3_u8)
            .prop_map(move |(a, b, c)| word(8, a.0, b.0, c)),
        1 => operand(NUMBERS).prop_map(|frames| Some(Command::Request { frames })),
        2 => operand(ANY_PAGES).prop_map(|page| Some(Command::Release { page })),
        1 => (operand(ANY_PAGES), 0xB..0xF_u8, 1..3_u8, 1..3_u8).prop_map(
            move |(page, opcode, b, c)| {
                if opcode == 0xC { word(opcode, page.0, b, c) } else { word(opcode, page.0, 0, 0) }
            }
        ),
        1 => (operand(INTS), operand(ANY_PAGES))
            .prop_map(|(address, page)| Some(Command::FindVA { address, page })),
        1 => (operand(PAGES), operand(NUMBERS))
            .prop_map(|(page, address)| Some(Command::FindPA { page, address })),
        1 => (operand(ANY_PAGES), operand(NUMBERS))
            .prop_map(|(page, address)| Some(Command::Map { page, address })),
        1 => operand(ANY_PAGES).prop_map(|page| Some(Command::UnMap { page })),
        1 => (2..6_u8).prop_map(|event| Some(Command::Call { event: EventNumber(event) })),
        1 => (operand(&["which"]), operand(&["many"]), operand(NUMBERS))
            .prop_map(|(queue, array, at)| Some(Command::Pick { queue, array, at })),
        1 => (operand(INTS), queues()).prop_map(|(count, queue)| Some(Command::Count { count, queue })),
        1 => (operand(INTS), operand(ANY_PAGES), 0..PAGE_SLOTS)
            .prop_map(|(target, page, slot)| Some(Command::Load { target, page, slot })),
        2 => (operand(ANY_PAGES), operand(NUMBERS))
            .prop_map(|(page, source)| Some(Command::Store { page, slot: 0, source })),
        1 => (operand(PAGES), operand(ANY_PAGES))
            .prop_map(|(target, source)| Some(Command::Copy { target, source })),
        1 => operand(ANY_PAGES).prop_map(|page| Some(Command::Has { page })),
        1 => (operand(NUMBERS), operand(NUMBERS))
            .prop_map(|(address, pages)| Some(Command::Prefetch { address, pages })),
        1 => prop::option::of(operand(ANY_PAGES)).prop_map(|page| Some(Command::Return { page })),
    ]
    .prop_filter_map("no such selector", |command| command)
}

fn event(number: u8, name: &'static str) -> impl Strategy<Value = Event> {
    prop::collection::vec(command(), 0..12).prop_map(move |mut commands| {
        commands.push(Command::Return { page: None });
        let last = commands.len() as u16;
        for command in &mut commands {
            match command {
                Command::Jump { to } => *to = (*to).min(last),
                // Later events only, so that none calls itself.
                Command::Call { event } if event.0 <= number.max(2) || number > 5 => {
                    *command = Command::Return { page: None };
                }
                _ => {}
            }
        }
        Event { number: EventNumber(number), name: name.to_owned(), commands }
    })
}

/// A program that is well-formed, and may not be verified.
pub(crate) fn any() -> impl Strategy<Value = Program> {
    (
        event(1, "PageFault"),
        event(2, "Replace"),
        event(3, "three"),
        event(4, "four"),
        event(5, "five"),
        prop::option::of(event(0xFD, "Sample")),
        prop::option::of(event(0xFE, "Reference")),
        prop::option::of(event(0xFF, "Removed")),
    )
        .prop_map(|(fault, replace, three, four, five, sample, reference, removed)| {
            let mut program = assemble(INIT).unwrap().program;
            program.events = [Some(fault), Some(replace), Some(three), Some(four), Some(five)]
                .into_iter()
                .chain([sample, reference, removed])
                .flatten()
                .collect();
            program
        })
}

/// Mends what the verifier finds, so that most drawn programs run: a command in a finding becomes
/// a plain test, which does no harm anywhere.
pub(crate) fn mended(mut program: Program) -> Option<Arc<Verified>> {
    for _ in 0..40 {
        let findings = match verify(program.clone()) {
            Ok(verified) => return Some(Arc::new(verified)),
            Err(findings) => findings,
        };
        for finding in findings {
            let Spot::Command { event, command } = finding.spot else {
                panic!("{finding}");
            };
            let end = program.events[event].commands.len() as u16;
            let command = &mut program.events[event].commands[command];
            *command = match command {
                // Whatever is forgotten here goes to a queue in place of being lost: the event
                // is given up as a whole.
                Command::Return { .. } => return None,
                Command::Jump { .. } => Command::Jump { to: end },
                _ => Command::Comp { left: Index(2), right: Index(3), relation: Relation::Greater },
            };
        }
    }
    None
}
