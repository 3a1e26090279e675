//! fallocate through a mount: system calls and `fallocate`.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{no_fuse, not_root};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const EBADF: i32 = 9;
const EINVAL: i32 = 22;
const EFBIG: i32 = 27;
const EOPNOTSUPP: i32 = 95;
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;

fn ask(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), i32> {
    fallocate(file, flags, offset, len).map_err(|error| error.raw_os_error())
}

#[test]
fn holes_are_punched_and_ranges_zeroed() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    let mut expected: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8 | 1).collect();
    fs::write(&path, &expected).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    let blocks = file.metadata().unwrap().blocks();
    // The kernel's cached pages must be dropped too.
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(ask(&file, PUNCH, 5000, 500_000), Ok(()));
    expected[5000..505_000].fill(0);
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert!(file.metadata().unwrap().blocks() + 121 * 8 <= blocks, "the room is free at once");
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap(), 8192);
    assert_eq!(ask(&file, ZERO | FallocateFlags::KEEP_SIZE, 900_000, 500_000), Ok(()));
    expected[900_000..].fill(0);
    assert_eq!(file.metadata().unwrap().len(), 1_000_000);
    assert_eq!(ask(&file, ZERO, 999_000, 500_000), Ok(()));
    expected.resize(1_499_000, 0);
    assert_eq!(file.metadata().unwrap().len(), 1_499_000);
    drop(file);
    for _ in 0..2 {
        assert_eq!(fs::read(&path).unwrap(), expected);
        ground.remount();
    }
    let mut dig = Command::new("fallocate");
    if dig.args(["--dig-holes"]).arg(&path).status().is_ok_and(|status| status.success()) {
        assert_eq!(fs::read(&path).unwrap(), expected);
    }
    ground.end();
}

#[test]
fn errors_are_those_of_linux() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let file = File::create(ground.path("file")).unwrap();
    assert_eq!(ask(&file, PUNCH, 0, 0), Err(EINVAL));
    assert_eq!(ask(&file, PUNCH, u64::MAX >> 1, 2), Err(EFBIG));
    assert_eq!(ask(&file, FallocateFlags::PUNCH_HOLE, 0, 4096), Err(EOPNOTSUPP));
    assert_eq!(ask(&file, FallocateFlags::from_bits_retain(0x4000), 0, 4096), Err(EOPNOTSUPP));
    // The kernel still asks after an unsupported mode was refused.
    assert_eq!(ask(&file, PUNCH, 0, 4096), Ok(()));
    let reader = File::open(ground.path("file")).unwrap();
    assert_eq!(ask(&reader, PUNCH, 0, 4096), Err(EBADF));
    let directory = File::open(ground.path("")).unwrap();
    assert!(matches!(ask(&directory, PUNCH, 0, 4096), Err(9 | 21)));
    drop((file, reader, directory));
    assert_eq!(errno(fs::remove_file(ground.path("file"))), None);
    ground.end();
}

/// Without CAP_FSETID setuid is dropped, as on ext4 and xfs, and as by a write.
#[test]
fn privileges_are_lost_as_with_a_write() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, [1; 10_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(ask(&file, PUNCH, 0, 4096), Ok(()));
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o4777, "root keeps it");
    drop(file);
    ground.end();
}

/// Preallocated room exists even when the image is full, also after a remount.
#[test]
fn preallocated_room_is_there_when_the_image_is_full() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    let len = 20 << 20;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    assert_eq!(ask(&file, FallocateFlags::empty(), 0, len), Ok(()));
    assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().blocks()), (len, len / 512));
    assert_eq!(ask(&file, FallocateFlags::KEEP_SIZE, len, 1 << 20), Ok(()));
    assert_eq!(file.metadata().unwrap().len(), len);
    assert_eq!(ask(&file, FallocateFlags::empty(), 0, 1 << 30), Err(28));
    assert_eq!(file.metadata().unwrap().len(), len);
    file.sync_all().unwrap();
    drop(file);
    ground.remount();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), (len + (1 << 20)) / 512);
    let rest = File::create(ground.path("rest")).unwrap();
    let mut at = 0;
    for piece in [1 << 20, 4096] {
        let data = vec![7; piece];
        // Synced as it is written, since the kernel's cache would hold it all.
        while rest.write_all_at(&data, at).and_then(|()| rest.sync_data()).is_ok() {
            at += piece as u64;
        }
    }
    drop(rest);
    let expected: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for (index, piece) in expected.chunks(100_000).enumerate() {
        file.write_all_at(piece, index as u64 * 100_000).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    ground.remount();
    assert!(fs::read(&path).unwrap() == expected);
    ground.end();
}
