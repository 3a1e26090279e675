//! Mounting, asking the daemon, and the ways a mount can end.

use super::TestMount;
use crate::support::{self, ORDINARY_USER, Setup, as_ordinary_user, pattern};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

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
    // Other programs get the usual error for an unknown command.
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
    // A second daemon at the same mount point.
    let (mut second, mut output) = TestMount::start_daemon(&mount.path(), Setup::default());
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
    let (mut second, mut output) = TestMount::start_daemon(&path, Setup::default());
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
    // Callers whose requests are in flight.
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let mut file = File::create(path.join(format!("file{writer}"))).unwrap();
            std::thread::spawn(move || {
                while file.write_all(&pattern(70_000, writer)).and_then(|()| file.sync_all()).is_ok() {}
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    mount.kill_daemon();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let error = fs::read_dir(&path).unwrap_err();
    assert!(syncline_fuse::daemon_has_gone(&error), "{error:?}");
    let (mut second, mut output) = TestMount::start_daemon(&path, Setup::default());
    let refusal = support::wait_until_ready(&mut output).unwrap_err();
    assert!(refusal.contains("daemon has gone"), "{refusal}");
    second.wait().unwrap();
}

/// From the first file on, creating, writing and removing files sends no other requests. The
/// creator of a file may do everything to it that only a creator may.
#[test]
fn files_are_made_and_opened_without_asking() {
    let Some(mount) = TestMount::or_skip() else { return };
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = as_ordinary_user(&format!(
        "set -eu; cd {}
        umask 377; for i in 1 2 3 4 5 6 7 8 9; do echo text > $i; done; cat 1
        echo more >> 1 || echo refused
        umask 022; set -C; echo more > 1 || echo exists; set +C
        rm -f 2; echo more > 2; echo new > 2; cat 2",
        mount.path().display()
    ));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "text\nrefused\nexists\nnew\n", "{output:?}");
    let requests = ["MkNod", "Create", "Open", "Release"].map(|kind| mount.requests(kind));
    assert_eq!(requests, [10, 1, 1, 0]);
    mount.unmount();
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

#[test]
fn an_aborted_connection_ends_the_daemon_well() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let mut file = File::create(mount.path().join("open")).unwrap();
    file.write_all(&pattern(100_000, 9)).unwrap();
    mount.abort();
    mount.wait_for_the_end();
    assert!(file.write_all(b"more").and_then(|()| file.sync_all()).is_err());
}

#[test]
fn a_mount_that_is_detached_serves_what_is_open_to_the_end() {
    let Some(mut mount) = TestMount::or_skip() else { return };
    let mut file = File::create(mount.path().join("open")).unwrap();
    assert!(Command::new("umount").arg("-l").arg(mount.path()).status().unwrap().success());
    for round in 0..20 {
        file.write_all(&pattern(100_000, round)).unwrap();
        file.sync_all().unwrap();
    }
    drop(file);
    mount.wait_for_the_end();
}

#[test]
fn callers_that_are_killed_leave_a_working_mount() {
    let Some(mount) = TestMount::or_skip() else { return };
    for round in 0..20 {
        let script = "while :; do dd if=/dev/zero of=file bs=64k count=4 conv=fsync; ls -l; done";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(mount.path()).process_group(0);
        let mut caller = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 + round * 3));
        // SAFETY: takes no memory; the group is that of our own child, which was not waited for.
        assert_eq!(unsafe { libc::kill(-(caller.id() as i32), libc::SIGKILL) }, 0);
        caller.wait().unwrap();
    }
    fs::write(mount.path().join("after"), "x").unwrap();
    File::open(mount.path().join("after")).unwrap().sync_all().unwrap();
    mount.unmount();
}
