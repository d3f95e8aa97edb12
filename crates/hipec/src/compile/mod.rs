//! Programs as machine code.
//!
//! Both ways of running a program take the same decisions, command for command: the interpreter is
//! what a compiled program is checked against, and what runs where there is no compiler.

/// How a program's commands are run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Execution {
    /// One by one, on any host.
    Interpreted,
    /// As machine code of the host.
    Compiled,
}

/// Why a program has no machine code here. It can be interpreted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompileError {
    /// There is no compiler for the host.
    #[error("programs cannot be compiled on this host ({0}); interpret them")]
    Host(String),
}
