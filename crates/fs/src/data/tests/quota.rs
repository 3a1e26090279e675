//! Quotas: the usage of a tree is that of its inodes, at every moment and after every crash; limits
//! hold; and accepted data is written back without asking again.

use super::model::{Pair, Step, step};
use super::*;
use crate::types::RenameFlags;
use crate::{QuotaLimits, QuotaUsage};
use proptest::prelude::*;
use syncline_format::items::inode::InodeItem;
use syncline_format::items::quota::Quota;

const BLOCK: u64 = 4096;

fn limits(bytes: u64, inodes: u64) -> QuotaLimits {
    QuotaLimits { bytes, inodes }
}

impl Mount {
    pub(super) fn set_quota(&self, dir: Ino, bytes: u64, inodes: u64) -> QuotaUsage {
        block_on(self.fs.set_quota(dir, limits(bytes, inodes))).unwrap()
    }

    pub(super) fn quota(&self, dir: Ino) -> QuotaUsage {
        block_on(self.fs.quota(dir)).unwrap()
    }

    pub(super) fn mkdir_in(&self, parent: Ino, name: &str) -> Ino {
        block_on(self.fs.mkdir(CALLER, parent, name.as_bytes(), 0o755)).unwrap().ino
    }

    pub(super) fn try_create_in(&self, parent: Ino, name: &str) -> Result<Ino, FsError> {
        let made = self.fs.mknod(CALLER, parent, name.as_bytes(), FileType::Regular, 0o644, 0);
        block_on(made).map(|attributes| attributes.ino)
    }

    pub(super) fn create_in(&self, parent: Ino, name: &str) -> Ino {
        self.try_create_in(parent, name).unwrap()
    }

    /// Removes a name, and waits until its inode is gone.
    pub(super) fn remove_in(&self, parent: Ino, name: &str, ino: Ino) {
        block_on(self.fs.unlink(parent, name.as_bytes())).unwrap();
        self.fs.forget(ino, u64::MAX);
        block_on(self.fs.wait_for_orphans());
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
        let flags = RenameFlags::default();
        block_on(self.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags))
    }

    /// Fails unless every quota has, in its item and in memory, the usage that a count of all inode
    /// items finds.
    pub(super) fn check_quotas(&self) {
        // One look at everything: otherwise write-back could commit in between.
        let items = block_on(self.fs.store().scan(Key::MIN, Key::MAX, usize::MAX)).unwrap().items;
        let of = |kind: Kind| items.iter().filter(move |(key, _)| key.kind == kind as u8);
        for (key, value) in of(Kind::Quota) {
            let told = Quota::decode(value).unwrap();
            let (mut units, mut inodes) = (0, 0);
            for (_, value) in of(Kind::Inode) {
                let item = InodeItem::decode(value).unwrap();
                if item.quota == key.offset {
                    units += item.blocks;
                    inodes += 1;
                }
            }
            assert_eq!((told.used_units, told.used_inodes), (units, inodes), "quota {}", key.offset);
        }
    }

    /// Checks all quotas, and that the quota of `dir` has nothing reserved.
    pub(super) fn check_settled(&self, dir: Ino) {
        self.check_quotas();
        assert_eq!(self.quota(dir).reserved_bytes, 0, "something is reserved for what does not wait");
    }
}

pub(super) fn exceeded<T: std::fmt::Debug>(result: Result<T, FsError>) {
    assert!(matches!(result, Err(FsError::QuotaExceeded)), "{result:?}");
}

fn crosses<T: std::fmt::Debug>(result: Result<T, FsError>) {
    assert!(matches!(result, Err(FsError::CrossDevice)), "{result:?}");
}

#[test]
fn a_limit_is_reached_exactly_and_what_is_removed_comes_back() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 100 * BLOCK, 0);
    let file = mount.create_in(dir, "file");
    mount.write(file, 0, &pattern(1, 100 * 4096));
    assert_eq!(mount.quota(dir).reserved_bytes, 100 * BLOCK);
    let other = mount.create_in(dir, "other");
    exceeded(mount.try_write(other, 0, b"x"));
    exceeded(mount.try_write(file, 100 * BLOCK, b"x"));
    assert_eq!(mount.size(file), 100 * BLOCK);
    mount.fsync(file);
    assert_eq!((mount.quota(dir).used_bytes, mount.quota(dir).used_inodes), (100 * BLOCK, 3));
    mount.check_settled(dir);
    // A write that replaces contents never lacks room.
    mount.write(file, 3, &pattern(2, 300_000));
    mount.write(file, 50 * BLOCK, &pattern(3, 4096));
    assert_eq!(mount.quota(dir).reserved_bytes, 0);
    mount.fsync(file);
    exceeded(mount.try_write(other, 0, b"x"));
    mount.truncate(file, 99 * BLOCK).unwrap();
    mount.write(other, 0, &[1; 4096]);
    exceeded(mount.try_write(other, 4096, b"x"));
    mount.remove_in(dir, "file", file);
    mount.write(other, 0, &pattern(4, 90 * 4096));
    mount.fsync(other);
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 90 * BLOCK);
}

#[test]
fn small_files_count_what_their_items_hold() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 2048, 0);
    let (one, two) = (mount.create_in(dir, "one"), mount.create_in(dir, "two"));
    mount.write(one, 0, &[1; 1000]);
    mount.write(two, 0, &[2; 1024]);
    exceeded(mount.try_write(one, 1000, &[1; 100]));
    mount.fsync(ROOT);
    mount.fsync(one);
    assert_eq!(mount.quota(dir).used_bytes, 2048);
    mount.write(one, 0, &[3; 1024]);
    exceeded(mount.truncate(one, 100_000));
    mount.fsync(one);
    mount.check_settled(dir);
    mount.truncate(one, 100_000).unwrap();
    mount.check_settled(dir);
    exceeded(mount.try_write(one, 50_000, b"x"));
}

#[test]
fn preallocation_and_zeros_count_and_copies_count_in_full() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 64 * BLOCK, 0);
    let file = mount.create_in(dir, "file");
    let keep = Allocation::Preallocate { keep_size: true };
    exceeded(mount.allocate(file, keep, 0, 65 * BLOCK));
    mount.allocate(file, keep, 0, 40 * BLOCK).unwrap();
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 40 * BLOCK);
    // Preallocated room counts already: writes to it need no more.
    mount.write(file, 0, &pattern(1, 40 * 4096));
    assert_eq!(mount.quota(dir).reserved_bytes, 0);
    mount.fsync(file);
    let copy = mount.create_in(dir, "copy");
    exceeded(block_on(mount.fs.copy_range((file, 0), (copy, 0), 40 * BLOCK, false)));
    block_on(mount.fs.copy_range((file, 0), (copy, 0), 24 * BLOCK, false)).unwrap();
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 64 * BLOCK);
    exceeded(mount.allocate(copy, Allocation::ZeroRange { keep_size: false }, 0, 30 * BLOCK));
    mount.allocate(copy, Allocation::ZeroRange { keep_size: false }, 0, 24 * BLOCK).unwrap();
    mount.allocate(file, Allocation::PunchHole, BLOCK, 10 * BLOCK).unwrap();
    mount.check_settled(dir);
    assert_eq!(mount.quota(dir).used_bytes, 54 * BLOCK);
}

/// The file's first block leaves its inode item with the write; it is counted as room already.
#[test]
fn room_behind_a_small_file_is_written_to_without_more_quota() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 0, 0);
    let file = mount.create_in(dir, "file");
    mount.write(file, 0, b"small");
    mount.allocate(file, Allocation::Preallocate { keep_size: true }, BLOCK, BLOCK).unwrap();
    let used = mount.quota(dir).used_bytes;
    mount.set_quota(dir, used, 0);
    mount.write(file, BLOCK, &pattern(1, 4096));
    mount.fsync(file);
    mount.check_settled(dir);
    assert!(mount.quota(dir).used_bytes <= used);
    exceeded(mount.try_write(file, 2 * BLOCK, b"x"));
}

/// Contents of a small file take the preallocated room, and no place in the inode item beside it.
#[test]
fn room_of_a_small_file_is_written_to_without_more_quota() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 0, 0);
    let (empty, small) = (mount.create_in(dir, "empty"), mount.create_in(dir, "small"));
    mount.allocate(empty, Allocation::Preallocate { keep_size: false }, 0, 61).unwrap();
    mount.write(small, 0, &pattern(1, 100));
    mount.allocate(small, Allocation::Preallocate { keep_size: true }, 0, BLOCK).unwrap();
    let used = mount.quota(dir).used_bytes;
    mount.set_quota(dir, used, 0);
    mount.write(empty, 0, &pattern(2, 61));
    mount.write(small, 50, &pattern(3, 1500));
    mount.fsync(small);
    mount.fsync(empty);
    mount.check_settled(dir);
    assert!(mount.quota(dir).used_bytes <= used);
    assert_eq!(mount.read(empty, 0, 100), pattern(2, 61));
    assert_eq!(mount.read(small, 0, 2000), [&pattern(1, 50)[..], &pattern(3, 1500)].concat());
    [empty, small].iter().for_each(|&ino| mount.check_items(ino));
}

#[test]
fn inodes_are_limited_and_counted_until_they_are_gone() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 0, 4);
    let file = mount.create_in(dir, "file");
    let below = mount.mkdir_in(dir, "below");
    block_on(mount.fs.symlink(CALLER, below, b"link", b"target")).unwrap();
    exceeded(mount.try_create_in(below, "more"));
    exceeded(block_on(mount.fs.mkdir(CALLER, dir, b"more", 0o755)));
    exceeded(block_on(mount.fs.tmpfile(CALLER, dir, 0o600, true)));
    // A second name does not count as an inode.
    block_on(mount.fs.link(file, below, b"again")).unwrap();
    mount.check_settled(dir);
    block_on(mount.fs.open_file(file)).unwrap();
    block_on(mount.fs.unlink(dir, b"file")).unwrap();
    mount.remove_in(below, "again", file);
    exceeded(mount.try_create_in(below, "more"));
    mount.fs.release_file(file);
    mount.create_in(below, "more");
    mount.check_settled(dir);
}

#[test]
fn names_do_not_cross_the_border_of_a_tree() {
    let mount = Mount::new();
    let (one, two, free) =
        (mount.mkdir_in(ROOT, "one"), mount.mkdir_in(ROOT, "two"), mount.mkdir_in(ROOT, "free"));
    mount.set_quota(one, 0, 0);
    mount.set_quota(two, 0, 0);
    let below = mount.mkdir_in(one, "below");
    let (inside, outside) = (mount.create_in(below, "file"), mount.create("file"));
    for to in [two, free, ROOT] {
        crosses(mount.rename((below, "file"), (to, "moved")));
        crosses(mount.rename((one, "below"), (to, "moved")));
        crosses(block_on(mount.fs.link(inside, to, b"linked")));
    }
    crosses(mount.rename((ROOT, "file"), (one, "moved")));
    crosses(block_on(mount.fs.link(outside, one, b"linked")));
    crosses(mount.rename((ROOT, "two"), (one, "moved")));
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    crosses(block_on(mount.fs.rename(ROOT, b"file", below, b"file", exchange)));
    let nameless = block_on(mount.fs.tmpfile(CALLER, below, 0o600, true)).unwrap().ino;
    crosses(block_on(mount.fs.link(nameless, free, b"linked")));
    block_on(mount.fs.link(nameless, one, b"linked")).unwrap();
    mount.rename((below, "file"), (one, "moved")).unwrap();
    // A tree with a quota may be moved to any place without a quota.
    mount.rename((ROOT, "one"), (free, "one")).unwrap();
    mount.check_settled(one);
    block_on(mount.fs.remove_quota(one)).unwrap();
    mount.rename((one, "moved"), (ROOT, "moved")).unwrap();
    assert!(matches!(block_on(mount.fs.quota(one)), Err(FsError::NoQuota)));
}

#[test]
fn quotas_do_not_nest() {
    let mount = Mount::new();
    let outer = mount.mkdir_in(ROOT, "outer");
    let inner = mount.mkdir_in(outer, "inner");
    let nested = |dir| block_on(mount.fs.set_quota(dir, limits(0, 0)));
    mount.set_quota(inner, 0, 0);
    assert!(matches!(nested(outer), Err(FsError::QuotaNested)));
    assert!(matches!(nested(ROOT), Err(FsError::QuotaNested)));
    block_on(mount.fs.remove_quota(inner)).unwrap();
    mount.set_quota(outer, 0, 0);
    assert!(matches!(nested(inner), Err(FsError::QuotaNested)));
    assert!(matches!(block_on(mount.fs.remove_quota(inner)), Err(FsError::NoQuota)));
    // A quota is removed with its directory.
    let gone = mount.mkdir_in(ROOT, "gone");
    mount.set_quota(gone, 0, 0);
    block_on(mount.fs.rmdir(ROOT, b"gone")).unwrap();
    mount.fs.forget(gone, u64::MAX);
    block_on(mount.fs.wait_for_orphans());
    assert_eq!(mount.fs.quotas().len(), 1);
    mount.check_settled(outer);
}

/// A tree with inodes of several kinds.
fn populate(mount: &Mount, dir: Ino) -> u64 {
    let below = mount.mkdir_in(dir, "below");
    for number in 0..20 {
        let parent = if number % 3 == 0 { dir } else { below };
        let file = mount.create_in(parent, &format!("file{number}"));
        mount.write(file, 0, &pattern(number, number as usize * 3000));
        if number % 2 == 0 {
            mount.fsync(file);
        }
    }
    block_on(mount.fs.symlink(CALLER, below, b"link", b"target")).unwrap();
    23
}

#[test]
fn what_is_there_already_is_counted_and_an_interrupted_count_is_taken_up_again() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    let inodes = populate(&mount, dir);
    // Only the first transaction of setting a quota, and then a crash.
    let inode = block_on(mount.fs.inode(dir)).unwrap();
    block_on(mount.fs.make_quota(&inode, limits(BLOCK, 5))).unwrap();
    mount.create_in(dir, "meanwhile");
    mount.fsync(ROOT);
    let after = mount.crash();
    let usage = after.quota(dir);
    assert!(usage.being_set && usage.used_inodes == 2, "{usage:?}");
    after.check_quotas();
    // Limits do not apply yet.
    let file = after.create_in(dir, "another");
    after.write(file, 0, &[1; 100_000]);
    let set = after.set_quota(dir, 1 << 20, 1000);
    assert!(!set.being_set);
    assert_eq!(set.used_inodes, inodes + 2);
    after.fsync(file);
    after.check_settled(dir);
    let usage = after.quota(dir);
    let after = after.reopen();
    assert_eq!(after.quota(dir), usage);
    // When the quota is removed and set again, inodes that were counted for the old quota are
    // counted once more.
    block_on(after.fs.remove_quota(dir)).unwrap();
    let file = after.find("tree");
    assert_eq!(file, dir);
    assert_eq!(after.set_quota(dir, 0, 0), QuotaUsage { limits: limits(0, 0), ..usage });
    after.check_settled(dir);
}

#[test]
fn df_tells_of_the_tree() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 100 * BLOCK, 10);
    let file = mount.create_in(dir, "file");
    mount.write(file, 0, &pattern(1, 30 * 4096));
    let figures = block_on(mount.fs.statfs_at(file));
    assert_eq!((figures.blocks, figures.free, figures.available), (100, 70, 70));
    assert_eq!((figures.objects, figures.objects_free), (2, 8));
    let all = block_on(mount.fs.statfs_at(ROOT));
    assert_eq!((all.blocks, all.objects), (16384, 3));
}

#[test]
fn what_has_no_quota_logs_nothing_for_it() {
    let mount = Mount::new();
    let items = |mount: &Mount, name: &str| {
        let before = mount.fs.store().counters().log_puts;
        let file = mount.create(name);
        mount.write(file, 0, &pattern(1, 50_000));
        mount.fsync(file);
        mount.fs.store().counters().log_puts - before
    };
    let before = items(&mount, "one");
    let dir = mount.mkdir_in(ROOT, "tree");
    mount.set_quota(dir, 0, 0);
    mount.fsync(ROOT);
    assert_eq!(items(&mount, "two"), before, "a quota elsewhere costs nothing");
}

/// Applies a step to a tree with a limit: a refused step has changed nothing, and accepted data can
/// be written back.
fn limited(pair: &mut Pair, step: &Step) {
    let before = pair.model.clone();
    let mount = &pair.mount;
    let refused = match *step {
        Step::Write { file, offset, len, seed } => {
            let result = mount.try_write(pair.inos[file], offset, &pattern(seed, len));
            if result.is_ok() && len > 0 {
                let bytes = pair.model.get_mut(&file).unwrap();
                bytes.resize(bytes.len().max(offset as usize + len), 0);
                bytes[offset as usize..][..len].copy_from_slice(&pattern(seed, len));
            }
            result.err()
        }
        Step::Truncate { file, size } => {
            let result = mount.truncate(pair.inos[file], size);
            if result.is_ok() {
                pair.model.get_mut(&file).unwrap().resize(size as usize, 0);
            }
            result.err()
        }
        Step::Allocate { what, place: (file, offset), len } if len > 0 => {
            let result = mount.allocate(pair.inos[file], what, offset, len);
            let bytes = pair.model.get_mut(&file).unwrap();
            match result {
                Ok(()) => {
                    assert!(super::model::allocate(bytes, what, offset, len));
                    None
                }
                Err(FsError::Invalid(_)) => {
                    assert!(!super::model::allocate(bytes, what, offset, len));
                    None
                }
                Err(error) => Some(error),
            }
        }
        Step::Copy { from, to, len } if from.0 != to.0 => {
            let copied =
                mount.fs.copy_range((pair.inos[from.0], from.1), (pair.inos[to.0], to.1), len, false);
            match block_on(copied) {
                Ok(copied) => {
                    let start = (from.1 as usize).min(before[&from.0].len());
                    let data = &before[&from.0][start..start + copied as usize];
                    let bytes = pair.model.get_mut(&to.0).unwrap();
                    if !data.is_empty() {
                        bytes.resize(bytes.len().max(to.1 as usize + data.len()), 0);
                        bytes[to.1 as usize..][..data.len()].copy_from_slice(data);
                    }
                    None
                }
                Err(error) => Some(error),
            }
        }
        Step::Fsync { file, data_only } => {
            block_on(mount.fs.fsync(pair.inos[file], data_only)).unwrap();
            None
        }
        Step::SyncAll => {
            block_on(mount.fs.sync_many(&pair.inos, 0)).unwrap();
            None
        }
        Step::WriteBack { file } => {
            let inode = block_on(mount.fs.inode(pair.inos[file])).unwrap();
            block_on(crate::data::flush::writeback::write_back(&mount.fs, &inode)).unwrap();
            None
        }
        _ => None,
    };
    match refused {
        None | Some(FsError::QuotaExceeded) => {}
        Some(error) => panic!("{error}"),
    }
}

/// An interrupted quota does not yet count all inodes below it.
#[test]
fn an_interrupted_quota_has_none_below_it() {
    let mount = Mount::new();
    let above = mount.mkdir_in(ROOT, "above");
    let below = mount.mkdir_in(mount.mkdir_in(above, "between"), "below");
    let dir = block_on(mount.fs.directory(above)).unwrap();
    block_on(mount.fs.make_quota(&dir, limits(1 << 20, 0))).unwrap();
    let nested = block_on(mount.fs.set_quota(below, limits(1 << 20, 0)));
    assert!(matches!(nested, Err(FsError::QuotaNested)), "{nested:?}");
    mount.set_quota(above, 1 << 20, 0);
    mount.check_quotas();
}

/// The quota of a removed directory stays until nothing refers to the directory any more. Meanwhile
/// it hinders no other quota.
#[test]
fn a_removed_directory_with_a_quota_hinders_no_other() {
    let mount = Mount::new();
    let above = mount.mkdir_in(ROOT, "above");
    let removed = mount.mkdir_in(above, "removed");
    mount.set_quota(removed, 1 << 20, 0);
    // Its creator still refers to the directory.
    block_on(mount.fs.rmdir(above, b"removed")).unwrap();
    assert_eq!(mount.fs.quotas().len(), 1, "its quota is still there");
    // No directory with a quota lies below this one any more.
    mount.set_quota(above, 1 << 20, 0);
    block_on(mount.fs.remove_quota(above)).unwrap();
    // The directory that contained it is removed too.
    block_on(mount.fs.rmdir(ROOT, b"above")).unwrap();
    mount.fs.forget(above, u64::MAX);
    block_on(mount.fs.wait_for_orphans());
    let other = mount.mkdir_in(ROOT, "other");
    mount.set_quota(other, 1 << 20, 0);
    mount.fs.forget(removed, 1);
    block_on(mount.fs.wait_for_orphans());
    assert_eq!(mount.fs.quotas().len(), 1);
    mount.check_quotas();
}

proptest! {
    /// All operations, on files that count: the item always agrees with a count.
    #[test]
    fn usage_follows_whatever_happens(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new(Mount::new());
        pair.mount.set_quota(ROOT, 0, 0);
        for step in &steps {
            pair = pair.apply(step);
            pair.mount.check_quotas();
        }
        block_on(pair.mount.fs.sync_many(&pair.inos, 0)).unwrap();
        pair.mount.check_settled(ROOT);
        let after = pair.mount.crash();
        after.check_settled(ROOT);
    }

    /// All operations, at a limit.
    #[test]
    fn limits_hold_and_what_was_accepted_is_written(
        steps in proptest::collection::vec(step(), 1..60),
        blocks in 10..120u64,
    ) {
        let mut pair = Pair::new(Mount::new());
        pair.mount.set_quota(ROOT, blocks * BLOCK, 0);
        for step in &steps {
            limited(&mut pair, step);
            let usage = pair.mount.quota(ROOT);
            prop_assert!(usage.used_bytes + usage.reserved_bytes <= blocks * BLOCK, "{usage:?} after {step:?}");
            pair.mount.check_quotas();
        }
        for (file, &ino) in pair.inos.iter().enumerate() {
            let expected = &pair.model[&file];
            prop_assert_eq!(pair.mount.size(ino), expected.len() as u64);
            prop_assert!(pair.mount.read(ino, 0, expected.len() + 10) == *expected, "file {}", file);
        }
        block_on(pair.mount.fs.sync_many(&pair.inos, 0)).unwrap();
        pair.mount.check_settled(ROOT);
    }
}
