//! Errors in bytes read from a device.

/// The defect of a structure that was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The structure does not start with its magic number.
    #[error("{structure}: wrong magic number")]
    Magic {
        /// The structure.
        structure: &'static str,
    },
    /// The checksum does not match.
    #[error("{structure}: checksum mismatch")]
    Checksum {
        /// The structure.
        structure: &'static str,
    },
    /// The format version is newer than this program can read.
    #[error(
        "format version {found} is newer than {supported}, the newest this program reads: use a newer syncline"
    )]
    Version {
        /// Version on the device.
        found: u32,
        /// Newest version understood.
        supported: u32,
    },
    /// The image has features that this program does not know.
    #[error(
        "the image has features that this program does not know (flags {unknown:#x}): use a newer syncline"
    )]
    Features {
        /// The unknown flags.
        unknown: u32,
    },
    /// The structure ends before its contents do.
    #[error("{structure}: truncated")]
    Truncated {
        /// The structure.
        structure: &'static str,
    },
    /// A field has a value that it can't have.
    #[error("{structure}: impossible {field}")]
    Field {
        /// The structure.
        structure: &'static str,
        /// The field.
        field: &'static str,
    },
}
