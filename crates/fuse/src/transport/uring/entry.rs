//! One entry of a queue: the memory of one request and its answer, and the commands about it.

use super::memory::Memory;
use crate::abi::{
    IN_HEADER_BYTES, InHeader, Opcode, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeaders,
    WRITE_PAYLOAD_OFFSET,
};
use crate::reply::Reply;
use crate::request::{ArgumentBytes, Request};
use io_uring::{opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;
use syncline_device::{AlignedBuf, BLOCK_BYTES};
use zerocopy::{FromBytes, IntoBytes};

/// The headers have the first page for themselves, so that the payload begins on a page.
const HEADERS_BYTES: usize = BLOCK_BYTES;
/// The kernel wants room for that much payload at least, whatever was negotiated.
const PAYLOAD_BYTES_MIN: usize = 8192;
/// Where the field `len` lies in a submission of 128 bytes (`struct io_uring_sqe`).
const SUBMISSION_LEN_OFFSET: usize = 24;

/// An entry. The kernel uses its memory from the submission of a command until that has completed, and at no other
/// time: whoever has it in hand then owns it, and reads and writes it freely.
pub struct Entry {
    memory: Memory,
    /// Headers and payload, as the kernel wants them told.
    pieces: [libc::iovec; 2],
    queue: u16,
}

impl Entry {
    /// An entry for `queue`, with room for the longest request and answer.
    pub fn new(queue: u16, transfer_bytes_max: u32) -> io::Result<Box<Self>> {
        let payload_bytes = (transfer_bytes_max as usize).max(PAYLOAD_BYTES_MIN);
        let mut memory = Memory::new(HEADERS_BYTES + payload_bytes)?;
        let start = memory.as_mut_ptr();
        let headers = libc::iovec { iov_base: start.cast(), iov_len: size_of::<RingHeaders>() };
        let payload_start = start.wrapping_add(HEADERS_BYTES);
        let payload = libc::iovec { iov_base: payload_start.cast(), iov_len: payload_bytes };
        Ok(Box::new(Self { memory, pieces: [headers, payload], queue }))
    }

    /// The CPU on which those ask whose requests it carries.
    pub fn cpu(&self) -> usize {
        self.queue.into()
    }

    /// The command that offers it to the kernel. It names memory of this entry, which must stay where it is.
    pub fn register(&self, fuse: RawFd) -> squeue::Entry128 {
        let pieces_at = self.pieces.as_ptr().addr() as u64;
        let mut command = self.command(fuse, RING_REGISTER, 0, Some(pieces_at));
        // SAFETY: the entry is 128 bytes, laid out as the kernel's `struct io_uring_sqe`; `len` is 4 of them, aligned.
        // (The crate lets us set every field but this one.)
        unsafe {
            let len = (&raw mut command).byte_add(SUBMISSION_LEN_OFFSET).cast::<u32>();
            len.write(self.pieces.len() as u32);
        }
        command
    }

    fn command(&self, fuse: RawFd, number: u32, commit_id: u64, at: Option<u64>) -> squeue::Entry128 {
        let command = RingCommand { commit_id, queue: self.queue, ..RingCommand::default() };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        opcode::UringCmd80::new(types::Fd(fuse), number).cmd(bytes).addr(at).build()
    }

    fn headers(&self) -> RingHeaders {
        RingHeaders::read_from_prefix(&self.memory).expect("a page holds the headers").0
    }

    /// The header of the request that came.
    pub fn header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.headers().message).expect("there is room for it").0
    }

    /// The request that came, on its own memory: this entry's is about to carry the answer, and data that was written
    /// must not change any more (rule R7). `None` if the lengths make no sense.
    pub fn request(&self) -> Option<Request> {
        let (headers, header) = (self.headers(), self.header());
        let payload = self.memory[HEADERS_BYTES..].get(..headers.payload_len as usize)?;
        // The kernel leaves out how long the first argument is: it is what remains of the whole.
        let argument_len = (header.len as usize).checked_sub(IN_HEADER_BYTES + payload.len())?;
        let argument = headers.argument.get(..argument_len)?;
        if header.opcode == Opcode::Write as u32 && argument_len == WRITE_PAYLOAD_OFFSET - IN_HEADER_BYTES {
            let mut data = AlignedBuf::for_read(payload.len());
            data[..payload.len()].copy_from_slice(payload);
            let data = data.into_bytes().slice(..payload.len());
            return Some(Request::with_payload(header, argument, data));
        }
        let mut arguments = ArgumentBytes::from_slice(argument);
        arguments.extend_from_slice(payload);
        Some(Request::new(header, arguments))
    }

    /// Puts an answer to the request that came in place; gives the command that sends it.
    pub fn answer(&mut self, unique: u64, reply: &Reply, fuse: RawFd) -> squeue::Entry128 {
        let (head, payload) = self.memory.split_at_mut(HEADERS_BYTES);
        let (headers, _) = RingHeaders::mut_from_prefix(head).expect("a page holds the headers");
        let mut header = reply.header(unique);
        let len = reply.copy_body(payload).unwrap_or_else(|| {
            tracing::error!(unique, len = header.len, "an answer is too long; the caller gets EIO");
            header = Reply::error(libc::EIO).header(unique);
            0
        });
        headers.message[..size_of_val(&header)].copy_from_slice(header.as_bytes());
        headers.flags = 0;
        headers.payload_len = len as u32;
        let commit_id = headers.commit_id;
        self.command(fuse, RING_COMMIT_AND_FETCH, commit_id, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{GetXattrIn, WriteOut};
    use bytes::Bytes;

    /// Puts a request where the kernel would.
    fn fill(entry: &mut Entry, opcode: Opcode, argument: &[u8], payload: &[u8]) {
        let len = (IN_HEADER_BYTES + argument.len() + payload.len()) as u32;
        let header = InHeader { len, opcode: opcode as u32, unique: 6, ..InHeader::default() };
        let (head, rest) = entry.memory.split_at_mut(HEADERS_BYTES);
        let (headers, _) = RingHeaders::mut_from_prefix(head).unwrap();
        headers.message[..IN_HEADER_BYTES].copy_from_slice(header.as_bytes());
        headers.argument[..argument.len()].copy_from_slice(argument);
        (headers.commit_id, headers.payload_len) = (77, payload.len() as u32);
        rest[..payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn requests_are_what_they_would_be_over_dev_fuse() {
        let mut entry = Entry::new(0, 1 << 20).unwrap();
        let argument = GetXattrIn { size: 100, padding: 0 };
        fill(&mut entry, Opcode::GetXattr, argument.as_bytes(), b"user.name\0");
        let request = entry.request().unwrap();
        let mut arguments = request.arguments();
        assert_eq!(arguments.take::<GetXattrIn>().unwrap().size, 100);
        assert_eq!(arguments.name(), Ok(&b"user.name"[..]));
        assert_eq!(request.unique(), 6);
        // Without a first argument.
        fill(&mut entry, Opcode::Lookup, b"", b"name\0");
        assert_eq!(entry.request().unwrap().arguments().name(), Ok(&b"name"[..]));
    }

    #[test]
    fn the_payload_of_a_write_is_copied_and_aligned() {
        let mut entry = Entry::new(0, 1 << 20).unwrap();
        for len in [0, 1, 4097, 65536, 1 << 20] {
            let data: Vec<u8> = (0..len).map(|index: usize| (index / 7) as u8).collect();
            fill(&mut entry, Opcode::Write, &[0; 40], &data);
            let request = entry.request().unwrap();
            entry.memory[HEADERS_BYTES..].fill(0xff);
            assert_eq!(request.payload(), data, "{len}");
            assert_eq!(request.payload().as_ptr() as usize % BLOCK_BYTES, 0);
        }
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused() {
        let mut entry = Entry::new(0, 1 << 20).unwrap();
        fill(&mut entry, Opcode::GetAttr, &[0; 16], b"");
        assert!(entry.request().is_some());
        let set = |entry: &mut Entry, len: u32, payload_len: u32| {
            let (headers, _) = RingHeaders::mut_from_prefix(&mut entry.memory[..]).unwrap();
            headers.message[..4].copy_from_slice(&len.to_ne_bytes());
            headers.payload_len = payload_len;
            entry.request().is_some()
        };
        assert!(set(&mut entry, 40 + 128, 0));
        assert!(!set(&mut entry, 40 + 129, 0));
        assert!(!set(&mut entry, 39, 0));
        assert!(!set(&mut entry, 40, 1));
        assert!(set(&mut entry, 40 + (1 << 20), 1 << 20));
        assert!(!set(&mut entry, 41 + (1 << 20), (1 << 20) + 1));
    }

    #[test]
    fn answers_lie_where_the_kernel_looks_for_them() {
        let mut entry = Entry::new(3, 128 << 10).unwrap();
        fill(&mut entry, Opcode::Write, &[0; 40], b"data");
        let reply = Reply::fixed(&WriteOut { size: 4, padding: 0 });
        let _ = entry.answer(6, &reply, 0);
        let headers = entry.headers();
        assert_eq!((headers.payload_len, headers.commit_id), (8, 77));
        assert_eq!(&headers.message[..16], reply.header(6).as_bytes());
        assert_eq!(&entry.memory[HEADERS_BYTES..][..8], &[4, 0, 0, 0, 0, 0, 0, 0]);
        // One that does not fit becomes an error, not half an answer.
        let _ = entry.answer(6, &Reply::data(vec![Bytes::from(vec![1; (128 << 10) + 1])]), 0);
        assert_eq!(entry.headers().payload_len, 0);
        assert_eq!(entry.headers().message[4..8], (-libc::EIO).to_ne_bytes());
    }
}
