//! One file per policy. A new one is added here twice: its module, and its row in the table.

pub mod acfc;
pub mod agemru;
pub mod aging;
pub mod arc;
pub mod auto;
pub mod cacheus;
pub mod car;
pub mod clock;
pub mod clockpro;
pub mod decay;
pub mod dias;
pub mod eelru;
pub mod fifo;
pub mod fifo2;
pub mod hyperbolic;
pub mod lecar;
pub mod lfu;
pub mod lhd;
pub mod lirs;
pub mod lrfu;
pub mod lru;
pub mod lru_k;
pub mod mfu;
pub mod mglru;
pub mod mq;
pub mod mru;
pub mod opt;
pub mod opt_wb;
pub mod purelru;
pub mod random;
pub mod rr;
pub mod s3fifo;
pub mod seq;
pub mod sieve;
pub mod slru;
pub mod two_q;
pub mod ubm;
pub mod wtinylfu;

use crate::registry::PolicyInfo;

/// The registry's rows, in the order people see them.
pub(crate) static ALL: &[PolicyInfo] = &[
    lru::INFO,
    clock::INFO,
    fifo2::INFO,
    fifo::INFO,
    mru::INFO,
    two_q::INFO,
    arc::INFO,
    car::INFO,
    slru::INFO,
    mq::INFO,
    seq::INFO,
    eelru::INFO,
    acfc::INFO,
    lru_k::INFO,
    lfu::INFO,
    lrfu::INFO,
    mfu::INFO,
    aging::INFO,
    decay::INFO,
    purelru::INFO,
    agemru::INFO,
    rr::INFO,
    random::INFO,
    dias::INFO,
    sieve::INFO,
    s3fifo::INFO,
    lirs::INFO,
    wtinylfu::INFO,
    clockpro::INFO,
    lecar::INFO,
    cacheus::INFO,
    mglru::INFO,
    hyperbolic::INFO,
    auto::INFO,
    lhd::INFO,
    ubm::INFO,
    ubm::PLUS_INFO,
    opt::INFO,
    opt_wb::INFO,
];
