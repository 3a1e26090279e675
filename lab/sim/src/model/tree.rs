//! A simple filesystem tree in memory: names and attributes without file data, and the changes to
//! it.

use std::collections::BTreeMap;
use std::fmt;
use syncline_format::crc;
use syncline_fs::Durability;
use syncline_fs::types::{Algorithm, Ino, ROOT};

/// The part of an inode that concerns names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A regular file; its data is modelled elsewhere.
    File,
    /// A directory and its entries.
    Directory(BTreeMap<Vec<u8>, Ino>),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
}

/// An inode.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Its type, with the entries of a directory or the target of a link.
    pub body: Body,
    /// Its permission bits.
    pub permissions: u16,
    /// Its extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Its names, and those of subdirectories for their parent.
    pub nlink: u32,
    /// Compression of data written to it, or inherited by files created in it.
    pub compression: Option<Algorithm>,
    /// Its own durability class, which files created in it inherit.
    pub class: Option<Durability>,
}

impl Node {
    /// An inode with one name, and without anything else.
    pub fn new(body: Body, permissions: u16) -> Self {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        Self { body, permissions, xattrs: BTreeMap::new(), nlink, compression: None, class: None }
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.body {
            Body::File => write!(f, "file")?,
            Body::Symlink(to) => write!(f, "symlink of {} bytes", to.len())?,
            Body::Directory(entries) => {
                let entries: Vec<_> =
                    entries.iter().map(|(name, ino)| format!("{} {ino}", text(name))).collect();
                write!(f, "directory {entries:?}")?;
            }
        }
        let xattrs: Vec<_> =
            self.xattrs.iter().map(|(name, value)| format!("{} {:#x}", text(name), crc(value))).collect();
        write!(f, " {:o} links {} {xattrs:?} {:?}", self.permissions, self.nlink, self.compression)?;
        write!(f, " {:?}", self.class)
    }
}

/// A directory and a name in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Vec<u8>,
}

/// One change of names or attributes, made by one transaction of the filesystem.
#[expect(missing_docs, reason = "fields say what they are")]
#[derive(Clone, Debug)]
pub enum Change {
    /// A new inode gets its name.
    Create { at: Place, ino: Ino, node: Node },
    /// A nameless file gets its first name; the link was requested at time `started`.
    Publish { at: Place, ino: Ino, node: Node, started: u64 },
    /// Another name for a file, requested at time `started`.
    Link { ino: Ino, at: Place, started: u64 },
    /// A name goes.
    Remove { at: Place },
    /// A rename, requested at time `started`.
    Rename { from: Place, to: Place, exchange: bool, started: u64 },
    /// New permission bits.
    Permissions { ino: Ino, permissions: u16 },
    /// An extended attribute is set.
    SetXattr { ino: Ino, name: Vec<u8>, value: Vec<u8> },
    /// An extended attribute goes.
    RemoveXattr { ino: Ino, name: Vec<u8> },
    /// How new contents are compressed.
    Compression { ino: Ino, how: Option<Algorithm> },
    /// A durability class of its own, or none.
    Class { ino: Ino, class: Option<Durability> },
    /// A truncation; it affects only the file's data.
    Truncate,
}

impl Change {
    /// Shows each inode number in it to `with`, which may change it.
    pub fn each_ino(&mut self, with: impl Fn(&mut Ino)) {
        match self {
            Self::Create { at, ino, .. } | Self::Publish { at, ino, .. } | Self::Link { ino, at, .. } => {
                with(ino);
                with(&mut at.parent);
            }
            Self::Remove { at } => with(&mut at.parent),
            Self::Rename { from, to, .. } => {
                with(&mut from.parent);
                with(&mut to.parent);
            }
            Self::Permissions { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::RemoveXattr { ino, .. }
            | Self::Compression { ino, .. }
            | Self::Class { ino, .. } => with(ino),
            Self::Truncate => {}
        }
    }
}

/// All inodes that have a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The inodes by their numbers.
    pub nodes: BTreeMap<Ino, Node>,
}

impl Tree {
    /// Only an empty root.
    pub fn empty() -> Self {
        Self::compressing(None)
    }

    /// Only an empty root that compresses the files created in it.
    pub fn compressing(how: Option<Algorithm>) -> Self {
        let root = Node::new(Body::Directory(BTreeMap::new()), 0o755);
        let root = Node { compression: how, ..root };
        Self { nodes: BTreeMap::from([(ROOT, root)]) }
    }

    /// The inode that a name leads to.
    pub fn find(&self, at: &Place) -> Option<Ino> {
        match &self.nodes.get(&at.parent)?.body {
            Body::Directory(entries) => entries.get(&at.name).copied(),
            _ => None,
        }
    }

    /// The inodes whose names a change affects; to be called before it is applied.
    pub fn touched_by(&self, change: &Change) -> Vec<Ino> {
        match change {
            Change::Create { ino, .. } | Change::Publish { ino, .. } | Change::Link { ino, .. } => vec![*ino],
            Change::Remove { at } => self.find(at).into_iter().collect(),
            Change::Rename { from, to, .. } => {
                [self.find(from), self.find(to)].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The inodes whose data a rename or a first name carries along (promise P3); to be called
    /// before it is applied.
    pub fn carried_by(&self, change: &Change) -> Vec<(Ino, u64)> {
        let (from, to, exchange, started) = match change {
            Change::Rename { from, to, exchange, started } => (from, to, exchange, started),
            Change::Publish { ino, started, .. } | Change::Link { ino, started, .. } => {
                return vec![(*ino, *started)];
            }
            _ => return Vec::new(),
        };
        let exchanged = if *exchange { self.find(to) } else { None };
        [self.find(from), exchanged].into_iter().flatten().map(|ino| (ino, *started)).collect()
    }

    /// Applies a change that the filesystem reported; an error if it was impossible.
    pub fn apply(&mut self, change: &Change) -> Result<(), String> {
        let impossible = || format!("{change:?} can't have been done here");
        match change {
            Change::Create { at, ino, node } | Change::Publish { at, ino, node, .. } => {
                self.put(at, *ino).ok_or_else(impossible)?;
                let mut node = node.clone();
                if matches!((change, &node.body), (Change::Create { .. }, Body::File | Body::Directory(_))) {
                    let parent = &self.nodes[&at.parent];
                    (node.compression, node.class) = (parent.compression, parent.class);
                }
                self.nodes.insert(*ino, node);
                self.count_subdirectory(at.parent, *ino, 1);
            }
            Change::Link { ino, at, .. } => {
                self.put(at, *ino).ok_or_else(impossible)?;
                self.nodes.get_mut(ino).ok_or_else(impossible)?.nlink += 1;
            }
            Change::Remove { at } => {
                let ino = self.take(at).ok_or_else(impossible)?;
                self.drop_link(at.parent, ino).ok_or_else(impossible)?;
            }
            Change::Rename { from, to, exchange: false, .. } => {
                self.rename(from, to).ok_or_else(impossible)?;
            }
            Change::Rename { from, to, .. } => self.exchange(from, to).ok_or_else(impossible)?,
            // An inode without names may still be changed through an open file; the change is never
            // visible.
            Change::Permissions { ino, permissions } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.permissions = *permissions;
                }
            }
            Change::SetXattr { ino, name, value } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.xattrs.insert(name.clone(), value.clone());
                }
            }
            Change::RemoveXattr { ino, name } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.xattrs.remove(name).ok_or_else(impossible)?;
                }
            }
            Change::Compression { ino, how } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.compression = *how;
                }
            }
            Change::Class { ino, class } => {
                if let Some(node) = self.nodes.get_mut(ino) {
                    node.class = *class;
                }
            }
            Change::Truncate => {}
        }
        Ok(())
    }

    fn rename(&mut self, from: &Place, to: &Place) -> Option<()> {
        let ino = self.find(from)?;
        if self.find(to) == Some(ino) {
            return Some(());
        }
        self.take(from)?;
        if let Some(replaced) = self.take(to) {
            self.drop_link(to.parent, replaced)?;
        }
        self.move_to(from.parent, ino, to)
    }

    fn exchange(&mut self, one: &Place, other: &Place) -> Option<()> {
        let (first, second) = (self.take(one)?, self.take(other)?);
        self.move_to(one.parent, first, other)?;
        self.move_to(other.parent, second, one)
    }

    fn move_to(&mut self, parent: Ino, ino: Ino, to: &Place) -> Option<()> {
        self.put(to, ino)?;
        self.count_subdirectory(parent, ino, -1);
        self.count_subdirectory(to.parent, ino, 1);
        Some(())
    }

    fn entries(&mut self, dir: Ino) -> Option<&mut BTreeMap<Vec<u8>, Ino>> {
        match &mut self.nodes.get_mut(&dir)?.body {
            Body::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    fn put(&mut self, at: &Place, ino: Ino) -> Option<()> {
        let before = self.entries(at.parent)?.insert(at.name.clone(), ino);
        before.is_none().then_some(())
    }

    fn take(&mut self, at: &Place) -> Option<Ino> {
        self.entries(at.parent)?.remove(&at.name)
    }

    /// Drops one name of `ino`, in `parent`.
    fn drop_link(&mut self, parent: Ino, ino: Ino) -> Option<()> {
        self.count_subdirectory(parent, ino, -1);
        let node = self.nodes.get_mut(&ino)?;
        if let Body::Directory(entries) = &node.body {
            if !entries.is_empty() {
                return None;
            }
            self.nodes.remove(&ino);
            return Some(());
        }
        node.nlink -= 1;
        if node.nlink == 0 {
            self.nodes.remove(&ino);
        }
        Some(())
    }

    /// A subdirectory's ".." counts as a link of its parent.
    fn count_subdirectory(&mut self, parent: Ino, ino: Ino, delta: i32) {
        if self.nodes.get(&ino).is_some_and(Node::is_directory)
            && let Some(parent) = self.nodes.get_mut(&parent)
        {
            parent.nlink = parent.nlink.saturating_add_signed(delta);
        }
    }

    /// All directories.
    pub fn directories(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.is_directory()).map(|(ino, _)| *ino).collect()
    }

    /// All regular files.
    pub fn files(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.body == Body::File).map(|(ino, _)| *ino).collect()
    }

    /// All names.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for (&parent, node) in &self.nodes {
            if let Body::Directory(entries) = &node.body {
                places.extend(entries.keys().map(|name| Place { parent, name: name.clone() }));
            }
        }
        places
    }
}
