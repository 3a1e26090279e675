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
//!
//! # What calls promise
//!
//! | call | when it has returned | cost |
//! |---|---|---|
//! | [`File::sync_all`], [`File::sync_data`] | the file, and every change of names and attributes made before by anybody, survive any crash | one cache flush, shared by all who wait; none if an earlier one covered the file |
//! | [`Filesystem::sync_many`] | the same for several files, all or nothing | one flush |
//! | [`Filesystem::sync`] | everything that was written | one flush |
//! | [`Filesystem::barrier`] | what is written later never survives without what was written before | no flush |
//! | [`Filesystem::create_snapshot`] | the state of this moment stays, durably | a checkpoint |
//! | [`File::copy_range_to`], [`Filesystem::copy`] | whole blocks are shared | no data is written again |
//! | every other call | it is visible to all. A crash may take back the newest changes of names and attributes, in order, and unsynced data; it leaves no garbage | memory |
//!
//! A file of up to some 2 KiB lies in its inode; every other one takes blocks of 4 KiB. Each block that is read is checked; what
//! fails the check is an error.
//!
//! # Errors
//!
//! An [`Error`] of a call that takes a path names the operation, the path and the cause; [`Error::errno`] is what a kernel
//! filesystem would answer, and [`std::io::Error`] has the same kind, in place of the words. EIO of a sync means that nothing is promised of that file until a sync succeeds: what
//! could not be written stays in memory and is written again. A file that is no image is `InvalidData`, an image that somebody
//! has open EBUSY, and the error's text names the process that has it; one process opens an image for writing once.
//!
//! # Threads, processes, limits
//!
//! Linux only. A [`Filesystem`] and a [`File`] may be used by all threads at once, and calls block the calling thread; from async
//! code, use a thread for blocking work. The engine has threads of its own, so a child of fork(2) must not use what the parent
//! opened. Permission bits are kept and not enforced. The last handle that is dropped closes the image, but only
//! [`Filesystem::close`] tells what could not be written. An image has 16 MiB at least; a file has 8 EiB at most, a name 255 bytes.
//!
//! # When to use it
//!
//! For many files whose changes must be durable together and cheaply: documents, queues, mail, uploads, indexes beside their
//! data. A program that needs queries or isolated transactions is better off with a database; one that never syncs gains
//! nothing here.
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
pub use syncline_fs::types::{FileType, RenameFlags, Statfs, Timestamp, XattrMode};
pub use syncline_fs::{
    AccessTime, Allocation, Change, ChangeKind, Deduplicated, QuotaLimits, QuotaUsage, Receipt, Usage,
};
pub use syncline_store::RecoveryReport;
pub use walk_dir::WalkDir;

/// Devices: what an image lies on, and how to bring a kind of your own ([`Device`](device::Device)).
pub mod device {
    pub use syncline_device::{
        AlignedBuf, BLOCK_BYTES, Claim, Completion, Device, DeviceError, DeviceExt, DeviceFuture, FileDevice,
        MemoryDevice, OpenOptions, Operation, Use, block_on,
    };
}

/// Causes of an [`Error`].
pub mod cause {
    pub use syncline_device::DeviceError;
    pub use syncline_fs::FsError;
    pub use syncline_store::StoreError;
}

/// The parts of [`Statistics`].
pub mod statistics {
    pub use syncline_fs::FsCounters;
    pub use syncline_store::CountersSnapshot;
}

/// The parts of a [`Receipt`].
pub mod receipt {
    pub use syncline_fs::{Call, Failed, Inodes, Submitted, Times, Why};
    pub use syncline_store::{BatchesTrace, Cover, DurableMark, ItemCounts, Stage};
}
