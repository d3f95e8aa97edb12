//! What `tune` found out, for people and for programs.

use super::contender::{Ended, RunStats};
use super::forecast::{Forecast, Predicted};
use super::verdict::{KernelFaster, Room, lru_faster};
use crate::job::Job;
use crate::report::{count, duration, table};
use crate::size::Size;
use pagekeeper_frames::SamplingShare;
use serde::Serialize;
use std::fmt::Write;

/// Everything; its JSON is relied on by scripts.
#[derive(Serialize)]
pub(super) struct Findings {
    command: Vec<String>,
    memory_bytes: u64,
    /// The most that seeing touches may cost, in percent of the time that misses take.
    sampling_percent: u32,
    /// Policy that is recommended, or `kernel`: not to use us at all.
    recommended: String,
    reason: String,
    /// The best policy by prediction.
    recommended_policy: String,
    /// What was measured of the kernel alone, if it was faster than that.
    kernel_faster: Option<KernelFaster>,
    /// Why the kernel is not recommended all the same; that lru was faster than what is.
    caution: Option<String>,
    touched_bytes: u64,
    /// Limit of the cgroups, where there were any.
    pub(super) limit_bytes: Option<u64>,
    /// Part of it that is for the program and its manager.
    pub(super) allowance_bytes: u64,
    recording: Option<RunStats>,
    recorded_policy: String,
    output_bytes: u64,
    /// All policies at the given memory, the one that reads least first.
    policies: Vec<Predicted>,
    /// The recommended policy and lru with other memory.
    sizes: Vec<Predicted>,
    /// What was predicted and measured.
    #[serde(rename = "runs")]
    pub(super) rows: Vec<Row>,
    /// Why the kernel was not measured.
    pub(super) kernel_skipped: Option<String>,
    /// Every run gave the output and exit code of the first.
    pub(super) same_output: bool,
}

/// One contender.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) predicted: Option<Predicted>,
    pub(super) measured: Measured,
    /// How its output or end was not that of the first run.
    pub(super) difference: Option<String>,
}

/// What was measured.
#[derive(Serialize)]
pub(super) struct Measured {
    /// Counted by us; by the kernel, for itself.
    pub(super) major_faults: Option<u64>,
    /// Counted by us.
    pub(super) read_bytes: Option<u64>,
    /// Counted by the kernel's block layer for the run's processes.
    pub(super) storage_read_bytes: Option<u64>,
    /// Counted by the device that holds the files, for the whole machine.
    pub(super) device_read_bytes: Option<u64>,
    pub(super) elapsed_ns: u64,
    /// CPU time of all threads of all processes, ours too.
    pub(super) cpu_ns: Option<u64>,
    /// The most that the cgroup held.
    pub(super) peak_bytes: Option<u64>,
    pub(super) exit_code: Option<i32>,
    pub(super) stats: Option<RunStats>,
}

impl Measured {
    pub(super) fn of(ended: &Ended) -> Measured {
        let stats = ended.stats.as_ref();
        Measured {
            major_faults: stats.map(|s| s.major_faults).or(ended.kernel_major_faults),
            read_bytes: stats.map(|s| s.read_bytes),
            storage_read_bytes: ended.io.map(|io| io.read_bytes),
            device_read_bytes: ended.device_read_bytes,
            elapsed_ns: ended.elapsed_ns,
            cpu_ns: ended.cpu.map(|cpu| cpu.own_ns + cpu.children_ns),
            peak_bytes: ended.peak_bytes,
            exit_code: ended.status.code(),
            stats: ended.stats.clone(),
        }
    }
}

impl Findings {
    pub(super) fn new(job: &Job, recorded: &Ended, forecast: &Forecast) -> Findings {
        Findings {
            command: job.command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            memory_bytes: job.memory.0,
            sampling_percent: job.sampling.percent(),
            recommended: forecast.best().to_string(),
            reason: forecast.reason.clone(),
            recommended_policy: forecast.best().to_string(),
            kernel_faster: None,
            caution: None,
            touched_bytes: forecast.touched_bytes,
            limit_bytes: None,
            allowance_bytes: 0,
            recording: recorded.stats.clone(),
            recorded_policy: job.policy.to_string(),
            output_bytes: recorded.output.bytes(),
            policies: forecast.at_memory.clone(),
            sizes: forecast.at_sizes.clone(),
            rows: Vec::new(),
            kernel_skipped: None,
            same_output: true,
        }
    }

    /// All runs were made: whether the kernel was better, with this much memory for what the program
    /// needs for itself.
    pub(super) fn conclude(&mut self, peak_program_bytes: u64) {
        self.caution = lru_faster(&self.rows, &self.recommended_policy);
        let Some(limit_bytes) = self.limit_bytes else { return };
        let room = Room {
            memory_bytes: self.memory_bytes,
            kernel_bytes: limit_bytes.saturating_sub(peak_program_bytes),
            touched_bytes: self.touched_bytes,
        };
        let policy = &self.recommended_policy;
        self.kernel_faster = KernelFaster::of(&self.rows, policy, room);
        match &self.kernel_faster {
            Some(found) if found.fair => {
                self.reason = found.reason(policy);
                self.recommended = "kernel".to_owned();
                self.caution = None;
            }
            Some(found) => {
                let of_kernel = found.caution(policy, room);
                self.caution = Some(match self.caution.take() {
                    Some(of_lru) => format!("{of_lru}. And {of_kernel}"),
                    None => of_kernel,
                });
            }
            None => {}
        }
    }

    /// For people.
    pub(super) fn as_text(&self) -> String {
        let mut text = format!("\nPredicted in {}, least read first\n\n", Size(self.memory_bytes));
        text.push_str(&self.policies_table());
        let _ = writeln!(text, "\nPredicted reads with other memory\n\n{}", self.sizes_table());
        let _ = write!(text, "Predicted and measured\n\n{}", self.measured_table());
        text.push_str(&self.legend());
        let _ = writeln!(text, "\nRecommended: {}: {}.", self.recommended, self.reason);
        if let Some(caution) = &self.caution {
            let _ = writeln!(text, "But {caution}.");
        }
        text
    }

    fn policies_table(&self) -> String {
        let rows = self.policies.iter().map(|p| {
            vec![
                p.policy.clone(),
                count(p.major_faults),
                Size(p.read_bytes).to_string(),
                Size(p.written_bytes).to_string(),
                duration(p.elapsed_ns as f64),
            ]
        });
        table(&["policy", "major faults", "read", "written", "time"], 1, rows)
    }

    fn sizes_table(&self) -> String {
        let mut sizes: Vec<u64> = self.sizes.iter().map(|p| p.memory_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut policies: Vec<&str> = self.sizes.iter().map(|p| p.policy.as_str()).collect();
        policies.dedup();
        let rows = policies.iter().map(|policy| {
            let at = |size: &u64| {
                let found =
                    self.sizes.iter().find(|p| p.policy == *policy && p.memory_bytes == *size);
                found.map_or_else(String::new, |p| Size(p.read_bytes).to_string())
            };
            [(*policy).to_owned()].into_iter().chain(sizes.iter().map(at)).collect()
        });
        let sizes: Vec<String> = sizes.iter().map(|size| Size(*size).to_string()).collect();
        let headings: Vec<&str> =
            ["policy"].into_iter().chain(sizes.iter().map(String::as_str)).collect();
        table(&headings, 1, rows)
    }

    fn measured_table(&self) -> String {
        let none = || "–".to_owned();
        let rows = self.rows.iter().map(|row| {
            let predicted = row.predicted.as_ref();
            let measured = &row.measured;
            let bytes = |bytes: Option<u64>| bytes.map_or_else(none, |b| Size(b).to_string());
            vec![
                row.name.clone(),
                predicted.map_or_else(none, |p| count(p.major_faults)),
                measured.major_faults.map_or_else(none, count),
                bytes(predicted.map(|p| p.read_bytes)),
                bytes(measured.read_bytes),
                bytes(measured.storage_read_bytes),
                bytes(predicted.map(|p| p.written_bytes)),
                bytes(measured.stats.as_ref().map(|s| s.written_bytes)),
                predicted.map_or_else(none, |p| duration(p.elapsed_ns as f64)),
                duration(measured.elapsed_ns as f64),
            ]
        });
        let headings = [
            "run",
            "major faults\npredicted",
            "\nmeasured",
            "read\npredicted",
            "\nmeasured",
            "\nby storage",
            "written\npredicted",
            "\nmeasured",
            "time\npredicted",
            "\nmeasured",
        ];
        table(&headings, 1, rows)
    }

    fn legend(&self) -> String {
        let mut text = String::from(
            "\nA major fault is a page that the program had to wait for; `read` is what was \
             fetched from storage\nfor whatever reason, as we count it and as the kernel's block \
             layer does.\n",
        );
        if self.rows.iter().any(|row| row.name == "kernel") {
            text.push_str(
                "The kernel counts those of mapped pages alone, and none of reads by calls.\n",
            );
        }
        if self.sampling_percent != SamplingShare::USUAL.percent() {
            let _ = writeln!(
                text,
                "Touches of mapped pages were seen for at most {}% of the time that misses take.",
                self.sampling_percent
            );
        }
        if self.rows.iter().any(|row| row.name.split(':').next() == Some("auto")) {
            text.push_str(
                "auto managed files from their first use, as with `run --from-start`; without that it leaves \
                 them\nto the kernel as long as nothing can be won, in a cgroup \
                 that bounds the page cache.\n",
            );
        }
        match (self.limit_bytes, &self.kernel_skipped) {
            (Some(limit), skipped) => {
                let _ = writeln!(
                    text,
                    "Each run had {} of memory in all: {}, and {} for the program and its manager.",
                    Size(limit),
                    Size(self.memory_bytes),
                    Size(self.allowance_bytes)
                );
                if let Some(reason) = skipped {
                    let _ = writeln!(text, "The kernel has no result: {reason}.");
                }
            }
            (None, Some(reason)) => {
                let _ =
                    writeln!(text, "The kernel was not measured under the same limit: {reason}.");
            }
            (None, None) => {}
        }
        let different: Vec<&Row> = self.rows.iter().filter(|r| r.difference.is_some()).collect();
        if different.is_empty() {
            let _ = writeln!(
                text,
                "Same answers: every run gave the same output ({}) and exit code.",
                Size(self.output_bytes)
            );
        }
        for row in different {
            let difference = row.difference.as_deref().unwrap_or_default();
            let _ = writeln!(text, "DIFFERENT ANSWER under {}: {difference}.", row.name);
        }
        text
    }
}
