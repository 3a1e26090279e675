//! Syncline as a library: a crash-safe, checksummed filesystem in one file, inside your program.
//!
//! A [`Filesystem`] is an open image. Its calls have the shape of `std::fs`: they block, and their errors convert to
//! [`std::io::Error`]. It is the same engine that `syncline mount` serves, so an image can be mounted one day and embedded the
//! next.
//!
//! What `sync_all` promises is what fsync promises on a mount: when [`File::sync_all`] returns, the file and every change of
//! names and attributes made before, by anybody, survive any crash. [`Filesystem::sync_many`] does that for several files with
//! one flush, all or nothing. [`File::copy_range_to`] copies without writing the data again.
//!
//! ```
//! use std::io::{Read, Seek, SeekFrom, Write};
//! use syncline::{Filesystem, FormatOptions, ImageOptions, OpenOptions};
//!
//! # fn main() -> std::io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("notes.img");
//! let fs = Filesystem::create(&image, 32 << 20, &FormatOptions::default())?;
//! fs.create_dir_all("/notes/2024")?;
//!
//! let mut file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/notes/2024/first")?;
//! file.write_all(b"kept for good")?;
//! file.sync_all()?; // one flush
//!
//! let other = fs.create_file("/notes/2024/second")?;
//! other.write_all_at(b"together with the first, or not at all", 0)?;
//! file.set_len(4)?;
//! fs.sync_many(&[&file, &other])?; // one flush again
//!
//! let mut text = String::new();
//! file.seek(SeekFrom::Start(0))?;
//! file.read_to_string(&mut text)?;
//! assert_eq!(text, "kept");
//! drop((file, other));
//! fs.close()?;
//!
//! let fs = Filesystem::open(&image, ImageOptions::default())?;
//! assert_eq!(fs.read("/notes/2024/second")?.len(), 38);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod allocate;
mod directories;
mod error;
mod file;
mod file_attributes;
mod filesystem;
mod metadata;
mod names;
mod open_options;
mod options;
mod quotas;
mod read_dir;
mod share;
mod snapshots;
mod walk;
mod walk_dir;
mod whole_files;
mod xattrs;

pub use directories::DirBuilder;
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{Filesystem, Statistics, format_device};
pub use metadata::Metadata;
pub use open_options::OpenOptions;
pub use options::{FormatOptions, ImageOptions};
pub use read_dir::{DirEntry, ReadDir};
pub use snapshots::Snapshot;
pub use syncline_device as device;
pub use syncline_fs::types::{FileType, RenameFlags, Statfs, Timestamp, XattrMode};
pub use syncline_fs::{
    AccessTime, Allocation, Change, ChangeKind, Deduplicated, Options as EngineOptions, QuotaLimits,
    QuotaUsage, Receipt, Usage,
};
pub use syncline_store::{RecoveryReport, StoreOptions};
pub use walk_dir::WalkDir;

/// What a [`Receipt`] consists of.
pub mod receipt {
    pub use syncline_fs::{Call, Failed, Inodes, Submitted, Times, Why};
    pub use syncline_store::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage};
}
