//! A Ceph cluster of the test's own, by `tests/ceph/cluster`.

use super::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cluster. It is stopped when it is dropped, or when the test's process ends.
pub struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    /// Starts one in this folder, which is made: with so many OSDs, at this machine's address. A client
    /// without a sign of life counts as gone after `watch_seconds`.
    pub fn start(folder: PathBuf, osds: usize, address: &str, watch_seconds: u32) -> Self {
        let (cluster, pid) = (Self { folder }, std::process::id().to_string());
        let mut command = cluster.script("start", &["--osds", &osds.to_string(), "--address", address]);
        command.args(["--until", &pid]).env("SYNCLINE_CEPH_WATCH", watch_seconds.to_string());
        run(command).ok();
        cluster
    }

    pub fn conf(&self) -> PathBuf {
        self.folder.join("ceph.conf")
    }

    /// The name that a user writes for an image of the pool `rbd`.
    pub fn image(&self, name: &str) -> PathBuf {
        format!("rbd:rbd/{name}?conf={}", self.conf().display()).into()
    }

    /// Kills or starts an OSD.
    pub fn osd(&self, number: usize, action: &str) {
        run(self.script("osd", &[&number.to_string(), action])).ok();
    }

    /// Kills or starts the monitor.
    pub fn monitor(&self, action: &str) {
        run(self.script("mon", &[action])).ok();
    }

    fn script(&self, action: &str, words: &[&str]) -> Command {
        let mut command = script();
        // They end with this process, so the limit is for nobody.
        command.arg(action).arg(&self.folder).args(words).env("SYNCLINE_CEPH_LIMIT", "86400");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = run(self.script("stop", &[]));
    }
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ceph/cluster"))
}

/// The program of Ceph that is not installed, if one is missing.
pub fn missing() -> Option<String> {
    let mut command = script();
    command.arg("missing");
    let answer = run(command);
    (answer.code != 0).then(|| answer.err.trim().to_owned())
}
