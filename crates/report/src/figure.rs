//! A figure: its data, and how to draw it.
use serde::Serialize;
use serde_json::Value;

use crate::Kind;

/// Something to look at, with its data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Unlike any other in the report; letters, digits and hyphens. Names files.
    pub id: String,
    /// What kind it is.
    pub kind: Kind,
    /// What it shows, as a heading.
    pub title: String,
    /// How to read it.
    pub reading: String,
    /// How to draw it; a table is not drawn.
    pub chart: Option<Chart>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The data: numbers, text, or null where there is nothing.
    pub rows: Vec<Vec<Value>>,
}

impl Figure {
    /// The data with its column names, as CSV.
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let rows = self.rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>());
        for row in std::iter::once(self.columns.clone()).chain(rows) {
            writer.write_record(row).expect("memory takes every record of equal length");
        }
        let bytes = writer.into_inner().expect("memory is always flushed");
        String::from_utf8(bytes).expect("made of strings")
    }
}

/// How a figure is drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Chart {
    /// Lines over one axis.
    Lines(Lines),
    /// Cells in shades of their counts, or in the colours of classes.
    Map(Map),
}

/// Lines over one axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lines {
    /// The axis that they share.
    pub x: Axis,
    /// The axis on the left.
    pub y: Axis,
    /// The axis on the right, for lines in another unit.
    pub y_right: Option<Axis>,
    /// The lines.
    pub series: Vec<Line>,
    /// Whether they stand on each other.
    pub stacked: bool,
    /// Whether values hold until the next.
    pub steps: bool,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Axis {
    /// What it measures, and in what.
    pub name: String,
    /// For a shared axis: the column with its values.
    pub column: Option<String>,
    /// Whether equal distances are equal ratios.
    pub scale: Option<&'static str>,
    /// Where it ends, if not at the data.
    pub max: Option<f64>,
}

impl Axis {
    /// An axis of equal steps.
    pub(crate) fn linear(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// An axis of equal ratios.
    pub(crate) fn log(name: impl Into<String>) -> Self {
        Self { scale: Some("log"), ..Self::linear(name) }
    }

    /// The same, with values from a column.
    pub(crate) fn of(self, column: &str) -> Self {
        Self { column: Some(column.to_owned()), ..self }
    }

    /// From 0 to 1.
    pub(crate) fn share(name: impl Into<String>) -> Self {
        Self { max: Some(1.0), ..Self::linear(name) }
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What it is.
    pub label: String,
    /// The column with its values.
    pub column: String,
    /// Whether it is measured on the right.
    pub right: bool,
}

impl Line {
    /// A line by its column's name.
    pub(crate) fn named(name: &str) -> Self {
        Self { label: name.to_owned(), column: name.to_owned(), right: false }
    }
}

/// Cells. The rows of the data are column, row, and count or class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map {
    /// What goes right.
    pub x: Axis,
    /// What goes up.
    pub y: Axis,
    /// What each column starts with.
    pub x_names: Vec<Value>,
    /// What each row starts with.
    pub y_names: Vec<Value>,
    /// What the shade counts.
    pub value: String,
    /// The count with the strongest shade: the highest on this map, or on those beside it.
    pub most: u64,
    /// Rows whose names are worth showing; any, if there is no list.
    pub y_marks: Option<Vec<u32>>,
    /// Names of the classes, if the third value is one.
    pub classes: Option<Vec<String>>,
}

/// Gives the maps of one kind the same shades, so that they can be compared.
pub(crate) fn share_shades(figures: &mut [Figure], kind: crate::Kind) {
    let maps = || figures.iter().filter(|figure| figure.kind == kind);
    let counts = maps().flat_map(|figure| &figure.rows).filter_map(|row| row[2].as_u64());
    let highest = counts.max().unwrap_or(1);
    for figure in figures.iter_mut().filter(|figure| figure.kind == kind) {
        if let Some(Chart::Map(map)) = &mut figure.chart {
            map.most = highest;
        }
    }
}

/// A number to five digits, which is more than can be seen, and short.
pub(crate) fn number(value: f64) -> Value {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { 0.into() } else { Value::Null };
    }
    let scale = 10_f64.powi(4 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        (rounded as i64).into()
    } else {
        // Dividing by a power of ten may leave a tail of digits; the shortest text has none.
        format!("{rounded:.*}", (scale.log10().max(0.0)) as usize + 1)
            .parse::<f64>()
            .map_or(Value::Null, Value::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let text = |value: f64| number(value).to_string();
        assert_eq!(text(0.123456789), "0.12346");
        assert_eq!(text(1234567.8), "1234600");
        assert_eq!(text(3.0), "3");
        assert_eq!(text(0.0), "0");
        assert_eq!(text(-2.5), "-2.5");
        assert_eq!(text(0.00000123456), "1.2346e-6");
        assert_eq!(text(f64::NAN), "null");
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let figure = Figure {
            id: "x".into(),
            kind: Kind::Notes,
            title: String::new(),
            reading: String::new(),
            chart: None,
            columns: vec!["a".into(), "b".into()],
            rows: vec![vec![1.into(), "x, \"y\"".into()], vec![Value::Null, 0.5.into()]],
        };
        assert_eq!(figure.csv(), "a,b\n1,\"x, \"\"y\"\"\"\n,0.5\n");
    }
}
