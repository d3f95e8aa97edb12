//! What strangers write, read and run: one module a target, each a function of bytes that panics
//! where a promise is broken. libFuzzer runs them (`make fuzz`), and so do ordinary tests
//! (`tests/smoke.rs`), so that they cannot rot.

pub mod assembler;
pub mod binary;
pub mod execution;
pub mod policy_spec;
pub mod seeds;
pub mod source;
pub mod trace;

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, as of its binary.
    pub name: &'static str,
    /// Its body.
    pub run: fn(&[u8]),
    /// Inputs to begin with, see [`seeds`].
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "binary", run: binary::run, seeds: seeds::binaries },
    Target { name: "assembler", run: assembler::run, seeds: seeds::texts },
    Target { name: "source", run: source::run, seeds: seeds::sources },
    Target { name: "execution", run: execution::run, seeds: seeds::executions },
    Target { name: "trace", run: trace::run, seeds: seeds::traces },
    Target { name: "policy_spec", run: policy_spec::run, seeds: seeds::policy_specs },
];

/// Longest input that a target takes, in bytes: what is longer shows nothing more.
pub const INPUT_BYTES_MAX: usize = 1 << 16;
