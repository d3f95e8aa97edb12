//! Why a command failed, and the exit code that says so.

use pagekeeper::launch::RunError;
use pagekeeper::manager::selection::SelectionError;
use pagekeeper_policy::PolicyError;
use pagekeeper_sim::SimError;
use pagekeeper_trace::{ExportError, ImportError, TraceError};
use std::fmt;
use std::io;
use std::path::Path;

/// What went wrong, as an exit code tells it. The numbers from 64 on are those of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything else.
    Failure = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// A trace is damaged or in an unknown format.
    Data = 65,
    /// The machine lacks something.
    Machine = 69,
    /// Data could not be written.
    Output = 74,
    /// The program is there and cannot be run.
    NotRunnable = 126,
    /// There is no such program.
    NotFound = 127,
    /// The user interrupted it, by the terminal's Ctrl-C.
    Interrupted = 130,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl fmt::Display) -> Failure {
        Failure { kind, message: message.to_string() }
    }

    /// Something could not be written.
    pub(crate) fn write(what: impl fmt::Display, error: &io::Error) -> Failure {
        Failure::new(Kind::Output, format!("cannot write {what}: {error}"))
    }

    /// The same without the advice to salvage a trace, which was followed.
    pub(crate) fn salvaged(self) -> Failure {
        let advice = self.message.find("`pagekeeper import --salvage`");
        let end = advice.and_then(|at| self.message[..at].rfind("; "));
        let end = end.unwrap_or(self.message.len());
        Failure { kind: self.kind, message: self.message[..end].to_owned() }
    }

    /// The same where that advice would not help.
    pub(crate) fn nothing_to_salvage(self) -> Failure {
        let length = self.message.len();
        let Failure { kind, message } = self.salvaged();
        let why = if message.len() < length { "; there is no record before it" } else { "" };
        Failure { kind, message: message + why }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.kind as u8
    }

    /// The same with the file that it is about, which the libraries below do not know.
    pub(crate) fn of_file(self, path: &Path) -> Failure {
        let path = path.display().to_string();
        if self.message.contains(&path) {
            return self;
        }
        Failure { kind: self.kind, message: format!("{path}: {}", self.message) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        use std::io::ErrorKind::InvalidData;
        let kind = match &error {
            // Compressed data that is damaged.
            ImportError::Open { source, .. }
            | ImportError::Read { source, .. }
            | ImportError::Trace(TraceError::Read { source, .. })
                if source.kind() == InvalidData =>
            {
                Kind::Data
            }
            ImportError::Open { .. }
            | ImportError::Read { .. }
            | ImportError::Trace(TraceError::Read { .. }) => Kind::Failure,
            ImportError::UnknownFormat { .. }
            | ImportError::Options(_)
            | ImportError::Trace(TraceError::NoPageBytes) => Kind::Usage,
            _ => Kind::Data,
        };
        let has_none = matches!(&error, ImportError::Trace(error) if error.is_before_records());
        let failure = Failure::new(kind, error);
        if has_none { failure.nothing_to_salvage() } else { failure }
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Failure {
        match error {
            // What a command writes is whole or not there: nothing is readable, as a recording is.
            TraceError::Write { offset, source } => {
                Failure::write(format!("the trace at byte {offset}"), &source)
            }
            TraceError::WriterFailed { .. } => Failure::new(Kind::Output, error),
            other => ImportError::from(other).into(),
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Failure {
        match error {
            ExportError::Source(error) => error.into(),
            ExportError::Trace(error) => error.into(),
            ExportError::Write { .. } | ExportError::Temporary { .. } => {
                Failure::new(Kind::Output, error)
            }
            ExportError::UnknownFormat { .. } => Failure::new(Kind::Usage, error),
            ExportError::NoBlockNumber { .. } => Failure::new(Kind::Data, error),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        let kind = match &error {
            SimError::TooManyPages { .. } | SimError::TooManyReferences { .. } => Kind::Data,
            SimError::BrokenPolicy { .. } | SimError::Threads { .. } => Kind::Failure,
            _ => Kind::Usage,
        };
        Failure::new(kind, error)
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Failure {
        Failure::new(Kind::Usage, error)
    }
}

impl From<SelectionError> for Failure {
    fn from(error: SelectionError) -> Failure {
        Failure::new(Kind::Usage, error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let kind = match &error {
            RunError::Start { .. } => Kind::NotRunnable,
            RunError::Machine(_) => Kind::Machine,
            RunError::Policy(_) | RunError::Memory { .. } => Kind::Usage,
            RunError::Record { .. } => Kind::Output,
        };
        Failure::new(kind, error)
    }
}
