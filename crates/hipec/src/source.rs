//! The C-like language of the paper's Figures 3 and 9, compiled to commands.
//!
//! After P. C. H. Lee, R. C. Chang, M. C. Chen: *HiPEC*, 1997, "Pseudo-code translator". The
//! language is described in `docs/hipec-language.md`, a way into it in `docs/hipec-tutorial.md`.
mod commands;
mod depth;
mod diagnostic;
mod generate;
mod names;
mod parse;
mod token;
mod tree;

use crate::verify::{Verified, verify};

pub use diagnostic::{Code, Diagnostic};
pub use generate::Compiled;

/// Compiles a program's text. The result is well-formed, and not yet verified.
///
/// # Errors
/// All mistakes that were found, in the order of the text. Mistakes of form are told alone: what
/// names and types mean is looked at when the form is right.
pub fn compile(text: &str) -> Result<Compiled, Vec<Diagnostic>> {
    let items = parse::parse(text)?;
    generate::generate(&items, text.len())
}

/// Compiles a program's text, and verifies what comes of it.
///
/// # Errors
/// As of [`compile`]; if there are none, all that keeps the program from running, at the part of
/// the text that it comes from.
pub fn check(text: &str) -> Result<Verified, Vec<Diagnostic>> {
    let compiled = compile(text)?;
    verify(compiled.program.clone()).map_err(|findings| {
        let mut errors: Vec<_> = findings
            .into_iter()
            .map(|finding| {
                let span = compiled.span(finding.spot);
                Diagnostic::new(Code::Unverified, span, finding.problem).help(finding.remedy)
            })
            .collect();
        errors.sort_by_key(|error| error.span.start);
        errors.dedup();
        errors
    })
}
