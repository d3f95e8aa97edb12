//! Small file systems for tests.

use crate::runs::{Scratch, is_root, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system, unmounted when it is dropped.
#[derive(Debug)]
pub(crate) struct Mount(PathBuf);

fn call(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
}

impl Mount {
    /// None, and said, where that is not permitted.
    pub(crate) fn new(at: PathBuf, arguments: &[&str]) -> Option<Mount> {
        std::fs::create_dir_all(&at).unwrap();
        let mut all = arguments.to_vec();
        all.push(at.to_str().unwrap());
        if is_root() && call("mount", &all) {
            return Some(Mount(at));
        }
        skip(&format!("mount {all:?} is not permitted"));
        None
    }

    pub(crate) fn tmpfs(place: &Scratch, name: &str, kib: u64) -> Option<Mount> {
        let size = format!("size={kib}k");
        Mount::new(place.file(name), &["-t", "tmpfs", "-o", &size, "live"])
    }

    /// A new file system in an image.
    pub(crate) fn image(place: &Scratch, image: &Path, kind: &str, kib: u64) -> Option<Mount> {
        std::fs::File::create(image).unwrap().set_len(kib << 10).unwrap();
        let make = format!("mkfs.{kind}");
        let image = image.to_str().unwrap();
        let mut options = match kind {
            "btrfs" | "xfs" => vec!["-q", "-f"],
            _ => vec!["-q", "-F", "-b", "4096", "-m", "0", "-N", "64"],
        };
        options.push(image);
        if !call(&make, &options) {
            skip(&format!("{make} failed"));
            return None;
        }
        Mount::new(place.file("mounted"), &["-o", "loop", image])
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !call("umount", &[self.0.to_str().unwrap()]) {
            call("umount", &["-l", self.0.to_str().unwrap()]);
        }
    }
}
