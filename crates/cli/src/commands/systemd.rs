//! The notifications of a systemd service with `Type=notify` to its manager, so that units ordered
//! after the mount find it usable.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports the state of this process, as sd_notify(3) does; does nothing if no manager asked for
/// it.
pub fn tell(state: &str) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, "systemd can't be told: {state}");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
