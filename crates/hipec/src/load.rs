//! A program from a file, in whichever of its forms, checked and ready to run.
use std::fmt;

use crate::asm::assemble;
use crate::program::{MAGIC, Program};
use crate::source::check;
use crate::verify::{Finding, Spot, Verified, verify};

/// How a program is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The C-like language, [`source`](crate::source).
    Source,
    /// Command by command, [`asm`](mod@crate::asm): its first line is `hipec 1`.
    Assembler,
    /// The binary form of [`program`](crate::program): it begins with `HiPE`.
    Binary,
}

/// Why a program cannot run: one or more messages for people, each with its place and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadError {
    messages: Vec<String>,
}

impl LoadError {
    fn one(message: impl fmt::Display) -> Self {
        Self { messages: vec![message.to_string()] }
    }

    fn refused(name: &str, findings: &[Finding], line: impl Fn(Spot) -> Option<u32>) -> Self {
        let message = |finding: &Finding| match line(finding.spot) {
            Some(line) => format!("{name}, line {line}: {finding}"),
            None => format!("{name}: {finding}"),
        };
        Self { messages: findings.iter().map(message).collect() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.messages.join("\n"))
    }
}

impl std::error::Error for LoadError {}

/// Which form `bytes` are in, as far as their beginning tells.
pub fn form_of(bytes: &[u8]) -> Form {
    if bytes.starts_with(&MAGIC.to_be_bytes()) {
        return Form::Binary;
    }
    let mut lines = bytes
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b";"));
    match lines.next() {
        Some(line) if line.starts_with(b"hipec ") => Form::Assembler,
        _ => Form::Source,
    }
}

/// Reads and verifies a program. `name` is what messages call it.
///
/// # Errors
/// All that keeps it from running.
pub fn load(name: &str, bytes: &[u8]) -> Result<(Verified, Form), LoadError> {
    let form = form_of(bytes);
    let text = || {
        std::str::from_utf8(bytes)
            .map_err(|_| LoadError::one(format!("{name}: this is neither a program nor text")))
    };
    let verified = match form {
        Form::Binary => {
            let program = Program::decode(bytes)
                .map_err(|error| LoadError::one(format!("{name}: {error}")))?;
            verify(program).map_err(|findings| LoadError::refused(name, &findings, |_| None))
        }
        Form::Assembler => {
            let assembly =
                assemble(text()?).map_err(|error| LoadError::one(format!("{name}, {error}")))?;
            let line = |spot| match spot {
                Spot::Operand(operand) => assembly.operand_lines.get(operand).copied(),
                Spot::Command { event, command } => {
                    assembly.command_lines.get(event)?.get(command).copied()
                }
                Spot::Program | Spot::Event(_) => None,
            };
            verify(assembly.program.clone())
                .map_err(|findings| LoadError::refused(name, &findings, line))
        }
        Form::Source => {
            let text = text()?;
            check(text).map_err(|errors| LoadError {
                messages: errors.iter().map(|error| error.render(name, text)).collect(),
            })
        }
    };
    verified.map(|verified| (verified, form))
}
