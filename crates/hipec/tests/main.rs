//! Programs: what is read, what is refused, and what runs decides as it should.
//!
//! One program for all files: what they share is compiled and linked once.

mod any_program;
mod decisions;
#[path = "programs/examples.rs"]
mod examples;
mod executions;
mod forms;
mod hints;
mod load;
mod programs;
#[path = "../../sim/tests/shared/mod.rs"]
mod shared;
mod source;
mod source_policies;
mod verifier;
mod wrapped;
