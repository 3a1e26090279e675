//! What a check may find in an image that a power cut left.

use syncline_check::{Finding, FindingKind, Report};
use syncline_store::WIPED;

/// What no power cut explains. A superblock that was being written may be torn, as its slot is not the newest durable one's; but it
/// does not become zeros.
pub fn unexplained(report: &Report) -> Option<&Finding> {
    let torn =
        |finding: &Finding| finding.kind == FindingKind::SuperblockDamaged && !finding.text.ends_with(WIPED);
    report.findings.iter().find(|finding| !torn(finding))
}
