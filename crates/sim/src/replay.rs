//! Exact demand paging: one policy, one memory size, every reference seen.
use pagekeeper_policy::{Admission, Hint, Page, Place, Policy, Segment};

use pagekeeper_trace::ExtentEvent;

use crate::heap::WrittenPages;
use crate::{Counts, HeapChange, References, SimError};

const RESIDENT: u8 = 1;
const DIRTY: u8 = 2;
/// Was resident before, now or not.
const SEEN: u8 = 4;
/// Its content is on storage: without this, a page of a heap is zeros.
const STORED: u8 = 8;

/// A reference that was not a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Position of the reference in the string, from 0.
    pub position: usize,
    /// The page that was needed.
    pub page: Page,
    /// Whether it is the first time.
    pub is_cold: bool,
    /// The page that left for it; none while frames are free.
    pub victim: Option<Page>,
}

/// Replays the references through a new policy in `frames` frames, and tells `on_fault` of every
/// fault. Generic over the policy, so that a known type's hits are inlined; `Box<dyn Policy>` works
/// too.
///
/// A fault on a page that the reference writes brings it in dirty and is no write fault besides.
/// Of a policy's hints only those for write-back are followed: nothing is fetched ahead here, and
/// every touch is seen.
///
/// # Errors
/// [`SimError::NoFrames`] for none; [`SimError::BrokenPolicy`] if the policy breaks its contract.
pub fn replay<P: Policy>(
    references: &References,
    policy: &mut P,
    frames: u32,
    on_fault: impl FnMut(Fault),
) -> Result<Counts, SimError> {
    replay_warm(references, policy, frames, 0, on_fault)
}

/// [`replay`] of a warm cache: counts, and tells of, what happens from reference `warm_refs` on.
/// Those before it only fill the frames. A fault is cold, or dirty pages are written back,
/// whenever the page was first resident or written.
///
/// # Errors
/// As [`replay`].
pub fn replay_warm<P: Policy>(
    references: &References,
    policy: &mut P,
    frames: u32,
    warm_refs: usize,
    mut on_fault: impl FnMut(Fault),
) -> Result<Counts, SimError> {
    if frames == 0 {
        return Err(SimError::NoFrames);
    }
    let mut pages = Pages {
        places: policy.wants_places().then_some(references),
        tells_dirty: policy.wants_dirty(),
        takes_hints: policy.gives_hints(),
        hints: Vec::new(),
        state: initial(references),
        written: WrittenPages::of(references),
        references,
        changes: references.heap_changes(),
        free_frames: frames,
        counts: Counts::default(),
    };
    let warm_refs = warm_refs.min(references.len());
    pages.go_on(policy, 0, warm_refs, |_| ())?;
    pages.counts = Counts::default();
    pages.go_on(policy, warm_refs, references.len(), &mut on_fault)?;
    let is_left = |page: &usize| {
        let segment = references.place(Page(*page as u32)).0;
        pages.state[*page] & DIRTY != 0 && !references.segments()[segment].is_heap
    };
    let dirty_at_end = (0..pages.state.len()).filter(is_left).count() as u64;
    let counted = &references.packed()[warm_refs..];
    let references_total = counted.len() as u64;
    let Counts { faults, cold_faults, zero_faults, .. } = pages.counts;
    Ok(Counts {
        references: references_total,
        writes: counted.iter().map(|packed| u64::from(packed & 1)).sum(),
        hits: references_total - faults,
        refaults: faults - cold_faults,
        dirty_at_end,
        zero_pages: zero_faults,
        read_requests: faults - zero_faults,
        pages_read: faults - zero_faults,
        ..pages.counts
    })
}

fn initial(references: &References) -> Vec<u8> {
    let pages = (0..references.pages()).map(Page);
    pages.map(|page| if references.begins_as_zeros(page) { 0 } else { STORED }).collect()
}

struct Pages<'a> {
    references: &'a References,
    /// Those still to come.
    changes: &'a [HeapChange],
    /// Where pages live, for a policy that wants to know.
    places: Option<&'a References>,
    /// Whether the policy wants to know which pages are dirty.
    tells_dirty: bool,
    takes_hints: bool,
    hints: Vec<Hint>,
    state: Vec<u8>,
    written: WrittenPages,
    free_frames: u32,
    counts: Counts,
}

impl Pages<'_> {
    /// References from one position to another, and what became of heaps meanwhile.
    fn go_on<P: Policy>(
        &mut self,
        policy: &mut P,
        mut from: usize,
        to: usize,
        mut on_fault: impl FnMut(Fault),
    ) -> Result<(), SimError> {
        while let Some((change, later)) = self.changes.split_first()
            && change.position <= to
        {
            let packed = &self.references.packed()[from..change.position];
            self.references(policy, packed, from, &mut on_fault)?;
            self.change(policy, change);
            (from, self.changes) = (change.position, later);
        }
        self.references(policy, &self.references.packed()[from..to], from, on_fault)
    }

    fn change<P: Policy>(&mut self, policy: &mut P, change: &HeapChange) {
        for page in change.numbers.iter().map(|number| Page(*number)) {
            if self.state[page.index()] & RESIDENT != 0 {
                policy.removed(page);
                self.free_frames += 1;
            }
            self.state[page.index()] = SEEN;
        }
        if change.event != ExtentEvent::Stored {
            return;
        }
        for page in self.written.take(change) {
            self.clean(policy, page);
        }
    }

    /// Writes a page back, if it is resident and dirty.
    fn clean<P: Policy>(&mut self, policy: &mut P, page: Page) {
        let state = self.state.get_mut(page.index());
        let Some(state) = state.filter(|it| **it & (RESIDENT | DIRTY) == RESIDENT | DIRTY) else {
            return;
        };
        *state = *state & !DIRTY | STORED;
        self.counts.write_backs += 1;
        if self.tells_dirty {
            policy.cleaned(page);
        }
    }

    #[inline]
    fn references<P: Policy>(
        &mut self,
        policy: &mut P,
        packed: &[u32],
        first_position: usize,
        mut on_fault: impl FnMut(Fault),
    ) -> Result<(), SimError> {
        let mut write_faults = 0;
        for (offset, packed) in packed.iter().enumerate() {
            let page = Page(packed >> 1);
            let write = (packed & 1) as u8 * DIRTY;
            let state = &mut self.state[page.index()];
            if *state & RESIDENT != 0 {
                let dirtied = write & !*state;
                write_faults += u64::from(dirtied);
                *state |= write;
                if dirtied != 0 {
                    self.written.add(self.references, page);
                    if self.tells_dirty {
                        policy.dirtied(page);
                    }
                }
                policy.referenced(page);
            } else {
                on_fault(self.fault(policy, first_position + offset, page, write)?);
            }
            if self.takes_hints {
                self.write_back(policy);
            }
        }
        self.counts.write_faults += write_faults / u64::from(DIRTY);
        Ok(())
    }

    fn fault<P: Policy>(
        &mut self,
        policy: &mut P,
        position: usize,
        page: Page,
        write: u8,
    ) -> Result<Fault, SimError> {
        if let Some(references) = self.places {
            let (segment, index) = references.place(page);
            policy.placed(page, Place { segment: Segment(segment as u32), index });
        }
        let victim = if self.free_frames > 0 {
            self.free_frames -= 1;
            None
        } else {
            let victim = policy.victim(Some(page));
            self.evict(victim)
                .map_err(|what| SimError::BrokenPolicy { position: position as u64, what })?;
            victim
        };
        let state = &mut self.state[page.index()];
        let is_cold = *state & SEEN == 0;
        self.counts.zero_faults += u64::from(*state & STORED == 0);
        *state = RESIDENT | SEEN | write | *state & STORED;
        self.counts.faults += 1;
        self.counts.cold_faults += u64::from(is_cold);
        if write != 0 {
            self.written.add(self.references, page);
            if self.tells_dirty {
                policy.dirtied(page);
            }
        }
        policy.admitted(page, Admission::Demand);
        Ok(Fault { position, page, is_cold, victim })
    }

    /// Writes the pages back that the policy wants written.
    fn write_back<P: Policy>(&mut self, policy: &mut P) {
        let mut hints = std::mem::take(&mut self.hints);
        policy.take_hints(&mut hints);
        for hint in hints.drain(..) {
            if let Hint::Flush(page) = hint {
                self.clean(policy, page);
            }
        }
        self.hints = hints;
    }

    fn evict(&mut self, victim: Option<Page>) -> Result<(), String> {
        let page = victim.ok_or("it has no victim though every frame holds a page")?;
        let state = self
            .state
            .get_mut(page.index())
            .filter(|state| **state & RESIDENT != 0)
            .ok_or_else(|| format!("its victim, page {}, is not resident", page.0))?;
        self.counts.evictions += 1;
        let is_dirty = *state & DIRTY != 0;
        self.counts.write_backs += u64::from(is_dirty);
        *state = SEEN | if is_dirty { STORED } else { *state & STORED };
        Ok(())
    }
}
