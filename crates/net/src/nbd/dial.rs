//! Reaching the server, within a time limit.

use rustix::io::Errno;
use rustix::net::{self, sockopt::Timeout};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The shortest that connecting to an address may take.
const LEAST: Duration = Duration::from_millis(20);

/// A server that accepts nobody lets a connection wait as long as a full queue does.
pub(super) fn unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket =
        net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, net::SocketFlags::CLOEXEC, None)?;
    let (address, until) = (net::SocketAddrUnix::new(path)?, Instant::now() + limit);
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(LEAST);
        net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        match net::connect(&socket, &address) {
            // A call with a time limit ends when the process is stopped and goes on.
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let why = "the server does not accept connections";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            done => break done?,
        }
    }
    net::sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// The limit is that of the look-up and of all addresses together. With `peer`, only that one is
/// tried.
pub(super) fn tcp(host: &str, port: u16, limit: Duration, peer: Option<SocketAddr>) -> io::Result<TcpStream> {
    let until = Instant::now() + limit;
    let addresses = match (peer, host.parse::<IpAddr>()) {
        (Some(peer), _) => vec![peer],
        (None, Ok(address)) => vec![(address, port).into()],
        (None, Err(_)) => {
            let host = host.to_owned();
            look_up(limit, move || Ok((host.as_str(), port).to_socket_addrs()?.collect()))?
        }
    };
    any_of(&addresses, until)
}

/// The system's look-up has limits of its own, of half a minute and more, and can't be ended. So it
/// is left to itself when the time is over.
fn look_up(
    limit: Duration,
    ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let (sender, receiver) = sync_channel(1);
    let asking = move || drop(sender.send(ask()));
    Builder::new().name("syncline-nbd-name".into()).spawn(asking)?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => io::Error::new(
            io::ErrorKind::TimedOut,
            "the name servers do not answer: check /etc/resolv.conf, or write the host's address",
        ),
        RecvTimeoutError::Disconnected => io::Error::other("looking the host's name up failed"),
    })?
}

/// The first address that answers. Each gets its share of the time that is left, so that one that is
/// silent does not keep the others from being asked.
fn any_of(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name of the host has no address");
    for (index, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share.max(LEAST)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::OwnedFd;
    use std::net::{Ipv4Addr, TcpListener};

    const LIMIT: Duration = Duration::from_millis(600);

    /// An address that answers no more: its queue is full. It does so until this is dropped.
    fn silent() -> (SocketAddr, OwnedFd, Vec<TcpStream>) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
        net::bind(&socket, &any).unwrap();
        net::listen(&socket, 0).unwrap();
        let address = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
        let queued: Vec<_> = std::iter::from_fn(|| connect().ok()).take(16).collect();
        assert!(queued.len() < 16, "the queue has no end");
        (address, socket, queued)
    }

    #[test]
    fn a_process_that_is_stopped_connects_when_it_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = net::socket(net::AddressFamily::UNIX, net::SocketType::STREAM, None).unwrap();
        net::bind(&listener, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&listener, 0).unwrap();
        let _queued = UnixStream::connect(&path).unwrap();
        let script = format!("sleep .1; kill -STOP {0}; kill -CONT {0}", std::process::id());
        let mut stops = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        assert_eq!(unix(&path, LIMIT).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(stops.wait().unwrap().success());
    }

    #[test]
    fn silent_addresses_take_the_limit_together() {
        let silent: Vec<_> = (0..4).map(|_| silent()).collect();
        let addresses: Vec<_> = silent.iter().map(|(address, ..)| *address).collect();
        let began = Instant::now();
        assert_eq!(any_of(&addresses, began + LIMIT).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < 2 * LIMIT, "{:?}", began.elapsed());
        // The last one answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [addresses[0], addresses[1], listener.local_addr().unwrap()];
        any_of(&addresses, Instant::now() + LIMIT).unwrap();
    }

    #[test]
    fn name_servers_that_are_silent_are_not_waited_for() {
        let began = Instant::now();
        let never = || -> io::Result<Vec<SocketAddr>> {
            std::thread::sleep(20 * LIMIT);
            Ok(Vec::new())
        };
        let error = look_up(LIMIT, never).unwrap_err();
        assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains("/etc/resolv.conf"));
        assert!(began.elapsed() < 3 * LIMIT, "{:?}", began.elapsed());
    }

    #[test]
    fn names_and_addresses_lead_to_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for (host, peer) in
            [("127.0.0.1", None), ("localhost", None), ("no.such.host.invalid", Some(address))]
        {
            tcp(host, address.port(), Duration::from_secs(20), peer).unwrap();
        }
    }
}
