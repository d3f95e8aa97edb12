//! Patterns of files that are managed, as people write them.

use std::path::Path;

/// A pattern of the command line. One that begins in the working directory or above it (`./shop.db`,
/// as a shell completes names) means what is there now: files are known by their whole paths.
pub(crate) fn of_command_line(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(empty("--files"));
    }
    if !is_relative(text) {
        return Ok(text.to_owned());
    }
    // The name of a file that is there is that file, whatever characters it has, and where a link
    // leads to.
    if let Some(path) = std::fs::canonicalize(text).ok().filter(|path| path.is_file()) {
        return Ok(globset::escape(&path.to_string_lossy()));
    }
    let directory = std::env::current_dir()
        .map_err(|error| format!("the working directory is not known: {error}"))?;
    Ok(below(&directory, text))
}

/// A pattern of a configuration, which is read wherever programs are started.
pub(crate) fn of_configuration(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(empty("`files`"));
    }
    if is_relative(text) {
        let rest = text.trim_start_matches(['.', '/']);
        return Err(format!(
            "`{text}` begins in the working directory, which is another in each run, and would match \
             no file: write the whole path, as /data/{rest}, or **/{rest} for any directory"
        ));
    }
    globset::Glob::new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn empty(what: &str) -> String {
    format!(
        "an empty pattern matches no file; leave {what} out to manage every file of the least size"
    )
}

fn is_relative(text: &str) -> bool {
    text.starts_with("./") || text.starts_with("../")
}

/// A pattern that begins in a directory, from the root on.
fn below(directory: &Path, pattern: &str) -> String {
    let (mut directory, mut rest) = (directory, pattern);
    loop {
        if let Some(after) = rest.strip_prefix("./") {
            rest = after.trim_start_matches('/');
        } else if let Some(after) = rest.strip_prefix("../") {
            rest = after.trim_start_matches('/');
            directory = directory.parent().unwrap_or(directory);
        } else {
            break;
        }
    }
    let directory = globset::escape(&directory.to_string_lossy());
    format!("{}/{rest}", directory.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper::manager::selection::Selection;

    /// `--files ./shop.db`, as a shell completes it, matched no file.
    #[test]
    fn patterns_that_begin_in_the_working_directory_name_what_is_there() {
        let at = Path::new("/data/a[1]");
        assert_eq!(below(at, "./*.db"), "/data/a[[]1[]]/*.db");
        assert_eq!(below(at, ".//../x/*.db"), "/data/x/*.db");
        assert_eq!(below(at, "../../../x"), "/x");
        assert_eq!(of_command_line("*.db").as_deref(), Ok("*.db"));
        assert!(of_command_line("").unwrap_err().contains("leave --files out"));
        let selection = |pattern: &str| Selection::new(&[of_command_line(pattern).unwrap()], 0);
        let here = std::env::current_dir().unwrap();
        let manifest = here.join("Cargo.toml");
        assert!(selection("./Cargo.toml").unwrap().matches(manifest.to_str().unwrap()));
        assert!(selection("./*.toml").unwrap().matches(manifest.to_str().unwrap()));
        assert!(!selection("../*.none").unwrap().matches(manifest.to_str().unwrap()));
    }

    /// `files = ["./shop.db"]` and `files = [""]` matched no file, and nothing said so.
    #[test]
    fn a_configuration_has_no_patterns_that_match_nothing() {
        for text in ["*.db", "/data/**", "shop.db", "**/.x"] {
            assert_eq!(of_configuration(text).as_deref(), Ok(text));
        }
        let error = of_configuration("./shop.db").unwrap_err();
        assert!(error.contains("as /data/shop.db, or **/shop.db"), "{error}");
        assert!(of_configuration("../../x/*.db").unwrap_err().contains("/data/x/*.db"));
        assert!(of_configuration("").unwrap_err().contains("leave `files` out"));
        assert!(of_configuration("a[").unwrap_err().contains("unclosed"));
    }
}
