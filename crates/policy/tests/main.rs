//! Policies against models of their papers, and all of them against the contract.
//!
//! One program for all files: what they share is compiled and linked once.

mod conformance;
mod model;
mod models;
mod models_ages;
mod models_modern;
mod models_struct;
mod registry;
