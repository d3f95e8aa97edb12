//! A policy as users write it, and programs' files.

use pagekeeper_hipec::{Form, Verified, load};
use pagekeeper_policy::PolicySpec;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(crate) use pagekeeper_hipec::text::{program_path, restore};

/// Most bytes of a program's file. The largest that may run is far smaller.
const PROGRAM_BYTES_MAX: u64 = 1 << 20;

/// Reads a program's file.
///
/// # Errors
/// It cannot be read, or is too large for a program.
pub(crate) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(PROGRAM_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > PROGRAM_BYTES_MAX {
        return Err(io::Error::other("it is longer than 1 MiB, and so no program"));
    }
    Ok(bytes)
}

/// Reads `name`, `name:key=value,…`, or the path of a program.
///
/// # Errors
/// There is no such policy or parameter; or the program cannot be read, or is refused. The message
/// says why and what to do.
pub(crate) fn parse(text: &str) -> Result<PolicySpec, String> {
    pagekeeper_hipec::text::parse(text, read_bytes)
}

/// Reads a program in any form, and checks it.
///
/// # Errors
/// It cannot be read, or is refused.
pub(crate) fn read(path: &Path) -> Result<(Verified, Form), String> {
    let name = path.display().to_string();
    let bytes = read_bytes(path).map_err(|error| format!("cannot read {name}: {error}"))?;
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
