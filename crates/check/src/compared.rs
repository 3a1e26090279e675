//! The blocks of file data that a check has found sound, each with the checksum that it was compared
//! with: snapshots and copies share blocks, and each is read once.
//!
//! Items of several states name a checksum for one block. Where they name different ones, the block is
//! read again, and is damaged for one of them.

use std::collections::BTreeMap;
use syncline_format::items::extent::{Algorithm, Extent, Packed};
use syncline_format::{BlockRun, Crc, crc};

/// Blocks in one page.
const PAGE_BLOCKS: u64 = 4096;
/// The most pages: 1 GiB of memory, for 1 TiB of data. Blocks beyond are read as often as they are
/// named.
const PAGES_MAX: usize = 65_536;

/// For each sound block, the checksum that it was compared with: four bytes.
#[derive(Default)]
pub(crate) struct Compared {
    pages: BTreeMap<u64, Box<[u32]>>,
    /// The image has snapshots. Otherwise only extents with the mark of shared ones are worth it.
    has_snapshots: bool,
}

impl Compared {
    /// Nothing was compared yet.
    pub(crate) fn new(has_snapshots: bool) -> Self {
        Self { pages: BTreeMap::new(), has_snapshots }
    }

    /// Records that all blocks of an extent were read and are sound.
    pub(crate) fn sound(&mut self, extent: &Extent) {
        if !(self.has_snapshots || extent.shared) {
            return;
        }
        for (block, mark) in marks(extent) {
            let (page, within) = place(block);
            if !self.pages.contains_key(&page) {
                if self.pages.len() == PAGES_MAX {
                    continue;
                }
                self.pages.insert(page, vec![0; PAGE_BLOCKS as usize].into());
            }
            if let Some(page) = self.pages.get_mut(&page) {
                page[within] = mark;
            }
        }
    }

    /// The parts of an extent that are to be read; a compressed one is read whole or not at all.
    pub(crate) fn unknown(&self, extent: Extent) -> Vec<Extent> {
        let is_unknown = |(block, mark): (u64, u32)| {
            let (page, within) = place(block);
            mark == 0 || self.pages.get(&page).is_none_or(|page| page[within] != mark)
        };
        let unknown: Vec<bool> = marks(&extent).map(is_unknown).collect();
        if unknown.iter().all(|&unknown| unknown) || (extent.packed.is_some() && unknown.contains(&true)) {
            return vec![extent];
        }
        let mut at = extent.file_block;
        let runs = unknown.chunk_by(|one, other| one == other).filter_map(|run| {
            let first = at;
            at += run.len() as u64;
            run[0].then(|| extent.slice(first, at)).flatten()
        });
        runs.collect()
    }
}

/// The blocks of an extent, each with the mark that it must have: its checksum and, for a unit, how
/// that is compressed. A mark of 0 is none.
fn marks(extent: &Extent) -> impl Iterator<Item = (u64, Crc)> {
    let unit = extent.packed.map_or(0, unit_mark);
    let BlockRun { start, .. } = extent.run();
    (start..).zip(extent.checksums.iter().map(move |checksum| checksum ^ unit))
}

fn unit_mark(Packed { algorithm, bytes, unit_blocks, .. }: Packed) -> u32 {
    let algorithm = match algorithm {
        Algorithm::Lz4 => 1_u64,
        Algorithm::Zstd => 2,
    };
    crc(&[algorithm, bytes.into(), unit_blocks].map(u64::to_le_bytes).concat())
}

/// The page of a block, and its place there.
fn place(block: u64) -> (u64, usize) {
    (block / PAGE_BLOCKS, (block % PAGE_BLOCKS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(addr: u64, checksums: &[Crc]) -> Extent {
        Extent::plain(40, addr, checksums.to_vec())
    }

    #[test]
    fn what_was_sound_is_not_read_again() {
        let mut compared = Compared::new(true);
        let all = extent(PAGE_BLOCKS - 2, &[1, 2, 3, 4]);
        assert_eq!(compared.unknown(all.clone()), std::slice::from_ref(&all));
        compared.sound(&extent(PAGE_BLOCKS - 1, &[2, 3]));
        let ends = [all.slice(40, 41).unwrap(), all.slice(43, 44).unwrap()];
        assert_eq!(compared.unknown(all.clone()), ends);
        compared.sound(&all);
        assert!(compared.unknown(all).is_empty());
    }

    #[test]
    fn another_checksum_or_another_way_of_compressing_is_another_claim() {
        let mut compared = Compared::new(true);
        compared.sound(&extent(100, &[1, 2]));
        let other = extent(100, &[1, 5]);
        assert_eq!(compared.unknown(other.clone()), [other.slice(41, 42).unwrap()]);
        let unit = |bytes| {
            let packed = Packed { algorithm: Algorithm::Zstd, bytes, unit_blocks: 4, skip: 0, blocks: 4 };
            Extent { packed: Some(packed), ..extent(100, &[1, 2]) }
        };
        assert_eq!(compared.unknown(unit(7000)), [unit(7000)], "whole");
        compared.sound(&unit(7000));
        assert!(compared.unknown(unit(7000)).is_empty());
        assert_eq!(compared.unknown(unit(7001)), [unit(7001)]);
        // Its parts are decoded as a whole.
        let packed = Packed { skip: 1, blocks: 2, ..unit(7000).packed.unwrap() };
        assert!(compared.unknown(Extent { packed: Some(packed), ..unit(7000) }).is_empty());
    }

    #[test]
    fn without_snapshots_only_shared_extents_are_kept() {
        let mut compared = Compared::new(false);
        compared.sound(&extent(100, &[1]));
        assert!(compared.pages.is_empty());
        let shared = Extent { shared: true, ..extent(100, &[1]) };
        compared.sound(&shared);
        assert!(compared.unknown(shared).is_empty());
    }
}
