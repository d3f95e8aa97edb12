//! What the verifier refuses, and what it says; what it leaves to the run, and how that ends.
use std::sync::Arc;

use pagekeeper_hipec::asm::assemble;
use pagekeeper_hipec::policy::{PAGE_FAULT_WAITS_MAX, STRIKES_MAX};
use pagekeeper_hipec::{HipecPolicy, verify};
use pagekeeper_policy::{Admission, Page, Policy, Visible};

const INIT: &str = "hipec 1
event Init
    Int zero
    Int three = 3
    Queue q
    Queues many[3]
    QueueRef which
    Page p
    System FaultedPage
    System Now
";

/// A program with these events; PageFault and Replace are plain where not given.
fn program(events: &str) -> String {
    let mut text = format!("{INIT}{events}\n");
    if !events.contains("event PageFault") {
        text.push_str("event PageFault\n EnQueue FaultedPage, q, TAIL\n Return\n");
    }
    if !events.contains("event Replace") {
        text.push_str("event Replace\n DeQueue p, q, HEAD\n Return p\n");
    }
    text
}

fn findings(events: &str) -> Vec<String> {
    let program = assemble(&program(events)).unwrap().program;
    match verify(program) {
        Ok(_) => Vec::new(),
        Err(findings) => findings.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn what_cannot_be_right_is_refused_with_a_place_and_a_remedy() {
    for (events, message) in [
        (
            "event Replace\n Ref q\n Return",
            "event Replace, word 1 (Ref): `q` is Queue; it needs a Page",
        ),
        (
            "event Replace\n Arith Now++\n Return",
            "event Replace, word 1 (Arith): `Now` is System Now; it needs an Int, which it changes",
        ),
        (
            "event Replace\n EmptQ many\n Return",
            "event Replace, word 1 (EmptQ): `many` is Queues[3]; it needs a Queue, Ordered or \
             QueueRef (Pick makes one of Queues)",
        ),
        (
            "event Replace\n Jump on\n Return\non:",
            "event Replace, word 1 (Jump): it goes to word 3, and the event has 1 to 2; jump to \
             a command of this event",
        ),
        (
            "event Replace\n EmptQ q",
            "event Replace, word 1 (EmptQ): the event goes on after its last command; end this \
             path with Return",
        ),
        (
            "event Replace\non:\n Arith zero++\n Jump on\n Return",
            "event Replace, word 1 (Arith): no path from here comes to a Return; leave the loop \
             on a test that can be false",
        ),
        (
            "event Replace\n Release p\n Return",
            "event Replace, word 1 (Release): `p` holds no page here, on any path; set it before, \
             with DeQueue, FindPA or Copy",
        ),
        (
            "event Replace\n DeQueue p, q, HEAD\n Release p\n Return p",
            "event Replace, word 3 (Return): `p` was given up before, on every path; give a page \
             up last, and once",
        ),
        (
            "event Replace\n DeQueue p, q, HEAD\n DeQueue p, q, HEAD\n Return p",
            "event Replace, word 2 (DeQueue): the page in `p` is on no queue, and would be lost; \
             EnQueue or Release it before",
        ),
        (
            "event Reference\n DeQueue p, q, HEAD\n Return",
            "event Reference, word 2 (Return): the page in `p` is on no queue, and would be lost; \
             EnQueue or Release it before the event ends",
        ),
        (
            "event Replace\n EmptQ which\n Return",
            "event Replace, word 1 (EmptQ): `which` refers to no queue here, on any path; Pick \
             one before",
        ),
        (
            "event 3 turn\n Call turn\n Return",
            "event turn, word 1 (Call): `turn` comes to call itself; write it as a loop",
        ),
        (
            "event 3 turn\n Call Reference\n Return\nevent Reference\n Return",
            "event turn, word 1 (Call): event 254 is run by the system alone; put what both need \
             into an event of its own, and Call that",
        ),
    ] {
        assert_eq!(findings(events), [message], "{events}");
    }
    let missing = verify(assemble(INIT).unwrap().program).unwrap_err();
    assert_eq!(
        missing[0].to_string(),
        "program: there is no event PageFault; write it, one that only returns leaves the choice \
         to the system"
    );
}

#[test]
fn what_may_be_right_is_not_refused() {
    for events in [
        // A page that Has found missing is not forgotten.
        "event Reference\n DeQueue p, q, HEAD\n Has p\n Jump none\n EnQueue p, q, TAIL\nnone:\n Return",
        // A Jump after no test is always taken, so nothing runs off the end.
        "event Reference\n EmptQ q\n Jump on\n Jump on\non:\n Return",
        // A called event leaves the page to its caller.
        "event Reference\n Call take\n EnQueue p, q, TAIL\n Return\nevent 3 take\n DeQueue p, q, HEAD\n Return",
        "event Replace\n DeQueue p, q, HEAD\n EnQueue p, q, TAIL\n Release p\n Return",
    ] {
        assert_eq!(findings(events), Vec::<String>::new(), "{events}");
    }
}

fn policy(events: &str, frames: u32) -> HipecPolicy {
    let program = assemble(&program(events)).unwrap().program;
    HipecPolicy::new(Arc::new(verify(program).unwrap()), frames)
}

fn fill(policy: &mut HipecPolicy, pages: u32) {
    (0..pages).for_each(|page| policy.admitted(Page(page), Admission::Demand));
}

/// A loop that a test could leave, and never does.
const ENDLESS: &str = "on:\n Comp zero == three\n Jump on\n Return";

#[test]
fn replace_over_its_budget_is_passed_over_and_said() {
    let mut policy = policy(&format!("event Replace\n{ENDLESS}"), 4);
    fill(&mut policy, 4);
    let budget = policy.budget_commands();
    assert_eq!(policy.victim(None), Some(Page(0)), "FIFO2's own");
    let counts = policy.counts();
    assert_eq!((counts.overruns, counts.passed_over, counts.chosen), (1, 1, 0));
    assert_eq!(counts.replace_commands, budget, "to the command");
    let notes = policy.take_notes();
    assert_eq!(notes[0].text, format!("Replace ran over its {budget} commands and was ended"));
}

#[test]
fn a_page_fault_goes_on_where_it_stopped() {
    // Counts to three budgets, then queues the page: begun anew each time, it would never.
    let text = "event PageFault\non:\n Arith zero++\n Arith three = Now\n Arith three *= many_commands\n \
                Comp zero >= three\n Jump on\n EnQueue FaultedPage, q, TAIL\n Return";
    let text = program(text).replace("    Queue q\n", "    Queue q\n    Int many_commands = 700\n");
    let program = assemble(&text).unwrap().program;
    let mut policy = HipecPolicy::new(Arc::new(verify(program).unwrap()), 4);
    policy.admitted(Page(7), Admission::Demand);
    let counts = policy.counts();
    assert_eq!(counts.event_commands_max, 5 * 700 + 2);
    assert_eq!(counts.waits, (5 * 700 + 2) / policy.budget_commands());
    assert_eq!((counts.overruns, counts.loose_ends), (0, 0));
    assert_eq!(policy.victim(None), Some(Page(7)));
    assert_eq!(policy.counts().chosen, 1);
}

#[test]
fn repeated_failures_revoke_a_program_in_words() {
    let mut policy = policy(&format!("event PageFault\n{ENDLESS}"), 100);
    let budget = policy.budget_commands();
    fill(&mut policy, STRIKES_MAX + 5);
    let counts = policy.counts();
    assert_eq!(counts.overruns, STRIKES_MAX.into());
    assert_eq!(counts.commands, budget * u64::from((PAGE_FAULT_WAITS_MAX + 1) * STRIKES_MAX));
    let why = policy.revoked().unwrap().to_owned();
    assert_eq!(
        why,
        format!(
            "the program is revoked after 16 failures, and FIFO2 decides: PageFault ran over its \
             {budget} commands, 8 times again, and was ended"
        )
    );
    assert_eq!(policy.take_notes().last().unwrap().text, why);
    // It decides no more, and every page is there.
    let victims: Vec<_> = std::iter::from_fn(|| policy.victim(None)).collect();
    assert_eq!(victims, (0..STRIKES_MAX + 5).map(Page).collect::<Vec<_>>());
    assert_eq!(policy.counts().commands, counts.commands);
}

#[test]
fn nonsense_ends_the_event_at_its_command() {
    for (commands, word, why) in [
        ("Arith three /= zero", 1, "this divides by zero; compare the divisor with 0 before"),
        (
            "Pick which, many, three",
            1,
            "the array has no queue of this number; compare it with the length before",
        ),
        (
            "DeQueue p, q, HEAD\n EnQueue p, q, TAIL",
            2,
            "the operand holds no page; look first, by `page != NULL` or EmptyQ (as commands, Has or EmptQ)",
        ),
        (
            "Copy p, FaultedPage\n Release p\n EnQueue FaultedPage, q, TAIL",
            3,
            "the page was given up before; give a page up once, and last",
        ),
    ] {
        let mut policy = policy(&format!("event PageFault\n {commands}\n Return"), 4);
        policy.admitted(Page(1), Admission::Demand);
        assert_eq!(policy.counts().misuses, 1);
        assert_eq!(
            policy.take_notes().remove(0).text,
            format!("PageFault was ended at event PageFault, word {word}: {why}")
        );
        assert_eq!(policy.victim(None), Some(Page(1)));
        assert_eq!(policy.resident(), 0);
    }
}
