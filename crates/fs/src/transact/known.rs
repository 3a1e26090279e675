//! What a plan knows of inodes and names: as they are, and as the steps so far leave them.

use crate::FsError;
use crate::attributes::privileges::CAPABILITY;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, LinkTarget};
use crate::types::{FileType, Ino};
use std::collections::HashMap;
use std::sync::Arc;
use syncline_format::items::inode::{FLAG_APPEND, FLAG_CAPABILITY, FLAG_IMMUTABLE};

/// An inode: one that exists, or the one that is made by the step of this index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    Old(Ino),
    New(usize),
}

/// An inode as the steps so far leave it.
#[derive(Clone)]
pub(super) struct Known {
    pub file_type: FileType,
    /// `None` for one that the transaction makes.
    pub inode: Option<Arc<Inode>>,
    /// Names, or for a directory its subdirectories and two.
    pub links: u32,
    /// Entries of a directory, or bytes of a file.
    pub size: u64,
    pub flags: u32,
    /// Parent of a directory.
    pub parent: Option<Node>,
    /// Number of the quota that it counts in; 0 if none.
    pub quota: u64,
    /// Target of a symbolic link that the transaction makes.
    pub target: Option<Vec<u8>>,
    /// Extended attributes that the transaction sets or removes.
    pub xattrs: HashMap<Vec<u8>, bool>,
    /// Bytes of the list of their names.
    pub list_bytes: u32,
}

impl Known {
    pub(super) fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Refuses what `flags::require_changeable` refuses.
    pub(super) fn require_changeable(&self) -> Result<(), FsError> {
        refuse(self.flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0)
    }

    /// Refuses what `flags::require_growable` refuses.
    pub(super) fn require_growable(&self) -> Result<(), FsError> {
        refuse(self.flags & FLAG_IMMUTABLE != 0)
    }

    /// Refuses what `flags::require_writable` refuses.
    pub(super) fn require_writable(&self, offset: u64) -> Result<(), FsError> {
        refuse(self.flags & FLAG_IMMUTABLE != 0 || (self.flags & FLAG_APPEND != 0 && offset < self.size))
    }

    /// Removes a file's capabilities, as a write or a new size does.
    pub(super) fn drop_capability(&mut self) {
        let changed = self.xattrs.get(CAPABILITY).copied();
        if changed.unwrap_or(self.flags & FLAG_CAPABILITY != 0) {
            self.xattrs.insert(CAPABILITY.to_vec(), false);
            self.list_bytes = self.list_bytes.saturating_sub(CAPABILITY.len() as u32 + 1);
        }
    }

    pub(super) fn require_regular(&self) -> Result<(), FsError> {
        match self.file_type {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }
}

fn refuse(forbidden: bool) -> Result<(), FsError> {
    if forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// All that a plan has looked up or changed.
#[derive(Default)]
pub(super) struct World {
    pub nodes: HashMap<Node, Known>,
    names: HashMap<(Node, Vec<u8>), Option<Node>>,
}

impl World {
    /// An inode that was looked up before.
    pub(super) fn known(&mut self, node: Node) -> &mut Known {
        self.nodes.get_mut(&node).expect("it is looked up before it is used")
    }

    /// An inode, looked up if that was not done before.
    pub(super) async fn look(&mut self, fs: &Filesystem, node: Node) -> Result<&mut Known, FsError> {
        if let (Node::Old(ino), false) = (node, self.nodes.contains_key(&node)) {
            let inode = fs.inode(ino).await?;
            self.nodes.insert(node, as_it_is(fs, &inode));
        }
        Ok(self.known(node))
    }

    /// The inode that a name refers to. The directory was looked up before.
    pub(super) async fn find(
        &mut self,
        fs: &Filesystem,
        dir: Node,
        name: &[u8],
    ) -> Result<Option<Node>, FsError> {
        let at = (dir, name.to_vec());
        if let Some(known) = self.names.get(&at) {
            return Ok(*known);
        }
        let Node::Old(ino) = dir else { return Ok(None) };
        let found = match fs.find(ino, name).await? {
            Some(entry) => {
                // Refuses a damaged entry.
                fs.named(ino, entry).await?;
                Some(Node::Old(entry.ino))
            }
            None => None,
        };
        self.names.insert(at, found);
        Ok(found)
    }

    /// Gives a name to an inode, in a directory that had no such name.
    pub(super) fn put_name(&mut self, dir: Node, name: &[u8], node: Node) {
        self.names.insert((dir, name.to_vec()), Some(node));
        self.known(dir).size += 1;
        if self.known(node).is_directory() {
            self.known(dir).links += 1;
            self.known(node).parent = Some(dir);
        }
    }

    /// Takes a name from an inode.
    pub(super) fn take_name(&mut self, dir: Node, name: &[u8], node: Node) {
        self.names.insert((dir, name.to_vec()), None);
        let known = self.known(dir);
        known.size = known.size.saturating_sub(1);
        if self.known(node).is_directory() {
            let known = self.known(dir);
            known.links = known.links.saturating_sub(1);
        }
    }
}

fn as_it_is(fs: &Filesystem, inode: &Arc<Inode>) -> Known {
    let quota = fs.quota_of(inode);
    let state = inode.state.lock();
    let directory = inode.file_type == FileType::Directory;
    Known {
        file_type: inode.file_type,
        inode: Some(inode.clone()),
        links: state.attr.nlink,
        size: state.attr.size,
        flags: state.meta.flags,
        parent: directory.then_some(Node::Old(state.meta.parent)),
        quota,
        target: None,
        xattrs: HashMap::new(),
        list_bytes: state.meta.xattr_list_bytes,
    }
}

impl Known {
    /// The target of a symbolic link.
    pub(super) async fn read_target(&self, fs: &Filesystem) -> Result<Vec<u8>, FsError> {
        let Some(inode) = &self.inode else { return Ok(self.target.clone().unwrap_or_default()) };
        let _lease = inode.lease.read().await;
        let target = inode.state.lock().meta.target.clone().map(|target| *target);
        Ok(match target {
            None => return Err(FsError::corrupt(inode.ino, "inode", "target")),
            Some(LinkTarget::Here(bytes)) => bytes.to_vec(),
            Some(LinkTarget::Chunks(chunks)) => fs.read_chunks(inode.ino, chunks).await?.to_vec(),
        })
    }
}
