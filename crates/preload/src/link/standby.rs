//! While the manager stands by, files are the kernel's: nobody is told of those that are only read, and nothing
//! is to be gained yet.
//!
//! When the standby ends, descriptors need no care, since they are shown by their next use
//! ([`crate::descriptors::first_use`]). Mappings do: the manager's memory is mapped elsewhere, registered, and
//! moved over the kernel's mapping by one `mremap(2)`, so that no thread of the program ever finds
//! nothing there, or memory that nobody watches. That happens in the next call that this library
//! sees ([`step`]); a thread of a program that makes none is sent here by the manager
//! ([`interjected`]).

use crate::descriptors::table;
use crate::link::connection::{ask, ask_with, note};
use crate::link::{board, userfault};
use crate::memory::call::Mmap;
use crate::memory::gate::Passing;
use crate::memory::mapping::{self, Owner};
use crate::memory::turns;
use crate::process::state::{self, State};
use crate::raw::{self, SignalsHeld};
use crate::raw_call;
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::c_int;
use pagekeeper_wire::{
    INHERIT_PRIVATE, INHERIT_RANDOM, INHERIT_SEQUENTIAL, INHERIT_WRITABLE, Interjection, Op,
    PAGE_BYTES, Reply, Request, TAKE_FIRST, TAKE_HERE, TAKE_NEXT, TAKE_NOWHERE,
};

/// This image, or what it was forked from, has mappings that were made meanwhile, and that can be taken
/// over.
static MAPPED: AtomicBool = AtomicBool::new(false);
/// The program may be ended for calls that a take-over makes.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Where the manager finds how to interrupt this process. None if it cannot.
fn interjection() -> Option<&'static Interjection> {
    let end = board::room_end();
    if end == 0 {
        return None;
    }
    // SAFETY: of the memory behind the board, which `board::find` made with it and nobody unmaps; any
    // bytes are valid atomics, and the stack that ends here is below it.
    Some(unsafe { &*((end - size_of::<Interjection>()) as *const Interjection) })
}

/// Notes whether there are mappings to be taken over.
fn set_mapped(mapped: bool) {
    let mapped = mapped && !FILTERED.load(Ordering::SeqCst);
    if let Some(interjection) = interjection() {
        if mapped && interjection.entry.load(Ordering::Relaxed) == 0 {
            interjection.entry.store(interjected_entry(), Ordering::Relaxed);
        }
        interjection.has_mapped.store(mapped.into(), Ordering::Release);
    }
    MAPPED.store(mapped, Ordering::Release);
}

/// Whether the manager stands by.
#[inline(always)]
pub(crate) fn holds() -> bool {
    board::stands_by()
}

/// Makes a mapping of a file while the manager stands by, marked as such by MAP_NORESERVE. None if
/// that is not so, or it is one to be stored to that could not be taken over.
pub(crate) fn mmap(call: &Mmap) -> Option<isize> {
    if !holds() {
        return None;
    }
    let stores =
        call.flags & libc::MAP_TYPE != libc::MAP_PRIVATE && call.prot & libc::PROT_WRITE != 0;
    // What is executed as well could not be taken over; and who finds such a mapping in another's place may have
    // stored to it before it is undone.
    let is_final = stores && (call.prot & libc::PROT_EXEC != 0 || turns::replaces(call.flags));
    let is_left = match table::get(call.fd) {
        Some(entry) => !is_final && !table::is_active(entry),
        None => table::unshown(call.fd).is_some(),
    };
    if !is_left {
        return None;
    }
    let _changing = changing();
    let result = Mmap { flags: call.flags | libc::MAP_NORESERVE, ..*call }.plain();
    if result >= 0 {
        if !holds() {
            // Who looked for such mappings when it ended may not have seen this one.
            if call.flags & libc::MAP_FIXED == 0 {
                raw::munmap(result as usize, call.bytes);
            }
            return None;
        }
        set_mapped(true);
    }
    Some(result)
}

/// To be called in passing wherever the program calls us: has mappings taken over if the standby has
/// ended. Returns when that is done.
#[inline(always)]
pub(crate) fn step() {
    if MAPPED.load(Ordering::Relaxed) && !holds() {
        end();
    }
}

/// Has mappings taken over, which ends the standby: before a child is made that inherits them, since
/// what two processes have mapped can be taken over by both at the same moment only, and when a file has
/// to be shown that is mapped so.
#[cold]
pub(crate) fn end() {
    if !MAPPED.load(Ordering::Acquire) {
        return;
    }
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    let _held = SignalsHeld::new();
    let Some(_alone) = state.standby.close() else { return };
    if MAPPED.load(Ordering::Acquire) {
        take_over(state);
        set_mapped(false);
    }
}

/// Before the program takes system calls away from itself (`seccomp(2)`), those of a take-over perhaps
/// among them: what the kernel has mapped for it stays so.
pub(crate) fn filters() {
    step();
    FILTERED.store(true, Ordering::SeqCst);
    let Some(state) = state::current().filter(|state| state.is_own()) else { return };
    let _held = SignalsHeld::new();
    let _alone = state.standby.close();
    if MAPPED.load(Ordering::Acquire) {
        note(
            state,
            b"a program that filters its system calls keeps what the kernel has mapped for it",
        );
        set_mapped(false);
    }
}

/// Room for what a processor's registers hold beside the general ones, as `xsave` stores it.
#[cfg(target_arch = "x86_64")]
const XSAVE_BYTES: usize = 16 << 10;

/// Address of the instructions at which a thread may be sent here; 0 if this processor's registers
/// cannot all be saved.
fn interjected_entry() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        const OSXSAVE: u32 = 1 << 27;
        let is_known = __cpuid(0).eax >= 0xd && __cpuid(1).ecx & OSXSAVE != 0;
        if is_known && __cpuid_count(0xd, 0).ebx as usize <= XSAVE_BYTES - 64 {
            return interjected as *const () as u64;
        }
    }
    0
}

/// What [`interjected`] keeps while it has no stack: registers, and where its own stack is.
#[cfg(target_arch = "x86_64")]
static INTERJECTED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Where a thread goes on that the manager sent here from between two of its instructions, on a stack
/// that is for this alone ([`Interjection`]), with signals held back. Saves all registers, has mappings
/// taken over, and goes on where it was by `iretq`, which takes that from the stack: no other
/// instruction leaves both the registers and the memory below the program's stack pointer alone.
/// Signals come again just before, on the program's stack: a handler may need a large one, or look
/// which it is.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn interjected() {
    core::arch::naked_asm!(
        "push rax",
        "push rcx",
        "push rdx",
        "push rbx",
        "push rbp",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov rbp, rsp",
        "sub rsp, {xsave_bytes}",
        "and rsp, -64",
        // The header, behind the legacy area of 512 bytes, has to be zero.
        "lea rdi, [rsp + 512]",
        "xor eax, eax",
        "mov ecx, 8",
        "rep stosq",
        "mov eax, -1",
        "mov edx, -1",
        "xsave64 [rsp]",
        "mov rbx, rsp",
        "call {end}",
        "mov eax, -1",
        "mov edx, -1",
        "xrstor64 [rbx]",
        "mov rsp, rbp",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rbp",
        "pop rbx",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "mov [rip + {kept}], rax",
        "mov [rip + {kept} + 8], rcx",
        "mov [rip + {kept} + 16], rdx",
        "mov [rip + {kept} + 24], rsi",
        "mov [rip + {kept} + 32], rdi",
        "mov [rip + {kept} + 40], r10",
        "mov [rip + {kept} + 48], r11",
        "mov [rip + {kept} + 56], rsp",
        // The mask lies behind what `iretq` takes.
        "lea rsi, [rsp + 40]",
        "mov rsp, [rsp + 24]",
        "mov eax, {sigprocmask}",
        "mov edi, {set_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov rax, [rip + {kept}]",
        "mov rcx, [rip + {kept} + 8]",
        "mov rdx, [rip + {kept} + 16]",
        "mov rsi, [rip + {kept} + 24]",
        "mov rdi, [rip + {kept} + 32]",
        "mov r10, [rip + {kept} + 40]",
        "mov r11, [rip + {kept} + 48]",
        "mov rsp, [rip + {kept} + 56]",
        "iretq",
        kept = sym INTERJECTED,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        set_mask = const libc::SIG_SETMASK,
        xsave_bytes = const XSAVE_BYTES,
        end = sym end_interjected,
    );
}

#[cfg(target_arch = "x86_64")]
extern "C" fn end_interjected() {
    end();
}

/// To be kept while a call changes mappings: what is at an address does not change between being looked at and
/// being taken over.
pub(crate) fn changing() -> Option<Passing<'static>> {
    if !MAPPED.load(Ordering::Relaxed) {
        return None;
    }
    state::current().filter(|state| state.is_own())?.standby.pass()
}

fn take_over(state: &State) {
    let mut request = Request::new(Op::TakeOver);
    request.b = TAKE_FIRST;
    loop {
        let Ok(next) = ask(state, &request) else { return };
        if next.r0 == 0 {
            return;
        }
        let (addr, bytes) = (next.r0 as usize, next.r1 as usize);
        let room = if userfault::ensure(state) { room_for(bytes) } else { 0 };
        let how = if room != 0 { TAKE_HERE } else { TAKE_NOWHERE };
        (request.a, request.b, request.c) = (next.r0, how, next.r1);
        match ask_with(state, &request, &[], -1) {
            Ok((range, memfd)) if range.r0 != 0 => {
                if !put(state, &range, memfd, room) {
                    // The manager goes by the pages being its own from here on.
                    end_program();
                }
                for (bit, advice) in [
                    (INHERIT_RANDOM, libc::MADV_RANDOM),
                    (INHERIT_SEQUENTIAL, libc::MADV_SEQUENTIAL),
                ] {
                    if range.r3 & bit != 0 {
                        let _ = mapping::advise_manager(state, addr, bytes, advice);
                    }
                }
            }
            Ok((range, _)) if range.r1 != 0 => end_program(),
            // The manager's answer is lost, by which the file may be its own. (One that is gone is no
            // matter: nothing of it was in use.)
            Err(_) if how == TAKE_HERE && state::is_ready() => end_program(),
            _ if room != 0 => raw::munmap(room, bytes),
            _ => {}
        }
        request.b = TAKE_NEXT;
    }
}

/// Room for a mapping; 0 if there is none, or nothing could be moved out of it again: a process may
/// have so many mappings at most, and calls may be refused to it (`seccomp(2)`).
fn room_for(bytes: usize) -> usize {
    let room = raw::reserve(bytes);
    if room == 0 {
        return 0;
    }
    let page = PAGE_BYTES as usize;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let trial = raw::map(page, libc::PROT_NONE, kind, -1, 0);
    if trial >= 0 {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if raw_call!(libc::SYS_mprotect, trial, page, libc::PROT_READ) >= 0
            && raw_call!(libc::SYS_mremap, trial, page, page, flags, room) >= 0
        {
            return room;
        }
        raw::munmap(trial as usize, page);
    }
    raw::munmap(room, bytes);
    0
}

fn end_program() -> ! {
    raw::complain(b"a mapping of this program could not be taken over; it ends (exit code 70)");
    raw::exit_group(70)
}

/// Maps a range in the room for it, and moves it to its place. Closes the memfd.
fn put(state: &State, range: &Reply, memfd: c_int, room: usize) -> bool {
    let (addr, bytes) = (range.r0 as usize, range.r1 as usize);
    let Some(slot) = (range.r3 >> 32).checked_sub(1) else { return false };
    let kind = |private| if private { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    let mmap = Mmap {
        addr: room,
        bytes,
        prot: libc::PROT_NONE,
        flags: kind(range.r3 & INHERIT_WRITABLE == 0) | libc::MAP_NORESERVE | libc::MAP_FIXED,
        fd: memfd,
        offset: range.r2 as i64,
    };
    let mapped = mmap.plain();
    raw::close(memfd);
    if mapped < 0 {
        return false;
    }
    mapping::widen(addr, bytes);
    let flags = kind(range.r3 & INHERIT_PRIVATE != 0);
    let made = Mmap { prot: range.r3 as u16 as c_int, flags, ..mmap };
    if mapping::commit(state, slot, &made, Owner::Program).is_err() {
        return false;
    }
    mapping::moves_from_room(room, addr, bytes)
}
