//! How fast replays are, one thread: `cargo run --release -p pagekeeper-sim --example speed`.
use std::time::Instant;

use pagekeeper_policy::policies::lru::Lru;
use pagekeeper_policy::{Policy, PolicySpec, all};
use pagekeeper_sim::{NextUses, Opt, References, replay};
use rand_distr::{Distribution, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

const REFERENCES: usize = 20_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);
    let zipf = Zipf::new(1e6, 0.9)?;
    let started = Instant::now();
    let skewed =
        References::from_blocks((0..REFERENCES).map(|_| zipf.sample(&mut generator) as u64))?;
    println!("skewed: {} pages, made in {:.1} s", skewed.pages(), started.elapsed().as_secs_f64());
    let looping = References::from_blocks((0..REFERENCES as u64).map(|step| step % 100_000))?;

    for (name, references, frames) in [
        ("skewed, all hits", &skewed, skewed.pages()),
        ("skewed, 10 % of the pages", &skewed, skewed.pages() / 10),
        ("loop, all hits", &looping, 100_000),
        ("loop, 80 % of the pages", &looping, 80_000),
    ] {
        println!("{name}: million references per second (hit ratio)");
        measure("lru, type known", references, &mut Lru::new(), frames)?;
        for info in all().iter().filter(|info| info.runs_live()) {
            let mut policy: Box<dyn Policy> = PolicySpec::of(info).build(frames, 1)?;
            measure(info.name, references, &mut policy, frames)?;
        }
        let next_uses = NextUses::of(references)?;
        measure("opt", references, &mut Opt::new(&next_uses), frames)?;
    }
    Ok(())
}

fn measure<P: Policy>(
    name: &str,
    references: &References,
    policy: &mut P,
    frames: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let counts = replay(references, policy, frames, |_| {})?;
    let rate = references.len() as f64 / started.elapsed().as_secs_f64() / 1e6;
    println!("  {name:16} {rate:7.1}  ({:.4})", counts.hit_ratio());
    Ok(())
}
