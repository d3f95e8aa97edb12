//! Under a mask the wrappers fail as a kernel would that lacks the feature. One test function: the
//! mask is the process's.

use std::fs::File;
use std::io::IoSlice;

use pagekeeper_sys::file::{self, Lease, TransferFlags};
use pagekeeper_sys::mask::{self, Capability, Mask};
use pagekeeper_sys::memfd::Memfd;
use pagekeeper_sys::pagemap::{Categories, Pagemap};
use pagekeeper_sys::shared::SharedMap;
use pagekeeper_sys::userfault::{Features, OpenFlags, Userfault, supported_features};
use pagekeeper_sys::{Errno, Interrupted, cgroup, process, socket};

fn hide(capability: Capability) {
    mask::set(Mask::NONE.with(capability));
}

#[test]
fn wrappers_fail_as_a_kernel_without_the_feature() {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let me = std::process::id();
    let pidfd = process::pidfd_open(me).unwrap();

    for (capability, user_mode_only) in
        [(Capability::Userfault, false), (Capability::UserfaultUserMode, true)]
    {
        hide(capability);
        // SAFETY: nothing is registered.
        let opened = unsafe { Userfault::open(OpenFlags { nonblocking: true, user_mode_only }) };
        assert_eq!(opened.unwrap_err(), Errno::PERM);
    }
    for (capability, feature) in [
        (Capability::EventFork, Features::EVENT_FORK),
        (Capability::MinorShmem, Features::MINOR_SHMEM),
        (Capability::WpShmem, Features::WP_HUGETLBFS_SHMEM),
        (Capability::Poison, Features::POISON),
        (Capability::WpAsync, Features::WP_ASYNC),
        (Capability::Move, Features::MOVE),
    ] {
        hide(capability);
        let Ok(supported) = supported_features() else { break };
        assert!(!supported.contains(feature), "{capability}");
        // SAFETY: nothing is registered.
        let uffd = unsafe {
            Userfault::open(OpenFlags { nonblocking: true, user_mode_only: true }).unwrap()
        };
        assert_eq!(uffd.api(feature), Err(Errno::INVAL), "{capability}");
        assert!(uffd.api(Features::MISSING_SHMEM).is_ok(), "a refused attempt changes nothing");
        let refused = Err(Interrupted { done_bytes: 0, errno: Errno::INVAL });
        match capability {
            Capability::Poison => assert_eq!(uffd.poison(1 << 20, 4096, false), refused),
            Capability::Move => assert_eq!(uffd.move_pages(1 << 20, 2 << 20, 4096, false), refused),
            _ => {}
        }
    }
    hide(Capability::RemoteZap);
    let denied = Interrupted { done_bytes: 0, errno: Errno::PERM };
    assert_eq!(process::zap(&pidfd, &[(1 << 20, 4096)]), Err(denied));
    hide(Capability::ProcessVm);
    assert_eq!(process::process_vm_read(me, 1 << 20, &mut [0]), Err(Errno::PERM));
    assert_eq!(process::process_vm_write(me + 1, 1 << 20, &[0]), Err(Errno::PERM));
    hide(Capability::PagemapScan);
    let scan = Pagemap::open(me).unwrap().scan(0, 4096, Categories::PRESENT, false, &mut vec![]);
    assert_eq!(scan, Err(Errno::NOTTY));
    hide(Capability::MemfdSeals);
    assert_eq!(Memfd::create("t", 4096, true).unwrap_err(), Errno::INVAL);
    assert!(SharedMap::create("t", 4096).is_ok(), "does without");
    hide(Capability::AbstractSockets);
    assert_eq!(socket::Listener::bind(b"t", true).unwrap_err(), Errno::ACCESS);
    assert_eq!(socket::Connection::connect(b"t").unwrap_err(), Errno::ACCESS);
    hide(Capability::DirectIo);
    assert_eq!(file::reopen_direct(&file, true).unwrap_err(), Errno::INVAL);
    hide(Capability::DontCache);
    let page = [IoSlice::new(&[1; 64])];
    let wrote = file::write_at(&file, &page, 0, TransferFlags::DONTCACHE);
    assert_eq!(wrote, Err(Errno::OPNOTSUPP));
    assert_eq!(file::write_at(&file, &page, 0, TransferFlags::empty()), Ok(64));
    hide(Capability::Leases);
    let reader = File::open(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(file::set_lease(&reader, Some(Lease::Read)), Err(Errno::INVAL));
    hide(Capability::MemoryCgroup);
    let made = cgroup::MemoryCgroup::create("t", 1 << 20).unwrap_err();
    assert!(matches!(made, cgroup::CgroupError::Masked));
    mask::set(Mask::NONE);
}
