//! The steps that link, rename and unlink.

use super::{Deed, Plan};
use crate::FsError;
use crate::names::create::more_links;
use crate::names::tmpfile::HeldOpen;
use crate::transact::known::{Known, Node};
use crate::types::{Ino, ROOT};
use std::collections::HashSet;

impl<'a> Plan<'a> {
    pub(super) async fn link(&mut self, ino: Ino, path: &[u8], exclusive: bool) -> Result<Deed<'a>, FsError> {
        let file = Node::Old(ino);
        let known = self.world.look(self.fs, file).await?.clone();
        let held = known.inode.clone().and_then(|inode| HeldOpen::of_linkable(self.fs, inode));
        match held {
            Some(held) if known.links == 0 => self.held.push(held),
            _ => return Err(FsError::NotFound),
        }
        known.require_regular()?;
        known.require_changeable()?;
        let (dir, name) = self.world.parent_of(self.fs, path).await?;
        let target = self.world.find(self.fs, dir, &name).await?;
        match target {
            Some(_) if exclusive => return Err(FsError::Exists),
            Some(target) => self.require_replaceable(&known, dir, target).await?,
            None => self.world.known(dir).require_growable()?,
        }
        if self.world.known(dir).quota != known.quota {
            return Err(FsError::CrossDevice);
        }
        self.note_file(file);
        let mut by_way_of = None;
        if let Some(target) = target {
            by_way_of = Some(self.unused_name(dir).await?);
            self.drop_name(dir, &name, target);
        }
        self.world.known(file).links = 1;
        self.world.put_name(dir, &name, file);
        Ok(Deed::Link { file: ino, dir, name, by_way_of })
    }

    /// A name that a directory does not have.
    async fn unused_name(&mut self, dir: Node) -> Result<Vec<u8>, FsError> {
        for number in 0_u64.. {
            let name = format!(".transaction.{number}").into_bytes();
            if self.world.find(self.fs, dir, &name).await?.is_none() {
                return Ok(name);
            }
        }
        Err(FsError::Exists)
    }

    /// Removes the name of the replaced inode.
    fn drop_name(&mut self, dir: Node, name: &[u8], target: Node) {
        let known = self.world.known(target);
        known.links = if known.is_directory() { 0 } else { known.links.saturating_sub(1) };
        self.world.take_name(dir, name, target);
    }

    pub(super) async fn remove(&mut self, path: &[u8], directory: bool) -> Result<Deed<'a>, FsError> {
        let (dir, name) = self.world.parent_of(self.fs, path).await?;
        let node = self.world.find(self.fs, dir, &name).await?.ok_or(FsError::NotFound)?;
        let known = self.world.look(self.fs, node).await?;
        match (directory, known.is_directory()) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            _ => {}
        }
        known.require_changeable()?;
        if directory && known.size > 0 {
            return Err(FsError::NotEmpty);
        }
        known.links = if directory { 0 } else { known.links.saturating_sub(1) };
        self.world.known(dir).require_changeable()?;
        self.world.take_name(dir, &name, node);
        Ok(Deed::Remove { dir, name, directory })
    }

    pub(super) async fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<Option<Deed<'a>>, FsError> {
        let (dir, name) = self.world.parent_of(self.fs, from).await?;
        let (onto, new_name) = self.world.parent_of(self.fs, to).await?;
        let source = self.world.find(self.fs, dir, &name).await?.ok_or(FsError::NotFound)?;
        let target = self.world.find(self.fs, onto, &new_name).await?;
        let moved = self.world.look(self.fs, source).await?.clone();
        if target == Some(source) {
            // Two names of one inode, or the same name twice: POSIX requires that nothing happens.
            return Ok(None);
        }
        self.world.known(dir).require_changeable()?;
        moved.require_changeable()?;
        match target {
            Some(target) => self.require_replaceable(&moved, onto, target).await?,
            None => self.world.known(onto).require_growable()?,
        }
        if dir != onto {
            self.require_same_tree(&moved, dir, onto)?;
        }
        if moved.is_directory() && dir != onto {
            self.refuse_loop(source, onto).await?;
            if target.is_none() {
                more_links(self.world.known(onto).links)?;
            }
        }
        self.note_file(source);
        self.world.take_name(dir, &name, source);
        if let Some(target) = target {
            self.drop_name(onto, &new_name, target);
        }
        self.world.put_name(onto, &new_name, source);
        Ok(Some(Deed::Rename { from: (dir, name), to: (onto, new_name), source }))
    }

    async fn require_replaceable(&mut self, moved: &Known, onto: Node, target: Node) -> Result<(), FsError> {
        self.world.known(onto).require_changeable()?;
        let known = self.world.look(self.fs, target).await?;
        known.require_changeable()?;
        match (moved.is_directory(), known.is_directory()) {
            (true, true) if known.size > 0 => Err(FsError::NotEmpty),
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            _ => Ok(()),
        }
    }

    /// Refuses what `Filesystem::require_same_tree` refuses.
    fn require_same_tree(&mut self, moved: &Known, dir: Node, onto: Node) -> Result<(), FsError> {
        let (own, source, target) = (moved.quota, self.world.known(dir).quota, self.world.known(onto).quota);
        let root = moved.inode.as_ref().map(|inode| inode.ino);
        let whole_tree = target == 0 && source == 0 && root.is_some() && self.fs.quotas.root(own) == root;
        if (own == target && source == target) || whole_tree { Ok(()) } else { Err(FsError::CrossDevice) }
    }

    /// Refuses to move a directory below itself.
    async fn refuse_loop(&mut self, source: Node, onto: Node) -> Result<(), FsError> {
        let mut seen = HashSet::new();
        let mut at = onto;
        while at != Node::Old(ROOT) {
            if at == source {
                return Err(FsError::Invalid("a directory can't move below itself"));
            }
            let parent = self.world.look(self.fs, at).await?.parent;
            match (parent, at) {
                (Some(parent), _) if seen.insert(at) => at = parent,
                (_, Node::Old(ino)) => return Err(FsError::corrupt(ino, "inode", "parent")),
                (_, Node::New(_)) => return Err(FsError::NotFound),
            }
        }
        Ok(())
    }
}
