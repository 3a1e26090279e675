//! Applying a stream to branches, one after the other.

use super::Received;
use super::apply::Target;
use super::kept::{Kept, State};
use crate::header::NUMBERS_FOLLOWED_END;
use crate::{Header, Reader, Record, StreamError};
use std::io::Read;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_format::snapshots::RECEIVING;
use syncline_format::superblock::{
    FEATURE_COUNTED_XATTRS, FEATURE_LEASE, FEATURE_PARENT_POINTERS, FEATURE_SNAPSHOTS, FEATURE_UNPLACED,
};
use syncline_fs::Filesystem;
use syncline_fs::types::Timestamp;
use syncline_store::{Branch, BranchStart, Canary, Snapshot};

/// Features that say how an image is made; the contents of a snapshot do not need them.
const FEATURES_OF_IMAGES: u32 =
    FEATURE_COUNTED_XATTRS | FEATURE_LEASE | FEATURE_PARENT_POINTERS | FEATURE_SNAPSHOTS | FEATURE_UNPLACED;
/// Most blocks that a branch is lent at a time, if others need free ones, too: 128 MiB, but more for a
/// record that needs more. On an image with less room it is half of the free blocks, so that others
/// have as many.
const LENT_BLOCKS: u64 = 32_768;
/// When the received part was made, as older programs show it. It is not the time of the sent snapshot,
/// by which streams that start from that snapshot would find it.
const KEPT_SINCE_NS: u64 = 0;

/// A stream on its way into an image.
pub(super) struct Pieces<'a, R> {
    pub(super) target: &'a Arc<Filesystem>,
    pub(super) reader: Reader<R>,
    /// The header of the whole stream.
    pub(super) header: Header,
    /// The snapshot's name in the target.
    pub(super) name: String,
    /// How much may come before it is made durable; `None` if nothing is kept.
    pub(super) piece_bytes: Option<u64>,
    /// The received part that is kept so far.
    pub(super) kept: Option<Kept>,
    /// Others write to the image: take its free blocks little by little.
    pub(super) is_sparing: bool,
    /// For a canary: a record that the kept part counts as received, and that is not applied yet.
    pub(super) owed: Option<Record>,
}

/// How a piece ended.
enum Piece {
    /// With the stream.
    Last,
    /// In the middle of it, for a reason or because it is long enough.
    Part(Option<StreamError>, Box<State>),
}

impl<R: Read> Pieces<'_, R> {
    /// Receives everything up to the end of the stream.
    pub(super) async fn receive(&mut self) -> Result<Received, StreamError> {
        loop {
            if let Some(snapshot) = self.piece().await? {
                let (header, records) = (self.header.clone(), self.reader.records());
                return Ok(Received { snapshot, header, records });
            }
        }
    }

    /// Receives one piece; returns the snapshot after the last one.
    async fn piece(&mut self) -> Result<Option<Snapshot>, StreamError> {
        let store = self.target.store();
        let features = self.header.filesystem_features & !FEATURES_OF_IMAGES;
        let blocks = if self.is_sparing { self.share() } else { u64::MAX };
        let mut branch = store.branch(self.start().await?, features, blocks).await?;
        // Of the staging directory and of the receiver's state, too.
        if self.header.next_object <= NUMBERS_FOLLOWED_END {
            branch.store().keep_numbers_below(self.header.next_object + 2);
        }
        let filled = match self.target.open_branch(branch.store().clone()).await {
            Ok(fs) => {
                let filled = self.fill(&fs, &mut branch).await;
                if filled.is_err() {
                    // Dirty data need not be written back.
                    branch.store().shut_down_untold("its stream was refused");
                }
                let closed = fs.close().await;
                filled.and_then(|piece| closed.map(|()| piece).map_err(StreamError::from))
            }
            Err(error) => Err(error.into()),
        };
        let replaced = self.kept.as_ref().map(|kept| kept.snapshot.id);
        match filled {
            Ok(Piece::Last) => {
                let created_ns = self.header.snapshot.created_ns;
                let snapshot = store.adopt_branch(branch, &self.name, created_ns, replaced).await?;
                self.kept = None;
                Ok(Some(snapshot))
            }
            Ok(Piece::Part(why, state)) => {
                let snapshot = store.adopt_branch(branch, RECEIVING, KEPT_SINCE_NS, replaced).await?;
                self.kept = Some(Kept { snapshot, state: *state });
                why.map_or(Ok(None), Err)
            }
            Err(error) => {
                store.abandon_branch(branch).await;
                Err(error)
            }
        }
    }

    /// The state that the stream is applied to: the kept part, the parent, or an empty filesystem.
    async fn start(&self) -> Result<BranchStart, StreamError> {
        let now = self.target.store().geometry();
        if let Some(kept) = &self.kept {
            return Ok(BranchStart::Snapshot(kept.snapshot.clone()));
        }
        let Some(parent) = &self.header.parent else {
            let root = Filesystem::initial_transaction(0, 0, 0o755, Timestamp::default());
            return Ok(BranchStart::Empty(Box::new(root)));
        };
        let mut snapshots = self.target.store().snapshots().await;
        snapshots.retain(|snapshot| snapshot.is_visible());
        let found = snapshots.into_iter().find(|snapshot| snapshot.created_ns == parent.created_ns);
        let found = found.ok_or_else(|| StreamError::NoParent(parent.name.clone()))?;
        if found.total_blocks > now.total_blocks {
            return Err(StreamError::Shrunk(found.name));
        }
        Ok(BranchStart::Snapshot(found))
    }

    /// Applies records up to the end of the piece.
    async fn fill(&mut self, fs: &Arc<Filesystem>, branch: &mut Branch) -> Result<Piece, StreamError> {
        // Preallocated room of the snapshot may take all lent blocks.
        self.lend_for(0, branch);
        let mut target = match &self.kept {
            None => Target::begin(fs, self.header.next_object).await?,
            Some(kept) => Target::go_on(fs, &kept.state).await?,
        };
        if let Some(record) = self.owed.take() {
            target.apply(record).await.map_err(|fault| fault.at(self.reader.records()))?;
        }
        let begin = self.reader.bytes();
        loop {
            let has_part = self.piece_bytes.is_some() && self.reader.bytes() > begin;
            match self.reader.next_record() {
                Ok(Some(record)) => {
                    self.lend_for(self.needed_by(&record, branch), branch);
                    let is_long = self.piece_bytes.is_some_and(|bytes| self.reader.bytes() - begin >= bytes);
                    if is_long && self.target.store().breaks(Canary::PartAhead) {
                        self.owed = Some(record);
                    } else {
                        target.apply(record).await.map_err(|fault| fault.at(self.reader.records()))?;
                    }
                    if is_long {
                        return self.pause(&mut target, None).await;
                    }
                }
                Ok(None) => {
                    target.end().await.map_err(|fault| fault.at(self.reader.records()))?;
                    return Ok(Piece::Last);
                }
                Err(error) if has_part && error.is_cut() => {
                    return self.pause(&mut target, Some(error)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Blocks to lend at a time.
    fn share(&self) -> u64 {
        LENT_BLOCKS.min(self.target.store().lendable_blocks() / 2)
    }

    /// Blocks that a record needs in addition to the usual number.
    fn needed_by(&self, record: &Record, branch: &Branch) -> u64 {
        match record {
            Record::Reserve { length, .. } => length.div_ceil(BLOCK_BYTES as u64),
            // Every inode below gets the number of the quota, so all nodes may be written again. A
            // quarter of the free blocks stays for others.
            Record::Quota { .. } => {
                let now = branch.store().superblock();
                let all = now.tree_nodes.saturating_mul(2 * now.geometry.node_blocks());
                let lendable = self.target.store().lendable_blocks() / 4 * 3;
                all.min((branch.free_blocks() + lendable).saturating_sub(self.least()))
            }
            _ => 0,
        }
    }

    /// Blocks that a branch is to have for any record.
    fn least(&self) -> u64 {
        (LENT_BLOCKS / 2).min(self.target.store().lendable_blocks())
    }

    /// Lends a branch blocks for a record that needs so many blocks more than most do, as far as the
    /// image has them.
    fn lend_for(&self, needed: u64, branch: &mut Branch) {
        let (store, free) = (self.target.store(), branch.free_blocks());
        // A record that needs more than can be lent is refused: others need not miss the blocks until
        // then.
        let needed = if needed > free.saturating_add(store.lendable_blocks()) { 0 } else { needed };
        let missing = self.least().saturating_add(needed).saturating_sub(free);
        if self.is_sparing && missing > 0 {
            store.lend_more(branch, missing.max(self.share()));
        }
    }

    async fn pause(&self, target: &mut Target<'_>, why: Option<StreamError>) -> Result<Piece, StreamError> {
        let state = target.pause(&self.header, self.reader.position()).await?;
        Ok(Piece::Part(why, Box::new(state)))
    }
}
