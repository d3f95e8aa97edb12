//! The library.

mod library_model;
mod library_tests;

use pagekeeper::library::Translation;

const TRANSLATION: Translation = Translation::Mapped;
