//! Applying a plan: one ordinary change after the other, none of which seals anything or waits for
//! room.

use super::known::Node;
use super::plan::{Deed, Planned};
use crate::FsError;
use crate::data::{self, Writer};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::receipt::Submitted;
use crate::types::{Caller, FileType, Ino, RenameFlags, SetAttributes};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_store::Bracket;

/// The inodes of a transaction that is being applied.
struct Applying<'a> {
    fs: &'a Filesystem,
    caller: Caller,
    /// Inodes made so far, by their steps. Each has a reference to be given back.
    made: BTreeMap<usize, Ino>,
    /// All inodes touched so far.
    touched: BTreeMap<Ino, Arc<Inode>>,
    /// The writes and log records of their data, for the receipt.
    note: &'a mut Submitted,
}

/// The inodes that a transaction touched and that still exist; the inodes that it made, with their
/// steps.
type Applied = (Vec<Arc<Inode>>, Vec<(usize, Ino)>);

impl Filesystem {
    /// Applies a plan, with the data of all its files submitted; returns the inodes that it touched
    /// and that still exist, and those it made. If it fails, the error comes with the step.
    pub(super) async fn apply(
        &self,
        caller: Caller,
        planned: &Planned<'_>,
        bracket: &Bracket<'_>,
        note: &mut Submitted,
    ) -> Result<Applied, (usize, FsError)> {
        let mut applying =
            Applying { fs: self, caller, made: BTreeMap::new(), touched: BTreeMap::new(), note };
        for (index, (step, deed)) in planned.deeds.iter().enumerate() {
            if index > 0 {
                bracket.lab_between();
            }
            applying.deed(*step, deed).await.map_err(|error| (*step, error))?;
        }
        let last = planned.deeds.last().map_or(0, |(step, _)| *step);
        applying.submit().await.map_err(|error| (last, error))?;
        let left = |inode: &Arc<Inode>| inode.state.lock().attr.nlink > 0;
        let touched = std::mem::take(&mut applying.touched).into_values().filter(left).collect();
        Ok((touched, applying.made.iter().map(|(step, ino)| (*step, *ino)).collect()))
    }
}

impl Applying<'_> {
    fn ino(&self, node: Node) -> Ino {
        match node {
            Node::Old(ino) => ino,
            Node::New(step) => self.made[&step],
        }
    }

    /// An inode that the transaction touches.
    async fn touch(&mut self, node: Node) -> Result<Arc<Inode>, FsError> {
        let inode = self.fs.inode(self.ino(node)).await?;
        self.touched.insert(inode.ino, inode.clone());
        Ok(inode)
    }

    async fn deed(&mut self, step: usize, deed: &Deed<'_>) -> Result<(), FsError> {
        let (fs, caller) = (self.fs, self.caller);
        match deed {
            Deed::Create { dir, name, permissions } => {
                let dir = self.touch(*dir).await?.ino;
                let made = fs.mknod(caller, dir, name, FileType::Regular, *permissions, 0).await?;
                self.note_made(step, made.ino).await
            }
            Deed::Link { file, dir, name, by_way_of } => {
                let file = self.touch(Node::Old(*file)).await?;
                let dir = self.touch(*dir).await?.ino;
                self.submit_these(&[&file]).await?;
                let linked = fs.link(file.ino, dir, by_way_of.as_ref().unwrap_or(name)).await?;
                fs.arc().forget(linked.ino, 1);
                match by_way_of {
                    Some(by) => fs.rename(dir, by, dir, name, RenameFlags::default()).await,
                    None => Ok(()),
                }
            }
            Deed::Mkdir { dir, name, permissions } => {
                let dir = self.touch(*dir).await?.ino;
                let made = fs.mkdir(caller, dir, name, *permissions).await?;
                self.note_made(step, made.ino).await
            }
            Deed::Symlink { dir, name, target } => {
                let dir = self.touch(*dir).await?.ino;
                let made = fs.symlink(caller, dir, name, target).await?;
                self.note_made(step, made.ino).await
            }
            Deed::Write { file, offset, data } => {
                let file = self.touch(*file).await?;
                let writer = Writer::calling(caller.uid != 0);
                data::write_in_transaction(fs, &file, *offset, data, writer).await
            }
            Deed::SetLen { file, size } => {
                let kill_privileges = caller.uid != 0;
                let set = SetAttributes { size: Some(*size), kill_privileges, ..SetAttributes::default() };
                self.set(*file, set).await
            }
            Deed::SetPermissions { node, permissions } => {
                let set = SetAttributes { permissions: Some(*permissions), ..SetAttributes::default() };
                self.set(*node, set).await
            }
            Deed::SetXattr { node, name, value, mode } => {
                let ino = self.touch(*node).await?.ino;
                fs.setxattr(ino, name, value, *mode).await
            }
            Deed::RemoveXattr { node, name } => {
                let ino = self.touch(*node).await?.ino;
                fs.removexattr(ino, name).await
            }
            Deed::Rename { from, to, source } => self.rename(from, to, *source).await,
            Deed::Remove { dir, name, directory } => {
                let dir = self.touch(*dir).await?.ino;
                if *directory { fs.rmdir(dir, name).await } else { fs.unlink(dir, name).await }
            }
        }
    }

    async fn note_made(&mut self, step: usize, ino: Ino) -> Result<(), FsError> {
        self.made.insert(step, ino);
        self.touch(Node::New(step)).await.map(drop)
    }

    async fn set(&mut self, node: Node, set: SetAttributes) -> Result<(), FsError> {
        let ino = self.touch(node).await?.ino;
        self.fs.setattr(self.caller, ino, set).await.map(drop)
    }

    async fn rename(
        &mut self,
        (dir, name): &(Node, Vec<u8>),
        (onto, new_name): &(Node, Vec<u8>),
        source: Node,
    ) -> Result<(), FsError> {
        let (dir, onto) = (self.touch(*dir).await?.ino, self.touch(*onto).await?.ino);
        let source = self.touch(source).await?;
        // Data reaches the log before its new name does (P3). The rename would see to that, and
        // might wait for the device.
        self.submit_these(&[&source]).await?;
        self.fs.rename(dir, name, onto, new_name, RenameFlags::default()).await
    }

    /// Submits the data of all files that still exist.
    async fn submit(&mut self) -> Result<(), FsError> {
        let touched: Vec<_> = self.touched.values().cloned().collect();
        self.submit_these(&touched.iter().collect::<Vec<_>>()).await
    }

    /// Submits the data of those of the inodes, given in the order of their numbers, that are
    /// regular files and exist.
    async fn submit_these(&mut self, inodes: &[&Arc<Inode>]) -> Result<(), FsError> {
        let has_data = |inode: &&&Arc<Inode>| {
            let state = inode.state.lock();
            inode.file_type == FileType::Regular && (state.attr.nlink > 0 || state.linkable)
        };
        let files: Vec<&Arc<Inode>> = inodes.iter().filter(has_data).copied().collect();
        data::submit_in_transaction(self.fs, &files, self.note).await
    }
}

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        let fs = self.fs.arc();
        self.made.values().for_each(|ino| fs.forget(*ino, 1));
    }
}
