//! What the kernel kept and nobody could take is told, and replaces nothing.

use super::{APPEND_ONLY, PAGE, contents, make, mount_in_file, set_flags, setup, sync_another};
use crate::files::Mapping;
use crate::pattern;
use crate::support::{TestFilesystem, TestMount, errno};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const IMMUTABLE: libc::c_int = 0x10;

/// A full filesystem is told by fsync and close. What was synced before is there.
#[test]
fn a_full_filesystem_is_told_by_fsync_and_close() {
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    let synced = pattern(1 << 20, 4);
    let mut kept = make(&path("kept"));
    kept.write_all(&synced).unwrap();
    kept.sync_all().unwrap();
    let file = make(&path("large"));
    let piece = pattern(1 << 20, 5);
    // More than the image has.
    let refused = (0..100u64).find_map(|at| file.write_all_at(&piece, at << 20).err());
    assert!(refused.is_none_or(|error| error.raw_os_error() == Some(libc::ENOSPC)));
    for _ in 0..3 {
        assert_eq!(errno(file.sync_all()), libc::ENOSPC, "as long as something is missing");
    }
    assert_eq!(errno(fs::rename(path("large"), path("kept"))), libc::ENOSPC, "it replaces nothing");
    // Readers see what is there, and not what is lost.
    let there = fs::read(path("large")).unwrap();
    let whole =
        there.chunks(PAGE).zip(piece.chunks(PAGE).cycle()).take_while(|(one, other)| one == other).count();
    assert!(there[whole * PAGE..].contains(&0), "something is lost");
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"short", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // close(2).
    let file = make(&path("larger"));
    (0..100u64).for_each(|at| drop(file.write_all_at(&piece, at << 20)));
    // SAFETY: the descriptor is nobody else's any more.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    assert_eq!((closed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOSPC)));
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    assert!(contents(&left, "kept") == synced);
    assert_eq!(contents(&left, "large"), b"short");
    left.close();
}

/// Hundreds of requests that find no room leave some for others.
#[test]
fn a_full_filesystem_answers_others() {
    let Some(mount) = mount_in_file() else { return };
    let root = mount.path();
    let file = make(&root.join("large"));
    std::thread::scope(|scope| {
        let written = scope.spawn(move || {
            let piece = pattern(1 << 20, 5);
            (0..500u64).for_each(|at| drop(file.write_all_at(&piece, at << 20)));
        });
        let mut longest = Duration::ZERO;
        while !written.is_finished() {
            let begun = Instant::now();
            assert!(!root.join("nothing").exists() && File::open(&root).is_ok());
            mount.requests("Lookup");
            longest = longest.max(begun.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(longest < Duration::from_secs(3), "{longest:?}");
    });
    mount.unmount();
}

/// P3, for a program that does not look at what close(2) returns.
#[test]
fn half_a_file_that_was_closed_replaces_no_whole_one() {
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    let whole = pattern(1 << 20, 4);
    fs::write(path("whole"), &whole).unwrap();
    let half = make(&path("half"));
    let piece = pattern(1 << 20, 5);
    (0..100u64).for_each(|at| drop(half.write_all_at(&piece, at << 20)));
    drop(half);
    // The kernel tells of a close a moment later.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(errno(fs::rename(path("half"), path("whole"))), libc::ENOSPC);
    fs::remove_file(path("half")).unwrap();
    sync_another(&mount);
    mount.kill_daemon();
    let left = TestFilesystem::open(&mount.image());
    assert!(contents(&left, "whole") == whole);
    left.close();
}

/// A page of which a part is written again has the rest as it was read.
#[test]
fn a_lost_page_is_not_whole_when_a_part_of_it_is_written() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("file");
    fs::write(&path, [b'a'; PAGE]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let flags = File::open(&path).unwrap();
    set_flags(&flags, APPEND_ONLY).unwrap();
    // The first write(2) is refused, as the kernel asks; what was stored is lost.
    let mapping = Mapping::new(&file, PAGE, libc::MAP_SHARED);
    (0..1000).for_each(|at| mapping.set(at, b'b'));
    drop(mapping);
    assert!(file.sync_all().is_err());
    set_flags(&flags, 0).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // One write(2) is told.
    let _ = file.write_all_at(&[b'c'; 100], 2000);
    file.write_all_at(&[b'c'; 100], 2000).unwrap();
    for _ in 0..3 {
        assert_eq!(errno(file.sync_all()), libc::EPERM, "what was stored is still missing");
    }
    assert_eq!(fs::read(&path).unwrap()[..1000], [b'a'; 1000]);
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    drop((file, flags));
    mount.unmount();
}

/// The kernel drops what it keeps when its connection ends. The daemon goes on for a moment, and
/// names nothing that it does not have (P3).
#[test]
fn an_end_of_the_connection_names_no_half_files() {
    const LEN: usize = 15 << 20;
    let Some(mut mount) = mount_in_file() else { return };
    let root = mount.path();
    let path = |name: &str| root.join(name);
    fs::write(path("kept"), "whole").unwrap();
    sync_another(&mount);
    let file = make(&path("temporary"));
    file.write_all_at(&pattern(LEN, 7), 0).unwrap();
    std::thread::scope(|scope| {
        let renamed = scope.spawn(|| fs::rename(path("temporary"), path("kept")));
        // It comes page by page.
        while mount.requests("Rename") + mount.requests("Rename2") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(10));
        let at = std::ffi::CString::new(root.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the string ends with a NUL. (It is in use, but its connection ends.)
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_FORCE) };
        assert!(renamed.join().unwrap().is_err(), "it ended before it was cut off");
    });
    drop(file);
    mount.wait_for_the_end();
    let left = TestFilesystem::open(&mount.image());
    let found = contents(&left, "kept");
    assert!(found == b"whole" || found == pattern(LEN, 7), "half a file, of {} bytes", found.len());
    left.close();
}

/// Whoever looks at the file in between.
#[test]
fn a_write_to_what_has_become_immutable_is_refused_at_once() {
    let Some(mount) = TestMount::with(setup()) else { return };
    let path = mount.path().join("file");
    let file = make(&path);
    let flags = File::open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    set_flags(&flags, IMMUTABLE).unwrap();
    for _ in 0..2 {
        assert_eq!(fs::metadata(&path).unwrap().len(), 6);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(errno(file.write_all_at(b"behind", 0)), libc::EPERM);
    }
    set_flags(&flags, 0).unwrap();
    file.write_all_at(b"behind", 0).unwrap();
    file.sync_all().unwrap();
    drop((file, flags));
    mount.unmount();
}

#[test]
fn a_killed_daemon_takes_what_was_kept_along_and_says_so() {
    let Some(mut mount) = mount_in_file() else { return };
    let path = mount.path().join("file");
    let file = make(&path);
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&pattern(100_000, 6), 6).unwrap();
    mount.kill_daemon();
    let error = file.sync_all().unwrap_err();
    let gone = syncline_fuse::daemon_has_gone(&error) || error.raw_os_error() == Some(libc::EIO);
    assert!(gone, "{error:?}");
    assert!(file.sync_all().is_err(), "and again");
    let left = TestFilesystem::open(&mount.image());
    assert_eq!(contents(&left, "file"), b"synced");
    left.close();
}
