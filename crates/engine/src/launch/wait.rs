//! What the thread that waits for the program does.

use super::Source;
use crate::live::events::REAP_EVERY;
use crate::manager::Manager;
use crate::standby;
use pagekeeper_sys::process;
use pagekeeper_sys::socket::Listener;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the thread that waits for the program does meanwhile: what is not worth a thread of its own.
pub(super) struct Wait<'a> {
    pub(super) manager: &'a Arc<Manager>,
    pub(super) listeners: Vec<Listener>,
    pub(super) sources: Vec<Box<dyn Source>>,
}

impl Wait<'_> {
    /// Waits for the program, and then for whatever it left behind that uses managed files. Calls
    /// `goes_on` if that takes longer than [`standby::EVERY`].
    pub(super) fn for_program<F: FnOnce()>(&mut self, child: &mut Child, goes_on: F) -> ExitStatus {
        let start = Instant::now();
        let mut goes_on = Some(goes_on);
        let tell = |goes_on: &mut Option<F>| {
            if start.elapsed() >= standby::EVERY
                && let Some(goes_on) = goes_on.take()
            {
                goes_on();
            }
        };
        let program = process::pidfd_open(child.id()).ok();
        let status = loop {
            let pause = match (&goes_on, &program) {
                (Some(_), _) => Some(standby::EVERY.saturating_sub(start.elapsed())),
                // Nobody tells of its end.
                (None, None) => Some(standby::EVERY),
                (None, Some(_)) => None,
            };
            self.serve(program.as_ref().map(AsFd::as_fd), pause);
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(_) => break ExitStatus::from_raw(1 << 8),
            }
            tell(&mut goes_on);
        };
        let ended = Instant::now();
        let mut reaped = ended;
        let mut told = false;
        // Of a program that left nothing behind, the last words are read in a moment.
        let mut pause = Duration::from_micros(50);
        loop {
            if !self.manager.in_use() && self.manager.close_unless_used() {
                break;
            }
            self.serve(None, Some(pause));
            pause = (2 * pause).min(Duration::from_millis(2));
            tell(&mut goes_on);
            // As the event thread does, if there is one.
            if reaped.elapsed() >= REAP_EVERY && !self.manager.crew.is_here() {
                reaped = Instant::now();
                self.manager.reap();
            }
            if !told && ended.elapsed() > Duration::from_secs(3) {
                told = true;
                let users = self.manager.users().into_iter().filter_map(named).collect::<Vec<_>>();
                eprintln!(
                    "pagekeeper: the program ended; waiting for processes it left behind that use \
                     managed files, which signals are passed on to{}{}",
                    if users.is_empty() { "" } else { ": " },
                    users.join(", ")
                );
            }
        }
        status
    }

    /// Looks after everything until `end` or a source is readable, or `pause` is over.
    fn serve(&mut self, end: Option<BorrowedFd<'_>>, pause: Option<Duration>) {
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let sources = self.sources.iter().map(|source| source.descriptor());
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = listeners
            .chain(end)
            .chain(sources)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if poll(&mut fds, pause.as_ref()).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let manager = self.manager;
        self.listeners.retain(|listener| ready.next() != Some(true) || manager.accept(listener));
        // The end is the caller's to look at.
        let _ = end.and_then(|_| ready.next());
        self.sources.retain_mut(|source| ready.next() != Some(true) || source.serve());
    }
}

/// A process as people look for it; none of one that is gone.
fn named(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{} ({pid})", name.trim()))
}
