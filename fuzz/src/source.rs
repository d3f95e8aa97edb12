//! The C-like language, from any text: a program, or mistakes that can be shown at their place.

use crate::assembler::same_in_every_form;
use pagekeeper_hipec::source::{check, compile};
use pagekeeper_hipec::verify;

/// Compiles bytes, as far as they are text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match compile(&text) {
        Ok(compiled) => {
            let program = &compiled.program;
            same_in_every_form(program);
            assert_eq!(compiled.operand_spans.len(), program.operands.len());
            assert_eq!(compiled.event_spans.len(), program.events.len());
            for (spans, event) in compiled.command_spans.iter().zip(&program.events) {
                assert_eq!(spans.len(), event.commands.len());
            }
            let spans = compiled.command_spans.iter().flatten();
            for span in spans.chain(&compiled.event_spans).chain(&compiled.operand_spans) {
                assert!(text.get(span.clone()).is_some(), "{span:?} is no part of the text");
            }
            let findings = verify(program.clone()).err().unwrap_or_default();
            let errors = check(&text).err().unwrap_or_default();
            assert_eq!(findings.is_empty(), errors.is_empty());
            errors.iter().for_each(|error| show(error, &text));
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "refused without a reason");
            assert_eq!(check(&text).as_ref(), Err(&errors));
            errors.iter().for_each(|error| show(error, &text));
        }
    }
}

fn show(error: &pagekeeper_hipec::source::Diagnostic, text: &str) {
    let shown = error.render("input.hipec", text);
    assert!(shown.contains(error.code.id()), "{shown}");
    assert!(text.get(error.span.clone()).is_some(), "{:?} is no part of the text", error.span);
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    assert!((1..=lines).contains(&error.line(text)), "{error}");
}
