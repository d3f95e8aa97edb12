//! What a policy lets people see of its inside: for figures, logs and explanations, never for
//! decisions.

use std::collections::BTreeMap;

use crate::Page;

/// The inside of a policy, as far as it shows it. All of it is optional.
pub trait Visible {
    /// Numbers as they are now, such as partition sizes; always the same names, in the same order.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }

    /// What the policy takes a page for, such as `looping`; `None` where it has no opinion.
    fn class_of(&self, _page: Page) -> Option<&'static str> {
        None
    }

    /// Functions that the policy decides by, as they are now, such as marginal gains.
    fn curves(&self) -> Vec<Curve> {
        Vec::new()
    }

    /// Why the policy decides no more and another one in its place, if so: for people, at once.
    fn revoked(&self) -> Option<&str> {
        None
    }

    /// What happened since the last call, oldest first: changes of mind, with their reasons.
    fn take_notes(&mut self) -> Vec<Note> {
        Vec::new()
    }
}

/// A number with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gauge {
    /// What it is; its unit ends the name, as in `looping_pages`.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// A function of one variable, by its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// What it is, such as `marginal gain of looping references`.
    pub name: &'static str,
    /// Points in order of the first coordinate: frames, unless the name says otherwise.
    pub points: Vec<(f64, f64)>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Note {
    /// When: references that the policy had seen, admissions among them.
    pub at_refs: u64,
    /// What and why, in one line for people.
    pub text: String,
}

/// Most notes that an account keeps; later ones are counted.
pub const ACCOUNT_NOTES_MAX: usize = 256;

/// What a policy showed of itself in the course of a run.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Account {
    /// Its numbers, as they were last.
    pub gauges: BTreeMap<String, f64>,
    /// What happened, oldest first.
    pub notes: Vec<Note>,
    /// Notes that were one too many to keep.
    pub notes_dropped: u64,
    /// Why it decides no more, if so.
    pub revoked: Option<String>,
}

impl Account {
    /// Adds what happened since the last look; true if the policy was revoked in between.
    pub fn look(&mut self, policy: &mut (impl Visible + ?Sized)) -> bool {
        for note in policy.take_notes() {
            if self.notes.len() < ACCOUNT_NOTES_MAX {
                self.notes.push(note);
            } else {
                self.notes_dropped += 1;
            }
        }
        let before = self.revoked.is_some();
        self.revoked = policy.revoked().map(str::to_owned);
        !before && self.revoked.is_some()
    }

    /// Looks for the last time, at the numbers too.
    pub fn close(&mut self, policy: &mut (impl Visible + ?Sized)) {
        self.look(policy);
        let gauges = policy.gauges();
        // JSON knows finite numbers only.
        let gauges = gauges.into_iter().filter(|gauge| gauge.value.is_finite());
        self.gauges = gauges.map(|gauge| (gauge.name.to_owned(), gauge.value)).collect();
    }
}
