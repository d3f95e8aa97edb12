//! Pages that are fetched before they are needed.

use super::*;

/// Pages that come when it is said.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
}

impl Store for Gate {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * PAGE as u64)
    }

    fn load(&self, _: u64, pages: &mut [u8]) -> io::Result<usize> {
        while !self.is_open.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        pages.fill(5);
        Ok(pages.len())
    }

    fn store(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// What was only asked for was read by the thread that asked.
#[test]
fn who_asks_for_pages_does_not_wait_for_them() {
    in_time(|| {
        let gate = Arc::new(Gate::default());
        let cache = builder(1 << 20).write_back_period(None).build().unwrap();
        let segment = cache.open_store(gate.clone(), "gate").unwrap();
        let asked = 0..4 * PAGE as u64;
        assert_eq!(segment.prefetch(asked.clone()).unwrap(), asked.end);
        segment.advise(40 * PAGE as u64..42 * PAGE as u64, Advice::WillNeed).unwrap();
        let on_their_way = segment.attributes(asked.clone()).unwrap();
        assert!(on_their_way.iter().all(|page| page.busy && !page.resident));
        gate.is_open.store(true, Ordering::SeqCst);
        let mut byte = [0];
        segment.read_exact_at(&mut byte, asked.end - 1).unwrap();
        assert_eq!(byte, [5]);
    });
}

/// Pages that were asked for passed for used, and for useful when they left unused.
#[test]
fn pages_that_are_only_asked_for_are_not_used() {
    let cache = builder(1 << 20).workers(0).write_back_period(None).build().unwrap();
    let segment = cache.scratch(64 * PAGE as u64).unwrap();
    let asked = 0..4 * PAGE as u64;
    segment.prefetch(asked.clone()).unwrap();
    let used = || -> Vec<bool> {
        let pages = segment.attributes(asked.clone()).unwrap();
        assert!(pages.iter().all(|page| page.resident));
        pages.iter().map(|page| page.referenced).collect()
    };
    assert_eq!(used(), [false; 4]);
    segment.read_exact_at(&mut [0], PAGE as u64).unwrap();
    assert_eq!(used(), [false, true, false, false]);
    segment.advise(asked, Advice::DontNeed).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.prefetched_pages, stats.prefetch_wasted_pages), (4, 3));
}
