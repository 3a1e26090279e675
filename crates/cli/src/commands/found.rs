//! Findings in words, with the paths of the files that they are about.

use crate::printed::several;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use syncline::{Filesystem, ImageOptions};
use syncline_check::{Finding, FindingKind};

/// A path of each inode that has one.
pub type Paths = BTreeMap<u64, String>;

/// A path of each inode that a finding is about, as far as the image can be read. Of a snapshot's
/// inodes there are none: their numbers may belong to other files by now.
pub fn paths<'a>(image: &Path, findings: impl IntoIterator<Item = &'a Finding>) -> Paths {
    let present = findings.into_iter().filter(|finding| finding.kind != FindingKind::SnapshotDamaged);
    let inodes: BTreeSet<u64> = present.filter_map(|finding| finding.object).collect();
    if inodes.is_empty() {
        return Paths::new();
    }
    let Ok(fs) = Filesystem::open(image, ImageOptions::read_only()) else { return Paths::new() };
    let path = |inode| fs.paths(inode).ok()?.into_iter().next();
    let named = |inode| Some((inode, String::from_utf8_lossy(&path(inode)?).into_owned()));
    inodes.into_iter().filter_map(named).collect()
}

/// `SL0023 data-damaged, inode 14 (/mail/inbox), block 900: ...`
pub fn line(
    [id, name, text]: [&str; 3],
    inode: Option<u64>,
    block: Option<u64>,
    path: Option<&str>,
) -> String {
    let mut line = format!("{id} {name}");
    if let Some(inode) = inode {
        let _ = write!(line, ", inode {inode}");
    }
    if let Some(path) = path {
        let _ = write!(line, " ({path})");
    }
    if let Some(block) = block {
        let _ = write!(line, ", block {block}");
    }
    line + ": " + text
}

/// The line of a finding.
pub fn of_finding(finding: &Finding, paths: &Paths) -> String {
    let words = [finding.kind.id(), finding.kind.name(), &finding.text];
    let known = finding.object.filter(|_| finding.kind != FindingKind::SnapshotDamaged);
    let path = known.and_then(|inode| paths.get(&inode)).map(String::as_str);
    line(words, finding.object, finding.block, path)
}

/// True for the damage of the next block of the same file.
pub fn follows(one: &Finding, next: &Finding) -> bool {
    let is_data = matches!(one.kind, FindingKind::DataDamaged | FindingKind::DataUnreadable);
    let same = one.kind == next.kind && one.object == next.object;
    same && is_data && one.block.is_some_and(|at| next.block == Some(at + 1))
}

/// The first finding of each run, and how many follow it there.
pub fn runs<T>(findings: &[T], follows: impl Fn(&T, &T) -> bool) -> impl Iterator<Item = (&T, u64)> {
    findings.chunk_by(move |one, next| follows(one, next)).map(|run| (&run[0], run.len() as u64 - 1))
}

/// The words behind the first finding of a run, if more follow it there.
pub fn and_more(more: u64) -> String {
    match more {
        0 => String::new(),
        more => format!(
            ", and the same of {} that {}",
            several(more, "block", "blocks"),
            if more == 1 { "follows" } else { "follow" }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_with_its_inode() {
        let finding = |kind, object| Finding { kind, object, block: Some(9), text: "rotten".to_owned() };
        let paths = Paths::from([(14, "/mail/inbox".to_owned())]);
        let told = |kind, object| of_finding(&finding(kind, object), &paths);
        let damaged = FindingKind::DataDamaged;
        assert_eq!(told(damaged, Some(14)), "SL0023 data-damaged, inode 14 (/mail/inbox), block 9: rotten");
        assert_eq!(told(damaged, Some(15)), "SL0023 data-damaged, inode 15, block 9: rotten");
        assert_eq!(told(damaged, None), finding(damaged, None).to_string());
        let kept = told(FindingKind::SnapshotDamaged, Some(14));
        assert_eq!(kept, "SL0042 snapshot-damaged, inode 14, block 9: rotten");
    }

    #[test]
    fn blocks_in_a_row_are_one_run() {
        let finding = |kind, object, block| Finding { kind, object, block, text: String::new() };
        let (damaged, node) = (FindingKind::DataDamaged, FindingKind::NodeDamaged);
        let all = [
            finding(damaged, Some(3), Some(10)),
            finding(damaged, Some(3), Some(11)),
            finding(damaged, Some(3), Some(12)),
            finding(damaged, Some(3), Some(14)),
            finding(damaged, Some(4), Some(15)),
            finding(node, None, Some(16)),
            finding(node, None, Some(17)),
        ];
        let runs: Vec<_> = runs(&all, follows).map(|(first, more)| (first.block.unwrap(), more)).collect();
        assert_eq!(runs, [(10, 2), (14, 0), (15, 0), (16, 0), (17, 0)]);
        assert_eq!((&*and_more(0), &*and_more(1)), ("", ", and the same of 1 block that follows"));
    }
}
