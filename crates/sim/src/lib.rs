//! Replays reference strings through policies and predicts faults and time.
#![deny(unsafe_code)]
