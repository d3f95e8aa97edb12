//! Managers that fill and write back in another way, against a plain vector of bytes.

mod cuts;
mod discards;
mod ends;
mod flushes;
mod lacks;
mod rollbacks;
mod working_sets;

use crate::library_model::ops::{LEN_MAX, Op, content, ops, ops_on, play};
use crate::library_model::{Chaos, ChaosStore, EINVAL, EIO, ENOMEM, ENOSPC, EOPNOTSUPP, PAGE, Rng};
use crate::library_translations::translation;
use pagekeeper::library::{
    Advice, Builder, Cache, Codec, Compressed, Discardable, Logged, Mirrored, Options, Segment,
    Side, Store, WriteBack,
};
use proptest::prelude::*;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Some twenty frames.
const TINY: u64 = 96 << 10;

fn builder(budget_bytes: u64) -> Builder {
    Cache::builder(budget_bytes).translation(translation())
}

fn tiny(workers: usize) -> Cache {
    tiny_of(PAGE, workers)
}

fn tiny_of(page: usize, workers: usize) -> Cache {
    let builder = builder(TINY / PAGE as u64 * page as u64).page_bytes(page as u64);
    builder.workers(workers).write_back_period(None).build().unwrap()
}

fn bytes_of(chaos: &Chaos) -> Vec<u8> {
    chaos.bytes.lock().unwrap().clone()
}

/// A store around one or two that are watched.
type Made = (Arc<dyn Store>, Vec<Arc<Chaos>>);

fn make(kind: usize, cache: &Cache, len: usize) -> Made {
    let (a, b, log) = (Chaos::new(len), Chaos::new(len), Chaos::new(0));
    let store = |chaos: &Arc<Chaos>| ChaosStore(chaos.clone());
    let pool = || cache.reserve(cache.budget_bytes() / 4).unwrap();
    let logged = |below| Logged::open(below, store(&log), 64 << 10).unwrap();
    let never = |_: u64, _: &mut [u8]| -> io::Result<()> { unreachable!("nothing is discardable") };
    match kind {
        0 => (Arc::new(Compressed::new(store(&a), pool(), Codec::Lz4)), vec![a]),
        1 => (Arc::new(Compressed::new(store(&a), pool(), Codec::Zstd(1))), vec![a]),
        2 => (Arc::new(Mirrored::new(store(&a), store(&b)).unwrap()), vec![a, b]),
        3 => (Arc::new(Discardable::new(store(&a), never)), vec![a]),
        4 => {
            let logged = Logged::open(store(&a), store(&log), 64 << 10).unwrap();
            (Arc::new(Compressed::new(logged, pool(), Codec::Lz4)), vec![])
        }
        5 => {
            let mirror: Arc<dyn Store> = Arc::new(Mirrored::new(store(&a), store(&b)).unwrap());
            (Arc::new(logged(mirror)), vec![])
        }
        6 => {
            let side = |chaos| {
                Compressed::new(
                    store(chaos),
                    cache.reserve(cache.budget_bytes() / 8).unwrap(),
                    Codec::Lz4,
                )
            };
            (Arc::new(Mirrored::new(side(&a), side(&b)).unwrap()), vec![a, b])
        }
        _ => {
            let below: Arc<dyn Store> = Arc::new(Compressed::new(store(&a), pool(), Codec::Lz4));
            (Arc::new(logged(below)), vec![])
        }
    }
}

fn play_all(segment: &Segment, model: &mut Vec<u8>, ops: &[Op]) {
    for op in ops {
        play(segment, model, op);
    }
    let len = model.len() * 2;
    play(segment, model, &Op::Read { at: 0, len });
    segment.flush().unwrap();
}

fn play_on_managers(ops: &[Op], cache: impl Fn() -> Cache, start: usize) {
    for kind in 0..8 {
        let cache = cache();
        let (store, below) = make(kind, &cache, start);
        let mut model = vec![0; start];
        let segment = cache.open_store(store.clone(), "managed").unwrap();
        play_all(&segment, &mut model, ops);
        for chaos in below {
            assert!(bytes_of(&chaos) == model, "kind {kind}");
        }
        // What the store below was given is found by who begins anew.
        drop(segment);
        let segment = cache.open_store(store, "again").unwrap();
        let len = model.len() * 2;
        play(&segment, &mut model, &Op::Read { at: 0, len });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]
    #[test]
    fn large_pages_are_what_they_are_whoever_manages_them(
        ops in ops_on(64 << 10, 40),
        start in 0..40usize << 16,
    ) {
        play_on_managers(&ops, || tiny_of(64 << 10, 1), start);
    }
}

/// Plays with 60 discardable pages: each holds what was written to it, or, while it is discardable, what is made
/// anew. A pool may be below what makes them, above it, or nowhere. Returns how many pages were made, and dropped.
fn play_on_discardable_pages(seed: u64, pool: usize) -> (u64, u64) {
    const PAGES: u64 = 60;
    let cache = tiny(0);
    let make = |offset: u64, pages: &mut [u8]| {
        for (i, page) in pages.chunks_mut(PAGE).enumerate() {
            page.fill(0x80 | (offset / PAGE as u64 + i as u64) as u8);
        }
        Ok(())
    };
    let plain: Arc<dyn Store> = Arc::new(ChaosStore(Chaos::new(PAGES as usize * PAGE)));
    let compressed = |below| -> Arc<dyn Store> {
        Arc::new(Compressed::new(below, cache.reserve(24 << 10).unwrap(), Codec::Lz4))
    };
    let below = if pool == 1 { compressed(plain) } else { plain };
    let store = Arc::new(Discardable::new(below, make));
    let managed = if pool == 2 { compressed(store.clone()) } else { store.clone() };
    let segment = cache.open_store(managed, "index").unwrap();
    // Per page: what it may hold.
    let mut may: Vec<HashSet<u8>> = vec![HashSet::from([0]); PAGES as usize];
    let mut discardable = HashSet::new();
    let mut rng = Rng(seed);
    for step in 0..600u64 {
        let page = rng.below(PAGES);
        let at = page as usize;
        let made = 0x80 | page as u8;
        let range = page * PAGE as u64..(page + 1) * PAGE as u64;
        match rng.below(12) {
            0 => {
                segment.advise(range, Advice::Discardable).unwrap();
                discardable.insert(page);
                may[at].insert(made);
            }
            1 => {
                segment.advise(range, Advice::Needed).unwrap();
                discardable.remove(&page);
            }
            2 if step % 4 == 0 => segment.flush().unwrap(),
            3 => segment.advise(range, Advice::DontNeed).unwrap(),
            4..7 => {
                let value = (step % 0x7f) as u8 + 1;
                segment.write_all_at(&vec![value; PAGE], range.start).unwrap();
                may[at] = HashSet::from([value]);
                if discardable.contains(&page) {
                    may[at].insert(made);
                }
            }
            _ => {
                let mut got = vec![0; PAGE];
                segment.read_exact_at(&mut got, range.start).unwrap();
                assert!(got.iter().all(|byte| *byte == got[0]), "half a page");
                assert!(may[at].contains(&got[0]), "page {page}: {} of {:?}", got[0], may[at]);
                if !discardable.contains(&page) {
                    // It can be nothing else from now on.
                    may[at] = HashSet::from([got[0]]);
                }
            }
        }
    }
    (store.made_pages(), store.dropped_pages())
}

#[test]
fn discardable_pages_are_dropped_and_made_anew() {
    // One seed may drop none, where a pool above holds them all.
    for pool in 0..3 {
        let counts: Vec<_> = (0..8).map(|seed| play_on_discardable_pages(seed, pool)).collect();
        assert!(
            counts.iter().any(|(made, dropped)| *made > 0 && *dropped > 0),
            "pool {pool}: {counts:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_segment_is_what_a_vector_is_whoever_manages_it(
        ops in ops(),
        workers in 0usize..2,
        start in 0..LEN_MAX,
    ) {
        play_on_managers(&ops, || tiny(workers), start);
    }

    /// Storage fails now and then; what was written is there when it has calmed down.
    #[test]
    fn nothing_is_lost_when_the_store_below_fails(seed in any::<u64>(), kind in 0usize..5) {
        const LEN: usize = 64 * PAGE;
        let cache = tiny(1);
        let (a, b, log) = (Chaos::new(LEN), Chaos::new(LEN), Chaos::new(0));
        let store = |chaos: &Arc<Chaos>| ChaosStore(chaos.clone());
        let pool = || cache.reserve(24 << 10).unwrap();
        let open = || Logged::open(store(&a), store(&log), 64 << 10).unwrap();
        let logged = Arc::new(open());
        let mirror = Arc::new(Mirrored::new(store(&a), store(&b)).unwrap());
        let managed: Arc<dyn Store> = match kind {
            0 => Arc::new(Compressed::new(store(&a), pool(), Codec::Lz4)),
            1 => logged.clone(),
            2 => mirror.clone(),
            3 => Arc::new(Compressed::new(mirror.clone(), pool(), Codec::Lz4)),
            _ => Arc::new(Compressed::new(logged.clone(), pool(), Codec::Lz4)),
        };
        let segment = cache.open_store(managed, "managed").unwrap();
        let mut model = vec![0; LEN];
        let mut rng = Rng(seed);
        for step in 0..200 {
            let failing = if step % 3 == 0 { 0 } else { 300 };
            for chaos in [&a, &log] {
                chaos.set(&chaos.store_fails, failing);
                chaos.set(&chaos.load_fails, failing / 3);
            }
            let at = rng.below((LEN - 2 * PAGE) as u64) as usize;
            let piece = content(rng.next() as u8, rng.below(2 * PAGE as u64) as usize);
            match rng.below(8) {
                0 => drop(segment.flush()),
                1..4 => {
                    let mut buf = vec![0; piece.len()];
                    match segment.read_at(&mut buf, at as u64) {
                        Ok(n) => prop_assert_eq!(&buf[..n], &model[at..at + n]),
                        Err(error) => prop_assert_eq!(error.raw_os_error(), Some(EIO)),
                    }
                }
                _ => {
                    let written = match segment.write_at(&piece, at as u64) {
                        Ok(n) => n,
                        Err(error) => {
                            let errno = error.raw_os_error();
                            prop_assert!([Some(EIO), Some(ENOSPC)].contains(&errno));
                            0
                        }
                    };
                    model[at..at + written].copy_from_slice(&piece[..written]);
                }
            }
        }
        a.calm();
        log.calm();
        // What failed before is told now, at the latest; what is written then is written.
        let _ = segment.flush();
        segment.flush().unwrap();
        let mut all = vec![0; LEN];
        segment.read_exact_at(&mut all, 0).unwrap();
        prop_assert!(all == model);
        if matches!(kind, 1 | 4) {
            logged.checkpoint().unwrap();
        }
        if matches!(kind, 2 | 3) {
            prop_assert!(!mirror.is_stale(Side::Second));
            prop_assert!(bytes_of(&b) == model, "the side that served");
            if mirror.is_stale(Side::First) {
                prop_assert!(mirror.take_error(Side::First).is_some());
                mirror.resync(Side::First).unwrap();
            }
        }
        prop_assert!(bytes_of(&a) == model);
    }

    #[test]
    fn discardable_pages_are_as_they_were_or_made_anew(seed in any::<u64>(), pool in 0usize..3) {
        play_on_discardable_pages(seed, pool);
    }

    /// Storage changes at commits alone, and a rollback brings the last one back.
    #[test]
    fn what_is_not_committed_is_not_written(seed in any::<u64>(), workers in 0usize..2) {
        const LEN: usize = 64 * PAGE;
        let cache = tiny(workers);
        let chaos = Chaos::new(LEN);
        let segment = cache.open_store(ChaosStore(chaos.clone()), "table").unwrap();
        // Another segment wants frames as well.
        let other = cache.scratch(LEN as u64).unwrap();
        segment.set_write_back(WriteBack::OnCommit).unwrap();
        let (mut committed, mut model) = (vec![0; LEN], vec![0; LEN]);
        let (mut full, mut rng) = (0, Rng(seed));
        for step in 0..300u64 {
            let at = rng.below((LEN - 3 * PAGE) as u64) as usize;
            match rng.below(40) {
                0 => {
                    segment.flush().unwrap();
                    committed.clone_from(&model);
                }
                1 => {
                    segment.discard(0..LEN as u64).unwrap();
                    model.clone_from(&committed);
                }
                2..15 => {
                    let mut buf = vec![0; 3 * PAGE];
                    segment.read_exact_at(&mut buf, at as u64).unwrap();
                    prop_assert!(buf == model[at..at + 3 * PAGE]);
                    other.read_exact_at(&mut buf, at as u64).unwrap();
                }
                15..20 => other.write_all_at(&[step as u8; 100], at as u64).unwrap(),
                _ => {
                    let piece = content(step as u8, rng.below(3 * PAGE as u64) as usize);
                    match segment.write_at(&piece, at as u64) {
                        Ok(n) => model[at..at + n].copy_from_slice(&piece[..n]),
                        Err(error) => {
                            prop_assert_eq!(error.raw_os_error(), Some(ENOMEM));
                            full += 1;
                        }
                    }
                }
            }
            prop_assert!(bytes_of(&chaos) == committed, "step {step}");
        }
        prop_assert!(full > 0);
        // Closed without a commit.
        drop(segment);
        prop_assert!(bytes_of(&chaos) == committed);
    }
}

#[test]
fn what_is_set_aside_is_taken_from_the_frames_and_given_back() {
    let cache = builder(1 << 20).workers(0).build().unwrap();
    let segment = cache.scratch(2 << 20).unwrap();
    let resident = || {
        let mut all = vec![0; 2 << 20];
        segment.read_exact_at(&mut all, 0).unwrap();
        let pages = segment.attributes(0..2 << 20).unwrap();
        pages.iter().filter(|page| page.resident).count() * PAGE
    };
    let before = resident();
    let reserved = cache.reserve(512 << 10).unwrap();
    let pages = segment.attributes(0..2 << 20).unwrap();
    let left = pages.iter().filter(|page| page.resident).count() * PAGE;
    assert!(left <= before - (512 << 10), "{left} of {before} stay beside 512 KiB");
    assert!(resident() <= before - (512 << 10));
    assert_eq!(cache.reserve(1).unwrap_err().raw_os_error(), Some(ENOMEM));
    drop(reserved);
    assert!(resident() >= before - PAGE, "given back");
    // A store holds it as long as it stands behind a segment.
    let store = Compressed::new(
        ChaosStore(Chaos::new(PAGE)),
        cache.reserve(512 << 10).unwrap(),
        Codec::Lz4,
    );
    let managed = cache.open_store(store, "managed").unwrap();
    assert!(cache.reserve(512 << 10).is_err());
    drop(managed);
    assert!(cache.reserve(512 << 10).is_ok());
}

/// The pool of compressed pages kept what it had been given for ever: a cache whose budget became smaller
/// took more than that.
#[test]
fn what_is_set_aside_becomes_smaller_with_the_budget() {
    const BYTES: u64 = 1 << 20;
    let cache = builder(2 * BYTES).workers(0).write_back_period(None).build().unwrap();
    let own = cache.reserve(BYTES / 4).unwrap();
    let chaos = Chaos::new(4 << 20);
    let memory = cache.reserve(BYTES / 2).unwrap();
    let store = Arc::new(Compressed::new(ChaosStore(chaos.clone()), memory, Codec::Lz4));
    let segment = cache.open_store(store.clone(), "pages").unwrap();
    let page = |number: u64| {
        let mut rng = Rng(number);
        let mut page = [7; PAGE];
        page[..1000].fill_with(|| rng.next() as u8);
        page
    };
    let check = || {
        for number in 0..1024 {
            let mut got = [0; PAGE];
            segment.read_exact_at(&mut got, number * PAGE as u64).unwrap();
            assert!(got == page(number), "page {number}");
        }
    };
    for number in 0..1024 {
        segment.write_all_at(&page(number), number * PAGE as u64).unwrap();
    }
    let full = store.counts();
    assert!(full.bytes > BYTES / 2 * 9 / 10 && full.dirty_pages > 0, "{full:?}");

    cache.set_budget(BYTES / 2);
    // Of a quarter of a megabyte each has its part.
    assert_eq!((own.bytes(), own.limit_bytes()), (BYTES / 4, BYTES / 12));
    let pool = BYTES / 6;
    let fits = |memory_bytes: u64| memory_bytes <= pool + (64 << 10);
    let less = store.counts();
    assert!(less.bytes <= pool && fits(less.memory_bytes), "{less:?}");
    check();
    assert!(store.counts().bytes <= pool);
    let resident = segment.attributes(0..4 << 20).unwrap().iter().filter(|p| p.resident).count();
    assert!(resident * PAGE > BYTES as usize / 8, "{resident} pages are in frames");

    // What nobody can write stays, until it can.
    for number in 0..1024 {
        segment.write_all_at(&page(number), number * PAGE as u64).unwrap();
    }
    chaos.set(&chaos.store_fails, 1000);
    let before = store.counts().dirty_pages;
    cache.set_budget(BYTES / 4);
    assert!(before > 0 && store.counts().dirty_pages >= before.min(1), "{before}");
    chaos.calm();
    check();

    cache.set_budget(2 * BYTES);
    assert_eq!(own.limit_bytes(), BYTES / 4);
    check();
    check();
    assert!(store.counts().bytes > pool, "{:?}", store.counts());
    let told = segment.flush().unwrap_err();
    assert_eq!(told.raw_os_error(), Some(ENOSPC), "of the write-back that failed");
    segment.flush().unwrap();
    let bytes = chaos.bytes.lock().unwrap();
    assert!((0..1024u64).all(|n| bytes[n as usize * PAGE..][..PAGE] == page(n)));
}

/// A working set twice the frames, but half of them when compressed, is read from storage once.
#[test]
fn compressed_pages_save_reads_and_writes() {
    const LEN: usize = 64 * PAGE;
    let cache = builder(256 << 10).workers(0).write_back_period(None).build().unwrap();
    let chaos = Chaos::new(LEN);
    let store = ChaosStore(chaos.clone());
    let pool = Compressed::new(store, cache.reserve(128 << 10).unwrap(), Codec::Lz4);
    let pool = Arc::new(pool);
    let segment = cache.open_store(pool.clone(), "heap").unwrap();
    for round in 0..5u8 {
        for page in 0..64u64 {
            let at = page * PAGE as u64;
            let mut seen = [0; 8];
            segment.read_exact_at(&mut seen, at).unwrap();
            assert_eq!(seen, [round; 8]);
            segment.write_all_at(&[round + 1; 8], at).unwrap();
        }
    }
    let counts = pool.counts();
    assert_eq!(chaos.stores.load(Ordering::SeqCst), 0, "{counts:?}");
    assert!(counts.bytes <= 128 << 10 && counts.found > 150, "{counts:?}");
    segment.flush().unwrap();
    assert_eq!(bytes_of(&chaos)[63 * PAGE..][..8], [5; 8]);
    assert_eq!(pool.counts().dirty_pages, 0);
}

#[test]
fn only_stores_that_can_make_pages_anew_take_them_for_discardable() {
    let cache = tiny(0);
    let segment = cache.open_store(ChaosStore(Chaos::new(4 * PAGE)), "plain").unwrap();
    let error = segment.advise(0..PAGE as u64, Advice::Discardable).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EOPNOTSUPP));
    // An error in making a page is the reader's.
    let fails = Arc::new(AtomicU64::new(1));
    let make = {
        let fails = fails.clone();
        move |_: u64, pages: &mut [u8]| match fails.load(Ordering::SeqCst) {
            0 => {
                pages.fill(9);
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(EIO)),
        }
    };
    let segment =
        cache.open_store(Discardable::new(ChaosStore(Chaos::new(4 * PAGE)), make), "made").unwrap();
    segment.advise(0..4 * PAGE as u64, Advice::Discardable).unwrap();
    let mut byte = [0];
    assert_eq!(segment.read_at(&mut byte, 0).unwrap_err().raw_os_error(), Some(EIO));
    fails.store(0, Ordering::SeqCst);
    segment.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [9]);
}

#[test]
fn one_side_of_a_mirror_may_fail_and_both_may_not() {
    let cache = tiny(0);
    let (a, b) = (Chaos::new(32 * PAGE), Chaos::new(32 * PAGE));
    let mirror = Mirrored::new(ChaosStore(a.clone()), ChaosStore(b.clone())).unwrap();
    let mirror = Arc::new(mirror);
    let segment = cache.open_store(mirror.clone(), "mirror").unwrap();
    segment.write_all_at(&[1; 100], 0).unwrap();
    segment.flush().unwrap();
    b.set(&b.store_fails, 1000);
    segment.write_all_at(&[2; 100], 0).unwrap();
    segment.flush().unwrap();
    assert!(mirror.is_stale(Side::Second) && !mirror.is_stale(Side::First));
    assert_eq!(mirror.take_error(Side::Second).unwrap().raw_os_error(), Some(ENOSPC));
    assert!(mirror.take_error(Side::Second).is_none());
    // Nobody reads the stale side: now the other one fails too.
    a.set(&a.load_fails, 1000);
    segment.advise(0..1, Advice::DontNeed).unwrap();
    assert_eq!(segment.read_at(&mut [0], 0).unwrap_err().raw_os_error(), Some(EIO));
    a.calm();
    b.calm();
    assert!(mirror.resync(Side::First).is_err(), "from a stale side");
    mirror.resync(Side::Second).unwrap();
    assert_eq!(bytes_of(&b), bytes_of(&a));
    a.set(&a.load_fails, 1000);
    segment.read_exact_at(&mut [0; 100], 0).unwrap();
    assert!(mirror.take_error(Side::First).is_some() && !mirror.is_stale(Side::First));
    let stale = Mirrored::with_stale(ChaosStore(a.clone()), ChaosStore(b), Side::First);
    a.calm();
    assert!(stale.is_stale(Side::First));
    stale.resync(Side::First).unwrap();
    assert!(!stale.is_stale(Side::First));
    assert!(Mirrored::new(ChaosStore(a), ChaosStore(Chaos::new(PAGE))).is_err());
}

/// A mirror and a log took no victims, whatever lay below them: pages went to storage and were read from
/// there, as if nothing compressed them.
#[test]
fn victims_reach_what_lies_below_a_mirror_or_a_log() {
    const LEN: usize = 64 * PAGE;
    let (a, b, log) = (Chaos::new(LEN), Chaos::new(LEN), Chaos::new(0));
    let compressed = |cache: &Cache, chaos: &Arc<Chaos>, bytes| {
        let store = ChaosStore(chaos.clone());
        Arc::new(Compressed::new(store, cache.reserve(bytes).unwrap(), Codec::Lz4))
    };
    let read_all = |segment: &Segment, round: u8| {
        for page in 0..64u64 {
            let mut seen = [0; 8];
            segment.read_exact_at(&mut seen, page * PAGE as u64).unwrap();
            assert_eq!(seen, [round; 8]);
        }
    };
    let cache = || builder(256 << 10).workers(0).write_back_period(None).build().unwrap();
    let mirrors = cache();
    let [first, second] = [&a, &b].map(|chaos| compressed(&mirrors, chaos, 64 << 10));
    let mirror = Mirrored::new(first.clone(), second.clone()).unwrap();
    let segment = mirrors.open_store(mirror, "mirrored").unwrap();
    for round in 0..5u8 {
        read_all(&segment, round);
        for page in 0..64u64 {
            segment.write_all_at(&[round + 1; 8], page * PAGE as u64).unwrap();
        }
    }
    let counts = [first.counts(), second.counts()];
    let stores = [&a, &b].map(|chaos| chaos.stores.load(Ordering::SeqCst));
    assert_eq!(stores, [0, 0], "{counts:?}");
    assert!(counts[0].found > 150 && counts[1].kept > 150, "{counts:?}");
    segment.flush().unwrap();
    assert!(bytes_of(&a) == bytes_of(&b) && bytes_of(&a)[63 * PAGE..][..8] == [5; 8]);

    let logs = cache();
    let below = compressed(&logs, &a, 128 << 10);
    let logged = Arc::new(Logged::open(below.clone(), ChaosStore(log), 1 << 20).unwrap());
    let segment = logs.open_store(logged.clone(), "logged").unwrap();
    let before = a.loads.load(Ordering::SeqCst);
    (0..5).for_each(|_| read_all(&segment, 5));
    let counts = below.counts();
    assert!(a.loads.load(Ordering::SeqCst) - before <= 64 && counts.found > 150, "{counts:?}");
    // What is in the log goes by the pool below, which would have another content for its store's.
    for page in 0..64u64 {
        segment.write_all_at(&[6; 8], page * PAGE as u64).unwrap();
    }
    segment.flush().unwrap();
    let kept = below.counts().kept;
    read_all(&segment, 6);
    assert_eq!(below.counts().kept, kept);
    assert_eq!(bytes_of(&a)[..8], [5; 8], "committed, and not in place");
    logged.checkpoint().unwrap();
    assert_eq!(bytes_of(&a)[..8], [6; 8]);
    (0..5).for_each(|_| read_all(&segment, 6));
    assert!(below.counts().kept > kept);
}

/// What a log's store below is given as clean is what it holds: nothing that is in the log, and nothing
/// behind the shortest length that it had.
#[test]
fn a_log_hands_down_what_the_store_below_has() {
    struct Watched(ChaosStore, Mutex<Vec<(u64, usize, bool)>>);
    impl Store for Watched {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
            self.0.load(offset, pages)
        }

        fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.store(offset, bytes)
        }

        fn takes_victims(&self) -> bool {
            true
        }

        fn retire(&self, offset: u64, bytes: &[u8], dirty: bool) -> io::Result<()> {
            self.1.lock().unwrap().push((offset, bytes.len(), dirty));
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
    }
    const P: u64 = PAGE as u64;
    let below = ChaosStore(Chaos::new(8 * PAGE + 100));
    let below = Arc::new(Watched(below, Mutex::default()));
    let logged = Logged::open(below.clone(), ChaosStore(Chaos::new(0)), 1 << 20).unwrap();
    let given = |offset: u64, len: usize, dirty: bool| {
        logged.retire(offset, &vec![1; len], dirty).unwrap();
        std::mem::take(&mut *below.1.lock().unwrap())
    };
    assert!(logged.takes_victims());
    assert_eq!(given(0, 3 * PAGE, false), [(0, 3 * PAGE, false)]);
    assert_eq!(given(8 * P, 100, false), [(8 * P, 100, false)], "the last page, as far as it goes");
    // Dirty ones are logged, and clean from then on.
    assert_eq!(given(P, PAGE, true), []);
    assert_eq!(given(3 * P, 2 * PAGE, true), []);
    let whole = [(0, PAGE, false), (2 * P, PAGE, false), (5 * P, PAGE, false)];
    assert_eq!(given(0, 6 * PAGE, false), whole);
    logged.sync().unwrap();
    assert_eq!(given(0, 6 * PAGE, false), whole, "committed is not in place");
    logged.set_len(6 * P + 10).unwrap();
    logged.set_len(8 * P).unwrap();
    assert_eq!(given(5 * P, 3 * PAGE, false), [(5 * P, PAGE, false)]);
    logged.checkpoint().unwrap();
    assert_eq!(given(5 * P, 3 * PAGE, false), [(5 * P, PAGE, false)], "not within a flush");
    logged.sync().unwrap();
    assert_eq!(given(0, 8 * PAGE, false), [(0, 8 * PAGE, false)]);
}

/// A mirror knew nothing of pages that can be made anew, and wrote them all.
#[test]
fn pages_are_discardable_below_a_mirror_and_above_a_log() {
    const LEN: u64 = 64 * PAGE as u64;
    let make = |_: u64, pages: &mut [u8]| {
        pages.fill(9);
        Ok(())
    };
    let made = |chaos: &Arc<Chaos>| Arc::new(Discardable::new(ChaosStore(chaos.clone()), make));
    let cache = tiny(0);
    let (a, b) = (Chaos::new(LEN as usize), Chaos::new(LEN as usize));
    let sides = [made(&a), made(&b)];
    let mirror = Arc::new(Mirrored::new(sides[0].clone(), sides[1].clone()).unwrap());
    let segment = cache.open_store(mirror.clone(), "index").unwrap();
    let page = |at: u64| at * PAGE as u64..(at + 1) * PAGE as u64;
    let read = |at: u64| {
        let mut byte = [0];
        segment.advise(page(at), Advice::DontNeed).unwrap();
        segment.read_exact_at(&mut byte, page(at).start).unwrap();
        byte[0]
    };
    segment.advise(0..LEN, Advice::Discardable).unwrap();
    for at in 0..64 {
        segment.write_all_at(&[9; PAGE], page(at).start).unwrap();
    }
    segment.flush().unwrap();
    assert_eq!(sides.each_ref().map(|side| side.dropped_pages()), [64, 64]);
    assert!(bytes_of(&a).iter().chain(&bytes_of(&b)).all(|byte| *byte == 0));
    assert_eq!(read(7), 9);

    // A side that is stale does not hear that a page is needed; it keeps what it is brought up to date by.
    segment.advise(page(50), Advice::Needed).unwrap();
    b.set(&b.store_fails, 1000);
    segment.write_all_at(&[5; PAGE], page(50).start).unwrap();
    segment.flush().unwrap();
    assert!(mirror.is_stale(Side::Second) && !mirror.is_stale(Side::First));
    b.calm();
    segment.advise(page(3), Advice::Needed).unwrap();
    segment.write_all_at(&[3; PAGE], page(3).start).unwrap();
    segment.flush().unwrap();
    mirror.resync(Side::Second).unwrap();
    segment.write_all_at(&[4; 8], page(3).start + 1).unwrap();
    segment.flush().unwrap();
    a.set(&a.load_fails, 1000);
    assert_eq!((read(3), read(50), read(7)), (3, 5, 9));
    a.calm();

    // One side alone can drop pages, and the other writes them. Where neither can, the mirror cannot.
    let second = made(&b);
    let mirror = Mirrored::new(ChaosStore(a.clone()), second.clone()).unwrap();
    mirror.advise(0, LEN, Advice::Discardable).unwrap();
    mirror.store(0, &[8; PAGE]).unwrap();
    assert_eq!((bytes_of(&a)[0], second.dropped_pages()), (8, 1));
    let plain = Mirrored::new(ChaosStore(a.clone()), ChaosStore(b)).unwrap();
    let refused = plain.advise(0, LEN, Advice::Discardable).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EOPNOTSUPP));
    assert!(!plain.is_stale(Side::First) && plain.take_error(Side::First).is_none());

    // A log keeps what was flushed, and is above nothing that forgets it.
    let log = || ChaosStore(Chaos::new(0));
    let under = Logged::open(made(&a), log(), 1 << 20).unwrap();
    for advice in [Advice::Discardable, Advice::Needed] {
        let refused = under.advise(0, LEN, advice).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(EOPNOTSUPP), "{advice:?}");
    }
    let over = Discardable::new(Logged::open(ChaosStore(a), log(), 1 << 20).unwrap(), make);
    over.advise(0, LEN, Advice::Discardable).unwrap();
    let before = over.below().log_bytes();
    over.store(0, &[9; PAGE]).unwrap();
    assert_eq!((over.dropped_pages(), over.below().log_bytes()), (1, before));
}

/// A store that panics as long as that is said.
struct Panicking(ChaosStore, Arc<AtomicBool>);

impl Panicking {
    fn sound(&self) -> &ChaosStore {
        assert!(!self.1.load(Ordering::SeqCst), "as it is told to");
        &self.0
    }
}

impl Store for Panicking {
    fn len(&self) -> io::Result<u64> {
        self.sound().len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.sound().load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.sound().store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.sound().set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sound().sync()
    }
}

/// A panic below a layer went through it with what it had locked: everything that came later failed with
/// EIO, for good.
#[test]
fn a_panic_below_a_layer_is_an_error_while_it_lasts() {
    const PAGES: usize = 60;
    for kind in 0..3 {
        let cache = tiny(0);
        let panics = Arc::new(AtomicBool::new(false));
        let below = |len: usize| Panicking(ChaosStore(Chaos::new(len)), panics.clone());
        let store: Arc<dyn Store> = match kind {
            0 => {
                let memory = cache.reserve(cache.budget_bytes() / 4).unwrap();
                Arc::new(Compressed::new(below(PAGES * PAGE), memory, Codec::Lz4))
            }
            1 => Arc::new(Logged::open(below(PAGES * PAGE), below(0), 64 << 10).unwrap()),
            _ => Arc::new(Mirrored::new(below(PAGES * PAGE), below(PAGES * PAGE)).unwrap()),
        };
        let segment = cache.open_store(store, "panics").unwrap();
        // Nothing that can be compressed, so that it is all written.
        let mut model = content(3, PAGES * PAGE);
        segment.write_all_at(&model, 0).unwrap();
        panics.store(true, Ordering::SeqCst);
        let mut page = vec![0; PAGE];
        for at in (0..PAGES * PAGE).step_by(PAGE) {
            let _ = segment.read_at(&mut page, at as u64);
            let _ = segment.write_at(&[kind; PAGE][..], at as u64);
        }
        assert_eq!(segment.flush().unwrap_err().raw_os_error(), Some(EIO), "{kind}");
        panics.store(false, Ordering::SeqCst);
        let _ = segment.flush();
        model = content(4, PAGES * PAGE);
        segment.write_all_at(&model, 0).unwrap();
        segment.flush().unwrap();
        let mut read = vec![0; PAGES * PAGE];
        segment.read_exact_at(&mut read, 0).unwrap();
        assert!(read == model, "{kind}");
    }
}
