//! Numbers for people.

use std::fmt;

/// A median, and between which values it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of some values.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Spread { median, min: values[0], max: values[values.len() - 1] }
    }
}

impl fmt::Display for Spread {
    /// `median (min–max)`, with as many decimals as the format asks for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = f.precision().unwrap_or(2);
        write!(f, "{:.p$} ({:.p$}–{:.p$})", self.median, self.min, self.max)
    }
}

/// Prints rows in columns, the first to the left, the others to the right.
pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r[column].chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| {
            if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
    };
    println!("{title}\n");
    println!("{}", line(head.to_vec()));
    let rule = widths.iter().enumerate().map(|(i, w)| match i {
        0 => "-".repeat(w + 2),
        _ => format!("{}:", "-".repeat(w + 1)),
    });
    println!("|{}|", rule.collect::<Vec<_>>().join("|"));
    for row in rows {
        println!("{}", line(row.iter().map(String::as_str).collect()));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(format!("{spread:.1}"), "2.0 (1.0–3.0)");
    }
}
