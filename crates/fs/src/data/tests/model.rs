//! Random operations on some files against plain bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Write { file: usize, offset: u64, len: usize, seed: u64 },
    Append { file: usize, len: usize, seed: u64 },
    Truncate { file: usize, size: u64 },
    Read { file: usize, offset: u64, len: usize },
    Fsync { file: usize, data_only: bool },
    SyncAll,
    WriteBack { file: usize },
    Copy { from: (usize, u64), to: (usize, u64), len: u64 },
    Allocate { what: Allocation, place: (usize, u64), len: u64 },
    Defragment { file: usize, unshare: bool },
    Reopen,
    Crash,
}

/// Sizes around which something changes: the inline limit, a block, an extent.
fn size(max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..max,
        2 => 0..6000u64,
        1 => prop_oneof![Just(2047u64), Just(2048), Just(2049), Just(4096), Just(8192), Just(131_072)],
    ]
}

/// A place in a file, mostly at the beginning of a block.
fn place(file: std::ops::Range<usize>) -> impl Strategy<Value = (usize, u64)> {
    (file, prop_oneof![1 => size(400_000), 3 => (0..100u64).prop_map(|block| block * 4096), 1 => Just(0)])
}

fn allocation() -> impl Strategy<Value = Allocation> {
    prop_oneof![
        Just(Allocation::PunchHole),
        any::<bool>().prop_map(|keep_size| Allocation::Preallocate { keep_size }),
        any::<bool>().prop_map(|keep_size| Allocation::ZeroRange { keep_size }),
        any::<bool>().prop_map(|keep_size| Allocation::UnshareRange { keep_size }),
    ]
}

/// Mostly whole blocks.
fn shift() -> impl Strategy<Value = Step> {
    let what = prop_oneof![Just(Allocation::CollapseRange), Just(Allocation::InsertRange)];
    let block = |most: u64| prop_oneof![9 => (0..most).prop_map(|block| block * 4096), 1 => 0..most];
    (what, (0..3usize, block(60)), block(30)).prop_map(|(what, place, len)| Step::Allocate {
        what,
        place,
        len,
    })
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let file = 0..3usize;
    prop_oneof![
        6 => (file.clone(), size(400_000), size(150_000), any::<u64>())
            .prop_map(|(file, offset, len, seed)| Step::Write { file, offset, len: len as usize, seed }),
        3 => (file.clone(), size(20_000), any::<u64>())
            .prop_map(|(file, len, seed)| Step::Append { file, len: len as usize, seed }),
        3 => (file.clone(), size(600_000)).prop_map(|(file, size)| Step::Truncate { file, size }),
        4 => (file.clone(), size(600_000), size(300_000))
            .prop_map(|(file, offset, len)| Step::Read { file, offset, len: len as usize }),
        3 => (file.clone(), any::<bool>()).prop_map(|(file, data_only)| Step::Fsync { file, data_only }),
        1 => Just(Step::SyncAll),
        2 => file.clone().prop_map(|file| Step::WriteBack { file }),
        5 => (place(file.clone()), place(file), size(300_000))
            .prop_map(|(from, to, len)| Step::Copy { from, to, len }),
        4 => (allocation(), place(0..3), size(300_000))
            .prop_map(|(what, place, len)| Step::Allocate { what, place, len }),
        3 => shift(),
        2 => (0..3usize, any::<bool>()).prop_map(|(file, unshare)| Step::Defragment { file, unshare }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

/// Applies an allocation to a file's bytes. False, with nothing changed, if it must be refused.
pub(super) fn allocate(bytes: &mut Vec<u8>, what: Allocation, offset: u64, len: u64) -> bool {
    let (start, end) = (offset as usize, (offset + len) as usize);
    let whole_blocks = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
    match what {
        Allocation::CollapseRange if !whole_blocks || end >= bytes.len() => return false,
        Allocation::InsertRange if !whole_blocks || start >= bytes.len() => return false,
        Allocation::CollapseRange => drop(bytes.drain(start..end)),
        Allocation::InsertRange => drop(bytes.splice(start..start, vec![0; end - start])),
        Allocation::ZeroRange { keep_size: false }
        | Allocation::UnshareRange { keep_size: false }
        | Allocation::Preallocate { keep_size: false } => bytes.resize(end.max(bytes.len()), 0),
        _ => {}
    }
    if matches!(what, Allocation::ZeroRange { .. } | Allocation::PunchHole) {
        let end = end.min(bytes.len());
        bytes[start.min(end)..end].fill(0);
    }
    true
}

/// The filesystem, and a model of its contents.
pub(super) struct Pair {
    pub(super) mount: Mount,
    pub(super) inos: Vec<Ino>,
    pub(super) model: BTreeMap<usize, Vec<u8>>,
    /// Most of the contents can be compressed, and files are compressed if that is worth it.
    compressed: bool,
}

impl Pair {
    pub(super) fn new(mount: Mount) -> Self {
        let inos = (0..3).map(|file| mount.create(&format!("file{file}"))).collect();
        Self { mount, inos, model: (0..3).map(|file| (file, Vec::new())).collect(), compressed: false }
    }

    /// A pair whose files are compressed.
    pub(super) fn compressed(mount: Mount, algorithm: Algorithm) -> Self {
        mount.compress(ROOT, Some(algorithm));
        Self { compressed: true, ..Self::new(mount) }
    }

    fn contents(&self, seed: u64, len: usize) -> Vec<u8> {
        match self.compressed && !seed.is_multiple_of(4) {
            true => pattern(seed, 97).into_iter().cycle().take(len).collect(),
            false => pattern(seed, len),
        }
    }

    pub(super) fn find_again(&mut self) {
        self.inos = (0..3).map(|file| self.mount.find(&format!("file{file}"))).collect();
    }

    pub(super) fn apply(mut self, step: &Step) -> Self {
        match *step {
            Step::Write { file, offset, len, seed } => {
                let data = self.contents(seed, len);
                self.write(file, offset, &data);
            }
            Step::Append { file, len, seed } => {
                let data = self.contents(seed, len);
                let offset =
                    block_on(self.mount.fs.append(self.inos[file], data.clone().into(), false)).unwrap();
                let bytes = self.model.get_mut(&file).unwrap();
                assert_eq!(offset, bytes.len() as u64);
                bytes.extend_from_slice(&data);
            }
            Step::Truncate { file, size } => {
                self.mount.truncate(self.inos[file], size).unwrap();
                self.model.get_mut(&file).unwrap().resize(size as usize, 0);
            }
            Step::Read { file, offset, len } => {
                let bytes = &self.model[&file];
                let from = (offset as usize).min(bytes.len());
                let until = (from + len).min(bytes.len());
                assert!(self.mount.read(self.inos[file], offset, len) == bytes[from..until], "file {file}");
            }
            Step::Fsync { file, data_only } => {
                block_on(self.mount.fs.fsync(self.inos[file], data_only)).unwrap();
                self.mount.check_items(self.inos[file]);
            }
            Step::SyncAll => block_on(self.mount.fs.sync_many(&self.inos, 0)).unwrap(),
            Step::WriteBack { file } => {
                let inode = block_on(self.mount.fs.inode(self.inos[file])).unwrap();
                block_on(crate::data::flush::writeback::write_back(&self.mount.fs, &inode)).unwrap();
                drop(inode);
                self.mount.check_items(self.inos[file]);
            }
            Step::Copy { from, to, len } => self.copy(from, to, len),
            Step::Allocate { what, place: (file, offset), len } => self.allocate(what, file, offset, len),
            Step::Defragment { file, unshare } => {
                self.mount.defragment(self.inos[file], unshare);
                self.mount.check_items(self.inos[file]);
            }
            Step::Reopen => {
                self.mount = self.mount.reopen();
                self.find_again();
                self.check();
            }
            Step::Crash => {
                // Everything synced survives.
                block_on(self.mount.fs.sync_many(&self.inos, 0)).unwrap();
                self.mount = self.mount.crash();
                self.find_again();
                self.check();
            }
        }
        self
    }

    fn copy(&mut self, from: (usize, u64), to: (usize, u64), len: u64) {
        let places = |(file, offset): (usize, u64)| (self.inos[file], offset);
        let copied = match block_on(self.mount.fs.copy_range(places(from), places(to), len, false)) {
            Ok(copied) => copied as usize,
            Err(FsError::Invalid("the ranges overlap")) if from.0 == to.0 => return,
            Err(error) => panic!("{error}"),
        };
        let source = &self.model[&from.0];
        let start = (from.1 as usize).min(source.len());
        let data = source[start..(start + len as usize).min(source.len())].to_vec();
        assert_eq!(copied, data.len(), "nothing here is so much that it is cut short");
        let bytes = self.model.get_mut(&to.0).unwrap();
        let end = to.1 as usize + data.len();
        if bytes.len() < end && !data.is_empty() {
            bytes.resize(end, 0);
        }
        if !data.is_empty() {
            bytes[to.1 as usize..end].copy_from_slice(&data);
        }
        self.mount.check_items(self.inos[to.0]);
    }

    fn allocate(&mut self, what: Allocation, file: usize, offset: u64, len: u64) {
        let answer = self.mount.allocate(self.inos[file], what, offset, len);
        let bytes = self.model.get_mut(&file).unwrap();
        if len == 0 {
            assert!(matches!(answer, Err(FsError::Invalid(_))));
            return;
        }
        if !allocate(bytes, what, offset, len) {
            assert!(matches!(answer, Err(FsError::Invalid(_))));
            return;
        }
        answer.unwrap();
        self.mount.check_items(self.inos[file]);
    }

    fn write(&mut self, file: usize, offset: u64, data: &[u8]) {
        // Half of the writes are aligned in memory, as those from FUSE are.
        if offset.is_multiple_of(2) {
            let mut padded = syncline_device::AlignedBuf::copy_from(data).into_bytes();
            padded.truncate(data.len());
            block_on(self.mount.fs.write(self.inos[file], offset, padded, false)).unwrap();
        } else {
            self.mount.write(self.inos[file], offset, data);
        }
        if data.is_empty() {
            return;
        }
        let bytes = self.model.get_mut(&file).unwrap();
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(data);
    }

    pub(super) fn check(&self) {
        for (file, &ino) in self.inos.iter().enumerate() {
            let expected = &self.model[&file];
            assert_eq!(self.mount.size(ino), expected.len() as u64);
            assert!(self.mount.read(ino, 0, expected.len() + 10) == *expected, "file {file}");
            self.mount.check_items(ino);
        }
        self.mount.check_counts(&self.inos);
        self.mount.check_room(&self.inos);
    }
}

fn run(mut pair: Pair, steps: &[Step]) {
    for step in steps {
        pair = pair.apply(step);
    }
    pair.check();
}

/// Options with which every limit is near.
fn narrow() -> Options {
    Options { dirty_bytes_max: 256 << 10, writeback_start_bytes: 64 << 10, cached_inodes_max: 1, ..options() }
}

proptest! {
    #[test]
    fn files_follow_plain_bytes(steps in proptest::collection::vec(step(), 1..60)) {
        run(Pair::new(Mount::new()), &steps);
    }

    /// Random operations with every limit near.
    #[test]
    fn files_follow_plain_bytes_within_narrow_limits(steps in proptest::collection::vec(step(), 1..40)) {
        run(Pair::new(Mount::formatted(64 << 20, 4096, narrow())), &steps);
    }

    #[test]
    fn compressed_files_follow_plain_bytes(
        steps in proptest::collection::vec(step(), 1..60),
        zstd: bool,
        narrowly: bool,
    ) {
        let algorithm = if zstd { Algorithm::Zstd } else { Algorithm::Lz4 };
        let mount = if narrowly { Mount::formatted(64 << 20, 4096, narrow()) } else { Mount::new() };
        run(Pair::compressed(mount, algorithm), &steps);
    }
}
