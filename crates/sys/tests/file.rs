//! Files: versions, transfers with flags, holes, leases and locks.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pagekeeper_sys::Errno;
use pagekeeper_sys::buffer::Buffer;
use pagekeeper_sys::file::{self, FallocateFlags, Lease, RangeLock, TransferFlags};
use rustix::fs::OFlags;

const NONE: TransferFlags = TransferFlags::empty();

fn scratch() -> (tempfile::TempDir, PathBuf, File) {
    // Not /tmp, which need not be on a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("f");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    (dir, path, file)
}

#[test]
fn versions_change_with_content_and_identity_stays() {
    let (_dir, path, file) = scratch();
    let before = file::stat(&file).unwrap();
    assert!(before.is_regular() && before.links == 1 && before.version.size_bytes == 0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_all_at(b"more", 0).unwrap();
    let after = file::stat(&file).unwrap();
    assert_eq!(before.id, after.id);
    assert!(after.version.mtime_ns > before.version.mtime_ns);
    assert_eq!(after.version.size_bytes, 4);
    std::fs::remove_file(&path).unwrap();
    let again = file::reopen(&file, OFlags::RDONLY).unwrap();
    let deleted = file::stat(&again).unwrap();
    assert_eq!((deleted.id, deleted.links), (before.id, 0), "a deleted file is reopened");
}

#[test]
fn transfers_cross_pages_and_end_at_the_end() {
    let (_dir, _path, file) = scratch();
    let (a, b) = ([1; 3000], [2; 3000]);
    let wrote = file::write_at(&file, &[IoSlice::new(&a), IoSlice::new(&b)], 5, NONE);
    assert_eq!(wrote, Ok(6000));
    let (mut x, mut y) = ([9; 4], [9; 4]);
    let mut bufs = [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)];
    assert_eq!(file::read_at(&file, &mut bufs, 3003, NONE), Ok(8));
    assert_eq!((x, y), ([1, 1, 2, 2], [2; 4]));
    assert_eq!(file::read_at(&file, &mut [IoSliceMut::new(&mut x)], 6005, NONE), Ok(0));
    file::set_len(&file, 6004).unwrap();
    assert_eq!(file::read_at(&file, &mut [IoSliceMut::new(&mut x)], 6003, NONE), Ok(1));
    file::sync_range(&file, 0, 0, true).unwrap();
    file::sync(&file, true).unwrap();
}

#[test]
fn direct_transfers_need_alignment() {
    let (_dir, _path, file) = scratch();
    let Ok(direct) = file::reopen_direct(&file, true) else {
        return eprintln!("skipped: no direct I/O here");
    };
    let mut buffer = Buffer::new(8192).unwrap();
    buffer.fill(3);
    assert_eq!(file::write_at(&direct, &[IoSlice::new(&buffer)], 0, NONE), Ok(8192));
    let unaligned = file::read_at(&direct, &mut [IoSliceMut::new(&mut buffer[1..4097])], 1, NONE);
    assert_eq!(unaligned, Err(Errno::INVAL));
    if let Some(alignment) = file::direct_alignment(&file).unwrap() {
        assert!(alignment.offset_bytes.is_power_of_two() && alignment.offset_bytes <= 4096);
    }
    let flags = TransferFlags::DONTCACHE;
    match file::read_at(&file, &mut [IoSliceMut::new(&mut buffer)], 0, flags) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => eprintln!("skipped: no RWF_DONTCACHE here"),
        result => assert_eq!(result, Ok(8192)),
    }
}

#[test]
fn holes_are_found() {
    let (_dir, _path, file) = scratch();
    file::set_len(&file, 1 << 20).unwrap();
    assert_eq!(file::next_data(&file, 0), Ok(None));
    file.write_all_at(&[1; 4096], 65536).unwrap();
    assert_eq!(file::next_data(&file, 0), Ok(Some((65536, 69632))));
    assert_eq!(file::has_hole(&file, 65536, 4096), Ok(false));
    assert_eq!(file::has_hole(&file, 65536, 4097), Ok(true));
    assert_eq!(file::has_hole(&file, 0, 1), Ok(true));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    file::allocate(&file, punch, 65536, 4096).unwrap();
    assert_eq!(file::next_data(&file, 0), Ok(None));
    file::allocate(&file, FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
    assert!(file::stat(&file).unwrap().allocated_bytes >= 8192);
}

#[test]
fn room_on_storage_is_found_written_to_or_not() {
    let (_dir, _path, file) = scratch();
    file::set_len(&file, 1 << 20).unwrap();
    assert_eq!(file::is_allocated(&file, 0, 1 << 20), Ok(false));
    file::allocate(&file, FallocateFlags::KEEP_SIZE, 65536, 65536).unwrap();
    // Another extent, beside it.
    file.write_all_at(&[1; 8192], 65536).unwrap();
    for (offset, len, is) in [
        (65536, 65536, true),
        (69632, 4096, true),
        (126_976, 4096, true),
        (61440, 8192, false),
        (126_976, 4097, false),
        (131_072, 4096, false),
        (1 << 20, 4096, false),
        (65536, 0, true),
    ] {
        assert_eq!(file::is_allocated(&file, offset, len), Ok(is), "{offset}, {len}");
    }
}

#[test]
fn leases_keep_conflicting_opens_out() {
    let (_dir, path, file) = scratch();
    let reader = file::reopen(&file, OFlags::RDONLY).unwrap();
    assert_eq!(file::set_lease(&reader, Some(Lease::Read)), Err(Errno::AGAIN), "a writer exists");
    drop(file);
    file::set_lease(&reader, Some(Lease::Read)).unwrap();
    assert_eq!(file::lease(&reader), Ok(Some(Lease::Read)));
    // The breaking signal must not end this process.
    file::set_lease_signal(&reader, libc::SIGURG).unwrap();
    let opened =
        rustix::fs::open(&path, OFlags::WRONLY | OFlags::NONBLOCK, rustix::fs::Mode::empty());
    assert_eq!(opened.unwrap_err(), Errno::AGAIN);
    assert_eq!(file::lease(&reader), Ok(None), "being broken: nothing may stay");
    file::set_lease(&reader, None).unwrap();
    rustix::fs::open(&path, OFlags::WRONLY | OFlags::NONBLOCK, rustix::fs::Mode::empty()).unwrap();
}

#[test]
fn range_locks_belong_to_the_description() {
    let (_dir, _path, file) = scratch();
    let other = file::reopen(&file, OFlags::RDWR).unwrap();
    file::lock_range(&file, RangeLock::Exclusive, 10, 10, false).unwrap();
    assert_eq!(file::is_locked_by_others(&other, 0, 11), Ok(true));
    assert_eq!(file::is_locked_by_others(&other, 0, 10), Ok(false));
    assert_eq!(file::is_locked_by_others(&file, 0, 0), Ok(false));
    let refused = file::lock_range(&other, RangeLock::Shared, 15, 1, false);
    assert_eq!(refused, Err(Errno::AGAIN));
    file::lock_range(&file, RangeLock::Shared, 10, 10, false).unwrap();
    file::lock_range(&other, RangeLock::Shared, 15, 1, false).unwrap();
    file::lock_range(&file, RangeLock::Unlock, 0, 0, false).unwrap();
    file::lock_range(&other, RangeLock::Exclusive, 15, 1, true).unwrap();
}
