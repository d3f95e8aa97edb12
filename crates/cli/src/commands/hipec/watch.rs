//! `pagekeeper hipec run --watch`: what each save of a program changes.

use crate::failure::{Failure, Kind};
use crate::policy_text;
use crate::report::{self, count};
use crate::trace_input::Loaded;
use crate::watch::Saved;
use pagekeeper_hipec::{HipecPolicy, load};
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{SweepOptions, replay, sweep};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

/// Replays the trace, and again whenever the program's file is saved. Ends with the process, or when
/// nobody reads any more what it says.
pub(super) fn run(program: &Path, trace: &Loaded, frames: u32) -> Result<(), Failure> {
    let name = program.display().to_string();
    let specs = ["lru", "opt"].map(|name| PolicySpec::parse(name).expect("it is a policy"));
    let others = sweep(&trace.references, &specs, &[frames], &SweepOptions::default())?;
    let [lru, opt] = [0, 1].map(|at: usize| others[at].counts.faults);
    report::print(&format!(
        "{} in {} frames: {} references; lru has {} faults, opt {}\n",
        trace.name,
        count(frames.into()),
        count(trace.references.len() as u64),
        count(lru),
        count(opt)
    ))?;
    let bytes = policy_text::read_bytes(program)
        .map_err(|error| Failure::new(Kind::Data, format!("cannot read {name}: {error}")))?;
    let mut last = None;
    let mut say = |bytes: &[u8]| {
        let (text, faults) = look(&name, bytes, trace, frames, [lru, opt], last)?;
        last = faults.or(last);
        report::print_if_read(text.as_bytes())
    };
    let mut is_read = say(&bytes)?;
    let mut saved = Saved::since(program.to_owned(), bytes);
    while is_read {
        is_read = say(saved.wait())?;
    }
    Ok(())
}

/// Replays the trace through the program as it is now: what there is to say, and its faults, if it may
/// run.
fn look(
    name: &str,
    bytes: &[u8],
    trace: &Loaded,
    frames: u32,
    [lru, opt]: [u64; 2],
    last: Option<u64>,
) -> Result<(String, Option<u64>), Failure> {
    let verified = match load(name, bytes) {
        Ok((verified, _)) => verified,
        Err(error) => return Ok((format!("{error}\n"), None)),
    };
    let mut policy = HipecPolicy::new(Arc::new(verified), frames);
    let faults = replay(&trace.references, &mut policy, frames, |_| {})?.faults;
    let mut text = format!("{name}: {} faults, ", count(faults));
    if let Some(last) = last {
        text.push_str(&format!("{}; ", against(faults, last, "the last save")));
    }
    text.push_str(&format!("{}, {}", against(faults, lru, "lru"), against(faults, opt, "opt")));
    let counts = policy.counts();
    if counts.passed_over > 0 {
        text.push_str(&format!("; {} victims were taken without it", count(counts.passed_over)));
    }
    if let Some(why) = HipecPolicy::revoked(&policy) {
        text.push_str(&format!("; {why}"));
    }
    text.push('\n');
    Ok((text, Some(faults)))
}

/// Faults compared with another's, in words.
fn against(faults: u64, other: u64, whose: &str) -> String {
    match faults.cmp(&other) {
        Ordering::Less => format!("{} fewer than {whose}", count(other - faults)),
        Ordering::Equal => format!("as many as {whose}"),
        Ordering::Greater => format!("{} more than {whose}", count(faults - other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_compared_in_words() {
        assert_eq!(against(5, 1_005, "lru"), "1,000 fewer than lru");
        assert_eq!(against(7, 7, "opt"), "as many as opt");
        assert_eq!(against(9, 7, "opt"), "2 more than opt");
    }
}
