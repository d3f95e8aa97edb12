//! Regions and all other operations against plain vectors of bytes.

use crate::library_model::{Chaos, ChaosStore, PAGE, Rng};
use crate::{MAPPED, SIZES, can_copy, load, sized, store};
use pagekeeper::library::{Advice, Cache, Protection, Region, Segment};
use std::sync::Arc;

/// What a copy-on-write region shows: pages that a store copied as a whole, but for what was cut off
/// since, where the segment shows.
struct Copies {
    page: usize,
    is_copied: Vec<bool>,
    own: Vec<Option<Vec<u8>>>,
}

impl Copies {
    fn new(page: usize, pages: usize) -> Copies {
        Copies { page, is_copied: vec![false; pages], own: vec![None; pages * page / PAGE] }
    }

    fn store(&mut self, at: usize, value: u8, model: &[u8]) {
        let end = model.len().div_ceil(PAGE);
        let (page, per) = (at / self.page, self.page / PAGE);
        let all = match std::mem::replace(&mut self.is_copied[page], true) {
            false => page * per..((page + 1) * per).min(end),
            true => at / PAGE..at / PAGE + 1,
        };
        for no in all {
            self.own[no].get_or_insert_with(|| {
                let mut bytes = model[no * PAGE..((no + 1) * PAGE).min(model.len())].to_vec();
                bytes.resize(PAGE, 0);
                bytes
            });
        }
        self.own[at / PAGE].as_mut().unwrap()[at % PAGE] = value;
    }

    fn byte(&self, at: usize, model: &[u8]) -> u8 {
        self.own[at / PAGE].as_ref().map_or(model[at], |own| own[at % PAGE])
    }

    fn cut(&mut self, len: usize) {
        self.own[len.div_ceil(PAGE)..].fill(None);
        self.is_copied[len.div_ceil(self.page)..].fill(false);
    }
}

/// Two segments with regions, against vectors of bytes.
struct Played {
    page: usize,
    chaos: [Arc<Chaos>; 2],
    segments: [Segment; 2],
    models: [Vec<u8>; 2],
    written: [Region; 2],
    read: Region,
    private: Region,
    copies: Copies,
}

impl Played {
    fn new(cache: &Cache, page: usize, pages: usize) -> Played {
        let chaos = [(); 2].map(|()| Chaos::new(pages * page));
        let segment = |no: usize| {
            let store = ChaosStore(chaos[no].clone());
            cache.open_store(store, "chaos").unwrap()
        };
        let segments = [segment(0), segment(1)];
        let map = |no: usize, how| segments[no].map(0..(pages * page) as u64, how).unwrap();
        Played {
            page,
            written: [0, 1].map(|no| map(no, Protection::ReadWrite)),
            read: map(0, Protection::Read),
            private: map(0, Protection::CopyOnWrite),
            models: [(); 2].map(|()| vec![0; pages * page]),
            copies: Copies::new(page, pages),
            chaos,
            segments,
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let page = self.page;
        let no = usize::from(rng.below(4) == 0);
        let (segment, model) = (self.segments[no].clone(), &mut self.models[no]);
        let whole = model.len().div_ceil(page);
        let at = rng.below(model.len() as u64) as usize;
        let len = (rng.below(3 * page as u64) as usize).min(model.len() - at);
        let value = rng.next() as u8;
        match rng.below(32) {
            0..6 => {
                store(&self.written[no], at, value);
                model[at] = value;
            }
            6..12 => {
                let region = if no == 0 && value > 99 { &self.read } else { &self.written[no] };
                for at in (at..at + len).step_by(777) {
                    assert_eq!(load(region, at), model[at], "byte {at} mapped");
                }
            }
            12 => {
                store(&self.private, at.min(self.models[0].len() - 1), value);
                self.copies.store(at.min(self.models[0].len() - 1), value, &self.models[0]);
            }
            13..17 => {
                let (model, at) = (&self.models[0], at.min(self.models[0].len() - 1));
                for at in (at..(at + len).min(model.len())).step_by(777) {
                    assert_eq!(load(&self.private, at), self.copies.byte(at, model), "byte {at}");
                }
            }
            17..20 => {
                let bytes: Vec<u8> = (0..len).map(|i| value.wrapping_add(i as u8)).collect();
                segment.write_all_at(&bytes, at as u64).unwrap();
                model[at..at + len].copy_from_slice(&bytes);
            }
            20..23 => {
                let mut bytes = vec![0; len];
                segment.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(bytes == model[at..at + len], "{len} bytes at {at} read");
            }
            23 => {
                let end = (at + len.clamp(1, page)).min(model.len());
                let pinned = segment.pin(at as u64..end as u64).unwrap();
                assert!(*pinned == model[at..end], "bytes {at}..{end} pinned");
            }
            24 | 25 => {
                let to = 1 + rng.below(self.copies.is_copied.len() as u64 * page as u64) as usize;
                segment.set_len(to as u64).unwrap();
                model.resize(to, 0);
                if no == 0 {
                    self.copies.cut(to);
                }
            }
            26 => {
                segment.flush().unwrap();
                assert!(*self.chaos[no].bytes.lock().unwrap() == *model, "flushed");
            }
            27 => segment.advise(at as u64..(at + len) as u64, Advice::DontNeed).unwrap(),
            28 => drop(segment.prefetch(at as u64..(at + len) as u64).unwrap()),
            29 => {
                segment.discard(at as u64..(at + len) as u64).unwrap();
                let end = if at + len == model.len() { whole } else { (at + len) / page };
                let (start, end) = (at.div_ceil(page) * page, (end * page).min(model.len()));
                if start < end {
                    let stored = self.chaos[no].bytes.lock().unwrap();
                    model[start..end].copy_from_slice(&stored[start..end]);
                }
            }
            _ => {
                let from = at / page;
                let others = self.models[1 - no].len().div_ceil(page);
                let to = rng.below(others as u64) as usize;
                let to_segment = &self.segments[1 - no];
                let moved = segment.migrate(from as u64..from as u64 + 1, to_segment, to as u64);
                assert_eq!(moved.unwrap(), 1);
                let mut content = self.models[no][from * page..].to_vec();
                content.resize(page, 0);
                let end = ((to + 1) * page).min(self.models[1 - no].len());
                self.models[1 - no][to * page..end].copy_from_slice(&content[..end - to * page]);
                let end = ((from + 1) * page).min(self.models[no].len());
                let stored = self.chaos[no].bytes.lock().unwrap();
                self.models[no][from * page..end].copy_from_slice(&stored[from * page..end]);
            }
        }
    }
}

#[test]
fn regions_are_what_vectors_are_whatever_a_page_is() {
    for (path, page) in MAPPED.into_iter().flat_map(|path| SIZES.map(|page| (path, page))) {
        let (pages, steps) = if page < 1 << 20 { (40, 3000) } else { (12, 300) };
        for (policy, seed) in [("lru", 1), ("mru", 2), ("clock", 3)] {
            // Copies and state have room beside the frames.
            if !can_copy(page) {
                continue;
            }
            let Some(cache) = sized(path, policy, page) else { continue };
            cache.set_budget(((pages + 9) * page) as u64);
            let mut played = Played::new(&cache, page, pages);
            let mut rng = Rng(seed);
            for step in 0..steps {
                if step % 100 == 50 {
                    println!("{path:?}, {page}, {policy}, step {step}");
                }
                played.step(&mut rng);
            }
            let stats = cache.stats();
            assert_eq!(stats.failed_faults, 0);
            assert!(stats.total.write_faults > 10 && stats.private_pages_max > 0, "{stats:?}");
        }
    }
}
