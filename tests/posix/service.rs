//! A mount as a systemd service: it reports when it is usable, so that units ordered after it find
//! it.

use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, program};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::Duration;

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
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/systemd/syncline@.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("Type=notify") && unit.contains("--foreground"), "the example makes use of it");
}
