//! Durability classes: when changes of a file or directory become durable.
//!
//! A file or directory has a class of its own, which new ones get from their directory, or that of
//! the mount. Syncs ask for it (`data/calls/sync.rs`). Class `ordered` owes a flush, of
//! which `data/flush/promises.rs` keeps account; class `strict` owes one after each change.

pub use syncline_format::items::durability::Durability;

use crate::FsError;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::types::Ino;
use std::sync::Arc;
use syncline_format::items::durability::FLAGS_DURABILITY;
use syncline_format::items::inode::FLAG_IMMUTABLE;
use syncline_format::superblock::FEATURE_DURABILITY;
use syncline_sync::atomic::Ordering;

impl Filesystem {
    /// The class of a file or directory: its own, if it has one, and the one that holds.
    pub async fn durability(&self, ino: Ino) -> Result<(Option<Durability>, Durability), FsError> {
        let inode = self.inode(ino).await?;
        let own = Durability::of(inode.state.lock().meta.flags);
        Ok((own, own.unwrap_or(self.options.durability)))
    }

    /// Sets the class of a file, or of a directory and its future entries; without one, the mount's class
    /// holds. Earlier changes are as durable as they were. `NotPermitted` for an
    /// immutable file, whose flags chattr(1) alone changes.
    pub async fn set_durability(&self, ino: Ino, class: Option<Durability>) -> Result<(), FsError> {
        let (features, bits) = match class {
            Some(class) => (FEATURE_DURABILITY, class.flags()),
            None => (0, 0),
        };
        let change = |before| match before & FLAG_IMMUTABLE {
            0 => Ok((before & !FLAGS_DURABILITY) | bits),
            _ => Err(FsError::NotPermitted),
        };
        self.change_flags(ino, features, change).await
    }

    /// False if no class can be `strict`: most images have none, and no change of them shall pay for
    /// it.
    pub fn may_be_strict(&self) -> bool {
        self.has_classes.load(Ordering::Relaxed)
    }
}

/// The class that holds for an inode.
pub(crate) fn class_of(fs: &Filesystem, inode: &Inode) -> Durability {
    Durability::of(inode.state.lock().meta.flags).unwrap_or(fs.options.durability)
}

/// The class of a sync of several files: the strongest of theirs.
pub(crate) fn class_of_all(fs: &Filesystem, inodes: &[Arc<Inode>]) -> Durability {
    let stronger = |one: Durability, other: Durability| match (one, other) {
        (Durability::Ordered(one), Durability::Ordered(other)) => Durability::Ordered(one.min(other)),
        (Durability::Ordered(_), other) => other,
        (one, _) => one,
    };
    inodes.iter().map(|inode| class_of(fs, inode)).reduce(stronger).unwrap_or_default()
}
