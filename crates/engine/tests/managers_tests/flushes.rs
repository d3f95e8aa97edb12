//! What is durable after a flush, and after the end of a segment.

use super::*;

pub(super) fn logged(below: &Arc<Chaos>, log: &Arc<Chaos>) -> Logged<ChaosStore, ChaosStore> {
    Logged::open(ChaosStore(below.clone()), ChaosStore(log.clone()), 8 << 20).unwrap()
}

pub(super) fn copy_of(chaos: &Chaos) -> Arc<Chaos> {
    let copy = Chaos::new(0);
    *copy.bytes.lock().unwrap() = bytes_of(chaos);
    copy
}

pub(super) fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// What a pool held dirty, and what a log had not committed, went with the last handle.
#[test]
fn a_segment_that_is_closed_is_stored() {
    let pages = 256;
    let content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8 | 1).collect();
    let cache = builder(1 << 20).write_back_period(None).build().unwrap();
    let below = Chaos::new(pages * PAGE);
    let pool = cache.reserve(cache.budget_bytes() / 2).unwrap();
    let store = Compressed::new(ChaosStore(below.clone()), pool, Codec::Lz4);
    let segment = cache.open_store(store, "compressed").unwrap();
    segment.write_all_at(&content, 0).unwrap();
    drop(segment);
    assert!(bytes_of(&below) == content);

    let (below, log) = (Chaos::new(pages * PAGE), Chaos::new(0));
    let segment = cache.open_store(logged(&below, &log), "logged").unwrap();
    segment.write_all_at(&content, 0).unwrap();
    drop(segment);
    drop(logged(&below, &log));
    assert!(bytes_of(&below) == content);
}

/// A flush that failed forgot which pages it lacked: whoever committed next made the others durable.
#[test]
fn what_a_flush_could_not_write_holds_the_rest_back() {
    let (below, log) = (Chaos::new(64 * PAGE), Chaos::new(0));
    let store = Arc::new(logged(&below, &log));
    let cache = tiny(0);
    let segment = cache.open_store(store.clone(), "logged").unwrap();
    segment.set_write_back(WriteBack::OnCommit).unwrap();
    let page = |at: u64| at * PAGE as u64;
    segment.write_all_at(b"first", page(0)).unwrap();
    // Runs of their own, of which some fail.
    for at in (2..12).step_by(2) {
        segment.write_all_at(b"other", page(at)).unwrap();
    }
    log.set(&log.store_fails, 500);
    assert_eq!(errno(segment.flush()), Some(ENOSPC), "a full log is told as what it is");
    log.calm();
    store.checkpoint().unwrap();
    let crashed = copy_of(&below);
    drop(logged(&crashed, &copy_of(&log)));
    assert!(bytes_of(&crashed).iter().all(|byte| *byte == 0), "a part of a flush is durable");

    // Who takes it back goes on.
    segment.discard(0..page(64)).unwrap();
    segment.write_all_at(b"later", page(20)).unwrap();
    segment.flush().unwrap();
    let crashed = copy_of(&below);
    drop(logged(&crashed, &copy_of(&log)));
    assert_eq!(&bytes_of(&crashed)[20 * PAGE..][..5], b"later");
}

/// A batch that is durable is no error, though nothing goes in place just now.
#[test]
fn a_store_that_takes_nothing_fails_no_flush() {
    let (below, log) = (Chaos::new(64 * PAGE), Chaos::new(0));
    let store = Logged::open(ChaosStore(below.clone()), ChaosStore(log.clone()), 0).unwrap();
    let segment = tiny(0).open_store(store, "logged").unwrap();
    below.set(&below.store_fails, 1000);
    segment.write_all_at(b"first", 0).unwrap();
    segment.flush().unwrap();
    below.calm();
    let crashed = copy_of(&below);
    drop(logged(&crashed, &copy_of(&log)));
    assert_eq!(&bytes_of(&crashed)[..5], b"first");
    segment.write_all_at(b"other", PAGE as u64).unwrap();
    segment.flush().unwrap();
    assert_eq!(&bytes_of(&below)[..5], b"first");
}

/// A checkpoint committed what had come to the log of the next flush, which was durable in part then.
#[test]
fn a_checkpoint_within_a_flush_leaves_that_whole() {
    let (below, log) = (Chaos::new(64 * PAGE), Chaos::new(0));
    let store = Arc::new(logged(&below, &log));
    let cache = tiny(0);
    let segment = cache.open_store(store.clone(), "logged").unwrap();
    let write = |byte: u8| {
        (0..64).for_each(|page| segment.write_all_at(&[byte], page * PAGE as u64).unwrap());
    };
    let recovered = || {
        let crashed = copy_of(&below);
        drop(logged(&crashed, &copy_of(&log)));
        bytes_of(&crashed).chunks(PAGE).map(|page| page[0]).collect::<Vec<_>>()
    };
    write(1);
    segment.flush().unwrap();
    // Most of them leave memory.
    write(2);
    store.checkpoint().unwrap();
    assert_eq!(recovered(), [1; 64]);
    segment.flush().unwrap();
    assert_eq!(recovered(), [2; 64]);
    let in_place = bytes_of(&below).chunks(PAGE).map(|page| page[0]).collect::<Vec<_>>();
    assert_eq!(in_place, [2; 64], "the checkpoint was due");
}
