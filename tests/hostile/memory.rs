//! The daemon stays within its memory.

use super::limited::peak_bytes;
use crate::skip_if;
use crate::support::{Mount, Place, no_fuse};
use std::fs;
use std::io::Write;

/// There is no fsync, so only the limits make the daemon release the written data.
#[test]
fn a_long_write_without_fsync_stays_within_the_limits() {
    skip_if!(no_fuse());
    let place = Place::with_image("1GiB");
    let limits = ["-o", "memory=43MiB"];
    let mount = Mount::new(&place.image(), &place.directory("mount"), &limits);
    let daemon = mount.pid();
    let before = peak_bytes(daemon);
    let mut file = fs::File::create(mount.path.join("stream")).unwrap();
    for _ in 0..400 {
        file.write_all(&[7; 1 << 20]).unwrap();
    }
    for index in 0..5_000 {
        fs::write(mount.path.join(index.to_string()), [7; 100]).unwrap();
    }
    let grown = peak_bytes(daemon) - before;
    // 43 MiB for data and changes, and buffers of requests in flight.
    assert!(grown < 96 << 20, "{} MiB", grown >> 20);
    drop(file);
    mount.unmount().ok();
    place.check_clean();
}
