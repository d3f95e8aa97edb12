//! LRFU: least recently/frequently used.
use crate::flat::Flat;
use crate::parameters::{Fraction, Kind, ParameterInfo, Value};
use crate::registry::{PolicyInfo, Runs, Source};
use crate::rising::Rising;
use crate::{Admission, Page, Policy};

const LAMBDA: ParameterInfo = ParameterInfo {
    key: "lambda",
    meaning: "how fast references lose weight: by half within 1/lambda further references; 0 is \
              LFU and 1 is LRU",
    kind: Kind::Fraction { least: Fraction::new(0, 1), most: Fraction::new(1, 1) },
    // The authors study the whole range and leave the choice to the workload. Where 1/lambda is
    // far below the number of frames, it is LRU in all but cost.
    default: Value::Fraction(Fraction::new(1, 1000)),
};

/// What the registry says about LRFU.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "lrfu",
    aliases: &[],
    summary: "evicts the page whose references, each worth less the older it is, add up to least",
    helps: "between LRU and LFU, as lambda says: hot pages survive scans, and cool down",
    hurts: "loops larger than memory; a lambda far above 1/frames is LRU, and costs more",
    source: Source {
        title: "D. Lee, J. Choi, J.-H. Kim, S. H. Noh, S. L. Min, Y. Cho, C. S. Kim: LRFU: A \
                Spectrum of Policies that Subsumes the Least Recently Used and Least Frequently \
                Used Policies, IEEE Transactions on Computers 50(12), 2001",
        section: "the policy with F(x) = (1/2)^(lambda x), without a correlated period",
    },
    cost: "O(1) per reference; O(log frames) per admission and, amortised, per eviction",
    // A value of 24, a mark of 4, and an entry of 32 in the queue.
    bytes_per_page: 60,
    parameters: &[LAMBDA],
    runs: Runs::Anywhere(|parameters, _, _| Box::new(Lrfu::new(parameters.fraction(LAMBDA.key)))),
};

/// LRFU: evicts the page with the least CRF (combined recency and frequency), the sum of
/// F(*x*) = (1/2)^(λ *x*) over its references since it came in, each *x* references ago. Of equal
/// pages the one that was referenced last longest ago leaves.
///
/// Values are not aged. Instead a reference at time *t* weighs 2^(λ *t*), which orders pages as
/// the CRF does at any one time; weights and sums have an exponent of their own, so that they
/// never overflow. They are made by multiplication, addition and square roots alone, whose
/// rounding is the same on all machines, so that a replay decides alike everywhere.
///
/// Time is the number of references seen, admissions among them; only those seen count. A
/// prefetched page counts as referenced when it comes in, and the first reference seen moves that
/// one to its own time.
#[derive(Clone, Debug)]
pub struct Lrfu {
    /// What a weight grows by from one reference to the next.
    growth: f64,
    /// What the present reference weighs.
    weight: Amount,
    /// References so far.
    now: u64,
    /// Per page: the sum of its references' weights, and the time of the last, doubled, plus 1
    /// if that reference was not seen. As an array they compare as victims are ordered.
    values: Flat<[u64; 3]>,
    ranked: Rising<[u64; 3]>,
}

impl Lrfu {
    /// No pages. `lambda` is from 0 to 1.
    pub fn new(lambda: Fraction) -> Self {
        Self {
            growth: power_of_two(lambda.to_f64()),
            weight: Amount { exponent: 0, significand: 1.0 },
            now: 0,
            values: Flat::new(),
            ranked: Rising::new(),
        }
    }

    #[inline]
    fn step(&mut self) {
        self.now += 1;
        self.weight = self.weight.times(self.growth);
    }
}

impl Policy for Lrfu {
    fn admitted(&mut self, page: Page, how: Admission) {
        self.step();
        let unseen = u64::from(how == Admission::Prefetch) * UNSEEN;
        let value = value(self.weight, self.now << 1 | unseen);
        *self.values.slot(page.index()) = value;
        self.ranked.insert(page, value);
    }

    #[inline]
    fn referenced(&mut self, page: Page) {
        self.step();
        let [exponent, significand, last] = *self.values.at(page.index());
        let sum = if last & UNSEEN == 0 {
            let before = Amount { exponent, significand: f64::from_bits(significand) };
            before.plus(self.weight)
        } else {
            self.weight
        };
        *self.values.at(page.index()) = value(sum, self.now << 1);
    }

    fn removed(&mut self, page: Page) {
        self.ranked.remove(page);
    }

    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.ranked.take_least(|page| self.values.get(page.index()))
    }

    fn resized(&mut self, _frames: u32) {}

    fn resident(&self) -> u32 {
        self.ranked.len()
    }
}

/// In a page's last time: its one reference is the prefetch.
const UNSEEN: u64 = 1;

/// Positive numbers compare as their bits do.
fn value(sum: Amount, last: u64) -> [u64; 3] {
    [sum.exponent, sum.significand.to_bits(), last]
}

/// `significand` · 2^`exponent`, the significand from 1 up to below 2.
#[derive(Clone, Copy, Debug)]
struct Amount {
    exponent: u64,
    significand: f64,
}

impl Amount {
    /// For a significand below 4.
    #[inline]
    fn normal(exponent: u64, significand: f64) -> Self {
        if significand < 2.0 {
            Self { exponent, significand }
        } else {
            Self { exponent: exponent + 1, significand: significand / 2.0 }
        }
    }

    /// This, `factor` times, which is from 1 to 2.
    #[inline]
    fn times(self, factor: f64) -> Self {
        Self::normal(self.exponent, self.significand * factor)
    }

    #[inline]
    fn plus(self, other: Self) -> Self {
        let (less, more) =
            if self.exponent < other.exponent { (self, other) } else { (other, self) };
        // Beyond this the lesser amount is too small to change the sum.
        let below = (more.exponent - less.exponent).min(1000);
        let scale = f64::from_bits((f64::MAX_EXP as u64 - 1 - below) << (f64::MANTISSA_DIGITS - 1));
        Self::normal(more.exponent, more.significand + less.significand * scale)
    }
}

/// 2 to a power from 0 to 1: for each binary digit of the power that is set, the root that it
/// stands for.
fn power_of_two(power: f64) -> f64 {
    let (mut result, mut root, mut rest) = (1.0, 2.0_f64, power);
    while rest > 0.0 {
        if rest >= 1.0 {
            result *= root;
            rest -= 1.0;
        }
        root = root.sqrt();
        rest *= 2.0;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_those_of_the_library() {
        for power in [0.0, 1e-9, 1e-3, 0.1, 0.5, 2.0 / 3.0, 0.999_999, 1.0] {
            let (ours, library) = (power_of_two(power), power.exp2());
            assert!((ours / library - 1.0).abs() < 1e-14, "2^{power}: {ours}, {library}");
        }
    }

    #[test]
    fn amounts_add_up_beyond_the_range_of_a_float() {
        let one = Amount { exponent: 5000, significand: 1.0 };
        let sum = one.plus(one).plus(Amount { exponent: 5002, significand: 1.5 });
        assert_eq!((sum.exponent, sum.significand), (5003, 1.0));
        let tiny = Amount { exponent: 0, significand: 1.9 };
        assert_eq!(one.plus(tiny).significand, 1.0);
        assert_eq!(tiny.plus(one).exponent, 5000);
    }
}
