//! `pagekeeper holder`: the process that outlives a manager that dies. Started by `run`, with a
//! socket as its standard input.

use crate::failure::{Failure, Kind};
use crate::report;
use pagekeeper::holder::hold;
use pagekeeper_sys::socket::Connection;
use pagekeeper_sys::{process, signal};
use std::os::fd::AsFd;

/// Whatever a user or a terminal sends to the manager and its program.
const IGNORED: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTTOU,
    libc::SIGTTIN,
];

/// Holds until the manager says that all is written, or dies.
pub(crate) fn run() -> Result<(), Failure> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    if !rustix::fs::fstat(&stdin)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket())
    {
        let text = "`pagekeeper holder` is started by `pagekeeper run`, not by people";
        return Err(Failure::new(Kind::Usage, text));
    }
    for number in IGNORED {
        let _ = signal::ignore(number, true);
    }
    let _ = process::set_name("pk-holder");
    // Out of the manager's process group and away from its terminal; it may lead one already.
    let _ = process::setsid();
    let socket = Connection::from_fd(stdin);
    if let Some(rescue) = hold(&socket).map_err(|e| failed(&e))? {
        let lost = match rescue.lost_pages {
            0 => String::new(),
            pages => format!("; {pages} dirty pages could not be written"),
        };
        let unsynced = match rescue.unsynced_files {
            0 => String::new(),
            files => format!("; {files} files could not be synced to storage"),
        };
        report::say(&format!(
            "the manager died; stopped {} processes, wrote {} dirty pages back{lost}{unsynced}",
            rescue.stopped, rescue.written_pages
        ));
    }
    Ok(())
}

fn failed(error: &impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failure, format!("the holder's socket: {error}"))
}
