//! A filesystem tree in memory: names and attributes. Its calls fail as in POSIX, with the errno.

use libc::{EEXIST, EINVAL, EISDIR, ENODATA, ENOENT, ENOTDIR, ENOTEMPTY, EPERM};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use syncline_format::crc;
use syncline_fs::Durability;
use syncline_fs::types::{Algorithm, Ino, ROOT, Timestamp};

/// The entries of a directory.
pub type Entries = BTreeMap<Vec<u8>, Ino>;

/// The contents of an inode. `D` is the data of a regular file, if it is part of this model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body<D = ()> {
    /// A regular file.
    File(D),
    /// A directory and its entries.
    Directory(Entries),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
}

/// Times as stat shows them; all zero where they are not part of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth and last access, neither of which the workloads change.
    pub fixed: (Timestamp, Timestamp),
}

/// An inode.
#[derive(Clone, PartialEq, Eq)]
pub struct Node<D = ()> {
    /// Its type, with the entries of a directory or the target of a link.
    pub body: Body<D>,
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
    /// Its times.
    pub times: Times,
}

impl<D> Node<D> {
    /// An inode with one name, and without anything else.
    pub fn new(body: Body<D>, permissions: u16) -> Self {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        let (xattrs, times) = (BTreeMap::new(), Times::default());
        Self { body, permissions, xattrs, nlink, compression: None, class: None, times }
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    /// The inode without the data of a file, and that data.
    pub fn apart(self) -> (Node, Option<D>) {
        let Self { permissions, xattrs, nlink, compression, class, times, .. } = self;
        let (body, data) = match self.body {
            Body::File(data) => (Body::File(()), Some(data)),
            Body::Directory(entries) => (Body::Directory(entries), None),
            Body::Symlink(target) => (Body::Symlink(target), None),
        };
        (Node { body, permissions, xattrs, nlink, compression, class, times }, data)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, name: &[u8]) -> Result<(), i32> {
        self.xattrs.remove(name).map(drop).ok_or(ENODATA)
    }
}

impl<D> fmt::Debug for Node<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.body {
            Body::File(_) => write!(f, "file")?,
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
        write!(f, " {:?}", self.class)?;
        if self.times == Times::default() { Ok(()) } else { write!(f, " {:?}", self.times) }
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

/// How a rename treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameKind {
    /// It replaces the target.
    Replace,
    /// It fails (RENAME_NOREPLACE).
    NoReplace,
    /// Source and target change places (RENAME_EXCHANGE).
    Exchange,
}

/// All inodes that have a name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tree<D = ()> {
    /// The inodes by their numbers.
    pub nodes: BTreeMap<Ino, Arc<Node<D>>>,
}

impl<D: Clone> Tree<D> {
    /// Only an empty root.
    pub fn empty() -> Self {
        Self::compressing(None)
    }

    /// Only an empty root that compresses the files created in it.
    pub fn compressing(how: Option<Algorithm>) -> Self {
        let root = Node::new(Body::Directory(Entries::new()), 0o755);
        Self { nodes: BTreeMap::from([(ROOT, Arc::new(Node { compression: how, ..root }))]) }
    }

    /// An inode, to be changed.
    pub fn node_mut(&mut self, ino: Ino) -> Option<&mut Node<D>> {
        self.nodes.get_mut(&ino).map(Arc::make_mut)
    }

    /// The inode that a name leads to.
    pub fn find(&self, at: &Place) -> Option<Ino> {
        self.look_up(at).ok().flatten()
    }

    /// The inode that a name leads to, or none; an error if `parent` is no directory.
    pub fn look_up(&self, at: &Place) -> Result<Option<Ino>, i32> {
        Ok(self.entries(at.parent)?.get(&at.name).copied())
    }

    /// The entries of a directory.
    pub fn entries(&self, dir: Ino) -> Result<&Entries, i32> {
        match &self.nodes.get(&dir).ok_or(ENOENT)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(ENOTDIR),
        }
    }

    /// All directories.
    pub fn directories(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.is_directory()).map(|(ino, _)| *ino).collect()
    }

    /// All regular files.
    pub fn files(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.is_file()).map(|(ino, _)| *ino).collect()
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

    /// Gives a new file or directory what it inherits from its directory.
    pub fn inherit(&self, parent: Ino, node: &mut Node<D>) {
        if let Some(parent) = self.nodes.get(&parent)
            && !matches!(node.body, Body::Symlink(_))
        {
            (node.compression, node.class) = (parent.compression, parent.class);
        }
    }

    /// Gives a new inode its name.
    pub fn create(&mut self, at: &Place, ino: Ino, node: Node<D>) -> Result<(), i32> {
        self.require_absent(at)?;
        self.nodes.insert(ino, Arc::new(node));
        self.put(at, ino);
        Ok(())
    }

    /// Fails if an inode can't get this additional name.
    pub fn may_link(&self, ino: Ino, at: &Place) -> Result<(), i32> {
        if self.nodes.get(&ino).ok_or(ENOENT)?.is_directory() {
            return Err(EPERM);
        }
        self.require_absent(at)
    }

    /// Gives a file another name.
    pub fn link(&mut self, ino: Ino, at: &Place) -> Result<(), i32> {
        self.may_link(ino, at)?;
        self.put(at, ino);
        self.node_mut(ino).expect("it was there").nlink += 1;
        Ok(())
    }

    /// Removes a name: rmdir(2) for a `directory`, else unlink(2).
    pub fn remove(&mut self, at: &Place, directory: bool) -> Result<(), i32> {
        let ino = self.look_up(at)?.ok_or(ENOENT)?;
        match (&self.nodes[&ino].body, directory) {
            (Body::Directory(_), false) => return Err(EISDIR),
            (Body::Directory(entries), true) if !entries.is_empty() => return Err(ENOTEMPTY),
            (Body::Directory(_), true) => {}
            (_, true) => return Err(ENOTDIR),
            (_, false) => {}
        }
        self.take(at, ino);
        self.drop_link(ino);
        Ok(())
    }

    /// The inode that a rename moves and the one whose name it takes; `None` if both names are of one inode
    /// and nothing happens.
    pub fn renamed(
        &self,
        from: &Place,
        to: &Place,
        kind: RenameKind,
    ) -> Result<Option<(Ino, Option<Ino>)>, i32> {
        let (source, target) = (self.look_up(from)?, self.look_up(to)?);
        let source = source.ok_or(ENOENT)?;
        match (target, kind) {
            (Some(_), RenameKind::NoReplace) => Err(EEXIST),
            (None, RenameKind::Exchange) => Err(ENOENT),
            (Some(target), _) if target == source => Ok(None),
            _ => Ok(Some((source, target))),
        }
    }

    /// Renames.
    pub fn rename(&mut self, from: &Place, to: &Place, kind: RenameKind) -> Result<(), i32> {
        let Some((source, target)) = self.renamed(from, to, kind)? else { return Ok(()) };
        let exchanged = target.filter(|_| kind == RenameKind::Exchange);
        if self.is_below(to.parent, source) || exchanged.is_some_and(|it| self.is_below(from.parent, it)) {
            return Err(EINVAL);
        }
        if let Some(replaced) = target.filter(|_| exchanged.is_none()) {
            match (self.nodes[&source].is_directory(), &self.nodes[&replaced].body) {
                (true, Body::Directory(entries)) if !entries.is_empty() => return Err(ENOTEMPTY),
                (true, Body::Directory(_)) => {}
                (true, _) => return Err(ENOTDIR),
                (false, Body::Directory(_)) => return Err(EISDIR),
                (false, _) => {}
            }
        }
        self.take(from, source);
        if let Some(target) = target {
            self.take(to, target);
            match exchanged {
                Some(target) => self.put(from, target),
                None => self.drop_link(target),
            }
        }
        self.put(to, source);
        Ok(())
    }

    /// Fails if a name exists, or can't exist.
    pub fn require_absent(&self, at: &Place) -> Result<(), i32> {
        if self.look_up(at)?.is_some() { Err(EEXIST) } else { Ok(()) }
    }

    /// True if `dir` is `above` or lies below it.
    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let below = |entries: &Entries| entries.values().any(|child| self.is_below(dir, *child));
        dir == above || self.entries(above).is_ok_and(below)
    }

    /// A subdirectory's ".." counts as a link of its parent.
    fn put(&mut self, at: &Place, ino: Ino) {
        let subdirectories = u32::from(self.nodes[&ino].is_directory());
        let (parent, entries) = self.directory_mut(at.parent);
        entries.insert(at.name.clone(), ino);
        *parent += subdirectories;
    }

    fn take(&mut self, at: &Place, ino: Ino) {
        let subdirectories = u32::from(self.nodes[&ino].is_directory());
        let (parent, entries) = self.directory_mut(at.parent);
        entries.remove(&at.name);
        *parent -= subdirectories;
    }

    /// The link count and the entries of a directory that was looked up before.
    fn directory_mut(&mut self, dir: Ino) -> (&mut u32, &mut Entries) {
        match self.node_mut(dir) {
            Some(Node { nlink, body: Body::Directory(entries), .. }) => (nlink, entries),
            _ => unreachable!("looked up as a directory before"),
        }
    }

    /// Drops a name of an inode, which goes with its last name.
    fn drop_link(&mut self, ino: Ino) {
        let node = self.node_mut(ino).expect("it was looked up");
        node.nlink -= if node.is_directory() { 2 } else { 1 };
        if node.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }
}
