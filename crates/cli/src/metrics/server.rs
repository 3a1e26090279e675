//! The HTTP server of `syncline metrics`: one thread, and a bound on everything that a client
//! controls. A head may have 8 KiB and 64 fields and must arrive within seconds, bodies are not
//! read, a connection serves one request and has a deadline, and the number of connections is
//! limited: a new one then replaces the oldest.
//!
//! Making the text of the metrics may take seconds, while a daemon does not answer. Nobody is served
//! meanwhile, so it is made once for all requests that have come by then.

use httparse::{EMPTY_HEADER, Request, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most fields in a head.
const FIELDS_MAX: usize = 64;
/// How long a head may take.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may take in total.
const CONNECTION_TIME: Duration = Duration::from_secs(15);
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// The content type of everything but metrics.
const PLAIN: &str = "text/plain; charset=utf-8";

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    content_type: &'static str,
    /// Makes the text of an answer. It may block.
    text: Box<dyn Fn() -> String>,
}

/// One look at all connections, whose requests for metrics get the same text.
struct Pass<'a> {
    server: &'a Server,
    text: OnceCell<String>,
}

/// A client, and how far its request or the answer to it has come.
struct Connection {
    stream: TcpStream,
    began: Instant,
    head: Vec<u8>,
    /// The rest of the answer, once there is one.
    answer: Option<Vec<u8>>,
}

impl Server {
    /// Listens at an address. `text` makes the answer to `/metrics`.
    pub fn listen(
        address: SocketAddr,
        content_type: &'static str,
        text: impl Fn() -> String + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, content_type, text: Box::new(text) })
    }

    /// The address it listens at: for port 0 the system has chosen a port.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` returns true, which is checked every now and then.
    pub fn serve(self, notice: Duration, stop: impl Fn() -> bool) {
        let mut connections = VecDeque::new();
        while !stop() {
            self.wait(&connections, notice);
            if let Err(error) = self.accept(&mut connections) {
                // Too many descriptors, or the client has already gone.
                tracing::debug!("a connection could not be accepted: {error}");
                std::thread::sleep(notice);
            }
            let pass = Pass { server: &self, text: OnceCell::new() };
            connections.retain_mut(|connection| connection.goes_on(&pass));
        }
    }

    /// Waits until there is something to accept, read or write, but no longer than `notice`.
    fn wait(&self, connections: &VecDeque<Connection>, notice: Duration) {
        let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
        watched.extend(connections.iter().map(|connection| {
            let wanted = if connection.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.stream, wanted)
        }));
        let time = Timespec::try_from(notice).ok();
        // A signal interrupts it.
        let _ = poll(&mut watched, time.as_ref());
    }

    fn accept(&self, connections: &mut VecDeque<Connection>) -> io::Result<()> {
        // At most so many in a pass, so that clients who keep coming do not hold up the answers.
        for _ in 0..CONNECTIONS_MAX {
            let stream = match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                accepted => accepted?.0,
            };
            stream.set_nonblocking(true)?;
            if connections.len() == CONNECTIONS_MAX {
                connections.pop_front();
            }
            let (head, answer) = (Vec::new(), None);
            connections.push_back(Connection { stream, began: Instant::now(), head, answer });
        }
        Ok(())
    }
}

impl Pass<'_> {
    /// The answer to a request with this head; `None` if the head goes on.
    fn answer(&self, head: &[u8]) -> Option<Vec<u8>> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = Request::new(&mut fields);
        let plain = |status, text: &str| Some(answer(status, PLAIN, text, true));
        match request.parse(head) {
            Ok(Status::Complete(_)) => {}
            Ok(Status::Partial) if head.len() < HEAD_BYTES_MAX => return None,
            Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return plain("431 Request Header Fields Too Large", "The head is too long.\n");
            }
            Err(_) => return plain("400 Bad Request", "This is no request.\n"),
        }
        let has_body = match request.method {
            Some("GET") => true,
            Some("HEAD") => false,
            _ => return plain("405 Method Not Allowed", "Only GET and HEAD are understood.\n"),
        };
        let path = request.path.and_then(|path| path.split('?').next()).unwrap_or_default();
        Some(match path {
            "/metrics" => {
                let text = self.text.get_or_init(&self.server.text);
                answer("200 OK", self.server.content_type, text, has_body)
            }
            "/" => answer("200 OK", PLAIN, "The metrics are at /metrics.\n", has_body),
            _ => answer("404 Not Found", PLAIN, "There is only /metrics.\n", has_body),
        })
    }
}

/// A whole answer, after which the connection ends.
fn answer(status: &str, content_type: &str, text: &str, has_body: bool) -> Vec<u8> {
    let body = if has_body { text } else { "" };
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Connection {
    /// Reads and answers as far as that is possible without waiting. False when the connection has
    /// ended, or has taken too long.
    fn goes_on(&mut self, pass: &Pass<'_>) -> bool {
        match self.serve(pass) {
            Ok(()) => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let limit = if self.answer.is_some() { CONNECTION_TIME } else { HEAD_TIME };
                self.began.elapsed() < limit
            }
            Err(error) => {
                tracing::debug!("an answer did not arrive: {error}");
                false
            }
        }
    }

    fn serve(&mut self, pass: &Pass<'_>) -> io::Result<()> {
        let mut answer = match self.answer.take() {
            Some(answer) => answer,
            None => self.read(pass)?,
        };
        while !answer.is_empty() {
            match self.stream.write(&answer) {
                Ok(written) => drop(answer.drain(..written)),
                Err(error) => {
                    self.answer = Some(answer);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Reads the head, and answers it.
    fn read(&mut self, pass: &Pass<'_>) -> io::Result<Vec<u8>> {
        loop {
            if let Some(answer) = pass.answer(&self.head) {
                return Ok(answer);
            }
            let mut part = [0; 1024];
            let room = part.len().min(HEAD_BYTES_MAX - self.head.len());
            let count = self.stream.read(&mut part[..room])?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.head.extend(&part[..count]);
        }
    }
}
