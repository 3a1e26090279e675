//! The server's contents: the durable blocks, and of each block every version that no flush has covered. A
//! crash keeps any of them, sector by sector.

use crate::forget::Forgetting;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Bytes in a block.
pub const BLOCK: usize = 4096;

pub(crate) type Block = Arc<[u8]>;

/// One version of a block that no flush has covered.
#[derive(Clone)]
pub(crate) struct Version {
    pub(crate) bytes: Block,
    /// The number of the write.
    pub(crate) write: u64,
}

/// The contents of the export.
#[derive(Clone)]
pub struct Store {
    /// Connections of an earlier one do nothing any more.
    pub incarnation: u64,
    /// Flushes that failed.
    pub failed_flushes: u64,
    /// Crashes.
    pub crashes: u64,
    /// Crashes at which there was something to forget.
    pub forgetful_crashes: u64,
    durable: BTreeMap<u64, Block>,
    dirty: BTreeMap<u64, Vec<Version>>,
    /// Writes that were answered.
    replied: HashSet<u64>,
    writes: u64,
    /// Decides which writes are forgotten.
    pub rng: StdRng,
}

fn zeros() -> Block {
    vec![0; BLOCK].into()
}

impl Store {
    pub(crate) fn new(rng: StdRng) -> Self {
        Self {
            incarnation: 0,
            failed_flushes: 0,
            crashes: 0,
            forgetful_crashes: 0,
            durable: BTreeMap::new(),
            dirty: BTreeMap::new(),
            replied: HashSet::new(),
            writes: 0,
            rng,
        }
    }

    /// Gives it these contents from the beginning of the export on, durable.
    pub fn load(&mut self, bytes: &[u8]) {
        let blocks = (0..).zip(bytes.chunks_exact(BLOCK));
        let filled = blocks.filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0));
        self.durable.extend(filled.map(|(block, bytes)| (block, bytes.into())));
    }

    fn durable_block(&self, block: u64) -> Block {
        self.durable.get(&block).cloned().unwrap_or_else(zeros)
    }

    fn block(&self, block: u64) -> Block {
        let newest = self.dirty.get(&block).and_then(|versions| versions.last());
        newest.map_or_else(|| self.durable_block(block), |version| version.bytes.clone())
    }

    /// Bytes that a client reads.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK), "a crooked read");
        let first = offset / BLOCK as u64;
        let blocks = (first..first + (len / BLOCK) as u64).map(|block| self.block(block));
        blocks.collect::<Vec<Block>>().concat()
    }

    /// The first `len` bytes, as a client would read them.
    pub fn contents(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let newest = self.dirty.iter().filter_map(|(block, all)| Some((block, &all.last()?.bytes)));
        for (block, contents) in self.durable.iter().chain(newest) {
            let at = *block as usize * BLOCK;
            if let Some(place) = bytes.get_mut(at..at + BLOCK) {
                place.copy_from_slice(contents);
            }
        }
        bytes
    }

    /// Bytes that are left after a crash that loses everything it may lose.
    pub fn durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let first = offset / BLOCK as u64;
        (first..first + (len / BLOCK) as u64).flat_map(|block| self.durable_block(block).to_vec()).collect()
    }

    /// Number of blocks with versions that are not durable.
    pub fn dirty_blocks(&self) -> usize {
        self.dirty.len()
    }

    /// Writes, and returns the number to call `reply` with.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) -> u64 {
        assert!(offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK), "a crooked write");
        self.writes += 1;
        for (block, bytes) in (offset / BLOCK as u64..).zip(bytes.chunks(BLOCK)) {
            let bytes: Block = bytes.into();
            if fua {
                self.dirty.remove(&block);
                self.durable.insert(block, bytes);
            } else {
                self.dirty.entry(block).or_default().push(Version { bytes, write: self.writes });
            }
        }
        self.writes
    }

    /// The write is being answered: a flush from now on covers it.
    pub(crate) fn reply(&mut self, write: u64) {
        self.replied.insert(write);
    }

    /// Makes exactly the answered writes durable.
    pub(crate) fn flush(&mut self) {
        let Self { dirty, durable, replied, .. } = self;
        dirty.retain(|block, versions| {
            if let Some(newest) = versions.iter().rposition(|version| replied.contains(&version.write)) {
                durable.insert(*block, versions[newest].bytes.clone());
                versions.drain(..=newest);
            }
            !versions.is_empty()
        });
        // No version of the answered writes is left.
        replied.clear();
    }

    /// Fails, and drops some of the writes that it should have made durable, as a disk or a kernel may.
    pub(crate) fn fail_flush(&mut self) {
        self.failed_flushes += 1;
        let Self { dirty, rng, .. } = self;
        dirty.retain(|_, _| rng.random_bool(0.5));
    }

    /// Connections that stand do nothing any more.
    pub(crate) fn disconnect(&mut self) {
        self.incarnation += 1;
    }

    /// Crashes: forgets any part of the writes that no flush covered.
    pub fn crash(&mut self) {
        self.disconnect();
        self.crashes += 1;
        self.forgetful_crashes += u64::from(!self.dirty.is_empty());
        let forgetting = Forgetting::choose(&self.dirty, &self.replied, &mut self.rng);
        for (block, versions) in std::mem::take(&mut self.dirty) {
            let mut bytes = self.durable_block(block).to_vec();
            forgetting.leave(&versions, &mut bytes, &mut self.rng);
            self.durable.insert(block, bytes.into());
        }
        self.replied.clear();
    }
}
