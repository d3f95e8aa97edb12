//! Whom of two experts to follow: regret minimisation by multiplicative weights.
//!
//! What LeCaR and Cacheus share. G. Vietri et al.: Driving Cache Replacement with ML-based LeCaR,
//! HotStorage 2018, Algorithm 2.
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Neither expert's weight falls below this, as in the authors' code, so that both are heard.
const WEIGHT_LEAST: f64 = 0.01;

/// The experts' weights, whose sum is one, and the draws between them: from a named generator
/// (xoshiro256++), so that a seed means the same draws in every version.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    generator: Xoshiro256PlusPlus,
    first: f64,
}

impl Weights {
    /// Equal weights, and a generator started from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { generator: Xoshiro256PlusPlus::seed_from_u64(seed), first: 0.5 }
    }

    /// Draws between the two: whether the first is followed.
    pub(crate) fn draws_first(&mut self) -> bool {
        self.draw() < self.first
    }

    /// A number from 0 to 1, 1 excluded.
    pub(crate) fn draw(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Following the first was regretted so much.
    pub(crate) fn blame_first(&mut self, regret: f64) {
        self.set(self.first * (-regret).exp(), 1.0 - self.first);
    }

    /// Following the second was regretted so much.
    pub(crate) fn blame_second(&mut self, regret: f64) {
        self.set(self.first, (1.0 - self.first) * (-regret).exp());
    }

    fn set(&mut self, first: f64, second: f64) {
        self.first = (first / (first + second)).clamp(WEIGHT_LEAST, 1.0 - WEIGHT_LEAST);
    }
}
