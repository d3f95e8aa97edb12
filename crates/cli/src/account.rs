//! What a program did, in words.

use crate::report::count;
use pagekeeper_policy::Account;

/// Notes that are shown; the others are counted.
pub(crate) const NOTES_SHOWN_MAX: usize = 10;

/// What a HiPEC program did, in a sentence; none for other policies. Commands are counted and not
/// time: decisions look at no clock.
pub(crate) fn sentence(account: &Account) -> Option<String> {
    let commands = gauge(account, "commands")?;
    let of = |name: &str| count(gauge(account, name).unwrap_or(0));
    let mut text = format!(
        "{} events ran {} commands, {} of them in Replace, {} at most in one; it chose {} victims, \
         and {} were taken without it; {} overruns, {} misuses",
        of("events"),
        count(commands),
        of("replace_commands"),
        of("event_commands_max"),
        of("chosen_pages"),
        of("passed_over_pages"),
        of("overruns"),
        of("misuses"),
    );
    if let Some(why) = &account.revoked {
        text = format!("{text}; {why}");
    }
    Some(text)
}

/// Whether a program failed at anything.
pub(crate) fn has_failures(account: &Account) -> bool {
    let failures = ["passed_over_pages", "overruns", "misuses"];
    failures.iter().any(|name| gauge(account, name).is_some_and(|value| value > 0))
}

/// The first notes, a line each.
pub(crate) fn notes(account: &Account) -> Vec<String> {
    let shown = account.notes.iter().take(NOTES_SHOWN_MAX);
    let mut lines: Vec<String> =
        shown.map(|note| format!("at reference {}: {}", note.at_refs, note.text)).collect();
    let more = account.notes.len().saturating_sub(NOTES_SHOWN_MAX) as u64 + account.notes_dropped;
    if more > 0 {
        lines.push(format!("and {} more", count(more)));
    }
    lines
}

/// A count among a policy's numbers.
fn gauge(account: &Account, name: &str) -> Option<u64> {
    account.gauges.get(name).map(|value| *value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::Note;

    #[test]
    fn what_a_program_did_is_told_and_other_policies_say_nothing() {
        let mut account = Account::default();
        account.gauges.insert("looping_pages".into(), 3.0);
        assert_eq!(sentence(&account), None);
        account.gauges.insert("commands".into(), 12_345.0);
        account.gauges.insert("overruns".into(), 2.0);
        account.notes = (0..12).map(|at| Note { at_refs: at, text: "it ended".into() }).collect();
        account.notes_dropped = 1;
        assert!(has_failures(&account));
        let text = sentence(&account).unwrap();
        assert!(text.contains("ran 12,345 commands") && text.ends_with("2 overruns, 0 misuses"));
        let lines = notes(&account);
        assert_eq!((lines.len(), lines[10].as_str()), (11, "and 3 more"));
    }
}
