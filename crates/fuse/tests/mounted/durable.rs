//! Attributes that must be there after a kill or an unmount.

use super::TestMount;
use crate::support::{Setup, TestFilesystem};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use syncline_device::{AlignedBuf, block_on};
use syncline_fs::types::{Attributes, ROOT};

const SET_FLAGS: libc::c_ulong = 0x4008_6602;
const NO_DUMP: libc::c_int = 0x40;

fn found(left: &TestFilesystem, name: &str) -> Attributes {
    block_on(left.fs.lookup(ROOT, name.as_bytes())).unwrap()
}

#[test]
fn with_sync_truncating_openings_and_flags_outlive_a_killed_daemon() {
    let setup = Setup { in_file: true, synchronous: true, direct_io: true, ..Setup::default() };
    let Some(mut mount) = TestMount::with(setup) else { return };
    let (emptied, flagged) = (mount.path().join("emptied"), mount.path().join("flagged"));
    fs::write(&emptied, [1; 10_000]).unwrap();
    fs::write(&flagged, "x").unwrap();
    let file = File::open(&flagged).unwrap();
    let flags = NO_DUMP;
    // SAFETY: the command reads an int at the pointer.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), SET_FLAGS as _, &raw const flags) }, 0);
    drop(file);
    let flags_last = TestFilesystem::open(&copy_of(&mount.image()));
    let ino = found(&flags_last, "flagged").ino;
    assert!(block_on(flags_last.fs.file_flags(ino)).unwrap().no_dump, "flags");
    flags_last.close();
    OpenOptions::new().write(true).truncate(true).open(&emptied).unwrap();
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    assert_eq!(found(&left, "emptied").size, 0, "O_TRUNC");
    left.close();
}

/// A copy of the image at this moment.
fn copy_of(image: &Path) -> std::path::PathBuf {
    let copy = image.with_extension("copy");
    fs::copy(image, &copy).unwrap();
    copy
}

/// Reads a file some time after it was made, bypassing the page cache.
fn read_later(path: &Path) {
    std::thread::sleep(Duration::from_millis(20));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    file.read_exact_at(&mut AlignedBuf::zeroed(4096), 0).unwrap();
}

#[test]
fn access_times_outlive_an_unmount_and_with_an_fsync_a_kill() {
    for killed in [false, true] {
        let Some(mut mount) = TestMount::with(Setup { in_file: true, ..Setup::default() }) else { return };
        let path = mount.path().join("file");
        // More than a sync puts into the log, so it is placed, with the inode, at the end.
        fs::write(&path, [1; 65536]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        read_later(&path);
        let image = mount.image();
        let left = if killed {
            file.sync_all().unwrap();
            mount.kill_daemon();
            TestFilesystem::open(&image)
        } else {
            drop(file);
            crate::support::unmount(&mount.path());
            mount.wait_for_the_end();
            TestFilesystem::open(&image)
        };
        let attributes = found(&left, "file");
        assert!(attributes.atime > attributes.mtime, "killed: {killed}, {attributes:?}");
        left.close();
    }
}
