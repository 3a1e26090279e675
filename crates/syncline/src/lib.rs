//! Syncline as a library: a crash-safe, checksummed filesystem in one file, inside your program.
//!
//! A [`Filesystem`] is an open image. Its calls have the shape of `std::fs`: they block, and their
//! errors convert to [`std::io::Error`]. The engine is the one that `syncline mount` runs, so an
//! image can be mounted one day and embedded the next.
//!
//! `sync_all` promises what fsync promises on a mount: when [`File::sync_all`] returns, the file
//! and every earlier change of names and attributes, by any caller, survive any crash.
//! [`Filesystem::sync_many`] does that for several files with one flush, all or nothing, and a
//! [`Transaction`] for any changes of names, contents and attributes, which other threads see all at once.
//! [`File::copy_range_to`] copies without writing the data again.
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
//! Each call with its effect once it has returned, and its cost:
//!
//! - [`File::sync_all`]: the file, and every earlier change of names and attributes by any caller,
//!   survive any crash. One cache flush, shared by all callers that wait; none if an earlier flush
//!   covered all that.
//! - [`File::sync_data`]: the file's contents, size and names survive any crash. One flush, shared
//!   in the same way; none if an earlier one covered them.
//! - [`Filesystem::sync_many`]: as `sync_all`, for several files, all or nothing. One flush.
//! - [`Transaction::commit`]: all changes of the transaction are made or none, for any crash and for other threads. One flush.
//! - [`Filesystem::sync`]: everything that was written survives any crash. A checkpoint.
//! - [`Filesystem::set_durability`]: in a tree of class `ordered`, `sync_all`, `sync_data` and `sync_many` fix the order
//!   and wait for no flush, which begins within the class's seconds; in one of class `strict`, every
//!   change is durable when it returns.
//! - [`Filesystem::barrier`]: later writes never survive without the earlier writes to the given
//!   files. No flush.
//! - [`Filesystem::create_snapshot`]: the current state is kept, durably. A checkpoint.
//! - [`File::copy_range_to`], [`Filesystem::copy`]: whole blocks are shared. No data is written
//!   again.
//! - Every other call: the change is visible to all. A crash may take back the newest changes of
//!   names and attributes, so that a prefix of their history remains, and unsynced data; it leaves
//!   no garbage. Costs memory only.
//!
//! A file of up to about 2 KiB lies in its inode; a larger one takes blocks of 4 KiB. Each block is
//! checked when it is read; a failed check is an error.
//!
//! # Errors
//!
//! The [`Error`] of a call that takes a path names the operation, the path and the cause.
//! [`Error::errno`] is the errno that a kernel filesystem would return. [`std::io::Error`] has the
//! same kind, with the errno in place of the message. After EIO from a sync, nothing is promised
//! for that file until a sync succeeds: data that could not be written stays in memory and is
//! written again. Opening a file that is not an image fails with `InvalidData`. Opening an image
//! that is open already fails with EBUSY, and the message names the process that has it; a process,
//! too, can open an image for writing only once.
//!
//! # Threads, processes, limits
//!
//! Linux only. All threads may use a [`Filesystem`] and a [`File`] at once. Calls block the calling
//! thread; async code should use a thread for blocking work. The engine has threads of its own, so
//! a child of fork(2) must not use handles that the parent opened. Permission bits are stored but
//! not enforced. Dropping the last handle closes the image, but only [`Filesystem::close`] returns
//! an error if data could not be written. Limits: at least 16 MiB for an image; at most 8 EiB for a
//! file and 255 bytes for a name.
//!
//! # When to use it
//!
//! For many files whose changes must be durable together and cheaply: documents, queues, mail,
//! uploads, indexes next to their data. A program that needs queries, or transactions that read, is
//! better served by a database; a program that never syncs gains nothing here.
#![forbid(unsafe_code)]

mod allocate;
mod directories;
mod durability;
mod error;
mod file;
mod file_attributes;
mod filesystem;
mod forks;
mod keys;
mod metadata;
mod names;
mod open_options;
mod options;
mod quotas;
mod read_dir;
mod share;
mod snapshots;
mod transaction;
mod walk;
mod walk_dir;
mod whole_files;
mod xattrs;

pub use directories::DirBuilder;
pub use error::{Error, Result};
pub use file::File;
pub use filesystem::{Filesystem, Statistics, format_device};
pub use forks::{Detached, Fork};
pub use keys::{add_key, forget_keys};
pub use metadata::Metadata;
pub use open_options::OpenOptions;
pub use options::{FormatOptions, ImageOptions};
pub use read_dir::{DirEntry, ReadDir};
pub use snapshots::Snapshot;
pub use syncline_fs::types::{FileType, RenameFlags, Statfs, Timestamp, XattrMode};
pub use syncline_fs::{
    AccessTime, Allocation, Change, ChangeKind, Durability, QuotaLimits, QuotaUsage, Receipt, Usage,
};
pub use syncline_store::RecoveryReport;
pub use transaction::Transaction;
pub use walk_dir::WalkDir;

/// Devices that hold an image; implement [`Device`](device::Device) to add a kind of your own.
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
