//! The effect of a crash on writes that no flush covered: any subset stays, in any order, torn at
//! sectors. Each way to choose is legal, and each finds different defects.

use crate::store::Version;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use std::collections::{BTreeMap, BTreeSet, HashSet};

const SECTOR: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    Lost,
    Torn,
}

/// The fate of each write in one crash.
pub(crate) enum Forgetting {
    /// For each block on its own, some version of it or the durable contents.
    ByBlock,
    /// Each write has one fate in all of its blocks.
    ByWrite(BTreeMap<u64, Fate>),
}

impl Forgetting {
    pub(crate) fn choose(
        dirty: &BTreeMap<u64, Vec<Version>>,
        replied: &HashSet<u64>,
        rng: &mut StdRng,
    ) -> Self {
        let writes: BTreeSet<u64> = dirty.values().flatten().map(|version| version.write).collect();
        let writes: Vec<u64> = writes.into_iter().collect();
        let Some(&one) = writes.choose(rng) else { return Self::ByBlock };
        let way = rng.random_range(0..16);
        let (keep, tear) = (rng.random_range(0.0..1.0), rng.random_range(0.0..1.0));
        let mut fate = |write: u64| match way {
            0..3 => Fate::Lost,
            3 => Fate::Kept,
            4 if replied.contains(&write) => Fate::Kept,
            4 => Fate::Lost,
            // All but one survive, or only one does.
            5..8 if write != one => Fate::Kept,
            8..10 if write == one => Fate::Kept,
            8..10 => Fate::Lost,
            5..8 if rng.random() => Fate::Torn,
            5..8 => Fate::Lost,
            _ if rng.random_bool(keep) => Fate::Kept,
            _ if rng.random_bool(tear) => Fate::Torn,
            _ => Fate::Lost,
        };
        if way >= 13 {
            return Self::ByBlock;
        }
        Self::ByWrite(writes.into_iter().map(|write| (write, fate(write))).collect())
    }

    /// Puts the surviving part of a block's versions over its durable contents.
    pub(crate) fn leave(&self, versions: &[Version], bytes: &mut [u8], rng: &mut StdRng) {
        let fates = match self {
            Self::ByBlock => return leave_any(versions, bytes, rng),
            Self::ByWrite(fates) => fates,
        };
        let mut versions: Vec<&Version> = versions.iter().collect();
        if rng.random_bool(0.3) {
            versions.shuffle(rng);
        }
        for version in versions {
            let sectors = bytes.len() / SECTOR;
            // A part of the write's blocks, of which one is torn at most places.
            let kept = match fates.get(&version.write) {
                Some(Fate::Kept) => 0..sectors,
                Some(Fate::Torn) if rng.random() => 0..rng.random_range(0..=sectors),
                Some(Fate::Torn) => rng.random_range(0..=sectors)..sectors,
                _ => 0..0,
            };
            let range = kept.start * SECTOR..kept.end * SECTOR;
            bytes[range.clone()].copy_from_slice(&version.bytes[range]);
        }
    }
}

fn leave_any(versions: &[Version], bytes: &mut [u8], rng: &mut StdRng) {
    let torn = rng.random_bool(0.2);
    let whole = rng.random_range(0..=versions.len());
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let kept = if torn { rng.random_range(0..=versions.len()) } else { whole };
        if let Some(version) = kept.checked_sub(1).map(|kept| &versions[kept]) {
            sector.copy_from_slice(&version.bytes[index * SECTOR..][..SECTOR]);
        }
    }
}
