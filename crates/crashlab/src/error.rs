//! Why a recording can't be made, read or explored.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_store::StoreError;

/// Why a recording can't be made, read or explored. Every text names the cause and, where there is one, the next step.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CrashlabError {
    /// The image holds more than is copied into memory.
    #[error(
        "the image has {used_bytes} bytes in use and a recording starts from at most {max_bytes}, which are kept in memory: \
         record on a smaller image ('syncline mkfs')"
    )]
    TooLarge {
        /// Bytes in use.
        used_bytes: u64,
        /// Most that is taken.
        max_bytes: u64,
    },
    /// The image has something to recover.
    #[error("the image was not unmounted cleanly: mount and unmount it once, then record")]
    NotClean,
    /// A recording could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// As given.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// It is no recording.
    #[error("{path} is no recording: name a file that 'syncline crashlab record' made", path = .path.display())]
    NotARecording {
        /// As given.
        path: PathBuf,
    },
    /// A recording of another version.
    #[error(
        "{path} is a recording of version {found}, and this program reads version {supported}: record again, or use the \
         program that made it", path = .path.display()
    )]
    Version {
        /// As given.
        path: PathBuf,
        /// What the file says.
        found: u32,
        /// What can be read.
        supported: u32,
    },
    /// A recording that is not whole.
    #[error("{path} is damaged: {detail}; record again", path = .path.display())]
    Damaged {
        /// As given.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The words for a state that make no sense here.
    #[error("{text} is no state of this recording: {detail}; 'syncline crashlab explore' prints states")]
    State {
        /// As given.
        text: String,
        /// What is wrong.
        detail: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The image can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] syncline::Error),
    /// No thread could be started.
    #[error("a thread could not be started: {0}")]
    Thread(Arc<io::Error>),
    /// A checker can't be run, or was told to stop.
    #[error("{0}")]
    Stopped(String),
}

impl CrashlabError {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn damaged(path: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), detail: detail.into() }
    }

    pub(crate) fn state(text: &str, detail: impl Into<String>) -> Self {
        Self::State { text: text.to_owned(), detail: detail.into() }
    }
}
