//! A policy as users write it: one of the registry, or a program's file.

use pagekeeper_hipec::{Form, Verified, load, policy::spec};
use pagekeeper_policy::PolicySpec;
use std::path::Path;
use std::sync::Arc;

/// What the names of programs' files end with.
const EXTENSION: &str = "hipec";

/// Reads `name`, `name:key=value,…` or the path of a program, which ends with `.hipec`.
///
/// # Errors
/// There is no such policy; or the program cannot be read, or is refused. The message says why
/// and what to do.
pub(crate) fn parse(text: &str) -> Result<PolicySpec, String> {
    let path = Path::new(text.trim());
    if path.extension().is_some_and(|extension| extension == EXTENSION) {
        let (program, _) = read(path)?;
        return Ok(spec(Arc::new(program), text.trim()));
    }
    PolicySpec::parse(text).map_err(|error| error.to_string())
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
        assert_eq!(parse("lru").unwrap().to_string(), "lru");
        assert!(parse("nowhere/lru.hipec").unwrap_err().contains("cannot read nowhere/lru.hipec"));
    }
}
