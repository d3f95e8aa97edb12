//! The live engine, and the library that hosts it in a program of one's own: see [`library`].
//!
//! [`Engine`](engine::Engine) is one managed page cache: it answers the faults of address spaces
//! that map its files, under a budget, as the brain (`pagekeeper-frames`) decides. It speaks to the
//! machine through a [`Port`](port::Port). It has two hosts: the manager process of unmodified
//! programs ([`launch`] has a run's course, [`manager`] what programs ask for, [`live`] the kernel,
//! `standby` what is left to it for now, `heaps` programs' own memory), and the library, in process.
//! Both may keep pages [`compressed`].
#![deny(unsafe_code)]

pub mod compressed;
pub mod engine;
mod heaps;
pub mod launch;
pub mod library;
pub mod live;
pub mod manager;
pub mod port;
mod standby;
