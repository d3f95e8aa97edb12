//! Figures of reference strings and policies.
//!
//! 1. [`Report::make`] analyses traces and makes [`Figure`]s: a title, a sentence that says how to
//!    read it, the data as a table, and how to draw it.
//! 2. [`Report::html`] puts all into one file that needs no network; [`Stills`] draws one figure as
//!    SVG or PNG; [`Figure::csv`] and `serde` give the data.
//!
//! Drawing is Apache ECharts' throughout, in the browser or in an embedded JavaScript interpreter,
//! from one description (`web/figure.js`).
#![deny(unsafe_code)]

mod figure;
mod figures;
mod html;
mod kind;
mod report;
mod still;

pub use figure::{Axis, Chart, Figure, Line, Lines, Map};
pub use html::HtmlError;
pub use kind::{Kind, UnknownKind};
pub use report::{Facts, Options, Report, Section, Trace};
pub use still::{DrawError, Stills};

/// Apache ECharts, the parts used; see THIRD-PARTY.md.
const ECHARTS: &str = include_str!("../assets/echarts.min.js");
/// From a figure to ECharts options.
const FIGURE: &str = include_str!("../web/figure.js");
