//! The live engine: managed page caches for unmodified programs.
#![deny(unsafe_code)]
