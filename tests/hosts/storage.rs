//! What the images lie on: an NBD server for each pair, or one Ceph cluster for all.

use crate::machine::{SERVER, folder};
use crate::support::{eventually, run};
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// An NBD server over TCP with a file and a cache in memory, which only a flush writes to the file:
/// when it is killed, all that no flush covered is forgotten, as in a power cut.
pub struct NbdServer {
    child: Option<Child>,
    port: u16,
    disk: PathBuf,
}

impl NbdServer {
    pub fn new(number: usize, bytes: u64) -> Self {
        let disk = folder().join(format!("disk{number}"));
        fs::File::create(&disk).unwrap().set_len(bytes).unwrap();
        let mut server = Self { child: None, port: 10_000 + number as u16, disk };
        server.start();
        server
    }

    pub fn image(&self) -> String {
        format!("nbd://{SERVER}:{}/?wait=60", self.port)
    }

    pub fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--ipaddr", SERVER, "--port"]);
        command.arg(self.port.to_string()).arg("--filter=cache").arg("file").arg(&self.disk);
        command.args(["cache=writeback", "cache-min-block-size=4K"]).env("TMPDIR", folder());
        self.child = Some(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let port = self.port;
        eventually("nbdkit listens", || TcpStream::connect((SERVER, port)).is_ok());
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

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
