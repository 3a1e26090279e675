//! A mount as a systemd service: it reports when it is usable, so that units ordered after it find
//! it.

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, program, run};
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/systemd/syncline@.service");

#[test]
fn a_service_tells_when_the_mount_is_usable_and_when_it_ends() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let directory = place.directory("mount");
    let manager = UnixDatagram::bind(place.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut message = [0; 100];
        let len = manager.recv(&mut message).expect("it is told");
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    let mut command = program();
    command.arg("mount").arg(place.image()).arg(&directory).arg("--foreground");
    command.env("NOTIFY_SOCKET", place.path().join("notify")).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    assert_eq!(told(), "READY=1");
    fs::write(directory.join("file"), "usable at once").unwrap();
    Mount::of(&directory).unmount().ok();
    assert_eq!(told(), "STOPPING=1");
    assert!(daemon.wait().unwrap().success());
    let unit = fs::read_to_string(UNIT).unwrap();
    assert!(unit.contains("Type=notify") && unit.contains("--foreground"), "the example makes use of it");
}

/// A program that has a file open on the mount must not keep the next start away. A start that
/// failed leaves alone the mount that somebody else has there.
#[test]
fn the_mount_of_a_killed_service_is_taken_away() {
    skip_if!(no_fuse());
    let place = Place::with_image("32MiB");
    let mut mount = place.mount("mount");
    let directory = mount.path.clone();
    let after_stop = |result: &str| {
        let unit = fs::read_to_string(UNIT).unwrap();
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStopPost=-")).expect("it has one");
        let line = line.replace("/usr/bin/syncline", env!("CARGO_BIN_EXE_syncline")).replace("$$", "$");
        let line = line.replace("/srv/%i", &directory.to_string_lossy());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &line]).env("SERVICE_RESULT", result);
        shell.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    };
    fs::write(directory.join("file"), "synced").unwrap();
    let held = File::open(directory.join("file")).unwrap();
    held.sync_all().unwrap();
    // A start that took too long has mounted nothing: this mount is somebody else's.
    for result in ["success", "exit-code", "timeout", "signal"] {
        after_stop(result);
        assert_eq!(fs::read(directory.join("file")).unwrap(), b"synced", "{result}");
    }
    mount.kill();
    let mut again = program();
    again.arg("mount").arg(place.image()).arg(&directory);
    run(again).fails(6, &["its daemon has gone"]);
    after_stop("signal");
    let mount = Mount::new(&place.image(), &directory, &[]);
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"synced");
    drop(held);
    mount.unmount().ok();
}
