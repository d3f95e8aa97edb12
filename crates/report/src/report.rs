//! From traces to figures.
use std::collections::{BTreeSet, HashSet};

use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{References, SimError};
use serde::Serialize;

use crate::figures::{self, Subject};
use crate::{Figure, Kind};

/// A reference string and what it is called.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes in a page.
    pub page_bytes: u32,
    /// Who touched what.
    pub references: &'a References,
    /// Memory sizes, in frames, that are looked at closely; a quarter of the pages that there are
    /// at once, if there are none.
    pub memory_frames: &'a [u32],
}

/// What to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Policies to show.
    pub policies: Vec<PolicySpec>,
    /// Kinds of figures; all, if there are none.
    pub figures: Vec<Kind>,
    /// Counting starts at this reference; those before it fill memory.
    pub warm_refs: usize,
    /// Share of the pages that miss ratios are estimated from, at sizes of at least 32 frames of the
    /// sample; exact without, and for policies that look at neighbouring pages.
    pub sample_rate: Option<f64>,
    /// Feeds random policies, and chooses the sample.
    pub seed: u64,
    /// Cells in all maps together, at most.
    pub cells: u32,
    /// Columns in a map, at most.
    pub columns: u32,
}

impl Options {
    /// All figures of these policies, exact, from a cold start, in a few megabytes.
    pub const fn new(policies: Vec<PolicySpec>) -> Self {
        Self {
            policies,
            figures: Vec::new(),
            warm_refs: 0,
            sample_rate: None,
            seed: 0,
            cells: 240_000,
            columns: 300,
        }
    }

    pub(crate) fn wants(&self, kind: Kind) -> bool {
        self.figures.is_empty() || self.figures.contains(&kind)
    }
}

/// The figures of some traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One for each trace.
    pub sections: Vec<Section>,
}

/// The figures of one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// The trace's name.
    pub name: String,
    /// What is known of it.
    pub facts: Facts,
    /// The figures, in the order of [`Kind::ALL`].
    pub figures: Vec<Figure>,
}

/// What is known of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Touches of pages.
    pub references: u64,
    /// Touches that wrote.
    pub writes: u64,
    /// Distinct pages; of memory that was freed and used again, as many as there were at once.
    pub pages: u32,
    /// Bytes in a page.
    pub page_bytes: u32,
    /// Files, or other segments.
    pub segments: u32,
    /// References that only fill memory.
    pub warm_refs: u64,
}

impl Report {
    /// Analyses the traces.
    ///
    /// # Errors
    /// Those of the simulator: a policy that cannot be built, a trace too long for OPT.
    pub fn make(traces: &[Trace<'_>], options: &Options) -> Result<Self, SimError> {
        let mut taken = HashSet::new();
        let sections = traces.iter().map(|trace| {
            let references = trace.references;
            let facts = Facts {
                references: references.len() as u64,
                writes: references.writes(),
                pages: references.pages_at_once(),
                page_bytes: trace.page_bytes,
                segments: references.segments().len() as u32,
                warm_refs: options.warm_refs.min(references.len()) as u64,
            };
            let subject = Subject::new(*trace, options, traces.len() as u32);
            let mut figures = figures::all(&subject)?;
            figures.retain(|figure| options.wants(figure.kind) && !figure.rows.is_empty());
            figures.sort_by_key(|figure| figure.kind);
            for figure in &mut figures {
                figure.id = free_id(&mut taken, &format!("{}-{}", trace.name, figure.id));
            }
            Ok(Section { name: trace.name.to_owned(), facts, figures })
        });
        Ok(Self { sections: sections.collect::<Result<_, SimError>>()? })
    }

    /// All figures of all traces.
    pub fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.sections.iter().flat_map(|section| &section.figures)
    }

    /// The kinds that there is at least one figure of.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        self.figures().map(|figure| figure.kind).collect()
    }
}

/// The text in letters, digits and hyphens, with a number behind it if that is taken.
fn free_id(taken: &mut HashSet<String>, text: &str) -> String {
    let mut id = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_ascii_alphanumeric() {
            id.push(letter.to_ascii_lowercase());
        } else if !id.ends_with('-') {
            id.push('-');
        }
    }
    let id = id.trim_matches('-').to_owned();
    let numbered = (2..).map(|number| format!("{id}-{number}"));
    let free = std::iter::once(id.clone()).chain(numbered).find(|id| !taken.contains(id));
    let free = free.expect("numbers do not end");
    taken.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_files_and_do_not_meet() {
        let mut taken = HashSet::new();
        let ids =
            ["a/b gaps:x=1/2", "a-b-gaps-x-1-2", "../ü"].map(|text| free_id(&mut taken, text));
        assert_eq!(ids, ["a-b-gaps-x-1-2", "a-b-gaps-x-1-2-2", ""]);
    }
}
