//! Atomic writes of a file: all of one is durable after its commit, none of it before and after an
//! abort, whatever else happens to the file.

use super::faults::moody_breaking;
use super::*;
use crate::receipt::Call;
use crate::types::{RenameFlags, SetTime};
use rand::{Rng, SeedableRng};
use std::sync::atomic::Ordering;
use syncline_store::Canary;

const BLOCK: u64 = 4096;

impl Mount {
    /// The whole file, as programs see it.
    fn contents(&self, ino: Ino) -> Vec<u8> {
        let size = self.size(ino) as usize;
        let contents = self.read(ino, 0, size + 1);
        assert_eq!(contents.len(), size);
        contents
    }

    /// The whole file, after a crash at this moment in which everything written has survived.
    fn after_crash(&self, name: &str) -> Vec<u8> {
        let mount = self.crash();
        let ino = mount.find(name);
        mount.check_items(ino);
        mount.contents(ino)
    }

    /// Everything that writes data back on its own.
    fn write_everything_back(&self) {
        block_on(self.fs.syncfs()).unwrap();
        block_on(self.fs.store().checkpoint()).unwrap();
    }

    /// Fails unless no room and no memory belongs to atomic writes any more.
    fn check_nothing_is_held(&self) {
        assert_eq!(self.fs.data.atomic.bytes(), 0);
    }
}

fn errno<T: std::fmt::Debug>(result: Result<T, FsError>) -> i32 {
    result.unwrap_err().errno()
}

/// A file with these contents, synced and placed.
fn file(mount: &Mount, name: &str, contents: &[u8]) -> Ino {
    let ino = mount.create(name);
    mount.write(ino, 0, contents);
    mount.fsync_placed(ino);
    ino
}

#[test]
fn all_of_it_is_durable_after_the_commit_and_nothing_before() {
    let mount = Mount::new();
    let old = pattern(1, 40_000);
    let ino = file(&mount, "database", &old);
    let mut new = old.clone();
    mount.start(ino);
    for (at, len) in [(0, 4096), (8000, 300), (20_480, 8192), (39_000, 42_000)] {
        let data = pattern(at as u64, len);
        new.resize(new.len().max(at + len), 0);
        new[at..at + len].copy_from_slice(&data);
        mount.put(ino, at as u64, &data);
        mount.fsync(ino);
        mount.write_everything_back();
        assert!(mount.contents(ino) == new, "programs see what was written");
        assert!(mount.after_crash("database") == old);
    }
    mount.commit(ino);
    assert!(mount.contents(ino) == new);
    assert!(mount.after_crash("database") == new);
    assert_eq!(mount.fs.counters().atomic_commits, 1);
    mount.check_nothing_is_held();
    let mount = mount.reopen();
    assert!(mount.contents(mount.find("database")) == new);
}

#[test]
fn an_abort_takes_contents_size_and_times_back() {
    let mount = Mount::new();
    for len in [0, 100, 5000, 40_000] {
        let name = format!("of {len} bytes");
        let old = pattern(2, len);
        let ino = file(&mount, &name, &old);
        let before = block_on(mount.fs.getattr(ino)).unwrap();
        let free = mount.fs.statfs().available;
        mount.start(ino);
        mount.put(ino, 50, &pattern(3, 70_000));
        let during = block_on(mount.fs.getattr(ino)).unwrap();
        assert_eq!(during.size, 70_050);
        let write = mount.open_write(ino);
        mount.abort(ino);
        assert!(!block_on(mount.fs.abort_atomic_write(write)).unwrap());
        assert_eq!(block_on(mount.fs.getattr(ino)).unwrap(), before);
        assert!(mount.contents(ino) == old);
        assert_eq!(mount.fs.statfs().available, free);
        mount.write_everything_back();
        assert!(mount.after_crash(&name) == old);
    }
    mount.check_nothing_is_held();
}

/// The file's contents change from the inode item to blocks, and blocks 0 and 1 are written apart.
#[test]
fn a_small_file_grows_out_of_its_inode_item() {
    for at in [10, 100, 4096, 9000] {
        let mount = Mount::new();
        let ino = file(&mount, "small", b"contents of the inode item");
        mount.start(ino);
        mount.put(ino, at, &pattern(at, 6000));
        let new = mount.contents(ino);
        assert_eq!(&new[..10], b"contents o");
        assert_eq!(mount.after_crash("small"), b"contents of the inode item");
        mount.commit(ino);
        assert!(mount.contents(ino) == new);
        assert!(mount.after_crash("small") == new);
        assert_eq!(mount.reopen().after_crash("small"), new);
    }
}

#[test]
fn a_commit_is_one_batch_and_one_flush() {
    let mount = Mount::new();
    let ino = file(&mount, "database", &pattern(4, 400_000));
    for blocks in [1, 3, 5, 60] {
        mount.start(ino);
        (0..blocks).for_each(|block| mount.put(ino, block * BLOCK, &pattern(block, 4096)));
        let before = (mount.fs.store().counters().batches, mount.fs.store().device_counters().flushes_issued);
        mount.commit(ino);
        let after = (mount.fs.store().counters().batches, mount.fs.store().device_counters().flushes_issued);
        assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1), "{blocks} blocks");
    }
    let receipt = *mount.fs.receipts().last().unwrap();
    assert_eq!((receipt.call, receipt.submitted.blocks), (Call::AtomicCommit, 60));
}

/// Blocks that a sync has logged and that have no place yet are replaced like any other.
#[test]
fn logged_blocks_of_before_are_replaced_and_come_back() {
    let mount = Mount::new();
    let ino = file(&mount, "database", &pattern(5, 100_000));
    let mut old = mount.contents(ino);
    for (round, commits) in [true, false, true, true, false].into_iter().enumerate() {
        let at = 4096 * (1 + round % 2);
        mount.write(ino, at as u64, &pattern(50 + round as u64, 4096));
        old[at..at + 4096].copy_from_slice(&pattern(50 + round as u64, 4096));
        mount.fsync(ino);
        mount.start(ino);
        mount.put(ino, at as u64 + 7, &pattern(90 + round as u64, 9000));
        assert!(mount.after_crash("database") == old);
        if commits {
            old[at + 7..at + 9007].copy_from_slice(&pattern(90 + round as u64, 9000));
            mount.commit(ino);
        } else {
            mount.abort(ino);
        }
        assert!(mount.contents(ino) == old);
        assert!(mount.after_crash("database") == old);
    }
    mount.check_items(ino);
}

#[test]
fn what_was_dirty_before_the_start_is_not_part_of_it() {
    let mount = Mount::new();
    let ino = file(&mount, "database", &pattern(6, 50_000));
    mount.write(ino, 0, &pattern(7, 30_000));
    let before = mount.contents(ino);
    mount.start(ino);
    mount.put(ino, 20_000, &pattern(8, 60_000));
    mount.fsync(ino);
    assert!(mount.after_crash("database") == before);
    mount.abort(ino);
    assert!(mount.contents(ino) == before);
}

#[test]
fn other_writers_and_changes_of_the_extents_are_refused() {
    let mount = Mount::new();
    let old = pattern(9, 40_960);
    let (ino, source) = (file(&mount, "database", &old), file(&mount, "source", &pattern(10, 40_960)));
    mount.start(ino);
    mount.put(ino, 4096, &pattern(11, 4096));
    assert_eq!(errno(mount.try_write(ino, 0, b"x")), 16);
    assert_eq!(errno(block_on(mount.fs.append(ino, Bytes::from_static(b"x"), false))), 16);
    assert_eq!(errno(mount.truncate(ino, 0)), 16);
    assert_eq!(errno(mount.truncate(ino, 1 << 20)), 16);
    assert_eq!(errno(block_on(mount.fs.start_atomic_write(ino))), 16);
    use Allocation::*;
    let ways = [
        Preallocate { keep_size: false },
        PunchHole,
        ZeroRange { keep_size: false },
        CollapseRange,
        InsertRange,
        UnshareRange { keep_size: false },
    ];
    for way in ways {
        assert_eq!(errno(mount.allocate(ino, way, 4096, 4096)), 16, "{way:?}");
    }
    let copy = |from, to| block_on(mount.fs.copy_range((from, 0), (to, 0), 40_960, false));
    assert_eq!(errno(copy(source, ino)), 16);
    // A copy of the file has the old contents, shared or not.
    let target = mount.create("target");
    assert_eq!(copy(ino, target).unwrap(), 40_960);
    assert!(mount.contents(target) == old);
    mount.commit(ino);
    assert_eq!(mount.read(ino, 4096, 4096), pattern(11, 4096));
    assert!(mount.contents(target) == old);
    mount.check_counts(&[ino, source, target]);
    mount.write(ino, 0, b"x");
}

#[test]
fn attributes_names_and_snapshots_go_on_meanwhile() {
    let mount = Mount::new();
    let old = pattern(12, 9000);
    let ino = file(&mount, "database", &old);
    mount.start(ino);
    mount.put(ino, 0, &pattern(13, 20_000));
    let changes = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    assert_eq!(block_on(mount.fs.setattr(CALLER, ino, changes)).unwrap().size, 20_000);
    let flags = RenameFlags::default();
    block_on(mount.fs.rename(ROOT, b"database", ROOT, b"renamed", flags)).unwrap();
    mount.fsync(ino);
    assert!(mount.after_crash("renamed") == old);
    // A time that was set after the last write is the one that counts.
    let time = Timestamp { seconds: 5, nanoseconds: 6 };
    let changes = SetAttributes { mtime: Some(SetTime::To(time)), ..SetAttributes::default() };
    assert_eq!(block_on(mount.fs.setattr(CALLER, ino, changes)).unwrap().mtime, time);
    mount.commit(ino);
    let mount = mount.crash();
    let attributes = block_on(mount.fs.getattr(mount.find("renamed"))).unwrap();
    assert_eq!((attributes.size, attributes.mtime, attributes.permissions), (20_000, time, 0o600));
    assert_eq!(mount.contents(mount.find("renamed")), pattern(13, 20_000));
}

#[test]
fn a_file_without_a_name_can_commit_or_abort() {
    let mount = Mount::new();
    let ino = file(&mount, "gone", &pattern(14, 9000));
    block_on(mount.fs.open_file(ino)).unwrap();
    mount.start(ino);
    mount.put(ino, 0, &pattern(15, 12_000));
    mount.unlink("gone");
    mount.commit(ino);
    assert_eq!(mount.contents(ino), pattern(15, 12_000));
    mount.start(ino);
    mount.put(ino, 0, &pattern(16, 12_000));
    mount.abort(ino);
    assert_eq!(mount.contents(ino), pattern(15, 12_000));
    mount.fs.release_file(ino);
    mount.fs.forget(ino, u64::MAX);
    block_on(mount.fs.wait_for_orphans());
    mount.check_nothing_is_held();
}

/// The page that a mapping's store comes in has bytes of the atomic write too.
#[test]
fn stores_through_a_mapping_are_refused_and_told() {
    let mount = Mount::new();
    let ino = file(&mount, "database", &pattern(17, 9000));
    mount.start(ino);
    assert_eq!(errno(block_on(mount.fs.write_mapped(ino, 4096, Bytes::from(vec![1; 4096])))), 16);
    assert_eq!(errno(block_on(mount.fs.fsync(ino, true))), 16);
    mount.put(ino, 0, &pattern(18, 4096));
    mount.commit(ino);
    assert_eq!(mount.after_crash("database")[4096..], pattern(17, 9000)[4096..]);
}

#[test]
fn what_is_refused_at_the_start() {
    let mount = Mount::new();
    let ino = file(&mount, "database", b"old");
    assert_eq!(errno(block_on(mount.fs.start_atomic_write(ROOT))), 21);
    for (immutable, append_only) in [(true, false), (false, true)] {
        let flags = crate::types::FileFlags { immutable, append_only, ..Default::default() };
        block_on(mount.fs.set_file_flags(ino, flags)).unwrap();
        assert_eq!(errno(block_on(mount.fs.start_atomic_write(ino))), 1);
    }
}

#[test]
fn holes_and_ends_are_told_as_programs_see_them() {
    let mount = Mount::new();
    let ino = file(&mount, "database", &pattern(18, 8192));
    mount.start(ino);
    mount.put(ino, 100_000, b"end");
    assert_eq!(block_on(mount.fs.seek_data(ino, 50_000)).unwrap(), 50_000);
    assert_eq!(block_on(mount.fs.seek_hole(ino, 0)).unwrap(), 100_003);
    assert_eq!(errno(block_on(mount.fs.seek_data(ino, 100_003))), 6);
    assert_eq!(mount.read(ino, 8000, 92_003)[192..92_000], [0; 91_808]);
    mount.commit(ino);
    assert_eq!(block_on(mount.fs.seek_data(ino, 50_000)).unwrap(), 98_304);
}

/// The write reserves the room for its commit. The commit succeeds although another file fills the
/// filesystem afterwards.
#[test]
fn a_commit_finds_room_on_a_full_filesystem() {
    let mount = Mount::formatted(16 << 20, 4096, options());
    let (ino, filler) = (file(&mount, "database", &pattern(21, 200_000)), mount.create("filler"));
    mount.start(ino);
    mount.put(ino, 0, &pattern(22, 400_000));
    let full = (0..).map(|at| mount.try_write(filler, at << 16, &[7; 1 << 16])).find_map(Result::err);
    assert_eq!(full.unwrap().errno(), 28);
    let refused = (16..).map(|at| mount.try_put(ino, at << 16, &[7; 1 << 16])).find_map(Result::err);
    assert_eq!(refused.unwrap().errno(), 28);
    mount.commit(ino);
    assert_eq!(mount.after_crash("database")[..400_000], pattern(22, 400_000));
    mount.check_items(ino);
}

#[test]
fn a_quota_is_reserved_at_the_write_and_given_back() {
    let mount = Mount::new();
    let dir = mount.mkdir_in(ROOT, "dir");
    mount.set_quota(dir, 1 << 20, 0);
    let ino = mount.create_in(dir, "database");
    mount.write(ino, 0, &pattern(23, 100_000));
    mount.fsync(ino);
    let other = mount.create_in(dir, "other");
    for commits in [false, true, true] {
        mount.start(ino);
        mount.put(ino, 50_000, &pattern(24, 400_000));
        (0..5).for_each(|_| mount.put(ino, 60_000, &pattern(25, 4096)));
        // 1 MiB, less the bytes in use and the bytes reserved.
        assert_eq!(errno(mount.try_write(other, 0, &vec![1; 700_000])), 122);
        assert_eq!(errno(mount.try_put(ino, 1 << 20, &vec![1; 700_000])), 122);
        if commits {
            mount.commit(ino)
        } else {
            mount.abort(ino)
        }
        mount.check_quotas();
    }
    let used = mount.quota(dir).used_bytes;
    assert!((440_000..480_000).contains(&used), "{used}");
    mount.write(other, 0, &vec![1; 500_000]);
    mount.fsync(other);
    mount.check_quotas();
    // A small file in its inode item, and one that outgrows it.
    for len in [100, 3000, 9000] {
        let name = format!("small {len}");
        let small = mount.create_in(dir, &name);
        for round in 0..3 {
            mount.start(small);
            mount.put(small, 0, &pattern(round, len));
            mount.commit(small);
            mount.check_quotas();
        }
    }
}

#[test]
fn preallocated_compressed_and_shared_blocks_are_replaced() {
    let mount = Mount::new();
    let ino = mount.create("preallocated");
    mount.allocate(ino, Allocation::Preallocate { keep_size: false }, 0, 100_000).unwrap();
    mount.start(ino);
    mount.put(ino, 10_000, &pattern(26, 30_000));
    mount.abort(ino);
    mount.check_room(&[ino]);
    mount.start(ino);
    mount.put(ino, 10_000, &pattern(26, 30_000));
    mount.commit(ino);
    mount.check_room(&[ino]);
    mount.check_items(ino);
    assert_eq!(mount.after_crash("preallocated")[10_000..40_000], pattern(26, 30_000));

    let packed = mount.create("packed");
    mount.compress(packed, Some(Algorithm::Lz4));
    mount.write(packed, 0, &vec![3; 400_000]);
    mount.write_everything_back();
    let copy = mount.create("copy");
    block_on(mount.fs.copy_range((packed, 0), (copy, 0), 400_000, false)).unwrap();
    mount.start(packed);
    mount.put(packed, 5000, &pattern(27, 200_000));
    let new = mount.contents(packed);
    assert_eq!(mount.after_crash("packed"), vec![3; 400_000]);
    mount.commit(packed);
    assert!(mount.after_crash("packed") == new);
    assert_eq!(mount.after_crash("copy"), vec![3; 400_000]);
    mount.check_counts(&[ino, packed, copy]);
}

/// If the log does not take it, the write is open as before: it can be committed again, or aborted.
#[test]
fn a_commit_that_fails_can_be_repeated_or_aborted() {
    for (blocks, again) in [(2, true), (2, false), (200, true), (200, false)] {
        let (moody, mount) = moody_breaking(None, options());
        let old = pattern(28, 1 << 20);
        let ino = file(&mount, "database", &old);
        mount.write(ino, 4096, &old[4096..8192]);
        mount.fsync(ino);
        mount.start(ino);
        let new = pattern(29, blocks * 4096);
        mount.put(ino, 0, &new);
        moody.fail.store(true, Ordering::SeqCst);
        mount.try_commit(ino).unwrap_err();
        moody.fail.store(false, Ordering::SeqCst);
        // The commit was logged in memory, as that of an fsync: the contents are the new ones.
        assert_eq!(mount.contents(ino)[..new.len()], new);
        let open = mount.fs.atomic_write_of(ino);
        if again {
            let retried = match open {
                Some(_) => mount.try_commit(ino),
                None => block_on(mount.fs.fsync(ino, true)),
            };
            if retried.is_ok() {
                assert_eq!(mount.after_crash("database")[..new.len()], new);
            }
        } else {
            open.into_iter().for_each(|_| mount.abort(ino));
            mount.contents(ino);
        }
        mount.check_nothing_is_held();
    }
}

/// The canary: write-back takes blocks that an atomic write has put aside.
#[test]
fn write_back_that_takes_it_is_noticed() {
    let (_, mount) = moody_breaking(Some(Canary::AtomicWriteLeaks), options());
    let old = pattern(30, 40_000);
    let ino = file(&mount, "database", &old);
    mount.start(ino);
    mount.put(ino, 4096, &pattern(31, 8192));
    mount.write_everything_back();
    mount.abort(ino);
    assert_ne!(mount.contents(ino), old);
}

/// A random life of one file, compared with the contents as programs see them and as the device
/// must have them.
#[test]
fn random_lives() {
    for seed in 0..40 {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let atomic_blocks_max = [16384, 1, 3][seed as usize % 3];
        let mut mount = Mount::sized(64 << 20, Options { atomic_blocks_max, ..options() });
        let mut ino = mount.create("life");
        mount.compress(ino, [None, Some(Algorithm::Lz4)][seed as usize / 3 % 2]);
        let (mut seen, mut durable, mut open) = (Vec::new(), Vec::new(), false);
        for _ in 0..60 {
            match random.random_range(0..10) {
                0 if !open => {
                    mount.fsync(ino);
                    durable.clone_from(&seen);
                    mount.start(ino);
                    open = true;
                }
                1 if open => {
                    mount.commit(ino);
                    durable.clone_from(&seen);
                    open = false;
                }
                2 if open => {
                    mount.abort(ino);
                    seen.clone_from(&durable);
                    open = false;
                }
                3 => mount.write_everything_back(),
                4 if !open => {
                    let size = random.random_range(0..60_000usize);
                    mount.truncate(ino, size as u64).unwrap();
                    seen.resize(size, 0);
                }
                5 => mount.fsync(ino),
                6 if open => assert_eq!(mount.after_crash("life"), durable, "seed {seed}"),
                7 if !open && random.random::<bool>() => {
                    mount = mount.reopen();
                    ino = mount.find("life");
                }
                _ => {
                    let at = random.random_range(0..40_000usize);
                    let most = if random.random() { 5000 } else { 30_000usize };
                    let len = random.random_range(1..most);
                    let data = pattern(random.random(), len);
                    seen.resize(seen.len().max(at + len), 0);
                    seen[at..at + len].copy_from_slice(&data);
                    mount.put(ino, at as u64, &data);
                }
            }
            assert!(mount.contents(ino) == seen, "seed {seed}");
        }
        if open {
            mount.abort(ino);
        }
        mount.check_items(ino);
        mount.check_nothing_is_held();
    }
}
