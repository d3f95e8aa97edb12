//! Which processes made the references of a recording, and how long they worked themselves.

/// What a process had used of processors by the time of a reference of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The reference's position.
    pub(crate) position: usize,
    /// In nanoseconds since the process began.
    pub(crate) used_ns: u64,
}

/// The processes of a reference string, as far as all its references are known to be some process's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes {
    /// Per process: its parent. Some reference nothing.
    pub(crate) parents: Vec<Option<usize>>,
    /// Per process: looks at its clock.
    pub(crate) looks: Vec<Vec<Look>>,
    /// Per reference: whose.
    of: Vec<u32>,
    /// A reference was nobody's.
    has_gaps: bool,
    /// Of the machine; 0 if unknown.
    processors: usize,
}

impl Processes {
    /// They ran on so many processors.
    pub(crate) fn set_processors(&mut self, processors: usize) {
        self.processors = processors;
    }

    /// On how many processors they ran, if that is known.
    pub(crate) fn processors(&self) -> Option<usize> {
        (self.processors > 0).then_some(self.processors)
    }

    /// A process appears; the place that it has from now on.
    pub(crate) fn begin(&mut self, parent: Option<usize>) -> usize {
        self.parents.push(parent);
        self.looks.push(Vec::new());
        self.parents.len() - 1
    }

    /// Whose the next reference is.
    pub(crate) fn push(&mut self, process: Option<usize>) {
        match process {
            Some(process) if !self.has_gaps => self.of.push(process as u32),
            _ => (self.has_gaps, self.of) = (true, Vec::new()),
        }
    }

    /// A process had used so much by its next reference, which is the one at this position if it is
    /// the next of all.
    pub(crate) fn look(&mut self, process: usize, position: usize, used_ns: u64) {
        self.looks[process].push(Look { position, used_ns });
    }

    /// Whose each of so many references is; none unless it is known of all, several processes made
    /// them, and the clocks of all of these were looked at.
    pub(crate) fn of_all(&self, references: usize) -> Option<&[u32]> {
        let first = *self.of.first()?;
        let is_known = self.of.len() == references
            && self.of.iter().any(|process| *process != first)
            && self.of.iter().all(|process| !self.looks[*process as usize].is_empty());
        is_known.then_some(&self.of)
    }
}
