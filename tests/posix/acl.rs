//! POSIX access control lists: consistent with the mode, inherited, enforced.

use super::Ground;
use crate::skip_if;
use crate::support::{Mount, NOBODY, as_nobody, no_fuse, not_root, tool};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NONE: u32 = u32::MAX;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A list that gives rights to a user and a group, with these permissions for owner, mask and
/// others.
fn extended([owner, mask, others]: [u16; 3]) -> Vec<u8> {
    list(&[
        (USER_OBJ, owner, NONE),
        (USER, 6, NOBODY),
        (GROUP_OBJ, 5, NONE),
        (GROUP, 7, 4321),
        (MASK, mask, NONE),
        (OTHER, others, NONE),
    ])
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    match getxattr(path, name, &mut value[..]) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(rustix::io::Errno::NODATA) => None,
        Err(error) => panic!("{}: {name}: {error}", path.display()),
    }
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_list_and_the_mode_say_the_same() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(get(&path, ACCESS), None);
    set(&path, ACCESS, &extended([7, 6, 4])).unwrap();
    assert_eq!(mode(&path), 0o764, "the mask is what the group's bits show");
    ground.remount();
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o764, Some(extended([7, 6, 4]))));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(get(&path, ACCESS), Some(extended([6, 4, 0])), "a chmod sets the mask");
    ground.remount();
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o640, Some(extended([6, 4, 0]))));
    // A list equivalent to a mode is stored as the mode.
    set(&path, ACCESS, &list(&[(USER_OBJ, 6, NONE), (GROUP_OBJ, 0, NONE), (OTHER, 4, NONE)])).unwrap();
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o604, None));
    set(&path, ACCESS, &extended([7, 6, 4])).unwrap();
    removexattr(&path, ACCESS).unwrap();
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o764, None));
    assert_eq!(set(&path, DEFAULT, &extended([7, 7, 7])), Err(rustix::io::Errno::ACCESS), "only directories");
    for bad in [list(&[(USER_OBJ, 7, NONE)]), list(&[(64, 7, NONE)])] {
        assert_eq!(set(&path, ACCESS, &bad), Err(rustix::io::Errno::INVAL));
    }
    ground.end();
}

#[test]
fn directories_hand_their_default_list_down() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let dir = ground.path("dir");
    fs::create_dir(&dir).unwrap();
    let default = extended([7, 7, 5]);
    set(&dir, DEFAULT, &default).unwrap();
    // The default list takes the place of these programs' umask.
    let made = Command::new("sh").current_dir(&dir).arg("-c").arg(
        "umask 077; : >file; mkdir below; mkfifo pipe; ln -s file link; mkdir -m 700 strict; cp file copy",
    ).status();
    assert!(made.unwrap().success());
    let tmpfile = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let nameless = rustix::fs::open(&dir, tmpfile, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    let mut value = [0; 256];
    let len = rustix::fs::fgetxattr(&nameless, ACCESS, &mut value[..]).unwrap();
    assert_eq!(value[..len], extended([6, 6, 4]));
    drop(nameless);
    for _ in 0..2 {
        for (name, permissions, access) in [
            ("file", 0o664, Some(extended([6, 6, 4]))),
            ("pipe", 0o664, Some(extended([6, 6, 4]))),
            ("below", 0o775, Some(extended([7, 7, 5]))),
            ("strict", 0o700, Some(extended([7, 0, 0]))),
        ] {
            let path = dir.join(name);
            assert_eq!((mode(&path), get(&path, ACCESS)), (permissions, access), "{name}");
        }
        assert_eq!(get(&dir.join("below"), DEFAULT), Some(default.clone()));
        assert_eq!(get(&dir, ACCESS), None);
        ground.remount();
    }
    removexattr(&dir, DEFAULT).unwrap();
    removexattr(&dir, DEFAULT).unwrap();
    let plain =
        Command::new("sh").arg("-c").arg("umask 027; : >plain; mkdir plaindir").current_dir(&dir).status();
    assert!(plain.unwrap().success());
    assert_eq!((mode(&dir.join("plain")), mode(&dir.join("plaindir"))), (0o640, 0o750), "the umask again");
    assert_eq!(get(&dir.join("plain"), ACCESS), None);
    ground.end();
}

#[test]
fn a_list_lets_in_whom_it_names() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    let ground = Ground::new();
    fs::set_permissions(ground.place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = ground.path("file");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let reads = || {
        let mut command = Command::new("cat");
        command.arg(&path);
        as_nobody(command).output().unwrap().stdout == b"secret"
    };
    assert!(!reads());
    set(&path, ACCESS, &extended([6, 4, 0])).unwrap();
    assert!(reads(), "the list names nobody");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!reads(), "the mask takes it away");
    set(&path, ACCESS, &extended([6, 4, 0])).unwrap();
    assert!(reads());
    removexattr(&path, ACCESS).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!reads());
    ground.end();
}

#[test]
fn a_synced_list_survives_a_crash() {
    skip_if!(no_fuse());
    let mut ground = Ground::new();
    let path = ground.path("file");
    fs::write(&path, "x").unwrap();
    // More entries than fit in the inode.
    let users = (0..200).map(|id| (USER, 4, 10_000 + id));
    let mut entries = vec![(USER_OBJ, 7, NONE)];
    entries.extend(users);
    entries.extend([(GROUP_OBJ, 5, NONE), (MASK, 5, NONE), (OTHER, 1, NONE)]);
    let many = list(&entries);
    set(&path, ACCESS, &many).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let mut mount = ground.mount.take().unwrap();
    let directory = mount.path.clone();
    mount.kill();
    drop(mount);
    ground.mount = Some(Mount::new(&ground.place.image(), &directory, &[]));
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o751, Some(many)));
    ground.end();
}

#[test]
fn the_tools_work() {
    skip_if!(no_fuse());
    skip_if!((tool("setfacl", &["--version".as_ref()]).is_none()).then_some("setfacl is not installed"));
    let ground = Ground::new();
    let dir = ground.path("dir");
    fs::create_dir(&dir).unwrap();
    let tool = |name: &str, words: &[&str], path: &Path| {
        let mut all: Vec<&std::ffi::OsStr> = words.iter().map(AsRef::as_ref).collect();
        all.push(path.as_os_str());
        crate::support::tool(name, &all).unwrap_or_else(|| panic!("{name} {words:?} fails"))
    };
    tool("setfacl", &["-m", "u:1234:rwx,g:4321:r-x,d:u:1234:rw-"], &dir);
    let shown = tool("getfacl", &["-n", "-p", "-c"], &dir);
    for line in ["user:1234:rwx", "group:4321:r-x", "mask::rwx", "default:user:1234:rw-", "default:mask::rwx"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    fs::write(dir.join("file"), "x").unwrap();
    let shown = tool("getfacl", &["-n", "-p", "-c"], &dir.join("file"));
    assert!(shown.contains("user:1234:rw-") && shown.contains("mask::r"), "{shown}");
    tool("setfacl", &["-b"], &dir);
    let shown = tool("getfacl", &["-n", "-p", "-c"], &dir);
    assert_eq!(shown.lines().filter(|line| !line.is_empty()).count(), 3, "{shown}");
    ground.end();
}
