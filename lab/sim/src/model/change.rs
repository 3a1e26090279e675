//! The changes of names and attributes that the filesystem reported, applied to the model.

use super::tree::{Node, Place, RenameKind, Tree};
use syncline_fs::Durability;
use syncline_fs::types::{Algorithm, Ino};

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

impl Tree {
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
        self.try_apply(change).map_err(|errno| format!("errno {errno}: {change:?} can't have been done here"))
    }

    fn try_apply(&mut self, change: &Change) -> Result<(), i32> {
        match change {
            Change::Create { at, ino, node } => {
                let mut node = node.clone();
                self.inherit(at.parent, &mut node);
                self.create(at, *ino, node)
            }
            Change::Publish { at, ino, node, .. } => self.create(at, *ino, node.clone()),
            Change::Link { ino, at, .. } => self.link(*ino, at),
            Change::Remove { at } => {
                let directory = self.find(at).is_some_and(|ino| self.nodes[&ino].is_directory());
                self.remove(at, directory)
            }
            Change::Rename { from, to, exchange, .. } => {
                let kind = if *exchange { RenameKind::Exchange } else { RenameKind::Replace };
                self.rename(from, to, kind)
            }
            Change::Permissions { ino, permissions } => self.alter(*ino, |node| {
                node.permissions = *permissions;
                Ok(())
            }),
            Change::SetXattr { ino, name, value } => self.alter(*ino, |node| {
                node.xattrs.insert(name.clone(), value.clone());
                Ok(())
            }),
            Change::RemoveXattr { ino, name } => self.alter(*ino, |node| node.remove_xattr(name)),
            Change::Compression { ino, how } => self.alter(*ino, |node| {
                node.compression = *how;
                Ok(())
            }),
            Change::Class { ino, class } => self.alter(*ino, |node| {
                node.class = *class;
                Ok(())
            }),
            Change::Truncate => Ok(()),
        }
    }

    /// Changes an inode. One without names may still be changed through an open file; that change is never
    /// visible.
    fn alter(&mut self, ino: Ino, with: impl FnOnce(&mut Node) -> Result<(), i32>) -> Result<(), i32> {
        self.node_mut(ino).map_or(Ok(()), with)
    }
}
