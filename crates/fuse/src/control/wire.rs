//! The layout of a question and its answer. Both ends run on one machine, but may be of different
//! versions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length of the ioctl's argument, which carries the question in and the answer out. (A command's
/// number has 14 bits for this.)
pub(crate) const MESSAGE_BYTES: usize = 16128;
/// The letter shared by the numbers of our ioctls.
pub(crate) const IOCTL_TYPE: u32 = 0xF5;
/// `_IOWR(0xF5, 0x53, MESSAGE_BYTES)`: a command of both directions, so the kernel copies in and
/// out.
pub(crate) const COMMAND: u32 = (3 << 30) | ((MESSAGE_BYTES as u32) << 16) | (IOCTL_TYPE << 8) | 0x53;
/// Begins every question and every answer.
pub(crate) const MAGIC: u32 = u32::from_ne_bytes(*b"Sync");
/// Longest name of a text.
pub(crate) const NAME_BYTES: usize = 32;
/// The most text in one answer.
pub(crate) const PAGE_BYTES: usize = MESSAGE_BYTES - size_of::<ControlOut>();

/// The kinds of question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Question {
    /// A page of a text.
    Text = 1,
    /// Write everything back and checkpoint.
    Sync = 2,
    /// Run the command of this name, with `offset` as its argument; for the daemon's owner and
    /// root.
    Command = 3,
    /// A page of the paths of an inode, each followed by a NUL; the name is the inode number. For
    /// the daemon's owner and root.
    Paths = 4,
    /// Make a snapshot, or a hold of one for a fork; its name follows the question, `offset` bytes long.
    /// For the daemon's owner and root.
    CreateSnapshot = 5,
    /// Delete a snapshot or a hold; its name follows the question, `offset` bytes long. For the daemon's
    /// owner and root.
    DeleteSnapshot = 6,
    /// Set the quota of the directory that the ioctl is called on. The limits follow, 8 bytes each:
    /// bytes and inodes; `u64::MAX` leaves a limit as it is. For the daemon's owner and root.
    SetQuota = 7,
    /// Remove that quota; for the daemon's owner and root.
    RemoveQuota = 8,
    /// A page of a text (JSON) about that quota.
    Quota = 9,
    /// A page of a text (JSON) about all quotas; for the daemon's owner and root.
    Quotas = 10,
    /// Grow the filesystem to `offset` bytes; `u64::MAX` means all of its device. In the answer,
    /// `snapshot` is the size before and `total` the size after. For the daemon's owner and root.
    Resize = 11,
    /// Part of a stream that is received: `begin` (a request in JSON follows the question), `take` (bytes
    /// of the stream follow) or `end`, as the name says; `offset` is the length of the rest. In the
    /// answer to `begin`, and in the other questions, `snapshot` is the number of the transfer. The
    /// answer to `end` is the outcome, in JSON. EAGAIN: ask again in a moment. For the daemon's owner and
    /// root.
    Receive = 12,
    /// Make copies of files in the directory that the ioctl is called on. The question is followed by
    /// `offset` bytes of entries: for each file its inode number (8 bytes), the length of the copy's name (2
    /// bytes) and the name. In the answer, `total` is the number of copies that were made, `snapshot` the
    /// bytes that they share, and the page is the errno (4 bytes) of the file behind them; 0 if there is
    /// none, EOPNOTSUPP if it has to be copied step by step. For processes with CAP_DAC_READ_SEARCH and
    /// CAP_SYS_ADMIN.
    CloneFiles = 13,
}

impl Question {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let all =
            [Self::Text, Self::Sync, Self::Command, Self::Paths, Self::CreateSnapshot, Self::DeleteSnapshot];
        let later =
            [Self::SetQuota, Self::RemoveQuota, Self::Quota, Self::Quotas, Self::Resize, Self::Receive];
        let latest = [Self::CloneFiles];
        all.into_iter().chain(later).chain(latest).find(|&question| question as u32 == number)
    }
}

/// A question.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ControlIn {
    pub(crate) magic: u32,
    pub(crate) question: u32,
    /// The snapshot of the text; zero takes a new one.
    pub(crate) snapshot: u64,
    /// Where in the text to continue; for a command, its argument.
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

/// A size that stands for all of the device.
pub(crate) const SIZE_MAX: u64 = u64::MAX;
/// Leaves a limit as it is.
pub(crate) const LIMIT_STAYS: u64 = u64::MAX;

const _: () = assert!(size_of::<ControlIn>() == 56);
const _: () = assert!(size_of::<ControlOut>() == 24);
const _: () = assert!(MESSAGE_BYTES < 1 << 14 && MESSAGE_BYTES.is_multiple_of(8));

impl ControlIn {
    /// A question about the text `name`; `None` if the name is too long.
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

    /// An answer that says only "done".
    pub(crate) fn empty_answer(&self) -> Vec<u8> {
        answer(0, 0, &[])
    }
}

/// A complete answer.
pub(crate) fn answer(snapshot: u64, total: u64, page: &[u8]) -> Vec<u8> {
    let header = ControlOut { magic: MAGIC, len: page.len() as u32, snapshot, total };
    let mut message = Vec::with_capacity(MESSAGE_BYTES);
    message.extend_from_slice(header.as_bytes());
    message.extend_from_slice(page);
    // The kernel copies out exactly the promised length.
    message.resize(MESSAGE_BYTES, 0);
    message
}
