//! Mounting, asking the daemon, and the ends a mount can come to.

use crate::support::{ORDINARY_USER, Setup, TestMount};
use crate::{as_ordinary_user, pattern, support};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::Command;

#[test]
fn the_daemon_answers_questions() {
    let Some(mount) = TestMount::or_skip() else { return };
    use syncline_fuse::control::{self, ControlError};
    let stats = control::stats(&mount.path()).unwrap();
    assert_eq!(stats, format!("{{\"long\":\"{}\"}}", "x".repeat(100_000)));
    fs::write(mount.path().join("file"), "x").unwrap();
    assert!(control::text(&mount.path().join("file"), "requests").unwrap().contains("\"Write\":1"));
    assert!(matches!(control::text(&mount.path(), "nothing"), Err(ControlError::Unknown { .. })));
    assert!(matches!(control::text(&mount.path(), "panics"), Err(ControlError::Failed { .. })));
    control::sync(&mount.path()).unwrap();
    // Others get what they expect of a foreign command.
    let file = File::open(mount.path().join("file")).unwrap();
    let mut number = 0i32;
    // SAFETY: the command writes one int.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGPGRP, &raw mut number) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    drop(file);
    mount.unmount();
}

#[test]
fn mounts_are_listed_refused_and_removed() {
    let Some(mount) = TestMount::or_skip() else { return };
    let entry =
        syncline_fuse::mounts().unwrap().into_iter().find(|entry| entry.mount_point == mount.path()).unwrap();
    assert_eq!(entry.filesystem_type, "fuse.syncline");
    assert_eq!(entry.source, "/images/test image,1.img");
    // A second daemon for the same place.
    let (mut second, mut output) = support::start_daemon(&mount.path(), Setup::default());
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    assert!(refusal.contains("already mounted"), "{refusal}");
    second.wait().unwrap();
    // Files in use.
    let open = File::create(mount.path().join("open")).unwrap();
    assert!(!Command::new("umount").arg(mount.path()).output().unwrap().status.success());
    drop(open);
    mount.unmount();
}

#[test]
fn a_daemon_that_ends_leaves_its_successor_alone() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    for _ in 0..3 {
        fs::write(path.join("file"), pattern(1 << 20, 8)).unwrap();
    }
    support::unmount(&path);
    let (mut second, mut output) = support::start_daemon(&path, Setup::default());
    support::wait_until_ready(&mut output).unwrap();
    mount.wait_for_the_end();
    fs::write(path.join("anew"), "x").unwrap();
    assert!(!path.join("file").exists() && path.join("anew").exists());
    support::unmount(&path);
    assert!(second.wait().unwrap().success());
}

#[test]
fn a_killed_daemon_leaves_errors_not_hangs() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let path = mount.path();
    fs::write(path.join("file"), "x").unwrap();
    mount.kill_daemon();
    assert!(syncline_fuse::daemon_has_gone(&fs::read_dir(&path).unwrap_err()));
    let (mut second, mut output) = support::start_daemon(&path, Setup::default());
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    assert!(refusal.contains("daemon has gone"), "{refusal}");
    second.wait().unwrap();
}

#[test]
fn ordinary_users_mount_through_fusermount() {
    if let Some(reason) = support::reason_not_to_mount_as_ordinary_user() {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(mut mount) = TestMount::with(Setup { user: Some(ORDINARY_USER), ..Setup::default() }) else {
        return;
    };
    let entry =
        syncline_fuse::mounts().unwrap().into_iter().find(|entry| entry.mount_point == mount.path()).unwrap();
    assert_eq!(entry.filesystem_type, "fuse.syncline");
    assert_eq!(entry.source, "/images/test image,1.img");
    let path = mount.path();
    let script = format!(
        "set -e; cd {0}; mkdir d; echo hello > d/f; mv d/f d/g; cat d/g; ls d; rm d/g; rmdir d; cd /; fusermount3 -u {0}",
        path.display()
    );
    let output = as_ordinary_user(&script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\ng\n", "{output:?}");
    assert!(output.status.success());
    mount.wait_for_the_end();
}
