//! Interpreted and compiled, a program takes the same decisions, command for command.
use std::collections::BTreeSet;
use std::sync::Arc;

use pagekeeper_hipec::asm::assemble;
use pagekeeper_hipec::policy::Counts;
use pagekeeper_hipec::{Execution, HipecPolicy, Verified, verify};
use pagekeeper_policy::{Admission, Hint, Page, Place, Policy, Segment, Visible};
use pagekeeper_sim::replay;
use proptest::prelude::*;

use examples::{EXAMPLES, example};

fn hints(policy: &mut HipecPolicy) -> Vec<Hint> {
    let mut hints = Vec::new();
    policy.take_hints(&mut hints);
    hints
}

use crate::examples;
use crate::programs;
use crate::shared;

/// Both ways of running a program, as one.
struct Both {
    interpreted: HipecPolicy,
    compiled: HipecPolicy,
}

/// `None`, with the reason printed, where nothing can be compiled.
fn both(program: &Arc<Verified>, frames: u32) -> Option<Both> {
    let with = |execution| HipecPolicy::with_execution(program.clone(), frames, execution);
    let interpreted = with(Execution::Interpreted).expect("every host interprets");
    assert_eq!(interpreted.execution(), Execution::Interpreted);
    match with(Execution::Compiled) {
        Ok(compiled) => {
            assert_eq!(compiled.execution(), Execution::Compiled);
            assert_eq!(
                HipecPolicy::new(program.clone(), frames).execution(),
                Execution::Compiled,
                "the best that there is"
            );
            Some(Both { interpreted, compiled })
        }
        Err(why) => {
            let is_known = cfg!(all(target_os = "linux", target_arch = "x86_64", not(miri)));
            if is_known {
                panic!("{why}");
            }
            println!("skipped: {why}");
            None
        }
    }
}

impl Both {
    fn each(&mut self, act: impl Fn(&mut HipecPolicy)) {
        act(&mut self.interpreted);
        act(&mut self.compiled);
        self.agree();
    }

    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        let victim = self.interpreted.victim(incoming);
        assert_eq!(self.compiled.victim(incoming), victim);
        self.agree();
        victim
    }

    fn agree(&mut self) {
        assert_eq!(self.compiled.counts(), self.interpreted.counts());
        assert_eq!(self.compiled.resident(), self.interpreted.resident());
    }

    /// What is read at the end: hints and notes, and whether it was revoked and why.
    fn finish(mut self) -> Counts {
        assert_eq!(hints(&mut self.compiled), hints(&mut self.interpreted));
        assert_eq!(self.compiled.take_notes(), self.interpreted.take_notes());
        assert_eq!(self.compiled.revoked(), self.interpreted.revoked());
        self.interpreted.counts()
    }
}

fn play(both: &mut Both, frames: u32, touches: &[(u32, u8)]) {
    let mut resident = BTreeSet::new();
    for &(number, what) in touches {
        let page = Page(number);
        match (resident.contains(&page), what) {
            (true, 0) => {
                both.each(|policy| policy.removed(page));
                resident.remove(&page);
            }
            (true, 1..4) => both.each(|policy| policy.sampled(page)),
            (true, _) => both.each(|policy| policy.referenced(page)),
            (false, _) => {
                let place = Place { segment: Segment(number / 8), index: (number % 8).into() };
                both.each(|policy| policy.placed(page, place));
                if resident.len() as u32 == frames {
                    let victim = both.victim(Some(page)).expect("pages are resident");
                    assert!(resident.remove(&victim));
                }
                let how = if what == 1 { Admission::Prefetch } else { Admission::Demand };
                both.each(|policy| policy.admitted(page, how));
                resident.insert(page);
            }
        }
    }
    while !resident.is_empty() {
        let victim = both.victim(None).expect("pages are resident");
        assert!(resident.remove(&victim));
    }
    assert_eq!(both.victim(None), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_global_rejects: 8_000, ..ProptestConfig::default() })]

    #[test]
    fn any_program_does_the_same_both_ways(
        program in programs::any(),
        frames in 1..9_u32,
        budget in prop_oneof![3 => Just(None), 1 => (0..40_u64).prop_map(Some)],
        touches in prop::collection::vec((0..24_u32, 0..24_u8), 0..300),
    ) {
        let Some(verified) = programs::mended(program) else {
            return Err(TestCaseError::reject("no such program is verified"));
        };
        let Some(mut both) = both(&verified, frames) else { return Ok(()) };
        both.each(|policy| policy.set_budget_commands(budget));
        play(&mut both, frames, &touches);
        both.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn examples_do_the_same_both_ways(
        frames in 1..40_u32,
        budget in prop_oneof![3 => Just(None), 1 => (0..60_u64).prop_map(Some)],
        touches in prop::collection::vec((0..120_u32, 0..24_u8), 0..600),
    ) {
        for name in EXAMPLES {
            let Some(mut both) = both(&example(name), frames) else { return Ok(()) };
            both.each(|policy| policy.set_budget_commands(budget));
            play(&mut both, frames, &touches);
            both.finish();
        }
    }
}

#[test]
fn examples_do_the_same_both_ways_on_traces() {
    for trace in ["2_pools", "cpp", "cs", "gli", "loop", "multi1", "multi2"] {
        let Some(references) = shared::trace(trace) else { continue };
        for frames in [references.pages() / 20, references.pages() / 2] {
            for name in EXAMPLES {
                let Some(Both { mut interpreted, mut compiled }) = both(&example(name), frames)
                else {
                    return;
                };
                let faults = |policy: &mut HipecPolicy| {
                    let mut faults = Vec::new();
                    replay(&references, policy, frames, |fault| faults.push(fault))
                        .expect("it is sound");
                    faults
                };
                assert!(
                    faults(&mut interpreted) == faults(&mut compiled),
                    "{name} on {trace} in {frames} frames"
                );
                let mut both = Both { interpreted, compiled };
                both.agree();
                let counts = both.finish();
                assert!(counts.commands > counts.events, "{counts:?}");
            }
        }
    }
}

/// Division wraps around, whatever divides; the machine's own would not.
#[test]
fn numbers_wrap_around_both_ways() {
    let text = "hipec 1
event Init
    Int least = 1
    Int shift = 4611686018427387904
    Int two = 2
    Int one_less
    Int divisor = -1
    Int zero
    Queue q
    System FaultedPage
    System Now
event PageFault
    EnQueue FaultedPage, q, TAIL
    Return
event Replace
    Return
";
    // The least integer, by doubling: an initial value has 32 bits only.
    for (operation, divisor) in
        [("/=", -1), ("%=", -1), ("/=", 0), ("%=", 0), ("/=", 7), ("%=", -7)]
    {
        let doubling = "    Arith least *= two\n".repeat(63);
        let text = text
            .replace("    Int shift = 4611686018427387904\n", "")
            .replace("Int divisor = -1", &format!("Int divisor = {divisor}"))
            .replace(
                "    EnQueue FaultedPage",
                &format!(
                    "{doubling}    Arith divisor += zero\n    Arith least {operation} divisor\n    \
                     Prefetch least, divisor\n    Arith least = Now\n    EnQueue FaultedPage"
                ),
            );
        let program = assemble(&text).unwrap_or_else(|error| panic!("{error}")).program;
        let program = Arc::new(verify(program).expect("it may run"));
        let Some(mut both) = both(&program, 4) else { return };
        both.each(|policy| policy.admitted(Page(3), Admission::Demand));
        // What is no address is asked of nobody; the quotient is one or the other.
        let misuses = both.finish().misuses;
        assert_eq!(misuses, u64::from(divisor == 0));
    }
}

/// One program on several threads, whose policies come and go: its code is made once, and lives
/// as long as the last of them.
#[test]
fn policies_share_the_code_of_their_program() {
    let program = example("second-chance");
    let victims = |mut policy: HipecPolicy| {
        (0..64).for_each(|page| policy.admitted(Page(page), Admission::Demand));
        (0..32).for_each(|page| policy.referenced(Page(page * 2)));
        std::iter::from_fn(|| policy.victim(None)).collect::<Vec<_>>()
    };
    let expected = victims(
        HipecPolicy::with_execution(program.clone(), 64, Execution::Interpreted).expect("it runs"),
    );
    let policies: Vec<_> = (0..8).map(|_| HipecPolicy::new(program.clone(), 64)).collect();
    drop(program);
    std::thread::scope(|scope| {
        for policy in policies {
            scope.spawn(|| assert_eq!(victims(policy), expected));
        }
    });
}

/// Hints, and what ended the events, of a program that is told of the same page again and again.
fn told(commands: &str) -> Option<(usize, Counts)> {
    let text = format!(
        "hipec 1
event Init
    Queue q
    Page kept
    Int one = 1
    System FaultedPage
event PageFault
    EnQueue FaultedPage, q, TAIL
    Return
event Replace
    DeQueue kept, q, HEAD
    Return kept
event Reference
{commands}
    Return
"
    );
    let program = assemble(&text).unwrap_or_else(|error| panic!("{error}")).program;
    let program = Arc::new(verify(program).unwrap_or_else(|error| panic!("{error:?}")));
    let mut both = both(&program, 4)?;
    both.each(|policy| policy.admitted(Page(3), Admission::Demand));
    both.each(|policy| policy.referenced(Page(3)));
    both.each(|policy| policy.referenced(Page(3)));
    let seen = hints(&mut both.interpreted);
    assert_eq!(hints(&mut both.compiled), seen);
    Some((seen.len(), both.finish()))
}

#[test]
fn operands_are_empty_again_where_an_event_begins() {
    for (written, hints) in [("", 0), ("    Copy kept, FaultedPage", 2)] {
        let commands = format!(
            "{written}
    Has kept
    Jump empty
    Prefetch one, one
empty:
    Copy kept, FaultedPage"
        );
        let Some((seen, counts)) = told(&commands) else { return };
        assert_eq!((seen, counts.misuses), (hints, 0), "{commands}");
    }
    // A Call may read what was not written, and a path may leave out what another writes.
    for commands in [
        "    Call Kept\n    Copy kept, FaultedPage",
        "    Logic ! one\n    Jump on\n    DeQueue kept, q, HEAD\non:\n    Call Kept\n    \
         Copy kept, FaultedPage",
    ] {
        let rest = "\n    Return\nevent 3 Kept\n    Has kept\n    Jump empty\n    Prefetch one, one\n\
                    empty:";
        let Some((seen, counts)) = told(&format!("{commands}{rest}")) else {
            return;
        };
        assert_eq!((seen, counts.misuses), (0, 0), "{commands}");
    }
}

/// An event that is ended where it has Called another leaves nothing of that to the next, which has
/// no Calls of its own and is left to the interpreter.
#[test]
fn an_event_that_was_ended_is_not_gone_back_to() {
    let text = "hipec 1
event Init
    Queue q
    Page kept
    System FaultedPage
event PageFault
    EnQueue FaultedPage, q, TAIL
    Return
event Replace
    Call Oldest
    Return kept
event 3 Oldest
    DeQueue kept, q, HEAD
    Return
";
    let program = assemble(text).unwrap_or_else(|error| panic!("{error}")).program;
    let program = Arc::new(verify(program).unwrap_or_else(|error| panic!("{error:?}")));
    let Some(mut both) = both(&program, 4) else { return };
    both.each(|policy| policy.set_budget_commands(Some(1)));
    for page in 0..3 {
        both.each(|policy| policy.admitted(Page(page), Admission::Demand));
        assert_eq!(both.victim(None), Some(Page(page)), "passed over");
    }
    let counts = both.finish();
    // Two commands a PageFault, one of which waits, and the Call of each Replace.
    assert_eq!((counts.commands, counts.waits, counts.overruns), (9, 3, 3), "{counts:?}");
}

#[test]
fn a_released_page_is_gone_where_the_event_goes_back_to_its_beginning() {
    let commands = "again:\n    Release FaultedPage\n    Has FaultedPage\n    Jump again";
    let Some((_, counts)) = told(commands) else { return };
    assert_eq!(counts.misuses, 2);
}
