//! The binary form and the text form, each way.
use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::program::{Arithmetic, COMMANDS_MAX, Kind, MAGIC, Relation, WordError};
use pagekeeper_hipec::{Command, EventNumber, Index, Program};
use proptest::prelude::*;

const SECOND_CHANCE: &str = "\
hipec 1

event Init
    Queue    active
    Int      minus_two = -2
    Page     page
    Queues   level[26]
    Ordered  by_time[7]
    QueueRef which
    System   FaultedPage

event PageFault
    EnQueue  FaultedPage, active, TAIL
    Call     make_room
    Return

event Replace
w1:
    DeQueue  page, active, HEAD
    Ref      page
    Jump     w6
    Set      page, REFERENCE, RESET
    EnQueue  page, active, TAIL
    Jump     w1
w6:
    Return   page

event 3 make_room
    Arith    _free_count++
    Arith    _free_count %= minus_two
    Logic    ! minus_two
    Load     _free_count, page, 7
    Store    page, 7, minus_two
    Return

event Removed
    Return
";

#[test]
fn text_is_read_and_written() {
    let assembly = assemble(SECOND_CHANCE).unwrap();
    let program = &assembly.program;
    assert_eq!(program.kind(Index(3)), Some(Kind::Int { initial: -2 }));
    assert_eq!(program.find("which"), Some(Index(7)));
    let called = program.event(EventNumber(3)).unwrap();
    assert_eq!(called.name, "make_room");
    let replace = program.event(EventNumber::REPLACE).unwrap();
    // Words count from the magic one: the label before the last command is word 7.
    assert_eq!(replace.commands[2], Command::Jump { to: 7 });
    assert_eq!(assembly.command_lines[1][0], 19);
    assert_eq!(assembly.operand_lines[0], 4);
    let again = assemble(&disassemble(program)).unwrap().program;
    assert_eq!(&again, program);
    assert_eq!(Program::decode(&program.encode().unwrap()).unwrap(), again);
}

/// Words of Figure 3, whose meaning its pseudo-code gives.
#[test]
fn words_are_figure_3s() {
    let arith = |target, source, operation| Command::Arith {
        target: Index(target),
        source: Index(source),
        operation,
    };
    for (word, command) in [
        (0x0109_0005_u32, arith(9, 0, Arithmetic::Increment)),
        (0x0103_0006, arith(3, 0, Arithmetic::Decrement)),
        (0x0108_0A07, arith(8, 10, Arithmetic::Assign)),
        (0x010A_0B03, arith(10, 11, Arithmetic::Multiply)),
        (0x010A_0C04, arith(10, 12, Arithmetic::Divide)),
        (0x0205_0802, Command::Comp { left: Index(5), right: Index(8), relation: Relation::Less }),
        (0x0600_000E, Command::Jump { to: 14 }),
    ] {
        assert_eq!(Command::decode(word), Ok(command), "{word:08X}");
        assert_eq!(command.encode(), word);
    }
    assert_eq!(Command::decode(0x1400_0000), Err(WordError::Opcode(0x14)));
    assert_eq!(Command::decode(0x0709_0003), Err(WordError::Selector { selector: 3, most: 2 }));
    assert_eq!(Command::decode(0x0103_0106), Err(WordError::Unused));
    let program = assemble("hipec 1\nevent Init\n Queue active_queue\n Int target = 8").unwrap();
    assert_eq!(program.program.init_words(), [MAGIC, 0x0202_0000, 0x0301_0000, 8]);
}

#[test]
fn a_wrong_line_is_named_with_a_remedy() {
    for (text, message) in [
        ("event Init", "line 1: a program begins with `hipec 1`; write that as its first line"),
        ("hipec 2", "line 1: there is no version `2` of the language here; write `hipec 1`"),
        (
            "hipec 1\nevent Init\nQueue q\nevent Replace\n  DeQueue page, q, HEAD",
            "line 5: there is no operand `page`; declare it in event Init, which comes first",
        ),
        (
            "hipec 1\nevent Init\nevent Replace\n  Jump on\n  Return",
            "line 4: the event has no label `on`; write `on:` on a line before a command of this \
             event",
        ),
        // It was told at the line of the event after it, which has the label in reach.
        (
            "hipec 1\nevent Init\nevent Replace\n  Jump on\n  Return\nevent PageFault\non:",
            "line 4: the event has no label `on`; write `on:` on a line before a command of this \
             event",
        ),
        (
            "hipec 1\nevent Init\n Int a = 3000000000",
            "line 3: `3000000000` is no initial value; write a number of 32 bits, as in `Int two \
             = 2`",
        ),
    ] {
        assert_eq!(assemble(text).unwrap_err().to_string(), message);
    }
}

/// The label behind the last of as many commands as fit was counted in two bytes, and so was the
/// number of events, which the verifier compares with each other, not bounded.
#[test]
fn the_largest_programs_are_read_and_written() {
    let mut program = assemble(SECOND_CHANCE).unwrap().program;
    let last = COMMANDS_MAX - 1;
    program.events[0].commands = vec![Command::Jump { to: u16::MAX }; COMMANDS_MAX];
    program.events[0].commands[last] = Command::Return { page: None };
    assert_eq!(assemble(&disassemble(&program)).unwrap().program, program);
    assert_eq!(Program::decode(&program.encode().unwrap()).unwrap(), program);
    let again = program.events[3].clone();
    program.events.extend(vec![again; 256]);
    let error = Program::decode(&program.encode().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "261 events are declared, and at most 256 can be");
}

fn words() -> impl Strategy<Value = u32> {
    let opcode = prop_oneof![0..0x14_u8, 0x20..0x28_u8];
    (opcode, 0..10_u8, 0..10_u8, 0..10_u8)
        .prop_map(|(opcode, a, b, c)| u32::from_be_bytes([opcode, a, b, c]))
}

proptest! {
    /// A word and its command are one to one.
    #[test]
    fn a_decoded_word_encodes_to_itself(word in prop_oneof![words(), any::<u32>()]) {
        if let Ok(command) = Command::decode(word) {
            prop_assert_eq!(command.encode(), word);
        }
    }

    /// Any commands on existing operands keep their meaning in either form.
    #[test]
    fn either_form_is_read_back(words in prop::collection::vec(words(), 0..60)) {
        let mut program = assemble(SECOND_CHANCE).unwrap().program;
        let end = words.len() as u16 + 1;
        let is_said = |command: &Command| match command {
            Command::Jump { to } => (1..=end).contains(to),
            Command::Call { event } => event.0 == 3,
            Command::Return { page } => page.is_none_or(|page| page.0 < 9),
            command => command.encode().to_be_bytes()[1..].iter().all(|byte| *byte < 9),
        };
        program.events[0].commands =
            words.into_iter().filter_map(|word| Command::decode(word).ok()).filter(is_said).collect();
        let end = program.events[0].commands.len() as u16 + 1;
        for command in &mut program.events[0].commands {
            if let Command::Jump { to } = command {
                *to = (*to).min(end);
            }
        }
        prop_assert_eq!(&Program::decode(&program.encode().unwrap()).unwrap(), &program);
        prop_assert_eq!(&assemble(&disassemble(&program)).unwrap().program, &program);
    }

    /// Bytes from anywhere are read or refused, never more.
    #[test]
    fn damaged_bytes_are_refused_or_read(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let program = assemble(SECOND_CHANCE).unwrap().program;
        let mut bytes = program.encode().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = Program::decode(&bytes) {
            prop_assert_eq!(&other.encode().unwrap(), &bytes);
        }
        prop_assert!(Program::decode(&bytes[..at]).is_err());
    }

    /// So are lines.
    #[test]
    fn any_text_is_read_or_refused(lines in prop::collection::vec("[ -~]{0,30}", 0..8)) {
        let _ = assemble(&lines.join("\n"));
        let _ = assemble(&format!("{SECOND_CHANCE}{}", lines.join("\n")));
    }
}
