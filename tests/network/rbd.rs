//! RBD images of a Ceph cluster that the test starts.

use crate::lost::assert_lost;
use crate::observed::{metric, told};
use crate::skip_if;
use crate::support::{Mount, Place, no_fuse, not_root, program, run, syncline};
use rustix::process::{Signal, kill_process};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

fn cluster(words: &[&OsStr]) -> Command {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/ceph/cluster");
    let mut command = Command::new(script);
    command.args(words);
    command
}

pub fn no_ceph() -> Option<String> {
    let answer = run(cluster(&["missing".as_ref()]));
    (answer.code != 0).then(|| answer.err.trim().to_owned())
}

/// A cluster that ends with this test's process at the latest.
pub struct Cluster(PathBuf);

impl Cluster {
    pub fn start(place: &Place) -> Self {
        let folder = place.path().join("ceph");
        let pid = std::process::id().to_string();
        let started = Self(folder.clone());
        run(cluster(&["start".as_ref(), folder.as_ref(), "--until".as_ref(), pid.as_ref()])).ok();
        started
    }

    /// A copy of its configuration with these lines besides.
    pub fn conf_with(&self, place: &Place, lines: &str) -> PathBuf {
        let conf = fs::read_to_string(self.0.join("ceph.conf")).unwrap();
        let copy = place.path().join("ceph.conf");
        fs::write(&copy, format!("{conf}{lines}")).unwrap();
        copy
    }

    fn image(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("rbd:rbd/{name}?conf={}", self.0.join("ceph.conf").display()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = run(cluster(&["stop".as_ref(), self.0.as_ref()]));
    }
}

#[test]
fn an_image_in_a_cluster_has_one_writer() {
    skip_if!(no_fuse());
    skip_if!(not_root());
    skip_if!(no_ceph());
    let place = Place::new();
    let cluster = Cluster::start(&place);
    crate::tour::paste(&cluster.image("tour"), true, &place);
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
    kill_process(stopped, Signal::STOP).unwrap();
    let mut taking = program();
    taking.args(["mount", "--takeover"]).arg(&image).arg(&directory);
    run(taking).ok();
    let second = Mount::of(&directory);
    assert_eq!(fs::read_to_string(second.path.join("before")).unwrap(), "acknowledged");
    fs::write(second.path.join("after"), vec![7; 1 << 20]).unwrap();
    fs::File::open(second.path.join("after")).unwrap().sync_all().unwrap();

    kill_process(stopped, Signal::CONT).unwrap();
    before.write_all(b" too late").unwrap();
    assert_eq!(before.sync_all().unwrap_err().raw_os_error(), Some(5), "the cluster lets it write no more");
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
