//! A program's text form, from any text: read or refused at a line; what is read is written as
//! text that says the same, and has a binary form.

use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::{Program, load, verify};

/// Reads bytes, as far as they are text, as a program's lines.
pub fn run(bytes: &[u8]) {
    let _ = load("input", bytes);
    let text = String::from_utf8_lossy(bytes);
    let assembly = match assemble(&text) {
        Ok(assembly) => assembly,
        Err(error) => {
            let lines = text.lines().count().max(1) as u32;
            assert!((1..=lines).contains(&error.line), "{error}, of {lines} lines");
            return;
        }
    };
    let program = &assembly.program;
    assert_eq!(assembly.operand_lines.len(), program.operands.len());
    assert_eq!(assembly.command_lines.len(), program.events.len());
    for (lines, event) in assembly.command_lines.iter().zip(&program.events) {
        assert_eq!(lines.len(), event.commands.len());
        assert!(lines.is_sorted());
    }
    same_in_every_form(program);
    let _ = verify(program.clone());
}

/// A program that can be said is the same in text and binary.
pub(crate) fn same_in_every_form(program: &Program) {
    let written = disassemble(program);
    let again = assemble(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(&again.program, program, "{written}");
    let bytes = program.encode().unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(Program::decode(&bytes).as_ref(), Ok(program), "{written}");
}
