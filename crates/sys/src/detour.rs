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

/// Sends a thread on a detour, with the signals of a mask `held` (as in `sigprocmask(2)`) back, which
/// come again by what the entry does. `false`, and nothing was changed, if it cannot be interrupted
/// where it is: in a system call, where it holds them back itself, in a restartable sequence, in code
/// of 32 bits, or while it is stopped.
///
/// # Errors
/// [`Errno::PERM`]: it may not be traced, or somebody else does; [`Errno::SRCH`]: no such thread;
/// [`Errno::NOSYS`]: not on this kind of processor.
pub fn send(tid: u32, detour: Detour, held: u64) -> Result<bool> {
    if !crate::mask::allows(crate::mask::Capability::ProcessVm) {
        return Err(Errno::PERM);
    }
    machine::send(tid, detour, held)
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub(super) fn send(_: u32, _: super::Detour, _: u64) -> crate::Result<bool> {
        Err(crate::Errno::NOSYS)
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::Detour;
    use crate::{Errno, Result, check, process};
    use core::ptr;

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

    pub(super) fn send(tid: u32, detour: Detour, held: u64) -> Result<bool> {
        let tracee = Tracee::seize(tid)?;
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
        {
            return Ok(false);
        }
        let (cs, flags, ss) = (registers.cs, registers.eflags, registers.ss);
        let back = [registers.rip, cs, flags, registers.rsp, ss, mask];
        let bytes: Vec<u8> = back.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = detour.stack_end - bytes.len() as u64;
        if process::process_vm_write(tid, at, &bytes)? != bytes.len() {
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
        tid: libc::pid_t,
        /// A signal that it was about to get.
        signal: core::cell::Cell<libc::c_int>,
    }

    impl Tracee {
        fn seize(tid: u32) -> Result<Tracee> {
            let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
            let tracee = Tracee { tid, signal: core::cell::Cell::new(0) };
            tracee.ask(libc::PTRACE_SEIZE, 0, ptr::null_mut::<u8>())?;
            Ok(tracee)
        }

        /// `data` must be what the request writes, or reads, or null.
        fn ask<T>(&self, request: libc::c_uint, addr: usize, data: *mut T) -> Result<libc::c_int> {
            // SAFETY: of the requests here some fill `*data`, of which the caller says that it has
            // their type, and the others leave this process's memory alone.
            check(unsafe { libc::ptrace(request, self.tid, addr, data) as libc::c_int })
        }

        /// Stops it. `false` if it is about to handle a signal, which it then goes on with, or is
        /// stopped as a whole.
        fn stop(&self) -> Result<bool> {
            self.ask(libc::PTRACE_INTERRUPT, 0, ptr::null_mut::<u8>())?;
            let mut status = 0;
            loop {
                // SAFETY: fills a live variable.
                match check(unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) }) {
                    Ok(_) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            if !libc::WIFSTOPPED(status) {
                return Err(Errno::SRCH);
            }
            let is_event = status >> 16 == libc::PTRACE_EVENT_STOP;
            if !is_event {
                self.signal.set(libc::WSTOPSIG(status));
            }
            Ok(is_event && libc::WSTOPSIG(status) == libc::SIGTRAP)
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
            if process::process_vm_read(self.tid.unsigned_abs(), addr, &mut bytes)? != bytes.len() {
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
        let mut child = Command::new("sleep").arg("0.5").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(threads_in_program(child.id()).count(), 0);
        let detour = Detour { entry: 0, stack_end: 0 };
        match send(child.id(), detour, 0) {
            Err(Errno::PERM) => eprintln!("skipped: tracing is not permitted"),
            sent => assert_eq!(sent, Ok(false)),
        }
        assert!(child.wait().unwrap().success());
        assert_eq!(send(child.id(), detour, 0), Err(Errno::SRCH));
    }
}
