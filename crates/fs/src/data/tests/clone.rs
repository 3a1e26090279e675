//! Copies of whole files: their attributes, their room and their quota, and the state after a crash.

use super::quota::exceeded;
use super::*;
use crate::Durability;
use crate::types::{FileFlags, SetTime, XattrMode};

const MIB: usize = 1 << 20;

impl Mount {
    fn clone_as(&self, file: Ino, to: (Ino, &str)) -> Result<Option<Ino>, FsError> {
        let cloned = block_on(self.fs.clone_file(file, (to.0, to.1.as_bytes())));
        cloned.map(|copy| copy.map(|copy| copy.ino))
    }

    fn clone_of(&self, file: Ino, name: &str) -> Ino {
        self.clone_as(file, (ROOT, name)).unwrap().expect("one transaction can copy it")
    }

    /// Asserts that a file has the attributes and contents of another.
    fn assert_like(&self, copy: Ino, file: Ino) {
        let attributes = |ino| block_on(self.fs.getattr(ino)).unwrap();
        let (of_copy, of_file) = (attributes(copy), attributes(file));
        let (ino, ctime, btime) = (copy, of_copy.ctime, of_copy.btime);
        assert_eq!(of_copy, crate::types::Attributes { ino, ctime, btime, ..of_file });
        let xattrs = |ino| {
            let names = block_on(self.fs.listxattr(ino)).unwrap();
            let value = |name: &[u8]| block_on(self.fs.getxattr(ino, name)).unwrap();
            names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(value).collect::<Vec<_>>()
        };
        assert_eq!(xattrs(copy), xattrs(file));
        assert_eq!(block_on(self.fs.file_flags(copy)).unwrap(), block_on(self.fs.file_flags(file)).unwrap());
        if of_file.file_type == FileType::Regular {
            let len = of_file.size as usize;
            assert!(self.read(copy, 0, len + 1) == self.read(file, 0, len), "the contents differ");
        }
    }
}

#[test]
fn a_copy_has_everything_of_its_file_and_writes_no_data() {
    let mount = Mount::new();
    let (empty, small, large) = (mount.create("empty"), mount.create("small"), mount.create("large"));
    let (holes, packed) = (mount.create("holes"), mount.create("packed"));
    mount.write(small, 0, &pattern(1, 700));
    mount.write(large, 0, &pattern(2, MIB + 1000));
    mount.write(holes, 10 << 20, &pattern(3, 5000));
    mount.truncate(holes, (20 << 20) + 1).unwrap();
    mount.compress(packed, Some(Algorithm::Zstd));
    mount.write(packed, 0, &[7; MIB]);
    // Room behind the end is not contents.
    mount.allocate(large, Allocation::Preallocate { keep_size: true }, 2 << 20, 1 << 20).unwrap();
    for file in [small, large] {
        block_on(mount.fs.setxattr(file, b"user.note", b"value", XattrMode::Set)).unwrap();
        let times = SetAttributes {
            permissions: Some(0o4751),
            atime: Some(SetTime::To(Timestamp { seconds: 7, nanoseconds: 8 })),
            mtime: Some(SetTime::To(Timestamp { seconds: 5, nanoseconds: 6 })),
            ..SetAttributes::default()
        };
        block_on(mount.fs.setattr(CALLER, file, times)).unwrap();
    }
    let flags = FileFlags { immutable: true, no_dump: true, ..FileFlags::default() };
    block_on(mount.fs.set_file_flags(small, flags)).unwrap();
    [small, large, holes, packed].into_iter().for_each(|file| mount.fsync_placed(file));
    let before = mount.fs.counters().submitted_bytes;
    let files = [("empty", empty), ("small", small), ("holes", holes), ("packed", packed)];
    for (name, file) in files {
        mount.assert_like(mount.clone_of(file, &format!("of {name}")), file);
    }
    let copy = mount.clone_of(large, "of large");
    assert_eq!(mount.blocks(copy), 8 * 257);
    assert!(mount.read(copy, 0, 2 * MIB) == pattern(2, MIB + 1000));
    assert_eq!(mount.fs.counters().submitted_bytes, before, "no data was written");
    let all: Vec<Ino> =
        files.into_iter().flat_map(|(name, file)| [file, mount.find(&format!("of {name}"))]).collect();
    mount.check_counts(&[&all[..], &[large, copy]].concat());
    all.iter().for_each(|ino| mount.check_items(*ino));

    // Each goes its own way, also after a crash.
    mount.write(copy, 0, &pattern(4, 8192));
    mount.fsync_placed(copy);
    assert!(mount.read(large, 0, 8192) == pattern(2, MIB + 1000)[..8192]);
    let mount = mount.crash();
    for (name, _) in files {
        mount.assert_like(mount.find(&format!("of {name}")), mount.find(name));
    }
    let names = ["empty", "small", "holes", "packed", "large"];
    let all = names.into_iter().flat_map(|name| [mount.find(name), mount.find(&format!("of {name}"))]);
    mount.check_counts(&all.collect::<Vec<_>>());
}

#[test]
fn links_and_special_files_are_copied_and_directories_are_not() {
    let mount = Mount::new();
    let link = block_on(mount.fs.symlink(CALLER, ROOT, b"link", b"where it leads")).unwrap().ino;
    let fifo = block_on(mount.fs.mknod(CALLER, ROOT, b"fifo", FileType::Fifo, 0o600, 0)).unwrap().ino;
    let tty = block_on(mount.fs.mknod(CALLER, ROOT, b"tty", FileType::CharDevice, 0o600, 0x501)).unwrap().ino;
    for (name, file) in [("1", link), ("2", fifo), ("3", tty)] {
        mount.assert_like(mount.clone_of(file, name), file);
    }
    assert_eq!(block_on(mount.fs.readlink(mount.find("1"))).unwrap(), "where it leads");
    let clone = |file, name| mount.clone_as(file, (ROOT, name));
    assert!(matches!(clone(ROOT, "4"), Err(FsError::IsDirectory)));
    assert!(matches!(clone(fifo, "1"), Err(FsError::Exists)));
    assert!(matches!(clone(1 << 40, "4"), Err(FsError::NotFound | FsError::Stale)));
    assert!(matches!(mount.clone_as(fifo, (fifo, "4")), Err(FsError::NotDirectory)));
}

#[test]
fn what_takes_several_transactions_is_left_to_the_caller() {
    let mount = Mount::new();
    let file = mount.create("file");
    block_on(mount.fs.setxattr(file, b"user.long", &[1; 30_000], XattrMode::Set)).unwrap();
    let link = block_on(mount.fs.symlink(CALLER, ROOT, b"link", &[b'x'; 4000])).unwrap().ino;
    let pieces = mount.create("pieces");
    for block in 0..1100 {
        mount.write(pieces, block * 8192, &[1; 4096]);
    }
    for file in [file, link, pieces] {
        assert_eq!(mount.clone_as(file, (ROOT, "copy")).unwrap(), None);
    }
    mount.check_counts(&[file, pieces]);
}

#[test]
fn flags_and_features_are_those_of_the_original_or_of_the_directory() {
    let mount = Mount::sized(64 << 20, Options { compression: Some(Algorithm::Lz4), ..options() });
    let dir = block_on(mount.fs.mkdir(CALLER, ROOT, b"dir", 0o755)).unwrap().ino;
    let file = mount.create("file");
    block_on(mount.fs.set_durability(file, Some(Durability::Ordered(5)))).unwrap();
    mount.compress(file, None);
    let copy = mount.clone_as(file, (dir, "plain")).unwrap().unwrap();
    assert_eq!(block_on(mount.fs.durability(copy)).unwrap().0, None, "a class that chattr does not show");
    assert_eq!(block_on(mount.fs.file_flags(copy)).unwrap().compression, Some(Algorithm::Lz4));
    assert!(mount.fs.store().has_features(syncline_format::superblock::FEATURE_COMPRESSION));
    block_on(mount.fs.set_durability(file, Some(Durability::Strict))).unwrap();
    let copy = mount.clone_as(file, (dir, "strict")).unwrap().unwrap();
    assert_eq!(block_on(mount.fs.durability(copy)).unwrap().0, Some(Durability::Strict));
}

#[test]
fn copies_count_in_the_quota_of_their_directory() {
    let mount = Mount::new();
    let (file, small) = (mount.create("file"), mount.create("small"));
    mount.write(file, 0, &pattern(1, 50 * 4096));
    mount.write(small, 0, &pattern(2, 700));
    let dir = block_on(mount.fs.mkdir(CALLER, ROOT, b"tree", 0o755)).unwrap().ino;
    mount.set_quota(dir, 120 * 4096, 5);
    for name in ["1", "2"] {
        mount.clone_as(file, (dir, name)).unwrap().unwrap();
    }
    mount.clone_as(small, (dir, "3")).unwrap().unwrap();
    assert_eq!(mount.quota(dir).used_bytes, 100 * 4096 + 1024);
    exceeded(mount.clone_as(file, (dir, "4")));
    mount.clone_as(small, (dir, "4")).unwrap().unwrap();
    exceeded(mount.clone_as(small, (dir, "5")));
    mount.check_settled(dir);
    mount.crash().check_quotas();
}

/// A copy that finds no room in its quota waits for files that are being removed. They need the counts of shared
/// blocks for that.
#[test]
fn a_copy_waits_for_the_room_of_removed_copies() {
    let mount = Mount::new();
    let file = mount.create("file");
    for block in 0..900 {
        mount.write(file, block * 8192, &[1; 4096]);
    }
    let dir = block_on(mount.fs.mkdir(CALLER, ROOT, b"tree", 0o755)).unwrap().ino;
    mount.set_quota(dir, 1000 * 4096, 0);
    let copy = || mount.clone_as(file, (dir, "copy")).unwrap().unwrap();
    let mut made = copy();
    for _ in 0..20 {
        block_on(mount.fs.unlink(dir, b"copy")).unwrap();
        made = copy();
    }
    mount.check_counts(&[file, made]);
    block_on(mount.fs.wait_for_orphans());
    mount.check_settled(dir);
}

/// The same for room on the device.
#[test]
fn copies_on_a_full_device_wait_for_removed_ones() {
    let mount = Mount::sized(16 << 20, options());
    let file = mount.create("file");
    for block in 0..200 {
        mount.write(file, block * 8192, &[1; 4096]);
    }
    mount.fsync_placed(file);
    let filler = mount.create("filler");
    let mut size = 0;
    for len in [1 << 20, 65536, 4096] {
        while mount.try_write(filler, size, &vec![2; len]).is_ok() {
            size += len as u64;
        }
    }
    // Just enough room for one copy.
    let copy = || mount.clone_as(file, (ROOT, "copy"));
    let is_full = |copied: &Result<_, _>| matches!(copied, Err(FsError::Store(StoreError::NoSpace)));
    while is_full(&copy()) {
        size -= 16 * 4096;
        mount.truncate(filler, size).unwrap();
    }
    let mut made = 1;
    for round in 0..30 {
        if block_on(mount.fs.unlink(ROOT, b"copy")).is_ok() {
            made += 1;
        }
        let copied = copy();
        assert!(copied.is_ok() || is_full(&copied), "round {round}: {copied:?}");
    }
    assert!(made > 10, "{made} copies found room");
    block_on(mount.fs.wait_for_orphans());
    let copy = block_on(mount.fs.lookup(ROOT, b"copy")).ok().map(|copy| copy.ino);
    mount.check_counts(&[file].into_iter().chain(copy).collect::<Vec<_>>());
}

/// A copy of a file that nobody has synced has what was written before.
#[test]
fn what_is_dirty_is_in_the_copy() {
    let mount = Mount::new();
    let file = mount.create("file");
    mount.write(file, 0, &pattern(1, 300_000));
    mount.fsync(file);
    mount.write(file, 5000, &pattern(2, 100));
    mount.write(file, 290_000, &pattern(3, 20_000));
    let copy = mount.clone_of(file, "copy");
    mount.assert_like(copy, file);
    mount.fsync(copy);
    let mount = mount.crash();
    mount.assert_like(mount.find("copy"), mount.find("file"));
    mount.check_counts(&[mount.find("copy"), mount.find("file")]);
}
