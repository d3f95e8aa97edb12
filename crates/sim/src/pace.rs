//! At what pace processes go on by themselves: what a recording tells of the work between two
//! references of a process, and of what it waited for.
//!
//! A recording is slower than a live run: each reference is a message there, and pages are read when
//! other programs' are. None of that is the process's own work, of which the recording tells by the
//! processor time that it used.

use crate::processes::{Look, Processes};
use std::ops::Range;

/// References of a process that came closer than this were seen by one message.
const ONE_MESSAGE_NS: u64 = 2_000;
/// Messages between two looks at a clock that are enough to tell what one costs.
const MESSAGES_TO_TELL: u64 = 4;
/// A process that did nothing for so long waited for something of its own: a clock, a peer.
const OWN_WAIT_NS: u64 = 100_000_000;

/// A reference of a process, and when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its position in the recording.
    pub(crate) position: usize,
    /// The position of another process's reference that comes before it.
    pub(crate) after: Option<usize>,
    /// What passes between that, and the process's last one, and it: first a wait of its own, in
    /// nanoseconds, …
    pub(crate) wait_ns: u64,
    /// … then work on a processor.
    pub(crate) work_ns: u64,
}

/// The steps of each process, in its order.
pub(crate) fn steps(processes: &Processes, of: &[u32], times_ns: &[u64]) -> Vec<Vec<Step>> {
    let mut steps = own_steps(processes, of, times_ns);
    let message_ns = message_ns(processes, &steps);
    for (own, looks) in steps.iter_mut().zip(&processes.looks) {
        keep_own_work(own, looks, message_ns);
    }
    steps
}

/// Steps as far apart as they were recorded.
fn own_steps(processes: &Processes, of: &[u32], times_ns: &[u64]) -> Vec<Vec<Step>> {
    let count = processes.parents.len();
    let (mut first, mut last) = (vec![None; count], vec![0; count]);
    for (at, process) in of.iter().enumerate() {
        first[*process as usize].get_or_insert(at);
        last[*process as usize] = at;
    }
    let parent = |process: &usize| processes.parents[*process];
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); count];
    // The last reference of each so far, and the last one of all below it that have ended.
    let mut previous: Vec<Option<usize>> = vec![None; count];
    let mut ended: Vec<Option<usize>> = vec![None; count];
    for (at, process) in of.iter().enumerate() {
        let process = *process as usize;
        let after = match previous[process] {
            // A child that began and ended since was waited for.
            Some(own) => ended[process].filter(|end| first[of[*end] as usize] > Some(own)),
            // It began when its parent was so far, or behind a relative.
            None => std::iter::successors(parent(&process), parent)
                .find_map(|relative| previous[relative].max(ended[relative])),
        };
        let since_ns = after.or(previous[process]).map_or(0, |at| times_ns[at]);
        let passed_ns = times_ns[at].saturating_sub(since_ns);
        let (wait_ns, work_ns) = match (previous[process], after) {
            (Some(_), _) => (0, passed_ns),
            // The first of all begin when the recording says.
            (None, None) => (passed_ns, 0),
            (None, Some(after)) => {
                let work_ns = starting_ns(processes, process, after).min(passed_ns);
                (own_wait_ns(passed_ns - work_ns), work_ns)
            }
        };
        steps[process].push(Step { position: at, after, wait_ns, work_ns });
        previous[process] = Some(at);
        if at == last[process] {
            for above in std::iter::successors(parent(&process), parent) {
                ended[above] = Some(at);
            }
        }
    }
    steps
}

/// What a process, and those that were started to start it, used before its first reference, if all
/// of that came after another's reference.
fn starting_ns(processes: &Processes, process: usize, after: usize) -> u64 {
    let parent = |process: &usize| processes.parents[*process];
    std::iter::successors(Some(process), parent)
        .map_while(|one| processes.looks[one].first().filter(|look| look.position > after))
        .map(|look| look.used_ns)
        .sum()
}

/// Of time that was no work: what a process waited for by itself.
fn own_wait_ns(idle_ns: u64) -> u64 {
    if idle_ns >= OWN_WAIT_NS { idle_ns } else { 0 }
}

/// The steps between two looks at a process's clock, without the one at the first look, and what it
/// used meanwhile.
fn between_looks<'a>(
    own: &'a [Step],
    looks: &'a [Look],
) -> impl Iterator<Item = (Range<usize>, u64)> + 'a {
    looks.windows(2).map(|pair| {
        let place = |look: &Look| own.partition_point(|step| step.position <= look.position);
        (place(&pair[0])..place(&pair[1]), pair[1].used_ns.saturating_sub(pair[0].used_ns))
    })
}

fn messages(steps: &[Step]) -> u64 {
    steps.iter().filter(|step| step.work_ns >= ONE_MESSAGE_NS).count() as u64
}

/// What being seen cost a process of its own processor time, for a message: where it cost least, the
/// process did little else. The first percentile of all looks.
fn message_ns(processes: &Processes, steps: &[Vec<Step>]) -> u64 {
    let mut told: Vec<u64> = Vec::new();
    for (own, looks) in steps.iter().zip(&processes.looks) {
        for (between, used_ns) in between_looks(own, looks) {
            let messages = messages(&own[between]);
            if messages >= MESSAGES_TO_TELL {
                told.push(used_ns / messages);
            }
        }
    }
    told.sort_unstable();
    told.get(told.len() / 100).copied().unwrap_or(0)
}

/// Leaves of the time before each step what was work, and waits of its own.
fn keep_own_work(own: &mut [Step], looks: &[Look], message_ns: u64) {
    let told: Vec<(Range<usize>, f64)> = between_looks(own, looks)
        .map(|(between, used_ns)| {
            let steps = &own[between.clone()];
            let work_ns = used_ns.saturating_sub(messages(steps) * message_ns);
            let passed_ns: u64 = steps.iter().map(|step| step.work_ns).sum();
            (between, (work_ns as f64 / passed_ns.max(1) as f64).min(1.0))
        })
        .collect();
    // Behind the last look as before it.
    let (end, share) = told.last().map_or((0, 1.0), |(between, share)| (between.end, *share));
    for (between, share) in told.into_iter().chain([(end..own.len(), share)]) {
        for step in &mut own[between] {
            let passed_ns = step.work_ns;
            step.work_ns = (passed_ns as f64 * share) as u64;
            step.wait_ns += own_wait_ns(passed_ns - step.work_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parent, its two children one after the other, and somebody else.
    fn family() -> Processes {
        let mut processes = Processes::default();
        let parent = processes.begin(None);
        (0..2).for_each(|_| _ = processes.begin(Some(parent)));
        processes.begin(None);
        processes
    }

    /// Where each step is, what it comes after, what passes before it.
    fn seen(steps: &[Step]) -> Vec<(usize, Option<usize>, u64)> {
        steps.iter().map(|step| (step.position, step.after, step.wait_ns + step.work_ns)).collect()
    }

    #[test]
    fn children_begin_after_their_parent_or_a_sibling_and_are_waited_for() {
        let of = [0, 3, 1, 3, 1, 2, 2, 0, 3];
        let times_us = [10, 20, 30, 40, 50, 60, 70, 80, 90];
        let times_ns = times_us.map(|us| us * 1000);
        let mut family = family();
        // What they had used by their first look they used to begin, as far as time had passed.
        family.look(1, 4, 5_000);
        family.look(2, 6, 50_000);
        let steps = own_steps(&family, &of, &times_ns);
        assert_eq!(seen(&steps[0]), [(0, None, 10_000), (7, Some(6), 10_000)]);
        assert_eq!(seen(&steps[1]), [(2, Some(0), 5_000), (4, None, 20_000)]);
        assert_eq!(seen(&steps[2]), [(5, Some(4), 10_000), (6, None, 10_000)]);
        assert_eq!(seen(&steps[3]), [(1, None, 20_000), (3, None, 20_000), (8, None, 50_000)]);
    }

    /// Each reference is seen by a message that costs the process 5 µs; it works 3 µs for each third.
    #[test]
    fn what_being_seen_costs_is_no_work_and_a_long_wait_is_kept() {
        let mut processes = Processes::default();
        let one = processes.begin(None);
        let (mut times_ns, mut now_ns, mut used_ns) = (Vec::new(), 0, 0);
        for at in 0..3000 {
            let work_ns = if at >= 2000 { 3_000 } else { 0 };
            now_ns += 20_000 + work_ns + if at == 1000 { 1_000_000_000 } else { 0 };
            used_ns += 5_000 + work_ns;
            if at % 10 == 0 {
                processes.look(one, at, used_ns);
            }
            times_ns.push(now_ns);
        }
        let steps = steps(&processes, &[0; 3000], &times_ns).remove(0);
        let sum = |range: Range<usize>| steps[range].iter().map(|step| step.work_ns).sum::<u64>();
        assert_eq!(sum(1..1991), 0);
        let work_ns = sum(1991..3000);
        assert!((2_990_000..=3_000_000).contains(&work_ns), "{work_ns}");
        let waits: Vec<_> = (1..3000).filter(|at| steps[*at].wait_ns > 0).collect();
        assert_eq!((waits, steps[1000].wait_ns), (vec![1000], 1_000_020_000));
    }
}
