//! The clock of an emulated run, and the device that it waits for.

use crate::CostModel;
use pagekeeper_frames::{Place, Run};

/// A device that transfers one page at a time, and answers each request a while after its last page.
pub(crate) struct Disk {
    cost: CostModel,
    /// The time of what is emulated, in nanoseconds.
    pub(crate) now_ns: u64,
    /// Until when there is something to transfer.
    busy_until_ns: u64,
    /// Pages that are not there yet, and when they will be.
    on_their_way: Vec<(Run, u64)>,
}

impl Disk {
    pub(crate) fn new(cost: CostModel) -> Self {
        Self { cost, now_ns: 0, busy_until_ns: 0, on_their_way: Vec::new() }
    }

    /// Begins to read.
    pub(crate) fn read(&mut self, request: &[Run]) {
        let pages: u64 = request.iter().map(|run| u64::from(run.pages)).sum();
        let transfer_ns = (pages as f64 * self.cost.major_page_ns) as u64;
        self.transfer(transfer_ns);
        let there_ns = self.busy_until_ns.saturating_add(self.cost.major_request_ns as u64);
        let now_ns = self.now_ns;
        self.on_their_way.retain(|(_, there_ns)| *there_ns > now_ns);
        self.on_their_way.extend(request.iter().map(|run| (*run, there_ns)));
    }

    /// Begins to write pages back.
    pub(crate) fn write(&mut self, pages: u64) {
        let transfer_ns = (pages as f64 * self.cost.write_back_ns) as u64;
        self.transfer(transfer_ns);
    }

    /// Time that does not fit 64 bits, 584 years, is the most that does.
    fn transfer(&mut self, ns: u64) {
        self.busy_until_ns = self.busy_until_ns.max(self.now_ns).saturating_add(ns);
    }

    /// Waits for a page, if it is on its way; whether it was.
    pub(crate) fn wait_for(&mut self, place: Place) -> bool {
        let waited = self.on_their_way.iter().filter(|(run, _)| run.contains(place));
        let there_ns = waited.map(|(_, there_ns)| *there_ns).max();
        let has_to_wait = there_ns > Some(self.now_ns);
        self.now_ns = self.now_ns.max(there_ns.unwrap_or(0));
        has_to_wait
    }

    /// A message to the manager, and its answer.
    pub(crate) fn exchange_message(&mut self) {
        self.now_ns = self.now_ns.saturating_add(self.cost.minor_fault_ns as u64);
    }
}
