//! Files of the kernel's, as tests would have them.

use std::fs;
use std::path::Path;

/// A directory that stands for a place such as `/sys`.
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes a file and what it lies in.
    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}
