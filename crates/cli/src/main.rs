//! The `pagekeeper` command.
fn main() {}
