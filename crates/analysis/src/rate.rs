//! Faults over time.
use serde::Serialize;

/// Faults in equal intervals, and what they come to: the fault rate and its statistics (SM/DIAS,
/// section 3.1.1 and Table 3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultRate {
    /// Length of an interval, in references or in nanoseconds.
    pub interval: u64,
    /// Where the first interval starts, in the same unit.
    pub start: u64,
    /// Faults in each interval, in order; the last may be cut short by the end.
    pub faults: Vec<u64>,
    /// How many of the intervals are whole, from the first on; a cut one counts if it is alone.
    pub whole: usize,
    /// Statistics of the whole intervals, in faults per interval; of the cut one if it is alone.
    pub spread: Spread,
}

impl FaultRate {
    /// Counts events in about `intervals` intervals from `start` to `end`, which is behind the last
    /// instant there can be if that is the last number of 64 bits. The instants must lie between
    /// them.
    pub(crate) fn of(
        instants: impl IntoIterator<Item = u64>,
        start: u64,
        end: u128,
        intervals: u32,
    ) -> Self {
        let length = end.saturating_sub(start.into());
        let interval = length.div_ceil(intervals.max(1).into()).clamp(1, u64::MAX.into()) as u64;
        let mut faults = vec![0; length.div_ceil(interval.into()) as usize];
        for instant in instants {
            faults[((instant - start) / interval) as usize] += 1;
        }
        let whole = ((length / u128::from(interval)) as usize).max(1).min(faults.len());
        let spread = Spread::of(&faults[..whole]);
        Self { interval, start, faults, whole, spread }
    }
}

/// Statistics of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The arithmetic mean.
    pub mean: f64,
    /// The least value.
    pub min: u64,
    /// The greatest value.
    pub max: u64,
    /// The standard deviation of all values (not an estimate from a sample).
    pub standard_deviation: f64,
}

impl Spread {
    /// The statistics of these values; all zero for none.
    pub fn of(values: &[u64]) -> Self {
        let (Some(min), Some(max)) = (values.iter().min(), values.iter().max()) else {
            return Self::default();
        };
        let count = values.len() as f64;
        let mean = values.iter().sum::<u64>() as f64 / count;
        let squares: f64 = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
        Self { mean, min: *min, max: *max, standard_deviation: (squares / count).sqrt() }
    }
}
