//! Output that people and programs read.

use crate::failure::Failure;
use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};

/// For whom the output is, where both are possible.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Writes to stdout. A reader that has gone away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Writes to stdout what may be no text.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    print_if_read(bytes).map(drop)
}

/// The same, and whether somebody is there who reads it.
pub(crate) fn print_if_read(bytes: &[u8]) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::write("to standard output", &error)),
    }
}

/// A message on stderr, in one piece: this process may end while a thread has something to say. That it
/// cannot be written must not change what a program's user sees.
pub(crate) fn say(text: &str) {
    let _ = io::stderr().write_all(format!("pagekeeper: {text}\n").as_bytes());
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print(&json(value))
}

/// A value as indented JSON and a line end.
pub(crate) fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value);
    text.expect("our values have text keys and finite numbers") + "\n"
}

/// Prints lines of comma-separated values under their headings; all of one length.
pub(crate) fn print_csv(
    headings: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Result<(), Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let whole = "memory takes every record of equal length";
    writer.write_record(headings).expect(whole);
    for row in rows {
        writer.write_record(row).expect(whole);
    }
    let bytes = writer.into_inner().expect("memory is always flushed");
    print(&String::from_utf8_lossy(&bytes))
}

/// A plain table: the first `left` columns aligned left, the others (numbers) right.
pub(crate) fn table(
    headings: &[&str],
    left: usize,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)));
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if place == 0 { 0 } else { 2 }, 0));
        if place >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.to_string();
    lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Text in which names of files that have control characters (escape sequences, line ends) show them.
fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let shown =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// A count with thin groups of three: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A duration in the unit that suits it: `1.23 s`, `45.6 ms`.
pub(crate) fn duration(ns: f64) -> String {
    match ns {
        ns if ns >= 1e11 => format!("{:.0} s", ns / 1e9),
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.1} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{ns:.0} ns"),
    }
}

/// A share in percent: `12.3%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [12.0, 4500.0, 12.34e6, 1.234e9, 2e11].map(duration),
            ["12 ns", "4.5 µs", "12.3 ms", "1.23 s", "200 s"]
        );
        assert_eq!(percent(0.1234), "12.3%");
    }

    #[test]
    fn tables_are_plain_and_aligned() {
        let rows = [vec!["lru".to_owned(), "7".to_owned()], vec!["x".into(), "1,000".into()]];
        let expected = "policy  faults\nlru          7\nx        1,000\n";
        assert_eq!(table(&["policy", "faults"], 1, rows), expected);
        let named = [vec!["a\u{1b}[31m\nb".to_owned(), "7".to_owned()]];
        assert_eq!(table(&["file", "n"], 1, named), "file            n\na\\u{1b}[31m\\nb  7\n");
    }
}
