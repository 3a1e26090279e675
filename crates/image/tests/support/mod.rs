//! An NBD server.

pub mod relay;

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server with an export of 256 MiB.
pub struct Server(Child);

impl Server {
    /// Starts nbdkit, if it is installed, on `socket` beside the file of the export: all servers of one
    /// directory have the same one.
    pub fn start(socket: &Path, options: &[&str], parameters: &[&str]) -> Option<Self> {
        let disk = socket.with_file_name("disk");
        File::options().create(true).append(true).open(&disk).unwrap().set_len(256 << 20).unwrap();
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
        command.args(options).arg("file").arg(disk).args(parameters).stderr(Stdio::null());
        let server = Self(command.spawn().ok()?);
        let begun = Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(300), "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The location of the export behind a socket.
pub fn image(socket: &Path) -> PathBuf {
    PathBuf::from(format!("nbd+unix:///?socket={}&wait=forever", socket.display()))
}
