//! Why a recording can't be made, read or explored.

use fuser::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// An error of crashlab. Every text names the cause and, if there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory can't be used.
    #[error("{path}: {source}{hint}", path = .path.display(), hint = hint(.path))]
    File {
        /// Its path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Nothing can be mounted here.
    #[error(
        "nothing can be mounted here, and the program has to run in a mount: {0}; install fuse3, see that you may open \
         /dev/fuse (ls -l /dev/fuse), and in a container pass it on (--device /dev/fuse --cap-add SYS_ADMIN)"
    )]
    NoFuse(io::Error),
    /// The file is no recording.
    #[error("{path} is no recording: name a file that 'crashlab record' made", path = .0.display())]
    NotARecording(PathBuf),
    /// The recording has another version.
    #[error("{path} is a recording of version {found}, and this program reads version {supported}: record again", path = .path.display())]
    Version {
        /// Its path.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this program reads.
        supported: u32,
    },
    /// The recording is damaged.
    #[error("{path} is damaged at byte {at}: {detail}; record again", path = .path.display())]
    Damaged {
        /// Its path.
        path: PathBuf,
        /// Where.
        at: u64,
        /// The fault.
        detail: String,
    },
    /// There is no such state.
    #[error("{text} is no state of this recording: {detail}; 'crashlab explore' prints states")]
    State {
        /// The name as given.
        text: String,
        /// The fault.
        detail: String,
    },
    /// The program was called wrongly.
    #[error("{0}")]
    Usage(String),
    /// A program can't be run.
    #[error("{what} can't be run: {source}")]
    Run {
        /// The program.
        what: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A disk can't be used for another state.
    #[error("{path}: somebody else has it open, and the kernel still shows what was on it before", path = .0.display())]
    InUse(PathBuf),
    /// The temporary file for contents of files can't be used.
    #[error(
        "there is no room for the contents of files in {path}: {source}; name a folder with room in TMPDIR",
        path = .path.display()
    )]
    NoRoom {
        /// Its folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The work can't go on.
    #[error("{0}")]
    Stopped(String),
    /// A signal came.
    #[error("interrupted")]
    Interrupted,
}

/// The next step if crashlab can't use a folder of its own.
fn hint(path: &Path) -> &'static str {
    let is_own = |rest: &Path| rest.as_os_str().is_empty() || rest.to_string_lossy().starts_with("crashlab-");
    match path.strip_prefix(std::env::temp_dir()).is_ok_and(is_own) {
        true => "; set TMPDIR to a folder with room",
        false => "",
    }
}

impl Error {
    /// The number by which a program knows it.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::NoRoom { source, .. } if source.kind() == io::ErrorKind::StorageFull => Errno::ENOSPC,
            _ => Errno::EIO,
        }
    }

    /// An error about a path.
    pub fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_crashlab_are_elsewhere_with_tmpdir() {
        let told = |path: &Path| Error::file(path, io::ErrorKind::StorageFull.into()).to_string();
        let temporary = std::env::temp_dir();
        assert!(
            told(&temporary.join("crashlab-x/state-0/file")).ends_with("; set TMPDIR to a folder with room")
        );
        assert!(told(&temporary).contains("TMPDIR") && !told(&temporary.join("mine")).contains("TMPDIR"));
    }
}
