//! Files that nobody uses, in emulations of live runs: where there are many, they are let go of.

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{
    Counts, LiveOptions, Reference, References, ReferencesBuilder, simulate_live,
};

fn live(builder: ReferencesBuilder, memory_bytes: u64) -> Counts {
    let references: References = builder.finish();
    let lru = PolicySpec::parse("lru").unwrap();
    simulate_live(&references, &lru, &LiveOptions::new(memory_bytes)).unwrap().counts
}

fn touch(builder: &mut ReferencesBuilder, segment: u32, page_index: u64, by_call: bool) {
    let reference = Reference { by_call, ..Reference::from((segment, page_index, false, 0)) };
    builder.push(reference).unwrap();
}

/// Two passes over files of a page each.
fn two_passes(files: u32, by_call: bool) -> ReferencesBuilder {
    let mut builder = References::builder();
    (0..2 * files).for_each(|i| touch(&mut builder, i % files, 0, by_call));
    builder
}

#[test]
fn the_files_used_longest_ago_go_where_there_are_many() {
    let room = 64 << 20;
    assert_eq!(live(two_passes(576, true), room).pages_read, 576);
    assert_eq!(live(two_passes(1088, true), room).pages_read, 1088);
    // Each is gone when it is read again, though there is room.
    assert_eq!(live(two_passes(2000, true), room).pages_read, 4000);
    // A part of much memory buys more.
    assert_eq!(live(two_passes(2000, true), 256 << 20).pages_read, 2000);
    // Who maps a file uses it without a word.
    assert_eq!(live(two_passes(2000, false), room).pages_read, 2000);
}

/// Predictions for programs that read a thousand small files were up to 294 % off: the state of
/// files that a live run lets go of was paid for, and took the frames of a larger one.
#[test]
fn files_that_are_gone_cost_no_frames() {
    let hot_pages = 1000;
    let mut builder = References::builder();
    for file in 0..5000 {
        touch(&mut builder, 1 + file, 0, true);
        touch(&mut builder, 0, u64::from(file) % hot_pages, true);
    }
    let counts = live(builder, 8 << 20);
    assert_eq!(counts.pages_read, 5000 + hot_pages);
}

/// A program that read many times its memory, a file after the other, had sixteen frames left in the
/// end: the state of all that it had ever read took the others.
#[test]
fn files_that_were_read_once_leave_frames_for_others() {
    let (hot_pages, pages) = (100, 4096);
    let mut builder = References::builder();
    for file in 0..64 {
        (0..pages).for_each(|page| touch(&mut builder, 1 + file, page, true));
        (0..hot_pages).for_each(|page| touch(&mut builder, 0, page, true));
        (0..hot_pages).for_each(|page| touch(&mut builder, 0, page, true));
    }
    let counts = live(builder, 1 << 20);
    // 256 times memory; the second time, what is hot is in memory.
    assert_eq!(counts.pages_read, 64 * (pages + hot_pages));
}

#[test]
fn what_is_dirty_is_written_before_a_file_goes() {
    let mut builder = two_passes(2000, true);
    let write = Reference { by_call: true, ..Reference::from((2000, 0, true, 0)) };
    builder.push(write).unwrap();
    (0..2000).for_each(|file| touch(&mut builder, file, 0, true));
    let counts = live(builder, 64 << 20);
    assert_eq!((counts.write_backs, counts.dirty_at_end, counts.pages_read), (1, 0, 6001));
}

/// Each file of a page took the state of sixteen, which was a tenth of such a memory: what else it had room
/// for was lost to a loop over a little more than was left.
#[test]
fn files_of_a_page_cost_the_state_of_few() {
    const FILES: u32 = 920;
    let mut builder = References::builder();
    for step in 0..5 * FILES {
        touch(&mut builder, step % FILES, 0, false);
    }
    assert_eq!(live(builder, 4 << 20).pages_read, u64::from(FILES));
}
