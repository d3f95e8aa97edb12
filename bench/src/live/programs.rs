//! The UBM paper's programs, the real ones where there is a package of them today, on data of about
//! its sizes: cpp on 8 MB of C sources, cscope on as much, a join of four relations, a search
//! through 25 MB of text, 16 MiB read once.

use crate::machine::Machine;
use crate::run::{Program, beside};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of a combination.
#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) name: &'static str,
    shell: String,
    /// Folders and files that it reads.
    files: Vec<PathBuf>,
    pub(super) own: Own,
}

/// What programs have in memory besides pages of files: anonymous memory and the kernel's for them,
/// as a cgroup counted it every 2 ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    /// On average over a run, in bytes.
    pub(super) mean: u64,
    /// The most, and a little more, in bytes.
    pub(super) most: u64,
}

const fn own_kib(mean: u64, most: u64) -> Own {
    Own { mean: mean << 10, most: most << 10 }
}

/// The program that starts the others.
const DRIVER: Own = own_kib(1024, 1024);

/// Several as one, run at the same time, and the memory that they take besides pages of files.
pub(super) fn together(apps: &[App]) -> Result<(Program, Own)> {
    let mut command = vec![beside("pagekeeper-together")?.into_os_string()];
    command.extend(apps.iter().map(|app| OsString::from(format!("{}={}", app.name, app.shell))));
    let mut files: Vec<PathBuf> = apps.iter().flat_map(|app| app.files.clone()).collect();
    files.sort();
    files.dedup();
    let owned = apps
        .iter()
        .map(|app| app.own)
        .fold(DRIVER, |all, own| Own { mean: all.mean + own.mean, most: all.most + own.most });
    Ok((Program::new(command, files), owned))
}

/// Every program that is installed, its data built if need be; says what is missing.
pub(super) fn all(machine: &Machine) -> Result<Vec<App>> {
    let python = machine.python();
    let scripted = |name: &str, script: &str| {
        machine.built(name, |part| {
            succeeds(Command::new(&python).args(["-c", script]).arg(part), "make setup")
        })
    };
    let sources = scripted("live-sources", include_str!("../suite/sources.py"))?;
    let relations = machine.built("live-relations.db", |part| {
        let sql = include_str!("../suite/wisconsin.sql");
        succeeds(Command::new("sqlite3").arg(part).arg(sql), "make setup")
    })?;
    let film = machine.file(4096)?;
    let mut apps = vec![
        App {
            name: "cpp",
            // Some headers say that they are not to be included by themselves; that counts, too.
            shell: format!(
                "cd {}; for unit in units/*.c; do cpp -w -nostdinc -I. -Icompiler $unit 2>&1; done; \
                 true",
                sources.display()
            ),
            files: vec![sources.clone()],
            own: own_kib(3300, 6400),
        },
        App {
            name: "postgres",
            shell: format!(
                "sqlite3 {} '{}'",
                relations.display(),
                include_str!("../suite/joins.sql")
            ),
            files: vec![relations],
            own: own_kib(950, 1400),
        },
        App {
            name: "video",
            shell: format!("sha256sum {}", film.display()),
            files: vec![film],
            own: own_kib(600, 600),
        },
    ];
    if installed("cscope") {
        let index = machine.built("live-cscope.out", |part| {
            let arguments = ["-b", "-c", "-u", "-i", "cscope.files", "-f"];
            let mut command = Command::new("cscope");
            succeeds(command.args(arguments).arg(part).current_dir(&sources), "make bench-live")
        })?;
        apps.push(App {
            name: "cscope",
            // Symbols, definitions, callers and includes from the index, and now and then a pattern, which
            // reads the sources themselves.
            shell: format!(
                "cd {}; for word in size_t ioctl flags mode addr type len data; do \
                 printf '0%s\\n1%s\\n3%s\\n8%s\\n' $word $word $word $word; \
                 [ $word != mode ] || echo '6struct +ifreq'; done | cscope -d -l -f {}",
                sources.display(),
                index.display()
            ),
            files: vec![index, sources],
            own: own_kib(1150, 1400),
        });
    }
    if installed("glimpse") {
        let text = scripted("live-text", include_str!("../suite/text.py"))?;
        let index = machine.built("live-glimpse", |part| {
            std::fs::create_dir(part)?;
            let mut command = Command::new("glimpseindex");
            succeeds(command.arg("-H").arg(part).arg(text.join("texts")), "make bench-live")
        })?;
        apps.push(App {
            name: "glimpse",
            shell: format!(
                "while read -r word; do glimpse -H {} -y -h $word </dev/null; done < {}",
                index.display(),
                text.join("queries").display()
            ),
            files: vec![index, text],
            own: own_kib(1900, 2800),
        });
    }
    Ok(apps)
}

fn succeeds(command: &mut Command, remedy: &str) -> Result<()> {
    let done = command.stdout(std::process::Stdio::null()).status();
    let done = done.with_context(|| format!("{command:?} ({remedy})"))?;
    ensure!(done.success(), "{command:?} failed");
    Ok(())
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).any(|folder| Path::new(&folder).join(program).is_file());
    if !found {
        println!("skipped: there is no {program} here (make bench-live installs it)\n");
    }
    found
}
