//! The configuration file: which programs run under which policy.
//!
//! ```toml
//! [program.sqlite3]            # by name, full path, or a pattern of either
//! policy = "mru"
//! memory = "256M"
//! files = ["*.db"]
//! min_size = "1M"
//! sampling = 5
//! from_start = true
//! delay_writes = true
//!
//! [program.all]                # for whatever the others do not say
//! policy = "clock"
//! ```

use crate::failure::{Failure, Kind};
use crate::file_pattern;
use crate::report::say;
use crate::size::Size;
use globset::{Glob, GlobBuilder, GlobMatcher};
use pagekeeper::launch::MEMORY_BYTES_MIN;
use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::{PolicyError, PolicySpec};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The entry for programs that no other entry speaks of.
const DEFAULT_ENTRY: &str = "all";
const SYSTEM_FILE: &str = "/etc/pagekeeper.toml";

/// What an entry, or the command line, says about a run. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[serde(expecting = "the settings of a program under its name, as below [program.NAME]")]
pub(crate) struct Settings {
    /// Which policy.
    #[serde(default, deserialize_with = "policy")]
    pub(crate) policy: Option<PolicySpec>,
    /// The budget.
    #[serde(default, deserialize_with = "memory")]
    pub(crate) memory: Option<Size>,
    /// Patterns of files that are managed.
    #[serde(default, deserialize_with = "globs")]
    pub(crate) files: Option<Vec<String>>,
    /// Smaller files are not managed.
    pub(crate) min_size: Option<Size>,
    /// What seeing touches may cost, in percent of the time that misses take.
    #[serde(default, deserialize_with = "share")]
    pub(crate) sampling: Option<SamplingShare>,
    /// Whether files are managed from their first use, where they would be the kernel's until memory
    /// is short.
    pub(crate) from_start: Option<bool>,
    /// `--delay-writes`.
    pub(crate) delay_writes: Option<bool>,
}

impl Settings {
    /// These, and what they do not say from another.
    pub(crate) fn or(self, other: &Settings) -> Settings {
        Settings {
            policy: self.policy.or_else(|| other.policy.clone()),
            memory: self.memory.or(other.memory),
            files: self.files.or_else(|| other.files.clone()),
            min_size: self.min_size.or(other.min_size),
            sampling: self.sampling.or(other.sampling),
            from_start: self.from_start.or(other.from_start),
            delay_writes: self.delay_writes.or(other.delay_writes),
        }
    }
}

fn policy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PolicySpec>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let spec = crate::policy_text::parse(&text).map_err(de::Error::custom)?;
    if !spec.info().runs_live() {
        return Err(de::Error::custom(PolicyError::SimulatorOnly { policy: spec.name() }));
    }
    Ok(Some(spec))
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Size>, D::Error> {
    let size = Size::deserialize(deserializer)?;
    if size.0 < MEMORY_BYTES_MIN {
        let least = Size(MEMORY_BYTES_MIN);
        return Err(de::Error::custom(format!(
            "{size} is too little memory for a run, which takes {least} or more: give it some, as 256M"
        )));
    }
    Ok(Some(size))
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SamplingShare>, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    let percent = value.as_integer().and_then(|percent| u32::try_from(percent).ok());
    // Whatever is no number is as wrong as one that is too large.
    SamplingShare::of_percent(percent.unwrap_or(u32::MAX)).map(Some).map_err(de::Error::custom)
}

#[derive(Deserialize)]
#[serde(transparent)]
struct FileGlob(#[serde(deserialize_with = "file_glob")] String);

fn file_glob<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    file_pattern::of_configuration(&text).map_err(de::Error::custom)
}

fn globs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let globs = Vec::<FileGlob>::deserialize(deserializer)?;
    Ok(Some(globs.into_iter().map(|glob| glob.0).collect()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    program: BTreeMap<ProgramName, Spanned<Settings>>,
}

/// What stands behind `program.`: a pattern of programs.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
struct ProgramName(#[serde(deserialize_with = "program_name")] String);

fn program_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    program_glob(&name).map(|_| name).map_err(de::Error::custom)
}

fn program_glob(name: &str) -> Result<Glob, String> {
    let glob = GlobBuilder::new(name).literal_separator(true).build();
    glob.map_err(|e| format!("[program.{name:?}] is no pattern of programs: {}", e.kind()))
}

/// An entry for a program.
#[derive(Debug)]
struct Entry {
    name: String,
    /// Matches names, or paths if it has a slash.
    pattern: GlobMatcher,
    settings: Settings,
}

/// A program, as entries know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramPaths<'a> {
    /// Where it was found.
    pub(crate) path: &'a Path,
    /// The same without links: what `python3` stands for.
    pub(crate) resolved: &'a Path,
}

impl Entry {
    fn is_exactly(&self, program: ProgramPaths<'_>) -> bool {
        let name = Path::new(&self.name);
        let whole = self.name.contains('/');
        [program.path, program.resolved].iter().any(|path| {
            if whole { *path == name } else { path.file_name() == Some(name.as_os_str()) }
        })
    }

    fn matches(&self, program: ProgramPaths<'_>) -> bool {
        let whole = self.name.contains('/');
        [program.path, program.resolved].iter().any(|path| {
            let subject = if whole { Some(path.as_os_str()) } else { path.file_name() };
            subject.is_some_and(|subject| self.pattern.is_match(subject))
        })
    }
}

/// One configuration file.
#[derive(Debug, Default)]
struct File {
    entries: Vec<Entry>,
    default: Settings,
}

impl File {
    fn parse(text: &str) -> Result<File, String> {
        let document: Document = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut programs: Vec<_> = document.program.into_iter().collect();
        programs.sort_by_key(|(_, settings)| settings.span().start);
        let mut file = File::default();
        for (ProgramName(name), settings) in programs {
            let settings = settings.into_inner();
            if name == DEFAULT_ENTRY {
                file.default = settings;
                continue;
            }
            let pattern = program_glob(&name)?.compile_matcher();
            file.entries.push(Entry { name, pattern, settings });
        }
        Ok(file)
    }
}

/// What the configuration files say; the user's comes first.
#[derive(Debug, Default)]
pub(crate) struct Config {
    files: Vec<File>,
    /// Those that are read, for messages.
    pub(crate) places: Vec<PathBuf>,
}

impl Config {
    /// Reads one file, or those at the usual places, where there are any.
    ///
    /// # Errors
    /// A file cannot be read, or is wrong: the message has the line and the column.
    pub(crate) fn load(given: Option<&Path>) -> Result<Config, Failure> {
        let places = given.map_or_else(usual_places, |path| vec![path.to_owned()]);
        let mut config = Config { files: Vec::new(), places };
        for path in &config.places {
            let bytes = match std::fs::read(path) {
                Ok(bytes) => bytes,
                Err(e) if given.is_none() && is_no_file(&e) => continue,
                // Somebody else's, where the environment came along: `setpriv`, `sudo -E`.
                Err(e) if given.is_none() && e.kind() == io::ErrorKind::PermissionDenied => {
                    say(&format!("passed over the configuration {}: {e}", path.display()));
                    continue;
                }
                Err(e) => {
                    let text = format!("cannot read the configuration {}: {e}", path.display());
                    return Err(Failure::new(Kind::Usage, text));
                }
            };
            let file = text_of(&bytes).and_then(File::parse).map_err(|e| {
                let text =
                    format!("the configuration {} is wrong: {}", path.display(), e.trim_end());
                Failure::new(Kind::Usage, text)
            })?;
            config.files.push(file);
        }
        Ok(config)
    }

    /// Whether an entry that is for this program, and not for all, names files.
    pub(crate) fn names_files_of(&self, program: ProgramPaths<'_>) -> bool {
        self.specific(program)
            .any(|settings| settings.files.as_ref().is_some_and(|files| !files.is_empty()))
    }

    /// What is said about a program: first by entries that name it, then by patterns that match it
    /// (of each, those of the user's file first, in the order written), then by `all`.
    pub(crate) fn settings(&self, program: ProgramPaths<'_>) -> Settings {
        let defaults = self.files.iter().map(|file| &file.default);
        self.specific(program).chain(defaults).fold(Settings::default(), Settings::or)
    }

    /// What entries say that name a program or match it, in the same order.
    fn specific<'a>(&'a self, program: ProgramPaths<'a>) -> impl Iterator<Item = &'a Settings> {
        let entries = || self.files.iter().flat_map(|file| &file.entries);
        let named = entries().filter(move |entry| entry.is_exactly(program));
        let matched =
            entries().filter(move |entry| !entry.is_exactly(program) && entry.matches(program));
        named.chain(matched).map(|entry| &entry.settings)
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| {
        let (before, from) = bytes.split_at(error.valid_up_to());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let shown = from[..error.error_len().unwrap_or(from.len())].escape_ascii();
        format!("line {line} has \"{shown}\", which is not UTF-8: write the file in UTF-8")
    })
}

fn is_no_file(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn usual_places() -> Vec<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = home.map(|home| home.join("pagekeeper/config.toml"));
    user.into_iter().chain([PathBuf::from(SYSTEM_FILE)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(texts: &[&str]) -> Config {
        let files = texts.iter().map(|text| File::parse(text).unwrap()).collect();
        Config { files, places: Vec::new() }
    }

    fn settings(config: &Config, path: &str) -> (Option<String>, Option<u64>) {
        let path = Path::new(path);
        let settings = config.settings(ProgramPaths { path, resolved: path });
        (settings.policy.map(|p| p.to_string()), settings.memory.map(|m| m.0))
    }

    #[test]
    fn specific_entries_come_before_patterns_and_patterns_before_all() {
        let config = config(&[
            "[program.all]\npolicy = 'lru'\nmemory = '1M'\n\
             [program.'py*']\npolicy = 'clock'\n\
             [program.'/opt/*/bin/tool']\npolicy = 'random'\n\
             [program.'python*']\nmemory = '5M'\n\
             [program.python3]\npolicy = 'fifo'\n",
            "[program.python3]\npolicy = 'mru'\nmemory = '9M'\n[program.ls]\nmemory = '7M'",
        ]);
        let some = |policy: &str, mib: u64| (Some(policy.to_owned()), Some(mib << 20));
        assert_eq!(settings(&config, "/usr/bin/python3"), some("fifo", 9));
        assert_eq!(settings(&config, "/usr/bin/python2"), some("clock", 5));
        assert_eq!(settings(&config, "/opt/x/bin/tool"), some("random", 1));
        assert_eq!(settings(&config, "/opt/x/y/bin/tool"), some("lru", 1));
        assert_eq!(settings(&config, "/bin/ls"), some("lru", 7));
        let links =
            ProgramPaths { path: Path::new("/bin/py"), resolved: Path::new("/bin/python3") };
        assert_eq!(config.settings(links).policy.unwrap().name(), "fifo");
        assert_eq!(Config::default().settings(links), Settings::default());
    }

    #[test]
    fn all_fields_are_read() {
        let text = "[program.all]\npolicy = 'fifo2:inactive=1/2'\nmemory = '1.5G'\n\
                    files = ['*.db', '/data/**']\nmin_size = '64k'\nsampling = 5\n\
                    from_start = true
                    delay_writes = true";
        let settings = File::parse(text).unwrap().default;
        assert_eq!(settings.memory, Some(Size(3 << 29)));
        assert_eq!(settings.min_size, Some(Size(65536)));
        assert_eq!(settings.sampling, SamplingShare::of_percent(5).ok());
        assert_eq!(settings.files.as_ref().unwrap().len(), 2);
        assert_eq!(settings.from_start, Some(true));
        assert_eq!(settings.delay_writes, Some(true));
        assert_eq!(settings.policy.unwrap().name(), "fifo2");
    }

    #[test]
    fn errors_have_line_column_and_caret() {
        for (text, place, what) in [
            ("[program.a]\npolicy = 'lruu'", "line 2, column 10", "did you mean `lru`"),
            ("[program.a]\nmemory = '64X'", "line 2, column 10", "not a size"),
            ("[program.a]\nsampling = 101", "line 2, column 12", "from 0 (no sampling) to 100"),
            ("[program.a]\nsampling = -1", "line 2, column 12", "from 0 (no sampling) to 100"),
            ("[program.a]\nsampling = 'x'", "line 2, column 12", "from 0 (no sampling) to 100"),
            ("[program.a]\nmemory = 64", "line 2, column 10", "string"),
            ("[program.a]\nfiles = ['a', '[']", "line 2, column 9", "'[': unclosed"),
            ("[program.a]\npolicies = 'lru'", "line 2, column 1", "unknown field `policies`"),
            ("[programs.a]\n", "line 1, column 2", "unknown field `programs`"),
            ("[program.a]\nfiles = ['./x.db']", "line 2, column 9", "as /data/x.db"),
            ("[program.a]\nfiles = ['']", "line 2, column 9", "an empty pattern"),
            ("[program.a]\nmemory = '4K'", "line 2, column 10", "takes 64 KiB or more"),
            ("[program.a]\npolicy = 'opt'", "line 2, column 10", "runs in the simulator alone"),
            ("[program]\nmemory = '8M'", "line 2, column 10", "[program.NAME]"),
            ("[program.a]\n[program.'a[']", "line 2, column 10", "no pattern of programs"),
            ("[program.a]\n[program.a]", "line 2, column", "duplicate"),
            ("[program", "line 1, column 9", ""),
        ] {
            let message = File::parse(text).unwrap_err();
            assert!(message.contains(place), "{text}: {message}");
            assert!(message.contains(what) && message.contains('^'), "{text}: {message}");
        }
        let error = text_of(b"# \xc3\xa9\n[program.a]\nfiles = ['\xe9.db']").unwrap_err();
        assert!(error.starts_with("line 3 has \"\\xe9\", which is not UTF-8"), "{error}");
    }

    /// That nothing matched them was said of patterns of the command line alone.
    #[test]
    fn files_are_named_for_a_program_by_its_own_entry() {
        let config = config(&["[program.all]\nfiles = ['*.db']\n\
                               [program.'py*']\nfiles = ['*.npy']\n[program.ls]\nfiles = []"]);
        let names = |path: &str| {
            let path = Path::new(path);
            config.names_files_of(ProgramPaths { path, resolved: path })
        };
        assert!(names("/bin/python3"));
        assert!(!names("/bin/ls") && !names("/bin/cat"));
    }
}
