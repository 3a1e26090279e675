//! A file's layout, compression and shared blocks: ioctls on an open file.

use super::client::{ControlError, failed};
use super::wire::IOCTL_TYPE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use syncline_fs::types::Algorithm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The requests about a file's blocks. (0x59 and 0x5a were for deduplication, and stay unused.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum BlocksCommand {
    /// How much the file uses alone and how much it shares: returns [`Usage`].
    Usage = 0x58,
    /// The file's layout on the device: returns [`Fragments`].
    Fragments = 0x5b,
    /// Defragments a part of the file: takes and returns [`DefragmentMessage`].
    Defragment = 0x5c,
    /// Returns or sets the file's compression, or rewrites a part of it: takes and returns
    /// [`CompressMessage`].
    Compress = 0x60,
}

/// The space that a file uses on the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Usage {
    /// Bytes of all its blocks, and of contents that are in its inode item.
    pub total_bytes: u64,
    /// Bytes of blocks that are shared with others.
    pub shared_bytes: u64,
}

/// A file's layout on the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fragments {
    /// Number of contiguous runs of blocks.
    pub fragments: u64,
    /// Bytes of blocks in these runs.
    pub bytes: u64,
}

/// The result of one step of defragmenting.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Defragmented {
    /// The file block at which to continue, if there is more to do.
    pub next: Option<u64>,
    /// Bytes rewritten.
    pub moved_bytes: u64,
    /// Bytes copied in vain, because they were overwritten in the meantime.
    pub overtaken_bytes: u64,
}

/// `first` is the block to begin at; `next`, `moved_bytes` and `overtaken_bytes` are the answer.
/// `next` is 0 at the end of the file.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DefragmentMessage {
    pub(crate) first: u64,
    pub(crate) unshare: u64,
    pub(crate) next: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) overtaken_bytes: u64,
}

/// A request about a file's compression, and its answer.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CompressMessage {
    /// One of the `COMPRESS_*`.
    pub(crate) action: u32,
    /// 0: none, 1: LZ4, 2: Zstandard. In the answer, the file's resulting algorithm.
    pub(crate) algorithm: u32,
    /// Where to rewrite; in the answer, where to continue, or `u64::MAX` at the end.
    pub(crate) offset: u64,
    /// Bytes rewritten.
    pub(crate) bytes: u64,
}

/// Returns the algorithm.
pub(crate) const COMPRESS_TELL: u32 = 0;
/// Sets the algorithm.
pub(crate) const COMPRESS_SET: u32 = 1;
/// Rewrites a part of the file.
pub(crate) const COMPRESS_REWRITE: u32 = 2;

/// The number of an algorithm in messages.
pub(crate) fn algorithm_number(algorithm: Option<Algorithm>) -> u32 {
    match algorithm {
        None => 0,
        Some(Algorithm::Lz4) => 1,
        Some(Algorithm::Zstd) => 2,
    }
}

/// The inverse of `algorithm_number`; `None` for an unknown number.
pub(crate) fn algorithm_of(number: u32) -> Option<Option<Algorithm>> {
    [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)].into_iter().find(|it| algorithm_number(*it) == number)
}

impl BlocksCommand {
    const ALL: [Self; 4] = [Self::Usage, Self::Fragments, Self::Defragment, Self::Compress];

    /// Length of the argument, the same in both directions.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Usage => size_of::<Usage>(),
            Self::Fragments => size_of::<Fragments>(),
            Self::Defragment => size_of::<DefragmentMessage>(),
            Self::Compress => size_of::<CompressMessage>(),
        }
    }

    /// The ioctl number, as built by `_IOWR`.
    fn number(self) -> u32 {
        (3 << 30) | ((self.bytes() as u32) << 16) | (IOCTL_TYPE << 8) | self as u32
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.number() == number)
    }
}

/// The space that the file uses on the device. `path` is for messages.
pub fn usage(file: &File, path: &Path) -> Result<Usage, ControlError> {
    let mut usage = Usage::default();
    ask(file, BlocksCommand::Usage, &mut usage).map_err(|source| failed(path, "du", source))?;
    Ok(usage)
}

/// The file's layout on the device; data that has not been written there does not count.
pub fn fragments(file: &File, path: &Path) -> Result<Fragments, ControlError> {
    let mut fragments = Fragments::default();
    ask(file, BlocksCommand::Fragments, &mut fragments)
        .map_err(|source| failed(path, "defragment", source))?;
    Ok(fragments)
}

/// Examines a part of the file from block `first` on, and rewrites scattered data contiguously.
/// Shared blocks are left alone unless `unshare`. For the file's owner and root.
pub fn defragment(file: &File, path: &Path, first: u64, unshare: bool) -> Result<Defragmented, ControlError> {
    let mut message =
        DefragmentMessage { first, unshare: u64::from(unshare), ..DefragmentMessage::default() };
    ask(file, BlocksCommand::Defragment, &mut message)
        .map_err(|source| failed(path, "defragment", source))?;
    let DefragmentMessage { next, moved_bytes, overtaken_bytes, .. } = message;
    Ok(Defragmented { next: (next > first).then_some(next), moved_bytes, overtaken_bytes })
}

/// The compression of data written to the file; for a directory, of files created in it.
pub fn compression(file: &File, path: &Path) -> Result<Option<Algorithm>, ControlError> {
    let answer = compress(file, path, CompressMessage { action: COMPRESS_TELL, ..Default::default() })?;
    algorithm_of(answer.algorithm)
        .ok_or_else(|| failed(path, "compress", io::Error::other("an answer of a later version")))
}

/// Sets the compression of data written from now on. For the owner and root.
pub fn set_compression(file: &File, path: &Path, algorithm: Option<Algorithm>) -> Result<(), ControlError> {
    let algorithm = algorithm_number(algorithm);
    compress(file, path, CompressMessage { action: COMPRESS_SET, algorithm, ..Default::default() }).map(drop)
}

/// Rewrites those contents of a file that are not stored the way the file's compression asks for,
/// and reports its position in the file to `progress`, in bytes. Returns the number of bytes
/// rewritten. For the owner and root.
pub fn rewrite(file: &File, path: &Path, mut progress: impl FnMut(u64)) -> Result<u64, ControlError> {
    let (mut offset, mut bytes) = (0, 0);
    while offset != u64::MAX {
        progress(offset);
        let message = CompressMessage { action: COMPRESS_REWRITE, offset, ..Default::default() };
        let answer = compress(file, path, message)?;
        bytes += answer.bytes;
        offset = answer.offset;
    }
    Ok(bytes)
}

fn compress(file: &File, path: &Path, mut message: CompressMessage) -> Result<CompressMessage, ControlError> {
    let asked = ask(file, BlocksCommand::Compress, &mut message);
    asked.map_err(|source| failed(path, "compress", source))?;
    Ok(message)
}

fn ask<T: IntoBytes + FromBytes>(file: &File, command: BlocksCommand, message: &mut T) -> io::Result<()> {
    debug_assert_eq!(size_of::<T>(), command.bytes());
    // SAFETY: the command's number tells the kernel to read and write exactly the size of `message`
    // at the pointer, and any bytes are a valid `T`.
    match unsafe { libc::ioctl(file.as_raw_fd(), command.number() as _, std::ptr::from_mut(message)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_lead_back_and_are_no_others() {
        for command in BlocksCommand::ALL {
            assert_eq!(BlocksCommand::from_number(command.number()), Some(command));
            assert_eq!(super::super::files::FilesCommand::from_number(command.number()), None);
        }
        assert_eq!(BlocksCommand::from_number(super::super::wire::COMMAND), None);
    }

    #[test]
    fn algorithms_lead_back() {
        for algorithm in [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)] {
            assert_eq!(algorithm_of(algorithm_number(algorithm)), Some(algorithm));
        }
        assert_eq!(algorithm_of(3), None);
    }
}
