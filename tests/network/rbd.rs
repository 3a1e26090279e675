//! RBD images of a Ceph cluster that the test starts.

use super::lost::assert_lost;
use super::observed::{metric, told};
use crate::skip_if;
use crate::support::ceph::{self, Cluster};
use crate::support::{Mount, Place, no_mounts, program, run, stop, syncline};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;

/// Why nothing can be mounted from a Ceph cluster here, if so.
pub fn no_clusters() -> Option<String> {
    no_mounts().or_else(ceph::missing)
}

/// A cluster of one OSD.
pub fn cluster(place: &Place) -> Cluster {
    Cluster::start(place.path().join("ceph"), 1, "127.0.0.1", 10)
}

#[test]
fn an_image_in_a_cluster_has_one_writer() {
    skip_if!(no_clusters());
    let place = Place::new();
    let cluster = cluster(&place);
    super::tour::paste(&cluster.image("tour"), true, &place);
    let image = cluster.image("disk");
    syncline([OsStr::new("info"), image.as_os_str()]).fails(5, &["rbd:rbd/disk"]);
    syncline([OsStr::new("mkfs"), image.as_os_str(), "--size".as_ref(), "256MiB".as_ref()]).ok();
    let log = place.path().join("log");
    let first = Mount::new(&image, &place.directory("first"), &["--log", log.to_str().unwrap()]);
    let mut before = fs::File::create(first.path.join("before")).unwrap();
    before.write_all(b"acknowledged").unwrap();
    before.sync_all().unwrap();
    let mut second = program();
    second.arg("mount").arg(&image).arg(place.directory("second"));
    run(second).fails(3, &["in use by"]);

    let (stopped, directory) = (first.pid(), place.directory("taken"));
    stop(stopped);
    let mut taking = program();
    taking.args(["mount", "--takeover"]).arg(&image).arg(&directory);
    run(taking).ok();
    let second = Mount::of(&directory);
    assert_eq!(fs::read_to_string(second.path.join("before")).unwrap(), "acknowledged");
    fs::write(second.path.join("after"), vec![7; 1 << 20]).unwrap();
    fs::File::open(second.path.join("after")).unwrap().sync_all().unwrap();

    kill_process(stopped, Signal::CONT).unwrap();
    let late = before.write_all(b" too late").and_then(|()| before.sync_all());
    assert_eq!(late.unwrap_err().raw_os_error(), Some(5), "the cluster lets it write no more");
    drop(before);
    let holder = format!("process {}) has its lock now", second.pid().as_raw_nonzero());
    assert_lost(first, "lost its image to client.", &log, &["this host was fenced", &holder]);
    second.unmount().ok();

    syncline([OsStr::new("check"), image.as_os_str()]).ok();
    syncline([OsStr::new("resize"), image.as_os_str(), "320MiB".as_ref()]).ok();
    let third = Mount::new(&image, &place.directory("third"), &[]);
    let stats = told(&third, &["stats"]);
    assert!(stats.contains(&*image.to_string_lossy()) && stats.contains("1 connection, "), "{stats}");
    let stats = third.stats();
    assert!(stats["network"]["kind"] == "rbd" && stats["lease"].is_null(), "{stats:#}");
    let metrics = told(&third, &["stats", "--prometheus"]);
    assert!(metric(&metrics, "syncline_network_write_duration_seconds_count").unwrap() > 0.0, "{metrics}");
    assert_eq!(metric(&metrics, "syncline_lease_left_seconds"), None);
    assert_eq!(fs::read_to_string(third.path.join("before")).unwrap(), "acknowledged");
    assert!(fs::read(third.path.join("after")).unwrap() == vec![7; 1 << 20]);
    third.unmount().ok();
}
