//! Compares names with inodes: every name must lead to an inode, every inode must have its names,
//! every directory must be reachable from the root.

use crate::finding::{FindingKind, Report};
use crate::object::DIRECTORY;
use crate::parents::NameFacts;

const ROOT: u64 = 1;

/// Facts kept about an inode.
pub(crate) struct InodeFacts {
    pub(crate) number: u64,
    /// A directory's parent, according to its inode item.
    pub(crate) parent: u64,
    /// The directory that names it; the last one if several do. 0: none.
    pub(crate) named_by: u64,
    pub(crate) nlink: u32,
    /// Entries of a directory that are directories.
    pub(crate) subdirectories: u32,
    pub(crate) file_type: u8,
}

/// Facts kept about a name.
struct Entry {
    inode: u64,
    directory: u64,
    file_type: u8,
    /// Hash of the name.
    hash: u64,
}

/// Facts from the items, for the comparison.
#[derive(Default)]
pub(crate) struct Facts {
    /// Ascending.
    inodes: Vec<InodeFacts>,
    entries: Vec<Entry>,
    /// Parent pointers.
    pub(crate) pointers: Vec<NameFacts>,
    /// Ascending.
    orphans: Vec<u64>,
    /// Objects whose inode item is missing or can't be decoded. Ascending.
    unknown: Vec<u64>,
}

impl Facts {
    pub(crate) fn inode(&mut self, inode: InodeFacts) {
        self.inodes.push(inode);
    }

    pub(crate) fn entry(&mut self, inode: u64, directory: u64, file_type: u8, hash: u64) {
        self.entries.push(Entry { inode, directory, file_type, hash });
    }

    /// Entries of inodes that exist and can be read, in the order of the inodes.
    pub(crate) fn named(&self) -> Vec<NameFacts> {
        let known = self.entries.iter().filter(|entry| self.find(entry.inode).is_some());
        let facts =
            known.map(|entry| NameFacts { inode: entry.inode, directory: entry.directory, hash: entry.hash });
        facts.collect()
    }

    pub(crate) fn mark_orphan(&mut self, inode: u64) {
        self.orphans.push(inode);
    }

    pub(crate) fn unknown(&mut self, object: u64) {
        self.unknown.push(object);
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.inodes.binary_search_by_key(&number, |inode| inode.number).ok()
    }
}

/// Compares everything. All items must have been read.
pub(crate) fn compare(mut facts: Facts, report: &mut Report) {
    facts.entries.sort_unstable_by_key(|entry| (entry.inode, entry.directory));
    let entries = std::mem::take(&mut facts.entries);
    for named in entries.chunk_by(|a, b| a.inode == b.inode) {
        let number = named[0].inode;
        match facts.find(number) {
            Some(index) => {
                types(&facts.inodes[index], named, report);
                facts.inodes[index].named_by = named[named.len() - 1].directory;
                links(&facts.inodes[index], named, report);
            }
            None if facts.unknown.binary_search(&number).is_ok() => {}
            None => {
                for entry in named {
                    let text = format!("an entry names inode {number}, which does not exist");
                    report.object(FindingKind::DanglingEntry, entry.directory, text);
                }
            }
        }
    }
    drop(entries);
    for inode in &facts.inodes {
        if inode.named_by == 0 {
            links(inode, &[], report);
        }
        orphan_mark(&facts, inode, report);
    }
    for &orphan in &facts.orphans {
        report.orphans += 1;
        if facts.find(orphan).is_none() && facts.unknown.binary_search(&orphan).is_err() {
            report.object(FindingKind::OrphanMark, orphan, "marked for removal, but there is no inode");
        }
    }
    if facts.find(ROOT).is_none_or(|root| facts.inodes[root].file_type != DIRECTORY) {
        report.object(FindingKind::RootMissing, ROOT, "there is no root directory");
    }
    reachability(&facts, report);
}

fn types(inode: &InodeFacts, named: &[Entry], report: &mut Report) {
    for entry in named.iter().filter(|entry| entry.file_type != inode.file_type) {
        let text = format!(
            "the entry in directory {} says type {:#o}, the inode {:#o}",
            entry.directory, entry.file_type, inode.file_type
        );
        report.object(FindingKind::EntryType, inode.number, text);
    }
}

/// Link counts and names of one inode.
fn links(inode: &InodeFacts, named: &[Entry], report: &mut Report) {
    let mut add = |kind, text: String| report.object(kind, inode.number, text);
    let names = named.len() as u64;
    if inode.file_type != DIRECTORY {
        if inode.nlink > 0 && names == 0 {
            add(
                FindingKind::UnnamedInode,
                format!("its link count is {}, but nothing names it", inode.nlink),
            );
        } else if u64::from(inode.nlink) != names {
            add(FindingKind::LinkCount, format!("its link count is {}, it has {names} names", inode.nlink));
        }
        return;
    }
    if inode.nlink == 0 {
        // Removed, but still open at the crash.
        if names > 0 {
            add(FindingKind::LinkCount, format!("its link count is 0, it has {names} names"));
        }
        return;
    }
    let expected = inode.subdirectories.saturating_add(2);
    if inode.nlink != expected {
        let subdirectories = inode.subdirectories;
        let text =
            format!("its link count is {}, not {expected} ({subdirectories} subdirectories)", inode.nlink);
        add(FindingKind::LinkCount, text);
    }
    match (inode.number == ROOT, named) {
        (true, []) => {}
        (true, [_, ..]) => add(FindingKind::DirectoryNames, "the root directory has a name".into()),
        (false, []) => add(FindingKind::UnnamedInode, "nothing names this directory".into()),
        (false, [entry]) if entry.directory != inode.parent => add(
            FindingKind::DirectoryParent,
            format!("its parent is {}, but directory {} names it", inode.parent, entry.directory),
        ),
        (false, [_]) => {}
        (false, _) => add(FindingKind::DirectoryNames, format!("it has {names} names")),
    }
}

fn orphan_mark(facts: &Facts, inode: &InodeFacts, report: &mut Report) {
    let marked = facts.orphans.binary_search(&inode.number).is_ok();
    match (inode.nlink == 0, marked) {
        (true, false) => {
            let text = "its link count is 0, but it is not marked for removal";
            report.object(FindingKind::OrphanMark, inode.number, text);
        }
        (false, true) => {
            let text = format!("it is marked for removal, but its link count is {}", inode.nlink);
            report.object(FindingKind::OrphanMark, inode.number, text);
        }
        _ => {}
    }
}

/// State of the walk from a directory up to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// On the path being followed.
    Here,
    /// Followed to its end.
    Known,
}

/// Finds directories that are their own ancestors. A path that ends at a directory without a name
/// needs no finding here: that directory has one already.
fn reachability(facts: &Facts, report: &mut Report) {
    let mut ways = vec![Way::Unknown; facts.inodes.len()];
    let mut path = Vec::new();
    for start in 0..facts.inodes.len() {
        let mut next = (facts.inodes[start].file_type == DIRECTORY).then_some(start);
        while let Some(index) = next {
            match ways[index] {
                Way::Known => break,
                Way::Here => {
                    let text = "it lies, by way of its parents, in itself";
                    report.object(FindingKind::Unreachable, facts.inodes[index].number, text);
                    break;
                }
                Way::Unknown => {
                    ways[index] = Way::Here;
                    path.push(index);
                    let named_by = facts.inodes[index].named_by;
                    next = (named_by != 0).then(|| facts.find(named_by)).flatten();
                }
            }
        }
        path.drain(..).for_each(|index| ways[index] = Way::Known);
    }
}
