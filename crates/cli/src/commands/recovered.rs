//! The result of opening an image, in words and as an exit code.

use crate::failure::Cause;
use crate::printed::left_out;
use std::path::Path;
use syncline::RecoveryReport;

/// Reports a recovery that is worth mentioning.
pub fn tell(image: &Path, report: &RecoveryReport) {
    for note in &report.notes {
        note!("syncline: {}: {note}", image.display());
    }
    if report.discarded_batches > 0 {
        note!("syncline: {}: {}", image.display(), left_out(report.discarded_batches));
    }
}

/// The exit code of a command that has done its work, with what could be read.
pub fn code(report: &RecoveryReport) -> u8 {
    if report.incomplete { Cause::Damaged as u8 } else { 0 }
}
