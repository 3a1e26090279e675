//! Names and listings.

use super::TestMount;
use crate::support::{Caches, errno};
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

#[test]
fn names_come_go_and_move() {
    let Some(mount) = TestMount::or_skip() else { return };
    let root = mount.path();
    let at = |name: &str| root.join(name);
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(at("a/one"), "1").unwrap();
    fs::write(at("b/two"), "2").unwrap();
    assert_eq!(errno(File::create_new(at("a/one"))), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(at("a"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(at("a"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(at("none"))), libc::ENOENT);
    // Known not to exist, then created.
    assert!(!at("a/three").exists());
    fs::rename(at("b/two"), at("a/three")).unwrap();
    assert_eq!(fs::read(at("a/three")).unwrap(), b"2");
    assert!(!at("b/two").exists());
    fs::rename(at("a/one"), at("a/three")).unwrap();
    assert_eq!(fs::read(at("a/three")).unwrap(), b"1");

    fs::hard_link(at("a/three"), at("b/link")).unwrap();
    assert_eq!(fs::metadata(at("a/three")).unwrap().nlink(), 2);
    fs::remove_file(at("a/three")).unwrap();
    assert_eq!(fs::metadata(at("b/link")).unwrap().nlink(), 1);
    symlink("b/link", at("sym")).unwrap();
    assert_eq!(fs::read_link(at("sym")).unwrap(), Path::new("b/link"));
    assert_eq!(fs::read(at("sym")).unwrap(), b"1");
    fs::remove_dir(at("a")).unwrap();
    assert!(!at("a").exists());
    assert_eq!(fs::metadata(&root).unwrap().nlink(), 3);
    mount.unmount();
}

fn rename2(old: &Path, new: &Path, flags: u32) -> std::io::Result<()> {
    let c = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (old, new) = (c(old), c(new));
    // SAFETY: both pointers are NUL-terminated strings that outlive the call.
    match unsafe { libc::renameat2(libc::AT_FDCWD, old.as_ptr(), libc::AT_FDCWD, new.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn renames_can_refuse_to_replace_or_exchange() {
    let Some(mount) = TestMount::or_skip() else { return };
    let (x, y) = (mount.path().join("x"), mount.path().join("y"));
    fs::write(&x, "x").unwrap();
    fs::write(&y, "y").unwrap();
    assert_eq!(errno(rename2(&x, &y, libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename2(&x, &y, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&x).unwrap(), fs::read(&y).unwrap()), (b"y".to_vec(), b"x".to_vec()));
    assert_eq!(errno(rename2(&x, &y, libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE)), libc::EINVAL);
    rename2(&x, &mount.path().join("z"), libc::RENAME_NOREPLACE).unwrap();
    assert!(!x.exists());
    mount.unmount();
}

#[test]
fn large_directories_are_listed_whole() {
    let Some(mount) = TestMount::or_skip() else { return };
    let directory = mount.path().join("many");
    fs::create_dir(&directory).unwrap();
    let mut expected = BTreeSet::new();
    for index in 0..10_000 {
        // Names of all lengths, and some that are in no encoding.
        let mut name = format!("{index:05}").into_bytes();
        name.extend(std::iter::repeat_n(b'a' + (index % 26) as u8, index % 60));
        if index % 100 == 0 {
            name.extend([0xff, b'\n', b' ', 0x80]);
        }
        File::create_new(directory.join(OsStr::from_bytes(&name))).unwrap();
        expected.insert(name);
    }
    fs::create_dir(directory.join("d")).unwrap();
    expected.insert(b"d".to_vec());
    for _ in 0..2 {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.file_type().unwrap().is_dir(), entry.file_name() == "d");
            listed.push(entry.file_name().into_vec());
        }
        assert_eq!(listed.len(), expected.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    // `ls -l` gets attributes along with the names, when the kernel has cached neither.
    let caches = Caches::alone();
    caches.drop_all();
    let lookups = mount.requests("Lookup");
    let listing = Command::new("ls").arg("-lU").arg(&directory).output().unwrap();
    assert!(listing.status.success());
    assert!(listing.stdout.iter().filter(|&&byte| byte == b'\n').count() > 10_000);
    let asked_again = mount.requests("Lookup") - lookups;
    // On a busy machine, attributes that came along with the listing expire before `ls` asks, now
    // and then.
    assert!(asked_again < 1000, "{asked_again} look-ups");
    assert!(mount.requests("ReadDirPlus") > 1);
    drop(caches);
    // Removing while listing misses nothing.
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "d" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    mount.unmount();
}
