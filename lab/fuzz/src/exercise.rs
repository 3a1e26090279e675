//! Changes a filesystem with every operation that changes anything, on any objects that the image
//! shows.

use crate::bases::CALLER;
use crate::mutate::Name;
use crate::walk::Walked;
use arbitrary::Arbitrary;
use bytes::Bytes;
use std::sync::Arc;
use syncline_fs::types::{FileType, Ino, ROOT, RenameFlags, SetAttributes, SetTime, XattrMode};
use syncline_fs::{Filesystem, FsError};

/// Steps of one script.
const STEPS_MAX: usize = 32;

/// One operation. The first numbers select objects or names that the walk found.
#[derive(Arbitrary, Clone, Debug)]
pub enum Step {
    /// Creates a file of some type.
    Mknod(u8, Name, u8),
    /// Creates a directory.
    Mkdir(u8, Name),
    /// Creates a symlink with a target of this length.
    Symlink(u8, Name, u16),
    /// Adds a name to an object.
    Link(u8, u8, Name),
    /// Removes a name.
    Unlink(u8),
    /// Removes a directory.
    Rmdir(u8),
    /// Renames a name; the flags say whether it may replace and whether it exchanges.
    Rename(u8, u8, Name, bool, bool),
    /// Renames a name to an existing one.
    Replace(u8, u8, bool),
    /// Writes bytes.
    Write(u8, Offset, u16),
    /// Appends bytes.
    Append(u8, u16),
    /// Sets the size.
    Truncate(u8, Offset),
    /// Sets permissions, owner and times.
    Attributes(u8, u16),
    /// Sets an xattr with a value of this length.
    Setxattr(u8, Name, u16),
    /// Removes an xattr.
    Removexattr(u8, Name),
    /// Reads.
    Read(u8, Offset),
    /// Syncs one object.
    Fsync(u8, bool),
    /// Syncs several objects.
    SyncMany(u8, u8),
    /// Syncs everything and makes a checkpoint.
    Syncfs,
    /// Opens an object, removes its name, closes it.
    Orphan(u8, u8),
    /// Copies a range of a file to another: the number of blocks in the last field, or all.
    Copy(u8, Offset, u8, Offset, u8),
}

/// An offset in a file.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Offset {
    /// Near the start.
    Near(u16),
    /// A block.
    Block(u8),
    /// A power of two.
    Far(u8),
    /// Near the greatest offset.
    Last(u16),
}

impl Offset {
    fn bytes(self) -> u64 {
        match self {
            Self::Near(offset) => offset.into(),
            Self::Block(block) => u64::from(block) * 4096,
            Self::Far(bit) => 1 << (bit % 64),
            Self::Last(distance) => i64::MAX as u64 - u64::from(distance),
        }
    }
}

/// The steps for an input without any: each operation at least once.
pub fn round() -> Vec<Step> {
    let name = Name::Known;
    vec![
        Step::Mknod(0, Name::Long(9), 0),
        Step::Mkdir(0, Name::Long(10)),
        Step::Symlink(0, Name::Long(11), 3000),
        Step::Write(1, Offset::Near(3000), 9000),
        Step::Write(2, Offset::Block(3), 4096),
        Step::Append(1, 100),
        Step::Copy(1, Offset::Near(0), 2, Offset::Near(0), 0),
        Step::Copy(3, Offset::Near(0), 4, Offset::Block(1), 0),
        Step::Copy(4, Offset::Block(0), 4, Offset::Block(90), 3),
        Step::Setxattr(1, name(10), 5000),
        Step::Setxattr(2, name(9), 5),
        Step::Fsync(1, false),
        Step::Rename(1, 0, Name::Long(12), false, false),
        Step::Replace(2, 3, false),
        Step::Link(1, 0, Name::Long(13)),
        Step::Truncate(1, Offset::Near(5001)),
        Step::Truncate(2, Offset::Far(33)),
        Step::Attributes(3, 0o644),
        Step::SyncMany(1, 2),
        Step::Orphan(4, 1),
        Step::Unlink(5),
        Step::Rmdir(6),
        Step::Removexattr(1, name(9)),
        Step::Read(1, Offset::Near(0)),
        Step::Syncfs,
        Step::Fsync(0, true),
    ]
}

/// Performs the steps. Errors are allowed, but checked to be plausible.
pub async fn exercise(fs: &Arc<Filesystem>, walked: &Walked, steps: &[Step]) {
    let mut objects: Vec<Ino> = walked.objects.iter().map(|(ino, _)| *ino).collect();
    if objects.is_empty() {
        objects.push(ROOT);
    }
    let actor = Actor { fs, objects: &objects, walked };
    for step in steps.iter().take(STEPS_MAX) {
        if let Err(error) = actor.take(step).await {
            assert!((1..=133).contains(&error.errno()), "{error:?}");
        }
    }
}

struct Actor<'a> {
    fs: &'a Arc<Filesystem>,
    objects: &'a [Ino],
    walked: &'a Walked,
}

impl Actor<'_> {
    fn object(&self, number: u8) -> Ino {
        self.objects[usize::from(number) % self.objects.len()]
    }

    /// A directory; the root if no other was found.
    fn directory(&self, number: u8) -> Ino {
        let all = self.walked.objects.iter();
        let directories: Vec<_> = all.filter(|(_, kind)| *kind == FileType::Directory).collect();
        directories.get(usize::from(number) % directories.len().max(1)).map_or(ROOT, |(ino, _)| *ino)
    }

    fn name(&self, number: u8) -> Result<&(Ino, Vec<u8>), FsError> {
        let count = self.walked.names.len().max(1);
        self.walked.names.get(usize::from(number) % count).ok_or(FsError::NotFound)
    }

    async fn take(&self, step: &Step) -> Result<(), FsError> {
        match step {
            Step::Mknod(..) | Step::Mkdir(..) | Step::Symlink(..) | Step::Link(..) => self.create(step).await,
            Step::Unlink(..) | Step::Rmdir(..) | Step::Rename(..) | Step::Replace(..) | Step::Orphan(..) => {
                self.change_names(step).await
            }
            Step::Setxattr(..) | Step::Removexattr(..) | Step::Attributes(..) => {
                self.change_attributes(step).await
            }
            _ => self.change_data(step).await,
        }
    }

    async fn create(&self, step: &Step) -> Result<(), FsError> {
        const TYPES: [FileType; 5] =
            [FileType::Regular, FileType::Regular, FileType::Fifo, FileType::Socket, FileType::CharDevice];
        let fs = self.fs;
        let made = match *step {
            Step::Mknod(directory, name, kind) => {
                let kind = TYPES[usize::from(kind) % TYPES.len()];
                fs.mknod(CALLER, self.directory(directory), &name.bytes(), kind, 0o6644, 7).await?
            }
            Step::Mkdir(directory, name) => {
                fs.mkdir(CALLER, self.directory(directory), &name.bytes(), 0o755).await?
            }
            Step::Symlink(directory, name, len) => {
                let target = vec![b't'; usize::from(len % 4100)];
                fs.symlink(CALLER, self.directory(directory), &name.bytes(), &target).await?
            }
            Step::Link(object, directory, name) => {
                fs.link(self.object(object), self.directory(directory), &name.bytes()).await?
            }
            _ => return Ok(()),
        };
        fs.forget(made.ino, 1);
        Ok(())
    }

    async fn change_names(&self, step: &Step) -> Result<(), FsError> {
        let fs = self.fs;
        match *step {
            Step::Unlink(name) => {
                let (directory, name) = self.name(name)?;
                fs.unlink(*directory, name).await
            }
            Step::Rmdir(name) => {
                let (directory, name) = self.name(name)?;
                fs.rmdir(*directory, name).await
            }
            Step::Rename(name, directory, new, no_replace, exchange) => {
                let (old_directory, old) = self.name(name)?;
                let flags = RenameFlags { no_replace, exchange, whiteout: None };
                fs.rename(*old_directory, old, self.directory(directory), &new.bytes(), flags).await
            }
            Step::Replace(name, new, exchange) => {
                let ((old_directory, old), (directory, new)) = (self.name(name)?, self.name(new)?);
                let flags = RenameFlags { exchange, ..RenameFlags::default() };
                fs.rename(*old_directory, old, *directory, new, flags).await
            }
            Step::Orphan(object, name) => {
                let ino = self.object(object);
                fs.open_file(ino).await?;
                let (directory, name) = self.name(name)?;
                let removed = fs.unlink(*directory, name).await;
                fs.release_file(ino);
                removed
            }
            _ => Ok(()),
        }
    }

    async fn change_attributes(&self, step: &Step) -> Result<(), FsError> {
        match *step {
            Step::Attributes(object, permissions) => {
                let changes = SetAttributes {
                    permissions: Some(permissions & 0o7777),
                    uid: Some(permissions.into()),
                    mtime: Some(SetTime::Now),
                    kill_privileges: permissions & 1 != 0,
                    ..SetAttributes::default()
                };
                self.fs.setattr(CALLER, self.object(object), changes).await.map(drop)
            }
            Step::Setxattr(object, name, len) => {
                let value = vec![5; usize::from(len)];
                self.fs.setxattr(self.object(object), &name.bytes(), &value, XattrMode::Set).await
            }
            Step::Removexattr(object, name) => self.fs.removexattr(self.object(object), &name.bytes()).await,
            _ => Ok(()),
        }
    }

    async fn change_data(&self, step: &Step) -> Result<(), FsError> {
        let fs = self.fs;
        match *step {
            Step::Write(object, offset, len) => {
                let data = Bytes::from(vec![6; usize::from(len)]);
                fs.write(self.object(object), offset.bytes(), data, true).await
            }
            Step::Append(object, len) => {
                let data = Bytes::from(vec![7; usize::from(len)]);
                fs.append(self.object(object), data, false).await.map(drop)
            }
            Step::Truncate(object, offset) => {
                let changes = SetAttributes { size: Some(offset.bytes()), ..SetAttributes::default() };
                fs.setattr(CALLER, self.object(object), changes).await.map(drop)
            }
            Step::Read(object, offset) => {
                let pieces = fs.read(self.object(object), offset.bytes(), 8192).await?;
                assert!(pieces.iter().map(|piece| piece.len()).sum::<usize>() <= 8192);
                Ok(())
            }
            Step::Copy(from, from_at, to, to_at, blocks) => {
                let len = if blocks == 0 { u64::MAX } else { u64::from(blocks) * 4096 };
                let (from, to) = ((self.object(from), from_at.bytes()), (self.object(to), to_at.bytes()));
                let copied = fs.copy_range(from, to, len, true).await?;
                assert!(copied <= len);
                Ok(())
            }
            Step::Fsync(object, data_only) => fs.fsync(self.object(object), data_only).await,
            Step::SyncMany(one, other) => fs.sync_many(&[self.object(one), self.object(other)], 0).await,
            Step::Syncfs => fs.syncfs().await,
            _ => Ok(()),
        }
    }
}
