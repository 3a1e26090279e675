//! The history of one file's data: all contents that each block ever had, and all sizes.

use crate::content::page;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Contents that a block had from some time on.
#[derive(Clone)]
struct Version {
    /// The time it was written, in the order of the whole history.
    time: u64,
    /// The time at which that write was asked for, or 0 if it is not known.
    begun: u64,
    /// The bytes written; zeros follow.
    bytes: Arc<Vec<u8>>,
    /// How many bytes of the block were inside the file at that time.
    filled: usize,
    /// It may or may not exist: the operation that makes it is still running.
    perhaps: bool,
}

/// An event that changed the file's size.
#[derive(Clone, Copy, Debug)]
enum Sizing {
    /// A write that made the file at least this long; by a transaction of its own if it took over
    /// blocks.
    Write { time: u64, end: u64, by: Option<u64> },
    /// An operation, in progress since transaction `op`, that may have made the file at least this
    /// long.
    Begun { time: u64, op: u64, end: u64 },
    /// A truncation, by transaction `op`.
    Truncate { time: u64, op: u64, size: u64, up: bool },
}

impl Sizing {
    fn time(&self) -> u64 {
        match self {
            Self::Write { time, .. } | Self::Begun { time, .. } | Self::Truncate { time, .. } => *time,
        }
    }

    /// The transaction of this event, if it has one.
    fn op(&self) -> Option<u64> {
        match self {
            Self::Write { by, .. } => *by,
            Self::Begun { op, .. } | Self::Truncate { op, .. } => Some(*op),
        }
    }
}

/// A file's data through time.
#[derive(Clone, Default)]
pub struct FileHistory {
    start_size: u64,
    sizings: Vec<Sizing>,
    blocks: BTreeMap<u64, Vec<Version>>,
    size: u64,
    /// Syncs: the position in the device log at which each was acknowledged, and the time up to
    /// which it covers everything.
    synced: Vec<(usize, u64)>,
    /// Cleared blocks: the range, the transaction, and the time.
    clearings: Vec<(Range<u64>, u64, u64)>,
    /// If this transaction survives, so does all data up to this time.
    carried: Vec<(u64, u64)>,
    /// The time at which the write that is being recorded was asked for, or 0.
    begun: u64,
    /// Writes of pages: the time and the blocks.
    pages: Vec<(u64, Range<u64>)>,
}

/// The part of a file's history that the recovered file may show.
struct Window {
    /// Everything up to this time must be present.
    least: u64,
    /// Nothing from this time on may be present: an earlier truncation or copy is missing.
    end: u64,
    /// The size changes before `end`.
    sizings: Vec<Sizing>,
    /// Blocks whose older contents are certainly gone, and since when.
    cleared: Vec<(Range<u64>, u64)>,
}

impl FileHistory {
    /// A file that certainly holds `contents`.
    pub fn holding(contents: &[u8]) -> Self {
        let blocks = (0..).zip(contents.chunks(BLOCK_BYTES));
        let blocks = blocks.map(|(block, bytes)| {
            let bytes = Arc::new(bytes.to_vec());
            (block, vec![Version { time: 0, begun: 0, filled: bytes.len(), bytes, perhaps: false }])
        });
        let size = contents.len() as u64;
        Self { start_size: size, size, blocks: blocks.collect(), ..Self::default() }
    }

    /// The current size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The current contents of a range inside the file.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let end = self.size.min(offset + len as u64);
        let mut contents = Vec::new();
        let mut at = offset;
        while at < end {
            let until = end.min((at / BLOCK + 1) * BLOCK);
            let bytes = self.newest(at / BLOCK);
            contents.extend((at..until).map(|at| bytes.get((at % BLOCK) as usize).copied().unwrap_or(0)));
            at = until;
        }
        contents
    }

    /// A block's contents, ignoring operations in progress.
    fn newest(&self, block: u64) -> &[u8] {
        let versions = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
        versions.iter().rfind(|version| !version.perhaps).map_or(&[], |version| &version.bytes)
    }

    fn push(&mut self, block: u64, time: u64, bytes: Vec<u8>) {
        let filled = self.size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let version = Version { time, begun: self.begun, bytes: Arc::new(bytes), filled, perhaps: false };
        self.blocks.entry(block).or_default().push(version);
    }

    /// A write took place at `time`.
    pub fn write(&mut self, time: u64, offset: u64, data: &[u8]) {
        self.write_begun(0, time, offset, data);
    }

    /// A write that was asked for at time `begun`, or 0 if that is not known, took place at `time`.
    pub fn write_begun(&mut self, begun: u64, time: u64, offset: u64, data: &[u8]) {
        self.pages.extend(page(offset, data.len() as u64).map(|blocks| (time, blocks)));
        self.begun = begun;
        self.written(time, offset, data, None);
        self.begun = 0;
    }

    /// A copy through memory took place at `time`. P9 does not cover its pages: the filesystem writes
    /// them in pieces of its own.
    pub fn copied(&mut self, time: u64, offset: u64, data: &[u8]) {
        self.written(time, offset, data, None);
    }

    /// The latest time at which anything was asked for that these contents certainly show.
    pub fn begun_of(&self, found: &[u8]) -> u64 {
        let begun = |(block, bytes): (u64, &[u8])| {
            let versions = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
            versions.iter().filter(|version| version.shows(bytes)).map(|version| version.begun).min()
        };
        let shown = (0..).zip(found.chunks(BLOCK_BYTES));
        // Before its first version a block was empty.
        shown.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).filter_map(begun).max().unwrap_or(0)
    }

    /// Transaction `op` took over these contents at `time`, with everything the file held: they are
    /// present exactly if it survives.
    pub fn taken_over(&mut self, time: u64, op: u64, offset: u64, data: &[u8]) {
        self.written(time, offset, data, Some(op));
        self.carried_by(op, time);
    }

    fn written(&mut self, time: u64, offset: u64, data: &[u8], by: Option<u64>) {
        let end = offset + data.len() as u64;
        self.sizings.push(Sizing::Write { time, end, by });
        let old_size = self.size;
        self.size = self.size.max(end);
        self.fill_gap(time, old_size, offset);
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let mut bytes = self.newest(block).to_vec();
            let from = offset.max(block * BLOCK);
            let until = end.min((block + 1) * BLOCK);
            let within = (from % BLOCK) as usize..(from % BLOCK + until - from) as usize;
            bytes.resize(bytes.len().max(within.end), 0);
            bytes[within].copy_from_slice(&data[(from - offset) as usize..(until - offset) as usize]);
            self.push(block, time, bytes);
        }
    }

    /// Transaction `op` at `time` began to zero a range and to make the file at least `size` bytes
    /// long. From then on each block that the range touches is either unchanged or cleared.
    pub fn clearing(&mut self, time: u64, op: u64, range: &Range<u64>, size: u64) {
        self.sizings.push(Sizing::Begun { time, op, end: size });
        let (_, mut blocks) = self.without(range, self.size.max(size));
        if size > self.size {
            let gap = self.size / BLOCK..size.div_ceil(BLOCK);
            blocks.extend(gap.map(|block| (block, self.newest(block).to_vec())));
        }
        for (block, bytes) in blocks {
            let versions = self.blocks.entry(block).or_default();
            versions.push(Version {
                time,
                begun: 0,
                filled: BLOCK_BYTES,
                bytes: Arc::new(bytes),
                perhaps: true,
            });
        }
    }

    /// Transaction `op` at `time` completed a clearing: the earlier contents of the blocks it
    /// touches are gone if it survives. Dirty data elsewhere is not affected.
    pub fn cleared(&mut self, time: u64, op: u64, range: &Range<u64>, size: u64) {
        self.sizings.push(Sizing::Write { time, end: size, by: Some(op) });
        let old_size = self.size;
        let (touched, blocks) = self.without(range, old_size.max(size));
        self.size = old_size.max(size);
        self.fill_gap(time, old_size, self.size);
        blocks.into_iter().for_each(|(block, bytes)| self.push(block, time, bytes));
        self.clearings.push((touched, op, time));
    }

    /// The blocks that clearing a range touches, with their contents after the clearing, in a file
    /// of `size` bytes.
    fn without(&self, range: &Range<u64>, size: u64) -> (Range<u64>, Vec<(u64, Vec<u8>)>) {
        // Beyond the end of the file its last block is already zero, and stays as it is.
        let first = if range.start < self.size { range.start / BLOCK } else { range.start.div_ceil(BLOCK) };
        let end = range.end.min(size);
        let blocks = (first..end.div_ceil(BLOCK)).map(|block| {
            let mut bytes = self.newest(block).to_vec();
            let inside = |at: u64| (at.saturating_sub(block * BLOCK) as usize).min(bytes.len());
            let within = inside(range.start)..inside(range.end);
            bytes[within].fill(0);
            (block, bytes)
        });
        (first..range.end.div_ceil(BLOCK), blocks.collect())
    }

    /// Transaction `op` at `time` collapsed or inserted a range, after all dirty data had been
    /// submitted: the file holds exactly these contents if it survives, and none of them otherwise.
    pub fn shifted(&mut self, time: u64, op: u64, contents: &[u8]) {
        let (old_size, size) = (self.size, contents.len() as u64);
        self.sizings.push(Sizing::Truncate { time, op, size, up: size > old_size });
        self.size = size;
        let blocks = old_size.max(size).div_ceil(BLOCK);
        for block in 0..blocks {
            let start = (block * BLOCK).min(size) as usize;
            let end = ((block + 1) * BLOCK).min(size) as usize;
            self.push(block, time, contents[start..end].to_vec());
        }
        self.carried_by(op, time);
    }

    /// The range between the old end and the new data becomes part of the file, as zeros.
    fn fill_gap(&mut self, time: u64, old_size: u64, until: u64) {
        if self.size > old_size {
            for block in old_size / BLOCK..until.div_ceil(BLOCK) {
                let bytes = self.newest(block).to_vec();
                self.push(block, time, bytes);
            }
        }
    }

    /// Transaction `op` truncated the file at `time`.
    pub fn truncate(&mut self, time: u64, op: u64, size: u64) {
        if size == self.size {
            // Only times change: this does not make earlier writes durable.
            return;
        }
        let old_size = self.size;
        self.sizings.push(Sizing::Truncate { time, op, size, up: size > old_size });
        self.size = size;
        self.fill_gap(time, old_size, size);
        if size < old_size {
            let cut: Vec<u64> = self.blocks.range(size / BLOCK..).map(|(block, _)| *block).collect();
            for block in cut {
                let mut bytes = self.newest(block).to_vec();
                bytes.truncate(size.saturating_sub(block * BLOCK).min(BLOCK) as usize);
                self.push(block, time, bytes);
            }
        }
    }

    /// An fsync that began at `time` was acknowledged when the device log was at `position`.
    pub fn synced(&mut self, position: usize, time: u64) {
        self.synced.push((position, time));
    }

    /// Transaction `op` survives only together with the data up to `time` (promises P3 and P6).
    pub fn carried_by(&mut self, op: u64, time: u64) {
        self.carried.push((op, time));
    }

    /// The transactions that changed the size.
    pub fn ops(&self) -> impl Iterator<Item = u64> {
        self.sizings.iter().filter_map(Sizing::op)
    }

    /// The history up to `time`.
    pub fn until(mut self, time: u64) -> Self {
        self.sizings.retain(|sizing| sizing.time() <= time);
        self.blocks.values_mut().for_each(|versions| versions.retain(|version| version.time <= time));
        self.blocks.retain(|_, versions| !versions.is_empty());
        self.clearings.retain(|(_, _, at)| *at <= time);
        self.pages.retain(|(at, _)| *at <= time);
        self
    }

    /// The newest truncation up to transaction `op`.
    pub fn last_truncation(&self, op: u64) -> Option<u64> {
        self.sizings.iter().rev().find_map(|sizing| match sizing {
            Sizing::Truncate { op: by, .. } if *by <= op => Some(*by),
            _ => None,
        })
    }

    fn window(&self, op: u64, position: usize) -> Window {
        let synced = self.synced.iter().filter(|(given, _)| *given <= position).map(|(_, time)| *time);
        let carried = self.carried.iter().filter(|(by, _)| *by <= op).map(|(_, time)| *time);
        let least = synced.chain(carried).max().unwrap_or(0);
        let missing = |sizing: &Sizing| sizing.op().is_some_and(|by| by > op);
        let there = self.sizings.iter().position(missing).unwrap_or(self.sizings.len());
        let end = self.sizings.get(there).map_or(u64::MAX, Sizing::time);
        let cleared = self.clearings.iter().filter(|(_, by, _)| *by <= op);
        let cleared = cleared.map(|(blocks, _, time)| (blocks.clone(), *time)).collect();
        Window { least, end, sizings: self.sizings[..there].to_vec(), cleared }
    }

    /// The history of the file, for a message.
    pub fn story(&self) -> String {
        format!(
            "start {}, {:?}, synced {:?}, carried {:?}",
            self.start_size, self.sizings, self.synced, self.carried
        )
    }

    /// Compares the contents found after a crash at `position`, with all transactions up to `op`,
    /// with the allowed ones.
    pub fn check(&self, found: &[u8], op: u64, position: usize) -> Result<(), String> {
        let window = self.window(op, position);
        let (least, most) = window.sizes(self.start_size);
        let size = found.len() as u64;
        if !(least..=most).contains(&size) {
            return Err(format!("size {size}, not {least} to {most}"));
        }
        for (block, bytes) in (0..).zip(found.chunks(BLOCK_BYTES)) {
            self.check_block(block, bytes, &window)?;
        }
        let there = self.pages.iter().filter(|(time, _)| *time < window.end);
        there.into_iter().try_for_each(|(time, blocks)| self.check_page(*time, blocks, found, &window))
    }

    /// Promise P9: the write of a page at `time` is there wholly or not at all. A block says nothing if it
    /// shows a later version, or a version that it also showed before.
    fn check_page(
        &self,
        time: u64,
        blocks: &Range<u64>,
        found: &[u8],
        window: &Window,
    ) -> Result<(), String> {
        // P9 does not cover a page within whose blocks a truncation ended.
        let divides = |sizing: &Sizing| matches!(*sizing, Sizing::Truncate { time: at, size, .. } if at > time && !size.is_multiple_of(BLOCK) && blocks.contains(&(size / BLOCK)));
        if window.sizings.iter().any(divides) {
            return Ok(());
        }
        let (mut new, mut old) = (None, None);
        for block in blocks.clone() {
            let from = (block * BLOCK) as usize;
            if from >= found.len() {
                let cut = |sizing: &Sizing| matches!(*sizing, Sizing::Truncate { time: at, size, .. } if at > time && size <= block * BLOCK);
                if !window.sizings.iter().any(cut) {
                    old = Some(block);
                }
                continue;
            }
            let bytes = &found[from..found.len().min(from + BLOCK_BYTES)];
            let legal = self.legal(block, window);
            let shown = legal.iter().filter(|version| version.filled >= bytes.len() && version.shows(bytes));
            let times: Vec<u64> = shown.map(|version| version.time).collect();
            if times.iter().all(|at| *at == time) {
                new = Some(block);
            } else if times.iter().all(|at| *at < time) {
                old = Some(block);
            }
        }
        match (new, old) {
            (Some(new), Some(old)) => Err(format!(
                "a page is torn: of what was written to blocks {blocks:?} at time {time}, block {new} is there and block {old} is not"
            )),
            _ => Ok(()),
        }
    }

    /// The versions of a block that may show.
    fn legal(&self, block: u64, window: &Window) -> Vec<Version> {
        let versions = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
        let cleared = window.cleared.iter().filter(|(blocks, _)| blocks.contains(&block));
        let least = cleared.map(|(_, time)| *time).fold(window.least, u64::max);
        let first = versions.iter().rposition(|version| version.time <= least && !version.perhaps);
        // Before its first version a block was empty.
        let nothing = Version { time: 0, begun: 0, bytes: Arc::default(), filled: 0, perhaps: false };
        let nothing = first.is_none().then_some(&nothing).into_iter();
        nothing
            .chain(&versions[first.unwrap_or(0)..])
            .filter(|version| version.time < window.end)
            .map(|version| window.seen_through_truncations(block, version))
            .collect()
    }

    fn check_block(&self, block: u64, found: &[u8], window: &Window) -> Result<(), String> {
        let versions = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
        let legal = self.legal(block, window);
        if legal.iter().any(|version| version.filled >= found.len() && version.shows(found)) {
            return Ok(());
        }
        let what = if legal.iter().any(|version| version.shows(found)) {
            "a version that did not reach so far: the size ran ahead of the data".to_owned()
        } else if let Some(version) = versions.iter().find(|version| version.shows(found)) {
            format!("the version of time {}", version.time)
        } else if found.iter().all(|byte| *byte == 0) {
            "zeros".to_owned()
        } else {
            "something that it never held".to_owned()
        };
        let times: Vec<u64> = legal.iter().map(|version| version.time).collect();
        Err(format!("block {block} holds {what}; it may hold versions {times:?}"))
    }
}

impl Version {
    fn shows(&self, found: &[u8]) -> bool {
        let (head, rest) = found.split_at(found.len().min(self.bytes.len()));
        head == &self.bytes[..head.len()] && rest.iter().all(|byte| *byte == 0)
    }
}

impl Window {
    /// The least and the greatest size allowed. Ordered metadata includes growing by truncation, and the
    /// loss of the bytes that a shrinking truncation cuts off; but neither makes the data below durable.
    fn sizes(&self, start_size: u64) -> (u64, u64) {
        let (mut least, mut most) = (start_size, start_size);
        for sizing in &self.sizings {
            match *sizing {
                Sizing::Write { time, end, .. } => {
                    most = most.max(end);
                    if time <= self.least {
                        least = least.max(end);
                    }
                }
                Sizing::Begun { end, .. } => most = most.max(end),
                Sizing::Truncate { size, up: true, .. } => (least, most) = (size, size),
                Sizing::Truncate { size, .. } => (least, most) = (least.min(size), size),
            }
        }
        (least, most)
    }

    /// A version as it appears if it was not written back before later truncations: below the sizes
    /// they set, older data or none may show.
    fn seen_through_truncations(&self, block: u64, version: &Version) -> Version {
        let inside = |size: u64| size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let mut seen = version.clone();
        for sizing in &self.sizings {
            if let Sizing::Truncate { time, size, up, .. } = *sizing
                && time > version.time
            {
                if inside(size) < seen.bytes.len() {
                    seen.bytes = Arc::new(seen.bytes[..inside(size)].to_vec());
                }
                seen.filled = if up { inside(size) } else { seen.filled.min(inside(size)) };
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests;
