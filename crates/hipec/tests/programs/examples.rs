//! The programs of `policies/`.
use std::sync::Arc;

use pagekeeper_hipec::{Verified, load};

pub(crate) const EXAMPLES: [&str; 9] = [
    "fifo",
    "second-chance",
    "lru",
    "mru",
    "loop",
    "lru-2",
    "mpfifo2",
    "btree-levels",
    "scan-resistant",
];

/// One of them.
pub(crate) fn example(name: &str) -> Arc<Verified> {
    let path = format!("{}/../../policies/{name}.hipec", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read(&path).expect("it is there");
    Arc::new(load(&path, &text).unwrap_or_else(|error| panic!("{error}")).0)
}
