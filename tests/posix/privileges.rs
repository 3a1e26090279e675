//! setuid, setgid and file capabilities: the operations that drop them, and those that do not.

use super::Ground;
use crate::skip_if;
use crate::support::{NOBODY, as_nobody, no_fuse, not_root};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

const CAPABILITY: &str = "security.capability";
/// `cap_net_raw+ep`, as setcap(8) stores it.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn has_capability(path: &Path) -> bool {
    getxattr(path, CAPABILITY, &mut [0; 64][..]).is_ok()
}

/// Makes a program that belongs to the user nobody and has all these privileges.
fn privileged(path: &Path, mode: u32) {
    fs::write(path, "a program, some bytes long").unwrap();
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    setxattr(path, CAPABILITY, &NET_RAW, XattrFlags::empty()).unwrap();
}

fn sh(path: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("sh").arg(path);
    command
}

#[test]
fn an_ordinary_users_change_takes_all_of_them() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let scripts = [
        ("append", r#"echo more >>"$1""#),
        ("overwrite", r#"printf x | dd of="$1" conv=notrunc status=none"#),
        ("truncate on opening", r#": >"$1""#),
        ("truncate", r#"truncate -s 3 "$1""#),
        ("grow", r#"truncate -s 30000 "$1""#),
        ("copy into", r#"cp /proc/self/comm "$1""#),
    ];
    for (name, script) in scripts {
        for (before, after) in [(0o6777, 0o777), (0o4755, 0o755), (0o2777, 0o777), (0o2767, 0o767)] {
            let path = ground.path(&format!("{name} {before:o}"));
            privileged(&path, before);
            assert!(as_nobody(sh(&path, script)).status().unwrap().success(), "{name}");
            // setgid without group execution once meant mandatory locking; a member of the group
            // may keep it.
            let expected = if before == 0o2767 && mode(&path) == before { before } else { after };
            assert_eq!(mode(&path), expected, "{name} {before:o}");
            assert!(!has_capability(&path), "{name} {before:o}");
        }
    }
    ground.remount();
    for (name, _) in scripts {
        let path = ground.path(&format!("{name} 6777"));
        assert_eq!((mode(&path), has_capability(&path)), (0o777, false), "{name}");
    }
    ground.end();
}

#[test]
fn root_keeps_setuid_and_nobody_keeps_capabilities() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    let path = ground.path("program");
    privileged(&path, 0o6755);
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"x", 0).unwrap();
    assert_eq!((mode(&path), has_capability(&path)), (0o6755, false), "root may write what is setuid");
    privileged(&path, 0o6755);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
    assert_eq!((mode(&path), has_capability(&path)), (0o6755, false));
    // Reading and attribute changes drop nothing.
    privileged(&path, 0o6755);
    fs::read(&path).unwrap();
    fs::rename(&path, ground.path("renamed")).unwrap();
    let path = ground.path("renamed");
    fs::hard_link(&path, ground.path("linked")).unwrap();
    ground.remount();
    assert_eq!((mode(&path), has_capability(&path)), (0o6755, true));
    ground.end();
}

#[test]
fn a_change_of_owner_takes_all_of_them() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let mut ground = Ground::new();
    for (name, uid, gid) in [("user", Some(4), None), ("group", None, Some(4)), ("neither", None, None)] {
        let path = ground.path(name);
        privileged(&path, 0o6755);
        chown(&path, uid, gid).unwrap();
        let kept = uid.is_none() && gid.is_none();
        let expected = if kept { (mode(&path), has_capability(&path)) } else { (0o755, false) };
        assert_eq!((mode(&path), has_capability(&path)), expected, "{name}");
        ground.remount();
        assert_eq!((mode(&path), has_capability(&path)), expected, "{name}");
    }
    let dir = ground.path("dir");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o6755)).unwrap();
    chown(&dir, Some(4), Some(4)).unwrap();
    assert_eq!(mode(&dir), 0o6755, "of a directory they mean something else");
    ground.end();
}
