//! Errors of making, reading or exploring a recording.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_store::StoreError;

/// An error of making, reading or exploring a recording. Every text names the cause and, if there
/// is one, the next step.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CutsError {
    /// The image has more bytes in use than are copied into memory.
    #[error(
        "the image has {used_bytes} bytes in use and a recording starts from at most {max_bytes}, which are kept in memory: \
         record on a smaller image ('syncline mkfs')"
    )]
    TooLarge {
        /// Bytes in use.
        used_bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// The image needs recovery.
    #[error("the image was not unmounted cleanly: mount and unmount it once, then record")]
    NotClean,
    /// A recording could not be read or written.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The path as given.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The file is not a recording.
    #[error("{path} is no recording: name a file that 'syncline crashlab record' made", path = .path.display())]
    NotARecording {
        /// The path as given.
        path: PathBuf,
    },
    /// The recording has another version.
    #[error(
        "{path} is a recording of version {found}, and this program reads version {supported}: record again, or use the \
         program that made it", path = .path.display()
    )]
    Version {
        /// The path as given.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this program reads.
        supported: u32,
    },
    /// The recording is damaged or incomplete.
    #[error("{path} is damaged: {detail}; record again", path = .path.display())]
    Damaged {
        /// As given.
        path: PathBuf,
        /// The fault.
        detail: String,
    },
    /// The name of a state does not fit this recording.
    #[error("{text} is no state of this recording: {detail}; 'syncline crashlab explore' prints states")]
    State {
        /// The name as given.
        text: String,
        /// The fault.
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

impl CutsError {
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
