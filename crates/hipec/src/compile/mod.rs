//! Programs as machine code.
//!
//! Both ways of running a program take the same decisions, command for command: the interpreter is
//! what a compiled program is checked against, and what runs where there is no compiler. It also
//! runs what compiled code leaves to it, on the same operands and pages: commands that are rare
//! (hints, addresses) or long (Ordered queues), a command that cannot be done, and the last
//! commands of a budget. So the budget is exact though it is looked at once for each block of
//! commands that run together.
mod layout;
mod native;
mod translate;

pub(crate) use native::Native;

/// Most commands of a program that is compiled: making machine code takes time and memory with
/// their number, about 50 µs a command.
pub const COMPILED_COMMANDS_MAX: usize = 4096;

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
    /// The program is too long.
    #[error(
        "the program has {0} commands, and at most {COMPILED_COMMANDS_MAX} are compiled; \
         interpret it, or put what is there twice into an event of its own"
    )]
    Commands(usize),
    /// The compiler or the system refused.
    #[error("the program cannot be compiled ({0}); interpret it")]
    Refused(String),
}
