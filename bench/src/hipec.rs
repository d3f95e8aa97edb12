//! Programs against the native policies that they equal: references per second of the simulator,
//! native, interpreted and compiled, and what a command costs.
//!
//! Times are CPU times of the thread that replays, so that other work on the machine counts as
//! little as it can.

use crate::machine::Machine;
use crate::pattern::{SplitMix, Zipf};
use crate::table::{self, Spread};
use anyhow::{Context, Result, anyhow, ensure};
use pagekeeper_hipec::{Execution, HipecPolicy, Verified, load};
use pagekeeper_policy::{Admission, Page, Policy, PolicySpec};
use pagekeeper_sim::{References, replay};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

const REFERENCES: u64 = 3_000_000;
const PAGES: u64 = 100_000;

/// Programs of `policies/`, and the native policies that they equal.
const PAIRS: [(&str, &str); 6] = [
    ("fifo", "fifo"),
    ("second-chance", "fifo2"),
    ("lru", "lru"),
    ("mru", "mru"),
    ("lru-2", "lru-k"),
    ("scan-resistant", "slru"),
];

/// The victims of another replay, again: what a replay costs without deciding anything.
struct Script<'a> {
    victims: std::slice::Iter<'a, Page>,
    resident: u32,
}

impl Policy for Script<'_> {
    fn admitted(&mut self, _page: Page, _how: Admission) {
        self.resident += 1;
    }
    fn referenced(&mut self, _page: Page) {}
    fn removed(&mut self, _page: Page) {
        self.resident -= 1;
    }
    fn victim(&mut self, _incoming: Option<Page>) -> Option<Page> {
        self.resident -= 1;
        self.victims.next().copied()
    }
    fn resized(&mut self, _frames: u32) {}
    fn resident(&self) -> u32 {
        self.resident
    }
}

/// Zipf's law with exponent 0.9.
fn zipf() -> Result<References> {
    let law = Zipf::new(PAGES, 0.9);
    let mut random = SplitMix::new(1);
    Ok(References::from_blocks((0..REFERENCES).map(|_| law.page(&mut random)))?)
}

/// Round and round, through all pages.
fn looped() -> Result<References> {
    Ok(References::from_blocks((0..REFERENCES).map(|at| at % PAGES))?)
}

/// A trace of one block number a line, as often as it takes.
fn shared(path: &Path) -> Result<References> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let blocks: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    ensure!(!blocks.is_empty(), "{} has no block number", path.display());
    Ok(References::from_blocks(blocks.into_iter().cycle().take(REFERENCES as usize))?)
}

fn program(name: &str) -> Result<Arc<Verified>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../policies/{name}.hipec"));
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    verified(name, &bytes)
}

fn verified(name: &str, text: &[u8]) -> Result<Arc<Verified>> {
    Ok(Arc::new(load(name, text).map_err(|error| anyhow!("{error}"))?.0))
}

/// FIFO whose faults do some more.
fn fifo_with(work: &str) -> Result<Arc<Verified>> {
    let text = format!(
        "Queue all; Int i; Page page;
         Event PageFault() {{ EnQueue(FaultedPage, all, TAIL); {work} }}
         Event Replace() {{ return DeQueue(all, HEAD); }}"
    );
    verified("fifo-with.hipec", text.as_bytes())
}

/// What a command costs for itself: work added to events that are there in any case.
fn commands_alone(references: &References, repeats: u32) -> Result<Vec<Vec<String>>> {
    const WORKS: [(&str, &str); 2] = [
        ("counting, comparing, jumping", "for (i = 0; i < 16; i++) { }"),
        (
            "the same, and pages from one end of the queue to the other",
            "for (i = 0; i < 8; i++) { page = DeQueue(all, HEAD); EnQueue(page, all, TAIL); }",
        ),
    ];
    let frames = references.pages() / 10;
    let plain = fifo_with("")?;
    let run = |program: &Arc<Verified>, execution| -> Result<(f64, f64)> {
        let mut policy = HipecPolicy::with_execution(program.clone(), frames, execution)?;
        let (ns, _) = timed(references, &mut policy, frames)?;
        Ok((ns, policy.counts().commands as f64))
    };
    let mut rows = Vec::new();
    for (what, work) in WORKS {
        let more = fifo_with(work)?;
        let mut row = vec![what.to_owned()];
        for execution in [Execution::Interpreted, Execution::Compiled] {
            let mut each = Vec::new();
            for _ in 0..repeats {
                let ((before, few), (after, many)) =
                    (run(&plain, execution)?, run(&more, execution)?);
                each.push((after - before) / (many - few));
            }
            row.push(format!("{:.2}", Spread::of(each)));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live variable.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every Linux has the clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time and faults of one replay.
fn timed(references: &References, policy: &mut dyn Policy, frames: u32) -> Result<(f64, u64)> {
    let mut policy: Box<dyn Policy + '_> = Box::new(Borrowed(policy));
    let started = cpu_ns();
    let counts = replay(references, &mut policy, frames, |_| {})?;
    Ok(((cpu_ns() - started) as f64, counts.faults))
}

/// All contenders are called as the sweep calls them, through a table of methods.
struct Borrowed<'a>(&'a mut dyn Policy);

impl Policy for Borrowed<'_> {
    fn wants_places(&self) -> bool {
        self.0.wants_places()
    }
    #[inline]
    fn admitted(&mut self, page: Page, how: Admission) {
        self.0.admitted(page, how);
    }
    #[inline]
    fn referenced(&mut self, page: Page) {
        self.0.referenced(page);
    }
    #[inline]
    fn removed(&mut self, page: Page) {
        self.0.removed(page);
    }
    #[inline]
    fn victim(&mut self, incoming: Option<Page>) -> Option<Page> {
        self.0.victim(incoming)
    }
    fn resized(&mut self, frames: u32) {
        self.0.resized(frames);
    }
    fn resident(&self) -> u32 {
        self.0.resident()
    }
}

/// References per second and nanoseconds per command, program by program. `traces` are files of
/// one block number a line, beside the strings that are made here.
pub fn hipec(machine: &Machine, repeats: u32, traces: &[std::path::PathBuf]) -> Result<()> {
    let mut strings = vec![
        (format!("zipf 0.9 over {PAGES} pages"), zipf()?),
        (format!("loop over {PAGES} pages"), looped()?),
    ];
    for path in traces {
        strings.push((path.display().to_string(), shared(path)?));
    }
    let mut all = Vec::new();
    for (label, references) in strings {
        let mut rows = Vec::new();
        for (name, native) in PAIRS {
            for percent in [10, 80] {
                let frames = (u64::from(references.pages()) * percent / 100).max(2) as u32;
                eprint!("\r\x1b[K{label}, {name}, {percent} %");
                let cell = Cell::measure(&references, name, native, frames, repeats)?;
                rows.push(cell.row(percent));
                all.push(cell.json(&label, frames));
            }
        }
        eprint!("\r\x1b[K");
        let head = [
            "program",
            "frames",
            "native, M refs/s",
            "interpreted",
            "compiled",
            "native / compiled",
            "interpreted, ns a command",
            "compiled",
            "commands a reference",
            "misses",
        ];
        let title = format!(
            "Programs: {label}, {} references, CPU time of one thread. ns a command is all that \
             the replay takes beyond one of recorded victims, over the commands run",
            references.len()
        );
        table::print(&title, &head, &rows);
    }
    let title = "A command for itself: ns for each that is added to an event of FIFO's";
    let head = ["commands", "interpreted, ns", "compiled, ns"];
    table::print(title, &head, &commands_alone(&looped()?, repeats)?);
    machine.save("hipec", all.into())
}

struct Cell {
    name: &'static str,
    references: f64,
    commands: f64,
    misses: f64,
    bare_ns: Vec<f64>,
    native_ns: Vec<f64>,
    interpreted_ns: Vec<f64>,
    compiled_ns: Vec<f64>,
}

impl Cell {
    fn measure(
        references: &References,
        name: &'static str,
        native: &str,
        frames: u32,
        repeats: u32,
    ) -> Result<Cell> {
        let program = program(name)?;
        let spec = PolicySpec::parse(native)?;
        let with = |execution| HipecPolicy::with_execution(program.clone(), frames, execution);
        let mut victims = Vec::new();
        let mut first = with(Execution::Compiled)?;
        let counts = replay(references, &mut first, frames, |fault| victims.extend(fault.victim))?;
        let mut cell = Cell {
            name,
            references: references.len() as f64,
            commands: first.counts().commands as f64,
            misses: 1.0 - counts.hit_ratio(),
            bare_ns: Vec::new(),
            native_ns: Vec::new(),
            interpreted_ns: Vec::new(),
            compiled_ns: Vec::new(),
        };
        for _ in 0..repeats {
            let mut script = Script { victims: victims.iter(), resident: 0 };
            cell.bare_ns.push(timed(references, &mut script, frames)?.0);
            let (native_ns, faults) = timed(references, &mut *spec.build(frames, 0)?, frames)?;
            ensure!(faults == counts.faults, "{name} decides otherwise than {native}");
            cell.native_ns.push(native_ns);
            for execution in [Execution::Interpreted, Execution::Compiled] {
                let mut policy = with(execution)?;
                let (ns, faults) = timed(references, &mut policy, frames)?;
                ensure!(faults == counts.faults, "{name} {execution:?} decides otherwise");
                match execution {
                    Execution::Interpreted => cell.interpreted_ns.push(ns),
                    Execution::Compiled => cell.compiled_ns.push(ns),
                }
            }
        }
        Ok(cell)
    }

    /// Millions of references per second.
    fn rate(&self, ns: &[f64]) -> Spread {
        Spread::of(ns.iter().map(|ns| self.references / ns * 1e3))
    }

    fn ns_per_command(&self, ns: &[f64]) -> Spread {
        Spread::of(ns.iter().zip(&self.bare_ns).map(|(ns, bare)| (ns - bare) / self.commands))
    }

    fn row(&self, percent: u64) -> Vec<String> {
        let ratio = Spread::of(self.compiled_ns.iter().zip(&self.native_ns).map(|(a, b)| a / b));
        vec![
            self.name.to_owned(),
            format!("{percent} %"),
            format!("{:.1}", self.rate(&self.native_ns)),
            format!("{:.1}", self.rate(&self.interpreted_ns)),
            format!("{:.1}", self.rate(&self.compiled_ns)),
            format!("{ratio:.2}"),
            format!("{:.2}", self.ns_per_command(&self.interpreted_ns)),
            format!("{:.2}", self.ns_per_command(&self.compiled_ns)),
            format!("{:.2}", self.commands / self.references),
            format!("{:.4}", self.misses),
        ]
    }

    fn json(&self, label: &str, frames: u32) -> serde_json::Value {
        json!({
            "string": label, "program": self.name, "frames": frames,
            "references": self.references, "commands": self.commands, "miss_ratio": self.misses,
            "bare_cpu_ns": self.bare_ns, "native_cpu_ns": self.native_ns,
            "interpreted_cpu_ns": self.interpreted_ns, "compiled_cpu_ns": self.compiled_ns,
        })
    }
}
