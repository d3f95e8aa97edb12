//! The live engine, and the library that hosts it in a program of one's own: see [`library`].
//!
//! [`Engine`](engine::Engine) is one managed page cache: it answers the faults of address spaces
//! that map its files, under a budget, as the brain (`pagekeeper-frames`) decides. It speaks to the
//! machine through a [`Port`](port::Port). It has two hosts: the manager process of unmodified
//! programs ([`launch`], [`manager`]), and the library, in process.
#![deny(unsafe_code)]

mod around;
mod arrivals;
mod board;
mod ceded;
mod change;
mod chunks;
pub mod compressed;
pub mod core;
mod crew;
mod dispatch;
mod ends;
pub mod engine;
mod errors;
mod events;
mod evict;
mod fault;
mod fetch;
mod file_systems;
mod flush;
mod follow;
mod forks;
mod headroom;
pub mod heap;
mod heaps;
mod hearsay;
mod holder;
mod idle;
mod interject;
mod job;
mod late;
pub mod launch;
mod letgo;
pub mod library;
pub mod live;
mod look;
pub mod manager;
mod mappings;
mod moved;
mod open_pages;
mod outside;
mod overdue;
pub mod overwrites;
mod patience;
mod plain;
pub mod port;
mod privilege;
mod reach;
pub mod recorder;
mod registry;
mod retire;
pub mod scratch;
pub mod selection;
mod server;
mod shortage;
mod slots;
pub mod spaces;
mod spared;
mod standby;
pub mod stats;
pub mod store;
pub mod table;
mod takeover;
mod together;
mod touches;
pub mod transfer;
mod verdict;
mod wanted;
mod watch;
pub mod word;
mod work;
