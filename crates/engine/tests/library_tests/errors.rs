//! Errors of stores: who is told, and how often.

use super::*;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

#[test]
fn a_page_that_cannot_be_loaded_is_an_error_and_no_zeros() {
    let chaos = Chaos::new(4 * PAGE);
    let cache = tiny(0, "lru");
    let segment = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    chaos.set(&chaos.load_fails, 1000);
    let mut buf = [0; 8];
    assert_eq!(errno(segment.read_at(&mut buf, 0)), Some(EIO));
    assert_eq!(errno(segment.write_at(&buf, 1)), Some(EIO), "half a page has to be read first");
    assert_eq!(segment.write_at(&[7; PAGE], PAGE as u64).unwrap(), PAGE, "a whole one has not");
    chaos.calm();
    segment.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [0; 8]);
    chaos.set(&chaos.full, 1000);
    assert_eq!(errno(segment.write_at(&buf, 0)), Some(ENOSPC), "no room for a page's first write");
    assert_eq!(errno(segment.write_at(&[1; PAGE], 2 * PAGE as u64)), Some(ENOSPC));
    assert_eq!(errno(segment.write_at(&buf, 4 * PAGE as u64)), Some(ENOSPC));
    assert_eq!(segment.len(), 4 * PAGE as u64, "a write that failed made it longer");
    assert_eq!(segment.write_at(&buf, PAGE as u64).unwrap(), 8, "a dirty page has its room");
}

#[test]
fn each_handle_is_told_of_an_error_once() {
    let chaos = Chaos::new(4 * PAGE);
    let cache = tiny(0, "lru");
    let one = cache.open_store(ChaosStore(chaos.clone()), "chaos").unwrap();
    let two = one.clone();
    one.write_all_at(b"kept", 0).unwrap();
    chaos.set(&chaos.store_fails, 1000);
    assert_eq!(errno(one.flush()), Some(ENOSPC));
    let three = one.clone();
    assert!(one.attributes(0..1).unwrap()[0].dirty, "it stays");
    chaos.calm();
    one.flush().unwrap();
    assert_eq!(errno(two.flush()), Some(ENOSPC), "the other handle was not told");
    two.flush().unwrap();
    three.flush().unwrap();
    assert_eq!(&chaos.bytes.lock().unwrap()[..4], b"kept");
    assert_eq!(chaos.syncs.load(Ordering::SeqCst), 5);
}

/// A file whose next write-backs fail, by `EPERM`, for good.
fn file_of_memory(len: usize) -> File {
    // SAFETY: makes a descriptor, which nobody else has.
    let file = unsafe {
        let fd = libc::memfd_create(c"file".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(len as u64).unwrap();
    file
}

fn write_no_more(file: &File) {
    // SAFETY: a system call that changes no memory.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(sealed, 0);
}

/// A handle that was opened after an error had been told, and what could not be written was no longer
/// wanted, was told of it by its first flush.
#[test]
fn a_new_handle_hears_only_of_errors_that_nobody_heard_of() {
    const EPERM: i32 = 1;
    let file = file_of_memory(4 * PAGE);
    let cache = tiny(0, "lru");
    let open = || cache.open_file(&file, true, "file").unwrap();
    let one = open();
    one.write_all_at(b"lost", 0).unwrap();
    write_no_more(&file);
    assert_eq!(errno(one.flush()), Some(EPERM));
    one.discard(0..4 * PAGE as u64).unwrap();
    one.flush().unwrap();
    let late = open();
    late.flush().unwrap();
    // Nobody waits for what is written because it is full.
    one.set_write_back(WriteBack::WhenFull).unwrap();
    one.write_all_at(&[7; PAGE], 0).unwrap();
    one.discard(0..4 * PAGE as u64).unwrap();
    let heir = open();
    for handle in [&heir, &late, &one] {
        assert_eq!(errno(handle.flush()), Some(EPERM), "nobody heard of that one");
        handle.flush().unwrap();
    }
    open().flush().unwrap();
}

/// A descriptor that was handed on for reading alone was opened anew for writing, as the user may do.
#[test]
fn what_a_descriptor_may_not_do_its_segment_may_not() {
    const EBADF: i32 = 9;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4096).unwrap();
    let cache = tiny(0, "lru");
    let with = |options: &OpenOptions, writable| {
        let opened = options.open(file.path()).unwrap();
        cache.open_file(&opened, writable, "file").err().and_then(|error| error.raw_os_error())
    };
    let path_only = OpenOptions::new().read(true).custom_flags(libc::O_PATH).clone();
    let (reads, writes) =
        (OpenOptions::new().read(true).clone(), OpenOptions::new().write(true).clone());
    for options in [&path_only, &writes] {
        assert_eq!([with(options, false), with(options, true)], [Some(EBADF); 2]);
    }
    assert_eq!([with(&reads, false), with(&reads, true)], [None, Some(EBADF)]);
    assert_eq!(with(OpenOptions::new().read(true).write(true), true), None);
}

/// A store whose first write fails when it is told so, and whose second one succeeds then.
struct OneFailure {
    writes: AtomicU64,
    may_end: [Mutex<mpsc::Receiver<()>>; 2],
}

impl Store for OneFailure {
    fn len(&self) -> io::Result<u64> {
        Ok(PAGE as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        pages.fill(0);
        Ok(PAGE)
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        let write = self.writes.fetch_add(1, Ordering::SeqCst) as usize;
        let _ = self.may_end[write].lock().unwrap().recv();
        if write == 0 { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
    }
}

/// Two flushes that met one error both counted it, so that the first was told of it again.
#[test]
fn an_error_that_two_flushes_meet_is_one() {
    let (fail, may_fail) = mpsc::channel();
    let (succeed, may_succeed) = mpsc::channel();
    let may_end = [Mutex::new(may_fail), Mutex::new(may_succeed)];
    let store = Arc::new(OneFailure { writes: AtomicU64::new(0), may_end });
    let cache = tiny(0, "lru");
    let one = cache.open_store(store.clone(), "fails once").unwrap();
    let two = one.clone();
    one.write_all_at(b"kept", 0).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| errno(one.flush()));
        while store.writes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let second = scope.spawn(|| errno(two.flush()));
        std::thread::sleep(Duration::from_millis(100));
        fail.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Some(ENOSPC));
        succeed.send(()).unwrap();
        assert_eq!(second.join().unwrap(), Some(ENOSPC));
    });
    one.flush().unwrap();
    two.flush().unwrap();
}
