//! Output files that appear whole or not at all.

use crate::failure::{Failure, Kind};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that is being written. Dropped, it leaves what was there before.
pub(crate) struct Output {
    /// As the user named it.
    path: PathBuf,
    target: Target,
}

enum Target {
    /// Beside its place, to be moved there.
    Beside { file: NamedTempFile, place: PathBuf },
    /// A pipe or a device, which is written as it comes.
    Direct(File),
}

impl Output {
    /// Begins to write `path`, which must not be the file that is read.
    ///
    /// # Errors
    /// It is the same file as `input`, or cannot be made.
    pub(crate) fn create(path: &Path, input: &Path) -> Result<Output, Failure> {
        let id = |path: &Path| rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        if id(path).is_some_and(|output| id(input) == Some(output)) {
            let text = format!("{} would be written over itself", input.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        let failed = |error: io::Error| Failure::write(path.display(), &error);
        // What a link points to is replaced, not the link.
        let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = std::fs::metadata(&place).ok();
        if before.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            let file = File::options().write(true).open(&place).map_err(failed)?;
            return Ok(Output { path: path.to_owned(), target: Target::Direct(file) });
        }
        let directory = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mode = before.map_or(0o666, |metadata| metadata.permissions().mode() & 0o777);
        let file = tempfile::Builder::new()
            .prefix(".pagekeeper-")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)
            .map_err(|error| failed(without_path(error)))?;
        Ok(Output { path: path.to_owned(), target: Target::Beside { file, place } })
    }

    /// Puts the file where it belongs.
    ///
    /// # Errors
    /// It cannot be written there.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        match self.target {
            Target::Direct(_) => Ok(()),
            Target::Beside { file, place } => file
                .persist(place)
                .map(drop)
                .map_err(|error| Failure::write(self.path.display(), &error.error)),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.target {
            Target::Beside { file, .. } => file.write(bytes),
            Target::Direct(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Beside { file, .. } => file.flush(),
            Target::Direct(file) => file.flush(),
        }
    }
}

/// What the system said, without the temporary file's name, which means nothing to anyone.
fn without_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((said, _path)) => io::Error::new(error.kind(), said),
        None => error,
    }
}
