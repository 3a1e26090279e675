//! Making the filesystem larger while it is in use.

use crate::FsError;
use crate::filesystem::Filesystem;
use std::io::ErrorKind;
use syncline_format::space::MAX_BLOCKS;
use syncline_format::{BLOCK_BYTES, Geometry};
use syncline_store::StoreError;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The sizes of a filesystem that was made larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enlarged {
    /// Size before, in bytes.
    pub before_bytes: u64,
    /// Size now, in bytes.
    pub now_bytes: u64,
}

impl Filesystem {
    /// Makes the filesystem this large, durably, and its image file too if that is shorter. Without
    /// a size, the filesystem becomes as large as its device is now. A difference of less than 64
    /// KiB changes nothing. A crash or an error leaves the old size or the new one.
    pub async fn enlarge(&self, size_bytes: Option<u64>) -> Result<Enlarged, FsError> {
        self.store.writable()?;
        let before_bytes = self.store.geometry().total_blocks * BLOCK;
        let now_bytes = match size_bytes {
            Some(size) if size / BLOCK > MAX_BLOCKS => return Err(FsError::TooLarge),
            // Too little to move the superblocks' copies for.
            Some(size) if size.abs_diff(before_bytes) < Geometry::TAIL_BLOCKS * BLOCK => before_bytes,
            Some(size) if size < before_bytes => return Err(FsError::SmallerInUse),
            wanted => self.store.enlarge(wanted).await.map_err(refusal)?,
        };
        Ok(Enlarged { before_bytes, now_bytes })
    }
}

fn refusal(error: StoreError) -> FsError {
    let kind = match &error {
        StoreError::Device(error) => error.io_error().map(|source| source.kind()),
        _ => None,
    };
    match kind {
        Some(ErrorKind::InvalidInput) => FsError::DeviceTooSmall,
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) => {
            FsError::HostFull
        }
        _ => error.into(),
    }
}
