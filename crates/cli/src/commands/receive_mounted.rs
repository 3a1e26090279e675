//! `receive` into a mount: passes the stream to the daemon.

use crate::failure::{Cause, Failure};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use syncline_fuse::control::{ControlError, Transfer};

/// The interval at which the daemon hears of a sender that sends nothing.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);
/// Parts of the stream that are read ahead.
const PARTS_AHEAD: usize = 64;

/// Has the daemon receive a stream. Returns the snapshot's name.
pub fn receive(
    directory: &Path,
    name: Option<&str>,
    resume: bool,
    input: impl Read + Send + 'static,
) -> Result<String, Failure> {
    let request = json!({ "name": name, "resume": resume }).to_string();
    let transfer = Transfer::begin(directory, &request).map_err(refused)?;
    let parts = read_ahead(input)?;
    let mut broken = None;
    loop {
        let part = match parts.recv_timeout(SIGN_OF_LIFE) {
            Ok(Ok(part)) => part,
            Ok(Err(error)) => {
                broken = Some(error);
                break;
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if !transfer.pass(&part).map_err(Failure::from)? {
            break;
        }
    }
    let answer: Value = serde_json::from_str(&transfer.end()?).unwrap_or_default();
    match (answer["snapshot"].as_str(), answer["failure"].as_str()) {
        (Some(name), _) => Ok(name.to_owned()),
        (None, Some(text)) => {
            let code = answer["code"].as_u64().and_then(|code| u8::try_from(code).ok());
            let text = broken.map_or_else(String::new, |error| format!("the stream: {error}; ")) + text;
            Err(Failure::new(text).with_code(code.unwrap_or(Cause::Other as u8)).about(directory))
        }
        (None, None) => Err(Failure::new("the daemon does not tell how it went").about(directory)),
    }
}

/// Reads on a thread of its own, so that a stream that pauses does not keep the daemon waiting.
fn read_ahead(
    mut input: impl Read + Send + 'static,
) -> Result<mpsc::Receiver<std::io::Result<Vec<u8>>>, Failure> {
    let (parts, read) = mpsc::sync_channel(PARTS_AHEAD);
    let run = move || {
        loop {
            let mut part = vec![0; Transfer::PART_BYTES];
            let result = match input.read(&mut part) {
                Ok(0) => return,
                Ok(length) => {
                    part.truncate(length);
                    Ok(part)
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = result.is_err();
            if parts.send(result).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("input".to_owned()).spawn(run)?;
    Ok(read)
}

fn refused(error: ControlError) -> Failure {
    const BUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
    const PERM: i32 = rustix::io::Errno::PERM.raw_os_error();
    let errno = match &error {
        ControlError::Failed { source, .. } => source.raw_os_error(),
        _ => None,
    };
    match errno {
        Some(BUSY) => Failure::of(Cause::InUse, "another stream is being received there")
            .next("wait for its end; a sender that has gone away is forgotten after 20 s"),
        Some(PERM) => {
            Failure::of(Cause::Permission, error).next("ask as root, or as the user whose daemon it is")
        }
        _ => error.into(),
    }
}
