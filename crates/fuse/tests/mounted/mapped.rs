//! Stores into mapped files, which no request reports.

use super::TestMount;
use super::files::Mapping;
use crate::support::Setup;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use syncline_device::AlignedBuf;

const PAGE: usize = 4096;

fn make(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn seek(file: &File, offset: usize, whence: i32) -> usize {
    // SAFETY: takes no memory.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    usize::try_from(found).unwrap_or_else(|_| panic!("{}", std::io::Error::last_os_error()))
}

#[test]
fn what_is_stored_into_mapped_holes_is_data() {
    let Some(mount) = TestMount::or_skip() else { return };
    let path = mount.path().join("sparse");
    let file = make(&path);
    let len = 256 * PAGE;
    file.set_len(len as u64).unwrap();
    let mapping = Mapping::new(&file, len, libc::MAP_SHARED);
    mapping.set(40 * PAGE + 5, 1);
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), 40 * PAGE);
    assert_eq!(seek(&file, 40 * PAGE, libc::SEEK_HOLE), 41 * PAGE, "what was only read stays a hole");
    // After the question as well as before it, in pages that were read and in others.
    mapping.set(41 * PAGE, 2);
    mapping.set(200 * PAGE + 99, 3);
    let copy = mount.path().join("copy");
    assert!(Command::new("cp").arg(&path).arg(&copy).status().unwrap().success());
    let contents = fs::read(&copy).unwrap();
    assert_eq!(contents.len(), len);
    assert_eq!((contents[40 * PAGE + 5], contents[41 * PAGE], contents[200 * PAGE + 99]), (1, 2, 3));
    assert_eq!(contents.iter().filter(|&&byte| byte != 0).count(), 3);
    drop(mapping);
    // A hole that was read but not stored to stays a hole.
    let untouched = make(&mount.path().join("untouched"));
    untouched.set_len(len as u64).unwrap();
    untouched.write_all_at(b"x", (len - 1) as u64).unwrap();
    fs::read(mount.path().join("untouched")).unwrap();
    assert_eq!(seek(&untouched, 0, libc::SEEK_DATA), len - PAGE);
    drop((file, untouched));
    mount.unmount();
}

/// Many threads ask at once, more than may wait for a write-back; no thread may be told of a hole
/// where there is data.
#[test]
fn many_may_ask_for_data_at_once() {
    let Some(mount) = TestMount::or_skip() else { return };
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let path = mount.path().join(thread.to_string());
            scope.spawn(move || {
                let file = make(&path);
                file.set_len(64 * PAGE as u64).unwrap();
                let mapping = Mapping::new(&file, 64 * PAGE, libc::MAP_SHARED);
                for page in (0..64).rev() {
                    mapping.set(page * PAGE, 1);
                    assert!(seek(&file, 0, libc::SEEK_DATA) <= page * PAGE);
                    assert!(seek(&file, page * PAGE, libc::SEEK_HOLE) >= (page + 1) * PAGE);
                }
            });
        }
    });
    mount.unmount();
}

#[derive(Clone, Copy, Debug)]
enum Growth {
    Truncate,
    Write,
    DirectWrite,
    Allocate,
}

fn grow(file: &File, path: &Path, growth: Growth) {
    const END: u64 = 3 * PAGE as u64;
    match growth {
        Growth::Truncate => file.set_len(END).unwrap(),
        Growth::Write => file.write_all_at(b"y", END - 1).unwrap(),
        Growth::DirectWrite => {
            let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
            direct.write_all_at(&AlignedBuf::copy_from(&[0; PAGE]), END - PAGE as u64).unwrap();
        }
        Growth::Allocate => {
            // SAFETY: takes no memory.
            let done = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, END as i64) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
    }
}

#[test]
fn what_was_stored_behind_the_end_is_gone_when_a_file_grows() {
    let Some(mount) = TestMount::or_skip() else { return };
    for growth in [Growth::Truncate, Growth::Write, Growth::DirectWrite, Growth::Allocate] {
        let path = mount.path().join(format!("{growth:?}"));
        let file = make(&path);
        file.write_all_at(&[b'x'; 100], 0).unwrap();
        let mapping = Mapping::new(&file, PAGE, libc::MAP_SHARED);
        for at in [50, 100, 200, PAGE - 1] {
            mapping.set(at, 1);
        }
        grow(&file, &path, growth);
        // This byte is part of the file now.
        mapping.set(300, 2);
        let mut expected = vec![b'x'; 100];
        expected[50] = 1;
        expected.resize(PAGE, 0);
        expected[300] = 2;
        assert!(mapping.contents() == expected, "{growth:?}, as it is mapped");
        mapping.sync();
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let mut found = AlignedBuf::zeroed(PAGE);
        direct.read_exact_at(&mut found, 0).unwrap();
        assert!(found[..] == expected, "{growth:?}, as it was written back");
        // Growing again takes nothing away.
        file.set_len(5 * PAGE as u64).unwrap();
        direct.read_exact_at(&mut found, 0).unwrap();
        assert!(found[..] == expected && mapping.contents() == expected, "{growth:?}, longer");
    }
    mount.unmount();
}

/// `struct vfs_cap_data` with one capability.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn stores_into_a_mapping_take_no_privileges_away() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    for setup in [Setup::default(), Setup { direct_io: true, ..Setup::default() }] {
        let Some(mount) = TestMount::with(setup) else { return };
        let path = mount.path().join("program");
        let file = make(&path);
        file.write_all_at(&[1; PAGE], 0).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
        setxattr(&path, "security.capability", &CAPABILITY, XattrFlags::CREATE).unwrap();
        let keeps = || {
            let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
            (mode, getxattr(&path, "security.capability", &mut [0u8; 64][..]).is_ok())
        };
        let mapping = Mapping::new(&file, PAGE, libc::MAP_SHARED);
        mapping.set(5, 2);
        mapping.sync();
        assert_eq!(keeps(), (0o6755, true));
        // write(2) by root drops the capabilities, and nothing else.
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(keeps(), (0o6755, false));
        // chown(2) drops all of them, also if it changes no owner.
        setxattr(&path, "security.capability", &CAPABILITY, XattrFlags::CREATE).unwrap();
        std::os::unix::fs::chown(&path, None, None).unwrap();
        assert_eq!(keeps(), (0o755, false));
        drop((mapping, file));
        mount.unmount();
    }
}
