//! The flags that chattr(1) sets, and what they forbid.
//!
//! The kernel knows nothing of an inode's flags on a FUSE mount. It checks who may change them;
//! their effects are decided here, under the lease of the inode that has them.

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::inode::change::InodeChanges;
use crate::types::{FileFlags, FileType, Ino};
use syncline_format::items::durability::{Durability, FLAGS_DURABILITY};
use syncline_format::items::extent::Algorithm;
use syncline_format::items::inode::{
    FLAG_APPEND, FLAG_IMMUTABLE, FLAG_LZ4, FLAG_NO_ACCESS_TIME, FLAG_NO_DUMP, FLAG_ZSTD, compression_of,
};
use syncline_format::superblock::{FEATURE_COMPRESSION, FEATURE_DURABILITY};
use syncline_store::{Admission, Transaction};
use syncline_sync::atomic::Ordering;

/// All flags that a caller can set, but for the durability class.
const SETTABLE: u32 =
    FLAG_IMMUTABLE | FLAG_APPEND | FLAG_NO_ACCESS_TIME | FLAG_NO_DUMP | FLAG_LZ4 | FLAG_ZSTD;

impl FileFlags {
    fn bits(self) -> u32 {
        let bit = |set: bool, flag: u32| if set { flag } else { 0 };
        bit(self.immutable, FLAG_IMMUTABLE)
            | bit(self.append_only, FLAG_APPEND)
            | bit(self.no_access_time, FLAG_NO_ACCESS_TIME)
            | bit(self.no_dump, FLAG_NO_DUMP)
            | bit(self.compression == Some(Algorithm::Lz4), FLAG_LZ4)
            | bit(self.compression == Some(Algorithm::Zstd), FLAG_ZSTD)
            | bit(self.synchronous, Durability::Strict.flags())
    }

    /// The flags of an inode that had `before`. `S` is class strict; without it another class stays.
    fn after(self, before: u32) -> u32 {
        let was_strict = Durability::of(before) == Some(Durability::Strict);
        let class = if self.synchronous || was_strict { FLAGS_DURABILITY } else { 0 };
        (before & !SETTABLE & !class) | self.bits()
    }

    /// The features that an image with these flags has.
    fn features(self) -> u32 {
        let has = |holds: bool, feature: u32| if holds { feature } else { 0 };
        has(self.compression.is_some(), FEATURE_COMPRESSION) | has(self.synchronous, FEATURE_DURABILITY)
    }

    fn of(bits: u32) -> Self {
        let has = |flag: u32| bits & flag != 0;
        Self {
            immutable: has(FLAG_IMMUTABLE),
            append_only: has(FLAG_APPEND),
            no_access_time: has(FLAG_NO_ACCESS_TIME),
            no_dump: has(FLAG_NO_DUMP),
            compression: compression_of(bits),
            synchronous: Durability::of(bits) == Some(Durability::Strict),
        }
    }
}

impl Filesystem {
    /// The flags of an inode.
    pub async fn file_flags(&self, ino: Ino) -> Result<FileFlags, FsError> {
        let inode = self.inode(ino).await?;
        let bits = inode.state.lock().meta.flags;
        Ok(FileFlags::of(bits))
    }

    /// Sets the flags of a file or directory. The kernel has checked the caller's permission.
    pub async fn set_file_flags(&self, ino: Ino, flags: FileFlags) -> Result<(), FsError> {
        self.change_flags(ino, flags.features(), |before| Ok(flags.after(before))).await
    }

    /// Sets the compression of data written to a file from now on, or of files made in a directory.
    /// Existing data stays as it is; see [`Filesystem::rewrite`].
    pub async fn set_compression(&self, ino: Ino, compression: Option<Algorithm>) -> Result<(), FsError> {
        let flags = FileFlags { compression, ..FileFlags::default() };
        let change = |before| Ok((before & !(FLAG_LZ4 | FLAG_ZSTD)) | flags.bits());
        self.change_flags(ino, flags.features(), change).await
    }

    /// Changes the flags of an inode, on an image that has these features from then on.
    pub(crate) async fn change_flags(
        &self,
        ino: Ino,
        features: u32,
        change_of: impl FnOnce(u32) -> Result<u32, FsError>,
    ) -> Result<(), FsError> {
        self.store.writable()?;
        if features != 0 {
            // A feature is durable before any flag needs it, and so before any data is compressed:
            // older programs refuse the image.
            self.store.add_features(features).await?;
            if features & FEATURE_DURABILITY != 0 {
                self.has_classes.store(true, Ordering::Release);
            }
        }
        let _room = self.store.admit(Admission::Change).await?;
        let inode = self.inode(ino).await?;
        if !matches!(inode.file_type, FileType::Regular | FileType::Directory) {
            return Err(FsError::NotSupported);
        }
        let _lease = inode.lease.write().await;
        self.require_present(&inode)?;
        let mut changes = InodeChanges::new();
        let change = changes.of(&inode);
        // The change time moves even if the flags stay the same, as on other filesystems.
        change.meta.flags = change_of(change.meta.flags)?;
        change.touch(self.now());
        changes.commit(self, Transaction::new())?;
        Ok(())
    }
}

impl Filesystem {
    /// Makes sure, before a file is created, that the image may have compressed data if the mount
    /// asks for it. The caller holds no lease.
    pub(crate) async fn prepare_compression(&self, file_type: FileType) -> Result<(), FsError> {
        let asks = file_type == FileType::Regular && self.options.compression.is_some();
        if asks && !self.may_compress.load(Ordering::Acquire) {
            // Waits as well if another file has just begun to add the feature: the superblock in
            // memory has it before a durable one does.
            self.store.add_features(FEATURE_COMPRESSION).await?;
            self.may_compress.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The flags of a new inode in a directory with these `flags`: those that it hands down, and
    /// the compression that the mount asks for.
    pub(crate) fn flags_of_new(&self, flags: u32, file_type: FileType) -> u32 {
        let handed_down = handed_down(flags, file_type);
        match self.options.compression {
            compression @ Some(_) if file_type == FileType::Regular && compression_of(flags).is_none() => {
                handed_down | FileFlags { compression, ..FileFlags::default() }.bits()
            }
            _ => handed_down,
        }
    }
}

/// The flags of a copy of an inode that has `flags`: those that chattr(1) shows, or else `passed_on` by the
/// directory.
pub(crate) fn flags_of_copy(flags: u32, passed_on: u32) -> u32 {
    let shown = FileFlags::of(flags);
    if shown.bits() == 0 { passed_on } else { shown.after(passed_on) }
}

fn has(inode: &Inode, flags: u32) -> bool {
    inode.state.lock().meta.flags & flags != 0
}

fn refuse(forbidden: bool) -> Result<(), FsError> {
    if forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Refuses a change of an immutable or append-only inode: of its mode, owner, times, extended
/// attributes, names, or a file's size.
pub(crate) fn require_changeable(inode: &Inode) -> Result<(), FsError> {
    refuse(has(inode, FLAG_IMMUTABLE | FLAG_APPEND))
}

/// Refuses a change of an immutable inode that an append-only one permits: new names in a
/// directory, setting a file's times to now.
pub(crate) fn require_growable(inode: &Inode) -> Result<(), FsError> {
    refuse(has(inode, FLAG_IMMUTABLE))
}

/// Refuses data at `offset` of a file that is immutable, or is append-only and longer. An open does
/// not say whether it is for appending (and mostly is not sent at all), but the offset of the data
/// shows it.
pub(crate) fn require_writable(inode: &Inode, offset: u64) -> Result<(), FsError> {
    let state = inode.state.lock();
    let flags = state.meta.flags;
    refuse(flags & FLAG_IMMUTABLE != 0 || (flags & FLAG_APPEND != 0 && offset < state.attr.size))
}

/// The flags among a directory's `flags` that a new inode of type `to` inherits.
fn handed_down(flags: u32, to: FileType) -> u32 {
    let all = match to {
        FileType::Symlink => 0,
        FileType::Regular | FileType::Directory => {
            FLAG_NO_ACCESS_TIME | FLAG_NO_DUMP | FLAG_LZ4 | FLAG_ZSTD | FLAGS_DURABILITY
        }
        _ => FLAG_NO_ACCESS_TIME | FLAG_NO_DUMP,
    };
    flags & all
}
