//! A way to a server that can be blocked.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Passes connections on to the server. `connects` is called for each before, and returns what says
/// whether that is blocked: nothing that the client sends goes on then.
pub fn relay<W: Fn() -> bool + Send + 'static>(
    server: &Path,
    connects: impl Fn() -> W + Send + 'static,
) -> PathBuf {
    let (path, server) = (server.with_file_name("relay"), server.to_owned());
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
