//! Answers on their way to the kernel: a header, a fixed part, and data that is not copied.

use crate::abi::{InvalidateInodeOut, NOTIFY_INVALIDATE_INODE, OUT_HEADER_BYTES, OutHeader};
use crate::page_cache::Unanswered;
use bytes::Bytes;
use smallvec::SmallVec;
use std::io::IoSlice;
use syncline_fs::types::Ino;
use zerocopy::{Immutable, IntoBytes};

/// An answer, or the statement that none is due.
#[derive(Debug, Default)]
pub struct Reply {
    error: i32,
    silent: bool,
    fixed: SmallVec<[u8; 144]>,
    data: Vec<Bytes>,
    /// An inode whose attributes this operation changed without the kernel's knowledge.
    stale_attributes: Option<Ino>,
    /// A file that this operation made larger.
    growth: Option<Unanswered>,
}

/// The most pieces that one writev takes (the kernel's UIO_MAXIOV, less header and fixed part).
const PIECES_MAX: usize = 1000;

impl Reply {
    /// Success, with nothing more to say.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The reply to a request that gets no answer.
    pub fn none() -> Self {
        Self { silent: true, ..Self::default() }
    }

    /// A failure.
    pub fn error(errno: i32) -> Self {
        debug_assert!(errno > 0, "an errno is positive");
        Self { error: -errno, ..Self::default() }
    }

    /// Success with one structure.
    pub fn fixed(value: &(impl IntoBytes + Immutable)) -> Self {
        Self { fixed: SmallVec::from_slice(value.as_bytes()), ..Self::default() }
    }

    /// Success with data.
    pub fn data(pieces: Vec<Bytes>) -> Self {
        let mut pieces = pieces;
        if pieces.len() > PIECES_MAX {
            pieces = vec![Bytes::from(pieces.concat())];
        }
        Self { data: pieces, ..Self::default() }
    }

    /// Adds data after the fixed part.
    pub fn with_data(mut self, data: impl Into<Bytes>) -> Self {
        self.data.push(data.into());
        self
    }

    /// Has the kernel drop its cached attributes of this inode before the answer is sent, if they are
    /// no longer right.
    pub fn with_stale_attributes(mut self, ino: Ino, are_stale: bool) -> Self {
        self.stale_attributes = are_stale.then_some(ino);
        self
    }

    /// The structure with which it answers, if any.
    pub fn fixed_part(&self) -> &[u8] {
        &self.fixed
    }

    /// Has the size from before this operation told until it [is ready](Self::ready).
    pub fn with_growth(mut self, growth: Option<Unanswered>) -> Self {
        self.growth = growth;
        self
    }

    /// The answer, about to leave. From here on the new size is told: once the answer has left, the
    /// caller may tell others to look.
    pub fn ready(mut self) -> Self {
        self.growth = None;
        self
    }

    /// True if nothing is to be sent.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// The errno, or zero.
    #[cfg(test)]
    pub fn errno(&self) -> i32 {
        -self.error
    }

    /// Length of the message.
    pub fn len_bytes(&self) -> usize {
        OUT_HEADER_BYTES + self.fixed.len() + self.data.iter().map(Bytes::len).sum::<usize>()
    }

    /// The header of this answer to request `unique`.
    pub fn header(&self, unique: u64) -> OutHeader {
        let len = u32::try_from(self.len_bytes()).expect("answers are bounded by the request's size");
        OutHeader { len, error: self.error, unique }
    }

    /// The whole message, in pieces.
    pub fn slices<'a>(&'a self, header: &'a OutHeader) -> SmallVec<[IoSlice<'a>; 8]> {
        let mut slices = SmallVec::new();
        slices.push(IoSlice::new(header.as_bytes()));
        if !self.fixed.is_empty() {
            slices.push(IoSlice::new(&self.fixed));
        }
        slices.extend(self.data.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)));
        slices
    }

    /// True if the message without its header is contiguous in memory at `start`, in one piece or
    /// several.
    pub fn lies_at(&self, start: *const u8) -> bool {
        let mut end = start.addr();
        self.fixed.is_empty()
            && !self.data.is_empty()
            && self.data.iter().all(|piece| {
                let follows = piece.as_ptr().addr() == end;
                end += piece.len();
                follows
            })
    }

    /// Copies the data into memory of the reply's own.
    pub fn own_data(&mut self) {
        self.data = vec![Bytes::from(self.data.concat())];
    }

    /// Copies the message without its header to the beginning of `room`, and returns its length;
    /// `None` if it is too long.
    pub fn copy_body(&self, room: &mut [u8]) -> Option<usize> {
        let mut copied = 0;
        for piece in std::iter::once(&self.fixed[..]).chain(self.data.iter().map(|piece| &piece[..])) {
            room.get_mut(copied..copied + piece.len())?.copy_from_slice(piece);
            copied += piece.len();
        }
        Some(copied)
    }

    /// The notification that must precede the answer, if there is one.
    pub fn notification(&self) -> Option<[u8; OUT_HEADER_BYTES + size_of::<InvalidateInodeOut>()]> {
        let ino = self.stale_attributes?;
        let mut message = [0; OUT_HEADER_BYTES + size_of::<InvalidateInodeOut>()];
        let header = OutHeader { len: message.len() as u32, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
        // A negative offset leaves the cached data alone.
        let body = InvalidateInodeOut { ino, offset: -1, len: 0 };
        message[..OUT_HEADER_BYTES].copy_from_slice(header.as_bytes());
        message[OUT_HEADER_BYTES..].copy_from_slice(body.as_bytes());
        Some(message)
    }

    /// The message without its header, for tests.
    #[cfg(test)]
    pub fn body(&self) -> Vec<u8> {
        let mut body = self.fixed.to_vec();
        self.data.iter().for_each(|piece| body.extend_from_slice(piece));
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::WriteOut;

    #[test]
    fn the_length_counts_header_fixed_part_and_data() {
        let reply = Reply::fixed(&WriteOut { size: 7, padding: 0 }).with_data(Bytes::from_static(b"abc"));
        let header = reply.header(9);
        assert_eq!((header.len, header.error, header.unique), (16 + 8 + 3, 0, 9));
        let message: usize = reply.slices(&header).iter().map(|slice| slice.len()).sum();
        assert_eq!(message, 27);
    }

    #[test]
    fn more_pieces_than_writev_takes_are_joined() {
        let pieces = (0..5000u32).map(|piece| Bytes::copy_from_slice(&piece.to_ne_bytes())).collect();
        let reply = Reply::data(pieces);
        let header = reply.header(1);
        assert_eq!(reply.slices(&header).len(), 2);
        assert_eq!(header.len as usize, OUT_HEADER_BYTES + 20_000);
        assert_eq!(reply.body()[4 * 4999..], 4999u32.to_ne_bytes());
    }

    #[test]
    fn a_body_is_copied_whole_or_not_at_all() {
        let reply = Reply::fixed(&WriteOut { size: 7, padding: 0 }).with_data(Bytes::from_static(b"abc"));
        let mut room = [9; 12];
        assert_eq!(reply.copy_body(&mut room), Some(11));
        assert_eq!(room, [7, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', 9]);
        assert_eq!(reply.copy_body(&mut room[..10]), None);
        assert_eq!(Reply::empty().copy_body(&mut []), Some(0));
    }

    #[test]
    fn errors_travel_negated() {
        assert_eq!(Reply::error(libc::ENOENT).header(1).error, -libc::ENOENT);
        assert_eq!(Reply::error(libc::ENOENT).errno(), libc::ENOENT);
    }
}
