//! The library for C: [`pagekeeper::library`] behind opaque handles and functions named `pk_…`.
//!
//! `include/pagekeeper.h` is made of this crate: the doc comments here are written for it, and its
//! head has what holds for all functions. A handle is taken as `Option<&T>`, for which Rust and C
//! agree on the representation: a pointer to const that may be null. So what is unsafe about C's
//! pointers stands in one module, `raw.rs`; elsewhere `unsafe` is only that a function has a name
//! that C can link.
#![allow(non_camel_case_types, reason = "the names are C's")]

mod cache;
mod error;
mod layer;
mod pin;
mod raw;
mod region;
mod segment;
mod stats;
mod store;

pub use cache::*;
pub use error::*;
pub use layer::*;
pub use pin::*;
pub use region::*;
pub use segment::*;
pub use stats::*;
pub use store::*;

/// Handles are used by any threads at once.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<pk_cache>();
    shared::<pk_segment>();
    shared::<pk_layer>();
    shared::<pk_pin>();
    shared::<pk_region>();
};
