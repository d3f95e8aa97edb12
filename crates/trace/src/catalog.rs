//! What the processes, segments and sampling are at a point of the stream.

use std::collections::BTreeMap;

use crate::record::{Process, Record, Sampling, Segment};

/// Follows a trace and remembers what its numbers stand for. Memory grows with the processes and
/// segments that the trace names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalog {
    processes: BTreeMap<u32, Process>,
    segments: BTreeMap<u32, Segment>,
    sampling: Sampling,
}

impl Catalog {
    /// A catalog of nothing, in which references are exact.
    pub fn new() -> Self {
        Self::default()
    }

    /// Learns from a record; those that name nothing are passed over at the cost of a comparison.
    #[inline]
    pub fn observe(&mut self, record: &Record) {
        match record {
            Record::Reference(_) | Record::Fault(_) | Record::Input(_) | Record::Digest(_) => {}
            _ => self.learn(record),
        }
    }

    fn learn(&mut self, record: &Record) {
        match record {
            Record::Process(process) => {
                self.processes.insert(process.process, process.clone());
            }
            Record::Segment(segment) => {
                self.segments.insert(segment.segment, segment.clone());
            }
            Record::Resize(resize) => {
                if let Some(segment) = self.segments.get_mut(&resize.segment) {
                    segment.bytes = resize.bytes;
                }
            }
            Record::Sampling(sampling) => self.sampling = *sampling,
            _ => {}
        }
    }

    /// A process by its number.
    pub fn process(&self, process: u32) -> Option<&Process> {
        self.processes.get(&process)
    }

    /// A segment by its number, with its present size. A trace may touch segments that it never
    /// introduced.
    pub fn segment(&self, segment: u32) -> Option<&Segment> {
        self.segments.get(&segment)
    }

    /// All processes, by number.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// All segments, by number.
    pub fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    /// How references are seen at this point.
    pub fn sampling(&self) -> Sampling {
        self.sampling
    }
}
