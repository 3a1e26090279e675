//! Receives requests so that the payload of a WRITE lands where it can stay.
//!
//! One read fills three pieces of memory: the 80 bytes that come before a WRITE's payload; a buffer
//! of the payload's expected length, at an address that is a multiple of 4096, which the request
//! then owns; and an overflow area for anything longer than expected. A writer's next WRITE is
//! usually as long as its last, so the guess is usually right and nothing is copied. When it is
//! wrong, the payload is copied into a buffer of its own length, so that a small write never holds
//! on to a large buffer.

use super::connection::Connection;
use crate::abi::{IN_HEADER_BYTES, InHeader, Opcode, WRITE_PAYLOAD_OFFSET};
use crate::request::{ArgumentBytes, Request};
use bytes::Bytes;
use std::io::{self, IoSliceMut};
use syncline_device::{AlignedBuf, BLOCK_BYTES};
use zerocopy::FromBytes;

/// Receives the requests of one connection.
pub struct Receiver {
    head: [u8; WRITE_PAYLOAD_OFFSET],
    payload: AlignedBuf,
    overflow: AlignedBuf,
}

/// The result of looking for a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub enum Received {
    /// A request.
    Request(Request),
    /// There is none.
    Nothing,
    /// Something that is not a valid request.
    Garbage,
    /// The connection has ended.
    Ended,
}

impl Receiver {
    /// A receiver for requests with up to `transfer_bytes_max` bytes of payload.
    pub fn new(transfer_bytes_max: u32) -> Self {
        // The overflow area alone holds the largest request: the kernel refuses a smaller buffer.
        let overflow = AlignedBuf::zeroed(transfer_bytes_max as usize + BLOCK_BYTES);
        Self { head: [0; WRITE_PAYLOAD_OFFSET], payload: AlignedBuf::zeroed(BLOCK_BYTES), overflow }
    }

    /// Receives one request, if there is one.
    pub fn receive(&mut self, connection: &Connection) -> io::Result<Received> {
        let mut pieces = [
            IoSliceMut::new(&mut self.head),
            IoSliceMut::new(&mut self.payload),
            IoSliceMut::new(&mut self.overflow),
        ];
        match connection.read(&mut pieces) {
            Ok(len) => Ok(self.take(len).map_or(Received::Garbage, Received::Request)),
            Err(error) => match error.raw_os_error() {
                // ENOENT: the request was withdrawn while it was being handed over.
                Some(libc::EAGAIN | libc::EINTR | libc::ENOENT) => Ok(Received::Nothing),
                Some(libc::ENODEV | libc::ECONNABORTED) => Ok(Received::Ended),
                _ => Err(error),
            },
        }
    }

    /// The request in the first `len` bytes.
    fn take(&mut self, len: usize) -> Option<Request> {
        if len < IN_HEADER_BYTES {
            return None;
        }
        let (header, _) = InHeader::read_from_prefix(&self.head).ok()?;
        if header.len as usize != len {
            return None;
        }
        if header.opcode == Opcode::Write as u32 && len >= WRITE_PAYLOAD_OFFSET {
            let arguments = ArgumentBytes::from_slice(&self.head[IN_HEADER_BYTES..]);
            let payload = self.take_payload(len - WRITE_PAYLOAD_OFFSET);
            return Some(Request::with_payload(header, arguments, payload));
        }
        let mut arguments = ArgumentBytes::with_capacity(len - IN_HEADER_BYTES);
        let head_end = len.min(WRITE_PAYLOAD_OFFSET);
        arguments.extend_from_slice(&self.head[IN_HEADER_BYTES..head_end]);
        self.copy_payload(len - head_end, &mut arguments);
        Some(Request::new(header, arguments))
    }

    /// Appends the `len` bytes after the head.
    fn copy_payload(&self, len: usize, into: &mut ArgumentBytes) {
        let expected = len.min(self.payload.len());
        into.extend_from_slice(&self.payload[..expected]);
        into.extend_from_slice(&self.overflow[..len - expected]);
    }

    fn take_payload(&mut self, len: usize) -> Bytes {
        let capacity = self.payload.len();
        // The buffer grows at once and shrinks gradually.
        let next = AlignedBuf::for_read(buffer_len(len.max(capacity / 4)));
        // More than half of the buffer is used: hand it over. (Less would waste memory while the
        // data is dirty.)
        let fits = len <= capacity && len > capacity / 2;
        if fits {
            return std::mem::replace(&mut self.payload, next).into_bytes().slice(..len);
        }
        let mut copy = AlignedBuf::for_read(len);
        let expected = len.min(capacity);
        copy[..expected].copy_from_slice(&self.payload[..expected]);
        copy[expected..len].copy_from_slice(&self.overflow[..len - expected]);
        self.payload = next;
        copy.into_bytes().slice(..len)
    }
}

/// The length of the buffer for an expected payload of `len` bytes: a power-of-two number of
/// blocks, because dropped buffers of these sizes are kept for reuse. (A buffer that is handed over
/// is at least half used.)
fn buffer_len(len: usize) -> usize {
    len.next_power_of_two().max(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// Puts a message where a read would have put it.
    fn fill(receiver: &mut Receiver, opcode: Opcode, rest: &[u8]) -> Option<Request> {
        let len = IN_HEADER_BYTES + rest.len();
        let header = InHeader { len: len as u32, opcode: opcode as u32, ..InHeader::default() };
        let message = [header.as_bytes(), rest].concat();
        let (head, rest) = message.split_at(len.min(WRITE_PAYLOAD_OFFSET));
        receiver.head[..head.len()].copy_from_slice(head);
        let (payload, overflow) = rest.split_at(rest.len().min(receiver.payload.len()));
        receiver.payload[..payload.len()].copy_from_slice(payload);
        receiver.overflow[..overflow.len()].copy_from_slice(overflow);
        receiver.take(len)
    }

    fn write(receiver: &mut Receiver, data: &[u8]) -> Bytes {
        let request = fill(receiver, Opcode::Write, &[&[0; 40], data].concat()).unwrap();
        request.payload()
    }

    #[test]
    fn payloads_of_every_length_come_whole_and_aligned() {
        let mut receiver = Receiver::new(1 << 20);
        for len in [1, 4096, 4097, 65536, 100, 1 << 20, 65536, 65535, 16384, 3, 1 << 20, 0, 5] {
            let data: Vec<u8> = (0..len).map(|index: usize| (index / 7) as u8).collect();
            let payload = write(&mut receiver, &data);
            assert_eq!(payload, data, "{len}");
            assert_eq!(payload.as_ptr() as usize % BLOCK_BYTES, 0, "{len}");
        }
    }

    #[test]
    fn repeated_lengths_are_not_copied() {
        let mut receiver = Receiver::new(1 << 20);
        for len in [4096, 65536, 1 << 20] {
            let data = vec![1; len];
            write(&mut receiver, &data);
            for _ in 0..3 {
                let expected_at = receiver.payload.as_ptr();
                assert_eq!(write(&mut receiver, &data).as_ptr(), expected_at, "{len}");
            }
        }
    }

    #[test]
    fn a_small_write_holds_no_large_buffer() {
        let mut receiver = Receiver::new(1 << 20);
        write(&mut receiver, &vec![1; 1 << 20]);
        let large = receiver.payload.as_ptr();
        assert_ne!(write(&mut receiver, &[1; 4096]).as_ptr(), large);
        for _ in 0..10 {
            write(&mut receiver, &[1; 4096]);
        }
        assert_eq!(receiver.payload.len(), 4096);
    }

    #[test]
    fn other_requests_come_in_one_piece() {
        let mut receiver = Receiver::new(1 << 20);
        let name: Vec<u8> = (0..9000).map(|index| (index % 251) as u8 + 1).chain([0]).collect();
        for len in [1, 39, 40, 41, 4136, 4137, 9001] {
            let rest = &name[name.len() - len..];
            let request = fill(&mut receiver, Opcode::SetXattr, rest).unwrap();
            assert_eq!(request.arguments().bytes(len).unwrap(), rest);
        }
    }

    #[test]
    fn wrong_lengths_are_garbage() {
        let mut receiver = Receiver::new(128 << 10);
        fill(&mut receiver, Opcode::GetAttr, &[0; 16]).unwrap();
        assert!(receiver.take(39).is_none());
        assert!(receiver.take(57).is_none());
        // A WRITE too short for its own arguments is still a request; the table refuses it.
        assert!(fill(&mut receiver, Opcode::Write, &[0; 39]).unwrap().payload().is_empty());
    }
}
