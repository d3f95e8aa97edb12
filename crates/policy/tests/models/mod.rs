//! Each policy against a slow, obvious model of it: the same victims for the same calls.
//!
//! The model of a policy and what is asked of it stand in the file that is named as the policy is; what
//! is asked of several, in `several`. `comparison` plays the same calls to both; here are tools that
//! several files have.

mod acfc;
mod agemru;
mod aging;
mod arc;
mod cacheus;
mod car;
mod clock;
mod clockpro;
mod comparison;
mod eelru;
mod fifo;
mod fifo2;
mod hyperbolic;
mod lecar;
mod lfu;
mod lhd;
mod lirs;
mod lrfu;
mod lru;
mod lru_k;
mod mfu;
mod mglru;
mod mq;
mod mru;
mod queue;
mod random;
mod rr;
mod s3fifo;
mod seq;
mod several;
mod sieve;
mod slru;
mod two_q;
mod uses;
mod wtinylfu;

use std::collections::{BTreeMap, VecDeque};

use pagekeeper_policy::{Admission, Checked, Page, Place, Policy, PolicySpec, Segment};

use comparison::{Model, compare, config, events, events_in_runs};

/// Takes the page out of the queue, if it is there.
fn drop_page(queue: &mut VecDeque<u32>, page: u32) -> bool {
    let before = queue.len();
    queue.retain(|other| *other != page);
    queue.len() < before
}

/// Makes `page` the last to be forgotten, if it is remembered.
fn spare(remembered: &mut VecDeque<u32>, page: Option<u32>) -> bool {
    let Some(page) = page.filter(|page| drop_page(remembered, *page)) else { return false };
    remembered.push_back(page);
    true
}

/// The first key from `hand` on, or from the start.
fn next_key<V>(pages: &BTreeMap<u32, V>, hand: u32) -> Option<u32> {
    pages.range(hand..).next().or(pages.first_key_value()).map(|(page, _)| *page)
}

/// Tells a policy that ten pages each are a segment, where the harness says that all are of one.
struct InTens<P>(P);

impl<P: Policy> Policy for InTens<P> {
    pagekeeper_policy::pass_on! { this => this.0;
        wants_places admitted referenced removed victim resized resident
    }

    fn placed(&mut self, page: Page, place: Place) {
        let segment = Segment(page.0 / 10);
        self.0.placed(page, Place { segment, ..place });
    }
}

/// Of policies that draw, and of their models.
const SEED: u64 = 7;

fn build(spec: &str, frames: u32) -> Box<dyn Policy> {
    PolicySpec::parse(spec).unwrap().build(frames, SEED).unwrap()
}

/// Faults of demand paging from cold.
fn faults(policy: impl Policy, frames: u32, references: impl IntoIterator<Item = u32>) -> u32 {
    let mut policy = Checked::new(policy, frames);
    let mut faults = 0;
    for page in references.into_iter().map(Page) {
        if policy.is_resident(page) {
            policy.referenced(page);
            continue;
        }
        faults += 1;
        if policy.resident() == frames {
            policy.victim(Some(page));
        }
        policy.admitted(page, Admission::Demand);
    }
    faults
}

/// Another policy as the model.
struct AsModel<P> {
    policy: P,
    resident: Vec<u32>,
}

impl<P: Policy> AsModel<P> {
    fn new(policy: P) -> Self {
        Self { policy, resident: Vec::new() }
    }
    fn gone(&mut self, page: u32) {
        self.resident.retain(|other| *other != page);
    }
}

impl<P: Policy> Model for AsModel<P> {
    fn admitted(&mut self, page: u32, how: Admission) {
        self.policy.admitted(Page(page), how);
        self.resident.push(page);
    }
    fn referenced(&mut self, page: u32) {
        self.policy.referenced(Page(page));
    }
    fn removed(&mut self, page: u32) {
        self.policy.removed(Page(page));
        self.gone(page);
    }
    fn victim(&mut self, incoming: Option<u32>) -> Option<u32> {
        let page = self.policy.victim(incoming.map(Page))?.0;
        self.gone(page);
        Some(page)
    }
    fn resident(&self) -> Vec<u32> {
        self.resident.clone()
    }
}
