//! The filesystem as a whole.

use crate::data::DataShared;
use crate::inode::Inode;
use crate::{FsError, Options, Spawn};
use std::sync::{Arc, Weak};
use syncline_store::Store;

/// A mounted filesystem.
pub struct Filesystem {
    pub(crate) store: Arc<Store>,
    pub(crate) spawn: Arc<dyn Spawn>,
    pub(crate) options: Options,
    /// Figures that follow from the geometry.
    pub(crate) limits: Limits,
    /// File data's own: dirty list, budgets, background tasks.
    pub(crate) data: DataShared,
    /// To hand to background tasks.
    me: Weak<Filesystem>,
}

/// Figures that follow from the geometry of the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest value of an item.
    pub value_bytes: usize,
    /// Most file data (or symlink target) kept in the inode item.
    pub inline_bytes: usize,
    /// Most that all small xattrs take in the inode item.
    pub xattr_bytes: usize,
}

impl Filesystem {
    /// Itself, for a background task.
    pub(crate) fn arc(&self) -> Arc<Filesystem> {
        self.me.upgrade().expect("a filesystem lives in the Arc that calls its methods")
    }

    /// The store below.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Clears what a write by an unprivileged user must clear: setuid and setgid if `kill_mode`, and always the
    /// capabilities. The caller holds the inode's lease for writing and was admitted.
    pub(crate) async fn drop_privileges(&self, _inode: &Arc<Inode>, _kill_mode: bool) -> Result<(), FsError> {
        todo!()
    }
}
