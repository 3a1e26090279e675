//! Unmounting says whether everything got to the device.

use crate::disk::Disk;
use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, not_root, program, run, syncline};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn write_synced(mount: &Mount) {
    let path = mount.path.join("synced");
    fs::write(&path, "synced").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    fs::write(mount.path.join("not synced"), vec![7; 600_000]).unwrap();
}

#[test]
fn a_device_that_fails_altogether_is_told_of() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::new();
    let disk = Disk::new(&place, 64 << 20, Duration::ZERO);
    syncline([OsStr::new("mkfs"), disk.path.as_ref()]).ok();
    let mount = Mount::new(&disk.path, &place.directory("mount"), &[]);
    write_synced(&mount);
    disk.troubles.set(true, true, true);
    mount.unmount().fails(8, &["it is unmounted", "can't be told", "not synced"]);
    disk.troubles.set(false, false, false);
    let mount = Mount::new(&disk.path, &place.directory("again"), &[]);
    assert_eq!(fs::read(mount.path.join("synced")).unwrap(), b"synced");
    assert!(!mount.path.join("not synced").exists(), "there was something to tell of");
    mount.unmount().ok();
}

#[test]
fn an_image_that_is_not_there_any_more_is_told_of() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    write_synced(&mount);
    let moved = place.path().join("moved");
    fs::rename(place.image(), &moved).unwrap();
    mount.unmount().fails(5, &["it is unmounted", "there is no", "if it was moved"]);
    let mount = Mount::new(&moved, &place.directory("again"), &[]);
    write_synced(&mount);
    // Somebody else's is clean, and says nothing of this one.
    let other = Place::with_image("16MiB");
    fs::rename(&moved, place.image()).unwrap();
    fs::copy(other.image(), &moved).unwrap();
    mount.unmount().fails(5, &["it is unmounted", "another image"]);
    place.check_clean();
}

#[test]
fn nobody_waits_for_ever_for_a_daemon_that_does_not_answer() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    let daemon = mount.pid();
    kill_process(daemon, Signal::STOP).unwrap();
    let started = Instant::now();
    let ask = |words: &[&str]| {
        let mut command = program();
        command.args(words).arg(&mount.path);
        run(command).fails(1, &["has not answered", "umount -l"]);
    };
    ask(&["umount", "--timeout", "2"]);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    ask(&["stats"]);
    kill_process(daemon, Signal::CONT).unwrap();
    assert_eq!(mount.pid(), daemon, "nothing has happened to the mount");
    mount.unmount().ok();
}

/// umount(8) says what is wrong in the language of whoever asks.
#[test]
fn a_mount_in_use_is_told_of_in_every_language() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let mount = place.mount("mount");
    let tools = place.directory("tools");
    let script = "#!/bin/sh\n[ \"$LC_ALL\" = C ] && PATH=/usr/bin:/bin exec umount \"$@\"\n\
                  echo \"umount: $2: Das Ziel wird gerade benutzt.\" >&2; exit 32\n";
    fs::write(tools.join("umount"), script).unwrap();
    fs::set_permissions(tools.join("umount"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let unmount = || {
        let mut command = program();
        command.arg("umount").arg(&mount.path).env("PATH", &path).env("LC_ALL", "de_DE.UTF-8");
        run(command)
    };
    let open = File::create(mount.path.join("open")).unwrap();
    unmount().fails(3, &["is in use", "fuser"]);
    drop(open);
    unmount().ok();
}

#[test]
fn an_image_may_have_any_name() {
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let image = place.path().join(OsStr::from_bytes(b"im\xffage, \\ 1"));
    fs::rename(place.image(), &image).unwrap();
    let mount = Mount::new(&image, &place.directory("mount"), &[]);
    write_synced(&mount);
    mount.unmount().ok();
}

/// What a daemon calls its number is that of another process here.
#[test]
fn a_daemon_in_another_namespace_of_processes_is_waited_for() {
    skip_if!(not_root());
    skip_if!(no_fuse());
    let place = Place::with_image("16MiB");
    let directory = place.directory("mount");
    let script = "\"$0\" mount \"$1\" \"$2\" && echo mounted && exec sleep 1000";
    let mut shell = Command::new("unshare");
    shell.args(["--pid", "--fork", "--kill-child", "sh", "-c", script]).arg(env!("CARGO_BIN_EXE_syncline"));
    shell.args([&place.image(), &directory]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "mounted");
    fs::write(directory.join("file"), "not synced").unwrap();
    let started = Instant::now();
    let mut command = program();
    command.args(["umount", "--timeout", "20"]).arg(&directory);
    let answer = run(command);
    let ended = place.image();
    let check = syncline([OsStr::new("check"), ended.as_ref()]);
    shell.kill().unwrap();
    shell.wait().unwrap();
    answer.ok();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    check.ok();
}
