//! Applying records, one after the other, by the calls that every program's requests lead to: a record
//! that they refuse is refused here.

use super::contents::Written;
use super::kept::State;
use crate::send::numbers_end;
use crate::{Header, Position, Record, Restored, StreamError};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::types::{Caller, FileType, Ino, ROOT, SetAttributes, XattrMode};
use syncline_fs::{Filesystem, FsError, QuotaLimits, Remade, RestoredAttributes};

/// The name of the receiver's state in the staging directory; inodes have their numbers as names there.
const STATE_NAME: &[u8] = b"state";
/// The attribute that a directory passes on to new inodes, besides flags.
const PASSED_ON: &[u8] = b"system.posix_acl_default";
/// Bytes of the state that are written at a time.
const STATE_BYTES_EACH: usize = 1 << 20;

/// Why a record can't be applied.
pub(super) enum Fault {
    /// The record is impossible.
    Impossible(&'static str),
    /// The filesystem refused.
    Filesystem(FsError),
}

impl From<FsError> for Fault {
    fn from(error: FsError) -> Self {
        Self::Filesystem(error)
    }
}

impl Fault {
    /// The error of the record with this number. A refusal by the filesystem is the record's fault,
    /// unless the target's device, its room or its state is to blame.
    pub(super) fn at(self, record: u64) -> StreamError {
        let what = match self {
            Self::Impossible(what) => what.to_owned(),
            Self::Filesystem(FsError::NotFound | FsError::Stale) => {
                "it names something that is not there".to_owned()
            }
            Self::Filesystem(error) if is_of_target(&error) => return error.into(),
            Self::Filesystem(error) => error.to_string(),
        };
        StreamError::Refused { record, what }
    }
}

fn is_of_target(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Store(_)
            | FsError::Corrupt { .. }
            | FsError::CorruptCount { .. }
            | FsError::QuotaUnsupported
            | FsError::HostFull
    )
}

/// The filesystem that becomes the snapshot.
pub(super) struct Target<'a> {
    pub(super) fs: &'a Arc<Filesystem>,
    /// Greater than every number that an inode may have. The directory that holds inodes without names
    /// has this number, and the receiver's state has the next one.
    pub(super) staging: Ino,
    /// The staging directory has the receiver's state.
    has_state: bool,
    /// The name of the staging directory in the root directory.
    staging_name: Vec<u8>,
    /// The root directory's attributes in the end.
    root: RestoredAttributes,
    /// Attributes of directories with limits, which get their former ones if the stream has no
    /// others for them.
    limited: BTreeMap<Ino, RestoredAttributes>,
    /// The file that is being written.
    pub(super) written: Written,
    /// Contents are followed by names, and then everything is written back.
    is_settled: bool,
}

impl<'a> Target<'a> {
    pub(super) async fn begin(fs: &'a Arc<Filesystem>, next_object: u64) -> Result<Self, StreamError> {
        // A snapshot that was made here may have inodes without names, which no stream knows.
        fs.settle_nameless().await;
        if numbers_end(fs).await? > next_object {
            return Err(StreamError::Refused {
                record: 0,
                what: "the snapshot that it starts from has inodes with greater numbers than it says"
                    .to_owned(),
            });
        }
        let root = fs.attributes_to_restore(ROOT).await?;
        // Names move freely while no tree has a limit; limits come back with their records.
        let mut limited = BTreeMap::new();
        for quota in fs.quotas() {
            limited.insert(quota.root, fs.attributes_to_restore(quota.root).await?);
            fs.relax(quota.root).await?;
            fs.remove_quota(quota.root).await?;
        }
        fs.relax(ROOT).await?;
        // Nobody can have this name by chance.
        let staging_name = format!(".syncline-receive-{:032x}", rand::random::<u128>()).into_bytes();
        let remade =
            Remade { ino: next_object, file_type: FileType::Directory, rdev: 0, target: Bytes::new() };
        fs.remake(ROOT, &staging_name, remade).await?;
        let (staging, written) = (next_object, Written::default());
        // Inodes are made in it: they must not get the attribute that the root directory passes on.
        match fs.removexattr(staging, PASSED_ON).await {
            Ok(()) | Err(FsError::NoAttribute) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Self { fs, staging, has_state: false, staging_name, root, limited, written, is_settled: false })
    }

    /// Goes on with the part of a stream that a filesystem has already.
    pub(super) async fn go_on(fs: &'a Arc<Filesystem>, state: &State) -> Result<Self, StreamError> {
        let staging = state.header.next_object;
        let found = fs.lookup(ROOT, &state.staging_name).await;
        let is_there = found.is_ok_and(|found| {
            fs.forget(found.ino, 1);
            found.ino == staging && found.file_type == FileType::Directory
        });
        if !is_there {
            return Err(StreamError::KeptDamaged("its staging directory is not there".to_owned()));
        }
        Ok(Self {
            fs,
            staging,
            has_state: true,
            staging_name: state.staging_name.clone(),
            root: state.root.into(),
            limited: state.limited.iter().map(|(ino, restored)| (*ino, (*restored).into())).collect(),
            written: Written::default(),
            is_settled: false,
        })
    }

    /// Writes everything back, with the state, so that another receiver can continue from here.
    pub(super) async fn pause(&mut self, header: &Header, position: Position) -> Result<State, StreamError> {
        self.fs.settle_all_contents().await?;
        let limited = self.limited.iter().map(|(ino, attributes)| (*ino, (*attributes).into()));
        let state = State {
            header: header.clone(),
            position,
            staging_name: self.staging_name.clone(),
            root: self.root.into(),
            limited: limited.collect(),
        };
        // The state is no part of the snapshot: a limit of all of it is not for the state.
        let quotas = self.fs.quotas();
        let limits = quotas.iter().find(|quota| quota.root == ROOT).map(|quota| quota.limits);
        if limits.is_some() {
            self.fs.set_quota(ROOT, QuotaLimits::default()).await?;
        }
        self.write_state(&state).await?;
        if let Some(limits) = limits {
            self.fs.set_quota(ROOT, limits).await?;
        }
        Ok(state)
    }

    async fn write_state(&mut self, state: &State) -> Result<(), StreamError> {
        let ino = self.staging + 1;
        if !self.has_state {
            let remade = Remade { ino, file_type: FileType::Regular, rdev: 0, target: Bytes::new() };
            self.fs.remake(self.staging, STATE_NAME, remade).await?;
            self.has_state = true;
        }
        let (nobody, empty) =
            (Caller { uid: 0, gid: 0 }, SetAttributes { size: Some(0), ..Default::default() });
        self.fs.setattr(nobody, ino, empty).await?;
        let bytes = Bytes::from(state.encode());
        for (index, piece) in bytes.chunks(STATE_BYTES_EACH).enumerate() {
            let offset = (index * STATE_BYTES_EACH) as u64;
            self.fs.write(ino, offset, bytes.slice_ref(piece), false).await?;
        }
        Ok(())
    }

    pub(super) async fn apply(&mut self, record: Record) -> Result<(), Fault> {
        self.settle_behind(&record).await?;
        match record {
            Record::Make { ino, mode, rdev, target } => {
                self.require_number(ino)?;
                let file_type = FileType::from_number((mode >> 12) as u8);
                let file_type = file_type.ok_or(Fault::Impossible("there is no such type of inode"))?;
                let remade = Remade { ino, file_type, rdev, target };
                self.fs.remake(self.staging, &staged(ino), remade).await?;
            }
            Record::Resize { ino, size } => self.resize(ino, size).await?,
            Record::Data { ino, offset, bytes } => self.data(ino, offset, bytes).await?,
            Record::Packed { ino, offset, unit } => self.packed(ino, offset, unit).await?,
            Record::Clone { ino, offset, length, from, from_offset } => {
                self.clone_range((from, from_offset), (ino, offset), length).await?
            }
            Record::Hole { ino, offset, length } => self.hole(ino, offset, length).await?,
            Record::Reserve { ino, offset, length } => self.reserve(ino, offset, length).await?,
            Record::Xattr { ino, name, value } => {
                self.change(ino).await?;
                self.fs.setxattr(ino, &name, &value, XattrMode::Set).await?;
            }
            Record::NoXattr { ino, name } => {
                self.change(ino).await?;
                match self.fs.removexattr(ino, &name).await {
                    // New contents have taken a capability away.
                    Ok(()) | Err(FsError::NoAttribute) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Record::Park { ino, dir, name } => self.park(ino, dir, &name).await?,
            Record::Unlink { dir, name } => self.unlink(dir, &name).await?,
            Record::Place { ino, dir, name } => self.place(ino, dir, &name).await?,
            Record::Drop { ino } => self.drop_parked(ino).await?,
            Record::Attributes { ino, restored } => self.attributes(ino, restored).await?,
            Record::Quota { dir, bytes, inodes } => {
                self.change(dir).await?;
                self.fs.set_quota(dir, QuotaLimits { bytes, inodes }).await?;
            }
            Record::End { .. } => return Err(Fault::Impossible("the last record comes once")),
        }
        Ok(())
    }

    /// Writes all contents back when a record of another kind follows them. Renames and limits sync
    /// dirty data, and a sync does not compress parts of units.
    async fn settle_behind(&mut self, record: &Record) -> Result<(), Fault> {
        let is_about_contents = record.kind() <= Record::LAST_OF_CONTENTS;
        if !is_about_contents && !self.is_settled {
            self.fs.settle_all_contents().await?;
        }
        self.is_settled = !is_about_contents;
        Ok(())
    }

    /// Takes the staging directory away, which must be empty.
    pub(super) async fn end(self) -> Result<(), Fault> {
        if self.has_state {
            self.fs.unlink(self.staging, STATE_NAME).await?;
        }
        if self.fs.getattr(self.staging).await?.size > 0 {
            return Err(Fault::Impossible("it ends with inodes that have no name"));
        }
        for (ino, attributes) in self.limited {
            match self.fs.restore_attributes(ino, attributes).await {
                // The directory is gone.
                Ok(()) | Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.fs.relax(ROOT).await?;
        self.fs.rmdir(ROOT, &self.staging_name).await?;
        self.fs.restore_attributes(ROOT, self.root).await?;
        Ok(())
    }

    /// Fails for a number that no inode of the stream can have.
    pub(super) fn require_number(&self, ino: Ino) -> Result<(), Fault> {
        match ino > ROOT && ino < self.staging {
            true => Ok(()),
            false => Err(Fault::Impossible("an inode can't have this number")),
        }
    }

    /// Makes an inode that the stream may name ready for changes.
    pub(super) async fn change(&self, ino: Ino) -> Result<(), Fault> {
        if ino != ROOT {
            self.require_number(ino)?;
        }
        Ok(self.fs.relax(ino).await?)
    }

    async fn attributes(&mut self, ino: Ino, restored: Restored) -> Result<(), Fault> {
        self.change(ino).await?;
        let to = RestoredAttributes::from(restored);
        self.settle_before(ino, to.flags).await?;
        self.fs.restore_attributes(ino, to).await?;
        self.limited.remove(&ino);
        if ino == ROOT {
            self.root = to;
        }
        Ok(())
    }
}

/// The name of an inode in the staging directory.
pub(super) fn staged(ino: Ino) -> Vec<u8> {
    format!("{ino:x}").into_bytes()
}
