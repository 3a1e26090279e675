//! A real Ceph cluster, for all pairs.

use crate::machine::{SERVER, folder};
use crate::support::run;
use std::path::PathBuf;
use std::process::Command;

/// A Ceph cluster.
pub struct Ceph {
    folder: PathBuf,
    pub osds: usize,
}

impl Ceph {
    /// What is not installed, if anything.
    pub fn missing() -> Option<String> {
        let answer = run(script(&["missing"]));
        (answer.code != 0).then(|| answer.err.trim().to_owned())
    }

    pub fn start(osds: usize) -> Self {
        let folder = folder().join("ceph");
        let count = osds.to_string();
        let mut command = script(&["start", folder.to_str().unwrap(), "--osds", &count, "--address", SERVER]);
        command.env("SYNCLINE_CEPH_LIMIT", "86400").env("SYNCLINE_CEPH_WATCH", "5");
        run(command).ok();
        Self { folder, osds }
    }

    pub fn image(&self, number: usize) -> String {
        format!("rbd:rbd/disk{number}?conf={}&wait=60", self.folder.join("ceph.conf").display())
    }

    /// Kills or starts a daemon: `mon`, or the number of an OSD.
    pub fn daemon(&self, daemon: &str, action: &str) {
        let folder = self.folder.to_str().unwrap();
        let words = match daemon {
            "mon" => vec!["mon", folder, action],
            osd => vec!["osd", folder, osd, action],
        };
        let mut command = script(&words);
        command.env("SYNCLINE_CEPH_LIMIT", "86400");
        run(command).ok();
    }
}

fn script(words: &[&str]) -> Command {
    let mut command =
        Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/ceph/cluster"));
    command.args(words);
    command
}
