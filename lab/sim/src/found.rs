//! The findings that a check may have in an image after a power cut.

use syncline_check::{Finding, FindingKind, Report};
use syncline_store::WIPED;

/// The first finding that no power cut explains. A power cut may tear a superblock that is being
/// written, since its slot is not the one with the newest durable superblock; but it never turns
/// one into zeros.
pub fn unexplained(report: &Report) -> Option<&Finding> {
    let torn =
        |finding: &Finding| finding.kind == FindingKind::SuperblockDamaged && !finding.text.ends_with(WIPED);
    report.findings.iter().find(|finding| !torn(finding))
}
