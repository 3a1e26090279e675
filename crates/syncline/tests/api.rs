//! The library as a program uses it, over memory and over files.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline::device::{AlignedBuf, Completion, Device, DeviceError, MemoryDevice, Operation};
use syncline::receipt::{Call, Cover};
use syncline::{
    Allocation, Error, File, FileType, Filesystem, FormatOptions, ImageOptions, OpenOptions, RenameFlags,
    format_device,
};

const SIZE: u64 = 64 << 20;

fn memory() -> (Arc<MemoryDevice>, Filesystem) {
    let device = MemoryDevice::new(SIZE);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    (device, fs)
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    let error: std::io::Error = result.unwrap_err().into();
    error.raw_os_error().unwrap()
}

/// Objects without names are removed in the background.
fn wait_for_objects(fs: &Filesystem, wanted: u64) {
    for _ in 0..12_000 {
        if fs.space().objects == wanted {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{} objects are left, not {wanted}", fs.space().objects);
}

#[test]
fn files_read_write_seek_and_append() {
    let (_, fs) = memory();
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&fs, "file").unwrap();
    file.write_all(b"hello world").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(-5)).unwrap(), 6);
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "world");
    assert_eq!(file.seek(SeekFrom::End(2)).unwrap(), 13);
    file.write_all(b"!").unwrap();
    assert_eq!(fs.read("file").unwrap(), b"hello world\0\0!");
    assert!(file.seek(SeekFrom::End(-15)).is_err());
    let mut log = OpenOptions::new().append(true).open(&fs, "file").unwrap();
    log.write_all(b" more").unwrap();
    assert_eq!(fs.read("file").unwrap(), b"hello world\0\0! more");
    file.set_len(5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    assert_eq!(errno(log.read_at(&mut [0; 4], 0)), 9, "not opened for reading");
    assert_eq!(errno(fs.open_file("file").unwrap().write_at(b"x", 0)), 9);
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&fs, "file")), 17);
    assert_eq!(errno(OpenOptions::new().read(true).create(true).open(&fs, "other")), 22);
}

#[test]
fn large_files_go_through_pieces_and_holes_are_zeros() {
    let (_, fs) = memory();
    let data: Vec<u8> = (0..9_000_001u32).map(|index| (index % 251) as u8).collect();
    fs.write("large", &data).unwrap();
    assert_eq!(fs.read("large").unwrap(), data);
    let file = fs.create_file("sparse").unwrap();
    file.write_all_at(b"end", 1 << 40).unwrap();
    let read = fs.open_file("sparse").unwrap();
    let mut start = [1; 100];
    read.read_exact_at(&mut start, 12345).unwrap();
    assert_eq!(start, [0; 100]);
    assert_eq!(read.seek_data(0).unwrap(), 1 << 40);
    assert_eq!(read.seek_hole(0).unwrap(), 0);
    assert_eq!(errno(read.seek_data((1 << 40) + 3)), 6);
}

#[test]
fn ranges_are_given_up() {
    let (_, fs) = memory();
    fs.write("file", [7; 20_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&fs, "file").unwrap();
    file.allocate(Allocation::PunchHole, 4096, 8192).unwrap();
    file.allocate(Allocation::ZeroRange { keep_size: false }, 19_000, 2000).unwrap();
    let expected = [vec![7; 4096], vec![0; 8192], vec![7; 19_000 - 12_288], vec![0; 2000]].concat();
    assert_eq!(fs.read("file").unwrap(), expected);
    file.allocate(Allocation::InsertRange, 0, 4096).unwrap();
    file.allocate(Allocation::CollapseRange, 8192, 8192).unwrap();
    let expected = [&[0; 4096], &expected[..4096], &expected[12_288..]].concat();
    assert_eq!(fs.read("file").unwrap(), expected);
    file.allocate(Allocation::UnshareRange { keep_size: false }, 0, 40_960).unwrap();
    assert_eq!(fs.metadata("file").unwrap().len(), 40_960);
    assert_eq!(errno(file.allocate(Allocation::CollapseRange, 0, 100)), 22);
    assert_eq!(errno(file.allocate(Allocation::PunchHole, 0, 0)), 22);
    assert_eq!(errno(fs.open_file("file").unwrap().allocate(Allocation::PunchHole, 0, 1)), 9);
}

#[test]
fn what_was_synced_is_there_after_the_power_went() {
    let (device, fs) = memory();
    fs.create_dir_all("/a/b").unwrap();
    let one = fs.create_file("/a/b/one").unwrap();
    one.write_all_at(&[7; 100_000], 0).unwrap();
    one.sync_all().unwrap();
    let crashed = device.snapshot();
    let again = Filesystem::open_device(crashed, ImageOptions::default()).unwrap();
    assert!(!again.recovery().clean);
    assert_eq!(again.read("/a/b/one").unwrap(), [7; 100_000]);
}

#[test]
fn sync_many_is_one_flush_and_refuses_strangers() {
    let (device, fs) = memory();
    let files: Vec<File> = (0..5).map(|index| fs.create_file(format!("f{index}")).unwrap()).collect();
    for file in &files {
        file.write_all_at(&[3; 10_000], 0).unwrap();
    }
    let before = fs.statistics().store.flushes_issued;
    fs.sync_many(&files.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(fs.statistics().store.flushes_issued - before, 1);
    let again = Filesystem::open_device(device.snapshot(), ImageOptions::default()).unwrap();
    for index in 0..5 {
        assert_eq!(again.read(format!("f{index}")).unwrap(), [3; 10_000]);
    }
    assert_eq!(errno(again.sync_many(&[&files[0]])), 18);
}

#[test]
fn copies_share_their_blocks() {
    let (_, fs) = memory();
    let create = |name| OpenOptions::new().read(true).write(true).create(true).open(&fs, name).unwrap();
    let (one, other) = (create("one"), create("other"));
    one.write_all_at(&[9; 300_000], 0).unwrap();
    assert_eq!(one.copy_range_to(0, &other, 0, u64::MAX).unwrap(), 300_000);
    assert_eq!(fs.read("other").unwrap(), [9; 300_000]);
    let usage = other.usage().unwrap();
    assert_eq!((usage.total_bytes, usage.shared_bytes), (303_104, 303_104));
    other.write_all_at(&[8; 4096], 0).unwrap();
    other.sync_all().unwrap();
    assert_eq!(other.usage().unwrap().shared_bytes, 299_008);
    one.write_all_at(&[8; 4096], 0).unwrap();
    let (_, elsewhere) = memory();
    let stranger = elsewhere.create_file("stranger").unwrap();
    assert_eq!(errno(one.copy_range_to(0, &stranger, 0, 1)), 18);
}

#[test]
fn syncs_leave_receipts() {
    let (_, fs) = memory();
    let (one, two) = (fs.create_file("one").unwrap(), fs.create_file("two").unwrap());
    assert!(fs.last_receipt().is_none() && one.last_receipt().is_none());
    one.write_all_at(&[3; 60_000], 0).unwrap();
    one.sync_all().unwrap();
    two.sync_data().unwrap();
    let first = one.last_receipt().unwrap();
    assert_eq!((first.call, first.cover, first.submitted.blocks), (Call::Fsync, Cover::Issued, 15));
    let second = fs.last_receipt().unwrap();
    assert_eq!((second.call, second.cover), (Call::Fdatasync, Cover::Elided));
    assert_eq!(second.durable, first.durable, "the flush of the other file had covered it");
    assert_eq!(fs.receipts().iter().map(|receipt| receipt.serial).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_barrier_orders_without_a_flush_and_refuses_strangers() {
    let (device, fs) = memory();
    let (first, second) = (fs.create_file("first").unwrap(), fs.create_file("second").unwrap());
    first.write_all_at(&[1; 10_000], 0).unwrap();
    let before = fs.statistics().store.flushes_issued;
    fs.barrier(&[&first]).unwrap();
    assert_eq!(fs.statistics().store.flushes_issued, before);
    second.write_all_at(&[2; 10_000], 0).unwrap();
    second.sync_all().unwrap();
    let again = Filesystem::open_device(device.snapshot(), ImageOptions::default()).unwrap();
    assert_eq!(again.read("second").unwrap(), [2; 10_000]);
    assert_eq!(again.read("first").unwrap(), [1; 10_000]);
    assert_eq!(errno(again.barrier(&[&first])), 18);
}

#[test]
fn closing_leaves_nothing_to_recover_and_dropping_does_the_same() {
    let (device, fs) = memory();
    fs.write("kept", "by closing").unwrap();
    let other = fs.clone();
    fs.close().unwrap();
    assert_eq!(other.read("kept").unwrap(), b"by closing");
    assert_eq!(errno(other.write("more", "")), 30);
    drop(other);
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    assert!(fs.recovery().clean);
    fs.write("kept too", "by dropping").unwrap();
    drop(fs);
    let fs = Filesystem::open_device(device, ImageOptions::read_only()).unwrap();
    assert!(fs.recovery().clean);
    assert_eq!(fs.read("kept too").unwrap(), b"by dropping");
    assert_eq!(errno(fs.create_dir("no")), 30);
}

/// A device that takes no large writes, when it is told so.
struct Narrow {
    below: Arc<MemoryDevice>,
    is_narrow: AtomicBool,
}

impl Device for Narrow {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        self.below.read(offset, buf, done);
    }
    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        let len_bytes: usize = bufs.iter().map(Bytes::len).sum();
        if self.is_narrow.load(Ordering::SeqCst) && len_bytes >= 256 << 10 {
            return done(Err(DeviceError::Abandoned { operation: Operation::Write }));
        }
        self.below.write(offset, bufs, done);
    }
    fn flush(&self, done: Completion<()>) {
        self.below.flush(done);
    }
    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.below.discard(offset, len_bytes, done);
    }
}

/// A program that drops the last handle can't try again.
#[test]
fn dropping_keeps_what_can_be_written() {
    let below = MemoryDevice::new(SIZE);
    format_device(below.clone(), &FormatOptions::default()).unwrap();
    let device = Arc::new(Narrow { below: below.clone(), is_narrow: false.into() });
    let fs = Filesystem::open_device(device.clone(), ImageOptions::default()).unwrap();
    fs.write("lost", vec![1; 1 << 20]).unwrap();
    fs.write("kept", "by dropping").unwrap();
    device.is_narrow.store(true, Ordering::SeqCst);
    drop(fs);
    let fs = Filesystem::open_device(below, ImageOptions::default()).unwrap();
    assert!(!fs.recovery().clean, "something is missing");
    assert_eq!(fs.read("kept").unwrap(), b"by dropping");
    assert_eq!(fs.read("lost").unwrap(), b"");
}

#[test]
fn directories_are_listed_renamed_and_removed() {
    let (_, fs) = memory();
    fs.create_dir("d").unwrap();
    let names: BTreeSet<String> = (0..1000).map(|index| format!("name {index}")).collect();
    for name in &names {
        fs.write(format!("d/{name}"), name).unwrap();
    }
    let listed: BTreeSet<String> = fs
        .read_dir("/d/")
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            assert_eq!(entry.file_type(), FileType::Regular);
            assert_eq!(fs.read(entry.path()).unwrap(), entry.file_name().as_encoded_bytes());
            assert_eq!(entry.metadata().unwrap().ino(), entry.ino());
            entry.file_name().into_string().unwrap()
        })
        .collect();
    assert_eq!(listed, names);
    assert_eq!(errno(fs.remove_dir("d")), 39);
    assert_eq!(errno(fs.remove_file("d")), 21);
    assert_eq!(errno(fs.read_dir("d/name 1")), 20);
    fs.create_dir_all("d/deep/deeper/deepest").unwrap();
    fs.create_dir_all("/").unwrap();
    fs.symlink("/", "d/deep/root").unwrap();
    fs.write("d/deep/deeper/file", "x").unwrap();
    fs.write("outside", "stays").unwrap();
    fs.rename("d", "e").unwrap();
    assert!(!fs.try_exists("d").unwrap());
    fs.remove_dir_all("e").unwrap();
    assert!(!fs.try_exists("e").unwrap());
    assert_eq!(fs.read("outside").unwrap(), b"stays");
    wait_for_objects(&fs, 2);
}

#[test]
fn paths_follow_links_within_the_image_and_not_for_ever() {
    let (_, fs) = memory();
    fs.create_dir_all("a/b").unwrap();
    fs.write("a/b/file", "found").unwrap();
    fs.symlink("/a/b", "absolute").unwrap();
    fs.symlink("../a/b/file", "a/relative").unwrap();
    fs.symlink("../../../../a", "out").unwrap();
    for path in ["absolute/file", "a/relative", "out/b/file", "/a/./b/../b//file", "../../a/b/file"] {
        assert_eq!(fs.read(path).unwrap(), b"found", "{path}");
    }
    fs.symlink("loop", "loop").unwrap();
    assert_eq!(errno(fs.read("loop")), 40);
    assert_eq!(errno(fs.read("loop/x")), 40);
    assert!(fs.symlink_metadata("loop").unwrap().is_symlink());
    assert_eq!(fs.read_link("absolute").unwrap().as_os_str(), "/a/b");
    fs.symlink("a/new", "dangling").unwrap();
    fs.write("dangling", "made where it leads").unwrap();
    assert_eq!(fs.read("a/new").unwrap(), b"made where it leads");
    assert_eq!(errno(fs.read("a/b/file/")), 20);
    assert_eq!(errno(fs.read("a/b/file/x")), 20);
    assert_eq!(errno(fs.read("")), 2);
    assert_eq!(errno(fs.read("x".repeat(256))), 36);
    assert_eq!(errno(fs.read("x/".repeat(3000))), 36);
    assert_eq!(errno(fs.remove_dir("/")), 22);
    assert_eq!(errno(fs.create_dir("/")), 17);
}

#[test]
fn links_attributes_and_extended_attributes() {
    let (_, fs) = memory();
    fs.write("file", "x").unwrap();
    fs.hard_link("file", "second").unwrap();
    assert_eq!(fs.metadata("second").unwrap().nlink(), 2);
    assert_eq!(fs.metadata("second").unwrap().ino(), fs.metadata("file").unwrap().ino());
    fs.remove_file("file").unwrap();
    assert_eq!(fs.metadata("second").unwrap().nlink(), 1);
    fs.set_permissions("second", 0o4711).unwrap();
    assert_eq!(fs.metadata("second").unwrap().permissions(), 0o4711);
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123);
    fs.set_times("second", None, Some(then)).unwrap();
    assert_eq!(fs.metadata("second").unwrap().modified(), then);
    fs.set_xattr("second", "user.small", b"value").unwrap();
    fs.set_xattr("second", "user.large", &[9; 50_000]).unwrap();
    assert_eq!(fs.xattr("second", "user.large").unwrap().unwrap(), [9; 50_000]);
    let names: BTreeSet<_> = fs.xattrs("second").unwrap().into_iter().collect();
    assert_eq!(names, ["user.small", "user.large"].into_iter().map(Into::into).collect());
    fs.remove_xattr("second", "user.large").unwrap();
    assert_eq!(fs.xattr("second", "user.large").unwrap(), None);
    assert_eq!(errno(fs.remove_xattr("second", "user.large")), 61);
    fs.write("third", "y").unwrap();
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    fs.rename_with("second", "third", exchange).unwrap();
    assert_eq!(fs.read("third").unwrap(), b"x");
    let keep = RenameFlags { no_replace: true, ..RenameFlags::default() };
    assert_eq!(errno(fs.rename_with("second", "third", keep)), 17);
}

#[test]
fn an_unlinked_file_lives_as_long_as_its_handle() {
    let (_, fs) = memory();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "gone").unwrap();
    file.write_all_at(&[5; 50_000], 0).unwrap();
    fs.remove_file("gone").unwrap();
    let mut back = vec![0; 50_000];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [5; 50_000]);
    drop(file);
    wait_for_objects(&fs, 1);
}

#[test]
fn several_images_are_used_from_several_threads() {
    fn share<T: Send + Sync + Clone>(value: &T) -> T {
        value.clone()
    }
    let images: Vec<_> = (0..2).map(|_| memory()).collect();
    std::thread::scope(|scope| {
        for (_, fs) in &images {
            for thread in 0..4 {
                let fs = share(fs);
                scope.spawn(move || {
                    for index in 0..25 {
                        let path = format!("{thread}-{index}");
                        let file = fs.create_file(&path).unwrap();
                        file.write_all_at(path.repeat(1000).as_bytes(), 0).unwrap();
                        file.sync_all().unwrap();
                    }
                });
            }
        }
    });
    for (device, _) in &images {
        let again = Filesystem::open_device(device.snapshot(), ImageOptions::default()).unwrap();
        for thread in 0..4 {
            for index in 0..25 {
                let path = format!("{thread}-{index}");
                assert_eq!(again.read(&path).unwrap(), path.repeat(1000).as_bytes());
            }
        }
    }
}

#[test]
fn images_are_files_that_one_process_has_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let fs = Filesystem::create(&path, 32 << 20, &FormatOptions::default()).unwrap();
    fs.write("file", "contents").unwrap();
    assert_eq!(errno(Filesystem::open(&path, ImageOptions::default())), 16);
    fs.close().unwrap();
    assert_eq!(errno(Filesystem::create(&path, 32 << 20, &FormatOptions::default())), 17, "not overwritten");
    let fs = Filesystem::open(&path, ImageOptions::read_only()).unwrap();
    let second_reader = Filesystem::open(&path, ImageOptions::read_only()).unwrap();
    assert_eq!(fs.read("file").unwrap(), second_reader.read("file").unwrap());
    assert_eq!(errno(Filesystem::open(folder.path().join("none"), ImageOptions::default())), 2);
}

#[test]
fn an_inode_knows_its_paths() {
    let device = MemoryDevice::new(32 << 20);
    format_device(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Filesystem::open_device(device, ImageOptions::default()).unwrap();
    fs.create_dir_all("one/two").unwrap();
    fs.write("one/two/file", "contents").unwrap();
    fs.hard_link("one/two/file", "second").unwrap();
    fs.rename("one", "renamed").unwrap();
    let file = fs.metadata("second").unwrap().ino();
    assert_eq!(fs.paths(file).unwrap(), [b"/renamed/two/file".to_vec(), b"/second".to_vec()]);
    assert_eq!(fs.paths(1).unwrap(), [b"/".to_vec()]);
    assert_eq!(errno(fs.paths(1 << 40)), 116);
    let plain = MemoryDevice::new(32 << 20);
    let format = FormatOptions::new().parent_pointers(false);
    format_device(plain.clone(), &format).unwrap();
    let fs = Filesystem::open_device(plain, ImageOptions::default()).unwrap();
    assert!(fs.paths(1).unwrap_err().to_string().contains("--parent-pointers on"));
}

/// A sparse file may be larger than all memory: an error like that of `std::fs::read`, and nothing is filled with zeros first.
#[test]
fn the_contents_of_a_file_that_no_memory_holds_are_refused() {
    let (_device, fs) = memory();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "sparse").unwrap();
    file.write_all_at(b"start", 0).unwrap();
    file.set_len(1 << 62).unwrap();
    let error = fs.read("sparse").unwrap_err();
    assert!(error.to_string().contains("4611686018427387904 bytes at once"), "{error}");
    assert_eq!(errno(fs.read("sparse")), 12);
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::OutOfMemory);
    let mut buffer = [0; 8];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"start\0\0\0");
}

/// Each call moves its future a few times before the first poll. Steps that few calls need are boxed where
/// they begin.
#[test]
fn futures_of_writes_are_small() {
    let fs = Filesystem::in_memory(32 << 20).unwrap();
    let (engine, ino, data) = (fs.engine(), 1, Default::default);
    let bytes = [
        size_of_val(&engine.write_what_fits(ino, 0, data(), false)),
        size_of_val(&engine.append(ino, data(), false)),
    ];
    assert!(bytes.iter().all(|bytes| *bytes <= 1024), "{bytes:?}");
}
