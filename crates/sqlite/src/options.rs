//! The options in a database's URI.

use crate::failure::{Failure, Result};

/// Memory for cached blocks, unless an option says otherwise.
const MEMORY_BYTES: u64 = 128 << 20;

/// Most memory for the changes of a transaction. A transaction of the library may have twice as much.
pub(crate) const CHANGES_BYTES_MAX: u64 = 32 << 20;

const CHANGES_BYTES_MIN: u64 = 256 << 10;

/// Where SQLite's rollback journal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Journal {
    Memory,
    File,
}

/// The options besides `image`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// Size of an image to make if there is none.
    pub(crate) create: Option<u64>,
    /// A snapshot of the image, to be read.
    pub(crate) snapshot: Option<String>,
    pub(crate) journal: Journal,
    /// Memory for cached blocks; the connection that opens the image decides. A quarter of it is for the changes of
    /// a transaction; the connection that opens the database decides.
    pub(crate) memory_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { create: None, snapshot: None, journal: Journal::Memory, memory_bytes: MEMORY_BYTES }
    }
}

impl Options {
    /// Memory for the changes of a transaction.
    pub(crate) fn changes_bytes_max(&self) -> u64 {
        (self.memory_bytes / 4).clamp(CHANGES_BYTES_MIN, CHANGES_BYTES_MAX)
    }

    /// The parameters of a URI that are this extension's.
    pub(crate) const PARAMETERS: [&str; 5] = ["image", "snapshot", "create", "memory", "journal"];

    /// Reads the options; `parameter` returns the value of a parameter of the URI.
    pub(crate) fn of(parameter: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let size = |name: &str| match parameter(name) {
            Some(text) => bytes(&text).map(Some).ok_or_else(|| {
                Failure::cannot_open(format!("'{name}={text}' is no size: say, for example, '{name}=64MiB'"))
            }),
            None => Ok(None),
        };
        let journal = match parameter("journal").as_deref() {
            None | Some("memory") => Journal::Memory,
            Some("file") => Journal::File,
            Some(other) => {
                let text = format!("'journal={other}': the rollback journal is in 'memory' or in a 'file'");
                return Err(Failure::cannot_open(text));
            }
        };
        Ok(Self {
            create: size("create")?,
            snapshot: parameter("snapshot"),
            journal,
            memory_bytes: size("memory")?.unwrap_or(MEMORY_BYTES),
        })
    }
}

/// A number of bytes, such as `64MiB`, `64M` or `67108864`: sizes are binary, as those of the program.
fn bytes(text: &str) -> Option<u64> {
    parse_size::Config::new().with_binary().parse_size(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let sizes =
            [("512", 512), ("64m", 64 << 20), ("64MiB", 64 << 20), ("2GB", 2 << 30), ("1TiB", 1 << 40)];
        for (text, size) in sizes {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        for text in ["", "M", "-1", "big", "99999999999T"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn an_unknown_value_is_an_error_that_says_what_there_is() {
        let with = |name: &'static str, value: &'static str| {
            Options::of(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(with("journal", "file").unwrap().journal, Journal::File);
        assert!(with("journal", "wal").unwrap_err().text.contains("'memory' or in a 'file'"));
        assert!(with("create", "big").unwrap_err().text.contains("64MiB"));
        assert_eq!(with("cache", "shared").unwrap(), Options::default(), "SQLite's own parameter");
    }
}
