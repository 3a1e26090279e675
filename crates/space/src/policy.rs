//! Where blocks of each class are placed.

use crate::live::LiveMap;
use syncline_format::{BlockAddr, BlockRun, Geometry, Metadata};

/// The use of blocks; each class is placed apart from the others while there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// File data.
    Data,
    /// Tree nodes and pages of the space map.
    Node,
    /// Their second copies.
    Copy,
    /// Log segments.
    Log,
}

/// How far behind a hint a run of the full size still counts as near it, in blocks (16 MiB).
const NEAR_BLOCKS: u64 = 4096;

/// One sixteenth of the image is preferred for nodes, another for the log, and the last one for second copies of
/// nodes.
const PARTS: u64 = 16;

/// One part in this many of the free space is left to nodes beyond the blocks reserved for them:
/// the data that fills the rest needs metadata too.
const PARTS_FOR_NODES: u64 = 4;

/// A next-fit cursor for each class, in a region that the class prefers and the other classes enter
/// last.
pub(crate) struct Placement {
    usable: BlockRun,
    nodes: Region,
    log: Region,
    data: Region,
    copies: Region,
    /// Where the next search for blocks in broken frames begins, in which no node fits.
    broken: BlockAddr,
    /// Blocks in whole frames reserved for nodes and log; `None` if never set.
    spare: Option<u64>,
    refusals: Refusals,
}

/// Allocations that fail although there is room: lets a test reach every place that can run out of
/// room.
#[derive(Default)]
struct Refusals {
    after: u64,
    times: u64,
    refused: u64,
}

impl Refusals {
    fn strikes(&mut self) -> bool {
        if self.times == 0 {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        self.times -= 1;
        self.refused += 1;
        true
    }
}

struct Region {
    run: BlockRun,
    cursor: BlockAddr,
}

impl Region {
    fn new(start: BlockAddr, end: BlockAddr) -> Self {
        Self { run: BlockRun::new(start, end - start), cursor: start }
    }
}

impl Placement {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let usable = geometry.usable();
        let part = usable.blocks / PARTS;
        let log = usable.start + part;
        let data = log + part;
        let copies = match geometry.metadata {
            Metadata::Single => usable.end(),
            Metadata::Dup => usable.end() - part,
        };
        Self {
            usable,
            nodes: Region::new(usable.start, log),
            log: Region::new(log, data),
            data: Region::new(data, copies),
            copies: Region::new(copies, usable.end()),
            broken: usable.start,
            spare: None,
            refusals: Refusals::default(),
        }
    }

    /// The placement for an image that has grown.
    pub(crate) fn widened(&mut self, geometry: Geometry) -> Self {
        Self { refusals: std::mem::take(&mut self.refusals), spare: self.spare, ..Self::new(geometry) }
    }

    /// Reserves this many blocks in wholly free frames, for uses that need whole frames.
    pub(crate) fn keep_whole(&mut self, blocks: u64) {
        self.spare = Some(blocks);
    }

    /// Lets `after` allocations pass and refuses the next `times`; returns how many were refused
    /// before.
    pub(crate) fn refuse(&mut self, after: u64, times: u64) -> u64 {
        self.refusals.after = after;
        self.refusals.times = times;
        std::mem::take(&mut self.refusals.refused)
    }

    /// Takes one run of `want` blocks; if none is that long, the longest one, provided it has at
    /// least `min`.
    pub(crate) fn allocate(
        &mut self,
        live: &mut LiveMap,
        class: Class,
        want: u64,
        min: u64,
        near: Option<BlockAddr>,
    ) -> Option<BlockRun> {
        let min = min.max(1);
        let mut want = want.max(min).min(self.usable.blocks);
        if min > want || self.refusals.strikes() {
            return None;
        }
        let in_pieces = class != Class::Log && min < live.frames().blocks();
        let mut scarce = None;
        match self.left_beside_spare(live) {
            Some(0) if in_pieces => scarce = self.in_broken_frames(live, want, min, near),
            Some(0) => scarce = self.in_whole_frames(live, class, want, min),
            Some(left) if in_pieces => want = want.min(left.max(min)),
            _ => {}
        }
        let run = scarce
            .or_else(|| self.near(live, want, near))
            .or_else(|| self.next(live, class, want))
            .or_else(|| self.longest(live, want, min))?;
        live.set(run);
        Some(run)
    }

    /// Blocks in whole frames that any class may still take; `None` if it does not matter which
    /// frames are taken.
    fn left_beside_spare(&self, live: &LiveMap) -> Option<u64> {
        let keep = self.spare? + live.free() / PARTS_FOR_NODES;
        (live.whole() < live.free()).then(|| live.whole().saturating_sub(keep))
    }

    /// A run in frames where no node fits, looking behind the hint first.
    fn in_broken_frames(
        &mut self,
        live: &LiveMap,
        want: u64,
        min: u64,
        near: Option<BlockAddr>,
    ) -> Option<BlockRun> {
        let usable = self.usable;
        let near = near.filter(|near| (usable.start..usable.end()).contains(near));
        let from = near.unwrap_or(self.broken);
        let run = live
            .find_broken(from, usable.end(), want, min)
            .or_else(|| live.find_broken(usable.start, from, want, min))?;
        if near.is_none() {
            self.broken = if run.end() < usable.end() { run.end() } else { usable.start };
        }
        Some(run)
    }

    /// A run of whole frames, looking in the class's region first: it breaks no more frames than it
    /// must.
    fn in_whole_frames(&self, live: &LiveMap, class: Class, want: u64, min: u64) -> Option<BlockRun> {
        let (usable, region) = (self.usable, self.region(class));
        let find = |from, to| live.find_whole(from, to, want, min);
        find(region.start, region.end())
            .or_else(|| find(region.end(), usable.end()))
            .or_else(|| find(usable.start, region.start))
    }

    fn region(&self, class: Class) -> BlockRun {
        match class {
            Class::Data => self.data.run,
            Class::Node => self.nodes.run,
            Class::Copy => self.copies.run,
            Class::Log => self.log.run,
        }
    }

    /// A run of the full size at the hint or shortly behind it. The cursor does not move.
    fn near(&self, live: &mut LiveMap, want: u64, near: Option<BlockAddr>) -> Option<BlockRun> {
        let near = near.filter(|near| (self.usable.start..self.usable.end()).contains(near))?;
        let end = (near + NEAR_BLOCKS).min(self.usable.end());
        live.find(near, end, want).map(|start| BlockRun::new(start, want))
    }

    /// A run of the full size from the class's cursor on, in its region first.
    fn next(&mut self, live: &mut LiveMap, class: Class, want: u64) -> Option<BlockRun> {
        let usable = self.usable;
        let region = match class {
            Class::Data => &mut self.data,
            Class::Node => &mut self.nodes,
            Class::Copy => &mut self.copies,
            Class::Log => &mut self.log,
        };
        let found = live
            .find(region.cursor, region.run.end(), want)
            .or_else(|| live.find(region.run.start, region.cursor, want));
        if let Some(start) = found {
            let run = BlockRun::new(start, want);
            region.cursor = if run.end() < region.run.end() { run.end() } else { region.run.start };
            return Some(run);
        }
        // Look elsewhere: behind the region first, so that data enters the regions before it last.
        live.find(region.run.end(), usable.end(), want)
            .or_else(|| live.find(usable.start, region.run.start, want))
            .map(|start| BlockRun::new(start, want))
    }

    /// The longest run, if it has at least `min` blocks but fewer than `want`.
    fn longest(&self, live: &mut LiveMap, want: u64, min: u64) -> Option<BlockRun> {
        loop {
            // Each search that fails lowers the bound below the length it looked for.
            let blocks = live.longest_bound().min(want);
            if blocks < min {
                return None;
            }
            if let Some(start) = live.find(self.usable.start, self.usable.end(), blocks) {
                return Some(BlockRun::new(start, blocks));
            }
        }
    }
}
