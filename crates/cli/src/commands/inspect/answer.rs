//! What a command of the shell is given, and what it answers.

use serde_json::Value;

/// What it shows, or why it could not be done, in a line.
pub type Answer = Result<Value, String>;

/// A number of the command line, decimal or with 0x.
pub fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}

/// The number at a place, or what stands for none.
pub fn number_or(arguments: &[&str], at: usize, default: u64) -> Result<u64, String> {
    arguments.get(at).map_or(Ok(default), |text| number(text))
}
