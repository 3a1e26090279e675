//! Never two writers, on an export that several hosts reach (promise P7). The second host is a
//! second daemon here: neither knows of the other but by the device.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Mount, eventually, program, run, stop};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_nbdlab::Pace;

/// A lease lasts 10 s and its guard time is 2 s; an eighth for clocks that run differently, and the
/// second that reading a claim back takes.
const EXPIRED: Duration = Duration::from_secs(17);

/// Takes the image from the host that has it.
fn take_over(image: &Path, directory: &Path) -> Mount {
    let mut command = program();
    command.args(["mount", "--takeover"]).arg(image).arg(directory);
    run(command).ok();
    Mount::of(directory)
}

#[test]
fn a_second_host_is_refused_while_the_first_lives() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let mount = Mount::new(&image, &place.directory("first"), &[]);
    let holder = format!("process {}", mount.pid().as_raw_nonzero());
    let mut second = program();
    second.arg("mount").arg(&image).arg(place.directory("second"));
    run(second).fails(3, &["in use by", &holder, "--takeover"]);
    let mut check = program();
    check.arg("check").arg(&image);
    run(check).fails(8, &["in use by", &holder]);
    // The refused ones have not disturbed it.
    fs::write(mount.path.join("file"), "contents").unwrap();
    fs::File::open(mount.path.join("file")).unwrap().sync_all().unwrap();
    mount.unmount().ok();
}

#[test]
fn a_host_that_died_is_waited_for_and_followed() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let mut mount = Mount::new(&image, &place.directory("first"), &[]);
    fs::write(mount.path.join("file"), "synced").unwrap();
    fs::File::open(mount.path.join("file")).unwrap().sync_all().unwrap();
    mount.kill();
    let (died, pace) = (Instant::now(), Pace::start());
    let mount = Mount::new(&image, &place.directory("second"), &[]);
    assert!(died.elapsed() > Duration::from_secs(12), "it did not wait: {:?}", died.elapsed());
    pace.assert_within(EXPIRED);
    assert_eq!(fs::read_to_string(mount.path.join("file")).unwrap(), "synced");
    mount.unmount().ok();
    // Given back, so there is nothing to wait for.
    let pace = Pace::start();
    let mut check = program();
    check.arg("check").arg(&image);
    run(check).ok();
    pace.assert_within(Duration::from_secs(8));
}

#[test]
fn a_host_that_was_stopped_and_followed_acknowledges_nothing_more() {
    skip_if!(no_exports());
    let (place, _server, image) = Server::with_filesystem();
    let log = place.path().join("log");
    let first = Mount::new(&image, &place.directory("first"), &["--log", log.to_str().unwrap()]);
    let mut before = fs::File::create(first.path.join("before")).unwrap();
    before.write_all(b"acknowledged").unwrap();
    before.sync_all().unwrap();
    let stopped = first.pid();
    stop(stopped);

    let second = take_over(&image, &place.directory("second"));
    assert_eq!(fs::read_to_string(second.path.join("before")).unwrap(), "acknowledged");
    fs::write(second.path.join("after"), vec![7; 1 << 20]).unwrap();
    fs::File::open(second.path.join("after")).unwrap().sync_all().unwrap();

    kill_process(stopped, Signal::CONT).unwrap();
    let late = before.write_all(b" too late").and_then(|()| before.sync_all());
    late.expect_err("it has no lease any more");
    eventually("the log tells of the lease", || {
        let told = fs::read_to_string(&log).unwrap();
        told.contains("lost the lease") || told.contains("could not renew the lease")
    });
    drop(before);
    let mut first = first;
    first.kill();

    // Its successor works on, and nothing of the first one's came between.
    fs::write(second.path.join("more"), "more").unwrap();
    fs::File::open(second.path.join("more")).unwrap().sync_all().unwrap();
    second.unmount().ok();
    let mut check = program();
    check.arg("check").arg(&image);
    run(check).ok();
    let third = Mount::new(&image, &place.directory("third"), &["-o", "ro"]);
    assert_eq!(fs::read_to_string(third.path.join("before")).unwrap(), "acknowledged");
    assert!(fs::read(third.path.join("after")).unwrap() == vec![7; 1 << 20]);
    third.unmount().ok();
}
