//! Which files are managed: by pattern and size.

use globset::{Glob, GlobSet, GlobSetBuilder};
use thiserror::Error;

/// Smallest file that is managed by default.
pub const MIN_SIZE_BYTES_DEFAULT: u64 = 1 << 20;

/// A pattern that is no glob.
#[derive(Debug, Error)]
#[error("--files {pattern:?}: {reason}; write for example --files '*.db' or --files '/data/**'")]
pub struct SelectionError {
    /// As the user wrote it.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Chooses files.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Any path if there is none.
    set: Option<GlobSet>,
    /// Files below this length are not managed.
    pub min_size_bytes: u64,
}

impl Selection {
    /// Files whose path matches any of the patterns (`*` also matches `/`); any file when there is
    /// none, but for shared memory (`/dev/shm`) and what else is on tmpfs, which is in memory already. A pattern without `/` is
    /// matched against the file name as well.
    ///
    /// # Errors
    /// A pattern is no glob.
    pub fn new(patterns: &[String], min_size_bytes: u64) -> Result<Selection, SelectionError> {
        if patterns.is_empty() {
            return Ok(Selection { set: None, min_size_bytes });
        }
        let mut builder = GlobSetBuilder::new();
        for pattern in patterns {
            let glob = |text: &str| {
                Glob::new(text).map_err(|e| SelectionError {
                    pattern: pattern.clone(),
                    reason: e.kind().to_string(),
                })
            };
            builder.add(glob(pattern)?);
            if !pattern.starts_with(['/', '*']) {
                builder.add(glob(&format!("**/{pattern}"))?);
            }
        }
        let set = builder
            .build()
            .map_err(|e| SelectionError { pattern: patterns.join(" "), reason: e.to_string() })?;
        Ok(Selection { set: Some(set), min_size_bytes })
    }

    /// Whether patterns say which files.
    pub fn is_by_pattern(&self) -> bool {
        self.set.is_some()
    }

    /// Whether a path is chosen, whatever its size.
    pub fn matches(&self, path: &str) -> bool {
        // What memfd_create(2) made is mapped by who made it, unseen.
        if path.starts_with("/memfd:") {
            return false;
        }
        let kernel = ["/proc/", "/sys/", "/dev/"].iter().any(|p| path.starts_with(p));
        match &self.set {
            // Shared memory is no file to cache, unless it is asked for.
            Some(set) => (!kernel || path.starts_with("/dev/shm/")) && set.is_match(path),
            None => !kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths_and_names() {
        let s = Selection::new(&["*.db".into(), "index/*.bin".into()], 0).unwrap();
        assert!(s.matches("/var/lib/a.db"));
        assert!(s.matches("/x/index/1.bin"));
        assert!(!s.matches("/x/a.dbx"));
        let all = Selection::new(&[], 0).unwrap();
        assert!(all.matches("/any/thing"));
        assert!(!all.matches("/proc/self/maps") && !all.matches("/dev/null"));
        // What shm_open(3) makes: programs' shared memory, unless it was asked for.
        assert!(!all.matches("/dev/shm/x"));
        assert!(Selection::new(&["/dev/shm/x".into()], 0).unwrap().matches("/dev/shm/x"));
        assert!(!all.matches("/memfd:x (deleted)"));
        assert!(!Selection::new(&["*".into()], 0).unwrap().matches("/memfd:x (deleted)"));
        assert!(Selection::new(&["[".into()], 0).unwrap_err().to_string().contains("--files"));
    }
}
