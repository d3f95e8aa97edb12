//! Mapped regions of the library, served by a thread and in the SIGBUS handler. Where the kernel or
//! the user's rights lack something, a test says so and is skipped.

mod buffers;
mod caches;
mod children;
mod copies;
mod costs;
#[path = "../library_model/mod.rs"]
mod library_model;
mod roles;
mod threads;
mod vectors;

use library_model::PAGE;
use pagekeeper::library::{Builder, Cache, FaultPath, PolicySpec, Region, SamplingShare};
use std::sync::atomic::{AtomicU8, Ordering};

const MAPPED: [FaultPath; 2] = [FaultPath::Thread, FaultPath::Inline];
/// Bytes in a page of a cache.
const SIZES: [usize; 3] = [PAGE, 64 << 10, 2 << 20];
const TINY_PAGES: usize = 24;
const EFAULT: i32 = 14;

fn cache(path: FaultPath, policy: &str) -> Option<Cache> {
    sized(path, policy, PAGE)
}

/// Whether pages of a size can be copied at the first store: no large ones before Linux 6.4.
fn can_copy(page: usize) -> bool {
    page == PAGE || pagekeeper_sys::doctor::maps_protected()
}

/// A cache of a few pages of a size.
fn sized(path: FaultPath, policy: &str, page: usize) -> Option<Cache> {
    built(path, policy, page, |builder| builder)
}

fn sampled(path: FaultPath, policy: &str, share: SamplingShare) -> Option<Cache> {
    built(path, policy, PAGE, |builder| builder.sampling(share))
}

fn built(
    path: FaultPath,
    policy: &str,
    page: usize,
    more: impl FnOnce(Builder) -> Builder,
) -> Option<Cache> {
    let policy = PolicySpec::parse(policy).unwrap();
    let frames = if page < 1 << 20 { TINY_PAGES } else { 9 };
    let builder = Cache::builder((frames * page) as u64).page_bytes(page as u64);
    let builder = builder.policy(policy).fault_path(path).write_back_period(None);
    match more(builder).build() {
        Ok(cache) => Some(cache),
        Err(error) => {
            println!("skipped: no {path:?} fault path here ({error}); see `pagekeeper doctor`");
            None
        }
    }
}

/// A byte of a region, which others may change meanwhile.
fn cell(region: &Region, at: usize) -> &AtomicU8 {
    assert!(at < region.len());
    // SAFETY: inside the region, which lives as long as the reference; reached by atomics only.
    unsafe { AtomicU8::from_ptr(region.as_mut_ptr().add(at)) }
}

fn load(region: &Region, at: usize) -> u8 {
    cell(region, at).load(Ordering::Relaxed)
}

fn store(region: &Region, at: usize, value: u8) {
    cell(region, at).store(value, Ordering::Relaxed);
}
