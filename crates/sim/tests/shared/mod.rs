//! The traces and the oracle's table, which tests look for outside the repository.
#![allow(unreachable_pub)]
use std::path::{Path, PathBuf};

use pagekeeper_sim::References;

/// The directory with `oracle/hits.csv` and `traces/`.
pub fn directory() -> PathBuf {
    std::env::var_os("PAGEKEEPER_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    )
}

/// The text of a file there; `None`, with the reason printed, where it is missing.
pub fn text(path: &str) -> Option<String> {
    let directory = directory();
    let text = std::fs::read_to_string(directory.join(path)).ok();
    if text.is_none() {
        println!(
            "skipped: no {path} under {}; set PAGEKEEPER_SHARED to where it is",
            directory.display()
        );
    }
    text
}

/// A trace of one decimal block number per line; blank lines and lines with `*` are dropped.
pub fn trace(name: &str) -> Option<References> {
    let blocks = text(&format!("traces/{name}.trace"))?;
    let blocks = blocks
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.contains('*'))
        .map(|line| line.parse().unwrap_or_else(|e| panic!("{name}: {line}: {e}")));
    Some(References::from_blocks(blocks).unwrap())
}
