//! Making shorter what a store below will not make shorter.

use super::*;

const EDGE: usize = 5 * PAGE + 100;

/// A store that refuses so many times to have another length.
#[derive(Debug)]
struct Refusing {
    store: ChaosStore,
    refusals: Arc<AtomicU64>,
    error: i32,
}

impl Store for Refusing {
    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        self.store.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.store.store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let left = self.refusals.load(Ordering::SeqCst);
        if left == 0 {
            return self.store.set_len(len);
        }
        self.refusals.store(left.saturating_sub(1), Ordering::SeqCst);
        Err(io::Error::from_raw_os_error(self.error))
    }
}

struct Cut {
    segment: Segment,
    model: Vec<u8>,
    chaos: Arc<Chaos>,
    refusals: Arc<AtomicU64>,
    error: i32,
}

impl Cut {
    /// Sixty pages, of which the first twenty are dirty, compressed, and nowhere else.
    fn new(codec: Codec, error: i32) -> Cut {
        let cache = tiny(0);
        let chaos = Chaos::new(LEN_MAX);
        let refusals = Arc::new(AtomicU64::new(0));
        let store = ChaosStore(chaos.clone());
        let below = Refusing { store, refusals: refusals.clone(), error };
        let store = Compressed::new(below, cache.reserve(24 << 10).unwrap(), codec);
        let store = Arc::new(store);
        let segment = cache.open_store(store.clone(), "pages").unwrap();
        let mut model = vec![0; LEN_MAX];
        model[..20 * PAGE].fill(7);
        segment.write_all_at(&model[..20 * PAGE], 0).unwrap();
        segment.read_exact_at(&mut vec![0; 40 * PAGE], 20 * PAGE as u64).unwrap();
        assert!(segment.attributes(0..20 * PAGE as u64).unwrap().iter().all(|p| !p.resident));
        assert!(
            store.counts().dirty_pages == 20 && bytes_of(&chaos)[..20 * PAGE] == [0; 20 * PAGE]
        );
        Cut { segment, model, chaos, refusals, error }
    }

    fn is_refused(&self) {
        self.refusals.store(1, Ordering::SeqCst);
        let refused = self.segment.set_len(EDGE as u64);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(self.error));
        assert_eq!(self.segment.len(), self.model.len() as u64);
    }

    fn cut(&mut self) {
        self.segment.set_len(EDGE as u64).unwrap();
        self.model.truncate(EDGE);
    }

    fn grow(&mut self, len: usize) {
        self.segment.set_len(len as u64).unwrap();
        self.model.resize(len, 0);
    }

    fn read(&self) {
        let mut all = vec![1; self.model.len()];
        self.segment.read_exact_at(&mut all, 0).unwrap();
        assert!(all == self.model, "read");
    }

    fn flush(&self) {
        self.segment.flush().unwrap();
        assert!(bytes_of(&self.chaos) == self.model, "stored");
    }
}

/// The page that would have been cut in two was written below up to there, and forgotten, before the store
/// below was asked. When that refused, the rest of the page was gone, and the next flush told nobody.
#[test]
fn a_cut_that_is_refused_cuts_nothing() {
    for codec in [Codec::Lz4, Codec::Zstd(1)] {
        for error in [EINVAL, EIO] {
            let cut = Cut::new(codec, error);
            cut.is_refused();
            cut.read();
            cut.flush();
            let cut = Cut::new(codec, error);
            cut.is_refused();
            cut.flush();
            cut.read();
        }
    }
}

#[test]
fn what_is_cut_off_is_neither_written_nor_comes_back() {
    for codec in [Codec::Lz4, Codec::Zstd(1)] {
        // Read, written, and longer again, in each order.
        for order in 0..8 {
            let mut cut = Cut::new(codec, EIO);
            if order % 2 == 0 {
                cut.is_refused();
            }
            cut.cut();
            if order % 4 < 2 {
                cut.flush();
            }
            cut.grow(EDGE + 50);
            if order < 4 {
                cut.read();
            }
            cut.flush();
            cut.grow(9 * PAGE);
            cut.read();
            cut.segment.write_all_at(&[9; 10], EDGE as u64 + 20).unwrap();
            cut.model[EDGE + 20..EDGE + 30].fill(9);
            cut.flush();
            cut.read();
        }
    }
}
