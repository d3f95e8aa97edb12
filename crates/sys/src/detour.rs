//! Sending a thread of another process somewhere else between two of its instructions: `ptrace(2)`.
//!
//! A signal handler without the signal. The thread goes on at an entry with a stack of its own, on
//! which it finds where it was, as `iretq` takes it; what the entry saves of the registers it has to
//! bring back before it goes there. Nobody waits for that: the thread is let go of at once, and a
//! tracer that dies leaves it where it was, or on its way.
#![allow(unsafe_code)]

use crate::{Errno, Result, process};

/// Threads of a process that are between two of its instructions now, or wait for a page that one
/// of them touches: they are in no system call (`/proc/TID/syscall`, proc_pid_syscall(5)).
pub fn threads_in_program(id: u32) -> impl Iterator<Item = u32> {
    let is_in_none = |call: &String| call.starts_with("running") || call.starts_with("-1");
    let calls = process::calls_of_threads(id);
    calls.filter(move |(_, call)| is_in_none(call)).map(|(tid, _)| tid)
}

/// Where a thread is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detour {
    /// Address of its first instruction.
    pub entry: u64,
    /// Where a stack ends that nobody uses. The entry finds six words there: where the thread was
    /// (instruction, code segment, flags, stack, stack segment), and its signal mask.
    pub stack_end: u64,
}

/// Sends a thread of a process on a detour, with the signals of a mask `held` (as in `sigprocmask(2)`)
/// back, which come again by what the entry does. `false`, and nothing was changed, if it cannot be
/// interrupted where it is: in a system call, where it holds them back itself, in a restartable sequence,
/// in code of 32 bits, or while it is stopped; if the process executes another program; and if `may_go`,
/// which is asked last, while the thread stands still, says so.
///
/// # Errors
/// [`Errno::PERM`]: it may not be traced, or somebody else does; [`Errno::SRCH`]: no such thread;
/// [`Errno::NOSYS`]: not on this kind of processor.
pub fn send(
    id: u32,
    tid: u32,
    detour: Detour,
    held: u64,
    may_go: impl FnOnce() -> bool,
) -> Result<bool> {
    if !crate::mask::allows(crate::mask::Capability::ProcessVm) {
        return Err(Errno::PERM);
    }
    machine::send(id, tid, detour, held, may_go)
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub(super) fn send(
        _: u32,
        _: u32,
        _: super::Detour,
        _: u64,
        _: impl FnOnce() -> bool,
    ) -> crate::Result<bool> {
        Err(crate::Errno::NOSYS)
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Detour;
    use crate::{Errno, Result, check, process};
    use core::ptr;
    use std::time::Duration;

    /// How often a thread is looked at that is to stop.
    const LOOK_EVERY: Duration = Duration::from_micros(50);
    /// Code segment of 64-bit user code (`__USER_CS`, arch/x86/include/asm/segment.h).
    const USER_CS: u64 = 0x33;
    /// Flags that a function may not be called with, or not be interrupted with: trap, direction,
    /// alignment check.
    const FLAGS_TO_CLEAR: u64 = 1 << 8 | 1 << 10 | 1 << 18;
    /// A request that libc does not name (Linux 5.13).
    const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

    /// `struct ptrace_rseq_configuration`.
    #[repr(C)]
    #[derive(Default)]
    struct RseqConfiguration {
        area: u64,
        area_bytes: u32,
        signature: u32,
        flags: u32,
        padding: u32,
    }

    pub(super) fn send(
        id: u32,
        tid: u32,
        detour: Detour,
        held: u64,
        may_go: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let tracee = Tracee::seize(id, tid)?;
        if !tracee.stop()? {
            return Ok(false);
        }
        let mut registers = tracee.registers()?;
        let mask = tracee.signal_mask()?;
        let in_call = registers.orig_rax.cast_signed() >= 0;
        if in_call
            || registers.cs != USER_CS
            || mask & held == held
            || tracee.is_in_sequence(registers.rip)?
            || !may_go()
        {
            return Ok(false);
        }
        let (cs, flags, ss) = (registers.cs, registers.eflags, registers.ss);
        let back = [registers.rip, cs, flags, registers.rsp, ss, mask];
        let bytes: Vec<u8> = back.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = detour.stack_end - bytes.len() as u64;
        if process::process_vm_write(id, at, &bytes)? != bytes.len() {
            return Err(Errno::FAULT);
        }
        registers.rip = detour.entry;
        registers.rsp = at;
        registers.eflags &= !FLAGS_TO_CLEAR;
        // In this order: the entry sets the mask again.
        tracee.set_registers(&registers)?;
        tracee.set_signal_mask(mask | held)?;
        Ok(true)
    }

    /// A thread that is traced; let go of when dropped.
    struct Tracee {
        tid: core::cell::Cell<libc::pid_t>,
        /// The process it is a thread of.
        id: libc::pid_t,
        /// A signal that it was about to get.
        signal: core::cell::Cell<libc::c_int>,
    }

    impl Tracee {
        fn seize(id: u32, tid: u32) -> Result<Tracee> {
            let number = |of: u32| libc::pid_t::try_from(of).map_err(|_| Errno::SRCH);
            let (id, tid) = (number(id)?, core::cell::Cell::new(number(tid)?));
            let tracee = Tracee { tid, id, signal: core::cell::Cell::new(0) };
            tracee.ask(libc::PTRACE_SEIZE, 0, ptr::null_mut::<u8>())?;
            Ok(tracee)
        }

        /// `data` must be what the request writes, or reads, or null.
        fn ask<T>(&self, request: libc::c_uint, addr: usize, data: *mut T) -> Result<libc::c_int> {
            // SAFETY: of the requests here some fill `*data`, of which the caller says that it has
            // their type, and the others leave this process's memory alone.
            check(unsafe { libc::ptrace(request, self.tid.get(), addr, data) as libc::c_int })
        }

        /// Stops it. `false` if it is about to handle a signal, which it then goes on with, if it is
        /// stopped as a whole, or if it has executed another program.
        fn stop(&self) -> Result<bool> {
            self.ask(libc::PTRACE_INTERRUPT, 0, ptr::null_mut::<u8>())?;
            // A thread that executes a program gets the number of its process (ptrace(2), "execve(2)
            // under ptrace"). Whoever sleeps until the old one stops is not woken: it is looked at.
            let mut has_executed = false;
            let status = loop {
                match self.status() {
                    Ok(Some(status)) => break status,
                    Ok(None) if self.is_ours()? => std::thread::sleep(LOOK_EVERY),
                    Err(Errno::CHILD) if self.tid.get() != self.id => {
                        self.tid.set(self.id);
                        has_executed = true;
                    }
                    Ok(None) | Err(Errno::CHILD) => return Err(Errno::SRCH),
                    Err(errno) => return Err(errno),
                }
            };
            if !libc::WIFSTOPPED(status) {
                return Err(Errno::SRCH);
            }
            let is_event = status >> 16 == libc::PTRACE_EVENT_STOP;
            if !is_event {
                self.signal.set(libc::WSTOPSIG(status));
            }
            Ok(is_event && libc::WSTOPSIG(status) == libc::SIGTRAP && !has_executed)
        }

        /// Whether it is traced by this thread: another that executes a program ends all others, and may
        /// have this one's number then.
        fn is_ours(&self) -> Result<bool> {
            let own = rustix::thread::gettid().as_raw_pid().unsigned_abs();
            process::tracer_of(self.tid.get().unsigned_abs()).map(|tracer| tracer == own)
        }

        /// Its state, if it has changed.
        fn status(&self) -> Result<Option<libc::c_int>> {
            let (mut status, how) = (0, libc::__WALL | libc::WNOHANG);
            // SAFETY: fills a live variable.
            let changed = check(unsafe { libc::waitpid(self.tid.get(), &raw mut status, how) })?;
            Ok((changed != 0).then_some(status))
        }

        fn registers(&self) -> Result<libc::user_regs_struct> {
            // SAFETY: integers only, for which zeros are a value.
            let mut registers: libc::user_regs_struct = unsafe { core::mem::zeroed() };
            self.ask(libc::PTRACE_GETREGS, 0, &raw mut registers)?;
            Ok(registers)
        }

        fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
            self.ask(libc::PTRACE_SETREGS, 0, ptr::from_ref(registers).cast_mut()).map(drop)
        }

        fn signal_mask(&self) -> Result<u64> {
            let mut mask = 0u64;
            self.ask(libc::PTRACE_GETSIGMASK, size_of::<u64>(), &raw mut mask)?;
            Ok(mask)
        }

        fn set_signal_mask(&self, mut mask: u64) -> Result<()> {
            self.ask(libc::PTRACE_SETSIGMASK, size_of::<u64>(), &raw mut mask).map(drop)
        }

        /// Whether an address is in the restartable sequence that the thread has announced
        /// (`rseq(2)`): it would go on there without starting again.
        fn is_in_sequence(&self, addr: u64) -> Result<bool> {
            let mut rseq = RseqConfiguration::default();
            let bytes = size_of::<RseqConfiguration>();
            match self.ask(PTRACE_GET_RSEQ_CONFIGURATION, bytes, &raw mut rseq) {
                // Before Linux 5.13, without CONFIG_RSEQ: it cannot be told.
                Err(Errno::IO | Errno::INVAL) => return Ok(true),
                other => other?,
            };
            if rseq.area == 0 {
                return Ok(false);
            }
            // `struct rseq`: the sequence's description is at 8.
            let [description] = self.words(rseq.area + 8)?;
            if description == 0 {
                return Ok(false);
            }
            // `struct rseq_cs`: behind version and flags.
            let [start, bytes] = self.words(description + 8)?;
            Ok(addr.wrapping_sub(start) < bytes)
        }

        fn words<const N: usize>(&self, addr: u64) -> Result<[u64; N]> {
            let mut bytes = vec![0; N * 8];
            if process::process_vm_read(self.id.unsigned_abs(), addr, &mut bytes)? != bytes.len() {
                return Err(Errno::FAULT);
            }
            let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            Ok(core::array::from_fn(|_| words.next().expect("as many as there are bytes for")))
        }
    }

    impl Drop for Tracee {
        fn drop(&mut self) {
            let signal = self.signal.get() as usize as *mut u8;
            let _ = self.ask(libc::PTRACE_DETACH, 0, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Asks nobody who is in a system call, and changes nothing there.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn who_is_in_a_system_call_is_left_alone() {
        let mut child = Command::new("sleep").arg("2").spawn().unwrap();
        let call = format!("{} ", libc::SYS_clock_nanosleep);
        while !process::calls_of_threads(child.id()).any(|(_, made)| made.starts_with(&call)) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(threads_in_program(child.id()).count(), 0);
        let detour = Detour { entry: 0, stack_end: 0 };
        let id = child.id();
        match send(id, id, detour, 0, || true) {
            Err(Errno::PERM) => eprintln!("skipped: tracing is not permitted"),
            sent => assert_eq!(sent, Ok(false)),
        }
        assert!(child.wait().unwrap().success());
        assert_eq!(send(id, id, detour, 0, || true), Err(Errno::SRCH));
    }
}
