//! Reference strings: the trace format, its importers and exporters.
#![deny(unsafe_code)]
