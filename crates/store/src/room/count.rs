//! Room: how much may still be promised, so that a checkpoint, a delete or a replay never fails for
//! lack of it.
//!
//! It is counted twice: in blocks, and in blocks of whole frames, since a node or a log segment
//! needs several contiguous blocks. When frames get scarce, data takes scattered blocks first.

use crate::layers::Sizes;
use crate::{Canary, ChangeSize, Store};
use syncline_format::Geometry;
use syncline_space::{Free, Space};

/// The shortest log segment. Nodes of fewer blocks find a place nearly everywhere.
pub(crate) const LEAST_SEGMENT_BLOCKS: u64 = 4;

/// Blocks of data for each block of items, log and checksums.
const DATA_PER_METADATA: u64 = 16;

/// Blocks that must stay free after every promise.
const LITTLE: u64 = 4;

/// Free blocks minus promised and reserved ones; negative while these are drawn on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    blocks: i64,
    /// Like `blocks`, for the blocks that must lie in whole frames.
    whole: i64,
    /// Blocks of data that are promised; these and their names are already deducted.
    promised: u64,
    /// Free blocks in frames that are not whole. When data finds no more of them, it breaks a
    /// frame.
    apart: u64,
    /// Blocks per frame.
    frame: u64,
    /// Blocks in whole frames that data must leave when it breaks one: for the next change and a log
    /// segment.
    left: u64,
}

impl Headroom {
    /// The room if `blocks` of the reserve may be used as well.
    pub(crate) fn and(self, blocks: u64) -> Self {
        Self { blocks: self.blocks + blocks as i64, whole: self.whole + blocks as i64, ..self }
    }

    /// The scarcer of the two counts.
    pub(crate) fn least(self) -> i64 {
        self.blocks.min(self.whole)
    }

    /// The largest number of data blocks, possibly scattered, for which there is room including
    /// their names.
    fn data_blocks(self) -> u64 {
        // Upper bounds to search down from: every sixteen blocks of data take one more for
        // metadata.
        let by_blocks =
            self.blocks.max(0) as u64 / (DATA_PER_METADATA + 1) * DATA_PER_METADATA + DATA_PER_METADATA;
        let by_whole = (self.whole.max(0) as u64 + 1) * DATA_PER_METADATA;
        (0..=by_blocks.min(by_whole)).rev().find(|blocks| self.holds(*blocks)).unwrap_or(0)
    }

    /// True when there is room for `blocks` more blocks of data and their names.
    pub(crate) fn holds(self, blocks: u64) -> bool {
        let promised = self.promised + blocks;
        let names = promised / DATA_PER_METADATA - self.promised / DATA_PER_METADATA;
        let broken = self.broken_by(promised) - self.broken_by(self.promised);
        let whole = broken + names + LITTLE + if blocks > 0 { self.left_beside(promised) } else { 0 };
        self.blocks >= (blocks + names + LITTLE) as i64 && self.whole >= whole as i64
    }

    /// True when there is room for the promised data, some of which adds to the filesystem.
    pub(crate) fn holds_growth(self) -> bool {
        self.holds(0) && self.whole >= (LITTLE + self.left_beside(self.promised)) as i64
    }

    /// Blocks of the frames that this much data breaks.
    fn broken_by(self, data: u64) -> u64 {
        data.saturating_sub(self.apart).next_multiple_of(self.frame)
    }

    /// Blocks in whole frames that this much data must leave to others, if it breaks one.
    ///
    /// Blocks of small files become free one by one and make no frame whole. If data could break
    /// the last frame that is not reserved, the next node split would end all growth, however much
    /// is free.
    fn left_beside(self, data: u64) -> u64 {
        if self.broken_by(data) > 0 { self.left } else { 0 }
    }
}

impl Store {
    /// How much may still be promised.
    pub(crate) fn headroom(&self) -> Headroom {
        self.headroom_with(self.room.under_way.size())
    }

    /// The room if the changes under way were only `coming`.
    pub(crate) fn headroom_with(&self, coming: ChangeSize) -> Headroom {
        let sizes = self.layers.sizes();
        let reserve = self.reserve_blocks(self.needed_blocks(&sizes, coming));
        let free = self.free_beside_whole(reserve);
        let data = self.room.reserved();
        let names = data / DATA_PER_METADATA;
        let frame = self.room.space.frame_blocks();
        let nodes = |change| blocks_of_nodes(self.geometry(), change, sizes.tree_nodes);
        let next_change = nodes(ChangeSize::ORDINARY) - nodes(ChangeSize::default());
        let room = Headroom {
            blocks: free.blocks as i64 - (data + names + reserve) as i64,
            whole: free.whole as i64 - (self.whole_blocks(reserve) + names) as i64,
            promised: data,
            apart: free.blocks - free.whole,
            frame,
            left: self.whole_blocks(next_change + self.segment_blocks()),
        };
        Headroom { whole: room.whole - room.broken_by(data) as i64, ..room }
    }

    /// Free blocks, while as much of `reserve` as necessary is kept in whole frames.
    fn free_beside_whole(&self, reserve: u64) -> Free {
        if self.breaks(Canary::ScatteredRoom) {
            let blocks = self.room.space.free_blocks();
            return Free { blocks, whole: blocks };
        }
        self.room.space.keep_whole(self.whole_blocks(reserve))
    }

    /// The part of these reserved blocks that must lie in whole frames.
    fn whole_blocks(&self, reserve: u64) -> u64 {
        match self.geometry().node_blocks() < LEAST_SEGMENT_BLOCKS {
            true => reserve.min(4 * LEAST_SEGMENT_BLOCKS),
            false => reserve,
        }
    }

    /// True when the log may take `blocks`: enough remains for promised data, for the checkpoint of
    /// what is in memory, and for a segment for the recovery that may come before it.
    pub(crate) fn has_room_for_log(&self, blocks: u64) -> bool {
        self.has_room_for_log_with(self.room.under_way.size(), blocks)
    }

    /// Like `has_room_for_log`, if the changes under way were only `coming`.
    pub(crate) fn has_room_for_log_with(&self, coming: ChangeSize, blocks: u64) -> bool {
        let needed = self.needed_blocks(&self.layers.sizes(), coming);
        let free = self.free_beside_whole(self.reserve_blocks(needed));
        let needed = needed + self.segment_blocks();
        let promised = self.room.reserved() + needed + blocks;
        self.breaks(Canary::NoReserve)
            || free.blocks >= promised && free.whole >= self.whole_blocks(needed + blocks)
    }

    /// True when a change that nobody waits for, and that makes no room, leaves enough for those
    /// who make room: half of the floor, or all of it with snapshots, which may keep replaced
    /// blocks.
    pub fn has_room_to_spare(&self) -> bool {
        match self.room.space.keeps_any() {
            true => self.headroom().holds(0),
            false => self.headroom().and(self.floor_blocks() / 2).least() >= 0,
        }
    }

    /// True when the checkpoint in flight leaves enough to open the image again and to make room
    /// then, or takes no more than it gives back.
    ///
    /// Removing a snapshot writes a new table of about as many blocks as the present one.
    pub(crate) fn leaves_room_to_open(&self, table_blocks: u64) -> bool {
        let segment = LEAST_SEGMENT_BLOCKS.max(self.geometry().node_blocks());
        let whole = segment + blocks_to_make_room(self.geometry(), &self.room.space);
        let least = Free { blocks: whole + table_blocks, whole: self.whole_blocks(whole) };
        self.breaks(Canary::NoReserve)
            || self.room.space.checkpoint_gives_what_it_takes()
            || self.room.space.checkpoint_leaves(least)
    }

    /// True when the checkpoint in flight, which makes a snapshot, also leaves room for everything
    /// accepted before: the nodes in which that will be named give nothing back any more.
    pub(crate) fn leaves_room_for_accepted(&self, table_blocks: u64) -> bool {
        let Sizes { active, tree_nodes, .. } = self.layers.sizes();
        let coming = self.room.under_way.size().and(self.room.under_way.lasting()).in_memory();
        let data = self.room.reserved();
        let segment = LEAST_SEGMENT_BLOCKS.max(self.geometry().node_blocks());
        let whole = segment
            + blocks_to_make_room(self.geometry(), &self.room.space)
            + self.checkpoint_blocks(size_of(active).and(coming), tree_nodes)
            + data / DATA_PER_METADATA;
        let least = Free { blocks: whole + data + table_blocks, whole: self.whole_blocks(whole) };
        self.breaks(Canary::NoReserve) || self.room.space.checkpoint_leaves(least)
    }

    /// Blocks that ordinary writers can still get: free now or after the next checkpoint, minus
    /// promises and the reserve.
    pub fn available_blocks(&self) -> u64 {
        self.room_after_checkpoint().blocks.max(0) as u64
    }

    /// True when a good part of the room becomes free only with the next checkpoint.
    pub(crate) fn has_room_after_checkpoint_only(&self) -> bool {
        self.room.space.counters().pending_free as i64 > self.headroom().blocks / 16
    }

    fn room_after_checkpoint(&self) -> Headroom {
        self.headroom().and(self.room.space.counters().pending_free)
    }

    /// Like `available_blocks`, minus the metadata that this many data blocks need: the blocks that
    /// one file can get.
    pub fn available_data_blocks(&self) -> u64 {
        self.room_after_checkpoint().data_blocks()
    }

    /// Blocks that an ordinary change must leave free: two checkpoints of the changes in memory, log
    /// segments, and a floor for deletes on a full filesystem.
    fn reserve_blocks(&self, needed: u64) -> u64 {
        if self.breaks(Canary::NoReserve) {
            return 0;
        }
        needed + self.floor_blocks() + 2 * self.segment_blocks()
    }

    /// Blocks that checkpoints may need for the changes in memory and for those under way.
    fn needed_blocks(&self, sizes: &Sizes, coming: ChangeSize) -> u64 {
        // If no snapshot keeps blocks, a checkpoint that only names data gives back what it takes.
        let coming = match self.room.space.keeps_any() {
            true => coming.and(self.room.under_way.lasting()),
            false => coming,
        };
        let Sizes { active, frozen, tree_nodes } = *sizes;
        let frozen = frozen.map_or(0, |frozen| self.checkpoint_blocks(size_of(frozen), tree_nodes));
        self.checkpoint_blocks(size_of(active).and(coming.in_memory()), tree_nodes) + frozen
    }

    /// The part of the reserve for callers that make room on a full filesystem.
    pub(crate) fn floor_blocks(&self) -> u64 {
        floor_blocks(self.geometry())
    }

    /// Blocks that a checkpoint of a memtable of this size may need in the worst case: every
    /// touched leaf is rewritten, with its parents, and additions fill new nodes only half.
    fn checkpoint_blocks(&self, memtable: ChangeSize, tree_nodes: u64) -> u64 {
        checkpoint_blocks(self.geometry(), &self.room.space, memtable, tree_nodes)
    }

    /// Blocks of a log segment: 4 MiB, less on a small image.
    pub(crate) fn segment_blocks(&self) -> u64 {
        segment_blocks(self.geometry().total_blocks)
    }
}

fn size_of((items, bytes): (usize, usize)) -> ChangeSize {
    ChangeSize { items: items as u64, bytes: bytes as u64 }
}

fn checkpoint_blocks(geometry: Geometry, space: &Space, memtable: ChangeSize, tree_nodes: u64) -> u64 {
    blocks_of_nodes(geometry, memtable, tree_nodes) + space.map_reserve_blocks()
}

/// The blocks of nodes in `checkpoint_blocks`.
fn blocks_of_nodes(geometry: Geometry, memtable: ChangeSize, tree_nodes: u64) -> u64 {
    let touched = (memtable.items * 2 + 2).min(tree_nodes + 2);
    let added = 2 * memtable.bytes / u64::from(geometry.node_bytes) + 2;
    (touched + added) * geometry.metadata.copies() * geometry.node_blocks()
}

fn floor_blocks(geometry: Geometry) -> u64 {
    (geometry.total_blocks / 64).clamp(256, 16 * 1024)
}

/// Blocks needed to make room: for a nearly empty checkpoint, in nodes and in pages of the space
/// map.
fn blocks_to_make_room(geometry: Geometry, space: &Space) -> u64 {
    checkpoint_blocks(geometry, space, ChangeSize::default(), 0) + floor_blocks(geometry) / 4
}

/// Blocks of the first segment of a log. It is shorter than others where a full one would leave too
/// little to make room, beside a table of snapshots of `table_blocks`. The last checkpoint may have
/// left no more.
pub(crate) fn first_segment_blocks(geometry: Geometry, space: &Space, table_blocks: u64) -> u64 {
    let spare = space.free_blocks().saturating_sub(blocks_to_make_room(geometry, space) + table_blocks);
    segment_blocks(geometry.total_blocks).min(spare).max(LEAST_SEGMENT_BLOCKS)
}

/// Blocks of a log segment: 4 MiB, or a 64th of a small image.
pub(crate) fn segment_blocks(total_blocks: u64) -> u64 {
    (total_blocks / 64).clamp(16, 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_finds_no_place_apart_breaks_a_frame() {
        let room = |whole| Headroom { blocks: 100, whole, promised: 2, apart: 5, frame: 16, left: 64 };
        assert!(room(4).holds(3));
        let least = 16 + 4 + 64;
        assert!(!room(least - 1).holds(4));
        assert!(room(least).holds(4) && !room(least).holds(20));
    }

    #[test]
    fn the_blocks_that_fit_are_the_most_that_fit() {
        for blocks in -10..3000 {
            for whole in [-1, 0, 3, 4, 5, 20, 21, blocks / 17, blocks] {
                for (promised, apart) in [(0, 0), (1, 0), (15, 100), (16, 20), (1000, 999), (1000, 3000)] {
                    let room = Headroom { blocks, whole, promised, apart, frame: 16, left: 70 };
                    let most = room.data_blocks();
                    assert!(most == 0 || room.holds(most), "{room:?}: {most}");
                    assert!(!room.holds(most + 1), "{room:?}: {most}");
                }
            }
        }
    }
}
