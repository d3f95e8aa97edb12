//! Memory of a budget that is set aside for something else, and gives way when the budget becomes smaller.

use super::Shared;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Memory of a cache's budget that is set aside: see [`Cache::reserve`].
///
/// [`Cache::reserve`]: crate::library::Cache::reserve
#[derive(Debug)]
pub struct Reserved {
    shared: Weak<Shared>,
    share: Arc<Share>,
}

impl Reserved {
    pub(super) fn new(shared: &Arc<Shared>, share: Arc<Share>) -> Reserved {
        Reserved { shared: Arc::downgrade(shared), share }
    }

    /// How much was asked for, in bytes.
    pub fn bytes(&self) -> u64 {
        self.share.bytes
    }

    /// How much of it there is, in bytes: less where the budget became less than twice of all that is set
    /// aside. What is beyond it is to be given up; listeners of the
    /// [budget](crate::library::Builder::on_budget_change) are told.
    pub fn limit_bytes(&self) -> u64 {
        self.share.limit_bytes.load(Ordering::SeqCst)
    }

    /// What is called when the limit is another, by who changes the budget, with nothing locked.
    pub(crate) fn on_limit(&self, follow: impl Fn() + Send + Sync + 'static) {
        let _ = self.share.follow.set(Box::new(follow));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|shared| shared.process.mark.is_here()) {
            shared.reserved.lock().expect("reserved").remove(&self.share);
            shared.set_aside();
        }
    }
}

/// What one [`Reserved`] has.
pub(super) struct Share {
    bytes: u64,
    limit_bytes: AtomicU64,
    follow: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)
    }
}

/// All that is set aside.
#[derive(Default)]
pub(super) struct Shares {
    bytes: u64,
    all: Vec<Arc<Share>>,
}

impl Shares {
    /// Sets so much aside; none if that is more than half of a budget then.
    pub(super) fn add(&mut self, bytes: u64, budget_bytes: u64) -> Option<Arc<Share>> {
        let all = self.bytes.checked_add(bytes).filter(|all| *all <= budget_bytes / 2)?;
        let limit_bytes = AtomicU64::new(bytes);
        let share = Arc::new(Share { bytes, limit_bytes, follow: OnceLock::new() });
        self.bytes = all;
        self.all.push(share.clone());
        Some(share)
    }

    fn remove(&mut self, share: &Arc<Share>) {
        self.all.retain(|other| !Arc::ptr_eq(other, share));
        self.bytes -= share.bytes;
    }

    /// What is set aside of such a budget: at most half.
    pub(super) fn of(&self, budget_bytes: u64) -> u64 {
        self.bytes.min(budget_bytes / 2)
    }

    /// Each has its part of that. Returns those for whom it is another than before.
    pub(super) fn limit(&self, budget_bytes: u64) -> Vec<Arc<Share>> {
        let of_all = self.of(budget_bytes);
        let is_other = |share: &&Arc<Share>| {
            let part = u128::from(share.bytes) * u128::from(of_all) / u128::from(self.bytes.max(1));
            let part = u64::try_from(part).expect("it is at most what was asked for");
            share.limit_bytes.swap(part, Ordering::SeqCst) != part
        };
        self.all.iter().filter(is_other).cloned().collect()
    }
}

impl Share {
    /// Whoever uses it keeps to the limit from now on, if that was said how.
    pub(super) fn follow(&self) {
        if let Some(follow) = self.follow.get() {
            follow();
        }
    }
}
