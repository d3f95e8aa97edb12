//! What the harness and the programs under test share.

pub mod beside;
pub mod contest;
pub mod disk;
pub mod domains;
pub mod hashed;
pub mod heap;
pub mod hipec;
pub mod hits;
pub mod library;
pub mod live;
pub mod machine;
pub mod overhead;
pub mod pattern;
pub mod peers;
pub mod predict;
pub mod reach;
pub mod run;
pub mod sampling;
pub mod simulator;
pub mod suite;
pub mod swap;
pub mod table;
pub mod tables;
pub mod translation;
