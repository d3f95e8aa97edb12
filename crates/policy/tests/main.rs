//! Policies against models of their papers, and all of them against the contract.
//!
//! One program for all files: what they share is compiled and linked once.

mod conformance;
mod models;
mod registry;
