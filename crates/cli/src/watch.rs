//! Waiting for a file to be saved.

use crate::policy_text;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A file that somebody edits. Editors write it in place, or move another one over it; so it is
/// looked at by its name.
#[derive(Debug)]
pub(crate) struct Saved {
    path: PathBuf,
    seen: Option<(SystemTime, u64)>,
    bytes: Vec<u8>,
}

impl Saved {
    /// Watches a file whose content is known to be `bytes`.
    pub(crate) fn since(path: PathBuf, bytes: Vec<u8>) -> Saved {
        Saved { path, seen: None, bytes }
    }

    /// Waits until the file holds something else than it did last, and can be read.
    pub(crate) fn wait(&mut self) -> &[u8] {
        loop {
            if self.look() {
                return &self.bytes;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Whether the file holds something else than it did last.
    fn look(&mut self) -> bool {
        let Ok(metadata) = std::fs::metadata(&self.path) else { return false };
        let Ok(modified) = metadata.modified() else { return false };
        let now = (modified, metadata.len());
        if self.seen == Some(now) {
            return false;
        }
        // In the midst of being written, perhaps: what follows changes the time or the length.
        let Ok(bytes) = policy_text::read_bytes(&self.path) else { return false };
        self.seen = Some(now);
        if bytes == self.bytes {
            return false;
        }
        self.bytes = bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_seen_once_and_only_if_it_changes_something() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.hipec");
        std::fs::write(&path, "one").unwrap();
        let mut saved = Saved::since(path.clone(), b"one".to_vec());
        assert!(!saved.look());
        std::fs::write(&path, "three").unwrap();
        assert!(saved.look());
        assert!(!saved.look());
        assert_eq!(saved.bytes, b"three");
        std::fs::remove_file(&path).unwrap();
        assert!(!saved.look(), "an editor is moving another file here");
        std::fs::write(folder.path().join("new"), "fourth").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(saved.look());
    }
}
