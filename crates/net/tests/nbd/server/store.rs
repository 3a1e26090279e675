//! What the laboratory's server holds: what is durable, and per block every version that no flush
//! has covered. A crash keeps any of them, sector by sector.

use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

type Block = Arc<[u8]>;

struct Version {
    bytes: Block,
    write: u64,
}

pub struct Store {
    /// One more with each crash. Connections of an earlier one do nothing any more.
    pub incarnation: u64,
    pub failed_flushes: u64,
    durable: BTreeMap<u64, Block>,
    dirty: BTreeMap<u64, Vec<Version>>,
    /// Writes that were answered.
    replied: HashSet<u64>,
    writes: u64,
    pub rng: StdRng,
}

fn zeros() -> Block {
    vec![0; BLOCK].into()
}

impl Store {
    pub fn new(rng: StdRng) -> Self {
        Self {
            incarnation: 0,
            failed_flushes: 0,
            durable: BTreeMap::new(),
            dirty: BTreeMap::new(),
            replied: HashSet::new(),
            writes: 0,
            rng,
        }
    }

    fn durable_block(&self, block: u64) -> Block {
        self.durable.get(&block).cloned().unwrap_or_else(zeros)
    }

    fn block(&self, block: u64) -> Block {
        let newest = self.dirty.get(&block).and_then(|versions| versions.last());
        newest.map_or_else(|| self.durable_block(block), |version| version.bytes.clone())
    }

    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        assert!(offset.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK), "a crooked read");
        let first = offset / BLOCK as u64;
        (first..first + (len / BLOCK) as u64).flat_map(|block| self.block(block).to_vec()).collect()
    }

    /// What a server that is started anew finds after a crash that loses everything it may lose.
    pub fn durable(&self, offset: u64, len: usize) -> Vec<u8> {
        let first = offset / BLOCK as u64;
        (first..first + (len / BLOCK) as u64).flat_map(|block| self.durable_block(block).to_vec()).collect()
    }

    /// Writes, and returns the number to call `reply` with.
    pub fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) -> u64 {
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
    pub fn reply(&mut self, write: u64) {
        self.replied.insert(write);
    }

    /// Makes exactly what was answered durable.
    pub fn flush(&mut self) {
        let Self { dirty, durable, replied, .. } = self;
        dirty.retain(|block, versions| {
            if let Some(newest) = versions.iter().rposition(|version| replied.contains(&version.write)) {
                durable.insert(*block, versions[newest].bytes.clone());
                versions.drain(..=newest);
            }
            !versions.is_empty()
        });
    }

    /// Fails, and drops some of what it should have made durable, as a disk or a kernel may.
    pub fn fail_flush(&mut self) {
        self.failed_flushes += 1;
        let Self { dirty, rng, .. } = self;
        dirty.retain(|_, _| rng.random_bool(0.5));
    }

    /// Keeps any version of each sector that no flush covered, or none.
    pub fn crash(&mut self) {
        self.incarnation += 1;
        for (block, versions) in std::mem::take(&mut self.dirty) {
            let mut bytes = self.durable_block(block).to_vec();
            let torn = self.rng.random_bool(0.2);
            let whole = self.rng.random_range(0..=versions.len());
            for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
                let kept = if torn { self.rng.random_range(0..=versions.len()) } else { whole };
                if let Some(version) = kept.checked_sub(1).map(|kept| &versions[kept]) {
                    sector.copy_from_slice(&version.bytes[index * SECTOR..][..SECTOR]);
                }
            }
            self.durable.insert(block, bytes.into());
        }
        self.replied.clear();
    }
}
