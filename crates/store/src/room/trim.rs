//! Discarding free blocks: all of them on request, or newly freed ones in the background.
//!
//! A block is discarded only while it can't be allocated, and only if no superblock slot leads to
//! it (rule R2; see `syncline_space`). So after a crash at any time nothing is missing, whatever
//! the crash made of the discard.

use crate::{Store, StoreError};
use futures_lite::future::poll_once;
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Weak;
use std::time::Duration;
use syncline_device::{DeviceError, DeviceExt};
use syncline_format::{BLOCK_BYTES, BlockRun};
use syncline_sync::atomic::{AtomicBool, Ordering};

/// Maximum number of blocks withheld from writers at a time: 16 MiB.
const BATCH_BLOCKS: u64 = 4096;
/// Maximum number of discards in flight: an unmount waits for them, however long they take.
const BATCH_DISCARDS: usize = 8;

/// How long an unmount continues to discard.
const AT_THE_END_MAX: Duration = Duration::from_secs(5);
/// Blocks that must be waiting for one more superblock before one is written just for them: 1 MiB,
/// more than such a checkpoint itself frees.
const WORTH_BLOCKS: u64 = 256;

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The state of discarding.
#[derive(Default)]
pub(super) struct Discarding {
    /// Held while blocks are withheld from writers, so that a writer that finds no room can wait
    /// for them.
    pub(super) batch: syncline_sync::asynchronous::Mutex<()>,
    /// Blocks that became free and are still to be discarded. The lock is held while discarding, so
    /// the next holder finds the earlier ones discarded.
    sweep: syncline_sync::asynchronous::Mutex<VecDeque<BlockRun>>,
    /// The filesystem is being unmounted: the background leaves the rest to the unmount, which has
    /// little time.
    ending: AtomicBool,
    /// The device failed a discard; the background makes no more.
    given_up: AtomicBool,
}

impl Store {
    /// Discards the free blocks in a range of the device, in runs of at least `min_bytes`; returns
    /// the number of bytes discarded.
    ///
    /// That includes blocks deleted before the call, unless a reader still holds on to them. Fails
    /// with [`StoreError::KeepsRoom`] if the device is an image file that was not opened to give
    /// back space.
    pub async fn trim(&self, bytes: Range<u64>, min_bytes: u64) -> Result<u64, StoreError> {
        self.health.writable()?;
        if !self.device().discards() {
            return Err(StoreError::KeepsRoom);
        }
        // After two superblocks, neither slot leads to anything that was free or freed before.
        if self.unless_log_left(self.checkpoint_twice().await).await?.is_none() {
            self.checkpoint_twice().await?;
        }
        let block = BLOCK_BYTES as u64;
        let usable = self.geometry().usable();
        let start = bytes.start.div_ceil(block).max(usable.start);
        let end = (bytes.end / block).min(usable.end());
        let mut trimmed = 0;
        let whole = BlockRun::new(start, end.saturating_sub(start));
        for run in self.room.space.free_runs(whole, min_bytes.div_ceil(block)) {
            // The minimum length applies to whole runs, but only a part is withheld at a time, so
            // that writers find room meanwhile.
            for piece in run.pieces(BATCH_BLOCKS) {
                let (discarded, result) = self.discard_batch(&[piece]).await;
                trimmed += discarded;
                result?;
            }
        }
        Ok(trimmed)
    }

    /// Discards blocks freed since the last call, until the timer `over` ends; without a timer (in
    /// the background), until an unmount begins.
    async fn discard_freed(&self, mut over: Option<Sleep>) -> Result<(), StoreError> {
        let mut left = self.room.discarding.sweep.lock().await;
        self.lab_discard().await?;
        left.extend(self.room.space.take_freed().into_iter().flat_map(|run| run.pieces(BATCH_BLOCKS)));
        while !left.is_empty() {
            let is_over = match &mut over {
                Some(over) => poll_once(over).await.is_some(),
                None => self.room.discarding.ending.load(Ordering::Acquire),
            };
            if is_over {
                if over.is_some() {
                    tracing::warn!("not all that was freed was discarded: the device takes long");
                }
                return Ok(());
            }
            let mut blocks = 0;
            let fits = left.iter().take(BATCH_DISCARDS).take_while(|run| {
                blocks += run.blocks;
                blocks <= BATCH_BLOCKS
            });
            let count = fits.count().max(1);
            let batch: Vec<BlockRun> = left.drain(..count).collect();
            self.discard_batch(&batch).await.1?;
        }
        Ok(())
    }

    /// True if the newest superblock freed enough blocks to write one more, so that they can be
    /// discarded.
    fn wants_superblock(&self) -> bool {
        let discards = self.options.discard && self.device().discards() && !self.given_up();
        discards && !self.log.has_hole() && self.room.space.discards_waiting() >= WORTH_BLOCKS
    }

    /// A checkpoint of a filesystem that may have come to rest: blocks freed by its last checkpoint
    /// would otherwise wait for ever for the next one.
    pub(crate) async fn checkpoint_at_rest(&self) -> Result<(), StoreError> {
        let generation = || self.checkpoint.superblock(|newest| newest.generation);
        let before = generation();
        self.checkpoint().await?;
        if generation() == before && self.wants_superblock() {
            let mut state = self.checkpoint.lock().await;
            self.run_checkpoint(&mut state, false).await?;
        }
        Ok(())
    }

    /// Discards freed blocks at unmount, after which nobody knows of them any more. A slow device
    /// does not hold up the unmount.
    pub(crate) async fn discard_at_the_end(&self) {
        self.room.discarding.ending.store(true, Ordering::Release);
        let done = async {
            self.checkpoint().await?;
            if self.wants_superblock() {
                let mut state = self.checkpoint.lock().await;
                self.run_checkpoint(&mut state, false).await?;
            }
            self.discard_freed(Some(self.spawn.sleep(AT_THE_END_MAX))).await
        };
        let discards = self.options.discard && self.device().discards() && !self.given_up();
        if discards
            && !self.log.has_hole()
            && let Err(error) = done.await
        {
            tracing::warn!("not all that was freed was discarded before the end: {error}");
        }
    }

    fn given_up(&self) -> bool {
        self.room.discarding.given_up.load(Ordering::Acquire)
    }

    async fn checkpoint_twice(&self) -> Result<(), StoreError> {
        let mut state = self.checkpoint.lock().await;
        self.run_checkpoint(&mut state, false).await?;
        self.run_checkpoint(&mut state, false).await
    }

    /// Discards the free parts of some runs. Returns the number of bytes discarded, even if some
    /// discard failed.
    async fn discard_batch(&self, runs: &[BlockRun]) -> (u64, Result<(), StoreError>) {
        let _batch = self.room.discarding.batch.lock().await;
        // `close` waits for the batch in flight and then hands the image to others.
        if self.health.is_closing() {
            return (0, Ok(()));
        }
        if let Err(error) = self.health.writable() {
            return (0, Err(error));
        }
        let claimed: Vec<BlockRun> =
            runs.iter().flat_map(|run| self.room.space.claim_discardable(*run)).collect();
        if self.headroom().least() < 0 {
            // Promised room comes first. On a full image there is little to discard anyway.
            claimed.iter().for_each(|run| self.room.space.give_back(*run));
            return (0, Ok(()));
        }
        // The discards start when they are created. The blocks are withheld until the device has
        // answered, whatever the answer.
        let discards =
            claimed.iter().map(|run| self.device().discard_at(run.offset_bytes(), run.len_bytes()));
        let discards: Vec<_> = discards.collect();
        let (mut bytes, mut result) = (0, Ok(()));
        for (run, discard) in claimed.iter().zip(discards) {
            match discard.await {
                Ok(()) => {
                    bytes += run.len_bytes();
                    self.counters.discards.add(1);
                }
                Err(error) => {
                    self.counters.discards_failed.add(1);
                    result = result.and(Err(error.into()));
                }
            }
            self.room.space.give_back(*run);
        }
        self.counters.discarded_bytes.add(bytes);
        (bytes, result)
    }
}

/// Discards the blocks that each checkpoint releases, until the store closes or the device fails a
/// discard.
pub(crate) async fn tend_discards(store: Weak<Store>) {
    loop {
        let Some(strong) = store.upgrade() else { return };
        if strong.health.is_over() {
            return;
        }
        let ended = strong.checkpoint.listen_ended();
        match strong.discard_freed(None).await {
            Ok(()) => {}
            Err(StoreError::Device(error)) => return strong.give_up(&error),
            // Read-only: stop discarding.
            Err(_) => return,
        }
        drop(strong);
        ended.await;
    }
}

impl Store {
    fn give_up(&self, error: &DeviceError) {
        if !self.room.discarding.given_up.swap(true, Ordering::AcqRel) {
            tracing::warn!("discarding ends: {error}; nothing is lost, freed blocks keep their contents");
        }
        self.room.space.forget_freed();
    }
}
