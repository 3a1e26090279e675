//! Room for data: reserving blocks of the store before they are needed.

use crate::FsError;
use crate::data::memory::preallocated::with_share;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::patience::Patience;
use syncline_store::{Reservation, StoreError};

/// Reserves blocks; the caller may hold leases. Before it gives up, it forces a checkpoint and
/// waits for unlinked files to give their blocks back.
pub(crate) async fn reserve(fs: &Filesystem, blocks: u64) -> Result<Option<Reservation>, FsError> {
    if blocks == 0 {
        return Ok(None);
    }
    if let Some(reservation) = fs.store.try_reserve(blocks) {
        return Ok(Some(reservation));
    }
    Box::pin(wait_for_blocks(fs, blocks)).await.map(Some)
}

async fn wait_for_blocks(fs: &Filesystem, blocks: u64) -> Result<Reservation, FsError> {
    let mut patience = Patience::default();
    let mut reserved = fs.store.reserve(blocks).await;
    while matches!(reserved, Err(StoreError::NoSpace)) && patience.wait(fs, |_| true).await {
        reserved = fs.store.reserve_now(blocks).await;
    }
    Ok(reserved?)
}

/// Reserves blocks for dirty data that lost its reservation to a failed write.
pub(crate) async fn make_up_reservation(fs: &Filesystem, inode: &Inode) -> Result<(), FsError> {
    let deficit = inode.state.lock().data.reservation_deficit();
    let reservation = match reserve(fs, deficit).await {
        // The room was promised once, and others may have taken it since: this may draw on the
        // reserve.
        Err(FsError::Store(StoreError::NoSpace)) => {
            let of_reserve = fs.store.try_reserve_to_shrink(deficit);
            Some(of_reserve.ok_or(FsError::Store(StoreError::NoSpace))?)
        }
        reserved => reserved?,
    };
    inode.state.lock().data.add_reservation(reservation);
    Ok(())
}

/// Sets aside room for blocks that are about to be preallocated, including their share. The caller
/// may hold leases.
pub(crate) async fn set_aside(fs: &Filesystem, blocks: u64) -> Result<Reservation, FsError> {
    // This succeeds only if there is room for the share too.
    let mut room = reserve(fs, blocks).await?.unwrap_or_default();
    room.merge(fs.store.reserve_again(with_share(blocks) - blocks));
    Ok(room)
}
