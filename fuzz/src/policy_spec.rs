//! A policy as text: read or refused with a reason; what is read says the same when it is written,
//! and is a policy that keeps the contract.

use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, PolicySpec, Segment};

/// Frames of the pool, few enough that references evict.
const FRAMES: u32 = 8;

/// References that the policy sees.
const REFERENCES: u32 = 96;

/// Reads bytes, as far as they are text, as a policy and its parameters.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let spec = match PolicySpec::parse(&text) {
        Ok(spec) => spec,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let written = spec.to_string();
    assert_eq!(PolicySpec::parse(&written).as_ref(), Ok(&spec), "{written}");
    let Ok(policy) = spec.build(FRAMES, 7) else {
        assert!(!spec.info().runs_live());
        return;
    };
    let mut policy = Checked::new(policy, FRAMES);
    for turn in 0..REFERENCES {
        // Once through, then back and forth near the end.
        let page = Page(if turn < 32 { turn } else { 31 - (turn * 7 + turn / 5) % 20 });
        if policy.is_resident(page) {
            policy.referenced(page);
            continue;
        }
        policy.placed(page, Place { segment: Segment(page.0 / 16), index: (page.0 % 16).into() });
        if policy.resident() == FRAMES {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    }
    while policy.victim(None).is_some() {}
}
