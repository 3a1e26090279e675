//! The message for an error must fit its cause: advice that can't help leads users astray.

use crate::skip_if;
use crate::support::{
    Answer, Loop, NOBODY, Place, Tmpfs, as_nobody, edit, eventually, no_fuse, not_root, program, run,
    syncline, tool,
};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn call(words: &[&str], there: &Path) -> Command {
    let mut command = program();
    command.args(words).current_dir(there);
    command
}

fn refused(words: &[&str], there: &Path) -> Answer {
    run(call(words, there))
}

fn is_mounted(directory: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.contains(&format!(" {} ", directory.display())))
}

#[test]
fn a_device_that_is_read_only_is_mounted_so_or_not_at_all() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let Some(device) = Loop::with(&place.image(), &["--read-only"]) else {
        return eprintln!("skipped: there are no loop devices here");
    };
    let name = device.device.to_str().unwrap();
    let directory = place.directory("mount");
    for words in [&["mount", name, "mount"][..], &["label", name, "new"], &["mkfs", "--force", name]] {
        refused(words, place.path()).fails(9, &["Read-only file system", "-o ro"]);
    }
    assert!(!is_mounted(&directory));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "the directory is there, and empty");
    refused(&["mount", name, "mount", "-o", "ro"], place.path()).ok();
    refused(&["umount", "mount"], place.path()).ok();
}

/// The first write fails after the kernel has mounted it.
#[test]
fn a_mount_that_fails_late_leaves_nothing_mounted() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let Some(tmpfs) = Tmpfs::new(place.directory("small"), "8m") else {
        return eprintln!("skipped: no tmpfs can be mounted here");
    };
    // Its log must first be put into the tree.
    let mut crashed = place.mount("crashed");
    for index in 0..2000 {
        fs::write(crashed.path.join(format!("a long name of a file {index}")), "x").unwrap();
    }
    fs::File::open(&crashed.path).unwrap().sync_all().unwrap();
    crashed.kill();
    drop(crashed);
    let sparse = tmpfs.path.join("sparse");
    let mut copy = Command::new("cp");
    copy.arg("--sparse=always").arg(place.image()).arg(&sparse);
    run(copy).ok();
    let ballast = tmpfs.path.join("ballast");
    let _ = fs::write(&ballast, vec![1; 16 << 20]);
    let directory = place.directory("mount");
    let answer = refused(&["mount", "small/sparse", "mount"], place.path());
    assert_ne!(answer.code, 0, "{answer:?}");
    assert!(!is_mounted(&directory), "{answer:?}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    fs::remove_file(ballast).unwrap();
    refused(&["mount", "small/sparse", "mount"], place.path()).ok();
    refused(&["umount", "mount"], place.path()).ok();
}

#[test]
fn an_owner_is_not_told_to_be_the_owner() {
    skip_if!(not_root());
    let place = Place::with_image("32MiB");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(place.image(), Some(NOBODY), None).unwrap();
    let mode = |mode| fs::set_permissions(place.image(), fs::Permissions::from_mode(mode)).unwrap();
    let label = || run(as_nobody(call(&["label", "image", "new"], place.path())));
    mode(0o400);
    label().fails(9, &["Permission denied", "0400", "chmod u+rw image", "-o ro"]);
    mode(0o000);
    let answer = label().fails(9, &["Permission denied", "0000", "chmod u+rw image"]);
    assert!(!answer.err.contains("-o ro"), "it can't be read either: {answer:?}");
    mode(0o600);
    label().ok();
    // A folder that can't be written, and one that can't be entered.
    let make = |path: &str| run(as_nobody(call(&["mkfs", path, "--size", "16MiB"], place.path())));
    make("new").fails(9, &["cannot create new", "files can't be made in .", "choose another place"]);
    let closed = place.directory("closed");
    fs::copy(place.image(), closed.join("image")).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    run(as_nobody(call(&["info", "closed/image"], place.path())))
        .fails(9, &["Permission denied", "directory above it may not be entered"]);
    run(as_nobody(call(&["mount", "image", "closed/mount"], place.path())))
        .fails(6, &["closed/mount", "Permission denied", "that you may enter", "as root"]);
}

#[test]
fn root_is_told_of_an_immutable_image() {
    skip_if!(not_root());
    let place = Place::with_image("32MiB");
    let change = |flag: &str| tool("chattr", &[OsStr::new(flag), place.image().as_ref()]);
    skip_if!(change("+i").is_none().then_some("files can't be made immutable here"));
    let answer = refused(&["label", "image", "new"], place.path());
    change("-i").unwrap();
    answer.fails(9, &["not permitted", "immutable", "chattr -ia image", "-o ro"]);
    refused(&["label", "image", "new"], place.path()).ok();
}

#[test]
fn a_mount_point_of_another_user_is_not_the_fault_of_fuse() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let mode = fs::metadata("/dev/fuse").map_or(0, |device| device.permissions().mode());
    skip_if!((mode & 0o6 != 0o6).then_some("/dev/fuse is not open to everybody"));
    skip_if!(tool("fusermount3", &["--version".as_ref()]).is_none().then_some("there is no fusermount3"));
    let place = Place::with_image("32MiB");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(place.image(), Some(NOBODY), None).unwrap();
    place.directory("roots");
    run(as_nobody(call(&["mount", "image", "roots"], place.path())))
        .fails(6, &["roots", "another user's", "of your own"]);
}

#[test]
fn sizes_are_told_as_they_were_given() {
    let place = Place::with_image("32MiB");
    place.directory("mount");
    refused(&["mount", "new", "mount", "--create", "1KiB"], place.path())
        .fails(2, &["--create", "at least 16MiB"]);
    assert!(!place.path().join("new").exists());
    refused(&["resize", "image", "1KiB"], place.path()).fails(10, &["1.00 KiB are too few"]);
    refused(&["mkfs", "labelled", "-L", "lab", "--size", "16MiB"], place.path()).ok();
    assert_eq!(refused(&["label", "labelled"], place.path()).ok().out, "lab\n");
    // It is an image, although something keeps it from being made smaller.
    refused(&["mkfs", "large", "--size", "64MiB"], place.path()).ok();
    refused(&["snapshot", "create", "large", "kept"], place.path()).ok();
    refused(&["resize", "large", "32MiB"], place.path()).fails(1, &["snapshot delete"]);
    assert!(refused(&["resize", "large", "min"], place.path()).ok().out.contains("as before"));
}

#[test]
fn a_daemon_that_has_died_is_told_by_every_question() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mut mount = place.mount("mount");
    mount.kill();
    for words in [
        "stats mount",
        "scrub mount",
        "trim mount",
        "explain mount",
        "du mount",
        "clone mount/a mount/b",
        "compress mount",
        "durability show mount",
        "info mount",
        "check mount",
        "inspect mount",
        "mount image mount",
        "top mount --once",
    ] {
        let code = if words.starts_with("check") { 8 } else { 6 };
        let words: Vec<&str> = words.split(' ').collect();
        let step = "its daemon has gone: remove the mount with 'syncline umount', and mount the image again";
        refused(&words, place.path()).fails(code, &[step]);
    }
    mount.unmount().fails(8, &["unsynced changes may be lost"]);
}

#[test]
fn who_only_stands_in_a_mount_is_meant_too() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    let mut standing = Command::new("sleep").arg("60").current_dir(&mount.path).spawn().unwrap();
    let answer = refused(&["umount", "mount"], place.path());
    standing.kill().unwrap();
    standing.wait().unwrap();
    let list = format!("fuser -vm {}", mount.path.display());
    answer.fails(3, &["in use", "leave its directories", &list]);
    mount.unmount().ok();
}

/// There is nobody left to tell fuser(1) of.
#[test]
fn who_has_files_open_where_the_daemon_has_died_is_let_be() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mut mount = place.mount("mount");
    let open = fs::File::create(mount.path.join("file")).unwrap();
    mount.kill();
    let step = format!("its daemon has gone: 'syncline umount -l {}'", mount.path.display());
    refused(&["umount", "mount"], place.path()).fails(3, &["in use", &step]);
    syncline([OsStr::new("umount"), OsStr::new("-l"), mount.path.as_ref()]).ok();
    drop(open);
    place.check_clean();
}

/// The message names the directory, not the first file below it that the user may not read.
#[test]
fn a_directory_of_another_filesystem_is_called_by_its_own_name() {
    let place = Place::new();
    let inner = place.directory("outer").join("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("secret"), "x").unwrap();
    for words in [
        &["du", "outer"][..],
        &["defragment", "-r", "outer"],
        &["compress", "-r", "outer"],
        &["durability", "list", "outer"],
    ] {
        let answer = refused(words, place.path()).fails(6, &["outer is not on a mounted", "syncline status"]);
        assert!(!answer.err.contains("secret"), "{answer:?}");
    }
}

#[test]
fn metrics_of_nothing_say_so() {
    let place = Place::new();
    let mut command = call(&["metrics", ".", "--listen", "127.0.0.1:0"], place.path());
    let log = fs::File::create(place.path().join("log")).unwrap();
    let mut server = command.stderr(log).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("it says that nothing is mounted there", || {
        let log = fs::read_to_string(place.path().join("log")).unwrap();
        log.contains("no Syncline filesystem answers at .")
    });
    server.kill().unwrap();
    server.wait().unwrap();
}

/// The socket of the system's log, where there is none; removed when dropped.
struct Syslog(UnixDatagram);

impl Syslog {
    const PATH: &str = "/dev/log";

    fn new() -> Option<Self> {
        let socket = UnixDatagram::bind(Self::PATH).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Some(Self(socket))
    }
}

impl Drop for Syslog {
    fn drop(&mut self) {
        let _ = fs::remove_file(Self::PATH);
    }
}

/// Without a file for its messages, a daemon reports each error and its place to the system's log.
#[test]
fn a_daemon_tells_the_systems_log() {
    skip_if!(no_fuse());
    let Some(log) = Syslog::new() else {
        return eprintln!("skipped: there is a log already, or none can be made");
    };
    let place = Place::with_image("32MiB");
    let mount = place.mount("mount");
    fs::write(mount.path.join("file"), "rotten\n".repeat(100_000)).unwrap();
    mount.unmount().ok();
    let bytes = fs::read(place.image()).unwrap();
    let at = bytes.windows(14).position(|bytes| bytes == b"rotten\nrotten\n").expect("its data");
    edit(&place.image(), at as u64, 6, |bytes| bytes.copy_from_slice(b"Rotten"));
    let mount = place.mount("again");
    fs::read(mount.path.join("file")).expect_err("it is damaged");
    let about = format!("syncline[{}]: {}: ", mount.pid().as_raw_nonzero(), mount.path.display());
    // Others may use it meanwhile.
    let message = loop {
        let mut message = vec![0; 4096];
        let len = log.0.recv(&mut message).expect("a message");
        let message = String::from_utf8_lossy(&message[..len]).into_owned();
        if message.contains(&about) {
            break message;
        }
    };
    assert!(message.starts_with("<27>") || message.starts_with("<28>"), "{message}");
    assert!(message.contains("checksum"), "{message}");
    mount.unmount().ok();
}
