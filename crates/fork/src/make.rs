//! Making a fork.

use crate::{Base, ForkError, Forked};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use syncline_device::{AlignedBuf, Device, DeviceExt};
use syncline_format::BlockRun;
use syncline_format::fork::ForkRecord;
use syncline_store::{NewFork, format_fork};

/// Makes a fork on `own`, empty storage of the snapshot's size. `base` has claimed the hold that keeps
/// the snapshot for it, and `path` is where it is found again. If it has claimed the snapshot itself,
/// the fork is a temporary one. Everything is durable when this returns.
pub async fn make(own: Arc<dyn Device>, base: Base, path: &Path) -> Result<(), ForkError> {
    let (superblock, snapshot) = (base.superblock.clone(), base.snapshot().await?);
    let (at, block) = block_of(&base.record(1, path))?;
    own.write_at(at, vec![block]).await?;
    let device = Forked::new(own, base);
    let fork = NewFork {
        base: &superblock,
        snapshot: &snapshot,
        kept: device.kept(),
        uuid: *uuid::Uuid::new_v4().as_bytes(),
        epoch: rand::random(),
    };
    Ok(format_fork(device.clone(), fork).await?)
}

/// Where a record is written, and its block.
pub(crate) fn block_of(record: &ForkRecord) -> Result<(u64, Bytes), ForkError> {
    let block = record.encode().ok_or(ForkError::Path)?;
    let at = BlockRun::new(record.place(), 1).offset_bytes();
    Ok((at, AlignedBuf::copy_from(&block).into_bytes()))
}
