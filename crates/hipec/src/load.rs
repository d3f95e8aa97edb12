//! A program from a file, in whichever of its forms, checked and ready to run.
use std::fmt;

use crate::asm::{AsmError, Assembly, assemble, disassemble};
use crate::program::{MAGIC, Program};
use crate::source::{Code, Diagnostic, check};
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

    /// Findings with their lines of the program's text, as far as they have any.
    fn refused(
        name: &str,
        text: &str,
        findings: &[Finding],
        line: impl Fn(Spot) -> Option<u32>,
    ) -> Self {
        let message = |finding: &Finding| match line(finding.spot) {
            Some(line) => {
                let problem = format!("{}: {}", finding.place, finding.problem);
                at_line(Code::Unverified, line, problem, &finding.remedy, name, text)
            }
            None => format!("{name}: {finding}"),
        };
        Self { messages: findings.iter().map(message).collect() }
    }
}

/// A mistake shown at a line of commands.
fn at_line(code: Code, line: u32, problem: String, remedy: &str, name: &str, text: &str) -> String {
    let mut start = 0;
    let mut lines = text.split_inclusive('\n');
    for before in lines.by_ref().take(line as usize - 1) {
        start += before.len();
    }
    let words = lines.next().unwrap_or_default().split(';').next().unwrap_or_default();
    start += words.len() - words.trim_start().len();
    let span = start..start + words.trim().len();
    Diagnostic::new(code, span, problem).help(remedy).render(name, text)
}

/// The line of each spot of an assembled program.
fn line_of(assembly: &Assembly, spot: Spot) -> Option<u32> {
    match spot {
        Spot::Operand(operand) => assembly.operand_lines.get(operand).copied(),
        Spot::Command { event, command } => {
            assembly.command_lines.get(event)?.get(command).copied()
        }
        Spot::Program | Spot::Event(_) => None,
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
            verify(program.clone()).map_err(|findings| {
                // What was compiled is shown command by command, if it can be written so at all.
                let text = disassemble(&program);
                let assembly = assemble(&text).ok();
                let line = |spot| assembly.as_ref().and_then(|it| line_of(it, spot));
                LoadError::refused(&format!("{name} (disassembled)"), &text, &findings, line)
            })
        }
        Form::Assembler => {
            let text = text()?;
            let assembly = assemble(text).map_err(|error| {
                let AsmError { line, problem, remedy } = error;
                LoadError::one(at_line(Code::Syntax, line, problem, &remedy, name, text))
            })?;
            verify(assembly.program.clone()).map_err(|findings| {
                LoadError::refused(name, text, &findings, |spot| line_of(&assembly, spot))
            })
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
