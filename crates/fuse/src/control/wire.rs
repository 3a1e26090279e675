//! What a question and its answer look like. Both ends run on one machine, but may be of different versions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of the ioctl's argument, which carries the question in and the answer out. (A command's number has 14 bits
/// for this.)
pub(crate) const MESSAGE_BYTES: usize = 16128;
/// The letter that the numbers of our ioctls share.
pub(crate) const IOCTL_TYPE: u32 = 0xF5;
/// `_IOWR(0xF5, 0x53, MESSAGE_BYTES)`: a command of both directions, so that the kernel copies in and out.
pub(crate) const COMMAND: u32 = (3 << 30) | ((MESSAGE_BYTES as u32) << 16) | (IOCTL_TYPE << 8) | 0x53;
/// Begins every question and every answer.
pub(crate) const MAGIC: u32 = u32::from_ne_bytes(*b"Sync");
/// Longest name of a text.
pub(crate) const NAME_BYTES: usize = 32;
/// Most text in one answer.
pub(crate) const PAGE_BYTES: usize = MESSAGE_BYTES - size_of::<ControlOut>();

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Question {
    /// A page of a text.
    Text = 1,
    /// Write everything back and checkpoint.
    Sync = 2,
    /// Do what has this name, with `offset` as its argument; for the daemon's owner and root.
    Command = 3,
    /// A page of the paths of the inode whose number is the name, each followed by a NUL; for the daemon's owner and root.
    Paths = 4,
    /// Make a snapshot; its name follows the question, `offset` bytes long. For the daemon's owner and root.
    CreateSnapshot = 5,
    /// Delete one, in the same way.
    DeleteSnapshot = 6,
    /// Set the quota of the directory through which it is asked; the limits follow, 8 bytes each: bytes and inodes, the greatest
    /// number for one that stays. For the daemon's owner and root, as the next.
    SetQuota = 7,
    /// Remove that quota.
    RemoveQuota = 8,
    /// A page of a text (JSON) about that quota.
    Quota = 9,
    /// The same about all quotas; for the daemon's owner and root.
    Quotas = 10,
    /// Make the filesystem `offset` bytes large, the greatest number for all that its device has. The answer's `snapshot` is the size
    /// before, its `total` the size after. For the daemon's owner and root.
    Resize = 11,
}

impl Question {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let all =
            [Self::Text, Self::Sync, Self::Command, Self::Paths, Self::CreateSnapshot, Self::DeleteSnapshot];
        let later = [Self::SetQuota, Self::RemoveQuota, Self::Quota, Self::Quotas, Self::Resize];
        all.into_iter().chain(later).find(|&question| question as u32 == number)
    }
}

/// A question.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ControlIn {
    pub(crate) magic: u32,
    pub(crate) question: u32,
    /// Which snapshot of the text; zero takes a new one.
    pub(crate) snapshot: u64,
    /// Where in the text to go on; the argument of a command.
    pub(crate) offset: u64,
    /// The text's name, padded with zeros.
    pub(crate) name: [u8; NAME_BYTES],
}

/// An answer; a page of the text follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ControlOut {
    pub(crate) magic: u32,
    /// Length of the page.
    pub(crate) len: u32,
    pub(crate) snapshot: u64,
    /// Length of the whole text.
    pub(crate) total: u64,
}

/// As much as there is.
pub(crate) const SIZE_MAX: u64 = u64::MAX;
/// A limit that stays what it is.
pub(crate) const LIMIT_STAYS: u64 = u64::MAX;

const _: () = assert!(size_of::<ControlIn>() == 56);
const _: () = assert!(size_of::<ControlOut>() == 24);
const _: () = assert!(MESSAGE_BYTES < 1 << 14 && MESSAGE_BYTES.is_multiple_of(8));

impl ControlIn {
    /// A question about the text `name`; `None` if a name of that length is not possible.
    pub(crate) fn new(question: Question, name: &str, snapshot: u64, offset: u64) -> Option<Self> {
        let mut padded = [0; NAME_BYTES];
        padded.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { magic: MAGIC, question: question as u32, snapshot, offset, name: padded })
    }

    /// The name without its padding.
    pub(crate) fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(NAME_BYTES);
        &self.name[..end]
    }

    /// The answer that says nothing but "done".
    pub(crate) fn empty_answer(&self) -> Vec<u8> {
        answer(0, 0, &[])
    }
}

/// A whole answer.
pub(crate) fn answer(snapshot: u64, total: u64, page: &[u8]) -> Vec<u8> {
    let header = ControlOut { magic: MAGIC, len: page.len() as u32, snapshot, total };
    let mut message = Vec::with_capacity(MESSAGE_BYTES);
    message.extend_from_slice(header.as_bytes());
    message.extend_from_slice(page);
    // The kernel copies out exactly what it was promised.
    message.resize(MESSAGE_BYTES, 0);
    message
}
