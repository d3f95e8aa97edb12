//! A program's binary form, from any bytes: read or refused, never more; what is read is those
//! bytes again, and the verifier has an answer to it.

use pagekeeper_hipec::asm::{assemble, disassemble};
use pagekeeper_hipec::{HipecPolicy, Program, load, verify};
use std::sync::Arc;

/// Reads bytes as a program.
pub fn run(bytes: &[u8]) {
    let read = Program::decode(bytes);
    let loaded = load("input", bytes);
    let program = match read {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            if bytes.starts_with(b"HiPE") {
                assert!(loaded.is_err_and(|error| !error.to_string().is_empty()));
            }
            return;
        }
    };
    assert_eq!(program.encode().as_deref(), Ok(bytes), "a program is its bytes");
    // Whatever it names.
    let text = disassemble(&program);
    match verify(program.clone()) {
        Ok(verified) => {
            assert_eq!(loaded.map(|it| it.0).as_ref(), Ok(&verified));
            let again = assemble(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(again.program, program, "a program is its text");
            assert!(verified.bytes_per_page() > 0);
            HipecPolicy::new(Arc::new(verified), 1);
        }
        Err(findings) => {
            assert!(!findings.is_empty());
            let shown = findings.iter().map(ToString::to_string).collect::<String>();
            assert!(!shown.is_empty());
            assert!(loaded.is_err());
        }
    }
}
