//! The client's end.

use super::wire::{COMMAND, ControlIn, ControlOut, MAGIC, MESSAGE_BYTES, Question};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// How many times fetching a text is attempted when others push its snapshot out.
const ATTEMPTS: usize = 8;
/// Longest text that is accepted.
const TEXT_BYTES_MAX: usize = 256 << 20;

/// Why a question to the daemon behind a mount failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// The path can't be opened.
    #[error("{path} cannot be opened: {source}", path = .path.display())]
    Open {
        /// As given.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The path is not on a mounted Syncline filesystem.
    #[error("{path} is not on a mounted Syncline filesystem", path = .path.display())]
    NotSyncline {
        /// As given.
        path: PathBuf,
    },
    /// The daemon does not know this question.
    #[error("the daemon behind {path} has no `{name}`: it may be an older version", path = .path.display())]
    Unknown {
        /// As given.
        path: PathBuf,
        /// The name that was asked for.
        name: String,
    },
    /// One of several files can't take part.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// As given.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// More files than one call can name.
    #[error("{count} files are more than one call can name, which is {}", super::FILES_MAX)]
    TooMany {
        /// How many there were.
        count: usize,
    },
    /// The daemon answered with an error.
    #[error("the daemon behind {path} answered: {source}", path = .path.display())]
    Failed {
        /// As given.
        path: PathBuf,
        /// The daemon's error.
        source: Arc<io::Error>,
    },
}

/// The statistics of the filesystem mounted at (or above) `path`, as JSON.
pub fn stats(path: &Path) -> Result<String, ControlError> {
    text(path, "stats")
}

/// Writes everything back and checkpoints, as syncfs(2) would if the kernel passed it on to FUSE
/// filesystems. This includes data written through mmap(2).
pub fn sync(path: &Path) -> Result<(), ControlError> {
    let file = open(path)?;
    push_mapped_pages(&file).map_err(|source| failed(path, "sync", source))?;
    let question = ControlIn::new(Question::Sync, "", 0, 0).expect("an empty name fits");
    ask(&file, &question).map(drop).map_err(|source| failed(path, "sync", source))
}

/// Makes a snapshot of the filesystem mounted at (or above) `path`. It contains everything written
/// before, including through mmap(2) if it was pushed out. EEXIST if the name is taken, EINVAL if
/// it is not a valid name.
pub fn create_snapshot(path: &Path, name: &str) -> Result<(), ControlError> {
    let file = open(path)?;
    push_mapped_pages(&file).map_err(|source| failed(path, "snapshot", source))?;
    about_snapshot(&file, Question::CreateSnapshot, name).map_err(|source| refused(path, source))
}

/// Makes the kernel send us what was written through mappings of any file.
fn push_mapped_pages(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and no memory is passed.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Deletes a snapshot of the filesystem mounted at (or above) `path`. ENOENT if there is none,
/// EBUSY if it is mounted.
pub fn delete_snapshot(path: &Path, name: &str) -> Result<(), ControlError> {
    let file = open(path)?;
    about_snapshot(&file, Question::DeleteSnapshot, name).map_err(|source| refused(path, source))
}

/// These errnos are answers about snapshots: they do not mean an older daemon or another
/// filesystem.
pub(super) fn refused(path: &Path, source: io::Error) -> ControlError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::EINVAL) => {
            ControlError::Failed { path: path.to_owned(), source: Arc::new(source) }
        }
        _ => failed(path, "snapshot", source),
    }
}

fn about_snapshot(file: &File, sort: Question, name: &str) -> io::Result<()> {
    let question = ControlIn::new(sort, "", 0, name.len() as u64).expect("an empty name fits");
    if name.len() > MESSAGE_BYTES - size_of::<ControlIn>() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    ask_about(file, &question, name.as_bytes()).map(drop)
}

/// Makes the daemon behind the mount at (or above) `path` run its command `name`.
pub fn command(path: &Path, name: &str, argument: u64) -> Result<(), ControlError> {
    let file = open(path)?;
    let unknown = || ControlError::Unknown { path: path.to_owned(), name: name.to_owned() };
    let question = ControlIn::new(Question::Command, name, 0, argument).ok_or_else(unknown)?;
    ask(&file, &question).map(drop).map_err(|source| failed(path, name, source))
}

/// The text `name` of the daemon behind the mount at (or above) `path`.
pub fn text(path: &Path, name: &str) -> Result<String, ControlError> {
    let file = open(path)?;
    let unknown = || ControlError::Unknown { path: path.to_owned(), name: name.to_owned() };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let text = pages(&file, Question::Text, name).ok_or_else(unknown)?;
        match text.and_then(|text| String::from_utf8(text).map_err(io::Error::other)) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) && attempts < ATTEMPTS => {}
            text => return text.map_err(|source| failed(path, name, source)),
        }
    }
}

/// Every path of an inode of the filesystem mounted at (or above) `path`. The daemon refuses with
/// ESTALE if there is no such inode, ENOENT if it has no name left, and ENODATA if the image keeps
/// no parent pointers.
pub fn paths(path: &Path, ino: u64) -> Result<Vec<Vec<u8>>, ControlError> {
    let file = open(path)?;
    let text = pages(&file, Question::Paths, &ino.to_string()).expect("a number is a short name");
    let text = text.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => ControlError::Failed { path: path.to_owned(), source: Arc::new(source) },
        _ => failed(path, "path", source),
    })?;
    let paths = text.split_inclusive(|&byte| byte == 0);
    Ok(paths.map(|path| path.strip_suffix(b"\0").unwrap_or(path).to_vec()).collect())
}

/// All pages of one snapshot; `None` if the name is impossible.
pub(super) fn pages(file: &File, sort: Question, name: &str) -> Option<io::Result<Vec<u8>>> {
    let mut question = ControlIn::new(sort, name, 0, 0)?;
    let mut text = Vec::new();
    let whole = loop {
        let (header, page) = match ask(file, &question) {
            Ok(answer) => answer,
            Err(error) => break Err(error),
        };
        text.extend_from_slice(&page);
        if text.len() as u64 >= header.total || page.is_empty() || text.len() > TEXT_BYTES_MAX {
            break Ok(());
        }
        question.snapshot = header.snapshot;
        question.offset = text.len() as u64;
    };
    Some(whole.map(|()| text))
}

pub(super) fn open(path: &Path) -> Result<File, ControlError> {
    // Opening a FIFO must not wait for a writer.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.map_err(|source| ControlError::Open { path: path.to_owned(), source: Arc::new(source) })
}

pub(super) fn failed(path: &Path, name: &str, source: io::Error) -> ControlError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS) => ControlError::NotSyncline { path },
        Some(libc::ENOENT | libc::EOPNOTSUPP) => ControlError::Unknown { path, name: name.to_owned() },
        _ => ControlError::Failed { path, source: Arc::new(source) },
    }
}

/// Asks one question and returns its answer.
fn ask(file: &File, question: &ControlIn) -> io::Result<(ControlOut, Vec<u8>)> {
    ask_about(file, question, &[])
}

/// Asks one question, followed by `rest`, and returns its answer.
pub(super) fn ask_about(file: &File, question: &ControlIn, rest: &[u8]) -> io::Result<(ControlOut, Vec<u8>)> {
    let mut message = vec![0u8; MESSAGE_BYTES];
    message[..size_of::<ControlIn>()].copy_from_slice(question.as_bytes());
    message[size_of::<ControlIn>()..][..rest.len()].copy_from_slice(rest);
    // SAFETY: the command tells the kernel to read and write MESSAGE_BYTES at the pointer, and the
    // buffer has that many.
    if unsafe { libc::ioctl(file.as_raw_fd(), COMMAND as _, message.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let strange = || io::Error::from_raw_os_error(libc::ENOTTY);
    let (header, rest) = ControlOut::read_from_prefix(&message).map_err(|_| strange())?;
    let page = rest.get(..header.len as usize).filter(|_| header.magic == MAGIC).ok_or_else(strange)?;
    Ok((header, page.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_filesystems_are_told_apart() {
        let elsewhere = tempfile::tempdir().unwrap();
        assert!(matches!(stats(elsewhere.path()), Err(ControlError::NotSyncline { .. })));
        assert!(matches!(sync(Path::new("/proc")), Err(ControlError::NotSyncline { .. })));
        let missing = elsewhere.path().join("missing");
        assert!(matches!(stats(&missing), Err(ControlError::Open { .. })));
    }
}
