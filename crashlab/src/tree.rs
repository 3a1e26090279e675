//! A tree of files in memory. Copies share what they have in common, so a tree for each moment of a
//! program costs little.

use crate::Error;
use crate::action::{Action, Ino, Name, ROOT, What};
use crate::contents::Contents;
use rpds::{HashTrieMapSync, RedBlackTreeMapSync};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind and contents.
    pub kind: Kind,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; of a directory, also of those that its subdirectories have for it.
    pub links: u32,
    /// Last change of the contents, in nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Extended attributes.
    pub xattrs: RedBlackTreeMapSync<Name, Arc<[u8]>>,
}

/// The kind of an inode, with its contents.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A regular file.
    File(Contents),
    /// A directory.
    Directory(RedBlackTreeMapSync<Name, Ino>),
    /// A symbolic link.
    Symlink(Arc<[u8]>),
    /// A FIFO, socket or device: type and device.
    Special(u32, u32),
}

impl Node {
    fn new(what: &What, mode: u32, uid: u32, gid: u32, mtime_ns: i128) -> Self {
        let kind = match what {
            What::File => Kind::File(Contents::default()),
            What::Directory => Kind::Directory(RedBlackTreeMapSync::default()),
            What::Symlink(target) => Kind::Symlink(target[..].into()),
            What::Special(kind, device) => Kind::Special(*kind, *device),
        };
        let links = if matches!(kind, Kind::Directory(_)) { 2 } else { 1 };
        Self { kind, mode, uid, gid, links, mtime_ns, xattrs: RedBlackTreeMapSync::default() }
    }

    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }
}

/// A tree of files. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: HashTrieMapSync<Ino, Arc<Node>>,
}

impl Default for Tree {
    /// An empty working folder.
    fn default() -> Self {
        let root = Node::new(&What::Directory, 0o755, 0, 0, 0);
        Self { nodes: HashTrieMapSync::default().insert(ROOT, Arc::new(root)) }
    }
}

impl Tree {
    /// The inode with this number.
    pub fn node(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    /// The inode of a name in a directory.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.entries(parent)?.get(name).copied()
    }

    /// The entries of a directory.
    pub fn entries(&self, ino: Ino) -> Option<&RedBlackTreeMapSync<Name, Ino>> {
        match &self.node(ino)?.kind {
            Kind::Directory(entries) => Some(entries),
            _ => None,
        }
    }

    /// Contents of a file.
    pub fn contents(&self, ino: Ino) -> Option<&Contents> {
        match &self.node(ino)?.kind {
            Kind::File(contents) => Some(contents),
            _ => None,
        }
    }

    /// Forgets an inode without a name.
    pub fn forget(&mut self, ino: Ino) {
        self.nodes.remove_mut(&ino);
    }

    /// Applies an action, as far as its inodes are there. Of a write, `bytes` is what it wrote. After an error,
    /// part of the action is done.
    pub fn apply(&mut self, action: &Action, now_ns: i128, bytes: &[u8]) -> Result<(), Error> {
        match action {
            Action::Create { parent, name, ino, what, mode, uid, gid } => {
                self.make(*ino, Node::new(what, *mode, *uid, *gid, now_ns));
                self.set_name(*parent, name, Some(*ino), now_ns);
                if *what == What::Directory {
                    self.change(*parent, |node| node.links += 1);
                }
            }
            Action::Link { ino, parent, name } => {
                self.change(*ino, |node| node.links += 1);
                self.set_name(*parent, name, Some(*ino), now_ns);
            }
            Action::Unlink { parent, name, ino } => {
                self.set_name(*parent, name, None, now_ns);
                self.moved(*ino, *parent, None);
                self.drop_name(*ino);
            }
            Action::Rename { .. } => self.rename(action, now_ns),
            Action::Write { ino, offset, .. } => {
                self.change_file(*ino, now_ns, |file| file.write(*offset, bytes))?
            }
            Action::Truncate { ino, to, .. } => self.change_file(*ino, now_ns, |file| file.truncate(*to))?,
            Action::Zero { ino, offset, len, size } => self.change_file(*ino, now_ns, |file| {
                file.zero(*offset, offset.saturating_add(*len))?;
                file.truncate(file.len().max(*size))
            })?,
            Action::Attributes { ino, mode, uid, gid, mtime_ns } => self.change(*ino, |node| {
                node.mode = mode.unwrap_or(node.mode);
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
                node.mtime_ns = mtime_ns.unwrap_or(node.mtime_ns);
            }),
            Action::Xattr { ino, name, value } => self.change(*ino, |node| match value {
                Some(value) => node.xattrs.insert_mut(name.clone(), value[..].into()),
                None => drop(node.xattrs.remove_mut(name)),
            }),
            Action::Sync { .. }
            | Action::SyncAll
            | Action::SyncRange { .. }
            | Action::Printed(_)
            | Action::Begin
            | Action::End { .. } => {}
        }
        Ok(())
    }

    /// Makes the inode of a creation, without a name.
    pub fn apply_unnamed(&mut self, create: &Action, now_ns: i128) {
        let Action::Create { ino, what, mode, uid, gid, .. } = create else { return };
        let mut node = Node::new(what, *mode, *uid, *gid, now_ns);
        node.links -= 1;
        self.make(*ino, node);
    }

    fn make(&mut self, ino: Ino, node: Node) {
        self.nodes.insert_mut(ino, Arc::new(node));
    }

    /// Makes blocks of a file, as far as it goes, those that it has in another tree.
    pub fn take_blocks(
        &mut self,
        ino: Ino,
        mut blocks: std::ops::Range<u64>,
        from: &Self,
    ) -> Result<(), Error> {
        let Some(from) = from.contents(ino).cloned() else { return Ok(()) };
        self.contents_mut(ino)
            .map_or(Ok(()), |(contents, _)| blocks.try_for_each(|block| contents.take_block(block, &from)))
    }

    fn rename(&mut self, action: &Action, now_ns: i128) {
        let Action::Rename { parent, name, to, to_name, ino, replaced, exchanged } = action else { return };
        self.set_name(*parent, name, replaced.filter(|_| *exchanged), now_ns);
        self.set_name(*to, to_name, Some(*ino), now_ns);
        self.moved(*ino, *parent, Some(*to));
        match replaced {
            Some(other) if *exchanged => self.moved(*other, *to, Some(*parent)),
            Some(other) => {
                self.moved(*other, *to, None);
                self.drop_name(*other);
            }
            _ => {}
        }
    }

    /// A directory has a link to its parent, which follows when it moves.
    fn moved(&mut self, ino: Ino, from: Ino, to: Option<Ino>) {
        if self.node(ino).is_some_and(Node::is_directory) {
            self.change(from, |node| node.links = node.links.saturating_sub(1));
            to.into_iter().for_each(|to| self.change(to, |node| node.links += 1));
        }
    }

    /// Sets what a name stands for.
    fn set_name(&mut self, parent: Ino, name: &Name, ino: Option<Ino>, now_ns: i128) {
        self.change(parent, |node| {
            let Kind::Directory(entries) = &mut node.kind else { return };
            match ino {
                Some(ino) => entries.insert_mut(name.clone(), ino),
                None => drop(entries.remove_mut(name)),
            }
            node.mtime_ns = now_ns;
        });
    }

    fn drop_name(&mut self, ino: Ino) {
        self.change(ino, |node| {
            node.links = if node.is_directory() { 0 } else { node.links.saturating_sub(1) };
        });
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            change(Arc::make_mut(node));
        }
    }

    fn change_file(
        &mut self,
        ino: Ino,
        now_ns: i128,
        change: impl FnOnce(&mut Contents) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some((contents, mtime_ns)) = self.contents_mut(ino) else { return Ok(()) };
        *mtime_ns = now_ns;
        change(contents)
    }

    /// The contents of a file, and the time of their last change.
    fn contents_mut(&mut self, ino: Ino) -> Option<(&mut Contents, &mut i128)> {
        let node = Arc::make_mut(self.nodes.get_mut(&ino)?);
        match &mut node.kind {
            Kind::File(contents) => Some((contents, &mut node.mtime_ns)),
            _ => None,
        }
    }

    /// A digest of everything that a program can see from the root on, except times.
    pub fn digest(&self) -> u128 {
        self.digest_by(|contents| contents.digest())
    }

    /// The same, except the contents of files.
    pub(crate) fn shape_digest(&self) -> u128 {
        self.digest_by(|_| 0)
    }

    fn digest_by(&self, of_file: impl Fn(&Contents) -> u128) -> u128 {
        let mut hasher = SipHasher13::new();
        let mut todo = vec![ROOT];
        let mut numbers = std::collections::HashMap::new();
        while let Some(ino) = todo.pop() {
            let Some(node) = self.node(ino) else { continue };
            // A file with two names comes again; a directory only in a recording that is wrong.
            let next = numbers.len();
            let number = *numbers.entry(ino).or_insert(next);
            if number != next {
                (0, number).hash(&mut hasher);
                continue;
            }
            (node.mode, node.uid, node.gid).hash(&mut hasher);
            for (name, value) in &node.xattrs {
                (name, value).hash(&mut hasher);
            }
            match &node.kind {
                Kind::File(contents) => (1, of_file(contents)).hash(&mut hasher),
                Kind::Directory(entries) => {
                    (2, entries.size()).hash(&mut hasher);
                    for (name, ino) in entries {
                        name.hash(&mut hasher);
                        todo.push(*ino);
                    }
                }
                Kind::Symlink(target) => (3, target).hash(&mut hasher),
                Kind::Special(kind, device) => (4, kind, device).hash(&mut hasher),
            }
        }
        hasher.finish128().as_u128()
    }

    /// All inodes that have a path, with it; a directory comes before its contents. A file with several
    /// names comes several times.
    pub fn walk(&self) -> Vec<(Vec<u8>, Ino)> {
        self.walk_from(&[], ROOT)
    }

    /// The same below a directory, which has this path.
    pub fn walk_from(&self, path: &[u8], ino: Ino) -> Vec<(Vec<u8>, Ino)> {
        let mut found = Vec::new();
        let mut todo = vec![(path.to_vec(), ino)];
        let mut seen = HashSet::new();
        while let Some((path, ino)) = todo.pop() {
            // A directory that is found twice is in a recording that is wrong.
            if !seen.insert(ino) {
                continue;
            }
            for (name, child) in self.entries(ino).into_iter().flatten() {
                let path = join(&path, name);
                if self.node(*child).is_some_and(Node::is_directory) {
                    todo.push((path.clone(), *child));
                }
                found.push((path, *child));
            }
        }
        found
    }
}

/// A name behind a path.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        [] => name.to_vec(),
        path => [path, b"/", name].concat(),
    }
}
