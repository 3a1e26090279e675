//! The label and UUID of the filesystem.

use crate::FsError;
use crate::filesystem::Filesystem;
use syncline_format::superblock::encode_label;

impl Filesystem {
    /// The label: a name for humans.
    pub fn label(&self) -> String {
        self.store.superblock().label_text()
    }

    /// Sets the label, at most 64 bytes without a NUL, durably.
    pub async fn set_label(&self, label: &str) -> Result<(), FsError> {
        let label = encode_label(label);
        let label = label.ok_or(FsError::Invalid("a label has at most 64 bytes, and no NUL"))?;
        Ok(self.store.set_label(label).await?)
    }

    /// The UUID: a name for programs.
    pub fn uuid(&self) -> [u8; 16] {
        self.store.superblock().uuid
    }

    /// Sets the UUID, durably.
    pub async fn set_uuid(&self, uuid: [u8; 16]) -> Result<(), FsError> {
        Ok(self.store.set_uuid(uuid).await?)
    }
}
