//! Whether the kernel alone, or lru, was better than the policy that is recommended.

use super::findings::Row;
use crate::report::duration;
use crate::size::Size;
use serde::Serialize;

/// Each was run once: by how much the kernel's time has to be shorter to be so by more than chance.
const FASTER_MIN: f64 = 0.1;
const FASTER_NS_MIN: u64 = 20_000_000;
/// The kernel may have had so much more memory for pages than the policy: what the program and its
/// manager take is not known better.
const ROOM_MORE_MAX: f64 = 0.125;

/// By how much lru's time has to be shorter to be worth a word: it costs nothing to choose it.
const LRU_FASTER_MIN: f64 = 0.05;

/// What to say if lru was measured too, and was faster than the policy.
pub(super) fn lru_faster(rows: &[Row], policy: &str) -> Option<String> {
    let of = |name: &str| rows.iter().find(|row| row.name == name).map(|row| &row.measured);
    let (lru, chosen) = (of("lru")?.elapsed_ns as f64, of(policy)?.elapsed_ns as f64);
    (policy != "lru" && chosen > lru * (1.0 + LRU_FASTER_MIN)).then(|| {
        format!(
            "lru was faster when measured: {} instead of {} under {policy}. Each was run once; where \
             time matters more than what is read, measure again, or take lru",
            duration(lru),
            duration(chosen)
        )
    })
}

/// The memory that there was for pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// For a policy.
    pub(super) memory_bytes: u64,
    /// For the kernel: what its cgroup has beside what the program needs for itself.
    pub(super) kernel_bytes: u64,
    /// For all that the program touches.
    pub(super) touched_bytes: u64,
}

/// The kernel alone was faster than the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct KernelFaster {
    pub(super) kernel_elapsed_ns: u64,
    pub(super) policy_elapsed_ns: u64,
    /// What the kernel may have used for pages.
    pub(super) kernel_pages_bytes: u64,
    /// Both had about as much, or enough for everything.
    pub(super) fair: bool,
    /// What storage delivered under either, if it was a tenth less under the policy.
    pub(super) kernel_read_bytes: Option<u64>,
    pub(super) policy_read_bytes: Option<u64>,
}

impl KernelFaster {
    /// What the runs say: nothing if one of them was not made, or did something else, or if the kernel's
    /// was not the faster one beyond noise.
    pub(super) fn of(rows: &[Row], policy: &str, room: Room) -> Option<KernelFaster> {
        let of = |name: &str| {
            let row = rows.iter().find(|row| row.name == name)?;
            row.difference.is_none().then_some(&row.measured)
        };
        let (kernel, policy) = (of("kernel")?, of(policy)?);
        let found = KernelFaster::compare(kernel.elapsed_ns, policy.elapsed_ns, room)?;
        Some(found.with_reads(kernel.storage_read_bytes, policy.storage_read_bytes))
    }

    fn with_reads(self, kernel: Option<u64>, policy: Option<u64>) -> KernelFaster {
        match (kernel, policy) {
            (Some(of_kernel), Some(of_policy)) if of_policy < of_kernel / 10 * 9 => {
                KernelFaster { kernel_read_bytes: kernel, policy_read_bytes: policy, ..self }
            }
            _ => self,
        }
    }

    fn compare(kernel_elapsed_ns: u64, policy_elapsed_ns: u64, room: Room) -> Option<KernelFaster> {
        let saved_ns = policy_elapsed_ns.saturating_sub(kernel_elapsed_ns);
        let is_faster =
            saved_ns >= FASTER_NS_MIN && saved_ns as f64 > policy_elapsed_ns as f64 * FASTER_MIN;
        let fits = room.touched_bytes <= room.memory_bytes;
        let more = room.kernel_bytes as f64 / room.memory_bytes as f64 - 1.0;
        is_faster.then_some(KernelFaster {
            kernel_elapsed_ns,
            policy_elapsed_ns,
            kernel_pages_bytes: room.kernel_bytes,
            fair: fits || more <= ROOM_MORE_MAX,
            kernel_read_bytes: None,
            policy_read_bytes: None,
        })
    }

    fn times(&self) -> String {
        let (kernel, policy) = (self.kernel_elapsed_ns as f64, self.policy_elapsed_ns as f64);
        format!("{} instead of {}", duration(kernel), duration(policy))
    }

    /// Why the kernel is recommended.
    pub(super) fn reason(&self, policy: &str) -> String {
        let times = self.times();
        let mut text = format!(
            "run the program without pagekeeper; with as much memory, the kernel alone took {times} \
             under {policy}, the best policy by prediction"
        );
        if let (Some(kernel), Some(read)) = (self.kernel_read_bytes, self.policy_read_bytes) {
            let (kernel, read) = (Size(kernel), Size(read));
            text.push_str(&format!(
                ". This storage delivers pages about as fast as memory; where it is slower, or others \
                 need it, {policy} is worth another look: it read {read} where the kernel read {kernel}"
            ));
        }
        text
    }

    /// Why it is not, although it was faster.
    pub(super) fn caution(&self, policy: &str, room: Room) -> String {
        let has = if room.touched_bytes <= room.kernel_bytes {
            "enough for all that the program touches"
        } else {
            "which the policy did not have"
        };
        format!(
            "the kernel alone was faster than {policy} ({}), with more memory: the part \
             of the limit that is for the program and its manager left it up to {} for pages, {has}, \
             and the policy had {}. If that is there, run the program without pagekeeper, or give it \
             more with --memory",
            self.times(),
            Size(self.kernel_pages_bytes),
            Size(room.memory_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Measured;
    use super::*;

    const MS: u64 = 1_000_000;

    fn room(memory_mib: u64, kernel_mib: u64, touched_mib: u64) -> Room {
        let [memory_bytes, kernel_bytes, touched_bytes] =
            [memory_mib, kernel_mib, touched_mib].map(|mib| mib << 20);
        Room { memory_bytes, kernel_bytes, touched_bytes }
    }

    fn fair(kernel_ms: u64, policy_ms: u64, room: Room) -> Option<bool> {
        KernelFaster::compare(kernel_ms * MS, policy_ms * MS, room).map(|found| found.fair)
    }

    /// `tune` recommended a policy without a word where the table above said that lru took less time.
    #[test]
    fn that_lru_was_faster_is_said() {
        let row = |name: &str, ms: u64| Row {
            name: name.to_owned(),
            predicted: None,
            measured: Measured {
                major_faults: None,
                read_bytes: None,
                storage_read_bytes: None,
                device_read_bytes: None,
                elapsed_ns: ms * MS,
                cpu_ns: None,
                peak_bytes: None,
                exit_code: Some(0),
                stats: None,
            },
            difference: None,
        };
        let said = |mru: u64, lru: u64| lru_faster(&[row("mru", mru), row("lru", lru)], "mru");
        let text = said(1200, 1000).unwrap();
        assert!(text.contains("1.00 s instead of 1.20 s under mru"), "{text}");
        assert_eq!(said(1040, 1000), None);
        assert_eq!(said(800, 1000), None);
        assert_eq!(lru_faster(&[row("lru", 1000)], "lru"), None);
    }

    #[test]
    fn the_kernel_is_faster_beyond_noise_or_nothing_is_said() {
        let same = room(64, 68, 200);
        assert_eq!(fair(800, 1000, same), Some(true));
        assert_eq!(fair(950, 1000, same), None);
        assert_eq!(fair(1200, 1000, same), None);
        // A tenth of nothing is nothing.
        assert_eq!(fair(10, 25, same), None);
    }

    /// `tune --memory 4M` recommended lru (669 ms) and did not say that the kernel, with as much again
    /// for pages, took 456.
    #[test]
    fn more_memory_for_the_kernel_is_not_fair_unless_everything_fits_in_less() {
        assert_eq!(fair(456, 669, room(4, 8, 7)), Some(false));
        assert_eq!(fair(456, 669, room(4, 8, 3)), Some(true));
        let found = KernelFaster::compare(456 * MS, 669 * MS, room(4, 8, 7)).unwrap();
        let text = found.caution("lru", room(4, 8, 7));
        assert!(text.contains("456") && text.contains("up to 8"), "{text}");
        assert!(text.contains("enough for all that the program touches"), "{text}");
        let text = found.caution("lru", room(4, 8, 70));
        assert!(text.contains("which the policy did not have"), "{text}");
        assert!(found.reason("lru").ends_with("the best policy by prediction"));
        let same = found.clone().with_reads(Some(200 << 20), Some(190 << 20));
        assert_eq!(same, found, "a little less is nothing");
        let less = found.with_reads(Some(200 << 20), Some(100 << 20)).reason("mru");
        assert!(less.ends_with("it read 100 MiB where the kernel read 200 MiB"), "{less}");
    }
}
