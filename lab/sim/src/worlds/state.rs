//! A whole small filesystem at one time and the effect of each call: the model that recovered
//! images are compared with. Calls fail as in POSIX, with the errno.

use super::feature::follow_mode;
use super::step::{Path, RenameKind, Step};
use crate::block_of;
use crate::content::shrinking_block_of;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use syncline_device::BLOCK_BYTES;
use syncline_fs::Durability;
use syncline_fs::types::{Algorithm, Ino, ROOT, Timestamp};
use syncline_fs::{Allocation, QuotaLimits};

pub(super) const ENOENT: i32 = 2;
pub(super) const EEXIST: i32 = 17;
pub(super) const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EPERM: i32 = 1;
const ENOTEMPTY: i32 = 39;
const ENODATA: i32 = 61;
const EXDEV: i32 = 18;
pub(super) const EDQUOT: i32 = 122;

type Entries = BTreeMap<Vec<u8>, Ino>;

/// The contents of an inode.
#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    /// A file's contents.
    File(Vec<u8>),
    /// A directory's entries.
    Directory(Entries),
    /// A symbolic link's target.
    Symlink(Vec<u8>),
}

/// Times as stat shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth and last access, neither of which these workloads change.
    pub fixed: (Timestamp, Timestamp),
}

/// An inode.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Its contents.
    pub body: Body,
    /// Permissions.
    pub permissions: u16,
    /// Link count.
    pub nlink: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Compression of data written to it, or inherited by files created in it.
    pub compression: Option<Algorithm>,
    /// Its own durability class, which files created in it inherit.
    pub class: Option<Durability>,
    /// Times, filled in by the runner.
    pub times: Times,
}

/// All inodes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// Inodes by number.
    pub nodes: BTreeMap<Ino, Arc<Node>>,
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

impl Node {
    /// A new inode.
    pub fn new(body: Body, permissions: u16) -> Self {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        let xattrs = BTreeMap::new();
        Self { body, permissions, nlink, xattrs, compression: None, class: None, times: Times::default() }
    }

    /// A file's contents.
    pub fn data(&self) -> Option<&[u8]> {
        match &self.body {
            Body::File(data) => Some(data),
            _ => None,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            Body::File(data) => write!(f, "file of {} bytes", data.len())?,
            Body::Symlink(to) => write!(f, "symlink of {} bytes", to.len())?,
            Body::Directory(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(name, ino)| format!("{} {ino}", String::from_utf8_lossy(name)))
                    .collect();
                write!(f, "directory {entries:?}")?;
            }
        }
        write!(f, " mode {:o} links {}", self.permissions, self.nlink)?;
        for (name, value) in &self.xattrs {
            write!(f, " {}:{}", String::from_utf8_lossy(name), value.len())?;
        }
        if let Some(compression) = self.compression {
            write!(f, " {compression:?}")?;
        }
        if let Some(class) = self.class {
            write!(f, " {class}")?;
        }
        write!(f, " mtime {:?} ctime {:?}", self.times.mtime, self.times.ctime)
    }
}

impl State {
    /// An empty root directory.
    pub fn empty() -> Self {
        let root = Node::new(Body::Directory(Entries::new()), 0o755);
        Self { nodes: [(ROOT, Arc::new(root))].into(), ..Self::default() }
    }

    /// The inode that a path leads to.
    pub fn find(&self, path: &Path) -> Result<Ino, i32> {
        path.names().try_fold(ROOT, |dir, name| self.entry(dir, name.as_bytes())?.ok_or(ENOENT))
    }

    fn entry(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>, i32> {
        Ok(self.entries(dir)?.get(name).copied())
    }

    fn entries(&self, dir: Ino) -> Result<&Entries, i32> {
        match &self.nodes.get(&dir).ok_or(ENOENT)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(ENOTDIR),
        }
    }

    /// The inode, for changing it. The number must exist.
    pub fn node_mut(&mut self, ino: Ino) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&ino).expect("a number that was found"))
    }

    fn entries_mut(&mut self, dir: Ino) -> &mut Entries {
        match &mut self.node_mut(dir).body {
            Body::Directory(entries) => entries,
            _ => unreachable!("looked up as a directory before"),
        }
    }

    /// Applies the call to the model, or fails with the same errno. `ino` is the number for a new
    /// inode, `tag` the tag of written contents.
    pub fn apply(&mut self, step: &Step, ino: Ino, tag: u64) -> Result<(), i32> {
        match step {
            Step::Create(at) => self.create(at, ino, Node::new(Body::File(Vec::new()), 0o644)),
            Step::Mkdir(at) => self.create(at, ino, Node::new(Body::Directory(Entries::new()), 0o755)),
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
                self.node_mut(ino).xattrs.remove(name.name().as_bytes()).map(drop).ok_or(ENODATA)
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
        self.nodes[&ino].compression.is_some() || self.nodes.values().any(|node| node.compression.is_some())
    }

    fn create(&mut self, at: &Path, ino: Ino, mut node: Node) -> Result<(), i32> {
        let parent = self.find(&at.parent())?;
        if self.entry(parent, at.name().as_bytes())?.is_some() {
            return Err(EEXIST);
        }
        self.require_inode(parent)?;
        let directory = node.is_directory();
        if !matches!(node.body, Body::Symlink(_)) {
            (node.compression, node.class) = (self.nodes[&parent].compression, self.nodes[&parent].class);
        }
        if let Some(tree) = self.members.get(&parent).copied() {
            self.members.insert(ino, tree);
        }
        self.nodes.insert(ino, Arc::new(node));
        self.put(parent, at, ino, directory);
        Ok(())
    }

    fn put(&mut self, parent: Ino, at: &Path, ino: Ino, directory: bool) {
        self.entries_mut(parent).insert(at.name().into(), ino);
        if directory {
            // Its ".." counts as a link of the parent.
            self.node_mut(parent).nlink += 1;
        }
    }

    fn take(&mut self, parent: Ino, at: &Path, directory: bool) {
        self.entries_mut(parent).remove(at.name().as_bytes());
        if directory {
            self.node_mut(parent).nlink -= 1;
        }
    }

    /// Drops a name of `ino`; the inode goes with its last name.
    fn drop_link(&mut self, ino: Ino) {
        let node = self.node_mut(ino);
        node.nlink -= if node.is_directory() { 2 } else { 1 };
        if node.nlink == 0 {
            self.nodes.remove(&ino);
            self.members.remove(&ino);
            self.quotas.remove(&ino);
        }
    }

    fn link(&mut self, from: &Path, to: &Path) -> Result<(), i32> {
        let ino = self.find(from)?;
        if self.nodes[&ino].is_directory() {
            return Err(EPERM);
        }
        let parent = self.find(&to.parent())?;
        if self.entry(parent, to.name().as_bytes())?.is_some() {
            return Err(EEXIST);
        }
        if self.members.get(&ino) != self.members.get(&parent) {
            return Err(EXDEV);
        }
        self.put(parent, to, ino, false);
        self.node_mut(ino).nlink += 1;
        Ok(())
    }

    fn remove(&mut self, at: &Path, directory: bool) -> Result<(), i32> {
        let parent = self.find(&at.parent())?;
        let ino = self.entry(parent, at.name().as_bytes())?.ok_or(ENOENT)?;
        match (&self.nodes[&ino].body, directory) {
            (Body::Directory(_), false) => return Err(EISDIR),
            (Body::Directory(entries), true) if !entries.is_empty() => return Err(ENOTEMPTY),
            (Body::Directory(_), true) => {}
            (_, true) => return Err(ENOTDIR),
            (_, false) => {}
        }
        self.take(parent, at, directory);
        self.drop_link(ino);
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, kind: RenameKind) -> Result<(), i32> {
        let (from_dir, to_dir) = (self.find(&from.parent())?, self.find(&to.parent())?);
        let source = self.entry(from_dir, from.name().as_bytes())?.ok_or(ENOENT)?;
        let target = self.entry(to_dir, to.name().as_bytes())?;
        match (target, kind) {
            (Some(_), RenameKind::NoReplace) => return Err(EEXIST),
            (None, RenameKind::Exchange) => return Err(ENOENT),
            // Both names are of one inode: nothing happens.
            (Some(target), _) if target == source => return Ok(()),
            _ => {}
        }
        self.require_same_tree(source, from_dir, to_dir)?;
        if let Some(target) = target.filter(|_| kind == RenameKind::Exchange) {
            self.require_same_tree(target, to_dir, from_dir)?;
        }
        let moves_below = |ino: Ino, dir: &Path| {
            self.nodes[&ino].is_directory() && self.ancestors(dir).is_ok_and(|above| above.contains(&ino))
        };
        let below = moves_below(source, &to.parent())
            || target
                .is_some_and(|target| kind == RenameKind::Exchange && moves_below(target, &from.parent()));
        if below {
            return Err(EINVAL);
        }
        let source_directory = self.nodes[&source].is_directory();
        let target_directory = target.is_some_and(|target| self.nodes[&target].is_directory());
        if let Some(target) = target
            && kind != RenameKind::Exchange
        {
            match (source_directory, &self.nodes[&target].body) {
                (true, Body::Directory(entries)) if !entries.is_empty() => return Err(ENOTEMPTY),
                (true, Body::Directory(_)) => {}
                (true, _) => return Err(ENOTDIR),
                (false, Body::Directory(_)) => return Err(EISDIR),
                (false, _) => {}
            }
        }
        self.take(from_dir, from, source_directory);
        if let Some(target) = target {
            self.take(to_dir, to, target_directory);
            if kind == RenameKind::Exchange {
                self.put(from_dir, from, target, target_directory);
            } else {
                self.drop_link(target);
            }
        }
        self.put(to_dir, to, source, source_directory);
        Ok(())
    }

    /// A directory and all its ancestors.
    fn ancestors(&self, dir: &Path) -> Result<Vec<Ino>, i32> {
        let mut above = vec![ROOT];
        for name in dir.names() {
            let last = *above.last().expect("the root is there");
            above.push(self.entry(last, name.as_bytes())?.ok_or(ENOENT)?);
        }
        Ok(above)
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
        assert_eq!(state.nodes[&3].data(), Some(&copied[..]));
        done(&mut state, "copy-range long short", 0).unwrap();
        assert_eq!(state.nodes[&2].data(), Some(&copied[..]));
        assert_eq!(done(&mut state, "copy-range long long", 0), Err(EINVAL));
    }

    #[test]
    fn links_are_counted() {
        let mut state = State::empty();
        for (ino, step) in (2..).zip(["mkdir A", "mkdir C", "create foo"]) {
            done(&mut state, step, ino).unwrap();
        }
        done(&mut state, "rename C A/D", 0).unwrap();
        assert_eq!((state.nodes[&ROOT].nlink, state.nodes[&2].nlink), (3, 3));
        done(&mut state, "exchange foo A/D", 0).unwrap();
        assert_eq!((state.nodes[&ROOT].nlink, state.nodes[&2].nlink), (4, 2));
        done(&mut state, "link A/D A/again", 0).unwrap();
        assert_eq!(state.nodes[&4].nlink, 2);
        done(&mut state, "unlink A/again", 0).unwrap();
        done(&mut state, "unlink A/D", 0).unwrap();
        assert!(!state.nodes.contains_key(&4));
    }
}
