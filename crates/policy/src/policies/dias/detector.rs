//! DIAS's pattern change detection over a history of fault rates (section 3.1.2 of the paper).
use std::collections::VecDeque;

/// When a history of fault rates counts as a change.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Condition 3: the latest segment's average difference, as a percentage of the current rate,
    /// is below this: the rate has settled.
    pub latest_most_percent: u64,
    /// Condition 2: the earliest segment's is above this: the rate is a new one.
    pub earliest_least_percent: u64,
}

/// What the detector makes of one fault rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Average of (rate in the history − current rate), by segment, the earliest first.
    pub average_differences: Vec<f64>,
    /// Those of the earliest and the latest segment, without sign, as fractions of the current
    /// rate; infinite or undefined at rate 0.
    pub fractions: [f64; 2],
    /// All three conditions hold.
    pub is_change: bool,
}

/// The history of fault rates before the current one, in equal segments.
///
/// Rates are whole numbers of any unit (here: faults in a window), so that the sums are exact.
#[derive(Clone, Debug)]
pub struct Detector {
    history: VecDeque<u64>,
    length: usize,
    /// Sum of each segment's rates, the earliest first; kept by adding and subtracting the rates
    /// that cross a border, so that a slice costs O(segments).
    sums: Vec<u64>,
    thresholds: Thresholds,
}

impl Detector {
    /// An empty history of `length` rates in `segments` equal parts.
    ///
    /// # Panics
    /// If there are no segments, or they do not divide the length.
    pub fn new(length: usize, segments: usize, thresholds: Thresholds) -> Self {
        assert!(segments > 0 && length > 0 && length.is_multiple_of(segments));
        let history = VecDeque::with_capacity(length + 1);
        Self { history, length, sums: vec![0; segments], thresholds }
    }

    /// Whether the history holds as many rates as it can.
    pub fn is_full(&self) -> bool {
        self.history.len() == self.length
    }

    /// Judges the current rate against the history, then adds it. `None` until the history is
    /// full.
    pub fn observe(&mut self, rate: u64) -> Option<Finding> {
        let finding = self.is_full().then(|| self.judge(rate));
        self.push(rate);
        finding
    }

    fn judge(&self, rate: u64) -> Finding {
        let segment_length = (self.length / self.sums.len()) as i128;
        // Sums of differences: the averages times the segments' length.
        let differences: Vec<i128> = self
            .sums
            .iter()
            .map(|sum| i128::from(*sum) - segment_length * i128::from(rate))
            .collect();
        let [earliest, latest] =
            [differences[0], differences[differences.len() - 1]].map(i128::unsigned_abs);
        let is_monotonic = differences.is_sorted() || differences.is_sorted_by(|a, b| a >= b);
        // |difference| / length / rate against percent / 100, multiplied out: at rate 0 the
        // latest is never small enough, and no faults are no reason to look for another policy.
        let whole = segment_length as u128 * u128::from(rate);
        let is_new = 100 * earliest > u128::from(self.thresholds.earliest_least_percent) * whole;
        let is_settled = 100 * latest < u128::from(self.thresholds.latest_most_percent) * whole;
        let average = |difference: i128| difference as f64 / segment_length as f64;
        Finding {
            average_differences: differences.iter().copied().map(average).collect(),
            fractions: [earliest, latest].map(|difference| difference as f64 / whole as f64),
            is_change: is_monotonic && is_new && is_settled,
        }
    }

    fn push(&mut self, rate: u64) {
        self.history.push_back(rate);
        let segment_length = self.length / self.sums.len();
        if self.history.len() <= self.length {
            let at = (self.history.len() - 1) / segment_length;
            self.sums[at] += rate;
            return;
        }
        // Every segment gains the rate just after it and loses its first.
        for (at, sum) in self.sums.iter_mut().enumerate() {
            *sum += self.history[(at + 1) * segment_length];
            *sum -= self.history[at * segment_length];
        }
        self.history.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Figure 2. The history's first rates and the current ones follow from the table: at time 0
    /// (11 − 12 + 9.5 − 12) / 2 = −1.75, and every later row gives the next rate.
    #[test]
    fn figure_2_fires_at_time_3_only() {
        // In halves, so that 9.5 is whole.
        let [history, current] = [[22, 19, 24, 26], [24, 30, 32, 32]];
        let thresholds = Thresholds { latest_most_percent: 5, earliest_least_percent: 20 };
        let mut detector = Detector::new(4, 2, thresholds);
        assert!(history.iter().all(|rate| detector.observe(*rate).is_none()));
        let table = [
            ([-1.75, 0.5], [0.145, 0.042], false),
            ([-4.25, -2.5], [0.283, 0.167], false),
            ([-3.5, -2.5], [0.219, 0.156], false),
            ([-3.5, -0.5], [0.219, 0.031], true),
        ];
        for (rate, (differences, fractions, is_change)) in current.into_iter().zip(table) {
            let finding = detector.observe(rate).unwrap();
            let found: Vec<f64> = finding.average_differences.iter().map(|d| d / 2.0).collect();
            assert_eq!(found, differences);
            for (found, printed) in finding.fractions.iter().zip(fractions) {
                // The paper cuts digits off in one place and rounds in others.
                assert!((found - printed).abs() < 0.001, "{found} printed as {printed}");
            }
            assert_eq!(finding.is_change, is_change);
        }
    }

    #[test]
    fn a_rate_that_went_up_and_down_is_no_change() {
        let thresholds = Thresholds { latest_most_percent: 10, earliest_least_percent: 30 };
        let fires = |rates: &[u64]| {
            let mut detector = Detector::new(4, 4, thresholds);
            rates.iter().filter_map(|rate| detector.observe(*rate)).any(|f| f.is_change)
        };
        assert!(fires(&[10, 12, 18, 20, 20]));
        assert!(fires(&[30, 25, 22, 20, 20]));
        assert!(!fires(&[10, 25, 15, 20, 20]), "not monotonic");
        assert!(!fires(&[20, 20, 20, 20, 20]), "nothing new");
        assert!(!fires(&[10, 12, 14, 16, 20]), "not settled");
        assert!(!fires(&[9, 5, 3, 0, 0]), "no faults");
    }

    proptest! {
        /// The running sums against the definition.
        #[test]
        fn sums_are_what_the_definition_says(
            rates in prop::collection::vec(0..40_u64, 0..80),
            segments in 1..5_usize,
            segment_length in 1..5_usize,
        ) {
            let thresholds = Thresholds { latest_most_percent: 10, earliest_least_percent: 30 };
            let length = segments * segment_length;
            let mut detector = Detector::new(length, segments, thresholds);
            for (time, rate) in rates.iter().enumerate() {
                let finding = detector.observe(*rate);
                prop_assert_eq!(finding.is_some(), time >= length);
                let Some(finding) = finding else { continue };
                let differences: Vec<f64> = rates[time - length..time]
                    .chunks(segment_length)
                    .map(|segment| {
                        let sum: f64 = segment.iter().map(|old| *old as f64 - *rate as f64).sum();
                        sum / segment_length as f64
                    })
                    .collect();
                let [first, last] = [differences[0], differences[segments - 1]].map(f64::abs);
                let is_change = (differences.is_sorted() || differences.iter().rev().is_sorted())
                    && first / *rate as f64 > 0.30
                    && last / (*rate as f64) < 0.10;
                // On the threshold itself division rounds; the detector multiplies.
                let is_exact = |value: f64| (value / *rate as f64 * 100.0).round() % 10.0 != 0.0;
                if is_exact(first) && is_exact(last) {
                    prop_assert_eq!(finding.is_change, is_change);
                }
                prop_assert_eq!(finding.average_differences, differences);
            }
        }
    }
}
