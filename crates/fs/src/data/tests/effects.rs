//! What a change has made of a file's state is undone if its transaction fails.

use super::*;
use crate::data::DataState;
use crate::data::effects::{Commit, Effects, FileChange, InlineChange, SizeChange};
use crate::data::extents::plan::ExtentChanges;
use crate::data::extents::shares::Shares;
use crate::data::memory::BLOCK;
use crate::data::memory::block::Block;
use crate::data::memory::ranges::Ranges;
use crate::inode::InodeState;
use crate::types::Attributes;
use proptest::prelude::*;
use std::ops::Range;
use syncline_device::AlignedBuf;
use syncline_store::OpSeq;

/// The blocks that the files here may have.
const BLOCKS: u64 = 40;
const NOW: Timestamp = Timestamp { seconds: 77, nanoseconds: 7 };

/// Everything of a file's state that an effect may change, apart from what is only a cache.
fn seen(file: &InodeState) -> String {
    let data = &file.data;
    let blocks = data.blocks.pending(..).map(|block| (block, data.blocks.state_of(block)));
    let unplaced = data.logged.unplaced();
    let logged = (unplaced.blocks().collect::<Vec<_>>(), unplaced.broken(0..BLOCKS).collect::<Vec<_>>());
    let charge = data.charge.as_ref().map(|charge| (charge.units, charge.holes.clone()));
    let room = (data.preallocated.ranges(), data.preallocated.taken_blocks());
    let parts = (blocks.collect::<Vec<_>>(), logged, charge, room, data.progress.bounds());
    format!("{:?} {parts:?} {:?}", file.attr, file.encode())
}

/// A file in the middle of things.
#[derive(Debug)]
struct File {
    size: u64,
    dirty: Vec<u64>,
    /// Blocks whose contents are in the log, and whether they are whole there.
    unplaced: Vec<(u64, bool)>,
    room: Ranges,
    taken: Ranges,
    inline: bool,
    quota: bool,
    flies: bool,
}

impl File {
    fn set(&self, file: &mut InodeState) {
        file.attr = Attributes { size: self.size, blocks: 80, ..file.attr };
        let inline = self.inline.then(|| Bytes::from_static(b"contents of the item"));
        file.data = DataState::load(&file.attr, inline, !self.unplaced.is_empty(), OpSeq::default());
        file.data.logged.set_size(self.size / 2);
        file.count_in(u64::from(self.quota));
        let data = &mut file.data;
        for &(block, whole) in &self.unplaced {
            data.logged.unplaced_mut().found(block, whole);
            let contents = Block::whole(AlignedBuf::zeroed(BLOCK as usize)).freeze();
            data.blocks.restore_logged(whole.then_some((block, contents)));
        }
        data.preallocated.change(&[], &self.room.iter().collect::<Vec<_>>());
        for range in self.taken.iter() {
            data.preallocated.take(&range);
        }
        for &block in &self.dirty {
            data.blocks.patch(block, 0, b"dirty", None);
            if let Some(charge) = &mut data.charge {
                charge.holes.insert(block..block + 1);
            }
        }
        data.recharge(self.size, 100, &[]);
        file.begin_submission();
        if self.flies {
            let (taken, _) = file.data.take_dirty(self.size, 0..16);
            file.data.take_off(taken, self.size);
        }
    }
}

/// Leaves nothing for the unmount to do.
fn empty(file: &mut InodeState) {
    file.attr.size = 0;
    file.count_in(0);
    file.data = DataState::new(&file.attr);
}

/// Puts a change and undoes it. A read moves the access time meanwhile. Returns whether it has changed
/// anything in between.
fn put_and_undo(mount: &Mount, change: &FileChange<'_>) -> bool {
    let state = &change.inode.state;
    let after_read = |file: &mut InodeState| file.attr.atime = NOW;
    let before = seen(&state.lock());
    let expected = {
        let mut file = state.lock();
        let atime = file.attr.atime;
        after_read(&mut file);
        let expected = seen(&file);
        file.attr.atime = atime;
        expected
    };
    let mut effects = Effects::default();
    effects.put(change, &mut Commit::begin(&mount.fs, Shares::default())).unwrap();
    let changed = seen(&state.lock()) != before;
    after_read(&mut state.lock());
    effects.undo(change);
    assert_eq!(seen(&state.lock()), expected);
    changed
}

fn file() -> File {
    let ranges = |range: Range<u64>| {
        let mut ranges = Ranges::default();
        ranges.insert(range);
        ranges
    };
    File {
        size: 20 * BLOCK + 100,
        dirty: vec![1, 5, 9],
        unplaced: vec![(2, true), (3, false)],
        room: ranges(8..12),
        taken: ranges(9..10),
        inline: false,
        quota: true,
        flies: false,
    }
}

#[test]
fn each_effect_is_undone_alone() {
    type Alone = fn(&mut FileChange<'_>);
    let changes: [(&str, Alone); 9] = [
        ("preallocation", |change| change.extents.preallocated = vec![11..14, 30..31]),
        ("preallocation and logged blocks of a range", |change| change.extents.cleared = vec![2..4, 8..10]),
        ("logged blocks", |change| change.logged = change.inode.state.lock().data.blocks.log()),
        ("blocks", |change| change.extents.added_blocks = 3),
        ("inline data", |change| change.inline = InlineChange::Set(Some(Bytes::from_static(b"other")))),
        ("the end of a submission", |change| change.size = SizeChange::Submitted { all: true, reach: 0 }),
        ("a truncation", |change| {
            change.size = SizeChange::Truncated { size: BLOCK + 1, logged: BLOCK, now: NOW };
        }),
        ("other contents", |change| change.size = SizeChange::Replaced { size: 30 * BLOCK, now: NOW }),
        ("quota", |change| change.extents.cleared = vec![5..6, 9..10]),
    ];
    let mount = Mount::new();
    let ino = mount.create("file");
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    for (effect, of) in changes {
        // Without logged blocks, the first is news.
        let unplaced = if effect == "logged blocks" { Vec::new() } else { file().unplaced };
        File { unplaced, ..file() }.set(&mut inode.state.lock());
        let mut change = FileChange::nothing(&inode);
        of(&mut change);
        assert!(put_and_undo(&mount, &change), "{effect} changes nothing");
    }
    empty(&mut inode.state.lock());
}

fn ranges() -> impl Strategy<Value = Ranges> {
    proptest::collection::vec((0..BLOCKS, 1..12_u64), 0..4).prop_map(|parts| {
        let mut ranges = Ranges::default();
        parts.into_iter().for_each(|(first, blocks)| ranges.insert(first..(first + blocks).min(BLOCKS)));
        ranges
    })
}

fn files() -> impl Strategy<Value = File> {
    let blocks = proptest::collection::vec(0..BLOCKS, 0..6);
    let unplaced = proptest::collection::vec((0..BLOCKS, any::<bool>()), 0..4);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let parts = (0..BLOCKS * BLOCK, blocks, unplaced, ranges(), ranges(), flags);
    parts.prop_map(|(size, dirty, unplaced, room, taken, (inline, quota, flies))| File {
        size,
        dirty,
        unplaced,
        room,
        taken,
        inline,
        quota,
        flies,
    })
}

fn sizes() -> impl Strategy<Value = SizeChange> {
    (0..6_u8, 0..BLOCKS * BLOCK, 0..BLOCKS * BLOCK).prop_map(|(kind, size, other)| match kind {
        0 => SizeChange::Keep,
        1 => SizeChange::Placed,
        2 | 3 => SizeChange::Submitted { all: kind == 2, reach: other },
        4 => SizeChange::Truncated { size, logged: size.min(other), now: NOW },
        _ => SizeChange::Replaced { size, now: NOW },
    })
}

#[test]
fn effects_are_undone_together() {
    let mount = Mount::new();
    let ino = mount.create("file");
    let inode = block_on(mount.fs.inode(ino)).unwrap();
    let counts = (0..9_u64, 0..9_u64);
    let changes = (ranges(), ranges(), counts, proptest::option::of(0..3_usize), any::<bool>(), sizes());
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let run = runner.run(&(files(), changes), |(file, (cleared, added, counts, inline, logs, size))| {
        file.set(&mut inode.state.lock());
        let extents = ExtentChanges {
            cleared: cleared.iter().collect(),
            preallocated: added.iter().collect(),
            added_blocks: counts.0,
            freed_blocks: counts.1,
            ..ExtentChanges::default()
        };
        let mut change = FileChange { extents, size, ..FileChange::nothing(&inode) };
        if let Some(len) = inline {
            change.inline = InlineChange::Set((len > 0).then(|| vec![1; len].into()));
        }
        if logs && !file.flies {
            change.logged = inode.state.lock().data.blocks.log();
        }
        put_and_undo(&mount, &change);
        Ok(())
    });
    empty(&mut inode.state.lock());
    run.unwrap();
}
