//! Pages that move between segments.

use super::*;

#[test]
fn pages_move_with_what_they_hold() {
    let chaos = Chaos::new(40 * PAGE);
    let cache = tiny(1, "lru");
    let from = cache.open_store(ChaosStore(chaos.clone()), "from").unwrap();
    let to = cache.scratch(30 * PAGE as u64 + 100).unwrap();
    for i in 0..40u64 {
        from.write_all_at(&[i as u8 + 1; PAGE], i * 4096).unwrap();
    }
    from.flush().unwrap();
    from.write_all_at(b"never stored", 2 * 4096).unwrap();
    assert_eq!(errno(from.migrate(0..2, &to, 30)), Some(EINVAL));
    assert_eq!(errno(from.migrate(0..2, &from, 1)), Some(EINVAL));
    assert_eq!(from.migrate(0..31, &to, 0).unwrap(), 31, "more than the cache has frames");
    let mut page = [0; PAGE];
    to.read_exact_at(&mut page, 2 * 4096).unwrap();
    assert!(page.starts_with(b"never stored") && page[12..].iter().all(|b| *b == 3));
    let mut tail = [0; PAGE];
    assert_eq!(to.read_at(&mut tail, 30 * 4096).unwrap(), 100);
    assert_eq!(tail[99], 31);
    from.read_exact_at(&mut page, 2 * 4096).unwrap();
    assert!(page.iter().all(|b| *b == 3), "what moved shows here");
    from.flush().unwrap();
    assert!(chaos.bytes.lock().unwrap()[2 * PAGE..3 * PAGE].iter().all(|b| *b == 3));
    assert_eq!(to.migrate(5..6, &to, 7).unwrap(), 1);
    to.read_exact_at(&mut page, 7 * 4096).unwrap();
    assert_eq!(page, [6; PAGE]);
    to.read_exact_at(&mut page, 5 * 4096).unwrap();
    assert!(page.iter().all(|b| *b == 6 || *b == 0), "the scratch file's");
}

/// Whoever moved a page waited for the other segment's with its own page held: two that moved pages
/// towards each other waited for ever.
#[test]
fn pages_move_towards_each_other() {
    in_time(|| {
        let cache = tiny(1, "lru");
        let [one, two] = [1u8, 2].map(|no| {
            let segment = cache.scratch(2 * PAGE as u64).unwrap();
            segment.write_all_at(&[no; 2 * PAGE], 0).unwrap();
            segment
        });
        let moves = |from: &Segment, to: &Segment| {
            for _ in 0..5000 {
                assert_eq!(from.migrate(0..2, to, 0).unwrap(), 2);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| moves(&one, &two));
            scope.spawn(|| moves(&two, &one));
        });
        for segment in [&one, &two] {
            let mut pages = [9; 2 * PAGE];
            segment.read_exact_at(&mut pages, 0).unwrap();
            for page in pages.chunks(PAGE) {
                assert!(page[0] < 3 && page.iter().all(|byte| *byte == page[0]), "half a page");
            }
        }
    });
}

/// It waited for guards of the page that it moves to as well, with its own page held: nobody could read
/// that meanwhile.
#[test]
fn who_waits_to_move_a_page_holds_none() {
    in_time(|| {
        let cache = tiny(1, "lru");
        let [from, to] = [1u8, 2].map(|no| {
            let segment = cache.scratch(PAGE as u64).unwrap();
            segment.write_all_at(&[no; PAGE], 0).unwrap();
            segment
        });
        let pinned = to.pin(0..PAGE as u64).unwrap();
        std::thread::scope(|scope| {
            let moved = scope.spawn(|| from.migrate(0..1, &to, 0).unwrap());
            let mut byte = [0];
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(1));
                from.read_exact_at(&mut byte, 5).unwrap();
                from.write_all_at(&[3], 5).unwrap();
            }
            assert_eq!(*pinned, [2; PAGE]);
            drop(pinned);
            assert_eq!(moved.join().unwrap(), 1);
        });
        let mut page = [0; PAGE];
        to.read_exact_at(&mut page, 0).unwrap();
        assert_eq!(page[..6], [1, 1, 1, 1, 1, 3]);
    });
}

#[test]
fn a_last_page_moves_up_to_its_end() {
    let cache = tiny(0, "lru");
    let [from, to] = [100, 2 * PAGE as u64].map(|len| cache.scratch(len).unwrap());
    from.write_all_at(&[7; 100], 0).unwrap();
    to.write_all_at(&[9; 2 * PAGE], 0).unwrap();
    assert_eq!(from.migrate(0..1, &to, 0).unwrap(), 1);
    let mut page = [1; PAGE];
    to.read_exact_at(&mut page, 0).unwrap();
    assert!(page[..100] == [7; 100] && page[100..] == [0; PAGE - 100]);
    from.read_exact_at(&mut page[..100], 0).unwrap();
    assert_eq!(page[..100], [0; 100]);
}
