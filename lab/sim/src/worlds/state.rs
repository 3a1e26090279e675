//! A whole small filesystem at one time and the effect of each call: a tree with the contents of its files,
//! quotas and snapshots. Calls fail as in POSIX, with the errno.

use super::feature::follow_mode;
use super::step::{Path, Step};
use crate::block_of;
use crate::content::shrinking_block_of;
use crate::model::{Body, Node, Place, RenameKind, Tree};
use libc::{EDQUOT, EINVAL, EISDIR, ENOENT, EXDEV};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::BLOCK_BYTES;
use syncline_fs::types::{Ino, ROOT};
use syncline_fs::{Allocation, QuotaLimits};

/// All inodes with their contents, and what the filesystem has beside them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// Names, attributes and contents.
    pub tree: Tree<Vec<u8>>,
    /// Limits of the trees below these directories. From here on the fields exist only in the
    /// model.
    pub quotas: BTreeMap<Ino, QuotaLimits>,
    /// For each inode, the directory in whose quota it counts.
    pub members: BTreeMap<Ino, Ino>,
    /// Snapshots.
    pub snapshots: BTreeMap<Path, Arc<State>>,
}

/// The bytes that the call with this tag writes at `offset`. No two sectors of any two calls are
/// equal. Two of three calls write compressible data.
pub fn contents(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let first = offset / BLOCK_BYTES as u64;
    let last = (offset + len as u64).div_ceil(BLOCK_BYTES as u64);
    let skip = (offset % BLOCK_BYTES as u64) as usize;
    let block = if tag % 3 == 1 { block_of } else { shrinking_block_of };
    (first..last).flat_map(|index| block(tag, index)).skip(skip).take(len).collect()
}

impl Node<Vec<u8>> {
    /// A file's contents.
    pub fn data(&self) -> Option<&[u8]> {
        match &self.body {
            Body::File(data) => Some(data),
            _ => None,
        }
    }
}

impl State {
    /// An empty root directory.
    pub fn empty() -> Self {
        Self::of(Tree::empty())
    }

    /// A tree without quotas and snapshots.
    pub(super) fn of(tree: Tree<Vec<u8>>) -> Self {
        Self { tree, ..Self::default() }
    }

    /// The inode that a path leads to.
    pub fn find(&self, path: &Path) -> Result<Ino, i32> {
        path.names().try_fold(ROOT, |parent, name| {
            self.tree.look_up(&Place { parent, name: name.into() })?.ok_or(ENOENT)
        })
    }

    /// The directory and the name that a path ends with.
    fn place(&self, path: &Path) -> Result<Place, i32> {
        Ok(Place { parent: self.find(&path.parent())?, name: path.name().into() })
    }

    /// The inode, for changing it. The number must exist.
    pub fn node_mut(&mut self, ino: Ino) -> &mut Node<Vec<u8>> {
        self.tree.node_mut(ino).expect("a number that was found")
    }

    /// Applies the call to the model, or fails with the same errno. `ino` is the number for a new
    /// inode, `tag` the tag of written contents.
    pub fn apply(&mut self, step: &Step, ino: Ino, tag: u64) -> Result<(), i32> {
        match step {
            Step::Create(at) => self.create(at, ino, Node::new(Body::File(Vec::new()), 0o644)),
            Step::Mkdir(at) => self.create(at, ino, Node::new(Body::Directory(BTreeMap::new()), 0o755)),
            Step::Symlink(at, len) => self.create(at, ino, Node::new(Body::Symlink(vec![b't'; *len]), 0o777)),
            Step::Publish(at, len) => {
                self.require_inode(self.find(&at.parent())?)?;
                self.create(at, ino, Node::new(Body::File(contents(tag, 0, *len)), 0o644))
            }
            Step::Link(from, to) => self.link(from, to),
            Step::Unlink(at) => self.remove(at, false),
            Step::Rmdir(at) => self.remove(at, true),
            Step::Rename(from, to, kind) => self.rename(from, to, *kind),
            Step::Write(at, offset, len) => self.write(at, Some(*offset), *len, tag),
            Step::Transaction(at, offset, len) => self.write(at, Some(*offset), *len, tag),
            Step::Append(at, len) => self.write(at, None, *len, tag),
            Step::Truncate(at, size) => {
                self.file(at)?.1.resize(*size as usize, 0);
                Ok(())
            }
            Step::SetXattr(at, name, len) => {
                let ino = self.find(at)?;
                self.node_mut(ino).xattrs.insert(name.name().into(), contents(tag, 0, *len));
                Ok(())
            }
            Step::RemoveXattr(at, name) => {
                let ino = self.find(at)?;
                self.node_mut(ino).remove_xattr(name.name().as_bytes())
            }
            Step::Chmod(at, mode) => {
                let ino = self.find(at)?;
                let node = self.node_mut(ino);
                node.permissions = *mode;
                follow_mode(&mut node.xattrs, *mode);
                Ok(())
            }
            Step::Copy(from, to) => self.copy(from, to),
            Step::Allocate(at, what, offset, len) => self.allocate(at, *what, *offset, *len),
            Step::Feature(feature) => self.apply_feature(feature),
        }
    }

    /// Fails if the quota in which a directory counts has no inode left.
    fn require_inode(&self, dir: Ino) -> Result<(), i32> {
        let Some(root) = self.members.get(&dir) else { return Ok(()) };
        let limit = self.quotas[root].inodes;
        let count = self.members.values().filter(|tree| *tree == root).count() as u64;
        if limit > 0 && count >= limit { Err(EDQUOT) } else { Ok(()) }
    }

    /// Fails if a name would cross the border of a tree with a quota.
    fn require_same_tree(&self, ino: Ino, from: Ino, to: Ino) -> Result<(), i32> {
        let [own, source, target] = [ino, from, to].map(|ino| self.members.get(&ino));
        let whole = source.is_none() && target.is_none() && own == Some(&ino);
        if from == to || (own == target && source == target) || whole { Ok(()) } else { Err(EXDEV) }
    }

    /// True if the file's data may be compressed, by its own writes or because it shares extents
    /// with other files.
    pub(super) fn may_be_compressed(&self, ino: Ino) -> bool {
        self.tree.nodes[&ino].compression.is_some()
            || self.tree.nodes.values().any(|node| node.compression.is_some())
    }

    fn create(&mut self, at: &Path, ino: Ino, mut node: Node<Vec<u8>>) -> Result<(), i32> {
        let at = self.place(at)?;
        self.tree.require_absent(&at)?;
        self.require_inode(at.parent)?;
        self.tree.inherit(at.parent, &mut node);
        self.tree.create(&at, ino, node)?;
        if let Some(tree) = self.members.get(&at.parent).copied() {
            self.members.insert(ino, tree);
        }
        Ok(())
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), i32> {
        let (ino, to) = (self.find(from)?, self.place(to)?);
        self.tree.may_link(ino, &to)?;
        if self.members.get(&ino) != self.members.get(&to.parent) {
            return Err(EXDEV);
        }
        self.tree.link(ino, &to)
    }

    fn remove(&mut self, at: &Path, directory: bool) -> Result<(), i32> {
        let at = self.place(at)?;
        self.tree.remove(&at, directory)?;
        self.forget_what_is_gone();
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, kind: RenameKind) -> Result<(), i32> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let Some((source, target)) = self.tree.renamed(&from, &to, kind)? else { return Ok(()) };
        self.require_same_tree(source, from.parent, to.parent)?;
        if let Some(target) = target.filter(|_| kind == RenameKind::Exchange) {
            self.require_same_tree(target, to.parent, from.parent)?;
        }
        self.tree.rename(&from, &to, kind)?;
        self.forget_what_is_gone();
        Ok(())
    }

    /// An inode that lost its last name has no quota and counts in none.
    fn forget_what_is_gone(&mut self) {
        let nodes = &self.tree.nodes;
        self.members.retain(|ino, _| nodes.contains_key(ino));
        self.quotas.retain(|ino, _| nodes.contains_key(ino));
    }

    pub(super) fn file(&mut self, at: &Path) -> Result<(Ino, &mut Vec<u8>), i32> {
        let ino = self.find(at)?;
        match &mut self.node_mut(ino).body {
            Body::File(data) => Ok((ino, data)),
            Body::Directory(_) => Err(EISDIR),
            Body::Symlink(_) => Err(EINVAL),
        }
    }

    fn copy(&mut self, from: &Path, to: &Path) -> Result<(), i32> {
        let (source, copied) = self.file(from).map(|(ino, data)| (ino, data.clone()))?;
        let (destination, data) = self.file(to)?;
        if source == destination && !copied.is_empty() {
            // The ranges overlap.
            return Err(EINVAL);
        }
        data.resize(data.len().max(copied.len()), 0);
        data[..copied.len()].copy_from_slice(&copied);
        Ok(())
    }

    fn allocate(&mut self, at: &Path, what: Allocation, offset: u64, len: u64) -> Result<(), i32> {
        let (_, data) = self.file(at)?;
        let (start, end) = (offset as usize, (offset + len) as usize);
        match what {
            Allocation::CollapseRange if end >= data.len() => return Err(EINVAL),
            Allocation::CollapseRange => drop(data.drain(start..end)),
            Allocation::InsertRange if start >= data.len() => return Err(EINVAL),
            Allocation::InsertRange => drop(data.splice(start..start, vec![0; end - start])),
            Allocation::ZeroRange { keep_size: false }
            | Allocation::UnshareRange { keep_size: false }
            | Allocation::Preallocate { keep_size: false } => data.resize(data.len().max(end), 0),
            _ => {}
        }
        if matches!(what, Allocation::ZeroRange { .. } | Allocation::PunchHole) {
            let end = end.min(data.len());
            data[start.min(end)..end].fill(0);
        }
        Ok(())
    }

    fn write(&mut self, at: &Path, offset: Option<u64>, len: usize, tag: u64) -> Result<(), i32> {
        let (_, data) = self.file(at)?;
        let offset = offset.unwrap_or(data.len() as u64);
        let start = offset as usize;
        data.resize(data.len().max(start + len), 0);
        data[start..start + len].copy_from_slice(&contents(tag, offset, len));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EEXIST, ENODATA, ENOTDIR, ENOTEMPTY, EPERM};

    fn done(state: &mut State, step: &str, ino: Ino) -> Result<(), i32> {
        let workload: super::super::step::Workload = format!("{step}; -").parse().unwrap();
        let exists = workload.0[0].0.path().is_some_and(|path| state.find(path).is_ok());
        workload.0[0].0.steps(exists).iter().try_for_each(|step| state.apply(step, ino, ino))
    }

    #[test]
    fn calls_fail_as_posix_says() {
        let mut state = State::empty();
        for (ino, step) in (2..).zip(["mkdir A", "create A/foo", "mkdir C", "mkdir A/D"]) {
            done(&mut state, step, ino).unwrap();
        }
        for (step, errno) in [
            ("create A/foo", EEXIST),
            ("create X/foo", ENOENT),
            ("create A/foo/x", ENOTDIR),
            ("unlink A", EISDIR),
            ("rmdir A", ENOTEMPTY),
            ("rmdir A/foo", ENOTDIR),
            ("link A X", EPERM),
            ("rename A A/D/x", EINVAL),
            ("rename A/foo C", EISDIR),
            ("rename C A/foo", ENOTDIR),
            ("rename C A", ENOTEMPTY),
            ("rename-noreplace A/foo C", EEXIST),
            ("exchange A/foo X", ENOENT),
            ("exchange A/D A", EINVAL),
            ("removexattr A x", ENODATA),
            ("append A 1", EISDIR),
            ("copy A A/foo", EISDIR),
            ("copy-range A/foo C", EISDIR),
            ("copy-range A/foo X", ENOENT),
        ] {
            let before = state.clone();
            assert_eq!(done(&mut state, step, 99), Err(errno), "{step}");
            assert_eq!(state, before, "{step}");
        }
    }

    #[test]
    fn a_copy_leaves_what_it_does_not_cover() {
        let mut state = State::empty();
        for (ino, step) in (2..).zip(["create short", "create long"]) {
            done(&mut state, step, ino).unwrap();
        }
        done(&mut state, "append short 5000", 0).unwrap();
        done(&mut state, "append long 9000", 1).unwrap();
        done(&mut state, "copy short long", 0).unwrap();
        let copied = [contents(0, 0, 5000), contents(1, 5000, 4000)].concat();
        assert_eq!(state.tree.nodes[&3].data(), Some(&copied[..]));
        done(&mut state, "copy-range long short", 0).unwrap();
        assert_eq!(state.tree.nodes[&2].data(), Some(&copied[..]));
        assert_eq!(done(&mut state, "copy-range long long", 0), Err(EINVAL));
    }

    #[test]
    fn links_are_counted() {
        let mut state = State::empty();
        for (ino, step) in (2..).zip(["mkdir A", "mkdir C", "create foo"]) {
            done(&mut state, step, ino).unwrap();
        }
        done(&mut state, "rename C A/D", 0).unwrap();
        assert_eq!((state.tree.nodes[&ROOT].nlink, state.tree.nodes[&2].nlink), (3, 3));
        done(&mut state, "exchange foo A/D", 0).unwrap();
        assert_eq!((state.tree.nodes[&ROOT].nlink, state.tree.nodes[&2].nlink), (4, 2));
        done(&mut state, "link A/D A/again", 0).unwrap();
        assert_eq!(state.tree.nodes[&4].nlink, 2);
        done(&mut state, "unlink A/again", 0).unwrap();
        done(&mut state, "unlink A/D", 0).unwrap();
        assert!(!state.tree.nodes.contains_key(&4));
    }
}
