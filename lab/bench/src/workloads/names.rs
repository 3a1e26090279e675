//! Names of files.

/// The name of the file with this number.
pub fn numbered(number: u64) -> String {
    format!("file-{number:08}")
}
