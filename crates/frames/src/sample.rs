//! Making touches visible: mapped pages are unmapped again, so that their next touch is a fault.

use crate::brain::{Brain, IN_POLICY, MAPPED, PENDING, STUCK};
use crate::config::{MIN_FRAMES, Sampling};

/// Most pages unmapped at once.
const UNMAP_BATCH_PAGES: u32 = 64;

impl Brain {
    /// Unmaps the pages mapped longest ago, as far as the sampling setting asks for it.
    pub(crate) fn sample(&mut self) {
        let (batch, wanted) = match self.config.sampling {
            Sampling::Off => return,
            Sampling::OnEviction { per_eviction, share_percent } => {
                let limit = self.limit();
                let evicted = self.plan.evict.len() as u32;
                self.unmap_credit =
                    (self.unmap_credit + evicted.saturating_mul(per_eviction)).min(limit);
                let batch = (limit / 64).clamp(1, UNMAP_BATCH_PAGES);
                let target = (u64::from(limit) * u64::from(share_percent) / 100) as u32;
                let unmapped = self.resident - self.mapped.len();
                let wanted = target.saturating_sub(unmapped).min(self.unmap_credit);
                (batch, if wanted >= batch { batch } else { 0 })
            }
            Sampling::Window { mapped_pages } => {
                let batch = (mapped_pages / 8).clamp(1, UNMAP_BATCH_PAGES);
                let over = self.mapped.len().saturating_sub(mapped_pages.max(MIN_FRAMES));
                (batch, if over >= batch { over } else { 0 })
            }
        };
        let exact = matches!(self.config.sampling, Sampling::Window { .. });
        debug_assert!(batch > 0);
        let mut left = wanted;
        // Newcomers stay mapped, wherever they stand in the order: the instruction that needed
        // them may not have finished.
        let mut tries = wanted + self.newcomers.len();
        while left > 0 && tries > 0 {
            tries -= 1;
            let Some(page) = self.mapped.front() else { break };
            if !exact && self.flags[page.index()] & (IN_POLICY | STUCK | PENDING) == 0 {
                self.mapped_links.move_to_back(&mut self.mapped, page);
                continue;
            }
            self.mapped_links.remove(&mut self.mapped, page);
            self.flags[page.index()] &= !MAPPED;
            self.unmap_credit = self.unmap_credit.saturating_sub(1);
            self.counts.unmapped_pages += 1;
            self.plan.unmap.push(page);
            left -= 1;
        }
    }
}
