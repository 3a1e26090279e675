//! Making a fork.

use crate::record::write_copy;
use crate::{Base, ForkError, Forked};
use std::path::Path;
use std::sync::Arc;
use syncline_device::Device;
use syncline_store::{NewFork, format_fork};

/// Makes a fork on `own`, empty storage of the snapshot's size. `base` has claimed the hold that keeps
/// the snapshot for it, and `path` is where it is found again. If it has claimed the snapshot itself,
/// the fork is a temporary one. Everything is durable when this returns.
pub async fn make(own: Arc<dyn Device>, base: Base, path: &Path) -> Result<(), ForkError> {
    let (superblock, snapshot) = (base.superblock.clone(), base.snapshot().await?);
    for sequence in [1, 2] {
        write_copy(&own, &base.record(sequence, path)).await?;
    }
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
