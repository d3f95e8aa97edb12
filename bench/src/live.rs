//! The UBM paper's programs live (J. M. Kim et al., OSDI 2000, section 5): combinations of them run
//! at the same time in one pool of memory, under UBM, LRU, SEQ and others (Figure 13); predictions
//! from a recording beside them; and what a CPU-bound neighbour loses by them (Figure 14).

mod programs;

use crate::contest::{Contender, interleave};
use crate::machine::{Machine, READ_AHEAD_KIB};
use crate::overhead::{decided, inputs};
use crate::predict::{RECORDED_UNDER, record};
use crate::run::{Measured, Pager, Program, beside, run_within};
use crate::table::{self, Spread};
use anyhow::{Context, Result, ensure};
use pagekeeper_frames::Budget;
use pagekeeper_policy::PolicySpec;
use pagekeeper_sim::{LiveOptions, References, simulate_live};
use pagekeeper_sys::process::{affinity, set_affinity, set_affinity_to};
use programs::{App, Own};
use serde_json::{Value, json};

const MIB: f64 = (1u64 << 20) as f64;
/// The contenders beside the kernel. The first is what others are compared to.
const POLICIES: [&str; 5] = ["lru", "ubm", "ubm+", "seq", "auto"];
/// Shares of the pages that a combination touches.
const SHARES: [f64; 3] = [0.2, 0.35, 0.5];
/// The paper's caches, of 8, 12 and 16 MB, are 0.18 to this much of its files.
const PAPER_SHARE_MAX: f64 = 0.36;
/// The manager and the holder: what they know of two thousand files takes more than
/// [`ALLOWANCE_BYTES`](crate::run::ALLOWANCE_BYTES).
const OURS_BYTES: u64 = 48 << 20;

/// The traces Multi1 and Multi2 and the combinations of Figure 13.
const COMBINATIONS: [&[&str]; 4] = [
    &["cscope", "cpp"],
    &["cscope", "cpp", "postgres"],
    &["cpp", "postgres", "cscope", "video"],
    &["glimpse", "cpp", "postgres", "cscope"],
];

/// A combination, recorded once.
struct Combination {
    name: String,
    apps: Vec<App>,
    program: Program,
    own: Own,
    references: References,
}

impl Combination {
    fn recorded(machine: &Machine, apps: Vec<App>, name: String) -> Result<Combination> {
        let (program, own) = programs::together(&apps)?;
        let (_, references) = record(machine, &program, "live.pkt", 256 << 20, 512 << 20)?;
        Ok(Combination { name, apps, program, own, references })
    }

    /// A share of the pages that it touches, in whole pages.
    fn memory_bytes(&self, share: f64) -> u64 {
        (f64::from(self.references.pages()) * share) as u64 * 4096
    }

    /// The kernel may use as many frames as we, on average: it caches pages in what the programs
    /// leave of their own memory, so they get on top what they have on average. For us, who do not,
    /// the most that they have, and what the manager and the holder are.
    fn contender(&self, name: &str) -> Contender {
        let (pager, allowance_bytes) = match name {
            "kernel" => (Pager::Kernel, self.own.mean),
            policy => (Pager::Policy(policy.to_owned()), self.own.most + OURS_BYTES),
        };
        let contender = Contender::new(name, &self.program, pager, READ_AHEAD_KIB);
        Contender { allowance_bytes, ..contender }
    }
}

/// Runs all combinations, or those whose name contains `only`; and then the neighbour.
pub fn live(machine: &Machine, repeats: u32, only: Option<&str>) -> Result<()> {
    let apps = programs::all(machine)?;
    let mut mixes = Mixes::default();
    for names in COMBINATIONS {
        let name = names.join(" + ");
        let found = names.iter().filter_map(|n| apps.iter().find(|app| app.name == *n).cloned());
        let found: Vec<App> = found.collect();
        if found.len() < names.len() || only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let combination = Combination::recorded(machine, found, name)?;
        for share in SHARES {
            mixes.measure(machine, &combination, share, repeats)?;
        }
    }
    mixes.done(machine, repeats)?;
    if only.is_none_or(|only| "neighbour".contains(only)) {
        neighbour(machine, &apps, repeats)?;
    }
    Ok(())
}

/// What is known of all combinations so far.
#[derive(Default)]
struct Mixes {
    rows: Vec<Vec<String>>,
    programs: Vec<Vec<String>>,
    /// What each policy but the first saves of each program's time under that, %, in memory of such a
    /// share.
    saved: [Vec<(f64, f64)>; POLICIES.len() - 1],
    errors: Vec<f64>,
    kept: Vec<Value>,
}

impl Mixes {
    fn measure(
        &mut self,
        machine: &Machine,
        combination: &Combination,
        share: f64,
        repeats: u32,
    ) -> Result<()> {
        let memory = combination.memory_bytes(share);
        let names = POLICIES.into_iter().chain(["kernel"]);
        let mut contenders: Vec<Contender> = names.map(|n| combination.contender(n)).collect();
        interleave(machine, &mut contenders, memory, repeats)
            .with_context(|| combination.name.clone())?;
        let place = format!(
            "{}; {:.1} MiB ({:.0} %)",
            combination.name,
            memory as f64 / MIB,
            share * 100.0
        );
        for c in &contenders {
            self.row(combination, &place, c, &contenders[0], memory)?;
        }
        for app in &combination.apps {
            self.program(&place, share, app.name, &contenders)?;
        }
        Ok(())
    }

    fn row(
        &mut self,
        combination: &Combination,
        place: &str,
        c: &Contender,
        base: &Contender,
        memory: u64,
    ) -> Result<()> {
        let pages = |r: &Measured| r.read_bytes as f64 / 4096.0;
        let against = |f: &dyn Fn(&Measured) -> f64| {
            Spread::of(c.runs.iter().zip(&base.runs).map(|(a, b)| f(a) / f(b) * 100.0))
        };
        let said = match &c.pager {
            Pager::Policy(name) => {
                let policy = PolicySpec::parse(name)?;
                let options = LiveOptions::new(memory);
                Some(simulate_live(&combination.references, &policy, &options)?.counts)
            }
            _ => None,
        };
        let off = |said: u64, found: f64| (said as f64 / found - 1.0) * 100.0;
        let majors = c.spread(|r| r.major_faults as f64);
        let off = said.map(|said| {
            [off(said.faults, majors.median), off(said.pages_read, c.spread(pages).median)]
        });
        self.errors.extend(off.iter().map(|off| off[1].abs()));
        let dash = || "–".to_owned();
        self.rows.push(vec![
            place.to_owned(),
            c.name.clone(),
            format!("{:.2}", c.spread(|r| r.elapsed_ns as f64 / 1e9)),
            format!("{:.0}", against(&|r| r.elapsed_ns as f64)),
            format!("{majors:.0}"),
            said.map_or_else(dash, |said| said.faults.to_string()),
            off.map_or_else(dash, |off| format!("{:+.1} %", off[0])),
            format!("{:.0}", c.spread(pages)),
            format!("{:.0}", against(&pages).median),
            said.map_or_else(dash, |said| said.pages_read.to_string()),
            off.map_or_else(dash, |off| format!("{:+.1} %", off[1])),
            format!("{:.0}", c.spread(|r| r.device_reads as f64).median),
            format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9).median),
            format!("{:.0}", c.spread(|r| r.peak_bytes as f64 / MIB).max),
        ]);
        // A row as it comes: all of them take a while.
        eprintln!("{}", self.rows.last().map(|r| r.join("  ")).unwrap_or_default());
        self.kept.push(json!({
            "combination": combination.name, "memory_bytes": memory,
            "references": combination.references.len(), "pages": combination.references.pages(),
            "predicted_major_faults": said.map(|said| said.faults),
            "predicted_pages_read": said.map(|said| said.pages_read), "measured": c.json(),
        }));
        Ok(())
    }

    /// Figure 13's bars: one program of a combination, and what it takes under each.
    fn program(
        &mut self,
        place: &str,
        share: f64,
        name: &str,
        contenders: &[Contender],
    ) -> Result<()> {
        let mut row = vec![place.to_owned(), name.to_owned()];
        let mut medians = Vec::new();
        for c in contenders {
            let all: Option<Vec<f64>> = c.runs.iter().map(|r| program_s(r, name)).collect();
            let spread = Spread::of(all.context("a run did not tell its programs' times")?);
            row.push(format!("{spread:.2}"));
            medians.push(spread.median);
        }
        for (all, median) in self.saved.iter_mut().zip(&medians[1..]) {
            let saved = (1.0 - median / medians[0]) * 100.0;
            row.push(format!("{saved:+.1}"));
            all.push((share, saved));
        }
        self.programs.push(row);
        Ok(())
    }

    fn done(self, machine: &Machine, repeats: u32) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let head = [
            "combination; memory (share of the pages touched)",
            "pager",
            "elapsed s",
            "% of lru's",
            "major faults",
            "said",
            "off",
            "pages read",
            "% of lru's",
            "said",
            "off",
            "requests",
            "CPU s",
            "peak MiB",
        ];
        let title = format!(
            "UBM's combinations, each in one pool of memory, from cold files; medians of {repeats} \
             interleaved runs (least–most); said: from one recording under {RECORDED_UNDER}, whose \
             programs were interleaved by its own speed"
        );
        table::print(&title, &head, &self.rows);
        let mut head = vec!["combination; memory", "program"];
        head.extend(POLICIES.iter().chain(&["kernel"]));
        head.push("ubm saves, % of lru's");
        head.extend(&POLICIES[2..]);
        table::print("Figure 13. Elapsed seconds of each program", &head, &self.programs);
        for (name, saved) in POLICIES[1..].iter().zip(self.saved) {
            let mean = |share_max: f64| {
                let of = saved.iter().filter(|(share, _)| *share <= share_max);
                of.clone().map(|(_, saved)| saved).sum::<f64>() / of.count() as f64
            };
            let most = saved.iter().map(|(_, saved)| *saved).fold(f64::NEG_INFINITY, f64::max);
            println!(
                "{name} saves {:.1} % of a program's time under lru on average in caches of the \
                 paper's sizes, {:.1} % in all, {most:.1} % at best (the paper: 28.7 and 67.2)",
                mean(PAPER_SHARE_MAX),
                mean(1.0)
            );
        }
        let errors = Spread::of(self.errors);
        println!(
            "pages read are predicted to {:.1} % (median; worst {:.1} %)\n",
            errors.median, errors.max
        );
        machine.save("live", Value::Array(self.kept))
    }
}

/// How long one program of a combination took.
fn program_s(run: &Measured, name: &str) -> Option<f64> {
    Some(run.told.as_ref()?["programs_ns"][name].as_u64()? as f64 / 1e9)
}

/// Figure 14: a program that only adds, beside a combination, all on one processor as the paper's.
/// It outlasts the combination, so that all the CPU time that others take is its loss.
fn neighbour(machine: &Machine, apps: &[App], repeats: u32) -> Result<()> {
    const NAME: &str = "adds";
    const MILLIONS: u64 = 20_000;
    let names = COMBINATIONS[1];
    let found: Vec<App> =
        names.iter().filter_map(|n| apps.iter().find(|app| app.name == *n).cloned()).collect();
    if found.len() < names.len() {
        return Ok(());
    }
    let all = affinity()?;
    set_affinity(all[0])?;
    let done = (|| {
        let mut beside_it =
            Combination::recorded(machine, found, format!("{NAME} + {}", names.join(" + ")))?;
        let memory = beside_it.memory_bytes(SHARES[1]);
        let workload = beside("pagekeeper-workload")?;
        let shell = format!("{NAME}={} adds {MILLIONS} >/dev/null", workload.display());
        beside_it.program.command.push(shell.into());
        let names = ["lru", "ubm", "kernel"];
        let mut contenders: Vec<Contender> = names.map(|n| beside_it.contender(n)).into();
        interleave(machine, &mut contenders, memory, repeats)?;
        let own_s = |r: &Measured| program_s(r, NAME).unwrap_or(f64::NAN);
        let mut rows = Vec::new();
        for c in &contenders {
            let against = |base: &Contender| {
                let pairs = c.runs.iter().zip(&base.runs);
                Spread::of(pairs.map(|(a, b)| (own_s(a) / own_s(b) - 1.0) * 100.0))
            };
            let decisions = match &c.pager {
                Pager::Policy(policy) => {
                    let s = decisions_s(machine, &beside_it, policy, memory)?;
                    Some((s, s / c.spread(own_s).median * 100.0))
                }
                _ => None,
            };
            rows.push(vec![
                c.name.clone(),
                format!("{:.2}", c.spread(own_s)),
                format!("{:+.1}", against(&contenders[0])),
                format!("{:+.1}", against(&contenders[2])),
                format!("{:.2}", c.spread(|r| r.cpu_ns as f64 / 1e9)),
                decisions.map_or("–".into(), |(s, _)| format!("{:.0}", s * 1e3)),
                decisions.map_or("–".into(), |(_, share)| format!("{share:.2}")),
            ]);
        }
        let head = [
            "beside it",
            "elapsed s",
            "more than under lru, %",
            "than under the kernel, %",
            "CPU s of all",
            "decisions, CPU ms",
            "% of its time",
        ];
        let title = format!(
            "Figure 14. A CPU-bound program beside {} in {:.1} MiB, all on one processor; \
             {repeats} interleaved runs; decisions: the inputs of a run without it, replayed",
            beside_it.name.trim_start_matches("adds + "),
            memory as f64 / MIB
        );
        table::print(&title, &head, &rows);
        machine.save("live-neighbour", contenders.iter().map(Contender::json).collect())
    })();
    set_affinity_to(&all)?;
    done
}

/// CPU seconds of all decisions in a run: of its recorded inputs, replayed. The median of some.
fn decisions_s(
    machine: &Machine,
    beside_it: &Combination,
    policy: &str,
    memory: u64,
) -> Result<f64> {
    let trace = machine.scratch("live-inputs.pkt");
    let pager = Pager::Record {
        policy: policy.into(),
        trace: trace.clone(),
        inputs: true,
        window_pages: None,
    };
    let cgroup_bytes = memory + beside_it.own.most + 2 * OURS_BYTES;
    let live = run_within(machine, &beside_it.program, &pager, memory, cgroup_bytes)?;
    let inputs = inputs(&trace)?;
    let spec = PolicySpec::parse(policy)?;
    let frames = Budget::new(memory, spec.info().bytes_per_page).frames(0);
    let mut taken = Vec::new();
    for _ in 0..5 {
        let (cpu, brain) = decided(&inputs, &spec, frames)?;
        let digest = format!("{:016x}", brain.digest());
        let stats = live.stats.as_ref().context("statistics")?;
        ensure!(stats["decisions_digest"] == digest.as_str(), "other decisions when replayed");
        taken.push(cpu.as_secs_f64());
    }
    Ok(Spread::of(taken).median)
}
