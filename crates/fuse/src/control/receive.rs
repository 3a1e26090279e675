//! The client's end of receiving a stream into a mounted filesystem.

use super::client::{ControlError, ask_about, failed, open};
use super::wire::{ControlIn, MESSAGE_BYTES, Question};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a question that the daemon could not answer yet is asked again.
const PAUSE: Duration = Duration::from_millis(2);
/// The same once nothing more is to be sent.
const PAUSE_AT_THE_END: Duration = Duration::from_millis(20);

/// A stream that is passed to the daemon behind a mount. For the daemon's owner and root.
pub struct Transfer {
    file: File,
    path: PathBuf,
    number: u64,
}

impl Transfer {
    /// The most bytes that are passed at a time.
    pub const PART_BYTES: usize = MESSAGE_BYTES - size_of::<ControlIn>();

    /// Begins a transfer into the filesystem mounted at (or above) `path`. The daemon refuses with EBUSY
    /// if there is one already.
    pub fn begin(path: &Path, request: &str) -> Result<Self, ControlError> {
        if request.len() > Self::PART_BYTES {
            return Err(failed(path, "receive", io::Error::from_raw_os_error(libc::EMSGSIZE)));
        }
        let file = open(path)?;
        let question = question("begin", 0, request.len());
        let (answer, _) = ask_about(&file, &question, request.as_bytes())
            .map_err(|source| failed(path, "receive", source))?;
        Ok(Self { file, path: path.to_owned(), number: answer.snapshot })
    }

    /// Passes the next bytes on, or says by none that there will be more. False if the daemon takes no
    /// more; [`end`](Self::end) says why.
    pub fn pass(&self, bytes: &[u8]) -> Result<bool, ControlError> {
        for part in bytes.chunks(Self::PART_BYTES).chain(bytes.is_empty().then_some(bytes)) {
            let question = question("take", self.number, part.len());
            loop {
                match ask_about(&self.file, &question, part) {
                    Ok(_) => break,
                    Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => std::thread::sleep(PAUSE),
                    Err(error) if error.raw_os_error() == Some(libc::EPIPE) => return Ok(false),
                    Err(error) => return Err(self.failed(error)),
                }
            }
        }
        Ok(true)
    }

    /// Says that the stream has ended, waits until the daemon is done, and returns how it went.
    pub fn end(self) -> Result<String, ControlError> {
        let question = question("end", self.number, 0);
        loop {
            match ask_about(&self.file, &question, &[]) {
                Ok((_, text)) => return Ok(String::from_utf8_lossy(&text).into_owned()),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    std::thread::sleep(PAUSE_AT_THE_END);
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn failed(&self, source: io::Error) -> ControlError {
        ControlError::Failed { path: self.path.clone(), source: Arc::new(source) }
    }
}

fn question(name: &str, transfer: u64, length: usize) -> ControlIn {
    ControlIn::new(Question::Receive, name, transfer, length as u64).expect("the names are short")
}
