//! What a store below is asked for where it ends.

use super::*;

/// A store that refuses what lies behind its end.
#[derive(Debug)]
struct Strict(ChaosStore);

impl Strict {
    fn of(chaos: &Arc<Chaos>) -> Strict {
        Strict(ChaosStore(chaos.clone()))
    }
}

impl Store for Strict {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn load(&self, offset: u64, pages: &mut [u8]) -> io::Result<usize> {
        if offset >= self.len()? {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        self.0.load(offset, pages)
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.store(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

/// The length of a segment over a log was in the log only, and the store below was asked for pages that it
/// does not have yet: reads of them failed, until a checkpoint. And pages above 4 KiB that come in pieces,
/// from a pool or made anew, were asked for with the pieces behind the end.
#[test]
fn a_store_is_not_asked_for_what_it_does_not_have() {
    const LEN: usize = 10_000;
    let log = || ChaosStore(Chaos::new(0));
    let fill = |_: u64, pages: &mut [u8]| -> io::Result<()> {
        pages.fill(7);
        Ok(())
    };
    for page in [PAGE, 4 * PAGE] {
        for kind in ["log", "pool", "pool above a log", "discardable"] {
            let cache = tiny_of(page, 0);
            let chaos = Chaos::new(LEN);
            chaos.bytes.lock().unwrap().fill(7);
            let below = Strict::of(&chaos);
            let pool = || cache.reserve(cache.budget_bytes() / 4).unwrap();
            let logged = |below| Logged::open(below, log(), 1 << 30).unwrap();
            let store: Arc<dyn Store> = match kind {
                "log" => Arc::new(logged(below)),
                "pool" => Arc::new(Compressed::new(below, pool(), Codec::Lz4)),
                "discardable" => Arc::new(Discardable::new(below, fill)),
                _ => Arc::new(Compressed::new(logged(below), pool(), Codec::Lz4)),
            };
            let segment = cache.open_store(store, kind).unwrap();
            if kind == "discardable" {
                segment.advise(0..LEN as u64, Advice::Discardable).unwrap();
            }
            let mut model = vec![7; LEN];
            let check = |model: &[u8]| {
                for from in (0..model.len()).step_by(PAGE) {
                    let end = model.len().min(from + PAGE);
                    let mut got = vec![1; end - from];
                    let read = segment.read_exact_at(&mut got, from as u64);
                    assert!(read.is_ok(), "{kind}, pages of {page}, at {from}: {read:?}");
                    assert!(got == model[from..end], "{kind}, pages of {page}, at {from}");
                }
            };
            // Twice, since what came the first time leaves for a pool.
            check(&model);
            cache.set_budget((8 * page) as u64);
            cache.set_budget(TINY / PAGE as u64 * page as u64);
            check(&model);
            let other = cache.scratch(40 * page as u64).unwrap();
            other.read_exact_at(&mut vec![0; 40 * page], 0).unwrap();
            check(&model);

            // There is a hole, and nothing was put in place.
            segment.write_all_at(b"hello", 300_000).unwrap();
            model.resize(300_000, 0);
            model.extend(b"hello");
            check(&model);
            segment.set_len(9_000).unwrap();
            model.truncate(9_000);
            segment.set_len(50_000).unwrap();
            model.resize(50_000, 0);
            check(&model);
        }
    }
}
