//! Standard input, given to every run of the program.

use crate::failure::Failure;
use crate::threads;
use std::fs::File;
use std::io::{Error, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, OnceLock};

const BUFFER_BYTES: usize = 64 << 10;

/// Where the program's standard input comes from.
pub(super) enum Input {
    /// Nowhere: ours is a terminal, which cannot be read twice.
    None,
    /// A file, read from this offset on each time.
    File(u64),
    /// A pipe or the like: copied as the first run reads it, for the others.
    Stream {
        /// The copy.
        copy: PathBuf,
        /// The first run has begun.
        begun: bool,
        /// Why the copy has not all of it.
        failed: Arc<OnceLock<Error>>,
    },
}

impl Input {
    /// Looks at our standard input. `copy` is where a copy may be made.
    pub(super) fn new(copy: PathBuf) -> Input {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Input::None;
        }
        let regular = rustix::fs::fstat(&stdin).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
        });
        match rustix::fs::tell(&stdin) {
            Ok(offset) if regular => Input::File(offset),
            _ => Input::Stream { copy, begun: false, failed: Arc::default() },
        }
    }

    /// For the next run. Where it is a pipe, [`feed`](Self::feed) fills it.
    pub(super) fn stdio(&self) -> Result<Stdio, Failure> {
        let open = |path: &Path, offset: u64| {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok(Stdio::from(file))
        };
        let opened = match self {
            Input::None => return Ok(Stdio::null()),
            // A new description: an offset of its own.
            Input::File(offset) => open(Path::new("/proc/self/fd/0"), *offset),
            Input::Stream { begun: false, .. } => return Ok(Stdio::piped()),
            Input::Stream { copy, begun: true, failed } => match failed.get() {
                Some(error) => return Err(not_copied(error)),
                None => open(copy, 0),
            },
        };
        opened.map_err(|e: Error| Failure::write("standard input to the program", &e))
    }

    /// Copies our standard input to the first run's, and to where the others find it. The copying
    /// thread is left behind by a program that ends without reading everything.
    pub(super) fn feed(&mut self, program: Option<ChildStdin>) -> Result<(), Failure> {
        let (Input::Stream { copy, begun, failed }, Some(mut program)) = (self, program) else {
            return Ok(());
        };
        *begun = true;
        let mut file = File::create(copy).map_err(|e| not_copied(&e))?;
        let failed = failed.clone();
        threads::start("pk-input", move || {
            let mut buffer = vec![0; BUFFER_BYTES];
            let mut stdin = std::io::stdin().lock();
            while let Ok(n @ 1..) = stdin.read(&mut buffer) {
                // This run has all of it in any case: its output is shown.
                if failed.get().is_none()
                    && let Err(error) = file.write_all(&buffer[..n])
                {
                    let _ = failed.set(error);
                }
                if program.write_all(&buffer[..n]).is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

fn not_copied(error: &Error) -> Failure {
    Failure::write("a copy of standard input for the next runs (TMPDIR says where)", error)
}
