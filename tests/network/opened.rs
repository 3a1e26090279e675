//! A mount that is asked about each opening, and whose image is not on this host.

use super::nbd::{Server, no_exports};
use crate::skip_if;
use crate::support::{Mount, Place, eventually, program, run, syncline};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;

/// Opening a file is a request there.
#[test]
fn a_file_that_cannot_be_opened_any_more_tells_that_the_image_is_lost() {
    skip_if!(no_exports());
    let place = Place::new();
    let mut server = Server::new(&place);
    let image = server.image_with("forever");
    syncline([OsStr::new("mkfs"), image.as_os_str()]).ok();
    let mount = Mount::new(&image, &place.directory("mnt"), &["-o", "direct_io=write"]);
    fs::write(mount.path.join("file"), "contents").unwrap();
    server.signal(Signal::STOP);
    eventually("the lease has ended", || mount.stats()["lost"].is_object());
    let mut command = program();
    command.arg("explain").arg(mount.path.join("file"));
    run(command).fails(8, &["lost its image at 20", "mount it again"]);
    mount.unmount().fails(8, &["lost its image"]);
    server.kill();
}
