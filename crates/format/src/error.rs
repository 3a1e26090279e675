//! Why bytes from a device could not be understood.

/// What is wrong with a structure that was read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The structure does not start with its magic number.
    #[error("{structure}: wrong magic number")]
    Magic {
        /// Which structure.
        structure: &'static str,
    },
    /// The checksum does not hold.
    #[error("{structure}: checksum mismatch")]
    Checksum {
        /// Which structure.
        structure: &'static str,
    },
    /// The format version is not one this program reads.
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
        /// Which structure.
        structure: &'static str,
    },
    /// A field has a value that it can't have.
    #[error("{structure}: impossible {field}")]
    Field {
        /// Which structure.
        structure: &'static str,
        /// Which field.
        field: &'static str,
    },
}
