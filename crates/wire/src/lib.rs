//! Messages between the preload library and the manager process.
//!
//! One request, one reply, over a `SOCK_SEQPACKET` Unix socket; both are fixed-size plain data, so
//! that neither side allocates or parses. A descriptor may ride along (`SCM_RIGHTS`).
//! The socket is abstract; its name and a secret come to the program in [`ENV_SOCKET`].
#![no_std]
#![deny(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Environment variable with `NAME:SECRET:HOW:BOARD:BELL`: the abstract socket's name (without the leading
/// NUL, and without a colon), [`SECRET_HEX_CHARS`] hexadecimal digits, and nothing or one of: where heap
/// memory is managed, the least bytes of an allocation that is, in decimal; or [`USER_MODE_ONLY`].
/// BOARD says where the run's [`Board`] is: the manager's process id and the number of a descriptor
/// there, in decimal, with a point between them; and perhaps, behind another point, that of a second socket
/// that can be connected to. BELL has two inodes: of the socket of [`Op::Bell`], and of the manager's network
/// namespace.
pub const ENV_SOCKET: &str = "PAGEKEEPER_SOCKET";
/// In [`ENV_SOCKET`]: only faults of user code can be served, and the kernel reports no forks. Heap
/// memory is not managed then. Clients make their userfaultfd accordingly, keep managed memory away
/// from the kernel's hands, and keep their mappings from children that do not ask for them
/// ([`Op::Inherit`]).
pub const USER_MODE_ONLY: &str = "user";
/// Environment variable that switches everything off when it is set to `1`.
pub const ENV_DISABLE: &str = "PAGEKEEPER_DISABLE";
/// Hexadecimal digits of the secret.
pub const SECRET_HEX_CHARS: usize = 32;
/// Version of this protocol; both sides come from one build, so any difference is an error.
pub const VERSION: u32 = 30;
/// Bytes in a page. The product refuses to run where the kernel's base page differs.
pub const PAGE_BYTES: u64 = 4096;
/// The preload library's file.
pub const LIBRARY: &str = "libpagekeeper_preload.so";
/// Longest text that [`Op::Note`] and [`Op::Exec`] carry, in bytes.
pub const TEXT_BYTES: usize = 1024;

/// What a request asks for. The arguments `a` to `f` of [`Request`] are named per variant, in
/// order. Replies carry `status` (0 or a negated errno) and results `r0` to `r3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Op {
    /// First message on every connection. `a` = [`VERSION`], `b`,`c` = the secret as two
    /// big-endian integers, `d` = thread id of the caller, `e` = [`HELLO_FRESH`] or
    /// [`HELLO_FORKED`], and perhaps [`HELLO_TO_END`], `f` = a number that tells this process image from those that ran in the
    /// process before: what they left open is ended before the reply. 0 says nothing. A connection that
    /// ends without a reply is to be made again, or the request to be sent by another: the manager had
    /// no thread or descriptor for it. Reply: `r0` = number of records of the table of file slots, `r1` =
    /// what tells this image's overwrites from others' (as of [`Op::Overwrites`]); `r2` = 1 if the process
    /// has to permit the manager to reach its memory (PR_SET_PTRACER in prctl(2)); the descriptor that
    /// rides along is the table, to be mapped read-only (see [`Slot`]).
    /// A forked child of a process that had sent [`Op::Userfault`] first drops (MADV_DONTNEED) and
    /// touches the inherited probe page and then, from the same thread, sends `HELLO_FORKED`, so
    /// that the manager knows which memory is whose. All later connections of that process say
    /// `HELLO_FORKED` too.
    Hello = 1,
    /// The process's userfaultfd rides along; sent once before the first [`Op::MapPrepare`].
    /// `a` = address of the probe page (one page of the memfd that rides back, mapped shared and
    /// PROT_NONE by [`Op::Probe`] below), or 0 if the kernel reports no forks, `b` = the feature
    /// bits; `c` = 0 if they were agreed with the kernel, 1 if that is left to the manager, because
    /// this process may not follow its forks.
    Userfault = 2,
    /// Asks for the probe page's memfd (rides back). The client maps one page of it `PROT_NONE`,
    /// shared, sends [`Op::Userfault`] with the address, and makes it readable on the reply.
    Probe = 3,
    /// A regular file was opened; a descriptor of it rides along. `a` = the `open(2)` flags, `b` =
    /// when it was opened, in nanoseconds of CLOCK_MONOTONIC (0: just now). A client may wait with
    /// this for the first use of the descriptor, and read with it: `c` = offset, `d` = length (0:
    /// nothing is read), `e` = address, which does not lie in managed memory.
    /// Reply: `r0` = file slot + 1, or 0 if the file is to be passed through for good; `r1` = what
    /// the descriptor has heard of errors, for [`Op::Flush`]; `r2` = bytes read + 1, or 0 if they
    /// are to be read in another way; `r3` = the slot's [`Slot::incarnation`]. With `r0` = 0, `r3` = 1 says that the client has a mapping of
    /// the file from the time of the standby: it asks again, with `f` = 1, when what can be is taken
    /// over.
    /// While the slot's flags lack [`SLOT_ACTIVE`], the client uses plain system calls, counted in
    /// its raw-operations word (see [`Op::RawWord`]). A forked child announces what it inherited at
    /// its first managed call, and nothing if it makes none. A client that showed such a descriptor
    /// before need not show another while the slot's record has the file's version.
    Opened = 4,
    /// Before a mapping; a descriptor of the file rides along. `a` = slot, `b` = offset, `c` = length, `d` = prot, `e` = mmap flags,
    /// `f` = where the client has a mapping of the same from the kernel, which goes if this succeeds, or 0. Reply: `r0` = 1 and the memfd
    /// rides along, `r1` = the mmap flags to use instead of the type bits (shared or private); or
    /// `r0` = 0: pass through.
    MapPrepare = 6,
    /// The memfd is mapped at an address with PROT_NONE. `a` = slot, `b` = offset, `c` = length,
    /// `d` = address, `e` = prot, `f` = the program's mmap flags, with [`MAP_LIBRARY`] if the mapping
    /// is none of the program's. On status 0 the range is registered and the client gives it its
    /// protection.
    MapCommit = 7,
    /// May this range get this protection? `a` = address, `b` = length, `c` = prot; `d` = 1: it is what a
    /// mapping grew by or left behind, of which the kernel tells nobody, and `e` = where the rest of it is.
    /// Status 0 or -EACCES.
    Protect = 8,
    /// `msync(2)` on managed memory: `a` = address, `b` = length, `c` = flags.
    /// Returns when the dirty pages are in the file (MS_SYNC) or queued (MS_ASYNC).
    Sync = 9,
    /// Write dirty pages of a file range back: `a` = slot, `b` = offset, `c` = length (0: to the
    /// end), `d` = 1 to wait, [`FLUSH_AT_REST`] to wait for all of the file, also for what is being read of
    /// it; slot [`ALL_FILES`] means every managed file. `e` = what the descriptor
    /// has heard of errors: one that came since is reported, once; or [`HEARD_NOTHING`]: only what
    /// cannot be written now is. Reply: `r0` = 0 or an errno, `r1` = what it has heard now.
    /// The client then issues its own fsync or whatever needed it.
    Flush = 10,
    /// Copies file content into the caller's memory: `a` = slot, `b` = offset, `c` = length,
    /// `d` = address, `e` = 1 if the address may lie in managed memory. Reply: `r0` = bytes copied
    /// (0 at end of file); `r1` = 1 if the address does lie in managed memory: nothing was copied,
    /// since pages that are copied to could be evicted meanwhile.
    Read = 11,
    /// The client is about to change the file by a system call of its own (write family,
    /// truncate, fallocate, copy_file_range …). `a` = slot, `b` = offset ([`AT_END`] when only the
    /// kernel knows: append), `c` = length ([`TO_END`]: all behind), `d` = buffer address or 0,
    /// `e` = a [`CHANGE_WRITE`]-like kind. While open, nobody fills or writes back these pages,
    /// and the reply to another change of an overlapping range waits: the client finds out where
    /// an append goes, and whether a shared file offset moved, after the reply.
    /// `f` = [`CHANGE_WAS_MADE`] or 0.
    /// Reply: `r0` = ticket, `r1` = 1 if the buffer lies in managed memory and must be copied to
    /// unmanaged memory first.
    ChangeBegin = 12,
    /// The system call returned. `a` = slot, `b` = ticket, `c` = offset where it took effect,
    /// `d` = bytes, `e` = the (unmanaged) address of the bytes written, or 0 to have the cached
    /// pages dropped and read again; what was written ([`CHANGE_WRITE`]) is then as storage has it, in
    /// pages that are dirty, too. `d` = 0 says that nothing changed (the call failed, or was not
    /// made because the buffer must be copied first); a successful truncation has `d` = [`TO_END`].
    /// `b` = 0: it was an overwrite that the client holds (see [`Overwrite`]) and could not end by
    /// itself; -ESRCH says that the manager did not wait for it.
    ChangeEnd = 13,
    /// `madvise(2)` on managed memory: `a` = address, `b` = length, `c` = advice.
    /// Reply: `r0` = 1 if the manager carried it out, 0 if the client should issue it, or
    /// [`ADVISE_DONTNEED`]. -EAGAIN, on heap memory: as for [`Op::HeapMap`].
    Advise = 14,
    /// A program is about to be executed. What it is called follows the request in the same packet, and a
    /// descriptor of it rides along, if there was one to be had. The manager writes everything back if the
    /// preload library cannot follow into it. `a` = length of the text (at most [`TEXT_BYTES`]), `b` = none or
    /// more of [`EXEC_LIBRARY_IS_GONE`], [`EXEC_LEAVES`], [`EXEC_ELSEWHERE`].
    /// Reply: `r0` = 1 if it would be looked for there all the same, and fail: the environment is not to name it.
    Exec = 15,
    /// Something worth telling the user (no reply is sent); text as in [`Op::Exec`].
    Note = 16,
    /// The program took a lock on a managed file: somebody outside may have changed it before.
    /// `a` = slot.
    Refresh = 18,
    /// Asks for a memfd of one page that the client maps shared: its first `u32` is the number of
    /// plain system calls that change files of inactive slots, other than by writing to them, and are in
    /// flight: the manager waits them out before it activates a slot.
    RawWord = 17,
    /// Before private anonymous memory is mapped: `a` = bytes. Reply: `r0` = 1, `r1` = the offset to
    /// map, and the memfd of the process's heap rides along; or `r0` = 0: leave it to the kernel.
    /// [`Op::HeapCommit`] follows, or [`Op::HeapGiveBack`].
    /// -EAGAIN: the process forks; to be asked again in a moment.
    HeapMap = 19,
    /// Heap memory is mapped at an address, without access or having grown or moved there. `a` =
    /// address, `b` = bytes, `c` = offset. On status 0 it is registered.
    HeapCommit = 20,
    /// What [`Op::HeapMap`] gave could not be mapped, or not be registered, and is mapped nowhere any
    /// more: it is nobody's again. `a` = offset, `b` = bytes.
    HeapGiveBack = 30,
    /// Processes are known to have died: what they were changing is settled before the reply, and what they
    /// had stored is in its files, if storage gets on.
    AwaitDead = 31,
    /// Heap memory is to be made longer. `a` = address, `b` = bytes now, `c` = bytes wanted. Reply:
    /// `r0` = one of [`GROW_UNMANAGED`], [`GROW_MAY`] (`r1` = the offset at the address),
    /// [`GROW_COPY`] (`r1` = the access that its mapping gives, as of `mmap(2)`). -EAGAIN: as for
    /// [`Op::HeapMap`].
    HeapGrow = 21,
    /// The process forks. `a` = [`FORK_AHEAD`], [`FORK_BEGIN`] (reply: `r0` = ticket, 0 if there is
    /// nothing to inherit), [`FORK_END`] or [`FORK_FAILED`] (`b` = ticket). From FORK_BEGIN to
    /// FORK_END nobody writes to the heap: what the child gets is what its parent had when it
    /// forked.
    Fork = 22,
    /// A forked child lacks memory that its parent has, and asks for it, range by range: the heap,
    /// and mappings of files where the kernel reports no forks. `a` = ticket, `b` = lowest address.
    /// Reply: `r0` = address (0: no more), `r1` = bytes, `r2` = offset, `r3` = protection, with
    /// [`INHERIT_PRIVATE`] if it is to be mapped privately, [`INHERIT_LIBRARY`], [`INHERIT_NOTHING`], and in
    /// the upper half the file's slot plus one, or 0 for heap memory; the memfd rides along. The child maps the range there without
    /// access, sends [`Op::HeapCommit`] or [`Op::MapCommit`], and gives it its protection.
    Inherit = 23,
    /// Storage is full: a call failed that may succeed after the reply, when deleted files that
    /// nobody uses are let go of.
    MakeRoom = 24,
    /// Asks for what ends this process when nobody is left who serves it: a descriptor rides along, to be
    /// kept open and nothing else, unless there are too few.
    Leash = 32,
    /// Asks for the table of overwrites, which rides along, to be mapped shared, before the first
    /// read without a message, since it may tell of a file's length. Reply: `r0` = number of records,
    /// one for each slot (0: there is none), `r1` = what tells this process's overwrites from
    /// others', or 0: the table can only be read.
    Overwrites = 25,
    /// Asks for the memory that a file's pages are in, to patch what is cached of it; the memfd
    /// rides along, to be mapped shared and writable. `a` = slot. Nothing is registered: a page may
    /// be stored to only while it is resident and an [`Overwrite`] of it is held.
    Frames = 26,
    /// Opens pages of a file to writes that are delayed ([`SLOT_DELAYED`]): what is stored in an open
    /// page is written back later. `a` = slot, `b` = first page, `c` = pages, `d` = 1: the table of open
    /// pages is to ride along, to be mapped read-only, a bit for each ([`open_page_bit`]). Reply: `r0` =
    /// how many of the pages are open, from the first one on, `r1` = pages that the table has room for.
    ///
    /// A client that finds all pages of a write open after it read [`Overwrite::moves`] stores what is
    /// written into the memory of the file's pages ([`Op::Frames`]), and is done if afterwards `moves`
    /// and [`Slot::generation`] are what they were. Else it writes once more, in another way.
    OpenPages = 29,
    /// A mapping that was made while the manager stood by (see [`Board`]), which ends with this.
    /// `b` = [`TAKE_FIRST`], [`TAKE_NEXT`]: which is it? Reply: `r0` = its address (0: there is no more),
    /// `r1` = its bytes. `b` = [`TAKE_HERE`]: the client has room for it elsewhere (`a`, `c` = its
    /// address and bytes). Reply: as to [`Op::Inherit`], with [`INHERIT_RANDOM`] and
    /// [`INHERIT_SEQUENTIAL`] as the program advised; or `r0` = 0: it stays the kernel's, and if `r1` = 1
    /// the program has to end, since its file does not. The client maps the range in that room,
    /// privately (but for [`INHERIT_WRITABLE`]) and without access, sends [`Op::MapCommit`], gives it
    /// its protection, and moves it over the kernel's mapping in one step (`mremap(2)`). `b` =
    /// [`TAKE_NOWHERE`]: the client has no room. Reply: as with `r0` = 0.
    TakeOver = 27,
    /// Asks for `/dev/userfaultfd`, opened (rides back): for a process that may not make a
    /// userfaultfd, as one that gave root's rights up.
    UserfaultDevice = 28,
    /// Asks for a socket (rides back) over which connections can be made from other network namespaces: each
    /// message on it, of any byte, brings one end of a pair of SEQPACKET sockets.
    Bell = 33,
}

/// [`Op::MapCommit`]: the library's own mapping, to copy from while the program has the file open.
/// The manager may let go of a file that nobody has open although it is mapped so.
pub const MAP_LIBRARY: u64 = 1 << 32;

/// [`Op::Exec`]: the library is not where it was, or not for the client.
pub const EXEC_LIBRARY_IS_GONE: u64 = 1;
/// [`Op::Exec`]: the environment that the program gets takes it out of the run.
pub const EXEC_LEAVES: u64 = 2;
/// [`Op::Exec`]: what is executed is found from elsewhere, and not known here.
pub const EXEC_ELSEWHERE: u64 = 4;

/// [`Op::HeapGrow`]: not heap memory of ours.
pub const GROW_UNMANAGED: u64 = 0;
/// [`Op::HeapGrow`]: `mremap(2)` may do it; [`Op::HeapCommit`] follows.
pub const GROW_MAY: u64 = 1;
/// [`Op::HeapGrow`]: the memory behind it is somebody else's; it has to be copied.
pub const GROW_COPY: u64 = 2;
/// [`Op::Advise`]: done in part; the kernel is to do the rest by MADV_DONTNEED, since it frees no
/// range lazily that shared memory is in.
pub const ADVISE_DONTNEED: u64 = 2;
/// [`Op::Advise`], beside those of `madvise(2)`: a page may be marked as one that cannot be had. Its content
/// is not in the process, which may drop what it has of it ([`ADVISE_DONTNEED`]) if that is so.
pub const ADVICE_MEND: i32 = -1;
/// Guard regions (Linux 6.13), an advice that libc has no name for yet.
pub const MADV_GUARD_INSTALL: i32 = 102;
/// [`Op::Fork`]: a fork is near. What is dirty is stored; fails if it cannot be.
pub const FORK_AHEAD: u64 = 0;
/// [`Op::Fork`]: nobody writes any more.
pub const FORK_BEGIN: u64 = 1;
/// [`Op::Fork`]: in the parent, after the fork.
pub const FORK_END: u64 = 2;
/// [`Op::Fork`]: there is no child.
pub const FORK_FAILED: u64 = 3;
/// [`Op::Inherit`]: the mapping is private.
pub const INHERIT_PRIVATE: u64 = 1 << 16;
/// [`Op::Inherit`]: the mapping is the library's own.
pub const INHERIT_LIBRARY: u64 = 1 << 17;
/// [`Op::Inherit`]: nothing is left of its file; its place is to be held.
pub const INHERIT_NOTHING: u64 = 1 << 18;

/// [`Op::TakeOver`]: the first mapping.
pub const TAKE_FIRST: u64 = 0;
/// [`Op::TakeOver`]: the next one.
pub const TAKE_NEXT: u64 = 1;
/// [`Op::TakeOver`]: there is room for it.
pub const TAKE_HERE: u64 = 2;
/// [`Op::TakeOver`]: there is none.
pub const TAKE_NOWHERE: u64 = 3;

/// [`Op::TakeOver`]: the program advised MADV_RANDOM.
pub const INHERIT_RANDOM: u64 = 1 << 17;
/// [`Op::TakeOver`]: the program advised MADV_SEQUENTIAL.
pub const INHERIT_SEQUENTIAL: u64 = 1 << 18;
/// [`Op::TakeOver`]: the memfd is to be mapped shared, since the program may make the mapping writable.
pub const INHERIT_WRITABLE: u64 = 1 << 19;

/// [`Op::Hello`]: a process image that has no inherited userfaultfd registration.
pub const HELLO_FRESH: u64 = 0;
/// [`Op::Hello`]: a forked child that touched its inherited probe page.
pub const HELLO_FORKED: u64 = 1;
/// [`Op::Hello`], besides: the connection is made to end something that others may wait for, with all that the
/// process has. Where the manager lacks descriptors, it takes none but such.
pub const HELLO_TO_END: u64 = 1 << 8;
/// [`Slot::flags`]: the file is managed; changes must go through the manager, and reads too unless
/// [`SLOT_DIRECT`] is set.
pub const SLOT_ACTIVE: u32 = 1;
/// [`Slot::flags`]: clients may map the file for themselves and read by copying from there. Not set
/// where every reference is to be seen.
pub const SLOT_DIRECT: u32 = 2;
/// [`Slot::flags`]: programs map the file, so that whoever makes it longer has to say so.
pub const SLOT_MAPPED: u32 = 4;
/// [`Slot::flags`]: writes of the file may be delayed ([`Op::OpenPages`]).
pub const SLOT_DELAYED: u32 = 8;
/// [`Slot::flags`]: somebody outside writes to the file, of whom the manager hears. The stamp that a
/// write of this run left does not say that nobody else wrote: [`Slot::stamp`] says it.
pub const SLOT_SHARED: u32 = 16;
/// [`Slot::flags`]: somebody outside may have written before the file's change time, and was not heard of
/// yet. Who wants to see what others wrote (a lock was taken, the file was opened) asks.
pub const SLOT_DOUBTED: u32 = 32;
/// [`Slot::flags`]: the file's times count in ticks of the clock. Who writes to it without a message leaves no
/// [open time](is_open_time), or notes no stamp.
pub const SLOT_TICKS: u32 = 64;
/// A reply's status to any request: the manager had no descriptor for it, and has done nothing. It is to
/// be sent again in a moment. (`-ERESTART`, which no call fails with.)
pub const COME_AGAIN: i32 = -85;
/// [`Op::ChangeBegin`]: the offset is where the file ends when the call runs.
pub const AT_END: u64 = u64::MAX;
/// [`Op::Flush`]: every managed file.
pub const ALL_FILES: u64 = u64::MAX;
/// [`Op::Flush`]: the file's times are about to be set, and are to stay.
pub const FLUSH_AT_REST: u64 = 2;
/// [`Op::Flush`]: no descriptor asks for errors of the past.
pub const HEARD_NOTHING: u64 = u64::MAX;
/// [`Op::ChangeBegin`]: from the offset to the end of the file and beyond.
pub const TO_END: u64 = u64::MAX;
/// [`Op::ChangeBegin`] kind: bytes are overwritten; cached pages are patched at the end.
pub const CHANGE_WRITE: u64 = 0;
/// Of a [`CHANGE_WRITE`] that was made before it was told of, supposedly there: `r1` of the reply is 1 if
/// storage does not have the buffer's bytes there, so that the change is to be ended as none.
pub const CHANGE_WAS_MADE: u64 = 1;
/// [`Op::ChangeBegin`] kind: `ftruncate`; offset is the new size.
pub const CHANGE_TRUNCATE: u64 = 1;
/// [`Op::ChangeBegin`] kind: anything else; dirty pages are written back before, and cached pages
/// of the range are dropped after.
pub const CHANGE_OTHER: u64 = 2;

/// What tells one content of a file from another, in a word: of its `st_ctime` and `st_mtime` in nanoseconds,
/// wrapped to 64 bits. Where nothing but the one tells, times that count in ticks, both change
/// ([`is_open_time`]).
pub const fn stamp(ctime_ns: u64, mtime_ns: u64) -> u64 {
    /// Even, so that times which are the same do not cancel each other.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c16;
    ctime_ns.wrapping_add(mtime_ns.wrapping_mul(SPREAD))
}

/// Whether somebody who changes a file may leave it with the `st_mtime` that was just seen, since times
/// count in ticks (CLOCK_REALTIME_COARSE), or are stored in something longer. It was seen between these two
/// readings of that clock; all in nanoseconds, wrapped to 64 bits.
pub const fn is_open_time(mtime_ns: u64, before_ns: u64, after_ns: u64) -> bool {
    const SECOND_NS: u64 = 1_000_000_000;
    // What it is stored in is a power of ten, or twice that (FAT: two seconds).
    let mut grain_ns = 1;
    while grain_ns < SECOND_NS && mtime_ns.is_multiple_of(grain_ns * 10) {
        grain_ns *= 10;
    }
    mtime_ns <= after_ns && mtime_ns.saturating_add(2 * grain_ns) > before_ns
}

/// What clients know of a file slot without asking: a record of the table that the manager writes
/// and clients map read-only.
#[repr(C)]
#[derive(Default)]
pub struct Slot {
    /// [`SLOT_ACTIVE`], [`SLOT_DIRECT`], [`SLOT_MAPPED`], [`SLOT_DELAYED`], [`SLOT_SHARED`],
    /// [`SLOT_DOUBTED`], [`SLOT_TICKS`].
    pub flags: AtomicU32,
    /// Odd while the file's length or the place of its content is being changed: what is mapped
    /// then may be neither the old nor the new. It never takes the same value twice between two
    /// reads of it by a client (but for wrapping).
    pub generation: AtomicU32,
    /// Length of the file; meaningful while `generation` is even. What clients wrote behind it by
    /// themselves may have made it longer: [`Overwrite::size_bytes`].
    pub size_bytes: AtomicU64,
    /// The [stamp] of the file as the manager knows it; 0 if that may be old.
    pub stamp: AtomicU64,
    /// How often a page of the file was absent when it was needed; wraps.
    pub misses: AtomicU32,
    /// Which of the files that had this slot one after the other has it now; wraps. A file that is not
    /// managed may lose it at any time: the client shows its descriptor again then.
    pub incarnation: AtomicU32,
}
const _: () = assert!(size_of::<Slot>() == 32);

/// A record of the table of overwrites, one for each slot, which the manager and its clients write.
///
/// A client may write to a file without a message while it *holds* the file's record: it exchanges a
/// `state` of 0 for [`OVERWRITE_HELD`] with its number in the upper half, says which pages, and makes
/// its system call if then none of the file's pages is `moving` between memory and storage, and the
/// file's stamp is one that is known (what somebody outside did before would else be taken for
/// its doing). From then on the manager takes none of these pages out of memory, and begins to write
/// none back. Who brings one in, and whoever else comes across the record, sets [`OVERWRITE_MET`],
/// which keeps others from holding it next. After the call the client patches what is in memory of
/// these pages, notes the file's stamp and length, and exchanges what it had put there for 0
/// again. If it cannot, because the manager met it, it sends [`Op::ChangeEnd`], and the manager does
/// the rest.
///
/// Each side writes what it has to say before it reads what the other says (both sequentially
/// consistent), so that at least one of them sees the other.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Overwrite {
    /// Whether and by whom it is held, and whether it was met.
    pub state: AtomicU64,
    /// First page that is being overwritten; as much as 0 to `end` 2^64 - 1 while that is not said.
    pub first: AtomicU64,
    /// Behind the last one.
    pub end: AtomicU64,
    /// The [stamp] of the file after the last overwrite; 0 if others may leave the same.
    pub stamp: AtomicU64,
    /// Length of the file after the last overwrite that made it longer; the manager follows, and
    /// need not have heard of it yet. 0 once it has.
    pub size_bytes: AtomicU64,
    /// Pages of the file that the manager moves or writes back. Clients only read it.
    pub moving: AtomicU32,
    /// 0: no page of the file has to be written back. Clients only read it.
    pub dirty: AtomicU32,
    /// How often the manager began to move or write back a page of the file, counted after `moving`.
    /// A page comes into memory and leaves it in no other way: what a client found out about that
    /// holds as long as, while it holds the record, this is what it was and then `moving` is 0.
    /// Clients only read it.
    pub moves: AtomicU64,
    /// Not 0: clients may be asleep until the record is free. Whoever frees it makes it 0 and wakes one of them,
    /// who says again that others may be.
    pub waiting: AtomicU32,
    /// The word that they sleep on (`futex(2)`). It changes whenever one of them is woken.
    pub freed: AtomicU32,
}
const _: () = assert!(size_of::<Overwrite>() == 64);

/// What clients are told without asking: the manager writes it, and they map it read-only, followed, on
/// pages of their own, by [`CELLS`] words.
///
/// Each word stands for the files of which [`cell_of`] gives its index. It is 0 as long as none of them
/// was ever managed in this run; the manager sets it before it has anything of such a file in memory.
/// So a file whose word is 0 is the kernel's, whatever its slot, and if it is shorter than
/// `min_size_bytes` it stays so when it is opened: the manager need not hear of it at all. Who changes
/// such a file looks at the word once more afterwards, and if it is set by then, tells the manager what
/// was changed before the program is told that it was.
///
/// While the manager stands by, clients show it no file that they only read, and leave reads to the
/// kernel, and mappings, too, which they make with MAP_NORESERVE. When it stops, which is for good,
/// they show each file by its next use, and have their mappings taken over ([`Op::TakeOver`]) at the
/// next call that they see.
#[repr(C)]
#[derive(Default)]
pub struct Board {
    /// The run's secret, as [`Op::Hello`] tells it: its first half.
    pub secret_high: AtomicU64,
    /// Its second half.
    pub secret_low: AtomicU64,
    /// Files that are shorter are not managed when they are opened.
    pub min_size_bytes: AtomicU64,
    /// 1 while the manager stands by.
    pub stands_by: AtomicU32,
    /// 1 from when a file was mapped for the first time that may be stored to: before, nobody who has ended has
    /// left anything to be written back.
    pub may_be_stored: AtomicU32,
    /// 1 from when a program that the kernel confines, and keeps from this library, might find old bytes: the
    /// manager is to be asked before any program is executed.
    pub may_be_confined: AtomicU32,
}

/// Words behind the page of a [`Board`].
pub const CELLS: usize = 1 << 14;
/// How much of the board is mapped.
pub const BOARD_BYTES: usize = PAGE_BYTES as usize + CELLS * size_of::<AtomicU32>();

/// Which of [`CELLS`] words stands for a file, by its device and inode number as of `stat(2)`.
#[must_use]
pub fn cell_of(device: u64, inode: u64) -> u32 {
    let mixed = (inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - CELLS.ilog2())) as u32
}

/// `si_code` of a SIGBUS of the manager's, to a thread that touched a page which cannot be had. Its value is
/// the page's address: clients make a BUS_ADRERR of it, which only the kernel may send.
pub const SIGBUS_CODE: i32 = -0x504b;

/// Signals that clients hold back while they must not be interrupted, as a mask: all but those that
/// instructions raise (ILL, TRAP, BUS, FPE, SEGV, SYS) and those that cannot be (KILL, STOP).
pub const SIGNALS_HELD: u64 = {
    let never = [4, 5, 7, 8, 11, 31, 9, 19];
    let mut mask = !0;
    let mut i = 0;
    while i < never.len() {
        mask &= !(1 << (never[i] - 1));
        i += 1;
    }
    mask
};

/// Bytes of memory, to read and write, that follow a client's mapping of the [`Board`]: a stack, and at
/// its end an [`Interjection`].
pub const INTERJECTION_BYTES: usize = 64 << 10;

/// How a client that makes no calls is made to have its mappings taken over: one of its threads is
/// sent to `entry`, with the stack below this, and goes on there where it was.
#[repr(C)]
#[derive(Default)]
pub struct Interjection {
    /// Address of the first instruction; 0 if the client cannot be interrupted.
    pub entry: AtomicU64,
    /// 1 as long as the client has mappings to be taken over.
    pub has_mapped: AtomicU64,
    /// 1 once a thread was sent: the stack is for one.
    pub is_used: AtomicU64,
}

/// [`Overwrite::state`]: somebody holds it; the upper half says who.
pub const OVERWRITE_HELD: u64 = 1;
/// [`Overwrite::state`]: the manager met it, or has a change of the file under way.
pub const OVERWRITE_MET: u64 = 2;

/// Where in a table of open pages a page's bit is: the number of its 64-bit word, and the bit.
pub const fn open_page_bit(page: u64) -> (usize, u64) {
    ((page / 64) as usize, 1 << (page % 64))
}

/// [`Overwrite::state`] of a record that a process holds.
pub const fn overwrite_held_by(number: u32) -> u64 {
    (number as u64) << 32 | OVERWRITE_HELD
}

/// A request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// An [`Op`] as its number.
    pub op: u32,
    /// Zero.
    pub reserved: u32,
    /// First argument.
    pub a: u64,
    /// Second argument.
    pub b: u64,
    /// Third argument.
    pub c: u64,
    /// Fourth argument.
    pub d: u64,
    /// Fifth argument.
    pub e: u64,
    /// Sixth argument.
    pub f: u64,
}

/// A reply.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Default)]
#[repr(C)]
pub struct Reply {
    /// 0, or a negated errno.
    pub status: i32,
    /// Zero.
    pub reserved: u32,
    /// First result.
    pub r0: u64,
    /// Second result.
    pub r1: u64,
    /// Third result.
    pub r2: u64,
    /// Fourth result.
    pub r3: u64,
}

impl Op {
    /// The operation of this number, if there is one.
    pub const fn from_u32(n: u32) -> Option<Op> {
        use Op::*;
        Some(match n {
            1 => Hello,
            2 => Userfault,
            3 => Probe,
            4 => Opened,
            6 => MapPrepare,
            7 => MapCommit,
            8 => Protect,
            9 => Sync,
            10 => Flush,
            11 => Read,
            12 => ChangeBegin,
            13 => ChangeEnd,
            14 => Advise,
            15 => Exec,
            16 => Note,
            17 => RawWord,
            18 => Refresh,
            19 => HeapMap,
            20 => HeapCommit,
            21 => HeapGrow,
            22 => Fork,
            23 => Inherit,
            24 => MakeRoom,
            25 => Overwrites,
            26 => Frames,
            27 => TakeOver,
            28 => UserfaultDevice,
            29 => OpenPages,
            30 => HeapGiveBack,
            31 => AwaitDead,
            32 => Leash,
            33 => Bell,
            _ => return None,
        })
    }

    /// Whether the manager answers this request.
    pub const fn has_reply(self) -> bool {
        !matches!(self, Op::Note)
    }

    /// Whether a descriptor may ride along with the reply.
    pub const fn may_bring_descriptor(self) -> bool {
        use Op::*;
        match self {
            Hello | Probe | UserfaultDevice | Bell | RawWord | MapPrepare | HeapMap | Inherit
            | Leash | TakeOver | Overwrites | Frames | OpenPages => true,
            Userfault | Opened | MapCommit | Protect | Sync | Flush | Read | ChangeBegin
            | ChangeEnd | Advise | Exec | Note | Refresh | HeapCommit | HeapGiveBack | HeapGrow
            | Fork | MakeRoom | AwaitDead => false,
        }
    }
}

impl Request {
    /// A request with all arguments zero.
    pub const fn new(op: Op) -> Request {
        Request { op: op as u32, reserved: 0, a: 0, b: 0, c: 0, d: 0, e: 0, f: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half past a second, in some tick of the clock.
    const TICK_NS: u64 = 1_700_000_000_503_333_111;

    #[test]
    fn a_time_is_open_in_its_tick() {
        let next_ns = TICK_NS + 4_000_000;
        for (mtime_ns, before_ns, after_ns, is_open) in [
            (TICK_NS, TICK_NS, TICK_NS, true),
            (TICK_NS, TICK_NS, next_ns, true),
            (next_ns, TICK_NS, next_ns, true),
            (TICK_NS, next_ns, next_ns, false),
            // Closed, in the same tick and in the next.
            (TICK_NS + 1, TICK_NS, TICK_NS, false),
            (TICK_NS + 1, next_ns, next_ns, false),
            // Set by somebody.
            (TICK_NS + 3_600_000_000_000, TICK_NS, next_ns, false),
            (0, TICK_NS, next_ns, false),
            (u64::MAX, TICK_NS, next_ns, false),
        ] {
            assert_eq!(is_open_time(mtime_ns, before_ns, after_ns), is_open, "{mtime_ns}");
        }
    }

    #[test]
    fn a_time_is_open_for_as_long_as_it_is_stored_in() {
        for grain_ns in [100, 10_000_000, 1_000_000_000, 2_000_000_000] {
            let mtime_ns = TICK_NS / grain_ns * grain_ns;
            let last_ns = mtime_ns + grain_ns - 1;
            assert!(is_open_time(mtime_ns, mtime_ns, mtime_ns), "{grain_ns}");
            assert!(is_open_time(mtime_ns, last_ns, last_ns), "{grain_ns}");
            let over_ns = mtime_ns + 2_000_000_000;
            assert!(!is_open_time(mtime_ns, over_ns, over_ns), "{grain_ns}");
        }
    }

    #[test]
    fn a_stamp_tells_either_time() {
        let stamps = [
            stamp(TICK_NS, TICK_NS),
            stamp(TICK_NS, TICK_NS + 1),
            stamp(TICK_NS + 1, TICK_NS),
            stamp(TICK_NS + 1, TICK_NS + 1),
            stamp(TICK_NS + 4_000_000, TICK_NS + 4_000_000),
            stamp(TICK_NS + 4_000_000, TICK_NS),
            stamp(0, TICK_NS),
        ];
        for (i, one) in stamps.iter().enumerate() {
            assert!(*one != 0 && !stamps[..i].contains(one), "{i}");
        }
    }
}
