//! The system's log: syslog or the journal, whichever reads `/dev/log`.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use tracing::Level;

/// The socket that syslog(3) writes to.
pub const SOCKET: &str = "/dev/log";

/// The facility of daemons (RFC 3164).
const DAEMON: u8 = 3 << 3;

/// A connection to the system's log. Each write is a message.
pub struct Syslog {
    path: PathBuf,
    socket: UnixDatagram,
}

impl Syslog {
    /// Connects, if the system has such a log.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self { path: path.to_owned(), socket })
    }
}

impl Write for Syslog {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        if self.socket.send(message).is_err() {
            // Its reader may have been restarted.
            self.socket.connect(&self.path)?;
            self.socket.send(message)?;
        }
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Turns a line into a message, with its priority and the mount point in front.
#[derive(Clone, Debug)]
pub struct Tag {
    /// The mount point.
    pub about: String,
}

impl Tag {
    /// The message for a line of this level, which begins with a time unless it is JSON.
    pub fn message(&self, level: Level, line: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end();
        // The log has a time of its own.
        let rest = text
            .split_once(' ')
            .filter(|_| !text.starts_with('{'))
            .map_or(text, |(_, rest)| rest.trim_start());
        self.tagged(level, rest)
    }

    /// The message for a text of this level.
    pub fn tagged(&self, level: Level, text: &str) -> Vec<u8> {
        let severity = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let (pid, about) = (std::process::id(), &self.about);
        format!("<{}>syncline[{pid}]: {about}: {text}", DAEMON | severity).into_bytes()
    }
}

/// Turns the lines that are written to it into messages for `output`.
pub struct Tagged<W> {
    /// Stands in front of each message.
    pub tag: Tag,
    /// The level of the lines.
    pub level: Level,
    /// Takes each message in one write.
    pub output: W,
}

impl<W: Write> Write for Tagged<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.output.write_all(&self.tag.message(self.level, line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_priority_and_says_what_it_is_about() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(Syslog::connect(&path).is_err(), "nobody reads it");
        let reader = UnixDatagram::bind(&path).unwrap();
        let read = |reader: &UnixDatagram| {
            let mut message = [0; 200];
            let len = reader.recv(&mut message).unwrap();
            String::from_utf8(message[..len].to_vec()).unwrap()
        };
        let tag = Tag { about: "/srv/data".into() };
        let mut log = Tagged { tag, level: Level::WARN, output: Syslog::connect(&path).unwrap() };
        log.write_all(b"2026-01-01T00:00:00.000000Z  WARN syncline_store: the device fails\n").unwrap();
        let pid = std::process::id();
        assert_eq!(
            read(&reader),
            format!("<28>syncline[{pid}]: /srv/data: WARN syncline_store: the device fails")
        );
        // Its reader is restarted.
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        let reader = UnixDatagram::bind(&path).unwrap();
        log.level = Level::ERROR;
        log.write_all(b"{\"level\":\"ERROR\", \"a\": 1}\n").unwrap();
        assert_eq!(
            read(&reader),
            format!("<27>syncline[{pid}]: /srv/data: {{\"level\":\"ERROR\", \"a\": 1}}")
        );
    }
}
