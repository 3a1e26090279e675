//! One entry of a queue: the memory of one request and its answer, and the commands about it.

use super::memory::Payload;
use crate::abi::{
    IN_HEADER_BYTES, InHeader, OUT_HEADER_BYTES, Opcode, RING_COMMIT_AND_FETCH, RING_REGISTER, ReadIn,
    RingCommand, RingHeaders, WRITE_PAYLOAD_OFFSET,
};
use crate::reply::Reply;
use crate::request::{ArgumentBytes, Request};
use io_uring::{opcode, squeue, types};
use std::os::fd::RawFd;
use syncline_device::{AlignedBuf, BLOCK_BYTES};
use zerocopy::{FromBytes, IntoBytes};

/// The kernel wants room for at least this much payload, whatever was negotiated.
const PAYLOAD_BYTES_MIN: usize = 8192;
/// From this length on, a READ's data is read straight into the entry's own memory and answered
/// from there. Below it, copying is cheaper.
const ROOM_BYTES_MIN: usize = 64 << 10;
/// Offset of the field `len` in a submission of 128 bytes (`struct io_uring_sqe`).
const SUBMISSION_LEN_OFFSET: usize = 24;

/// An entry. The kernel uses its memory from the submission of a command until that command
/// completes, and at no other time. In between, the holder of the entry owns the memory and reads
/// and writes it freely.
pub struct Entry {
    headers: AlignedBuf,
    payload: Payload,
    /// Headers and payload, as iovecs for the kernel.
    pieces: [libc::iovec; 2],
    queue: u16,
}

impl Entry {
    /// Payload memory of an entry, enough for the longest request and answer.
    pub fn payload_bytes(transfer_bytes_max: u32) -> usize {
        (transfer_bytes_max as usize).max(PAYLOAD_BYTES_MIN).next_multiple_of(BLOCK_BYTES)
    }

    /// An entry for `queue`.
    pub fn new(queue: u16, payload: Payload) -> Box<Self> {
        let mut headers = AlignedBuf::zeroed(size_of::<RingHeaders>());
        let pieces = [
            libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: size_of::<RingHeaders>() },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: payload.len() },
        ];
        Box::new(Self { headers, payload, pieces, queue })
    }

    /// The CPU whose callers' requests this entry carries.
    pub fn cpu(&self) -> usize {
        self.queue.into()
    }

    /// The command that offers the entry to the kernel. It points to memory of this entry, which
    /// must not move.
    pub fn register(&self, fuse: RawFd) -> squeue::Entry128 {
        let pieces_at = self.pieces.as_ptr().addr() as u64;
        let mut command = self.command(fuse, RING_REGISTER, 0, Some(pieces_at));
        // SAFETY: the entry is 128 bytes, laid out as the kernel's `struct io_uring_sqe`; `len` is
        // 4 of them, aligned. (The crate lets us set every field but this one.)
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
        RingHeaders::read_from_prefix(&self.headers).expect("a page holds the headers").0
    }

    /// The header of the received request.
    pub fn header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.headers().message).expect("there is room for it").0
    }

    /// The received request, copied into memory of its own: this entry's memory will carry the
    /// answer, and written data must not change any more (rule R7). `None` if the lengths are
    /// inconsistent.
    pub fn request(&mut self) -> Option<Request> {
        let (headers, header) = (self.headers(), self.header());
        let payload = &*self.payload.bytes()?.get_mut(..headers.payload_len as usize)?;
        // The kernel does not send the length of the first argument: it is what remains of the
        // total.
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
        let request = Request::new(header, arguments);
        if header.opcode == Opcode::Read as u32
            && let Ok(read) = request.arguments().take::<ReadIn>()
            && read.size as usize >= ROOM_BYTES_MIN
            && let Some(room) = self.payload.lend((read.size as usize).next_multiple_of(BLOCK_BYTES))
        {
            return Some(request.with_room(room));
        }
        Some(request)
    }

    /// Puts an answer to the received request into the entry and returns the command that sends it.
    /// `None` while the memory for it is lent.
    pub fn answer(&mut self, unique: u64, reply: &mut Reply, fuse: RawFd) -> Option<squeue::Entry128> {
        let mut header = reply.header(unique);
        let len = match reply.lies_at(self.payload.as_ptr()) {
            true => reply.len_bytes() - OUT_HEADER_BYTES,
            false => {
                if self.payload.bytes().is_none() {
                    // The answer itself may hold that memory, in the wrong order.
                    reply.own_data();
                }
                reply.copy_body(self.payload.bytes()?).unwrap_or_else(|| {
                    tracing::error!(unique, len = header.len, "an answer is too long; the caller gets EIO");
                    header = Reply::error(libc::EIO).header(unique);
                    0
                })
            }
        };
        let (headers, _) = RingHeaders::mut_from_prefix(&mut self.headers).expect("a page holds the headers");
        headers.message[..size_of_val(&header)].copy_from_slice(header.as_bytes());
        headers.flags = 0;
        headers.payload_len = len as u32;
        let commit_id = headers.commit_id;
        Some(self.command(fuse, RING_COMMIT_AND_FETCH, commit_id, None))
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Area;
    use super::*;
    use crate::abi::{GetXattrIn, WriteOut};
    use bytes::Bytes;

    fn entry(queue: u16, transfer_bytes_max: u32) -> Box<Entry> {
        let payload_bytes = Entry::payload_bytes(transfer_bytes_max);
        Entry::new(queue, Area::new(payload_bytes).unwrap().payload(0, payload_bytes))
    }

    /// Puts a request where the kernel would.
    fn fill(entry: &mut Entry, opcode: Opcode, argument: &[u8], payload: &[u8]) {
        let len = (IN_HEADER_BYTES + argument.len() + payload.len()) as u32;
        let header = InHeader { len, opcode: opcode as u32, unique: 6, ..InHeader::default() };
        let (headers, _) = RingHeaders::mut_from_prefix(&mut entry.headers).unwrap();
        headers.message[..IN_HEADER_BYTES].copy_from_slice(header.as_bytes());
        headers.argument[..argument.len()].copy_from_slice(argument);
        (headers.commit_id, headers.payload_len) = (77, payload.len() as u32);
        entry.payload.bytes().unwrap()[..payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn requests_are_what_they_would_be_over_dev_fuse() {
        let mut entry = entry(0, 1 << 20);
        let argument = GetXattrIn { size: 100, padding: 0 };
        fill(&mut entry, Opcode::GetXattr, argument.as_bytes(), b"user.name\0");
        let request = entry.request().unwrap();
        let mut arguments = request.arguments();
        assert_eq!(arguments.take::<GetXattrIn>().unwrap().size, 100);
        assert_eq!(arguments.name(), Ok(&b"user.name"[..]));
        assert_eq!(request.unique(), 6);
        // A request without a first argument.
        fill(&mut entry, Opcode::Lookup, b"", b"name\0");
        assert_eq!(entry.request().unwrap().arguments().name(), Ok(&b"name"[..]));
    }

    #[test]
    fn the_payload_of_a_write_is_copied_and_aligned() {
        let mut entry = entry(0, 1 << 20);
        for len in [0, 1, 4097, 65536, 1 << 20] {
            let data: Vec<u8> = (0..len).map(|index: usize| (index / 7) as u8).collect();
            fill(&mut entry, Opcode::Write, &[0; 40], &data);
            let request = entry.request().unwrap();
            entry.payload.bytes().unwrap().fill(0xff);
            assert_eq!(request.payload(), data, "{len}");
            assert_eq!(request.payload().as_ptr() as usize % BLOCK_BYTES, 0);
        }
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused() {
        let mut entry = entry(0, 1 << 20);
        fill(&mut entry, Opcode::GetAttr, &[0; 16], b"");
        assert!(entry.request().is_some());
        let set = |entry: &mut Entry, len: u32, payload_len: u32| {
            let (headers, _) = RingHeaders::mut_from_prefix(&mut entry.headers[..]).unwrap();
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
        let mut entry = entry(3, 128 << 10);
        fill(&mut entry, Opcode::Write, &[0; 40], b"data");
        let mut reply = Reply::fixed(&WriteOut { size: 4, padding: 0 });
        let message = *reply.header(6).as_bytes().first_chunk::<16>().unwrap();
        assert!(entry.answer(6, &mut reply, 0).is_some());
        let headers = entry.headers();
        assert_eq!((headers.payload_len, headers.commit_id), (8, 77));
        assert_eq!(headers.message[..16], message);
        assert_eq!(&entry.payload.bytes().unwrap()[..8], &[4, 0, 0, 0, 0, 0, 0, 0]);
        // An answer that does not fit becomes an error, not half an answer.
        let mut long = Reply::data(vec![Bytes::from(vec![1; (128 << 10) + 1])]);
        assert!(entry.answer(6, &mut long, 0).is_some());
        assert_eq!(entry.headers().payload_len, 0);
        assert_eq!(entry.headers().message[4..8], (-libc::EIO).to_ne_bytes());
    }

    fn read_request(entry: &mut Entry, size: u32) -> Request {
        let argument = ReadIn { size, ..ReadIn::default() };
        fill(entry, Opcode::Read, argument.as_bytes(), b"");
        entry.request().unwrap()
    }

    fn answered(entry: &mut Entry) -> Vec<u8> {
        let len = entry.headers().payload_len as usize;
        entry.payload.bytes().unwrap()[..len].to_vec()
    }

    #[test]
    fn data_read_into_the_entrys_memory_is_answered_from_there() {
        let mut entry = entry(0, 1 << 20);
        assert!(read_request(&mut entry, 4096).take_room().is_none());
        let mut room = read_request(&mut entry, 100_000).take_room().unwrap();
        assert_eq!(room.len(), 102_400);
        let pieces = [40_960, 61_440].map(|len| {
            let mut buf = room.take(len).unwrap().into_buf();
            buf.fill((len >> 12) as u8);
            buf.into_bytes()
        });
        let at = pieces[0].as_ptr();
        let mut reply = Reply::data(vec![pieces[0].clone(), pieces[1].slice(..59_040)]);
        drop((pieces, room));
        assert!(reply.lies_at(at));
        assert!(entry.answer(6, &mut reply, 0).is_some());
        drop(reply);
        assert_eq!(answered(&mut entry), [vec![10; 40_960], vec![15; 59_040]].concat());
    }

    #[test]
    fn data_in_the_wrong_place_is_copied_to_the_right_one() {
        let mut entry = entry(0, 1 << 20);
        let mut room = read_request(&mut entry, 131_072).take_room().unwrap();
        let pieces = [1, 2].map(|fill| {
            let mut buf = room.take(65_536).unwrap().into_buf();
            buf.fill(fill);
            buf.into_bytes()
        });
        drop(room);
        let [first, second] = pieces;
        // Not while somebody else may still hold the memory: what the device writes there must not
        // become part of an answer.
        let mut reply = Reply::data(vec![second.clone(), first]);
        assert!(entry.answer(6, &mut reply, 0).is_none(), "it is lent");
        drop(second);
        assert!(entry.answer(6, &mut reply, 0).is_some());
        assert_eq!(answered(&mut entry), [vec![2; 65_536], vec![1; 65_536]].concat());
    }

    #[test]
    fn an_error_waits_until_the_device_has_ended() {
        let mut entry = entry(0, 1 << 20);
        let reading = read_request(&mut entry, 1 << 20).take_room().unwrap().into_buf();
        let mut reply = Reply::error(libc::EIO);
        assert!(entry.answer(6, &mut reply, 0).is_none(), "it is lent");
        // Nor may the next request be taken.
        assert!(entry.request().is_none());
        drop(reading);
        assert!(entry.answer(6, &mut reply, 0).is_some());
        assert!(answered(&mut entry).is_empty());
    }
}
