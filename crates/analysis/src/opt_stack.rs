//! OPT stack distances, one after the other.

/// No further reference.
const NEVER: u32 = u32::MAX;
/// Pages looked at or passed over together.
const BLOCK: usize = 128;

/// The stack of OPT (Mattson, Gecsei, Slutz and Traiger 1970, "Optimum replacement"): a page is at
/// depth *d* if it is in an optimal cache of *d* frames and not in one of *d* − 1.
///
/// A page referenced goes on top. The old top sinks: at each depth the page needed sooner stays and
/// the other goes on down, until the gap that the referenced page left is filled.
///
/// Pages are known by the position of their next reference, which no two share; the page referenced
/// now is the one whose position is now. Blocks of the stack whose pages are all needed sooner than
/// the sinking one are passed over, so a reference costs its depth / `BLOCK` at best and its depth
/// at worst; [`steps`](Self::steps) counts.
#[derive(Clone, Debug, Default)]
pub struct OptStack {
    next_use: Vec<u32>,
    /// Per block of `next_use`: the soonest and the latest.
    soonest: Vec<u32>,
    latest: Vec<u32>,
    steps: u64,
}

impl OptStack {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// The reference at position `now`, to a page whose next reference is at `next_use` (`u32::MAX`
    /// for none). Its depth until now, from 1 for the top; `None` the first time.
    ///
    /// Positions start at 0 and come one by one, and `next_use` is what really comes.
    pub fn reference(&mut self, now: u32, next_use: u32, is_first: bool) -> Option<u32> {
        let place = if is_first {
            self.push_unused();
            self.next_use.len() - 1
        } else {
            self.find(now)
        };
        if place == 0 {
            self.next_use[0] = next_use;
            self.measure(0);
            return (!is_first).then_some(1);
        }
        let mut sinking = std::mem::replace(&mut self.next_use[0], next_use);
        let last_block = place / BLOCK;
        for block in 0..=last_block {
            self.steps += 1;
            let start = block * BLOCK;
            let first = if block == 0 { 1 } else { start };
            if block == last_block {
                sinking = sink(&mut self.next_use[first..place], sinking);
                self.next_use[place] = sinking;
                self.steps += BLOCK as u64;
                self.measure(block);
            } else if block == 0 || self.latest[block] > sinking {
                sinking = sink(&mut self.next_use[first..start + BLOCK], sinking);
                self.steps += BLOCK as u64;
                self.measure(block);
            }
        }
        (!is_first).then_some(place as u32 + 1)
    }

    /// Work done so far, in pages and blocks looked at.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    fn push_unused(&mut self) {
        self.next_use.push(NEVER);
        if self.next_use.len() > self.soonest.len() * BLOCK {
            self.soonest.push(NEVER);
            self.latest.push(0);
        }
    }

    fn find(&mut self, now: u32) -> usize {
        let block = self.soonest.iter().position(|soonest| *soonest == now);
        let block = block.expect("a page referenced before is on the stack");
        self.steps += block as u64 / 8;
        let start = block * BLOCK;
        let place = self.next_use[start..].iter().position(|next_use| *next_use == now);
        start + place.expect("the block's soonest page is in it")
    }

    fn measure(&mut self, block: usize) {
        let end = self.next_use.len().min((block + 1) * BLOCK);
        let pages = &self.next_use[block * BLOCK..end];
        self.soonest[block] = pages.iter().copied().min().unwrap_or(NEVER);
        self.latest[block] = pages.iter().copied().max().unwrap_or(0);
    }
}

/// Passes a page down: at each place the one needed sooner stays. The one that comes out.
fn sink(places: &mut [u32], mut sinking: u32) -> u32 {
    for place in places {
        let stays = sinking.min(*place);
        sinking = sinking.max(*place);
        *place = stays;
    }
    sinking
}
