//! Checking whole images.

use super::from_bytes;
use super::mount::Input;
use crate::bases::{open, store_options};
use crate::hard::{examine, is_sound};
use crate::run::run;
use crate::walk::walk;
use syncline_check::FINDINGS_MAX;

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
