//! Why a command failed: one line for a person, and an exit code.

use std::fmt;
use std::process::ExitCode;

/// What every command returns.
pub type Outcome = Result<ExitCode, Failure>;

/// A cause and, where the cause does not say it already, the next step.
#[derive(Debug)]
pub struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// The operation failed (exit code 1).
    pub fn new(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 1 }
    }

    /// The command was called wrongly (exit code 2).
    pub fn usage(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), code: 2 }
    }

    /// The same with another exit code.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Always one line, whatever an error contained.
        out.write_str(&self.text.replace('\n', " "))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}
