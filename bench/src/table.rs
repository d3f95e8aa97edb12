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

/// A median, and the interval that holds the median of all such runs with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The middle one.
    pub median: f64,
    /// Where it begins and ends; infinite if there are too few values to say.
    pub bounds: (f64, f64),
}

impl Interval {
    /// Of some values: the interval between order statistics whose binomial probability of holding
    /// the median is at least 95 % (distribution-free; six values are the fewest).
    ///
    /// # Panics
    /// If there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Interval {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let median = Spread::of(values.iter().copied()).median;
        // The chance that at most `k` of `count` values lie below the median.
        let mut below = 0.0;
        let mut term = 0.5f64.powi(count as i32);
        let mut bounds = (f64::NEG_INFINITY, f64::INFINITY);
        for k in 0..count / 2 {
            below += term;
            if 2.0 * below > 0.05 {
                break;
            }
            bounds = (values[k], values[count - 1 - k]);
            term *= (count - k) as f64 / (k + 1) as f64;
        }
        Interval { median, bounds }
    }
}

impl fmt::Display for Interval {
    /// `median [low, high]`, with as many decimals as the format asks for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = f.precision().unwrap_or(2);
        let (low, high) = self.bounds;
        if low.is_finite() {
            write!(f, "{:.p$} [{low:.p$}, {high:.p$}]", self.median)
        } else {
            write!(f, "{:.p$}", self.median)
        }
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
    fn intervals_are_between_order_statistics() {
        // Nine values: the second and the eighth (96.1 %); six: the first and the last (96.9 %).
        assert_eq!(Interval::of((1..=9).map(f64::from)).bounds, (2.0, 8.0));
        assert_eq!(Interval::of((1..=6).map(f64::from)).bounds, (1.0, 6.0));
        assert!(Interval::of((1..=5).map(f64::from)).bounds.0.is_infinite());
        assert_eq!(format!("{:.1}", Interval::of((1..=9).map(f64::from))), "5.0 [2.0, 8.0]");
    }

    #[test]
    fn medians_lie_in_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(format!("{spread:.1}"), "2.0 (1.0–3.0)");
    }
}
