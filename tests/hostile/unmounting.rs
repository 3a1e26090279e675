//! Unmounting says whether everything got to the device.

use crate::disk::Disk;
use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, not_root, program, run, syncline};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
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
