//! Managers in place of the usual one.

mod library_model;
mod managers_tests;

use pagekeeper::library::Translation;

const TRANSLATION: Translation = Translation::Mapped;
