//! All figures in one file for a browser.
use askama::Template;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::figures::{capital, grouped, size};
use crate::{ECHARTS, FIGURE, Facts, Figure, Report, Section};

const PAGE: &str = include_str!("../web/page.js");
const STYLE: &str = include_str!("../web/page.css");

/// Why a report could not be put into a file.
#[derive(Debug, thiserror::Error)]
#[error("the report cannot be written as HTML: {0}")]
pub struct HtmlError(#[from] askama::Error);

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: String,
    version: &'static str,
    sections: Vec<PageSection<'a>>,
    style: &'static str,
    script: String,
    script_hash: String,
    data: String,
}

struct PageSection<'a> {
    name: &'a str,
    anchor: String,
    facts: Vec<(&'static str, String)>,
    contents: Vec<Contents<'a>>,
    figures: Vec<PageFigure<'a>>,
}

/// The figures of a kind, in the table of contents.
struct Contents<'a> {
    title: String,
    /// Where each is, and what it is called beside the others; one alone is called by the title.
    links: Vec<(&'a str, String)>,
}

struct PageFigure<'a> {
    id: &'a str,
    title: &'a str,
    reading: &'a str,
    table: Option<Table>,
}

/// A figure that is not drawn.
struct Table {
    heads: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

struct Cell {
    text: String,
    is_text: bool,
}

impl Report {
    /// One HTML file with everything in it: figures, data, the code that draws them.
    ///
    /// What traces and policies say is escaped, and the page runs no code but its own.
    ///
    /// # Errors
    /// If the template fails, which it does not.
    pub fn html(&self) -> Result<String, HtmlError> {
        let names: Vec<&str> = self.sections.iter().map(|section| section.name.as_str()).collect();
        let script = format!("{ECHARTS}\n{FIGURE}\n{PAGE}");
        let figures: Vec<&Figure> = self.figures().collect();
        let data = serde_json::to_string(&figures).expect("text keys and finite numbers");
        let page = Page {
            title: format!("Pagekeeper: {}", names.join(", ")),
            version: env!("CARGO_PKG_VERSION"),
            sections: self.sections.iter().enumerate().map(section).collect(),
            style: STYLE,
            script_hash: STANDARD.encode(Sha256::digest(script.as_bytes())),
            script,
            // Nothing in the data can end its element.
            data: data.replace('<', "\\u003c"),
        };
        Ok(page.render()?)
    }
}

fn section((place, section): (usize, &Section)) -> PageSection<'_> {
    let figures = section.figures.iter().map(|figure| PageFigure {
        id: &figure.id,
        title: &figure.title,
        reading: &figure.reading,
        table: figure.chart.is_none().then(|| table(figure)),
    });
    PageSection {
        name: &section.name,
        anchor: format!("trace-{}", place + 1),
        facts: facts(&section.facts),
        contents: contents(&section.figures),
        figures: figures.collect(),
    }
}

fn contents(figures: &[Figure]) -> Vec<Contents<'_>> {
    let groups = figures.chunk_by(|a, b| a.kind == b.kind).map(|group| {
        let name = group[0].kind.name();
        let called = |figure: &Figure| {
            let behind = figure.id.split_once(name).map_or("", |(_, behind)| behind);
            behind.trim_matches('-').to_owned()
        };
        Contents {
            title: capital(group[0].kind.what()),
            links: group.iter().map(|figure| (figure.id.as_str(), called(figure))).collect(),
        }
    });
    groups.collect()
}

fn facts(facts: &Facts) -> Vec<(&'static str, String)> {
    let Facts { references, writes, pages, page_bytes, segments, warm_refs } = *facts;
    let mut list = vec![
        ("references", grouped(references)),
        ("of them writes", grouped(writes)),
        ("distinct pages", grouped(pages.into())),
        ("page size", size(page_bytes.into())),
        ("memory for all of them", size(u64::from(pages) * u64::from(page_bytes))),
        ("files", grouped(segments.into())),
    ];
    if warm_refs > 0 {
        list.push(("references to warm up", grouped(warm_refs)));
    }
    list
}

fn table(figure: &Figure) -> Table {
    let is_text =
        |column: usize| figure.rows.iter().any(|row| matches!(row[column], Value::String(_)));
    let cell = |(column, value): (usize, &Value)| {
        let text = match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            Value::Number(number) => match number.as_u64() {
                Some(whole) => grouped(whole),
                None => number.to_string(),
            },
            other => other.to_string(),
        };
        Cell { text, is_text: is_text(column) }
    };
    let heads = figure.columns.iter().enumerate();
    let heads = heads.map(|(column, name)| Cell { text: name.clone(), is_text: is_text(column) });
    let rows = figure.rows.iter().map(|row| row.iter().enumerate().map(cell).collect());
    Table { heads: heads.collect(), rows: rows.collect() }
}
