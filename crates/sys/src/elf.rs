//! What a program file is, and whether a preload library can reach it.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

/// The architecture that this build runs on.
const OWN_MACHINE: elf::Machine = if cfg!(target_arch = "x86_64") {
    elf::EM_X86_64
} else if cfg!(target_arch = "aarch64") {
    elf::EM_AARCH64
} else {
    elf::EM_NONE
};

/// Interpreters of interpreters, as far as the kernel follows them.
const SCRIPT_DEPTH_MAX: usize = 4;

/// What the file is, once script interpreters are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamically linked program, with its dynamic linker.
    Dynamic {
        /// The path in PT_INTERP.
        linker: PathBuf,
    },
    /// A program without a dynamic linker.
    Static,
    /// An ELF file of another architecture or word size.
    OtherArchitecture,
    /// No program that the kernel would execute.
    NotAProgram,
}

/// Why a preload library cannot work in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Statically linked: no library is loaded.
    Static(PathBuf),
    /// Built for another architecture.
    OtherArchitecture(PathBuf),
    /// Set-user-id or set-group-id: the dynamic linker ignores LD_PRELOAD.
    SetId(PathBuf),
    /// It has file capabilities, to the same effect.
    FileCapabilities(PathBuf),
    /// Its dynamic linker is not the one of this library's C library.
    ForeignLinker(PathBuf, PathBuf),
    /// Not a program.
    NotAProgram(PathBuf, String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static(p) => write!(
                f,
                "{} is statically linked, so no library can be loaded into it; use a dynamically \
                 linked build",
                p.display()
            ),
            Obstacle::OtherArchitecture(p) => write!(
                f,
                "{} is built for another architecture than this pagekeeper; use a {} build",
                p.display(),
                std::env::consts::ARCH
            ),
            Obstacle::SetId(p) => write!(
                f,
                "{} is set-user-id or set-group-id, so the system ignores preloaded libraries; \
                 run a copy without the bit: cp {0} /tmp/ && chmod ug-s /tmp/{1}",
                p.display(),
                file_name(p)
            ),
            Obstacle::FileCapabilities(p) => write!(
                f,
                "{} has file capabilities, so the system ignores preloaded libraries; run a copy \
                 without them: cp {0} /tmp/{1}",
                p.display(),
                file_name(p)
            ),
            Obstacle::ForeignLinker(p, linker) => write!(
                f,
                "{} uses the dynamic linker {}, which is not glibc's; use a build for glibc",
                p.display(),
                linker.display()
            ),
            Obstacle::NotAProgram(p, why) => write!(f, "{} is no program: {why}", p.display()),
        }
    }
}

fn file_name(path: &Path) -> std::path::Display<'_> {
    Path::new(path.file_name().unwrap_or(path.as_os_str())).display()
}

/// What was found out about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file that is executed in the end: the program or its (last) interpreter.
    pub executed: PathBuf,
    /// The scripts on the way there, first the one asked for; empty for a binary.
    pub scripts: Vec<PathBuf>,
    /// What the executed file is.
    pub kind: Kind,
    /// Why a preload library cannot work in it; empty if it can.
    pub reasons: Vec<Obstacle>,
}

impl Program {
    /// Whether a preload library works in it.
    pub fn is_reachable(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// Whether a program was built by Go's compiler: what it does by itself it asks the kernel for without libc,
/// and so unseen by a preload library. False of what is no program.
pub fn is_go(path: impl AsRef<Path>) -> bool {
    /// The type of the note that holds Go's build identifier.
    const BUILD_ID: u32 = 4;
    let notes = || -> Result<bool, object::read::Error> {
        let Ok(file) = File::open(path) else { return Ok(false) };
        let data = ReadCache::new(file);
        let header = FileHeader64::<LittleEndian>::parse(&data)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, &data)? {
            let Some(mut notes) = segment.notes(endian, &data)? else { continue };
            while let Some(note) = notes.next()? {
                if note.name() == b"Go" && note.n_type(endian) == elf::NoteType(BUILD_ID) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    notes().unwrap_or(false)
}

/// Finds a program as `execvp(3)` does: a name without `/` on `path_list` (the value of PATH).
/// `None` if there is none that may be executed.
pub fn find(name: &Path, path_list: &std::ffi::OsStr) -> Option<PathBuf> {
    let executable = |p: &Path| {
        fs::metadata(p).is_ok_and(|m| m.is_file())
            && rustix::fs::access(p, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if name.as_os_str().as_bytes().contains(&b'/') {
        return executable(name).then(|| name.to_owned());
    }
    std::env::split_paths(path_list)
        .map(|dir| if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir })
        .map(|dir| dir.join(name))
        .find(|p| executable(p))
}

/// Finds out what a program file is, following `#!` lines.
pub fn inspect(path: impl AsRef<Path>) -> Program {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    inspect_for(path.as_ref(), (user.as_raw(), group.as_raw()), &Path::to_owned)
}

/// [`inspect`] of a program that a process of this user and group would execute: where that finds it, and its
/// interpreters, `place` says.
pub fn inspect_for(path: &Path, user: (u32, u32), place: &dyn Fn(&Path) -> PathBuf) -> Program {
    let mut executed = path.to_owned();
    let mut scripts = Vec::new();
    loop {
        let found = place(&executed);
        let examined = examine(&found);
        match examined {
            Ok(Examined::Script(interpreter)) if scripts.len() < SCRIPT_DEPTH_MAX => {
                scripts.push(core::mem::replace(&mut executed, interpreter));
            }
            Ok(Examined::Script(_)) => {
                let why = "its interpreters are scripts, too many deep".to_owned();
                let reasons = vec![Obstacle::NotAProgram(executed.clone(), why)];
                return Program { executed, scripts, kind: Kind::NotAProgram, reasons };
            }
            Ok(Examined::Binary(kind)) => {
                let mut reasons = reasons_of(&executed, &kind);
                reasons.extend(privilege(&executed, &found, user));
                return Program { executed, scripts, kind, reasons };
            }
            Err(why) => {
                let reasons = vec![Obstacle::NotAProgram(executed.clone(), why)];
                return Program { executed, scripts, kind: Kind::NotAProgram, reasons };
            }
        }
    }
}

fn reasons_of(path: &Path, kind: &Kind) -> Vec<Obstacle> {
    let path = path.to_owned();
    match kind {
        // musl's linker is /lib/ld-musl-ARCH.so.1; its C library has other private symbols.
        Kind::Dynamic { linker }
            if linker.as_os_str().as_bytes().windows(4).any(|w| w == b"musl") =>
        {
            vec![Obstacle::ForeignLinker(path, linker.clone())]
        }
        Kind::Dynamic { .. } | Kind::NotAProgram => vec![],
        Kind::Static => vec![Obstacle::Static(path)],
        Kind::OtherArchitecture => vec![Obstacle::OtherArchitecture(path)],
    }
}

/// Privileges that executing the file would add, which make the dynamic linker distrust the
/// environment (AT_SECURE). Capabilities add nothing for root.
fn privilege(path: &Path, found: &Path, (user, group): (u32, u32)) -> Option<Obstacle> {
    let metadata = fs::metadata(found).ok()?;
    let set_user = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != user;
    let set_group = metadata.mode() & (libc::S_ISGID | libc::S_IXGRP)
        == libc::S_ISGID | libc::S_IXGRP
        && metadata.gid() != group;
    if set_user || set_group {
        return Some(Obstacle::SetId(path.to_owned()));
    }
    if user == 0 {
        return None;
    }
    let mut value = [0u8; 64];
    let has = rustix::fs::getxattr(found, "security.capability", &mut value[..]).is_ok();
    has.then(|| Obstacle::FileCapabilities(path.to_owned()))
}

enum Examined {
    Script(PathBuf),
    Binary(Kind),
}

fn examine(path: &Path) -> Result<Examined, String> {
    let metadata = fs::metadata(path).map_err(|e| e.to_string())?;
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    // As much as the kernel looks at (BINPRM_BUF_SIZE).
    let mut head = Vec::with_capacity(256);
    Read::by_ref(&mut file).take(256).read_to_end(&mut head).map_err(|e| e.to_string())?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return interpreter(line).map(Examined::Script);
    }
    if !head.starts_with(&elf::ELFMAG) {
        return Err("it is neither an ELF file nor a script with #!".to_owned());
    }
    // The fifth byte is the word size, the sixth the byte order; both 1 or 2.
    if head.get(4..6) != Some(&[2, 1]) {
        return Ok(Examined::Binary(Kind::OtherArchitecture));
    }
    let damaged = |e: object::read::Error| format!("its ELF headers are damaged ({e})");
    let data = ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(&data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    if header.e_machine(endian) != OWN_MACHINE {
        return Ok(Examined::Binary(Kind::OtherArchitecture));
    }
    let kind = header.e_type(endian);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err("it is an object file or a core dump".to_owned());
    }
    for segment in header.program_headers(endian, &data).map_err(damaged)? {
        if segment.p_type(endian) == elf::PT_INTERP
            && segment.p_filesz(endian) > libc::PATH_MAX as u64
        {
            return Err("the path of its dynamic linker is too long".to_owned());
        }
        if let Some(linker) = segment.interpreter(endian, &data).map_err(damaged)? {
            let linker = PathBuf::from(std::ffi::OsStr::from_bytes(linker));
            return Ok(Examined::Binary(Kind::Dynamic { linker }));
        }
    }
    Ok(Examined::Binary(Kind::Static))
}

/// The interpreter named in what follows `#!`.
fn interpreter(line: &[u8]) -> Result<PathBuf, String> {
    let end = line.iter().position(|b| *b == b'\n' || *b == 0).unwrap_or(line.len());
    let name = line[..end].trim_ascii().split(|b| *b == b' ' || *b == b'\t').next();
    match name {
        Some(name) if !name.is_empty() => Ok(PathBuf::from(std::ffi::OsStr::from_bytes(name))),
        _ => Err("its #! line names no interpreter".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn own() -> PathBuf {
        std::env::current_exe().unwrap()
    }

    #[test]
    fn own_test_binary_is_dynamic() {
        let program = inspect(own());
        assert!(matches!(program.kind, Kind::Dynamic { .. }), "{program:?}");
        assert!(program.is_reachable(), "{program:?}");
    }

    #[test]
    fn scripts_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        fs::write(&second, format!("#! {} -x\nrest", own().display())).unwrap();
        fs::write(&first, format!("#!{}", second.display())).unwrap();
        let program = inspect(&first);
        assert_eq!((program.executed.clone(), program.scripts.len()), (own(), 2), "{program:?}");
        assert!(program.is_reachable());
        fs::write(&second, format!("#!{}", first.display())).unwrap();
        assert_eq!(inspect(&first).kind, Kind::NotAProgram, "a circle ends");
        fs::write(&first, "#! \n").unwrap();
        assert!(inspect(&first).reasons[0].to_string().contains("names no interpreter"));
    }

    /// A little-endian 64-bit ELF header with no segments.
    fn bare_elf(machine: u16) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16] = 2; // e_type: ET_EXEC
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[20] = 1; // e_version
        bytes[52] = 64; // e_ehsize
        bytes
    }

    /// The same with one segment, which holds a note of this name (with its NUL) and type.
    fn elf_with_note(name: &[u8; 4], kind: u32) -> Vec<u8> {
        let mut bytes = bare_elf(OWN_MACHINE.0);
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        bytes[32] = 64; // e_phoff
        bytes[54] = 56; // e_phentsize
        bytes[56] = 1; // e_phnum
        bytes.extend(elf::PT_NOTE.0.to_le_bytes().into_iter().chain([0; 4]));
        let segment: Vec<u8> = numbers(&[120, 0, 0, 20, 20, 4]);
        bytes.extend(segment);
        let name_bytes = name.iter().position(|b| *b == 0).map_or(4, |nul| nul + 1);
        bytes.extend([name_bytes as u32, 4, kind].iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(name);
        bytes.extend(b"id01");
        bytes
    }

    #[test]
    fn programs_of_go_are_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let is_known = |bytes: Vec<u8>| {
            fs::write(file.path(), bytes).unwrap();
            is_go(file.path())
        };
        assert!(is_known(elf_with_note(b"Go\0\0", 4)));
        assert!(!is_known(elf_with_note(b"Go\0\0", 3)) && !is_known(elf_with_note(b"GNU\0", 4)));
        assert!(!is_known(bare_elf(OWN_MACHINE.0)) && !is_known(b"text".to_vec()));
        assert!(!is_go(own()) && !is_go("/nonexistent"));
    }

    #[test]
    fn what_cannot_be_reached_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        fs::write(&path, bare_elf(OWN_MACHINE.0)).unwrap();
        assert_eq!(inspect(&path).kind, Kind::Static);
        assert!(inspect(&path).reasons[0].to_string().contains("statically linked"));
        fs::write(&path, bare_elf(0xf7)).unwrap();
        assert_eq!(inspect(&path).kind, Kind::OtherArchitecture);
        fs::write(&path, b"plain text").unwrap();
        assert_eq!(inspect(&path).kind, Kind::NotAProgram);
        assert_eq!(inspect(dir.path()).kind, Kind::NotAProgram);
        assert!(!inspect("/nonexistent").is_reachable());

        fs::copy(own(), &path).unwrap();
        if std::os::unix::fs::chown(&path, Some(12345), Some(12345)).is_ok() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(inspect(&path).reasons, [Obstacle::SetId(path.clone())]);
            let of = |user| inspect_for(&path, (user, 1), &Path::to_owned).is_reachable();
            assert!(of(12345) && !of(12346), "it is its own");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            // VFS_CAP_REVISION_2 with CAP_NET_RAW permitted.
            let mut capability = [0u8; 20];
            capability[3] = 2;
            capability[5] = 0x20;
            let set = rustix::fs::setxattr(
                &path,
                "security.capability",
                &capability,
                rustix::fs::XattrFlags::empty(),
            );
            match set {
                Ok(()) => {
                    let obstacle = Obstacle::FileCapabilities(path.clone());
                    assert_eq!(privilege(&path, &path, (1, 1)), Some(obstacle));
                    assert_eq!(privilege(&path, &path, (0, 0)), None);
                }
                Err(errno) => eprintln!("skipped: file capabilities: {errno}"),
            }
        }
    }

    #[test]
    fn programs_are_found_on_the_path() {
        let list = std::ffi::OsStr::new("/nonexistent:/usr/bin:/bin");
        assert!(find(Path::new("sh"), list).is_some());
        assert_eq!(find(Path::new("/bin/sh"), list), Some("/bin/sh".into()));
        assert_eq!(find(Path::new("no such program"), list), None);
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(
            flips in prop::collection::vec((0usize..1024, any::<u8>()), 1..16), keep in 0usize..4096,
        ) {
            let mut bytes = fs::read("/bin/sh").unwrap_or_else(|_| bare_elf(OWN_MACHINE.0));
            bytes.truncate(keep.max(16));
            for (at, value) in flips {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), bytes).unwrap();
            inspect(file.path());
            is_go(file.path());
        }
    }
}
