//! What a file's blocks are, whether others use them too, and making equal ones one: ioctls on an open file.

use super::client::{ControlError, failed};
use super::wire::IOCTL_TYPE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use syncline_fs::Deduplicated;
use syncline_fs::types::Algorithm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most blocks that one question tells of.
pub const BLOCKS_MAX: usize = 640;

/// What is asked about a file's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum BlocksCommand {
    /// What the file uses for itself and what it shares: [`Usage`] comes back.
    Usage = 0x58,
    /// Its blocks on the device with their checksums: [`BlocksPage`] goes in and comes back.
    Blocks = 0x59,
    /// Compares a range with one of another file and shares what is equal: [`DedupeMessage`] goes in and comes back.
    Dedupe = 0x5a,
    /// How the file lies on the device: [`Fragments`] comes back.
    Fragments = 0x5b,
    /// Puts a part of the file together: [`DefragmentMessage`] goes in and comes back.
    Defragment = 0x5c,
    /// Tells or sets how the file is compressed, or rewrites a part of it: [`CompressMessage`] goes in and comes back.
    Compress = 0x60,
}

/// What a file uses on the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Usage {
    /// Bytes of all its blocks, and of contents in its inode item.
    pub total_bytes: u64,
    /// Bytes of blocks that others use too.
    pub shared_bytes: u64,
}

/// How a file lies on the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Fragments {
    /// Runs of blocks that lie one after the other.
    pub fragments: u64,
    /// Bytes of blocks in them.
    pub bytes: u64,
}

/// What one step of defragmenting did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Defragmented {
    /// The block of the file to go on with, if there are more.
    pub next: Option<u64>,
    /// Bytes written again.
    pub moved_bytes: u64,
    /// Bytes copied for nothing, since somebody wrote there meanwhile.
    pub overtaken_bytes: u64,
}

/// Where to begin; `next`, `moved_bytes` and `overtaken_bytes` are the answer. `next` is 0 at the end of the file.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DefragmentMessage {
    pub(crate) first: u64,
    pub(crate) unshare: u64,
    pub(crate) next: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) overtaken_bytes: u64,
}

/// A block of a file as the device has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Block {
    /// Its number in the file.
    pub number: u64,
    /// Where it lies on the device.
    pub addr: u64,
    /// CRC32C of its contents.
    pub checksum: u32,
    padding: u32,
}

/// Blocks from `first` on; as a question, without them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BlocksPage {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) blocks: [Block; BLOCKS_MAX],
}

/// Two ranges to be compared; the second is of the file that the ioctl is on. `status` and `bytes` are the answer.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DedupeMessage {
    pub(crate) from_inode: u64,
    pub(crate) from_offset: u64,
    pub(crate) to_offset: u64,
    pub(crate) len: u64,
    pub(crate) bytes: u64,
    pub(crate) status: u32,
    pub(crate) padding: u32,
}

/// About a file's compression.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CompressMessage {
    /// One of the `COMPRESS_*`.
    pub(crate) action: u32,
    /// 0: none, 1: LZ4, 2: Zstandard. What the file has in the end, in the answer.
    pub(crate) algorithm: u32,
    /// Where to rewrite, and where to go on: `u64::MAX` at the end.
    pub(crate) offset: u64,
    /// Bytes that were written anew.
    pub(crate) bytes: u64,
}

/// Tells.
pub(crate) const COMPRESS_TELL: u32 = 0;
/// Sets the algorithm.
pub(crate) const COMPRESS_SET: u32 = 1;
/// Writes a part of the file anew.
pub(crate) const COMPRESS_REWRITE: u32 = 2;

/// The number of an algorithm in messages.
pub(crate) fn algorithm_number(algorithm: Option<Algorithm>) -> u32 {
    match algorithm {
        None => 0,
        Some(Algorithm::Lz4) => 1,
        Some(Algorithm::Zstd) => 2,
    }
}

/// The inverse; `None` for a number that stands for nothing.
pub(crate) fn algorithm_of(number: u32) -> Option<Option<Algorithm>> {
    [None, Some(Algorithm::Lz4), Some(Algorithm::Zstd)].into_iter().find(|it| algorithm_number(*it) == number)
}

const _: () = assert!(size_of::<BlocksPage>() < 1 << 14);

impl Block {
    pub(crate) fn new(number: u64, addr: u64, checksum: u32) -> Self {
        Self { number, addr, checksum, padding: 0 }
    }
}

impl BlocksCommand {
    const ALL: [Self; 6] =
        [Self::Usage, Self::Blocks, Self::Dedupe, Self::Fragments, Self::Defragment, Self::Compress];

    /// Length of the argument, which goes in and comes out.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Usage => size_of::<Usage>(),
            Self::Blocks => size_of::<BlocksPage>(),
            Self::Dedupe => size_of::<DedupeMessage>(),
            Self::Fragments => size_of::<Fragments>(),
            Self::Defragment => size_of::<DefragmentMessage>(),
            Self::Compress => size_of::<CompressMessage>(),
        }
    }

    /// The number of the ioctl, as `_IOWR` makes it.
    fn number(self) -> u32 {
        (3 << 30) | ((self.bytes() as u32) << 16) | (IOCTL_TYPE << 8) | self as u32
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.number() == number)
    }
}

/// Status and bytes of the answer.
pub(crate) fn to_wire(answer: Deduplicated) -> (u32, u64) {
    match answer {
        Deduplicated::Shared(bytes) => (0, bytes),
        Deduplicated::Already(bytes) => (1, bytes),
        Deduplicated::Differ => (2, 0),
    }
}

fn from_wire(status: u32, bytes: u64) -> io::Result<Deduplicated> {
    match status {
        0 => Ok(Deduplicated::Shared(bytes)),
        1 => Ok(Deduplicated::Already(bytes)),
        2 => Ok(Deduplicated::Differ),
        _ => Err(io::Error::other("an answer of a later version")),
    }
}

/// What the file uses on the device. `path` is for messages.
pub fn usage(file: &File, path: &Path) -> Result<Usage, ControlError> {
    let mut usage = Usage::default();
    ask(file, BlocksCommand::Usage, &mut usage).map_err(|source| failed(path, "du", source))?;
    Ok(usage)
}

/// The file's blocks from number `first` on, at most [`BLOCKS_MAX`]; what is not written yet is not among them. For the
/// file's owner and root.
pub fn blocks(file: &File, path: &Path, first: u64) -> Result<Vec<Block>, ControlError> {
    let mut page = Box::new(BlocksPage { first, count: 0, blocks: [Block::default(); BLOCKS_MAX] });
    ask(file, BlocksCommand::Blocks, &mut *page).map_err(|source| failed(path, "dedupe", source))?;
    Ok(page.blocks[..(page.count as usize).min(BLOCKS_MAX)].to_vec())
}

/// Compares `len` bytes of the file with inode number `from` with as many of `to`, and shares what is equal. For the owner
/// of both files and root.
pub fn dedupe(
    from: (u64, u64),
    to: (&File, u64),
    len: u64,
    path: &Path,
) -> Result<Deduplicated, ControlError> {
    let mut message = DedupeMessage {
        from_inode: from.0,
        from_offset: from.1,
        to_offset: to.1,
        len,
        ..DedupeMessage::default()
    };
    ask(to.0, BlocksCommand::Dedupe, &mut message)
        .and_then(|()| from_wire(message.status, message.bytes))
        .map_err(|source| failed(path, "dedupe", source))
}

/// How the file lies on the device; what is not written yet doesn't count.
pub fn fragments(file: &File, path: &Path) -> Result<Fragments, ControlError> {
    let mut fragments = Fragments::default();
    ask(file, BlocksCommand::Fragments, &mut fragments)
        .map_err(|source| failed(path, "defragment", source))?;
    Ok(fragments)
}

/// Looks at a part of the file from block `first` on, and writes what lies scattered there again, together. What others use too is
/// left alone, unless `unshare`. For the file's owner and root.
pub fn defragment(file: &File, path: &Path, first: u64, unshare: bool) -> Result<Defragmented, ControlError> {
    let mut message =
        DefragmentMessage { first, unshare: u64::from(unshare), ..DefragmentMessage::default() };
    ask(file, BlocksCommand::Defragment, &mut message)
        .map_err(|source| failed(path, "defragment", source))?;
    let DefragmentMessage { next, moved_bytes, overtaken_bytes, .. } = message;
    Ok(Defragmented { next: (next > first).then_some(next), moved_bytes, overtaken_bytes })
}

/// How what is written to the file is compressed, or what is made in the directory.
pub fn compression(file: &File, path: &Path) -> Result<Option<Algorithm>, ControlError> {
    let answer = compress(file, path, CompressMessage { action: COMPRESS_TELL, ..Default::default() })?;
    algorithm_of(answer.algorithm)
        .ok_or_else(|| failed(path, "compress", io::Error::other("an answer of a later version")))
}

/// Sets how what is written is compressed. For the owner and root.
pub fn set_compression(file: &File, path: &Path, algorithm: Option<Algorithm>) -> Result<(), ControlError> {
    let algorithm = algorithm_number(algorithm);
    compress(file, path, CompressMessage { action: COMPRESS_SET, algorithm, ..Default::default() }).map(drop)
}

/// Writes a file's contents anew where they do not lie as it asks, and tells `progress` how far it is, in bytes of the file. Bytes that
/// were written. For the owner and root.
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
    // SAFETY: the command's number says that the kernel reads and writes as many bytes at the pointer as `message` has, and
    // any bytes are a valid `T`.
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

    #[test]
    fn answers_lead_back() {
        for answer in [Deduplicated::Shared(7), Deduplicated::Already(8), Deduplicated::Differ] {
            let (status, bytes) = to_wire(answer);
            assert_eq!(from_wire(status, bytes).unwrap(), answer);
        }
        assert!(from_wire(3, 0).is_err());
    }
}
