//! From a descriptor to a managed file: what is opened is shown to the manager, and a call on a
//! descriptor learns whether the manager or the kernel serves it.

use crate::descriptors::table::{self, Entry, Tenancy};
use crate::descriptors::{fdinfo, first_use, plain};
use crate::link::connection::{ask, ask_with};
use crate::link::{bell, board, connection, standby};
use crate::process::cancel;
use crate::process::state::{self, State, View};
use crate::raw::{self, SignalsHeld};
use crate::reading::direct;
use crate::writing::{change, delayed, lock_files, overwrite};
use crate::{raw_call, real};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::c_int;
use pagekeeper_wire::{Op, PAGE_BYTES, Reply, Request};

/// File systems whose files are made by the kernel on reading, or are memory that no call can write to:
/// never managed, and not worth a question.
const SYNTHETIC: [i64; 10] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x1cd1,      // devpts
    0x9584_58f6, // hugetlbfs
];

/// How often an open is made again that would have to wait for a lease.
const KEPT_OUT_TRIES: u32 = 10_000;

/// A descriptor of a file with a slot, in a process that talks to the manager.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) state: &'static State,
    pub(crate) fd: c_int,
    pub(crate) entry: Entry,
}

/// Who serves a call.
pub(crate) enum Served {
    /// The manager.
    Managed,
    /// The kernel. Keep this while the system call runs: the manager waits for such calls before
    /// it takes the file over.
    Kernel(RawGuard),
}

/// Counts one plain system call in flight on a file with a slot (reads and writes need no count: see
/// [`crate::descriptors::plain`]). Signals are held back meanwhile:
/// a handler that jumps away would leave the call counted for ever.
pub(crate) struct RawGuard {
    word: Option<&'static AtomicU32>,
    /// Of what the call is, once it is made.
    file: Option<File>,
    _held: SignalsHeld,
}

impl Drop for RawGuard {
    fn drop(&mut self) {
        let Some(word) = self.word else { return };
        word.fetch_sub(1, Ordering::SeqCst);
        // The manager does not wait for who is stopped: it may have taken the file over meanwhile.
        if let Some(file) = self.file.filter(|file| table::is_active(file.entry)) {
            let _ = ask(file.state, &file.request(Op::Refresh));
        }
    }
}

impl RawGuard {
    /// Of a call that is not counted.
    fn uncounted() -> RawGuard {
        RawGuard { word: None, file: None, _held: SignalsHeld::new() }
    }
}

/// Waits while a descriptor is being closed or replaced.
fn await_left(fd: c_int) {
    let Some(leaving) = table::leaving(fd) else { return };
    for _ in 0..LOOKS_MAX {
        if table::leaving(fd) != Some(leaving) {
            return;
        }
        raw::pause();
    }
    // Whoever was about it is gone: a forked child has no other threads.
    if table::left(fd, leaving) {
        let flags = raw::fcntl(fd, libc::F_GETFL, 0) as c_int;
        if flags >= 0 {
            classify(fd, flags);
        }
    }
}

/// Looks, a moment apart, at a descriptor that is being closed.
const LOOKS_MAX: u32 = 40_000;

/// The managed file behind a descriptor, if there is one. Costs one look-up otherwise.
pub(crate) fn managed(fd: c_int) -> Option<File> {
    if table::is_plain(fd) {
        return None;
    }
    await_left(fd);
    let Some(entry) = table::get(fd) else { return first_use::show(fd) };
    let state = state::glance()?;
    let stat = raw::fstat(fd).ok();
    if stat.is_some_and(|stat| table::is_file(entry, &stat)) {
        return Some(File { state, fd, entry });
    }
    if !state.is_own() {
        return None;
    }
    if stat.is_some() && !table::is_current(entry) {
        return show_again(state, fd, entry).map(|entry| File { state, fd, entry });
    }
    // Closed, and perhaps reused, by a call that this library does not see.
    forget(state, fd);
    if stat.is_some() {
        let flags = raw::fcntl(fd, libc::F_GETFL, 0) as c_int;
        classify(fd, flags);
        // This call is its first use.
        return first_use::show(fd);
    }
    None
}

/// Shows a descriptor whose file was not managed, and lost its slot to another: the new entry. None if
/// calls on it are the kernel's.
#[cold]
fn show_again(state: &State, fd: c_int, entry: Entry) -> Option<Entry> {
    let flags = raw::fcntl(fd, libc::F_GETFL, 0) as c_int;
    let mut request = opening(flags);
    // Long ago: it may be told of an error again, but misses none.
    request.b = 1;
    let shown = show(state, fd, &request).and_then(|(file, reply)| {
        let (stat, again) = (raw::fstat(fd).ok()?, entry.again(file, flags));
        let heard = (reply.r1, raw::soon_ns());
        met(state, again, &stat, flags, heard).then_some((again, reply.r1))
    });
    if let Some((_, heard)) = shown
        && let Some(known) = table::heard(fd)
    {
        known.store(heard, Ordering::Relaxed);
    }
    let again = shown.map(|(again, _)| again);
    // Another thread may have done so, too.
    if table::replace(fd, entry, again) { again } else { table::get(fd) }
}

/// The file behind a descriptor, if the manager serves it, without the kernel's saying that it still
/// is this file. Whoever believes it looks afterwards ([`File::is_same`]).
pub(crate) fn assumed(fd: c_int) -> Option<File> {
    let entry = table::get_sure(fd).filter(|entry| table::is_active(*entry))?;
    let state = state::glance().filter(|state| state.is_own())?;
    Some(File { state, fd, entry })
}

impl File {
    /// Whether a descriptor's status is that of this file.
    pub(crate) fn is_same(&self, stat: &libc::stat) -> bool {
        table::is_file(self.entry, stat)
    }

    /// The file's slot.
    pub(crate) fn slot(&self) -> u64 {
        self.entry.slot() as u64
    }

    /// Decides who serves the next call.
    pub(crate) fn enter(&mut self) -> Served {
        loop {
            if table::is_active(self.entry) {
                return self.enter_active();
            }
            standby::step();
            let word = raw_word(self.state);
            let mut guard = RawGuard { word, file: None, _held: SignalsHeld::new() };
            if let Some(word) = guard.word {
                word.fetch_add(1, Ordering::SeqCst);
            }
            // The manager sets the flag first, or gives the slot to another file, and then waits for
            // the word: one of us sees the other.
            if table::is_active(self.entry) {
                return self.enter_active();
            }
            if table::is_current(self.entry) || !self.state.is_own() {
                guard.file = self.state.is_own().then_some(*self);
                return Served::Kernel(guard);
            }
            drop(guard);
            if !self.renew() {
                return Served::Kernel(RawGuard::uncounted());
            }
        }
    }

    /// Shows the descriptor once more if its file lost its slot to another; whether it has one now.
    pub(crate) fn renew(&mut self) -> bool {
        if table::is_current(self.entry) || !self.state.is_own() {
            return false;
        }
        match show_again(self.state, self.fd, self.entry) {
            Some(entry) => {
                self.entry = entry;
                true
            }
            None => false,
        }
    }

    fn enter_active(&self) -> Served {
        if self.state.is_own() {
            return Served::Managed;
        }
        // A vfork child may not use its parent's connections.
        Served::Kernel(RawGuard::uncounted())
    }

    /// A request that needs the rights of the descriptor. The manager forgets what it was shown
    /// when the program closes all our connections.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, i32> {
        match ask(self.state, request) {
            Err(errno) if errno == -libc::EACCES => {
                let mut opened = Request::new(Op::Opened);
                opened.a = raw::fcntl(self.fd, libc::F_GETFL, 0) as u64;
                let (_, came) = ask_with(self.state, &opened, &[], self.fd)?;
                raw::close(came);
                ask(self.state, request)
            }
            answer => answer,
        }
    }

    /// A request about this file.
    pub(crate) fn request(&self, op: Op) -> Request {
        let mut request = Request::new(op);
        request.a = self.slot();
        request
    }
}

fn raw_word(state: &State) -> Option<&'static AtomicU32> {
    let mut word = state.raw_word.load(Ordering::Acquire);
    if word.is_null() {
        let _held = SignalsHeld::new();
        let _lock = state.set_up.lock();
        word = state.raw_word.load(Ordering::Acquire);
        if word.is_null() {
            let (_, fd) = ask_with(state, &Request::new(Op::RawWord), &[], -1).ok()?;
            let bytes = PAGE_BYTES as usize;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let addr = raw::map(bytes, prot, libc::MAP_SHARED, fd, 0);
            raw::close(fd);
            if addr < 0 {
                return None;
            }
            // A forked child counts in a word of its own.
            raw_call!(libc::SYS_madvise, addr, bytes, libc::MADV_DONTFORK);
            word = addr as *mut AtomicU32;
            state.raw_word.store(word, Ordering::Release);
        }
    }
    // SAFETY: a shared page that stays mapped for the life of this process.
    unsafe { word.as_ref() }
}

/// A descriptor came into being: if it is a regular file's, the manager is asked about it.
/// `flags` are those of `open(2)`.
pub(crate) fn classify(fd: c_int, flags: c_int) {
    if !state::active() || fd < 0 || fd as u32 >= table::DESCRIPTORS_MAX {
        return;
    }
    // An O_PATH descriptor can do nothing that concerns us, but may be opened anew when the file
    // has no name and nobody has it open any more.
    if flags & libc::O_PATH == 0 {
        announce(fd, flags);
    } else if let Ok(stat) = raw::fstat(fd)
        && can_be_managed(fd, &stat)
        && let Some(state) = state::current()
    {
        show(state, fd, &opening(flags));
    }
}

/// [`classify`] for a descriptor of any kind, in an active process.
pub(crate) fn announce(fd: c_int, flags: c_int) {
    if first_use::can_wait(flags) {
        first_use::opened(fd);
        return;
    }
    let Ok(stat) = raw::fstat(fd) else { return };
    if let Some(cell) = board::too_short(&stat) {
        return first_use::opened_short(fd, cell);
    }
    if !can_be_managed(fd, &stat) {
        return;
    }
    let Some(state) = state::current() else { return };
    // Opened just now: whatever was heard before is right for it.
    if let Some((file, heard)) = table::shown(&stat, flags, state.pid(), u64::MAX) {
        enter(Some(state), fd, heard, || table::set(fd, Entry::new(file, fd, flags)));
    } else if let Some((file, reply)) = show(state, fd, &opening(flags)) {
        let entry = Entry::new(file, fd, flags);
        if met(state, entry, &stat, flags, (reply.r1, raw::soon_ns())) {
            enter(Some(state), fd, reply.r1, || table::set(fd, entry));
        }
    }
}

/// Whether files of this kind are ever managed.
pub(crate) fn can_be_managed(fd: c_int, stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG && !is_synthetic(fd, stat)
}

/// The manager says which slot a file has that it was shown, and what was heard of its errors by a
/// time. False if that cannot be noted.
pub(crate) fn met(
    state: &State,
    entry: Entry,
    stat: &libc::stat,
    flags: c_int,
    heard: (u64, u64),
) -> bool {
    let noted = table::identify(entry, stat);
    // The manager looks at rights when it manages the file.
    if noted && flags & libc::O_PATH == 0 && table::is_active(entry) {
        table::remember_shown(entry.slot(), stat, flags, state.pid(), heard);
    }
    noted
}

/// Notes a descriptor in the table: `put` does, and returns what was known of its number. Without a
/// state the manager does not know of this process yet.
pub(crate) fn enter(
    state: Option<&State>,
    fd: c_int,
    heard: u64,
    put: impl FnOnce() -> Option<Entry>,
) {
    if let Some(known) = table::heard(fd) {
        known.store(heard, Ordering::Relaxed);
    }
    let before = put();
    direct::moved(fd, None);
    match (before, state) {
        (Some(old), Some(state)) => closed(state, old),
        (Some(old), None) => _ = table::drop_count(old),
        (None, _) => {}
    }
}

/// The message that shows the manager a descriptor which was opened just now.
pub(crate) fn opening(flags: c_int) -> Request {
    let mut request = Request::new(Op::Opened);
    request.a = flags as u32 as u64;
    request
}

/// Shows the manager a descriptor: the file's slot, if it has one, and the reply.
pub(crate) fn show(state: &State, fd: c_int, request: &Request) -> Option<(Tenancy, Reply)> {
    let (mut reply, came) = ask_with(state, request, &[], fd).ok()?;
    raw::close(came);
    if reply.r0 == 0 && reply.r3 != 0 {
        standby::end();
        let again = Request { f: 1, ..*request };
        let came;
        (reply, came) = ask_with(state, &again, &[], fd).ok()?;
        raw::close(came);
    }
    let slot = u32::try_from(reply.r0.checked_sub(1)?).ok()?;
    Some((Tenancy { slot, incarnation: reply.r3 as u32 }, reply))
}

fn is_synthetic(fd: c_int, stat: &libc::stat) -> bool {
    // Synthetic file systems have no block device, so no major number.
    if libc::major(stat.st_dev) != 0 {
        return false;
    }
    let mut fs = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    if raw_call!(libc::SYS_fstatfs, fd, fs.as_mut_ptr()) < 0 {
        return false;
    }
    // SAFETY: all zero is valid, and the kernel filled it.
    let kind = unsafe { fs.assume_init() }.f_type;
    #[allow(clippy::unnecessary_cast, reason = "the type differs between architectures")]
    SYNTHETIC.contains(&(kind as i64))
}

/// Shows the manager all regular files that this process inherited from the program that executed
/// it.
pub(crate) fn announce_executed() {
    fdinfo::each_open(|fd| {
        classify(fd, raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
        lock_files::inherited(fd);
    });
}

/// Shows the manager all managed files that a forked child inherited. What the table says of them
/// stays meanwhile: other threads of the child may be using them already.
pub(crate) fn announce_inherited(state: &State) {
    for (fd, entry) in table::entries(0, u32::MAX) {
        let flags = raw::fcntl(fd, libc::F_GETFL, 0);
        let same = raw::fstat(fd).is_ok_and(|stat| table::is_file(entry, &stat));
        let shown = if same { show(state, fd, &opening(flags as c_int)) } else { None };
        if shown.is_some_and(|(file, _)| entry.is(file)) {
            continue;
        }
        // Closed, and perhaps reused, by a call that this library does not see.
        if table::clear(fd).is_some() {
            table::drop_count(entry);
        }
        if flags >= 0 {
            classify(fd, flags as c_int);
        }
    }
}

/// A descriptor was closed whose entry is cleared already.
fn closed(state: &State, entry: Entry) {
    if table::drop_count(entry) == 0 {
        delayed::close(state, entry);
        direct::idle(state, entry);
    }
}

/// Forgets a descriptor that is closed already.
pub(crate) fn forget(state: &State, fd: c_int) {
    if let Some(entry) = table::clear(fd) {
        closed(state, entry);
    }
}

/// Closes one descriptor through `close`, which returns libc's result.
pub(crate) fn close(fd: c_int, close: impl FnOnce() -> c_int) -> c_int {
    lock_files::before_close(fd);
    if table::is_plain(fd) {
        return close();
    }
    let view = state::view();
    if connection::is_ours(view.ready(), fd) {
        raw::set_errno(libc::EBADF);
        return -1;
    }
    match view {
        View::Foreign => close(),
        View::Fresh => {
            // The manager does not know of this process yet: nothing to tell it.
            if let Some(entry) = table::clear(fd) {
                table::drop_count(entry);
            }
            close()
        }
        View::Ready(state) => {
            await_left(fd);
            // Of one that was not shown nothing is in memory by it, and nobody is kept waiting.
            let held = table::get(fd).map(|_| SignalsHeld::new());
            let leaving = held.as_ref().and_then(|_| table::leave(fd));
            // Cleared first, too: after the close the number may be another thread's new file.
            let cleared = if leaving.is_none() { table::clear(fd) } else { None };
            let result = if held.is_some() { cancel::never(close) } else { close() };
            if let Some(entry) = leaving.map_or(cleared, table::Leaving::gone) {
                closed(state, entry);
            }
            result
        }
    }
}

/// `close_range(2)`, by which none of ours is closed; `close` makes the call for a range, with the same flags.
pub(crate) fn close_range(
    first: u32,
    last: u32,
    flags: u32,
    close: impl Fn(u32, u32) -> isize,
) -> isize {
    if !closes_range(flags) {
        let result = close(first, last);
        bell::stays_open();
        return result;
    }
    lock_files::before_close_range(first, last);
    if first > last {
        return close(first, last);
    }
    let view = state::view();
    // Cleared first: after the close a number may be another thread's new file.
    match view {
        View::Foreign => {}
        View::Fresh => {
            table::known(first, last).for_each(|fd| _ = table::clear(fd).map(table::drop_count));
        }
        View::Ready(state) => table::known(first, last).for_each(|fd| forget(state, fd)),
    }
    let mut from = first;
    loop {
        let ours =
            connection::next_ours(view.ready(), from).map(|fd| fd as u32).filter(|&fd| fd <= last);
        let Some(ours) = ours else {
            // An empty remainder behind one of ours is nothing to close.
            return if from > last { 0 } else { close(from, last) };
        };
        if ours > from {
            let result = close(from, ours - 1);
            if result < 0 {
                return result;
            }
        }
        from = ours + 1;
    }
}

/// What flags of `close_range(2)` ask for is about to be done; whether that is to close anything now.
fn closes_range(flags: u32) -> bool {
    if flags & !(libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC) != 0 {
        // The kernel knows what it makes of the others.
        return false;
    }
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
        unsharing(libc::CLONE_FILES);
    }
    // Ours are closed by an exec already, but for one (`bell::stays_open`).
    flags & libc::CLOSE_RANGE_CLOEXEC == 0
}

/// A thread is about to get a table of descriptors of its own, by flags of `unshare(2)`.
pub(crate) fn unsharing(flags: c_int) {
    if flags & libc::CLONE_FILES == 0 || matches!(state::view(), View::Foreign) {
        return;
    }
    if !state::is_only_thread() {
        state::tables_differ();
    }
}

/// A descriptor was duplicated; `new` is the result of the call.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    lock_files::duplicated(old, new);
    if new < 0 || old == new || (table::is_plain(old) && table::is_plain(new)) {
        return;
    }
    if let Some(known) = table::unshown(old) {
        first_use::duplicated(known, old, new);
        return;
    }
    let Some(state) = state::current() else { return };
    if let Some(entry) = table::get(old) {
        let heard = table::heard(old).map_or(0, |heard| heard.load(Ordering::Relaxed));
        enter(Some(state), new, heard, || table::set(new, entry));
    } else {
        forget(state, new);
    }
}

/// libc may have put others in place of the standard descriptors, by calls of its own.
pub(crate) fn standard_replaced() {
    let errno = raw::errno();
    for fd in 0..=2 {
        if !table::is_plain(fd) {
            // Its number is taken: what is known of it is all that is closed.
            close(fd, || 0);
        }
        classify(fd, raw::fcntl(fd, libc::F_GETFL, 0) as c_int);
    }
    raw::set_errno(errno);
}

/// Makes a call that puts `old` in place of `new`, which is its result unless it fails.
pub(crate) fn replace(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let result = put_in_place(old, new, call);
    // libc's own stream reads what is stored, by calls that nobody sees.
    if (0..=2).contains(&result)
        && table::get_sure(result).is_some_and(|entry| !overwrite::is_clean(entry))
    {
        let errno = raw::errno();
        let _ = change::flush_descriptor(result);
        raw::set_errno(errno);
    }
    result
}

fn put_in_place(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    before_replacing(new);
    let state = if old == new { None } else { state::current() };
    let (Some(state), Some(entry)) = (state, table::get(new)) else {
        let result = call();
        duplicated(old, result);
        return result;
    };
    let _held = SignalsHeld::new();
    let (result, gone) = {
        // Nobody has claimed of one file's offset what is the other's.
        let _lock = state.offset_locks[entry.lock_index()].lock();
        let leaving = table::leave(new);
        let result = call();
        if result < 0 {
            leaving.into_iter().for_each(table::Leaving::stays);
            return result;
        }
        duplicated(old, result);
        (result, leaving.and_then(table::Leaving::gone))
    };
    if let Some(entry) = gone {
        let errno = raw::errno();
        closed(state, entry);
        raw::set_errno(errno);
    }
    result
}

/// Before a call that closes `new` to put something else there.
fn before_replacing(new: c_int) {
    if table::is_connection(new) {
        let view = state::view();
        if let View::Ready(state) = view {
            connection::evict(state, new);
        }
        bell::make_way(new, !matches!(view, View::Foreign));
    }
    lock_files::before_close(new);
}

/// Whether a call that ended so failed for lack of space.
pub(crate) fn is_full(result: isize) -> bool {
    result == -libc::ENOSPC as isize || result == -libc::EDQUOT as isize
}

/// Whether a call that ended so failed for lack of space, and is to be made once more: deleted files
/// may have made room since. (Under the kernel their space is free as soon as nobody uses them any
/// more; the manager needs a moment to notice.)
pub(crate) fn makes_room(state: &State, result: isize) -> bool {
    is_full(result) && ask(state, &Request::new(Op::MakeRoom)).is_ok()
}

/// Opens a file: `open` makes the call with the flags that it gets and returns libc's result.
///
/// Truncation on opening is made a call of its own, because only the opened descriptor tells whose
/// file it is.
pub(crate) fn open(flags: c_int, open: impl Fn(c_int) -> c_int) -> c_int {
    standby::step();
    if matches!(state::view(), View::Foreign) {
        return open(flags);
    }
    let created = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let truncates = flags & libc::O_TRUNC != 0 && !created && flags & libc::O_PATH == 0;
    let splits = truncates && flags & libc::O_ACCMODE != libc::O_RDONLY;
    let flags_now = if splits { flags & !libc::O_TRUNC } else { flags };
    let sharings = table::sharings();
    let mut fd = open(flags_now);
    // The manager may just be letting go of the file, for which it keeps everybody out: who does not
    // want to wait for the kernel is told to come back.
    for _ in 0..KEPT_OUT_TRIES {
        if fd >= 0 || flags & libc::O_NONBLOCK == 0 || raw::errno() != libc::EAGAIN {
            break;
        }
        raw_call!(libc::SYS_sched_yield);
        fd = open(flags_now);
    }
    if fd < 0
        && let View::Ready(state) = state::view()
        && makes_room(state, -raw::errno() as isize)
    {
        fd = open(flags_now);
    }
    if fd < 0 {
        return fd;
    }
    let opened = if splits { raw::fstat(fd).ok() } else { None };
    let unmanaged = opened.and_then(|stat| board::unmanaged(&stat));
    match unmanaged {
        // What is about to be written anew is as short as a new file.
        Some(cell) => first_use::opened_short(fd, cell),
        None => classify(fd, flags),
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        table::set_exclusive(fd, sharings);
    }
    if splits {
        if opened.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG) {
            let plain = || raw_call!(libc::SYS_ftruncate, fd, 0);
            let result = match plain::of(fd).filter(|_| unmanaged.is_some()) {
                Some(kernels) => {
                    let result = plain();
                    if result >= 0 {
                        kernels.emptied(fd);
                    }
                    result
                }
                None => change::truncate(fd, 0, plain).unwrap_or_else(plain),
            };
            if result < 0 {
                close(fd, || real::close(fd));
                raw::set_errno(-result as c_int);
                return -1;
            }
        }
    } else if truncates && let Some(file) = managed(fd) {
        // O_RDONLY|O_TRUNC truncates on Linux, and cannot be split.
        change::dropped(&file);
    }
    fd
}
