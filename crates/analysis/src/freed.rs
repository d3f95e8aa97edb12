//! Pages of heaps that are freed.
use pagekeeper_policy::Page;
use pagekeeper_sim::{HeapChange, References};

/// The pages that are freed between references, of which no later one is.
pub(crate) struct Freed<'a> {
    /// Changes still to come.
    changes: &'a [HeapChange],
}

impl<'a> Freed<'a> {
    pub(crate) fn of(references: &'a References) -> Self {
        Self { changes: references.heap_changes() }
    }

    /// Those freed before the reference at this position, and not told of yet.
    pub(crate) fn before(&mut self, position: usize) -> impl Iterator<Item = Page> + use<'a> {
        let now = self.changes.iter().take_while(|change| change.position <= position).count();
        let (passed, later) = self.changes.split_at(now);
        self.changes = later;
        passed.iter().flat_map(|change| change.numbers.iter().map(|number| Page(*number)))
    }
}
