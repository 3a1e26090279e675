//! Quotas of directory trees.

use crate::error::{Result, about};
use crate::filesystem::Filesystem;
use crate::walk::Last;
use std::path::Path;
use syncline_fs::types::Statfs;
use syncline_fs::{QuotaLimits, QuotaUsage};

impl Filesystem {
    /// Limits the bytes and inodes of everything below a directory, counting the directory itself,
    /// and returns when the existing contents are counted; after an interruption, call it again. If
    /// the directory has a quota already, its limits are replaced. Quotas do not nest (EBUSY),
    /// names can't cross the border of a tree (EXDEV), and a full tree returns EDQUOT.
    pub fn set_quota(&self, directory: impl AsRef<Path>, limits: QuotaLimits) -> Result<QuotaUsage> {
        let (ino, engine) = (self.quota_root(directory.as_ref())?, self.engine());
        self.shared
            .call(engine.set_quota(ino, limits))
            .map_err(|error| about("limit", &directory)(error.into()))
    }

    /// Limits and usage of a directory's quota. ENOENT if it has none.
    pub fn quota(&self, directory: impl AsRef<Path>) -> Result<QuotaUsage> {
        let (ino, engine) = (self.quota_root(directory.as_ref())?, self.engine());
        self.shared
            .call(engine.quota(ino))
            .map_err(|error| about("ask for the quota of", &directory)(error.into()))
    }

    /// Removes a directory's quota immediately; nothing else changes.
    pub fn remove_quota(&self, directory: impl AsRef<Path>) -> Result<()> {
        let (ino, engine) = (self.quota_root(directory.as_ref())?, self.engine());
        self.shared
            .call(engine.remove_quota(ino))
            .map_err(|error| about("remove the quota of", &directory)(error.into()))
    }

    /// All quotas, in the order of creation. [`Filesystem::paths`] gives the paths of their
    /// directories.
    pub fn quotas(&self) -> Vec<QuotaUsage> {
        self.engine().quotas()
    }

    /// Sizes and counts as df(1) prints them: inside a tree with limits, the limits and their rest.
    pub fn space_at(&self, path: impl AsRef<Path>) -> Result<Statfs> {
        let (ino, engine) = (self.quota_root(path.as_ref())?, self.engine());
        Ok(self.shared.call(engine.statfs_at(ino)))
    }

    fn quota_root(&self, path: &Path) -> Result<u64> {
        let found = self.shared.call(self.shared.find(path, Last::Follow));
        Ok(found.map_err(about("look at", path))?.1.ino)
    }
}
