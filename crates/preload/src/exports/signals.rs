//! Signals: what a program wants done on those that our own copies may raise.

use crate::reading::guard;
use crate::real;
use libc::{c_int, sighandler_t, sigset_t};

export! {
    as sigaction, __sigaction;
    fn (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        guard::act(signal, new, old).unwrap_or_else(|| real::sigaction(signal, new, old))
    }
}

export! {
    as signal, bsd_signal, ssignal;
    fn (signal: c_int, handler: sighandler_t) -> sighandler_t {
        guard::handle(signal, handler, libc::SA_RESTART)
            .unwrap_or_else(|| real::signal(signal, handler))
    }
}

export! {
    as sysv_signal, __sysv_signal;
    fn (signal: c_int, handler: sighandler_t) -> sighandler_t {
        guard::handle(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER)
            .unwrap_or_else(|| real::sysv_signal(signal, handler))
    }
}

export! {
    as sigset;
    fn (signal: c_int, handler: sighandler_t) -> sighandler_t {
        guard::give_up(signal);
        real::sigset(signal, handler)
    }
}

export! {
    as sigprocmask;
    fn (how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
        if how != libc::SIG_UNBLOCK {
            guard::blocking_set(set);
        }
        real::sigprocmask(how, set, old)
    }
}

export! {
    as pthread_sigmask;
    fn (how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
        if how != libc::SIG_UNBLOCK {
            guard::blocking_set(set);
        }
        real::pthread_sigmask(how, set, old)
    }
}

export! {
    as pthread_attr_setsigmask_np;
    fn (attributes: *mut libc::pthread_attr_t, set: *const sigset_t) -> c_int {
        guard::blocking_set(set);
        real::pthread_attr_setsigmask_np(attributes, set)
    }
}

export! {
    as sighold;
    fn (signal: c_int) -> c_int {
        guard::give_up(signal);
        real::sighold(signal)
    }
}

export! {
    as sigblock;
    fn (mask: c_int) -> c_int {
        guard::blocking(mask as u32 as u64);
        real::sigblock(mask)
    }
}

export! {
    as sigsetmask;
    fn (mask: c_int) -> c_int {
        guard::blocking(mask as u32 as u64);
        real::sigsetmask(mask)
    }
}
