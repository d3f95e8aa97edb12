//! The doctor on the machine at hand, with each capability masked in turn. One test function: the
//! mask is the process's.

use std::path::Path;

use pagekeeper_sys::doctor::{Mode, Status, probe};
use pagekeeper_sys::mask::{self, Capability, Mask};

#[test]
fn every_capability_is_probed_and_can_be_masked() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    mask::set(Mask::NONE);
    let full = probe(directory);
    assert!(full.findings.iter().map(|f| f.capability).eq(Capability::ALL.iter().copied()));
    for f in &full.findings {
        println!("{:<22} {:<8} {} {:?}", f.capability, f.status, f.reason, f.remedy);
        assert!(!f.reason.is_empty());
        let told = f.remedy.as_ref().is_some_and(|r| !r.is_empty()) || f.reason.contains("; run");
        assert!(f.status != Status::Denied || told, "{f:?}");
    }
    assert!(full.verdict(Mode::Simulate).works);

    for &hidden in Capability::ALL {
        mask::set(Mask::NONE.with(hidden));
        let report = probe(directory);
        let finding = report.finding(hidden).unwrap();
        assert_eq!(finding.status, Status::Missing, "{hidden}");
        assert!(finding.reason.contains("mask"), "{hidden}");
        // Nothing else may be lost, save what builds on it.
        for f in &full.findings {
            let builds_on = f.capability == hidden
                // WP_ASYNC is asked of shared memory.
                || (f.capability == Capability::WpAsync && hidden == Capability::WpShmem)
                // A page that is in the memfd is mapped, protected.
                || (f.capability == Capability::WpContinue
                    && matches!(hidden, Capability::MinorShmem | Capability::WpShmem))
                // Where a full descriptor is denied, the probes use the other kind.
                || (hidden == Capability::UserfaultUserMode && !full.works(Capability::Userfault));
            if f.status == Status::Works && !builds_on {
                let now = report.finding(f.capability);
                assert!(report.works(f.capability), "without {hidden}: {now:?}");
            }
        }
    }
    let left = std::fs::read_dir(directory).unwrap().filter_map(Result::ok);
    let scratch = left.filter(|e| e.file_name().to_string_lossy().starts_with(".pagekeeper"));
    assert_eq!(scratch.count(), 0, "scratch files were left");
    mask::set(Mask::NONE);
    let nowhere = probe(Path::new("/nonexistent"));
    // Where no scratch file can be made, nothing is known of files, and nothing claimed.
    for capability in [Capability::DirectIo, Capability::DontCache, Capability::Leases] {
        let finding = nowhere.finding(capability).unwrap();
        assert_eq!(finding.status, Status::Unknown, "{finding:?}");
        assert!(finding.remedy.as_ref().is_some_and(|r| r.contains("doctor DIR")), "{finding:?}");
    }
}
