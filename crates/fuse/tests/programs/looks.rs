//! Compares answers, and a whole mount, with the model.

use super::contents::difference;
use super::model::{END, Kept, Model};
use super::step::Step;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use syncline_fs::types::{Ino, ROOT};
use syncline_sim::model::{Body, Tree};

/// How the names of directories begin in which the program counts; the model does not have them.
pub const COUNTS: &str = "counts-";

/// Compares the answer to a step with the expected answer. The model has the step already.
pub fn check(model: &Model, step: &Step, answer: &[u8]) -> Result<(), String> {
    match step {
        Step::Read(part) | Step::Load(part) => {
            compare(answer, &model.read(model.slots[&part.slot].ino, part.offset, part.len))
        }
        Step::ReadWhole(at) | Step::MapWhole(at) => {
            compare(answer, &model.whole(model.tree().find(at).expect("it exists")))
        }
        Step::Write(part, _) => {
            let written = u64::from_ne_bytes(answer.try_into().expect("a number"));
            if written == part.len as u64 { Ok(()) } else { Err(format!("{written} bytes are written")) }
        }
        Step::List { dir, .. } => {
            let text = String::from_utf8_lossy(answer);
            let mut found: Vec<&str> = text.lines().filter(|name| !name.starts_with(COUNTS)).collect();
            found.sort_unstable();
            let expected = model.names_in(*dir);
            if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
        }
        Step::Stat(at) => check_stat(model, model.tree().find(at).expect("it exists"), answer),
        Step::Seek(slot) => check_holes(&model.whole(model.slots[slot].ino), answer),
        _ => Ok(()),
    }
}

fn compare(found: &[u8], expected: &[u8]) -> Result<(), String> {
    difference(found, expected).map_or(Ok(()), Err)
}

fn check_stat(model: &Model, ino: Ino, answer: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(answer);
    let numbers: Vec<i64> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
    let node = &model.tree().nodes[&ino];
    let expected = [model.size(ino) as i64, i64::from(node.nlink), i64::from(node.permissions)];
    if numbers[..3] != expected {
        return Err(format!("size, links and mode are {:?}, not {expected:?}", &numbers[..3]));
    }
    if model.mtime(ino).is_some_and(|mtime| mtime != numbers[3]) {
        return Err(format!("the time is {}, not {:?}, which was set", numbers[3], model.mtime(ino)));
    }
    if numbers[4] == 0 && model.whole(ino).iter().any(|byte| *byte != 0) {
        return Err("a file with data has no blocks".into());
    }
    Ok(())
}

/// Where SEEK_DATA and SEEK_HOLE tell of no data, there are zeros.
fn check_holes(contents: &[u8], answer: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(answer);
    let mut at = 0;
    for line in text.lines() {
        let (start, end) = line.split_once(' ').expect("two numbers");
        let (start, end): (usize, usize) = (start.parse().expect("one"), end.parse().expect("one"));
        if !(at <= start && start < end && end <= contents.len()) {
            return Err(format!("data from {start} to {end} behind {at}, of {} bytes", contents.len()));
        }
        if contents[at..start].iter().any(|byte| *byte != 0) {
            return Err(format!("{at} to {start} is told for a hole, and has data"));
        }
        at = end;
    }
    if contents[at..].iter().any(|byte| *byte != 0) {
        return Err(format!("everything from {at} on is told for a hole, and has data"));
    }
    Ok(())
}

/// The contents of a mount.
#[derive(Default)]
pub struct Found {
    /// The entries of each directory, by its path.
    directories: BTreeMap<String, BTreeMap<String, (u64, u32)>>,
    contents: BTreeMap<u64, Vec<u8>>,
    /// The entries of directories in which the program counts, and the count that its data has come to.
    counts: Vec<(BTreeSet<String>, String)>,
}

impl Found {
    /// Reads everything below `root`.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut found = Self::default();
        let mut waiting = vec![String::new()];
        while let Some(dir) = waiting.pop() {
            let failed = |error: std::io::Error| format!("{dir}/: {error}");
            let mut entries = BTreeMap::new();
            for entry in std::fs::read_dir(root.join(&dir)).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name().into_string().expect("ours are text");
                if name.starts_with(COUNTS) {
                    found.counts.push(read_count(&entry.path()).map_err(failed)?);
                    continue;
                }
                let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
                let metadata = entry.metadata().map_err(failed)?;
                if metadata.is_dir() {
                    waiting.push(path);
                } else {
                    let contents = std::fs::read(entry.path()).map_err(|error| format!("{path}: {error}"))?;
                    found.contents.insert(metadata.ino(), contents);
                }
                entries.insert(name, (metadata.ino(), metadata.mode() & 0o7777));
            }
            found.directories.insert(dir, entries);
        }
        Ok(found)
    }

    /// Finds for each file of a tree the inode that has its names here; an error if the names are
    /// others.
    fn inodes(&self, tree: &Tree) -> Result<BTreeMap<Ino, u64>, String> {
        let mut inodes = BTreeMap::new();
        let mut waiting = vec![(ROOT, String::new())];
        while let Some((dir, path)) = waiting.pop() {
            let Body::Directory(entries) = &tree.nodes[&dir].body else { unreachable!("a directory") };
            let found = self.directories.get(&path).ok_or_else(|| format!("{path}/ is no directory"))?;
            let expected: Vec<String> =
                entries.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            if !found.keys().eq(&expected) {
                let found: Vec<_> = found.keys().collect();
                return Err(format!("{path}/ has {found:?}, not {expected:?}"));
            }
            for (name, ino) in expected.into_iter().zip(entries.values()) {
                let (inode, mode) = found[&name];
                let node = &tree.nodes[ino];
                if mode != u32::from(node.permissions) {
                    return Err(format!("the mode of {path}/{name} is {mode:o}, not {:o}", node.permissions));
                }
                if *inodes.entry(*ino).or_insert(inode) != inode {
                    return Err(format!("{path}/{name} is another file than its other names"));
                }
                if node.is_directory() {
                    waiting.push((*ino, name));
                }
            }
        }
        Ok(inodes)
    }

    fn check_with(
        &self,
        tree: &Tree,
        mut check: impl FnMut(Ino, &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        for (ino, inode) in self.inodes(tree)? {
            if let Some(contents) = self.contents.get(&inode) {
                check(ino, contents).map_err(|what| format!("file {ino}: {what}"))?;
            }
        }
        Ok(())
    }

    /// Everything is there.
    pub fn check_all(&self, model: &Model) -> Result<(), String> {
        self.check_with(&model.tree(), |ino, found| compare(found, &model.whole(ino)))
    }

    /// A prefix of the changes is there that has everything that was promised.
    pub fn check_after_crash(&self, model: &Model) -> Result<(), String> {
        let history = model.history();
        let least = history.promised_at(END);
        let mut wrong = Vec::new();
        for (op, tree) in history.trees_between(least, model.last_op())?.into_iter().rev() {
            let carried = history.carried_by_names(op);
            let checked = self.check_with(&tree, |ino, found| {
                let carried = carried.get(&ino).map_or(&[][..], Vec::as_slice);
                history.check_file(ino, found, (op, END), carried)
            });
            match checked {
                Ok(()) => return Ok(()),
                Err(what) => wrong.push(format!("not after change {op}: {what}")),
            }
        }
        wrong.truncate(6);
        Err(format!("of changes {least} to {} it shows none:\n  {}", model.last_op(), wrong.join("\n  ")))
    }

    /// A snapshot is one moment.
    pub fn check_kept(&self, model: &Model, kept: &Kept) -> Result<(), String> {
        self.counts.iter().try_for_each(check_count)?;
        let tree = model.history().tree_after(kept.op)?;
        self.check_with(&tree, |ino, found| kept.check(model, ino, found))
    }
}

fn read_count(dir: &Path) -> std::io::Result<(BTreeSet<String>, String)> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        names.insert(entry?.file_name().into_string().expect("ours are text"));
    }
    names.retain(|name| !name.starts_with("other"));
    let count =
        if names.remove("count") { std::fs::read_to_string(dir.join("count"))? } else { String::new() };
    Ok((names, count))
}

/// A program that counts in data, then in names, was at one place: data is never behind names, and at
/// most one number ahead.
fn check_count((names, count): &(BTreeSet<String>, String)) -> Result<(), String> {
    let named = names.len() as u64;
    if let Some(missing) = (1..=named).find(|number| !names.contains(&number.to_string())) {
        return Err(format!("of {named} names it has, {missing} is missing"));
    }
    match count.parse().unwrap_or(0) {
        count if count == named || count == named + 1 => Ok(()),
        count => Err(format!("data counts {count}, names {named}: it is no moment")),
    }
}
