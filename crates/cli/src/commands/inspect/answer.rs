//! The arguments and answers of the shell's commands.

use serde_json::Value;

/// The output, or a one-line reason why the command failed.
pub type Answer = Result<Value, String>;

/// A number of the command line, decimal or with 0x.
pub fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}

/// The number at a position, or the default.
pub fn number_or(arguments: &[&str], at: usize, default: u64) -> Result<u64, String> {
    arguments.get(at).map_or(Ok(default), |text| number(text))
}
