//! Real files, with and without io_uring, with and without direct I/O, on disk and on tmpfs.

mod counts;

use super::*;
use crate::{DeviceExt, block_on};
use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt as _, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Every way to open a file.
fn ways() -> Vec<OpenOptions> {
    let uses = [Use::Auto, Use::Never];
    uses.iter()
        .flat_map(|&direct| {
            uses.map(|io_uring| OpenOptions { direct, io_uring, punch_holes: true, ..OpenOptions::default() })
        })
        .collect()
}

/// A directory on disk (if the machine keeps temporary files on one), and one on tmpfs.
fn places() -> Vec<TempDir> {
    let mut places = vec![tempfile::tempdir().unwrap()];
    if Path::new("/dev/shm").is_dir() {
        places.push(tempfile::tempdir_in("/dev/shm").unwrap());
    }
    places
}

fn make(path: &Path, size_bytes: u64, options: OpenOptions) -> Arc<FileDevice> {
    FileDevice::create(path, Some(size_bytes), false, options, &mut |_| {}).unwrap()
}

/// Opens an image that nobody holds. Another test may be starting a process just now, and between
/// fork and exec the child has a copy of each of our descriptors, including locks: so "in use" is
/// believed only if it lasts.
fn open(path: impl AsRef<Path>, options: OpenOptions) -> Arc<FileDevice> {
    patiently(|| FileDevice::open(&path, options)).unwrap()
}

/// Takes over an existing file, as patiently as `open`.
fn take_over(path: impl AsRef<Path>, size_bytes: Option<u64>, force: bool) -> Arc<FileDevice> {
    patiently(|| FileDevice::create(&path, size_bytes, force, OpenOptions::default(), &mut |_| {})).unwrap()
}

fn patiently(
    mut open: impl FnMut() -> Result<Arc<FileDevice>, DeviceError>,
) -> Result<Arc<FileDevice>, DeviceError> {
    let start = Instant::now();
    loop {
        match open() {
            Err(DeviceError::InUse { .. }) if start.elapsed() < Duration::from_secs(120) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

/// A 1 MiB image in a directory of its own.
fn image() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    drop(make(&path, MIB, OpenOptions::default()));
    (place, path)
}

fn pattern(seed: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| ((at / 512) * 31 + at + seed * 7) as u8).collect()
}

#[test]
fn what_was_written_is_read_back_whichever_way() {
    for place in places() {
        for (number, options) in ways().into_iter().enumerate() {
            let path = place.path().join(format!("image{number}"));
            let device = make(&path, MIB, options);
            let data = pattern(number, 64 << 10);
            // Pieces of several sizes; some at addresses that direct I/O refuses.
            let mut padded = vec![0; 80];
            padded.extend_from_slice(&data[..20 << 10]);
            let crooked = Bytes::from(padded).slice(80..);
            let bufs = vec![
                crooked.slice(..4096),
                crooked.slice(4096..),
                AlignedBuf::copy_from(&data[20 << 10..60 << 10]).into_bytes(),
                Bytes::from(data[60 << 10..].to_vec()),
            ];
            block_on(device.write_at(8192, bufs)).unwrap();
            block_on(device.flush_all()).unwrap();
            let read = block_on(device.read_at(4096, 72 << 10)).unwrap();
            assert!(read[..4096].iter().all(|&byte| byte == 0), "{options:?}");
            assert_eq!(&read[4096..][..64 << 10], data, "{options:?}");
            assert!(read[68 << 10..].iter().all(|&byte| byte == 0), "{options:?}");
            block_on(device.discard_at(8192, 64 << 10)).unwrap();
            block_on(device.read_at(0, MIB as usize)).unwrap();
            drop(device);
            assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
        }
    }
}

#[test]
fn an_image_file_keeps_its_room_unless_it_is_chosen_to_give_it_back() {
    for place in places() {
        let path = place.path().join("image");
        drop(FileDevice::create(&path, Some(MIB), false, OpenOptions::default(), &mut |_| {}).unwrap());
        let taken = || fs::metadata(&path).unwrap().blocks() * 512;
        let device = open(&path, OpenOptions::default());
        assert!(!device.discards());
        let error = block_on(device.discard_at(0, MIB)).unwrap_err();
        assert_eq!(error.io_error().unwrap().raw_os_error(), Some(libc::EOPNOTSUPP));
        drop(device);
        assert!(taken() >= MIB);
        let device = open(&path, OpenOptions { punch_holes: true, ..OpenOptions::default() });
        assert!(device.discards());
        block_on(device.discard_at(0, MIB)).unwrap();
        drop(device);
        assert!(taken() < MIB / 2);
    }
}

#[test]
fn a_write_of_more_pieces_than_one_call_takes_is_continued() {
    let (_place, path) = image();
    for options in ways() {
        // The usual small image can't hold so many pieces of 4 KiB, so make a larger one.
        let big = path.with_extension("big");
        let device =
            patiently(|| FileDevice::create(&big, Some(16 * MIB), true, options, &mut |_| {})).unwrap();
        let data = pattern(3, 2500 * 4096);
        let whole = AlignedBuf::copy_from(&data).into_bytes();
        let bufs: Vec<Bytes> = (0..2500).map(|at| whole.slice(at * 4096..(at + 1) * 4096)).collect();
        block_on(device.write_at(4096, bufs)).unwrap();
        assert_eq!(&block_on(device.read_at(4096, data.len())).unwrap()[..], data);
    }
}

#[test]
fn many_operations_from_many_threads() {
    let place = tempfile::tempdir().unwrap();
    for (number, options) in ways().into_iter().enumerate() {
        let device = make(&place.path().join(number.to_string()), 8 * MIB, options);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    let start = thread * 2 * MIB;
                    let block = |at: u64| pattern((thread * 1000 + at) as usize, 4096);
                    let writes: Vec<_> = (0..200)
                        .map(|at| device.write_at(start + at * 4096, vec![Bytes::from(block(at))]))
                        .collect();
                    writes.into_iter().for_each(|write| block_on(write).unwrap());
                    block_on(device.flush_all()).unwrap();
                    let reads: Vec<_> = (0..200).map(|at| device.read_at(start + at * 4096, 4096)).collect();
                    for (at, read) in reads.into_iter().enumerate() {
                        assert_eq!(&block_on(read).unwrap()[..], block(at as u64));
                    }
                });
            }
        });
    }
}

#[test]
fn a_write_outlives_its_caller() {
    let (_place, path) = image();
    for options in ways() {
        let device = open(&path, options);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..64 {
                    drop(device.write_at(at * 4096, vec![Bytes::from(vec![0xee; 4096])]));
                }
            });
        });
        // The device is dropped too; operations in flight still end, and the lock lasts until then.
        drop(device);
        let device = open(&path, options);
        let read = block_on(device.read_at(0, 64 * 4096)).unwrap();
        assert!(read.iter().all(|&byte| byte == 0xee), "{options:?}");
        block_on(device.write_at(0, vec![Bytes::from(vec![0; 64 * 4096])])).unwrap();
    }
}

#[test]
fn the_end_of_a_truncated_file_is_an_error_and_never_zeros() {
    let (_place, path) = image();
    for options in ways() {
        fs::File::options().write(true).open(&path).unwrap().set_len(MIB).unwrap();
        let device = open(&path, options);
        // In the middle of a block: the rest of that block is incomplete.
        fs::File::options().write(true).open(&path).unwrap().set_len(MIB / 2 + 100).unwrap();
        for (offset, len) in [(MIB / 2 - 4096, 16384), (MIB / 2, 4096), (MIB - 4096, 4096)] {
            match block_on(device.read_at(offset, len)) {
                Err(DeviceError::Io { source, .. }) => {
                    assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof, "{options:?}")
                }
                other => panic!("{options:?}: {other:?}"),
            }
        }
        block_on(device.read_at(0, (MIB / 2) as usize)).unwrap();
    }
}

#[test]
fn ranges_that_are_crooked_or_outside_are_refused() {
    let (_place, path) = image();
    let device = open(&path, OpenOptions::default());
    assert!(block_on(device.read_at(MIB, 4096)).is_err());
    assert!(block_on(device.read_at(512, 4096)).is_err());
    assert!(block_on(device.read_at(0, usize::MAX - 4095)).is_err());
    assert!(block_on(device.write_at(MIB - 4096, vec![Bytes::from(vec![0; 8192])])).is_err());
    assert!(block_on(device.write_at(0, vec![Bytes::from(vec![0; 100])])).is_err());
    assert!(block_on(device.discard_at(MIB, 4096)).is_err());
    block_on(device.write_at(0, Vec::new())).unwrap();
    assert!(block_on(device.read_at(MIB, 0)).unwrap().is_empty());
}

#[test]
fn a_read_only_device_changes_nothing() {
    let (_place, path) = image();
    let device = open(&path, OpenOptions { read_only: true, ..Default::default() });
    let is_refusal = |result: Result<(), DeviceError>| {
        result.unwrap_err().io_error().unwrap().raw_os_error() == Some(libc::EROFS)
    };
    assert!(is_refusal(block_on(device.write_at(0, vec![Bytes::from(vec![1; 4096])]))));
    assert!(is_refusal(block_on(device.discard_at(0, 4096))));
    assert!(block_on(device.read_at(0, 4096)).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn one_writer_or_many_readers() {
    let (_place, path) = image();
    let reading = OpenOptions { read_only: true, ..Default::default() };
    let writer = open(&path, OpenOptions::default());
    let is_in_use = |options| matches!(FileDevice::open(&path, options), Err(DeviceError::InUse { .. }));
    assert!(is_in_use(OpenOptions::default()));
    assert!(is_in_use(reading));
    assert!(matches!(
        FileDevice::create(&path, None, true, OpenOptions::default(), &mut |_| {}),
        Err(DeviceError::InUse { .. })
    ));
    // Closing another descriptor of the same file must not release the lock, as it would a classic
    // POSIX lock.
    drop(fs::File::open(&path).unwrap());
    assert!(is_in_use(reading));
    drop(writer);
    let (first, second) = (open(&path, reading), open(&path, reading));
    assert!(is_in_use(OpenOptions::default()));
    drop((first, second));
    open(&path, OpenOptions::default());
}

/// Operations that a process requested before it ended keep its files open. So does a mapping,
/// without any process having a descriptor.
#[test]
fn what_no_process_has_is_waited_for() {
    if !super::strangers::can_be_told() {
        return eprintln!("skipped: only root sees that no process has it");
    }
    let (_place, path) = image();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    assert!(super::lock::lock(&file, false, &super::loops::WHOLE).unwrap());
    // SAFETY: a mapping of the file that is never accessed.
    let map = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(map, libc::MAP_FAILED);
    drop(file);
    let (map, started) = (map as usize, Instant::now());
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2500));
        // SAFETY: it is the mapping made above.
        assert_eq!(unsafe { libc::munmap(map as *mut libc::c_void, 4096) }, 0);
    });
    FileDevice::open(&path, OpenOptions::default()).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(2), "it was held until then");
    ends.join().unwrap();
}

/// A snapshot does not block those who write to an image, but blocks those who make a new one of
/// it.
#[test]
fn no_image_is_made_over_a_snapshot_in_use() {
    let (_place, path) = image();
    let beside = OpenOptions { read_only: true, beside_writer: true, ..OpenOptions::default() };
    let reader = open(&path, beside);
    assert!(reader.claim_snapshot(7, crate::Claim::Shared).unwrap());
    let again = patiently(|| FileDevice::create(&path, None, true, OpenOptions::default(), &mut |_| {}));
    assert!(matches!(again, Err(DeviceError::SnapshotInUse { .. })));
    open(&path, OpenOptions::default());
    assert!(reader.claim_snapshot(7, crate::Claim::Released).unwrap());
    take_over(&path, None, true);
}

const CHILD_PATH: &str = "SYNCLINE_TEST_LOCKED_IMAGE";

/// Does something only with the variable set: the test below runs it in a process of its own.
#[test]
fn child_of_the_lock_test() {
    if let Some(path) = std::env::var_os(CHILD_PATH) {
        let answer = FileDevice::open(PathBuf::from(path), OpenOptions::default());
        assert!(matches!(answer, Err(DeviceError::InUse { .. })), "the other process holds it");
    }
}

#[test]
fn another_process_is_kept_out() {
    let (_place, path) = image();
    let run_child = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::tests::child_of_the_lock_test"])
            .env(CHILD_PATH, &path)
            .output()
            .unwrap()
    };
    let device = open(&path, OpenOptions::default());
    let output = run_child();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    drop(device);
    let start = Instant::now();
    while run_child().status.success() {
        assert!(start.elapsed() < Duration::from_secs(120), "nobody holds it any more, so the child gets it");
    }
}

#[test]
fn a_new_image_is_allocated_and_written_whole() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("new");
    let mut heard = Vec::new();
    let device = FileDevice::create(&path, Some(9 * MIB + 4095), false, OpenOptions::default(), &mut |at| {
        heard.push(at)
    })
    .unwrap();
    assert_eq!(device.size_bytes(), 9 * MIB);
    assert_eq!(heard, [4 * MIB, 8 * MIB, 9 * MIB]);
    let metadata = fs::metadata(&path).unwrap();
    assert!(metadata.blocks() * 512 >= 9 * MIB);
    drop(device);

    // All zeros: taken over without force, at its own size or another.
    drop(take_over(&path, None, false));
    fs::File::options().write(true).open(&path).unwrap().write_all(b"somebody's superblock").unwrap();
    let refused =
        patiently(|| FileDevice::create(&path, Some(2 * MIB), false, OpenOptions::default(), &mut |_| {}));
    assert!(matches!(refused, Err(DeviceError::NotEmpty { .. })));
    let device = take_over(&path, Some(2 * MIB), true);
    assert_eq!(device.size_bytes(), 2 * MIB);
    assert!(block_on(device.read_at(0, 2 * MIB as usize)).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn an_image_that_cannot_be_made_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("huge");
    for size in [None, Some(0), Some(100), Some(1 << 62), Some(u64::MAX)] {
        let failed = FileDevice::create(&path, size, false, OpenOptions::default(), &mut |_| {});
        assert!(matches!(failed, Err(DeviceError::Create { .. })), "{size:?}");
        assert!(!path.exists(), "{size:?}");
    }
    let missing = FileDevice::open(place.path().join("missing"), OpenOptions::default());
    assert!(matches!(missing, Err(DeviceError::Open { .. })));
    assert!(matches!(FileDevice::open(place.path(), OpenOptions::default()), Err(DeviceError::Open { .. })));
}

/// Failing to create an image removes the failed one, but nothing that someone else has meanwhile
/// made at its path.
#[test]
fn who_fails_to_make_an_image_leaves_that_of_another() {
    let place = places().pop().unwrap();
    let path = place.path().join("image");
    let ended = std::sync::atomic::AtomicBool::new(false);
    let create = |size| FileDevice::create(&path, Some(size), true, OpenOptions::default(), &mut |_| {});
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert!(create(1 << 62).is_err());
                }
            });
        }
        let started = Instant::now();
        let (mut made, mut lost) = (0, 0);
        while started.elapsed() < Duration::from_secs(3) {
            let Ok(device) = create(64 << 10) else { continue };
            let inode = device.file.file.metadata().unwrap().ino();
            made += 1;
            std::thread::sleep(Duration::from_micros(300));
            lost += u32::from(!fs::metadata(&path).is_ok_and(|metadata| metadata.ino() == inode));
            let _ = fs::remove_file(&path);
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(lost, 0, "of {made} images that were made");
    });
}

/// A loop device over a file, for as long as this lives.
struct Loop(String);

impl Loop {
    /// `None` if the machine or the user can't have one.
    fn attach(path: &Path) -> Option<Self> {
        let output =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output().ok()?;
        output.status.success().then(|| Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_taken_as_it_is_and_held_alone() {
    let (_place, path) = image();
    let Some(attached) = Loop::attach(&path) else {
        eprintln!("no loop device here: not tested");
        return;
    };
    for options in ways() {
        let device = open(&attached.0, options);
        assert!(device.is_block_device());
        assert_eq!(device.size_bytes(), MIB);
        let again = FileDevice::open(&attached.0, options);
        assert!(matches!(again, Err(DeviceError::InUse { .. })));
        let data = AlignedBuf::copy_from(&pattern(5, 64 << 10)).into_bytes();
        block_on(device.write_at(MIB / 2, vec![data.clone()])).unwrap();
        block_on(device.flush_all()).unwrap();
        assert_eq!(&block_on(device.read_at(MIB / 2, 64 << 10)).unwrap()[..], data);
        block_on(device.discard_at(MIB / 2, 64 << 10)).unwrap();
    }
    let too_big = patiently(|| {
        FileDevice::create(&attached.0, Some(2 * MIB), true, OpenOptions::default(), &mut |_| {})
    });
    assert!(matches!(too_big, Err(DeviceError::TakeOver { .. })));
    let device = take_over(&attached.0, None, true);
    assert_eq!(device.size_bytes(), MIB);
}

/// A file that was there before was not made by `create`.
#[test]
fn what_was_taken_over_is_not_taken_away() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    fs::File::create(&path).unwrap().set_len(MIB).unwrap();
    take_over(&path, Some(MIB), false).take_away();
    assert!(path.exists());
    let made = place.path().join("made");
    FileDevice::create(&made, Some(MIB), false, OpenOptions::default(), &mut |_| {}).unwrap().take_away();
    assert!(!made.exists());
}

/// The creator of an image lets readers in and keeps writers out, without a gap.
#[test]
fn what_was_made_can_be_read_beside_its_maker() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    let made = FileDevice::create(&path, Some(MIB), false, OpenOptions::default(), &mut |_| {}).unwrap();
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(FileDevice::open(&path, read_only).is_err());
    made.let_read().unwrap();
    let first = FileDevice::open(&path, read_only).unwrap();
    drop(FileDevice::open(&path, read_only).unwrap());
    assert!(FileDevice::open(&path, OpenOptions::default()).is_err());
    drop((first, made));
    drop(patiently(|| FileDevice::open(&path, OpenOptions::default())).unwrap());
}

/// A loop device that gives a mount its name excludes nobody from the image, dead or alive, and the
/// kernel removes it by itself.
#[test]
fn the_loop_device_of_a_mount_is_no_way_to_its_image() {
    let (_place, path) = image();
    let device = open(&path, OpenOptions::default());
    let named = match device.for_mount(7) {
        Ok(named) => named,
        Err(error) => return eprintln!("skipped: no loop devices here: {error}"),
    };
    assert!(!named.is_image());
    let about = Path::new("/sys/block").join(named.path().file_name().unwrap());
    let behind = fs::read_to_string(about.join("loop/backing_file")).unwrap();
    assert_eq!(Path::new(behind.trim_end()), path.canonicalize().unwrap());
    // As the kernel does for a mount, even a dead one.
    let claimed = ways::open_alone(named.path(), fs::File::options().read(true)).unwrap();
    let second = device.for_mount(7).unwrap();
    assert_ne!(second.path(), named.path(), "another mount has that");
    drop(device);
    let again = open(&path, OpenOptions::default());
    block_on(again.write_at(0, vec![Bytes::from(vec![1; 4096])])).unwrap();
    named.leave_to_mount();
    assert!(about.join("loop/backing_file").exists(), "it lives as long as somebody has it");
    drop(claimed);
    named.remove();
    second.remove();
    assert!(!about.exists());
}

/// Each removes what nobody has; that may be the device that another one is about to open.
#[test]
fn mounts_made_at_once_have_a_device_each() {
    if fs::File::options().write(true).open("/dev/loop-control").is_err() {
        return eprintln!("skipped: no loop devices here");
    }
    std::thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || {
                for _ in 0..40 {
                    let named = MountDevice::called("image", number).unwrap();
                    assert!(named.path().exists());
                    named.remove();
                }
            });
        }
    });
}

/// A location that is no file has a device too.
#[test]
fn a_name_without_a_file_gets_a_loop_device() {
    let Ok(named) = MountDevice::called("nbd://host/export", 9) else {
        return eprintln!("skipped: no loop devices here");
    };
    let about = Path::new("/sys/block").join(named.path().file_name().unwrap());
    let behind = fs::read_to_string(about.join("loop/backing_file")).unwrap();
    assert_eq!(behind.trim_end(), "/memfd:nbd://host/export (deleted)");
    // Nobody can change it.
    let written = fs::File::options().write(true).open(named.path()).and_then(|file| {
        file.write_all_at(&[1; 4096], 0)?;
        file.sync_all()
    });
    assert!(written.is_err());
    named.remove();
    assert!(!about.exists());
}

#[test]
fn others_may_have_a_device_that_was_let_go() {
    let (_place, path) = image();
    let device = open(&path, OpenOptions::default());
    device.let_go();
    let other = open(&path, OpenOptions::default());
    assert!(block_on(device.write_at(0, vec![Bytes::from(vec![1; 4096])])).is_err());
    block_on(other.write_at(0, vec![Bytes::from(vec![2; 4096])])).unwrap();
    block_on(device.read_at(0, 4096)).unwrap();
}

/// The host refuses the size before anything of the file is lost.
#[test]
fn a_sparse_image_of_a_size_that_the_host_refuses_leaves_the_file_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, [7; 12288]).unwrap();
    let options = OpenOptions { sparse: true, ..OpenOptions::default() };
    assert!(FileDevice::create(&path, Some(1 << 62), true, options, &mut |_| {}).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), [7; 12288]);
}
