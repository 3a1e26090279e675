//! What can go wrong while measuring.

use std::io;
use std::path::Path;
use syncline_fuse::control::ControlError;

/// Why nothing could be measured. Every text names the next step where there is one.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Only root can do it.
    #[error("{what} needs loop devices and mount(8): run it as root")]
    NotRoot {
        /// What was asked for.
        what: String,
    },
    /// A program is missing.
    #[error("{program} is not installed; install it (Debian: apt install {package})")]
    Missing {
        /// The program.
        program: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// A program that was run failed.
    #[error("{program} failed: {said}")]
    Command {
        /// The program.
        program: String,
        /// What it said.
        said: String,
    },
    /// Syncline's own program failed.
    #[error("{said}")]
    Program {
        /// Its exit code.
        code: u8,
        /// What it said.
        said: String,
    },
    /// What a program or the kernel answered can't be understood.
    #[error("cannot make sense of {what}: {said}")]
    Answer {
        /// What was read.
        what: String,
        /// Its text, or what is wrong with it.
        said: String,
    },
    /// There is no room for the image.
    #[error(
        "{free_bytes} bytes are free in {path}, {wanted_bytes} are wanted; choose another --dir or a smaller --size"
    )]
    NoRoom {
        /// Where.
        path: String,
        /// What is free there.
        free_bytes: u64,
        /// What the image and its surroundings take.
        wanted_bytes: u64,
    },
    /// Reading or writing failed.
    #[error("{what}: {source}")]
    Io {
        /// What was done to which file.
        what: String,
        /// Why it failed.
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
    /// A chart can't be drawn.
    #[error("cannot draw a chart: {0}")]
    Chart(String),
    /// A thread of the load panicked.
    #[error("a thread of the load panicked")]
    Panicked,
    /// Somebody wanted it to end.
    #[error("interrupted; mounts, loop devices and images are removed")]
    Interrupted,
}

/// Says of an I/O error what was done.
pub(crate) trait During<T> {
    /// With these words.
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
