//! The sockets of the server, of either kind: one to listen on, and one for each connection.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use syncline_net::NbdAddress;
use tempfile::TempDir;

/// Where the server listens.
pub(crate) enum Listener {
    /// In a folder of its own.
    Unix(UnixListener, TempDir),
    Tcp(TcpListener),
}

impl Listener {
    pub(crate) fn unix() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self::Unix(UnixListener::bind(folder.path().join("socket"))?, folder))
    }

    pub(crate) fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind(address)?))
    }

    pub(crate) fn address(&self) -> NbdAddress {
        match self {
            Self::Unix(_, folder) => NbdAddress::Unix(folder.path().join("socket")),
            Self::Tcp(listener) => {
                let address = listener.local_addr().expect("it is bound");
                NbdAddress::Tcp(address.ip().to_string(), address.port())
            }
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Socket> {
        let socket: OwnedFd = match self {
            Self::Unix(listener, _) => listener.accept()?.0.into(),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.into()
            }
        };
        Ok(Socket(socket.into()))
    }
}

/// Ends the wait of the thread that accepts connections at this address.
pub(crate) fn wake(address: &NbdAddress) {
    // It is of no matter whether anybody accepts.
    let _ = match address {
        NbdAddress::Unix(path) => UnixStream::connect(path).map(drop),
        NbdAddress::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).map(drop),
    };
}

/// A connection.
pub(crate) struct Socket(File);

impl Socket {
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    pub(crate) fn receive(&self, bytes: &mut [u8]) -> io::Result<()> {
        (&self.0).read_exact(bytes)
    }

    /// Ends the connection, also for threads that wait for it.
    pub(crate) fn end(&self) {
        // It may have ended before.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }

    /// True if something is there to be received.
    pub(crate) fn is_readable(&self) -> bool {
        let mut fd = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fd, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}
