//! The table, and what is asked of blocks.

use crate::library_model::{PAGE, maps_nothing_and_pins_within_a_page};
use pagekeeper::library::{Cache, Options, PolicySpec, Translation};

#[test]
fn a_table_maps_nothing_and_pins_within_a_page() {
    maps_nothing_and_pins_within_a_page(Translation::Table);
}

/// KiB of this process's memory in blocks.
fn blocks_kib(chunk_bytes: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut kib = 0;
    let mut is_chunk = false;
    for line in maps.lines() {
        if let Some((start, end)) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-'))
            && let (Ok(start), Ok(end)) =
                (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            is_chunk = (end - start).is_multiple_of(chunk_bytes);
        } else if let Some(rss) = line.strip_prefix("Rss:")
            && is_chunk
        {
            kib += rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib
}

/// Memory of pages that leave is the next pages', whatever is read: never more than the budget,
/// rounded up to a huge page; and it goes back when nobody has a use for it.
#[test]
fn blocks_are_used_again_and_given_back() {
    // In a process of its own: other tests have blocks, too.
    let test = "library_translations::table::blocks_are_used_again_and_given_back";
    if std::env::var_os("PAGEKEEPER_TEST_ALONE").is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let command = command.args(["--exact", test]).env("PAGEKEEPER_TEST_ALONE", "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let pages = 6000;
    let content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8).collect();
    std::fs::write(file.path(), content).unwrap();
    let budget = 8 << 20;
    let cache = Cache::builder(budget)
        .translation(Translation::Table)
        .policy(PolicySpec::parse("lru").unwrap())
        .build()
        .unwrap();
    let chunk_bytes = 4096 * PAGE as u64;
    let segment = cache.open(file.path(), Options::new()).unwrap();
    for len in [100, PAGE, 20 * PAGE] {
        let mut buf = vec![0; len];
        for at in (0..=pages * PAGE - len).step_by(len.max(PAGE)) {
            segment.read_exact_at(&mut buf, at as u64).unwrap();
            let expected = |i: usize| ((at + i) / PAGE) as u8;
            assert!(buf.iter().enumerate().all(|(i, byte)| *byte == expected(i)), "at {at}");
        }
        let kib = blocks_kib(chunk_bytes);
        assert!((4 << 10..=10 << 10).contains(&kib), "{kib} KiB after reads of {len}");
    }
    cache.set_budget(budget / 4);
    let kib = blocks_kib(chunk_bytes);
    assert!((1 << 10..=3 << 10).contains(&kib), "{kib} KiB in a quarter of the budget");
    drop(segment);
    let kib = blocks_kib(chunk_bytes);
    assert!(kib <= 3 << 10, "{kib} KiB when nothing is open");
}
