//! Operations on a segment, and on a vector of bytes that is its model.

use super::{PAGE, Rng};
use pagekeeper::library::{Advice, Segment, Translation};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub enum Op {
    Read { at: usize, len: usize },
    Write { at: usize, len: usize, seed: u8 },
    SetLen(usize),
    Flush,
    WriteBack { at: usize, len: usize },
    Pin { at: usize, len: usize },
    PinMut { at: usize, len: usize, seed: u8 },
    Prefetch { at: usize, len: usize },
    DontNeed { at: usize, len: usize },
    Budget(u64),
}

/// Pages of the longest segment.
pub const PAGES: usize = 60;
pub const LEN_MAX: usize = PAGES * PAGE;

/// Operations on a segment of small pages.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    ops_on(PAGE, PAGES)
}

/// Operations on a segment of at most so many pages of a size.
pub fn ops_on(page: usize, pages: usize) -> impl Strategy<Value = Vec<Op>> {
    let at = prop_oneof![0..pages * page, (0..pages).prop_map(move |p| p * page), 0..3 * page];
    let len = prop_oneof![0..16usize, 0..2 * page, (0..pages / 3).prop_map(move |p| p * page)];
    let range = (at, len);
    let op = prop_oneof![
        6 => range.clone().prop_map(|(at, len)| Op::Read { at, len }),
        6 => (range.clone(), any::<u8>()).prop_map(|((at, len), seed)| Op::Write { at, len, seed }),
        1 => (0..pages * page).prop_map(Op::SetLen),
        1 => Just(Op::Flush),
        1 => range.clone().prop_map(|(at, len)| Op::WriteBack { at, len }),
        1 => range.clone().prop_map(|(at, len)| Op::Pin { at, len }),
        1 => (range.clone(), any::<u8>()).prop_map(|((at, len), seed)| Op::PinMut { at, len, seed }),
        1 => range.clone().prop_map(|(at, len)| Op::Prefetch { at, len }),
        1 => range.prop_map(|(at, len)| Op::DontNeed { at, len }),
        1 => (9..pages as u64).prop_map(move |frames| Op::Budget(frames * page as u64)),
    ];
    prop::collection::vec(op, 1..60)
}

/// Bytes that compress well, or, of every fourth seed, not at all.
pub fn content(seed: u8, len: usize) -> Vec<u8> {
    if seed % 4 == 3 {
        let mut rng = Rng(u64::from(seed));
        return (0..len).map(|_| rng.next() as u8).collect();
    }
    (0..len).map(|i| seed.wrapping_add(i as u8).wrapping_mul(31)).collect()
}

/// Plays an operation on a segment and on the model of it.
pub fn play(segment: &Segment, model: &mut Vec<u8>, op: &Op) {
    match *op {
        Op::Read { at, len } => {
            let mut buf = vec![0x55; len];
            let got = segment.read_at(&mut buf, at as u64).unwrap();
            let from = at.min(model.len());
            let expected = &model[from..(at + len).clamp(from, model.len())];
            assert_eq!(got, expected.len(), "{op:?} of {}", model.len());
            assert_eq!(&buf[..got], expected, "{op:?}");
            assert!(buf[got..].iter().all(|b| *b == 0x55), "{op:?} wrote behind what it read");
        }
        Op::Write { at, len, seed } => {
            let bytes = content(seed, len);
            assert_eq!(segment.write_at(&bytes, at as u64).unwrap(), len);
            if len > 0 {
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        Op::SetLen(len) => {
            segment.set_len(len as u64).unwrap();
            model.resize(len, 0);
        }
        Op::Flush => segment.flush().unwrap(),
        Op::WriteBack { at, len } => segment.write_back(at as u64..(at + len) as u64).unwrap(),
        Op::Pin { at, len } => {
            // What a budget of nine frames lets one pin.
            let range = at as u64..(at + len.min(2 * segment.page_bytes() as usize)) as u64;
            match segment.pin(range.clone()) {
                Ok(pinned) => {
                    assert_eq!(*pinned, model[at..range.end as usize]);
                    let seen = segment.attributes(range).unwrap();
                    assert!(seen.iter().all(|page| page.resident && page.pinned), "{seen:?}");
                    // It stays whatever else is read.
                    let mut all = vec![0; model.len()];
                    assert_eq!(segment.read_at(&mut all, 0).unwrap(), all.len());
                    assert_eq!(&all, model);
                    assert_eq!(*pinned, all[at..at + pinned.len()]);
                }
                Err(error) => {
                    let page = segment.page_bytes();
                    if error.raw_os_error() == Some(super::EOPNOTSUPP) {
                        // A control has no two pages side by side.
                        assert_ne!(segment.cache().translation(), Translation::Mapped);
                        assert!(range.start / page < (range.end - 1) / page);
                        return;
                    }
                    assert_eq!(error.raw_os_error(), Some(super::EINVAL));
                    assert!(range.is_empty() || range.end as usize > model.len());
                }
            }
        }
        Op::PinMut { at, len, seed } => {
            let range = at as u64..(at + len.min(2 * segment.page_bytes() as usize)) as u64;
            if let Ok(mut pinned) = segment.pin_mut(range) {
                let bytes = content(seed, pinned.len());
                pinned.copy_from_slice(&bytes);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        Op::Prefetch { at, len } => {
            segment.prefetch(at as u64..(at + len) as u64).unwrap();
        }
        Op::DontNeed { at, len } => {
            segment.advise(at as u64..(at + len) as u64, Advice::DontNeed).unwrap();
        }
        Op::Budget(bytes) => segment.cache().set_budget(bytes),
    }
    assert_eq!(segment.len(), model.len() as u64);
}
