//! Findings in words, with the paths of the files that they are about.

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
}
