//! The specification of the filesystem, as simple as possible: maps in memory.

use crate::types::{FileType, Ino, ROOT, RenameFlags, XattrMode};
use std::collections::BTreeMap;

/// An inode of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub file_type: FileType,
    pub permissions: u16,
    pub uid: u32,
    pub nlink: u32,
    pub parent: Ino,
    pub entries: BTreeMap<String, Ino>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The data of a file, or the target of a symlink.
    pub contents: Vec<u8>,
    /// The file was created without a name and may be given one.
    pub linkable: bool,
}

/// All inodes, by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub nodes: BTreeMap<Ino, Node>,
    pub opens: BTreeMap<Ino, u32>,
}

/// Success, or an errno.
pub(super) type Outcome = Result<(), i32>;

const NOT_PERMITTED: i32 = 1;
const NOT_FOUND: i32 = 2;
const EXISTS: i32 = 17;
const NOT_DIRECTORY: i32 = 20;
const IS_DIRECTORY: i32 = 21;
const INVALID: i32 = 22;
const NOT_EMPTY: i32 = 39;
const NO_ATTRIBUTE: i32 = 61;

impl Model {
    pub(super) fn new() -> Self {
        let root = Node::new(FileType::Directory, 0o755, ROOT);
        Self { nodes: BTreeMap::from([(ROOT, Node { uid: 0, ..root })]), opens: BTreeMap::new() }
    }

    /// All directories, including removed ones that are still open.
    pub(super) fn directories(&self) -> Vec<Ino> {
        let directory = |(_, node): &(&Ino, &Node)| node.file_type == FileType::Directory;
        self.nodes.iter().filter(directory).map(|(ino, _)| *ino).collect()
    }

    pub(super) fn find(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.nodes[&dir].entries.get(name).copied()
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn require_alive(&self, dir: Ino) -> Outcome {
        if self.nodes[&dir].nlink == 0 { Err(NOT_FOUND) } else { Ok(()) }
    }

    /// Whether a new name may be created.
    pub(super) fn may_add(&self, dir: Ino, name: &str) -> Outcome {
        self.require_alive(dir)?;
        if self.find(dir, name).is_some() { Err(EXISTS) } else { Ok(()) }
    }

    pub(super) fn add(&mut self, dir: Ino, name: &str, ino: Ino, node: Node) {
        if node.file_type == FileType::Directory {
            self.node(dir).nlink += 1;
        }
        self.node(dir).entries.insert(name.into(), ino);
        assert!(self.nodes.insert(ino, node).is_none(), "an inode number was used twice");
    }

    pub(super) fn link(&mut self, ino: Ino, dir: Ino, name: &str) -> Outcome {
        if self.nodes[&ino].file_type == FileType::Directory {
            return Err(NOT_PERMITTED);
        }
        if self.nodes[&ino].nlink == 0 && !self.nodes[&ino].linkable {
            return Err(NOT_FOUND);
        }
        self.may_add(dir, name)?;
        let node = self.node(ino);
        (node.nlink, node.linkable) = (node.nlink + 1, false);
        self.node(dir).entries.insert(name.into(), ino);
        Ok(())
    }

    pub(super) fn remove(&mut self, dir: Ino, name: &str, directory: bool) -> Outcome {
        let ino = self.find(dir, name).ok_or(NOT_FOUND)?;
        let node = &self.nodes[&ino];
        match (directory, node.file_type == FileType::Directory) {
            (true, false) => return Err(NOT_DIRECTORY),
            (false, true) => return Err(IS_DIRECTORY),
            (true, true) if !node.entries.is_empty() => return Err(NOT_EMPTY),
            _ => {}
        }
        self.node(dir).entries.remove(name);
        if directory {
            self.node(dir).nlink -= 1;
        }
        self.drop_link(ino);
        Ok(())
    }

    fn drop_link(&mut self, ino: Ino) {
        let node = self.node(ino);
        node.nlink = if node.file_type == FileType::Directory { 0 } else { node.nlink - 1 };
        self.prune();
    }

    /// Forgets nodes that have neither names nor handles.
    pub(super) fn prune(&mut self) {
        let opens = &self.opens;
        self.nodes.retain(|ino, node| node.nlink > 0 || opens.contains_key(ino));
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.nodes[&ino].file_type == FileType::Directory
    }

    fn is_within(&self, mut dir: Ino, ancestor: Ino) -> bool {
        while dir != ancestor && dir != ROOT {
            dir = self.nodes[&dir].parent;
        }
        dir == ancestor
    }

    pub(super) fn rename(&mut self, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Outcome {
        let source = self.find(from.0, from.1).ok_or(NOT_FOUND)?;
        let target = self.find(to.0, to.1);
        self.require_alive(to.0)?;
        match target {
            Some(_) if flags.no_replace => return Err(EXISTS),
            Some(target) if target == source => return Ok(()),
            None if flags.exchange => return Err(NOT_FOUND),
            _ => {}
        }
        if self.is_directory(source) && self.is_within(to.0, source) {
            return Err(INVALID);
        }
        if let Some(target) = target.filter(|_| flags.exchange) {
            if self.is_directory(target) && self.is_within(from.0, target) {
                return Err(INVALID);
            }
            self.put(from, target, to.0);
            self.put(to, source, from.0);
            return Ok(());
        }
        if let Some(target) = target {
            match (self.is_directory(source), self.is_directory(target)) {
                (true, true) if !self.nodes[&target].entries.is_empty() => return Err(NOT_EMPTY),
                (true, false) => return Err(NOT_DIRECTORY),
                (false, true) => return Err(IS_DIRECTORY),
                _ => {}
            }
            self.remove(to.0, to.1, self.is_directory(target)).unwrap();
        }
        self.node(from.0).entries.remove(from.1);
        self.put(to, source, from.0);
        Ok(())
    }

    /// Gives an inode that had its name in `old` a name elsewhere.
    fn put(&mut self, at: (Ino, &str), ino: Ino, old: Ino) {
        self.node(at.0).entries.insert(at.1.into(), ino);
        if self.is_directory(ino) {
            self.node(ino).parent = at.0;
            self.node(old).nlink -= 1;
            self.node(at.0).nlink += 1;
        }
    }

    pub(super) fn setxattr(&mut self, ino: Ino, name: &str, value: Vec<u8>, mode: XattrMode) -> Outcome {
        let xattrs = &mut self.node(ino).xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(EXISTS),
            (XattrMode::Replace, false) => Err(NO_ATTRIBUTE),
            _ => {
                xattrs.insert(name.into(), value);
                Ok(())
            }
        }
    }

    pub(super) fn removexattr(&mut self, ino: Ino, name: &str) -> Outcome {
        self.node(ino).xattrs.remove(name).map(drop).ok_or(NO_ATTRIBUTE)
    }

    /// The state that a mount after the end of this one finds: no handles, no orphans.
    pub(super) fn remounted(mut self) -> Self {
        self.opens.clear();
        self.prune();
        self
    }

    /// The same state without file data, which a crash may lose.
    pub(super) fn without_data(&self) -> Self {
        let mut model = self.clone();
        for node in model.nodes.values_mut().filter(|node| node.file_type == FileType::Regular) {
            node.contents.clear();
        }
        model
    }
}

impl Node {
    pub(super) fn new(file_type: FileType, permissions: u16, parent: Ino) -> Self {
        let directory = file_type == FileType::Directory;
        Self {
            file_type,
            permissions,
            uid: super::CALLER.uid,
            nlink: if directory { 2 } else { 1 },
            parent: if directory { parent } else { 0 },
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            contents: Vec::new(),
            linkable: false,
        }
    }
}
