//! The library and its managers: over a mapping, and again over the other translations.

mod library_model;
mod library_tests;
mod library_translations;
mod managers_tests;
