//! Finding what a run needs: the program, this program, the preload library.

use crate::failure::{Failure, Kind};
use pagekeeper_sys::elf;
use pagekeeper_wire::LIBRARY;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Names the preload library, in place of looking for it.
const ENV_PRELOAD: &str = "PAGEKEEPER_PRELOAD";
/// Where `execvp(3)` looks when PATH is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Finds a program as the shell does.
///
/// # Errors
/// There is none of this name.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let path_list = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH_DEFAULT));
    elf::find(Path::new(name), &path_list).ok_or_else(|| {
        let shown = Path::new(name).display();
        let given = name.as_encoded_bytes().contains(&b'/').then(|| Path::new(name));
        if given.is_some_and(|path| path.exists() && !path.is_file()) {
            return Failure::new(Kind::NotRunnable, format!("{shown} is no program"));
        }
        if given.is_some_and(Path::exists) {
            let text = format!("{shown} is not executable; if it is a script: chmod +x {shown}");
            return Failure::new(Kind::NotRunnable, text);
        }
        Failure::new(
            Kind::NotFound,
            format!("there is no program {shown}; check the name and PATH"),
        )
    })
}

/// Refuses a program that the preload library cannot reach.
///
/// # Errors
/// It cannot, with all reasons.
pub(crate) fn check_reachable(path: &Path) -> Result<(), Failure> {
    let program = elf::inspect(path);
    if program.is_reachable() {
        return Ok(());
    }
    let reasons: Vec<String> = program.reasons.iter().map(ToString::to_string).collect();
    let text = format!("cannot run {} under a policy: {}", path.display(), reasons.join("; "));
    Err(Failure::new(Kind::NotRunnable, text))
}

/// This program.
///
/// # Errors
/// /proc is not mounted.
pub(crate) fn own_executable() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| {
        Failure::new(
            Kind::Machine,
            format!("cannot find this program's own file: {e}; mount /proc"),
        )
    })
}

/// The preload library.
///
/// # Errors
/// It is at none of its places.
pub(crate) fn preload() -> Result<PathBuf, Failure> {
    let given = std::env::var_os(ENV_PRELOAD).filter(|value| !value.is_empty());
    let library = match given {
        Some(path) => {
            let path = PathBuf::from(path);
            std::fs::canonicalize(&path).map_err(|e| {
                let text = format!("{ENV_PRELOAD} is {}: {e}", path.display());
                Failure::new(Kind::Machine, text)
            })?
        }
        None => look_for_preload(&own_executable()?)?,
    };
    // The dynamic linker splits LD_PRELOAD at both, and nothing quotes them.
    if library.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
        let text = format!(
            "{} has a space or colon in its path, which LD_PRELOAD cannot hold; move it and set \
             {ENV_PRELOAD}",
            library.display()
        );
        return Err(Failure::new(Kind::Machine, text));
    }
    Ok(library)
}

fn look_for_preload(executable: &Path) -> Result<PathBuf, Failure> {
    let places = preload_places(executable);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let places: Vec<String> =
            places.iter().map(|place| format!("\n  {}", place.display())).collect();
        let text = format!(
            "cannot find {LIBRARY}, which programs need to be managed; set {ENV_PRELOAD} to it, \
             or build it (cargo build --release -p pagekeeper-preload). Looked for:{}",
            places.concat()
        );
        Failure::new(Kind::Machine, text)
    })
}

/// Where the library may be: beside the program; as a package installs it; in another profile's
/// folder of the build directory.
fn preload_places(executable: &Path) -> Vec<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(Path::new("/"));
    let mut places = vec![
        beside.join(LIBRARY),
        above.join("lib/pagekeeper").join(LIBRARY),
        above.join("lib").join(LIBRARY),
    ];
    if above.join("CACHEDIR.TAG").is_file() {
        let profiles = ["release", "debug"].map(|profile| above.join(profile).join(LIBRARY));
        places.extend(profiles.into_iter().filter(|place| place.parent() != Some(beside)));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_library_is_found_at_each_of_its_places() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        fs::create_dir_all(target.join("debug")).unwrap();
        fs::create_dir_all(target.join("release")).unwrap();
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        let executable = target.join("debug/pagekeeper");
        let missing = look_for_preload(&executable).unwrap_err().to_string();
        assert!(missing.contains("PAGEKEEPER_PRELOAD") && missing.contains("lib/pagekeeper/"));
        for place in preload_places(&executable).into_iter().rev() {
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, "").unwrap();
            assert_eq!(look_for_preload(&executable).unwrap(), place);
        }
    }

    #[test]
    fn missing_programs_are_told_from_those_that_cannot_run() {
        let failure = find(OsStr::new("no-such-program-here")).unwrap_err();
        assert_eq!(failure.exit_code(), 127);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(find(file.path().as_os_str()).unwrap_err().exit_code(), 126);
        assert!(check_reachable(&find(OsStr::new("sh")).unwrap()).is_ok());
        let failure = check_reachable(file.path()).unwrap_err();
        assert_eq!(failure.exit_code(), 126);
    }
}
