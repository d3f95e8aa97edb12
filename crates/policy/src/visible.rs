//! What a policy lets people see of its inside: for figures, logs and explanations, never for
//! decisions.

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
pub struct Note {
    /// When: references that the policy had seen, admissions among them.
    pub at_refs: u64,
    /// What and why, in one line for people.
    pub text: String,
}
