//! Whose memory this process may read and write. Where Yama restricts that (Ubuntu's kernels and others by
//! default), it is descendants' alone, which a daemon is no longer, or nobody's
//! (Documentation/admin-guide/LSM/Yama.rst in the kernel's sources).

use std::sync::OnceLock;

use rustix::process::{DumpableBehavior, dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_ambient_set};

use super::process_vm_read;
use crate::Errno;

/// `kernel.yama.ptrace_scope`: 0 where Yama is not there or restricts nothing, 1 for descendants and who
/// permits it, 2 for administrators, 3 for nobody.
pub fn scope() -> u32 {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.ok().and_then(|scope| scope.trim().parse().ok()).unwrap_or(0)
}

/// Whether a process has to permit this one to read and write its memory (`PR_SET_PTRACER` in prctl(2)), or is
/// out of reach as soon as it is no descendant.
pub fn needs_leave() -> bool {
    static NEEDS: OnceLock<bool> = OnceLock::new();
    *NEEDS.get_or_init(|| {
        let sets = capabilities(None);
        scope() != 0 && !sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
    })
}

/// Whether programs that this process executes can have CAP_SYS_PTRACE: root's, and those that
/// inherit it. What only the file of this program was given, they do not get.
pub(crate) fn programs_may_trace() -> bool {
    let is_inherited = capability_is_in_ambient_set(CapabilitySet::SYS_PTRACE);
    rustix::process::geteuid().is_root() || is_inherited == Ok(true)
}

/// Whether programs of this user that are descendants can be reached: tried on a child, which has executed
/// nothing since it was forked. True also if that says nothing of others, since this process is out of
/// reach itself.
pub fn reaches(child: u32) -> bool {
    static BYTE: u8 = 1;
    let there = (&raw const BYTE) as u64;
    match process_vm_read(child, there, &mut [0]) {
        Err(Errno::PERM | Errno::NOSYS) => {
            !matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable))
        }
        _ => true,
    }
}
