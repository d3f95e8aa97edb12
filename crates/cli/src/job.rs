//! A program to run under a policy: from the command line and the configuration to the engine.

use crate::config::{Config, ProgramPaths, Settings};
use crate::failure::{Failure, Kind};
use crate::report::say;
use crate::size::Size;
use crate::{account, file_pattern, output, program, report, signals};
use pagekeeper::engine::stats::Stats;
use pagekeeper::launch::{self, HeapOptions, Hooks, Options, Outcome};
use pagekeeper::manager::selection::{MIN_SIZE_BYTES_DEFAULT, Selection};
use pagekeeper_frames::SamplingShare;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sys::elf;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Leaves every file to the kernel, if it is 1.
const ENV_DISABLE: &str = "PAGEKEEPER_DISABLE";
/// Files passed through that are named on stderr; all are in the statistics.
const PASSED_THROUGH_SHOWN_MAX: usize = 5;

/// What `run`, `record` and `tune` are told alike.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct JobArgs {
    /// Memory for the program's files: a bound on everything of ours
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) memory: Option<Size>,
    /// Manage files of this name or path, as '*.db' or '/data/**'; may be repeated [default: every
    /// file of the least size]
    #[arg(long, value_name = "GLOB", value_parser = file_pattern::of_command_line)]
    pub(crate) files: Vec<String>,
    /// Manage only files of at least this size [default: 1M]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) min_size: Option<Size>,
    /// Manage heap memory too: allocations of at least this size [default: 1M]
    #[arg(
        long,
        value_name = "SIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1M"
    )]
    pub(crate) heap: Option<Size>,
    /// Where heap memory goes that does not fit: a nameless file in this directory [default:
    /// $TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR", requires = "heap")]
    pub(crate) heap_dir: Option<PathBuf>,
    /// Read this configuration, and not the user's and the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG ARGS")]
    pub(crate) command: Vec<OsString>,
}

/// A run, with nothing left open.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) policy: PolicySpec,
    pub(crate) memory: Size,
    pub(crate) files: Vec<String>,
    pub(crate) min_size: Size,
    pub(crate) heap: Option<HeapOptions>,
    pub(crate) sampling: SamplingShare,
    /// Files are managed from their first use.
    pub(crate) from_start: bool,
    pub(crate) delay_writes: bool,
    pub(crate) command: Vec<OsString>,
    /// The command line names files, or the configuration does for this program.
    pub(crate) files_given: bool,
    /// Where its program was found.
    pub(crate) path: PathBuf,
}

impl JobArgs {
    /// Completes the command line from the configuration.
    ///
    /// # Errors
    /// The program cannot be found or reached; the configuration is wrong; or neither says how much
    /// memory.
    pub(crate) fn resolve(
        self,
        policy: Option<PolicySpec>,
        policy_default: &str,
        sampling: Option<SamplingShare>,
    ) -> Result<Job, Failure> {
        let config = Config::load(self.config.as_deref())?;
        let found = program::find(&self.command[0])?;
        program::check_reachable(&found)?;
        let path = std::path::absolute(&found).unwrap_or_else(|_| found.clone());
        let resolved = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let known = ProgramPaths { path: &path, resolved: &resolved };
        let files_given = !self.files.is_empty() || config.names_files_of(known);
        let given = Settings {
            policy,
            memory: self.memory,
            files: (!self.files.is_empty()).then_some(self.files),
            min_size: self.min_size,
            sampling,
            from_start: None,
            delay_writes: None,
        };
        let settings = given.or(&config.settings(known));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let no_memory = || {
            let places: Vec<String> =
                config.places.iter().map(|place| place.display().to_string()).collect();
            let text = format!(
                "no memory is given for {name}: use --memory 256M, or write an entry \
                 [program.{name}] or [program.all] into {}",
                places.join(" or ")
            );
            Failure::new(Kind::Usage, text)
        };
        let scratch = self
            .heap_dir
            .or_else(|| std::env::var_os("TMPDIR").map(PathBuf::from))
            .unwrap_or_else(|| "/var/tmp".into());
        Ok(Job {
            heap: self.heap.map(|least| HeapOptions {
                min_bytes: least.0,
                scratch,
                compressed_percent: 0,
            }),
            policy: match settings.policy {
                Some(policy) => policy,
                None => PolicySpec::parse(policy_default)?,
            },
            memory: settings.memory.ok_or_else(no_memory)?,
            files: settings.files.unwrap_or_default(),
            min_size: settings.min_size.unwrap_or(Size(MIN_SIZE_BYTES_DEFAULT)),
            sampling: settings.sampling.unwrap_or_default(),
            from_start: settings.from_start.unwrap_or(false),
            delay_writes: settings.delay_writes.unwrap_or(false),
            command: self.command,
            files_given,
            path: found,
        })
    }
}

impl Job {
    /// What to say where nothing was managed: what of the program's could have been, and what to do.
    /// What was passed through was named with its reason. `files` were managed, and not touched.
    pub(crate) fn nothing_managed(&self, files: usize, is_passed_through: bool) -> String {
        let program = self.command[0].to_string_lossy();
        if std::env::var_os(ENV_DISABLE).is_some_and(|value| value == "1") {
            return format!(
                "{ENV_DISABLE}=1 is set, and leaves every file of {program} to the kernel: unset it"
            );
        }
        let unseen = if elf::is_go(&self.path) {
            "what Go code does without libc, and what the kernel copies for it, is not seen"
        } else {
            "what the kernel copies for it, as for cp, is not seen"
        };
        if files > 0 {
            let of = if files == 1 { "its managed file" } else { "the files that were managed" };
            return format!(
                "{program} touched no page of {of}, by a mapping or a read call ({unseen})"
            );
        }
        if is_passed_through {
            return format!("nothing of {program} was managed: all was left to the kernel (above)");
        }
        let (no_heap, or_lower) = match &self.heap {
            None => (String::new(), ""),
            Some(heap) => {
                let least = Size(heap.min_bytes);
                (
                    format!(", nor allocated {least} or more at once"),
                    ", or the least size of --heap",
                )
            }
        };
        let matching = match self.files.as_slice() {
            [] => String::new(),
            files => format!(" that matches {}", files.join(" or ")),
        };
        format!(
            "{program} mapped or read no file of {} or more{matching}{no_heap} ({unseen}): nothing was \
             managed. Name its files with --files, or lower --min-size{or_lower}",
            self.min_size,
        )
    }

    /// The same for the engine.
    ///
    /// # Errors
    /// A pattern is wrong, or the preload library is missing.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        let (program, arguments) = self.command.split_first().expect("clap requires a program");
        Ok(Options {
            program: program.clone(),
            path: self.path.clone(),
            arguments: arguments.to_vec(),
            policy: self.policy.clone(),
            memory_bytes: self.memory.0,
            selection: Selection::new(&self.files, self.min_size.0)?,
            heap: self.heap.clone(),
            record: None,
            sampling: self.sampling,
            window_pages: None,
            preload: program::preload()?,
            seed: 0,
            standby: false,
            delay_writes: false,
            hooks: Hooks { prepare: Some(signals::prepare), started: Some(signals::forward_to) },
            control: None,
        })
    }
}

/// What is told of a run.
#[derive(Debug)]
pub(crate) struct Telling<'a> {
    /// The file that gets the statistics.
    pub(crate) stats: Option<&'a Path>,
    /// The option that names the trace.
    pub(crate) record_option: &'static str,
    /// Everything.
    pub(crate) verbose: bool,
    /// The job, if it is to be said that nothing of it was managed.
    pub(crate) nothing_managed_of: Option<&'a Job>,
}

/// Runs the program, reports on stderr what the user must know, and gives the program's exit code
/// or dies of the signal that ended it.
///
/// # Errors
/// It could not be started; or it succeeded, and data of it or of ours could not be written.
pub(crate) fn execute(options: &Options, telling: &Telling<'_>) -> Result<ExitCode, Failure> {
    if let Some(path) = telling.stats {
        output::check_writable("--stats", path)?;
    }
    if let Some((path, _)) = &options.record {
        output::check_writable(telling.record_option, path)?;
        if telling.stats.is_some_and(|stats| output::is_same_place(stats, path)) {
            let text = format!(
                "{} and --stats name one file, {}: name two",
                telling.record_option,
                path.display()
            );
            return Err(Failure::new(Kind::Usage, text));
        }
    }
    signals::take_over();
    let outcome = launch::run(options)?;
    tell(&outcome, telling.verbose);
    let total = &outcome.stats.total;
    let faults = total.major_faults + total.minor_faults + total.write_faults;
    let is_recorded_in_vain = options.record.is_some() && faults == 0;
    // What stood by was looked at, and would have been managed.
    if (outcome.stats.files.is_empty() || is_recorded_in_vain)
        && outcome.stats.standby.is_none()
        && let Some(job) = telling.nothing_managed_of
    {
        let stats = &outcome.stats;
        say(&job.nothing_managed(stats.files.len(), !stats.passed_through.is_empty()));
    }
    let mut failures = Vec::new();
    if !outcome.unwritten.is_empty() {
        for (file, reason) in &outcome.unwritten {
            say(&format!("{file}: written data could not be stored: {reason}"));
        }
        let text = "the files named above do not hold all that the program wrote";
        failures.push(Failure::new(Kind::Output, text));
    }
    if let (Some(Err(error)), Some((path, _))) = (&outcome.recorded, &options.record) {
        let text = format!("recording to {}: {error}", path.display());
        failures.push(Failure::new(Kind::Output, text));
    }
    if let Some(path) = telling.stats
        && let Err(error) = output::write(path, report::json(&outcome.stats).as_bytes())
    {
        failures.push(Failure::write(format!("the statistics to {}", path.display()), &error));
    }
    let status = outcome.status;
    let last = if status.success() { failures.pop() } else { None };
    for failure in failures {
        say(&failure.to_string());
    }
    if let Some(failure) = last {
        return Err(failure);
    }
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => signals::die_of(signal),
        (None, None) => ExitCode::FAILURE,
    })
}

fn tell(outcome: &Outcome, verbose: bool) {
    let stats = &outcome.stats;
    let shown = if verbose { usize::MAX } else { PASSED_THROUGH_SHOWN_MAX };
    for file in stats.passed_through.iter().take(shown) {
        say(&format!("{} was left to the kernel: {}", file.name, file.reason));
    }
    let more = stats.passed_through.len().saturating_sub(shown);
    if more > 0 {
        say(&format!("{more} more files were left to the kernel (-v or --stats names them)"));
    }
    for note in &stats.notes {
        say(note);
    }
    tell_policies(stats, verbose);
    if verbose {
        tell_counts(stats);
        if let Some(Ok(records)) = &outcome.recorded {
            say(&format!("recorded {} events", report::count(*records)));
        }
    }
}

/// What programs did, if they failed at something or everything is to be said.
fn tell_policies(stats: &Stats, verbose: bool) {
    for report in &stats.policies {
        let Some(account) = &report.account else { continue };
        let Some(text) = account::sentence(account) else { continue };
        if verbose || account::has_failures(account) {
            say(&format!("{}: {text}", report.policy));
        }
        if verbose {
            for note in account::notes(account) {
                say(&format!("{}: {note}", report.policy));
            }
        }
    }
}

fn tell_counts(stats: &Stats) {
    let total = &stats.total;
    let files = stats.files.len();
    let policies: Vec<&str> = stats.policies.iter().map(|report| &*report.policy).collect();
    say(&format!(
        "{} in {}: {} in {files} managed {}; major faults {}, minor {}, write {}; evictions {}; read \
         {}, written {}",
        policies.join(", then "),
        Size(stats.memory_bytes),
        report::duration(stats.elapsed_ns as f64),
        if files == 1 { "file" } else { "files" },
        report::count(total.major_faults),
        report::count(total.minor_faults),
        report::count(total.write_faults),
        report::count(total.evictions),
        Size(total.read_bytes),
        Size(total.written_bytes),
    ));
    if let Some(standby) = &stats.standby {
        let time = report::duration(standby.ns as f64);
        say(&match &standby.end {
            Some(end) => {
                format!("files were the kernel's for {time}, until {end}")
            }
            None => format!("files were the kernel's all the time ({time}): nothing was to be won"),
        });
    }
    if let Some(compressed) = stats.compressed.filter(|c| c.kept_pages + c.refused_pages > 0) {
        say(&format!(
            "heap pages compressed in at most {} (of {}): {} kept, in {} bytes each; {} refused, {} \
             written after all, {} came back",
            Size(compressed.memory_bytes_max),
            Size(compressed.limit_bytes),
            report::count(compressed.kept_pages),
            compressed.page_bytes,
            report::count(compressed.refused_pages),
            report::count(compressed.written_pages),
            report::count(compressed.found_pages),
        ));
    }
    if let Some(percent) = stats.sampling_percent.filter(|percent| *percent > 0) {
        // Where nothing had to leave, there is nothing to compare with.
        let compared = match total.evictions {
            0 => String::new(),
            evictions => {
                let per_hundred = 100.0 * stats.touches_seen as f64 / evictions as f64;
                format!(", {per_hundred:.1} for each 100 evictions")
            }
        };
        say(&format!(
            "sampling for at most {percent}% of the time that misses take: {} pages unmapped, {} \
             touches seen{compared} (two cost about as much as a miss)",
            report::count(stats.unmapped_pages),
            report::count(stats.touches_seen),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Below "in 4 managed files" stood that there was no file.
    #[test]
    fn what_was_managed_and_not_touched_is_not_said_to_be_missing() {
        let job = Job {
            policy: PolicySpec::parse("lru").unwrap(),
            memory: Size(1 << 20),
            files: Vec::new(),
            min_size: Size(1 << 20),
            heap: None,
            sampling: SamplingShare::default(),
            from_start: false,
            delay_writes: false,
            command: vec!["prog".into()],
            files_given: false,
            path: "/bin/prog".into(),
        };
        let text = job.nothing_managed(0, false);
        assert!(text.starts_with("prog mapped or read no file") && text.contains("--min-size"));
        for is_passed_through in [false, true] {
            let text = job.nothing_managed(4, is_passed_through);
            assert!(text.starts_with("prog touched no page of the files that were"), "{text}");
            assert!(!text.contains("--min-size") && text.contains("cp"), "{text}");
        }
    }
}
