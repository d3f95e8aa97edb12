//! A policy as users write it: one of the registry, or a program's file.

use crate::load::load;
use crate::policy::spec;
use pagekeeper_policy::PolicySpec;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What the names of programs' files end with.
const EXTENSION: &str = "hipec";

/// Reads `name`, `name:key=value,…`, or the path of a program, which ends with `.hipec`, perhaps
/// with parameters behind it in the same way. `read` reads a file.
///
/// # Errors
/// There is no such policy or parameter; or the program cannot be read, or is refused. The message
/// says why and what to do.
pub fn parse(
    text: &str,
    read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
) -> Result<PolicySpec, String> {
    let text = text.trim();
    let Some((path, settings)) = program_path(text) else {
        return PolicySpec::parse(text).map_err(|error| error.to_string());
    };
    let name = path.to_str().expect("it is a part of a text");
    let bytes = read(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let (program, _) = load(name, &bytes).map_err(|error| {
        let error = error.to_string();
        // What is shown with its lines begins on one of its own.
        if error.contains('\n') { format!("\n{error}") } else { error }
    })?;
    spec(Arc::new(program), name, settings).map_err(|error| error.to_string())
}

/// The policy of this text, where a program is given by its binary form and no file is read.
///
/// # Errors
/// As [`parse`].
pub fn restore(text: &str, definition: &[u8]) -> Result<PolicySpec, String> {
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
pub fn program_path(text: &str) -> Option<(&Path, Option<&str>)> {
    let is_program =
        |path: &str| Path::new(path).extension().is_some_and(|extension| extension == EXTENSION);
    if is_program(text) {
        return Some((Path::new(text), None));
    }
    let at = text.find(&format!(".{EXTENSION}:"))? + 1 + EXTENSION.len();
    let path = &text[..at];
    is_program(path).then(|| (Path::new(path), Some(&text[at + 1..])))
}
