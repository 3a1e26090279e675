//! Checking whole images.

use super::from_bytes;
use super::mount::Input;
use crate::bases::{open, store_options};
use crate::run::{run, run_here};
use crate::walk::walk;
use std::sync::Arc;
use syncline_check::{CheckError, FINDINGS_MAX, Report};
use syncline_device::MemoryDevice;
use syncline_sim::Simulation;

/// Checks a changed image.
///
/// - It neither panics nor hangs, and returns a report or a proper error.
/// - The findings are bounded, and it writes nothing.
/// - A clean report means that the image opens and that everything in it can be read without an
///   error.
/// - The same image gives the same report.
pub fn check(bytes: &[u8]) {
    let Some(input) = from_bytes::<Input>(bytes) else { return };
    let device = input.case.device();
    let before = device.allocated_bytes();
    let Ok(report) = examine(&device) else { return };
    assert_eq!(device.allocated_bytes(), before, "a check writes nothing");
    assert!(report.findings.len() <= FINDINGS_MAX);
    assert!(report.findings_dropped == 0 || report.findings.len() == FINDINGS_MAX);
    if is_sound(&report) {
        let copy = device.snapshot();
        let walked = run(|world| async move {
            let fs = open(copy, &world, store_options(8, true)).await.expect("a sound image opens");
            walk(&fs).await
        });
        assert_eq!(walked.error, None, "a clean report, but {:#?}", input.case);
    }
}

/// Runs a check.
pub(super) fn examine(device: &Arc<MemoryDevice>) -> Result<Report, CheckError> {
    let simulation = Simulation::new(0);
    let mut tell = |_| {};
    let work = syncline_check::check(device.clone(), simulation.spawner(), &mut tell);
    run_here(work)
}

/// True if nothing is wrong and nothing was left out.
pub(super) fn is_sound(report: &Report) -> bool {
    report.is_clean() && !report.incomplete
}
