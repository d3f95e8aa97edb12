//! The functions behind ours: libc's own, or those of another library preloaded after this one.
//!
//! They are looked up once, by [`resolve`] in the constructor. Before that (an allocator's or
//! another library's constructor may run first, and a look-up may allocate) functions that are
//! plain system calls are made as such. What may be missing is looked up when it is called: for a look-up
//! that fails the dynamic linker allocates, and the program's allocator is not to begin as early as that.
//!
//! Of names that mean the same (`open`, `open64`), each has the next of its own name behind it: another
//! library's `openat` may call `open`.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_void, iovec, loff_t, mode_t, msghdr, off_t, size_t,
    sockaddr, socklen_t, ssize_t,
};

/// The next function of this name after this library's own; null if there is none.
pub(crate) fn look_up(name: &CStr) -> *mut c_void {
    dlsym(libc::RTLD_NEXT, name.as_ptr())
}

/// What the program itself finds by this name; null if there is nothing.
pub(crate) fn of_program(name: &CStr) -> *mut c_void {
    dlsym(libc::RTLD_DEFAULT, name.as_ptr())
}

/// Where the real `dlsym` is.
pub(crate) fn dlsym_address() -> *mut c_void {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let known = PLACE.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // The version before it was libc's own is one for each kind of processor.
    #[cfg(target_arch = "x86_64")]
    const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
    #[cfg(target_arch = "aarch64")]
    const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.17"];
    let name = c"dlsym".as_ptr();
    // SAFETY: names that end with a NUL.
    let find = |version: &CStr| unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version.as_ptr()) };
    let found = VERSIONS.into_iter().map(find).find(|found| !found.is_null());
    let found = or_nothing(found.unwrap_or(core::ptr::null_mut()));
    PLACE.store(found, Ordering::Relaxed);
    found
}

/// The real `dlsym(3)`, as this library calls it. The name ends with a NUL.
pub(crate) fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: libc's function has this signature (or nothing is there, and none is looked at), and the arguments are
    // the program's own or a name of ours.
    unsafe { core::mem::transmute::<*mut c_void, Dlsym>(dlsym_address())(handle, name) }
}

/// Whether this is in the library that the real `dlsym` is in: libc, since 2.34.
pub(crate) fn is_in_libc(function: *const c_void) -> bool {
    static START: AtomicUsize = AtomicUsize::new(0);
    static END: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _bytes: size_t,
        _data: *mut c_void,
    ) -> c_int {
        // SAFETY: the dynamic linker describes a library that is loaded, and its table of segments.
        let (base, segments) = unsafe {
            let info = &*info;
            let count = usize::from(info.dlpi_phnum);
            (info.dlpi_addr as usize, core::slice::from_raw_parts(info.dlpi_phdr, count))
        };
        let ranges =
            segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD).map(|segment| {
                let start = base + segment.p_vaddr as usize;
                (start, start + segment.p_memsz as usize)
            });
        let (start, end) = ranges
            .fold((usize::MAX, 0), |(low, high), (start, end)| (low.min(start), high.max(end)));
        let is_it = (start..end).contains(&dlsym_address().addr());
        if is_it {
            START.store(start, Ordering::Relaxed);
            END.store(end, Ordering::Release);
        }
        c_int::from(is_it)
    }

    if END.load(Ordering::Acquire) == 0 {
        // SAFETY: the function does as it is told in dl_iterate_phdr(3).
        unsafe { libc::dl_iterate_phdr(Some(look), core::ptr::null_mut()) };
    }
    (START.load(Ordering::Relaxed)..END.load(Ordering::Acquire)).contains(&function.addr())
}

/// A function of this library's own for a name that libc has, or libc's if there is none.
pub(crate) fn own(name: *const c_char) -> *mut c_void {
    static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut library = LIBRARY.load(Ordering::Relaxed);
    if library.is_null() {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: a place for what is said of an address of ours.
        let is_known = unsafe { libc::dladdr(own as *const c_void, info.as_mut_ptr()) } != 0;
        // SAFETY: all zero is valid, and so is what the call filled it with.
        let path = unsafe { info.assume_init() }.dli_fname;
        let place = dlopen_address();
        if !is_known || path.is_null() {
            return core::ptr::null_mut();
        }
        type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
        // SAFETY: libc's function, and the name by which it knows this library, which is loaded.
        library = unsafe {
            let dlopen = core::mem::transmute::<*mut c_void, Dlopen>(place);
            dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
        };
        if library.is_null() {
            return library;
        }
        LIBRARY.store(library, Ordering::Relaxed);
    }
    dlsym(library, name)
}

macro_rules! name_of {
    ($name:ident) => {
        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

/// Functions that are looked up when they are called, if they were not before.
macro_rules! callable {
    ($($name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty, otherwise $missing:expr;)*) => {
        $(
            /// The real function.
            #[allow(non_snake_case)]
            pub(crate) fn $name($($arg: $ty),*) -> $ret {
                let mut place = place::$name.load(Ordering::Relaxed);
                if place.is_null() {
                    place = look_up(name_of!($name));
                    if place.is_null() {
                        crate::raw::set_errno(libc::ENOSYS);
                        return $missing;
                    }
                    place::$name.store(place, Ordering::Relaxed);
                }
                // SAFETY: libc's function of this name has this signature; the arguments are the
                // program's own.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(
                        place,
                    )($($arg),*)
                }
            }
        )*
    };
}

macro_rules! real_functions {
    (
        system_calls { $($call:ident = $number:ident ( $($carg:ident : $cty:ty),* ) -> $cret:ty;)* }
        functions { $($name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty, otherwise $missing:expr;)* }
        late { $($late:ident ( $($larg:ident : $lty:ty),* ) -> $lret:ty, otherwise $absent:expr;)* }
    ) => {
        #[allow(non_upper_case_globals)]
        mod place {
            use super::*;
            $(pub(super) static $call: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());)*
            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());)*
            $(pub(super) static $late: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());)*
        }

        /// Looks up all that libc has.
        pub(crate) fn resolve() {
            $(place::$call.store(look_up(name_of!($call)), Ordering::Relaxed);)*
            $(place::$name.store(look_up(name_of!($name)), Ordering::Relaxed);)*
        }

        $(
            /// The real function; a raw system call while it is not looked up yet.
            #[allow(clippy::too_many_arguments)]
            pub(crate) fn $call($($carg: $cty),*) -> $cret {
                let place = place::$call.load(Ordering::Relaxed);
                if place.is_null() {
                    return crate::raw::ret(crate::raw_call!(libc::$number $(, $carg)*)) as $cret;
                }
                // SAFETY: libc's function of this name has this signature; the arguments are the
                // program's own.
                unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($cty),*) -> $cret>(
                        place,
                    )($($carg),*)
                }
            }
        )*
        callable! { $($name($($arg: $ty),*) -> $ret, otherwise $missing;)* }
        callable! { $($late($($larg: $lty),*) -> $lret, otherwise $absent;)* }
    };
}

type Argv = *const *const c_char;

real_functions! {
    system_calls {
        openat = SYS_openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
        close = SYS_close(fd: c_int) -> c_int;
        fstat = SYS_fstat(fd: c_int, stat: *mut libc::stat) -> c_int;
        statx = SYS_statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint,
            stat: *mut libc::statx) -> c_int;
        close_range = SYS_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
        dup = SYS_dup(fd: c_int) -> c_int;
        dup3 = SYS_dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
        fcntl = SYS_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
        ioctl = SYS_ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
        recvmsg = SYS_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        recvmmsg = SYS_recvmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint,
            flags: c_int, timeout: *mut libc::timespec) -> c_int;
        sendto = SYS_sendto(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int,
            to: *const sockaddr, to_bytes: socklen_t) -> ssize_t;
        sendmsg = SYS_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
        sendmmsg = SYS_sendmmsg(fd: c_int, messages: *mut libc::mmsghdr, count: c_uint,
            flags: c_int) -> c_int;
        pidfd_getfd = SYS_pidfd_getfd(process: c_int, target: c_int, flags: c_uint) -> c_int;
        recvfrom = SYS_recvfrom(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int,
            from: *mut sockaddr, from_bytes: *mut socklen_t) -> ssize_t;
        read = SYS_read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
        readv = SYS_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
        pread64 = SYS_pread64(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t)
            -> ssize_t;
        write = SYS_write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
        writev = SYS_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
        pwrite64 = SYS_pwrite64(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t)
            -> ssize_t;
        wait4 = SYS_wait4(child: libc::pid_t, status: *mut c_int, options: c_int,
            usage: *mut libc::rusage) -> libc::pid_t;
        ftruncate = SYS_ftruncate(fd: c_int, bytes: off_t) -> c_int;
        truncate = SYS_truncate(path: *const c_char, bytes: off_t) -> c_int;
        fallocate = SYS_fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int;
        copy_file_range = SYS_copy_file_range(from: c_int, from_at: *mut loff_t, to: c_int,
            to_at: *mut loff_t, bytes: size_t, flags: c_uint) -> ssize_t;
        sendfile = SYS_sendfile(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t;
        splice = SYS_splice(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t,
            bytes: size_t, flags: c_uint) -> ssize_t;
        utimensat = SYS_utimensat(dir: c_int, path: *const c_char, times: *const libc::timespec,
            flags: c_int) -> c_int;
        fsync = SYS_fsync(fd: c_int) -> c_int;
        fdatasync = SYS_fdatasync(fd: c_int) -> c_int;
        sync_file_range = SYS_sync_file_range(fd: c_int, offset: off_t, bytes: off_t,
            flags: c_uint) -> c_int;
        syncfs = SYS_syncfs(fd: c_int) -> c_int;
        mmap = SYS_mmap(addr: *mut c_void, bytes: size_t, prot: c_int, flags: c_int, fd: c_int,
            offset: off_t) -> *mut c_void;
        mremap = SYS_mremap(old: *mut c_void, old_bytes: size_t, new_bytes: size_t, flags: c_int,
            new: *mut c_void) -> *mut c_void;
        munmap = SYS_munmap(addr: *mut c_void, bytes: size_t) -> c_int;
        mprotect = SYS_mprotect(addr: *mut c_void, bytes: size_t, prot: c_int) -> c_int;
        pkey_mprotect = SYS_pkey_mprotect(addr: *mut c_void, bytes: size_t, prot: c_int,
            key: c_int) -> c_int;
        remap_file_pages = SYS_remap_file_pages(addr: *mut c_void, bytes: size_t, prot: c_int,
            page: size_t, flags: c_int) -> c_int;
        msync = SYS_msync(addr: *mut c_void, bytes: size_t, flags: c_int) -> c_int;
        madvise = SYS_madvise(addr: *mut c_void, bytes: size_t, advice: c_int) -> c_int;
        process_madvise = SYS_process_madvise(pidfd: c_int, parts: *const iovec, count: size_t,
            advice: c_int, flags: c_uint) -> ssize_t;
        mlock = SYS_mlock(addr: *const c_void, bytes: size_t) -> c_int;
        mlock2 = SYS_mlock2(addr: *const c_void, bytes: size_t, flags: c_uint) -> c_int;
        mlockall = SYS_mlockall(flags: c_int) -> c_int;
        unshare = SYS_unshare(flags: c_int) -> c_int;
        setns = SYS_setns(fd: c_int, kind: c_int) -> c_int;
        prctl = SYS_prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
        execve = SYS_execve(path: *const c_char, argv: Argv, env: Argv) -> c_int;
        execveat = SYS_execveat(dir: c_int, path: *const c_char, argv: Argv, env: Argv,
            flags: c_int) -> c_int;
    }
    functions {
        waitid(of: libc::idtype_t, id: libc::id_t, info: *mut libc::siginfo_t, options: c_int)
            -> c_int,
            otherwise crate::raw::ret(crate::raw_call!(libc::SYS_waitid, of, id, info, options, 0)) as c_int;
        dup2(old: c_int, new: c_int) -> c_int, otherwise -1;
        open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, otherwise -1;
        open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, otherwise -1;
        __open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, otherwise -1;
        __open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, otherwise -1;
        creat(path: *const c_char, mode: mode_t) -> c_int, otherwise -1;
        creat64(path: *const c_char, mode: mode_t) -> c_int, otherwise -1;
        send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t,
            otherwise -1;
        recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t,
            otherwise -1;
        fread(to: *mut c_void, size: size_t, items: size_t, stream: *mut FILE) -> size_t,
            otherwise 0;
        fwrite(from: *const c_void, size: size_t, items: size_t, stream: *mut FILE) -> size_t,
            otherwise 0;
        fputs(text: *const c_char, stream: *mut FILE) -> c_int, otherwise -1;
        fread_unlocked(to: *mut c_void, size: size_t, items: size_t, stream: *mut FILE)
            -> size_t, otherwise 0;
        fwrite_unlocked(from: *const c_void, size: size_t, items: size_t, stream: *mut FILE)
            -> size_t, otherwise 0;
        fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int, otherwise -1;
        closefrom(first: c_int) -> (), otherwise Default::default();
        preadv64(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t,
            otherwise -1;
        pwritev64(fd: c_int, iov: *const iovec, count: c_int, offset: off_t) -> ssize_t,
            otherwise -1;
        preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int)
            -> ssize_t, otherwise -1;
        pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int)
            -> ssize_t, otherwise -1;
        lockf(fd: c_int, command: c_int, bytes: off_t) -> c_int, otherwise -1;
        lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t, otherwise -1;
        posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int, otherwise libc::ENOSYS;
        posix_fadvise(fd: c_int, offset: off_t, bytes: off_t, advice: c_int) -> c_int,
            otherwise libc::ENOSYS;
        posix_madvise(addr: *mut c_void, bytes: size_t, advice: c_int) -> c_int,
            otherwise libc::ENOSYS;
        futimens(fd: c_int, times: *const libc::timespec) -> c_int, otherwise -1;
        utime(path: *const c_char, times: *const libc::utimbuf) -> c_int, otherwise -1;
        utimes(path: *const c_char, times: *const libc::timeval) -> c_int, otherwise -1;
        lutimes(path: *const c_char, times: *const libc::timeval) -> c_int, otherwise -1;
        futimes(fd: c_int, times: *const libc::timeval) -> c_int, otherwise -1;
        futimesat(dir: c_int, path: *const c_char, times: *const libc::timeval) -> c_int,
            otherwise -1;
        sync() -> (), otherwise Default::default();
        fopen(path: *const c_char, mode: *const c_char) -> *mut FILE,
            otherwise core::ptr::null_mut();
        tmpfile() -> *mut FILE, otherwise core::ptr::null_mut();
        fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, otherwise core::ptr::null_mut();
        freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE,
            otherwise core::ptr::null_mut();
        fclose(stream: *mut FILE) -> c_int, otherwise -1;
        __fpurge(stream: *mut FILE) -> (), otherwise Default::default();
        fseeko(stream: *mut FILE, offset: off_t, whence: c_int) -> c_int, otherwise -1;
        fflush(stream: *mut FILE) -> c_int, otherwise -1;
        fflush_unlocked(stream: *mut FILE) -> c_int, otherwise -1;
        fileno(stream: *mut FILE) -> c_int, otherwise -1;
        fopencookie(cookie: *mut c_void, mode: *const c_char, calls: crate::streams::stdio::CookieCalls)
            -> *mut FILE, otherwise core::ptr::null_mut();
        perror(text: *const c_char) -> (), otherwise Default::default();
        mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int, otherwise -1;
        shm_open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int, otherwise -1;
        execvpe(file: *const c_char, argv: Argv, env: Argv) -> c_int, otherwise -1;
        fexecve(fd: c_int, argv: Argv, env: Argv) -> c_int, otherwise -1;
        posix_spawn(pid: *mut libc::pid_t, path: *const c_char,
            actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t, argv: Argv, env: Argv) -> c_int,
            otherwise libc::ENOSYS;
        posix_spawnp(pid: *mut libc::pid_t, file: *const c_char,
            actions: *const libc::posix_spawn_file_actions_t,
            attributes: *const libc::posix_spawnattr_t, argv: Argv, env: Argv) -> c_int,
            otherwise libc::ENOSYS;
        system(command: *const c_char) -> c_int, otherwise -1;
        popen(command: *const c_char, mode: *const c_char) -> *mut FILE,
            otherwise core::ptr::null_mut();
        open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int, otherwise -1;
        sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int,
            otherwise -1;
        signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t,
            otherwise libc::SIG_ERR;
        sysv_signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t,
            otherwise libc::SIG_ERR;
        sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t,
            otherwise libc::SIG_ERR;
        sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int,
            otherwise -1;
        pthread_sigmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int,
            otherwise libc::ENOSYS;
        pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t,
            set: *const libc::sigset_t) -> c_int, otherwise libc::ENOSYS;
        sighold(signal: c_int) -> c_int, otherwise -1;
        sigblock(mask: c_int) -> c_int, otherwise -1;
        sigsetmask(mask: c_int) -> c_int, otherwise -1;
        fork() -> libc::pid_t, otherwise -1;
        forkpty(main: *mut c_int, name: *mut c_char, terminal: *const libc::termios,
            window: *const libc::winsize) -> libc::pid_t, otherwise -1;
        login_tty(fd: c_int) -> c_int, otherwise -1;
        daemon(stays: c_int, keeps: c_int) -> c_int, otherwise -1;
        _Fork() -> libc::pid_t, otherwise -1;
        __register_atfork(before: Option<extern "C" fn()>, after: Option<extern "C" fn()>,
            in_child: Option<extern "C" fn()>, object: *mut c_void) -> c_int,
            otherwise libc::ENOMEM;
        aio_read(block: *mut c_void) -> c_int, otherwise -1;
        aio_write(block: *mut c_void) -> c_int, otherwise -1;
        aio_fsync(operation: c_int, block: *mut c_void) -> c_int, otherwise -1;
        lio_listio(mode: c_int, blocks: *const *mut c_void, count: c_int, event: *const c_void)
            -> c_int, otherwise -1;
        pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
            function: extern "C" fn(*mut c_void) -> *mut c_void, value: *mut c_void) -> c_int,
            otherwise libc::EAGAIN;
        pthread_detach(thread: libc::pthread_t) -> c_int, otherwise libc::EINVAL;
        syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize)
            -> c_long, otherwise -1;
    }
    late {
        io_queue_init(events: c_int, context: *mut c_void) -> c_int, otherwise -libc::ENOSYS;
        io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int,
            otherwise -libc::ENOSYS;
        io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void)
            -> c_int, otherwise -libc::ENOSYS;
        io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void,
            memory: *mut c_void, bytes: size_t) -> c_int, otherwise -libc::ENOSYS;
        __fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int,
            otherwise crate::raw::ret(crate::raw_call!(libc::SYS_fstat, fd, stat)) as c_int;
        __fxstat64(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int,
            otherwise crate::raw::ret(crate::raw_call!(libc::SYS_fstat, fd, stat)) as c_int;
    }
}

fn address(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    if place.load(Ordering::Relaxed).is_null() {
        place.store(look_up(name), Ordering::Relaxed);
    }
    place.load(Ordering::Relaxed)
}

/// Where the real `vfork` is: it must be jumped to, not called.
pub(crate) fn vfork_address() -> *mut c_void {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    address(&PLACE, c"vfork")
}

/// Where the real `clone` is: its arguments vary in number, so it is jumped to.
pub(crate) fn clone_address() -> *mut c_void {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    address(&PLACE, c"clone")
}

/// Where the real `dlopen` is. Where libc has none, and no library brings one, nothing is loaded.
pub(crate) fn dlopen_address() -> *mut c_void {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    or_nothing(address(&PLACE, c"dlopen"))
}

/// Where the real `dlmopen` is, as [`dlopen_address`].
pub(crate) fn dlmopen_address() -> *mut c_void {
    static PLACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    or_nothing(address(&PLACE, c"dlmopen"))
}

fn or_nothing(found: *mut c_void) -> *mut c_void {
    extern "C" fn nothing() -> *mut c_void {
        core::ptr::null_mut()
    }
    if found.is_null() { nothing as *mut c_void } else { found }
}
