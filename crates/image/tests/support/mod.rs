//! An NBD server, and a way to it that can be blocked.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server with an export of 256 MiB in memory, on a socket in this directory.
pub struct Server(Child);

impl Server {
    pub fn start(directory: &Path, options: &[&str], parameters: &[&str]) -> Option<Self> {
        let socket = directory.join("socket");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        command.args(options).args(["memory", "256M"]).args(parameters).stderr(Stdio::null());
        let server = Self(command.spawn().ok()?);
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "nbdkit does not listen");
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

/// Passes connections on to the server. `connects` is called for each before, and returns what says
/// whether that is blocked: nothing that the client sends goes on then.
pub fn relay<W: Fn() -> bool + Send + 'static>(
    directory: &Path,
    connects: impl Fn() -> W + Send + 'static,
) -> PathBuf {
    let (path, server) = (directory.join("relay"), directory.join("socket"));
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let blocked = connects();
            let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
            let (back, from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(client, server, blocked));
            std::thread::spawn(move || pass(from, back, || false));
        }
    });
    path
}

fn pass(mut from: UnixStream, mut to: UnixStream, waits: impl Fn() -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while waits() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// What a user writes for the export behind a socket.
pub fn image(socket: &Path) -> PathBuf {
    PathBuf::from(format!("nbd+unix:///?socket={}&wait=forever", socket.display()))
}
