//! Requests on a connection that nobody else uses yet: reads for the fence, and the replay.

use super::ReadBlock;
use super::channel::Room;
use super::handshake::Export;
use super::link::Fresh;
use super::operation::{Arrived, Change, Piece, pieces};
use super::protocol::{
    Command, Content, REQUEST_BYTES, Reply, Request, io_error, read_reply, told, violation,
};
use bytes::Bytes;
use std::io::{self, IoSlice, Read};
use std::time::{Duration, Instant};
use syncline_device::{DeviceError, Operation};

/// Requests of a replay that are in flight at once, and their bytes.
const WINDOW: usize = 32;
const WINDOW_BYTES: u64 = 8 << 20;

/// A connection and its export, for one thread.
pub(super) struct Exchange<'a> {
    fresh: &'a mut Fresh,
    export: Export,
    /// How long the server may keep silent.
    patience: Option<Duration>,
    cookie: u64,
    in_flight: Vec<Sent>,
    /// A read failed: the connection can't be used.
    pub(super) failed: bool,
}

struct Sent {
    cookie: u64,
    offset: u64,
    end: u64,
    /// A discard, which the server may do without.
    is_hint: bool,
    error: Option<u32>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(fresh: &'a mut Fresh, export: Export, patience: Option<Duration>) -> Self {
        // Numbers that the device never reaches, so that nothing late is taken for an answer to it.
        Self { fresh, export, patience, cookie: 1 << 63, in_flight: Vec::new(), failed: false }
    }

    /// Reads, and waits for it.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let len_bytes = u32::try_from(into.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let command = Command::Read;
        let piece = Piece { command, flags: 0, offset, len_bytes, data: Default::default() };
        let cookie = self.send::<io::Error>(&piece, || Ok(()))?;
        let mut arrived = Arrived::default();
        let mut error = None;
        loop {
            match self.reply()? {
                Reply::Simple { cookie: of, error: number } if of == cookie => {
                    return match number {
                        0 if self.export.structured => Err(violation("a simple reply to a read")),
                        0 => self.fresh.input.read_exact(into).map_err(told),
                        number => Err(io_error(number)),
                    };
                }
                Reply::Chunk { cookie: of, last, content } if of == cookie => {
                    match content {
                        Content::Nothing => {}
                        Content::Error(number) => error = error.or(Some(number)),
                        Content::Data { offset: at, len_bytes } | Content::Hole { offset: at, len_bytes } => {
                            let end = at.checked_add(len_bytes.into());
                            let inside =
                                at >= offset && end.is_some_and(|end| end <= offset + into.len() as u64);
                            if !inside || !arrived.add(at, len_bytes.into()) {
                                return Err(violation("data that was not asked for"));
                            }
                            let part = &mut into[(at - offset) as usize..][..len_bytes as usize];
                            match content {
                                Content::Data { .. } => self.fresh.input.read_exact(part).map_err(told)?,
                                _ => part.fill(0),
                            }
                        }
                    }
                    match error {
                        _ if !last => {}
                        Some(number) => return Err(io_error(number)),
                        None if arrived.is_all_of(offset, into.len() as u64) => return Ok(()),
                        None => return Err(violation("a read was answered in part")),
                    }
                }
                _ => return Err(violation("a reply to a request that was not sent")),
            }
        }
    }

    /// Makes changes once more, in this order wherever they overlap. `may_go_on` is asked before
    /// each part of one that the socket takes.
    pub(super) fn replay(
        &mut self,
        changes: Vec<(u64, u64, Change)>,
        may_go_on: &dyn Fn() -> Result<(), DeviceError>,
    ) -> Result<(), Stop> {
        for (offset, len_bytes, change) in changes {
            let limits = (self.export.flags, self.export.max_bytes);
            for piece in pieces(&change, (offset, len_bytes), limits, false) {
                let end = piece.offset + u64::from(piece.len_bytes);
                // A server may reorder requests that are in flight together.
                while self.in_flight.iter().any(|sent| sent.offset < end && piece.offset < sent.end)
                    || self.in_flight.len() >= WINDOW
                    || self.in_flight_bytes() >= WINDOW_BYTES
                {
                    self.answer()?;
                }
                let cookie = self.send(&piece, || may_go_on().map_err(Stop::Fenced))?;
                let (offset, is_hint) = (piece.offset, matches!(change, Change::Discard));
                self.in_flight.push(Sent { cookie, offset, end, is_hint, error: None });
            }
        }
        while !self.in_flight.is_empty() {
            self.answer()?;
        }
        Ok(())
    }

    fn in_flight_bytes(&self) -> u64 {
        self.in_flight.iter().map(|sent| sent.end - sent.offset).sum()
    }

    /// Waits for a part of an answer.
    fn answer(&mut self) -> io::Result<()> {
        let (cookie, error, last) = match self.reply()? {
            Reply::Simple { cookie, error } => (cookie, (error != 0).then_some(error), true),
            Reply::Chunk { cookie, last, content: Content::Nothing } => (cookie, None, last),
            Reply::Chunk { cookie, last, content: Content::Error(error) } => (cookie, Some(error), last),
            Reply::Chunk { .. } => return Err(violation("data as a reply to something else than a read")),
        };
        let Some(index) = self.in_flight.iter().position(|sent| sent.cookie == cookie) else {
            return Err(violation("a reply to a request that was not sent"));
        };
        let sent = &mut self.in_flight[index];
        sent.error = sent.error.or(error);
        if !last {
            return Ok(());
        }
        let sent = self.in_flight.swap_remove(index);
        match sent.error {
            None => Ok(()),
            // Zeros that would not be faster than a write.
            Some(super::protocol::error::NOT_SUPPORTED) if sent.is_hint => Ok(()),
            Some(number) => {
                let (offset, len_bytes) = (sent.offset, sent.end - sent.offset);
                let error = io_error(number);
                let text = format!("it does not take {len_bytes} bytes at {offset} again: {error}");
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// Sends a request; `may_send` is asked before each part that the socket takes, since the room for
    /// it may come late.
    fn send<E: From<io::Error>>(
        &mut self,
        piece: &Piece,
        may_send: impl Fn() -> Result<(), E>,
    ) -> Result<u64, E> {
        self.be_patient();
        self.cookie += 1;
        let Piece { command, flags, offset, len_bytes, data } = piece;
        let (command, flags, offset, len_bytes) = (*command, *flags, *offset, *len_bytes);
        let header: [u8; REQUEST_BYTES] =
            Request { command, flags, cookie: self.cookie, offset, len_bytes }.encode();
        let parts = std::iter::once(&header[..]).chain(data.iter().map(|part: &Bytes| &part[..]));
        let mut slices: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
        let mut left = &mut slices[..];
        loop {
            may_send()?;
            let sent = self.fresh.channel.send(left, Room::Take)?;
            IoSlice::advance_slices(&mut left, sent.bytes);
            match (sent.pending, left.is_empty()) {
                (true, _) => self.fresh.channel.wait_for_room()?,
                (false, true) => return Ok(self.cookie),
                (false, false) if sent.bytes == 0 => {
                    return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                }
                (false, false) => {}
            }
        }
    }

    fn reply(&mut self) -> io::Result<Reply> {
        self.be_patient();
        read_reply(&mut self.fresh.input, self.export.structured).map_err(told)
    }

    fn be_patient(&self) {
        self.fresh.channel.set_deadline(self.patience.map(|patience| Instant::now() + patience));
    }
}

/// Why a replay ended early.
pub(super) enum Stop {
    /// The connection or the server failed: another attempt may help.
    Failed(io::Error),
    /// This host may not write any more.
    Fenced(DeviceError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl ReadBlock for Exchange<'_> {
    fn read_block(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let len_bytes = into.len() as u64;
        if offset.checked_add(len_bytes).is_none_or(|end| end > self.export.size_bytes) {
            return Err(DeviceError::io(
                Operation::Read,
                offset,
                len_bytes,
                io::ErrorKind::InvalidInput.into(),
            ));
        }
        self.read(offset, into).map_err(|error| {
            self.failed = true;
            DeviceError::io(Operation::Read, offset, len_bytes, error)
        })
    }
}
