//! Files without a name: O_TMPFILE, and linkat(2), which gives them one.

use super::{Ground, errno};
use crate::skip_if;
use crate::support::{Mount, no_fuse};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn tmpfile(directory: &Path, flags: OFlags) -> std::io::Result<File> {
    // Closed in programs that other tests start meanwhile: a daemon that inherited it would keep
    // the mount busy.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | flags;
    Ok(File::from(open(directory, flags, Mode::from_raw_mode(0o640))?))
}

/// Gives an open file a name, like programs that may not use AT_EMPTY_PATH.
fn name(file: &File, path: &Path) -> std::io::Result<()> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, link, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[test]
fn a_file_without_a_name_is_written_and_named() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    fs::create_dir(ground.path("dir")).unwrap();
    let mut file = tmpfile(&ground.path("dir"), OFlags::empty()).unwrap();
    file.write_all(&[5; 100_000]).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
    assert!(fs::read_dir(ground.path("dir")).unwrap().next().is_none());
    file.sync_all().unwrap();
    name(&file, &ground.path("dir/file")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(errno(name(&file, &ground.path("dir/file"))), Some(17));
    name(&file, &ground.path("second")).unwrap();
    if crate::support::is_root() {
        linkat(&file, "", CWD, ground.path("third"), AtFlags::EMPTY_PATH).unwrap();
    }
    let ino = file.metadata().unwrap().ino();
    drop(file);
    for _ in 0..2 {
        assert_eq!(fs::read(ground.path("dir/file")).unwrap(), [5; 100_000]);
        assert_eq!(fs::metadata(ground.path("second")).unwrap().ino(), ino);
        ground.remount();
    }
    ground.end();
}

#[test]
fn a_file_that_gets_no_name_leaves_nothing() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let files = || rustix::fs::statvfs(ground.path("")).map(|all| all.f_files - all.f_ffree).unwrap();
    let before = files();
    for index in 0..20 {
        let mut file = tmpfile(&ground.path(""), OFlags::empty()).unwrap();
        file.write_all(&vec![1; index * 10_000]).unwrap();
    }
    // Removed in the background, once the kernel has reported that they are closed.
    crate::support::eventually("the files are gone", || files() == before);
    ground.end();
}

#[test]
fn an_exclusive_one_can_never_be_named() {
    skip_if!(no_fuse());
    let ground = Ground::new();
    let exclusive = tmpfile(&ground.path(""), OFlags::EXCL).unwrap();
    assert_eq!(errno(name(&exclusive, &ground.path("file"))), Some(2));
    // Nor can a file that once had a name.
    let file = File::create(ground.path("named")).unwrap();
    fs::remove_file(ground.path("named")).unwrap();
    assert_eq!(errno(name(&file, &ground.path("again"))), Some(2));
    drop((exclusive, file));
    ground.end();
}

#[test]
fn a_crash_leaves_the_named_one_whole_and_of_the_other_nothing() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let mut named = tmpfile(&ground.path(""), OFlags::empty()).unwrap();
    named.write_all(&[7; 70_000]).unwrap();
    named.sync_all().unwrap();
    let mut nameless = tmpfile(&ground.path(""), OFlags::empty()).unwrap();
    nameless.write_all(&[8; 70_000]).unwrap();
    nameless.sync_all().unwrap();
    name(&named, &ground.path("named")).unwrap();
    File::open(ground.path("")).unwrap().sync_all().unwrap();
    let mut mount = ground.mount.take().unwrap();
    let path = mount.path.clone();
    mount.kill();
    drop((named, nameless, mount));
    ground.mount = Some(Mount::new(&ground.place.image(), &path, &[]));
    assert_eq!(fs::read(ground.path("named")).unwrap(), [7; 70_000]);
    let files = || rustix::fs::statvfs(ground.path("")).map(|all| all.f_files - all.f_ffree).unwrap();
    crate::support::eventually("only the root and the file are left", || files() == 2);
    ground.end();
}
