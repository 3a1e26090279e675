//! Errors during a measurement.

use std::io;
use std::path::Path;
use syncline_fuse::control::ControlError;

/// Why a measurement failed. Every text names the next step where there is one.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Only root can do it.
    #[error("{what} needs loop devices and mount(8): run it as root")]
    NotRoot {
        /// The action that needs root.
        what: String,
    },
    /// A program is missing.
    #[error("{program} is not installed; install it (Debian: apt install {package})")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// A program that was run failed.
    #[error("{program} failed: {said}")]
    Command {
        /// The program.
        program: String,
        /// Its message.
        said: String,
    },
    /// Syncline's own program failed.
    #[error("{said}")]
    Program {
        /// Its exit code.
        code: u8,
        /// Its message.
        said: String,
    },
    /// The answer of a program or the kernel can't be understood.
    #[error("cannot make sense of {what}: {said}")]
    Answer {
        /// The answer, in words that follow "cannot make sense of".
        what: String,
        /// Its text, or the error in it.
        said: String,
    },
    /// There is no room for the image.
    #[error(
        "{free_bytes} bytes are free in {path}, {wanted_bytes} are wanted; choose another --dir or a smaller --size"
    )]
    NoRoom {
        /// Where.
        path: String,
        /// Free bytes there.
        free_bytes: u64,
        /// Bytes needed for the image and everything around it.
        wanted_bytes: u64,
    },
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the file.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// The daemon does not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A part of the engine failed in a measurement of its own.
    #[error("{what}: {said}")]
    Engine {
        /// The part.
        what: &'static str,
        /// Its error.
        said: String,
    },
    /// Some of the measurements failed.
    #[error("not everything was measured: {0}")]
    Incomplete(String),
    /// A thread of the load panicked.
    #[error("a thread of the load panicked")]
    Panicked,
    /// The user interrupted the measurement.
    #[error("interrupted; mounts, loop devices and images are removed")]
    Interrupted,
}

/// Adds to an I/O error what was being done.
pub(crate) trait During<T> {
    /// With this description.
    fn during(self, what: impl FnOnce() -> String) -> Result<T, BenchError>;
    /// With the name of the file.
    fn at(self, path: &Path) -> Result<T, BenchError>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, BenchError> {
        self.map_err(|error| BenchError::Io { what: what(), source: error.into() })
    }

    fn at(self, path: &Path) -> Result<T, BenchError> {
        self.during(|| path.display().to_string())
    }
}

impl From<io::Error> for BenchError {
    fn from(source: io::Error) -> Self {
        Self::Io { what: "the load".into(), source }
    }
}
