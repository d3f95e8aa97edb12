//! A policy as users write it: one of the registry, or a program's file.

use pagekeeper_hipec::{Form, Verified, load, policy::spec};
use pagekeeper_policy::PolicySpec;
use std::path::Path;
use std::sync::Arc;

/// What the names of programs' files end with.
const EXTENSION: &str = "hipec";

/// Reads `name`, `name:key=value,…`, or the path of a program, which ends with `.hipec`, perhaps
/// with parameters behind it in the same way.
///
/// # Errors
/// There is no such policy or parameter; or the program cannot be read, or is refused. The message
/// says why and what to do.
pub(crate) fn parse(text: &str) -> Result<PolicySpec, String> {
    let text = text.trim();
    if let Some((path, settings)) = program_path(text) {
        // What is shown with its lines begins on one of its own.
        let own_line = |error: String| match error.contains('\n') {
            true => format!("\n{error}"),
            false => error,
        };
        let (program, _) = read(path).map_err(own_line)?;
        let name = path.to_str().expect("it is a part of a text");
        return spec(Arc::new(program), name, settings).map_err(|error| error.to_string());
    }
    PolicySpec::parse(text).map_err(|error| error.to_string())
}

/// The policy of this text, where a program is given by its binary form and no file is read.
///
/// # Errors
/// As [`parse`].
pub(crate) fn restore(text: &str, definition: &[u8]) -> Result<PolicySpec, String> {
    if definition.is_empty() {
        return PolicySpec::parse(text).map_err(|error| error.to_string());
    }
    let (name, settings) = match program_path(text) {
        Some((path, settings)) => (path.to_str().expect("it is a part of a text"), settings),
        None => (text, None),
    };
    let (program, _) = load(name, definition).map_err(|error| error.to_string())?;
    spec(Arc::new(program), name, settings).map_err(|error| error.to_string())
}

/// The program's path and its parameters, if the text begins with such a path.
pub(crate) fn program_path(text: &str) -> Option<(&Path, Option<&str>)> {
    let is_program =
        |path: &str| Path::new(path).extension().is_some_and(|extension| extension == EXTENSION);
    if is_program(text) {
        return Some((Path::new(text), None));
    }
    let at = text.find(&format!(".{EXTENSION}:"))? + 1 + EXTENSION.len();
    let path = &text[..at];
    is_program(path).then(|| (Path::new(path), Some(&text[at + 1..])))
}

/// Reads a program in any form, and checks it.
///
/// # Errors
/// It cannot be read, or is refused.
pub(crate) fn read(path: &Path) -> Result<(Verified, Form), String> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    load(&name, &bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_policy_by_its_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policies");
        let spec = parse(&format!("{folder}/lru.hipec")).unwrap();
        assert_eq!(spec.to_string(), format!("{folder}/lru.hipec"));
        assert!(spec.build(4, 0).unwrap().wants_references());
        assert_ne!(spec, parse(&format!("{folder}/mru.hipec")).unwrap());
        let bounded = parse(&format!("{folder}/lru.hipec:commands_per_frame=16")).unwrap();
        assert_eq!(bounded.to_string(), format!("{folder}/lru.hipec:commands_per_frame=16"));
        assert_ne!(bounded, spec);
        assert!(spec.definition().is_some_and(|bytes| bytes.starts_with(b"HiPE")));
        let error = parse(&format!("{folder}/lru.hipec:comands=1")).unwrap_err();
        assert!(error.contains("`commands_per_frame`"), "{error}");
        assert_eq!(parse("lru").unwrap().to_string(), "lru");
        assert!(parse("nowhere/lru.hipec").unwrap_err().contains("cannot read nowhere/lru.hipec"));
    }
}
