//! Output files that appear whole or not at all.

use crate::failure::{Failure, Kind};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// What the names of temporary files start with.
const PREFIX: &str = ".pagekeeper-";

/// A file that is being written. Dropped, it leaves what was there before.
pub(crate) struct Output {
    /// As the user named it.
    path: PathBuf,
    target: Target,
}

/// Standard output, written as it comes. A reader that goes away (`| head`) is no error of ours.
pub(crate) struct Stdout {
    stdout: io::StdoutLock<'static>,
    reader_is_gone: bool,
}

impl Stdout {
    pub(crate) fn new() -> Stdout {
        Stdout { stdout: io::stdout().lock(), reader_is_gone: false }
    }

    /// Whether a write failed for that reason.
    pub(crate) fn reader_is_gone(&self) -> bool {
        self.reader_is_gone
    }

    fn seen<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.reader_is_gone |= result.as_ref().is_err_and(broken);
        result
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.stdout.write(bytes);
        self.seen(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.stdout.flush();
        self.seen(result)
    }
}

/// Whether a run may write its statistics or its trace there when it has ended. The program has
/// standard output.
///
/// # Errors
/// It may not, or it is `-`.
pub(crate) fn check_writable(what: &str, path: &Path) -> Result<(), Failure> {
    if path == Path::new("-") {
        let text = format!(
            "{what} -: standard output is the program's; name a file (./- for one of this name)"
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let failed = |error: io::Error| Failure::write(path.display(), &error);
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(failed(rustix::io::Errno::ISDIR.into())),
        Ok(_) => rustix::fs::access(path, Access::WRITE_OK).map_err(|e| failed(e.into())),
        Err(_) => {
            // A link may lead to where a file is to be made.
            let place = match std::fs::read_link(path) {
                Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
                Err(_) => path.to_owned(),
            };
            let directory = match place.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            };
            if !std::fs::metadata(&directory).map_err(failed)?.is_dir() {
                return Err(failed(rustix::io::Errno::NOTDIR.into()));
            }
            let may = rustix::fs::access(&directory, Access::WRITE_OK | Access::EXEC_OK);
            may.map_err(|e| failed(e.into()))
        }
    }
}

/// Writes a file that is then there whole or as it was, but where nothing may be made beside it.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    match Target::create(path) {
        Ok(target) => {
            target.file().write_all(content)?;
            target.keep()
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && path.exists() => {
            std::fs::write(path, content)
        }
        Err(error) => Err(error),
    }
}

/// Whether two paths name one file, or the place of one.
pub(crate) fn is_same_place(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        std::fs::canonicalize(path).unwrap_or(absolute)
    };
    place(one) == place(other)
}

enum Target {
    /// Without a name, in the directory of its place: gone if we are killed.
    Unnamed { file: File, directory: PathBuf, place: PathBuf },
    /// Beside its place, where the file system has no files without names.
    Beside { file: NamedTempFile, place: PathBuf },
    /// A pipe or a device, which is written as it comes.
    Direct(File),
}

impl Output {
    /// Begins to write `path`, which must not be a file that is read.
    ///
    /// # Errors
    /// It is the same file as one of the `inputs`, or cannot be made.
    pub(crate) fn create<P: AsRef<Path>>(path: &Path, inputs: &[P]) -> Result<Output, Failure> {
        let id = |path: &Path| rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        let output = id(path);
        let same = |input: &&Path| output.is_some() && id(input) == output;
        if let Some(input) = inputs.iter().map(AsRef::as_ref).find(same) {
            let text = format!("{} would be written over itself", input.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        let target =
            Target::create(path).map_err(|error| Failure::write(path.display(), &error))?;
        Ok(Output { path: path.to_owned(), target })
    }

    /// Puts the file where it belongs.
    ///
    /// # Errors
    /// It cannot be written there.
    pub(crate) fn keep(self) -> Result<(), Failure> {
        self.target.keep().map_err(|error| Failure::write(self.path.display(), &error))
    }
}

impl Target {
    fn create(path: &Path) -> io::Result<Target> {
        // What a link points to is replaced, not the link.
        let place = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let before = std::fs::metadata(&place).ok();
        if before.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            return Ok(Target::Direct(File::options().write(true).open(&place)?));
        }
        if before.is_some() {
            // What may not be written to is not replaced either.
            rustix::fs::access(&place, Access::WRITE_OK)?;
        }
        let directory = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let target = match rustix::fs::open(&directory, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => Target::Unnamed { file: file.into(), directory, place },
            Err(_) => {
                let file = tempfile::Builder::new()
                    .prefix(PREFIX)
                    .permissions(Permissions::from_mode(0o666))
                    .tempfile_in(&directory)
                    .map_err(without_path)?;
                Target::Beside { file, place }
            }
        };
        if let Some(before) = before {
            target.file().set_permissions(before.permissions())?;
        }
        Ok(target)
    }

    fn keep(self) -> io::Result<()> {
        match self {
            Target::Direct(_) => Ok(()),
            Target::Beside { file, place } => Ok(file.persist(place).map(drop)?),
            Target::Unnamed { file, directory, place } => {
                // A link never replaces a file, so it gets another name first.
                let name = format!("/proc/self/fd/{}", file.as_raw_fd());
                let link = |path: &Path| {
                    rustix::fs::linkat(CWD, &name, CWD, path, AtFlags::SYMLINK_FOLLOW)?;
                    Ok(())
                };
                let linked = tempfile::Builder::new()
                    .prefix(PREFIX)
                    .make_in(directory, link)
                    .map_err(without_path)?;
                Ok(linked.into_temp_path().persist(place)?)
            }
        }
    }

    fn file(&self) -> &File {
        match self {
            Target::Unnamed { file, .. } | Target::Direct(file) => file,
            Target::Beside { file, .. } => file.as_file(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.target.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.file().flush()
    }
}

/// What the system said, without the temporary file's name, which means nothing to anyone.
fn without_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((said, _path)) => io::Error::new(error.kind(), said),
        None => error,
    }
}
