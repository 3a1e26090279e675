//! A connection to a server: a socket, with TLS or without. One thread receives; any thread sends.

use super::NbdOptions;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Plaintext that TLS takes at a time: a few of its records.
const TLS_BUFFER_BYTES: usize = 256 << 10;

/// A connection to a server.
pub(super) struct Channel {
    socket: Socket,
    tls: Option<Mutex<ClientConnection>>,
    /// When reads and sends that wait end with an error; none while requests are served.
    deadline: Mutex<Option<Instant>>,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// Bytes taken.
    pub(super) bytes: usize,
    /// The socket had no room for all bytes. TLS may still hold some that it has taken: send again,
    /// even without new ones.
    pub(super) pending: bool,
}

/// Whether a send may wait for room in the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    Wait,
    Take,
}

impl Channel {
    /// Over TCP. A peer that acknowledges nothing for `options.dead_after` counts as gone.
    pub(super) fn tcp(stream: TcpStream, options: &NbdOptions) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let limit = options.dead_after.max(Duration::from_secs(1));
        sockopt::set_tcp_user_timeout(&stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
        // While nothing of ours is on its way, only probes notice it. They are counted in whole seconds.
        let third = Duration::from_secs((limit.as_secs() / 3).max(1));
        sockopt::set_tcp_keepidle(&stream, third)?;
        sockopt::set_tcp_keepintvl(&stream, third)?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        Ok(Self::over(Socket::Tcp(stream)))
    }

    /// Over a socket of this host.
    pub(super) fn unix(stream: UnixStream) -> Self {
        Self::over(Socket::Unix(stream))
    }

    fn over(socket: Socket) -> Self {
        Self { socket, tls: None, deadline: Mutex::default() }
    }

    /// The server's address; none on this host.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(stream) => stream.peer_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Limits how long reads and sends wait, all together; none is for ever.
    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        *self.deadline.lock() = deadline;
    }

    /// Agrees on TLS; everything from here on goes through it.
    pub(super) fn start_tls(
        mut self,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let mut stream = Waiting(&self);
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        self.tls = Some(Mutex::new(connection));
        Ok(self)
    }

    /// Tells the other side that nothing follows, where TLS has a word for it.
    pub(super) fn say_end(&self) {
        if let Some(tls) = &self.tls {
            let mut connection = tls.lock();
            connection.send_close_notify();
            // It may have gone already.
            let _ = write_out(&mut connection, &self.socket);
        }
    }

    /// Ends the connection for both sides. Threads that wait in it wake up.
    pub(super) fn shut_down(&self) {
        // An error means that it has ended already.
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Ends the connection at once: bytes that this host has not sent yet are dropped, rather than sent
    /// in the background. (A Unix socket holds none of these: the bytes that it takes are at the
    /// server.)
    pub(super) fn abort(&self) {
        if let Socket::Tcp(stream) = &self.socket {
            // In case the next but one is refused: closing the socket does the same then.
            let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
        self.shut_down();
        if let Socket::Tcp(stream) = &self.socket {
            let _ = net::connect_unspec(stream);
        }
    }

    /// Waits until the socket has room, or its connection has ended.
    pub(super) fn wait_for_room(&self) -> io::Result<()> {
        self.wait_for(PollFlags::OUT)
    }

    /// Takes bytes from the front of `bufs` to send them.
    pub(super) fn send(&self, bufs: &[IoSlice<'_>], room: Room) -> io::Result<Sent> {
        let Some(tls) = &self.tls else {
            return self.send_plain(bufs, room);
        };
        let mut taken = None;
        loop {
            let mut connection = tls.lock();
            if write_out(&mut connection, &self.socket)? {
                if let Some(bytes) = taken {
                    return Ok(Sent { bytes, pending: false });
                }
                taken = Some(connection.writer().write_vectored(bufs)?);
                continue;
            }
            drop(connection);
            if room == Room::Take {
                return Ok(Sent { bytes: taken.unwrap_or(0), pending: true });
            }
            self.wait_for(PollFlags::OUT)?;
        }
    }

    fn send_plain(&self, bufs: &[IoSlice<'_>], room: Room) -> io::Result<Sent> {
        // Linux takes no more slices at once.
        let bufs = &bufs[..bufs.len().min(1024)];
        loop {
            let waits = room == Room::Wait && self.deadline.lock().is_none();
            let flags = if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
            match sendmsg(
                &self.socket,
                bufs,
                &mut SendAncillaryBuffer::default(),
                flags | SendFlags::NOSIGNAL,
            ) {
                Ok(bytes) => return Ok(Sent { bytes, pending: false }),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if room == Room::Take => return Ok(Sent { bytes: 0, pending: true }),
                Err(Errno::AGAIN) => self.wait_for(PollFlags::OUT)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends all that `bufs` hold.
    pub(super) fn send_all(&self, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut left = bufs;
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let sent = self.send(left, Room::Wait)?;
            IoSlice::advance_slices(&mut left, sent.bytes);
        }
        Ok(())
    }

    /// Receives something; zero at the end of the stream. By one thread at a time.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return Waiting(self).read(into) };
        loop {
            let mut connection = tls.lock();
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            match connection.read_tls(&mut Immediate(&self.socket)) {
                Ok(0) => return Ok(0),
                Ok(_) => {
                    let others_wait = connection.wants_write();
                    let fed = connection.process_new_packets();
                    // The peer may have asked for new keys, or must be told of its fault. Bytes that do
                    // not fit now go with the next send. So do all bytes if a part of a change waits
                    // for room: its sender asks before each part whether it may still send.
                    if !others_wait {
                        write_out(&mut connection, &self.socket)?;
                    }
                    fed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    drop(connection);
                    self.wait_for(PollFlags::IN)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_for(&self, what: PollFlags) -> io::Result<()> {
        let deadline = *self.deadline.lock();
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let time = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.socket, what)], time.as_ref()) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Sends the bytes that TLS has for the socket; false if the socket has no room for all of them.
fn write_out(connection: &mut ClientConnection, socket: &Socket) -> io::Result<bool> {
    while connection.wants_write() {
        match connection.write_tls(&mut Immediate(socket)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A socket that is waited for.
struct Waiting<'a>(&'a Channel);

impl Read for Waiting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.deadline.lock().is_some() {
            self.0.wait_for(PollFlags::IN)?;
        }
        receive(&self.0.socket, into, RecvFlags::empty())
    }
}

impl Write for Waiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_plain(&[IoSlice::new(bytes)], Room::Wait).map(|sent| sent.bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that is not waited for.
struct Immediate<'a>(&'a Socket);

impl Read for Immediate<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive(self.0, into, RecvFlags::DONTWAIT)
    }
}

impl Write for Immediate<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn receive(socket: &Socket, into: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *into, flags) {
            Ok((bytes, _)) => return Ok(bytes),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The receiving side, for one thread.
pub(super) struct Incoming(pub(super) Arc<Channel>);

impl Read for Incoming {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.receive(into)
    }
}

#[cfg(test)]
mod tests;
