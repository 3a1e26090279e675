//! The limits of a transaction, and the room for all of it.

use super::step::{Action, NotCommitted, Step};
use crate::FsError;
use crate::attributes::xattr;
use crate::data::{self, MANY_BLOCKS_MAX};
use crate::filesystem::Filesystem;
use syncline_format::BLOCK_BYTES;
use syncline_store::{Admitted, ChangeSize, Reservation, StoreError};

/// Most steps of a transaction.
pub const STEPS_MAX: usize = 16384;
/// Most bytes that a transaction writes, counted in the blocks that each write touches, together with
/// the values of attributes.
pub const TRANSACTION_BYTES_MAX: u64 = MANY_BLOCKS_MAX * BLOCK_BYTES as u64;

/// The room of one step besides its payload: the items of an inode, its directory, its name and a
/// quota, with the largest contents that an inode item may have.
const STEP: ChangeSize = ChangeSize { items: 8, bytes: 3072 };

/// The most room that a transaction takes.
pub(super) struct Needs {
    size: ChangeSize,
    /// Blocks of data.
    blocks: u64,
}

/// The room of a transaction, kept while it is applied.
pub(super) struct Kept {
    _admitted: Admitted,
    _blocks: Option<Reservation>,
}

impl Needs {
    /// Refuses what is over the limits.
    pub(super) fn of(steps: &[Step]) -> Result<Self, NotCommitted> {
        if steps.len() > STEPS_MAX {
            return Err(NotCommitted::unchanged(FsError::TooManySteps));
        }
        let (mut size, mut written, mut edges) = (ChangeSize::ORDINARY, 0, 0);
        let mut values = 0;
        let mut add = |more: ChangeSize| {
            size.items += more.items;
            size.bytes += more.bytes;
        };
        for step in steps {
            add(STEP);
            match &step.action {
                Action::Write { data, offset } => {
                    let blocks = blocks_of(*offset, data.len());
                    written += blocks;
                    // A file that outgrows its inode item takes a block for the contents of the item.
                    edges += 1;
                    add(data::size_of_names(blocks + 1));
                }
                Action::SetLen { .. } => edges += 1,
                Action::SetXattr { value, .. } => {
                    values += value.len() as u64;
                    add(xattr::size_of(value));
                }
                Action::Symlink { target } => add(xattr::size_of(target)),
                _ => {}
            }
        }
        if written * BLOCK_BYTES as u64 + values > TRANSACTION_BYTES_MAX {
            return Err(NotCommitted::unchanged(FsError::TransactionTooLarge));
        }
        Ok(Self { size, blocks: written + edges })
    }
}

/// The blocks that a write touches.
pub(super) fn blocks_of(offset: u64, len: usize) -> u64 {
    match len {
        0 => 0,
        _ => {
            let last = offset.saturating_add(len as u64 - 1) / BLOCK_BYTES as u64;
            last - offset / BLOCK_BYTES as u64 + 1
        }
    }
}

impl Filesystem {
    /// Waits until memory and space allow all of a transaction. The caller holds nothing.
    pub(super) async fn find_room_for(&self, needs: &Needs) -> Result<Kept, FsError> {
        self.store.writable()?;
        self.prepare_compression(crate::types::FileType::Regular).await?;
        let bytes = needs.blocks * BLOCK_BYTES as u64;
        data::wait_for_room(self, bytes).await?;
        let admitted = self.admit_growth_of(needs.size).await?;
        let blocks = match data::reserve(self, needs.blocks).await {
            // What is dirty has more room reserved than it takes.
            Err(FsError::Store(StoreError::NoSpace)) if self.give_back_by_sync().await => {
                data::reserve(self, needs.blocks).await?
            }
            reserved => reserved?,
        };
        Ok(Kept { _admitted: admitted, _blocks: blocks })
    }
}
