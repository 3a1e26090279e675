//! The requests without a reply, and the replies to them.

use super::link::Link;
use super::operation::{Arrived, Op, Work};
use super::protocol::{error, violation};
use super::state::{Outbox, Phase, State};
use std::io;
use std::ops::Range;
use std::time::Instant;
use syncline_device::AlignedBuf;

const SECTOR_BYTES: u32 = 512;

/// A request on its way, or at the server.
pub(super) struct Wire {
    pub(super) target: Target,
    /// Its connection. A reply on another one is wrong.
    pub(super) index: usize,
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
    pub(super) sent: Instant,
    pub(super) arrived: Arrived,
    pub(super) error: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// A part of the operation with this number.
    Op(u64),
    /// The flush in flight.
    Flush,
}

/// The range of a read that a reply brings: all of it, or a part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Span {
    Whole,
    Part { offset: u64, len_bytes: u32 },
}

impl Wire {
    pub(super) fn new(target: Target, index: usize, offset: u64, len_bytes: u32) -> Self {
        Self {
            target,
            index,
            offset,
            len_bytes,
            sent: Instant::now(),
            arrived: Arrived::default(),
            error: None,
        }
    }

    /// Its weight when the least busy connection is sought. Some servers serve a connection in order,
    /// and then a flush holds up the requests behind it.
    pub(super) fn load(&self) -> u64 {
        match self.target {
            Target::Op(_) => u64::from(self.len_bytes) + 4096,
            Target::Flush => 1 << 20,
        }
    }
}

/// The answer to a receiver whose link is not in use any more. Nobody sees it.
fn ended() -> io::Error {
    io::Error::other("this connection has ended")
}

impl State {
    fn check_up(&self, link: &Link) -> io::Result<()> {
        match &self.phase {
            Phase::Up(up) if up.epoch == link.epoch => Ok(()),
            _ => Err(ended()),
        }
    }

    /// The request that a reply names.
    fn wire(&mut self, link: &Link, index: usize, cookie: u64) -> io::Result<&mut Wire> {
        self.check_up(link)?;
        let wire = self.wires.get_mut(&cookie).filter(|wire| wire.index == index);
        wire.ok_or_else(|| violation(format!("a reply to a request that was not sent ({cookie})")))
    }

    fn op_of(&mut self, cookie: u64) -> Option<&mut Op> {
        match self.wires.get(&cookie)?.target {
            Target::Op(seq) => self.ops.get_mut(&seq),
            Target::Flush => None,
        }
    }

    /// A simple reply without an error. True if it answers a read, whose data follows.
    pub(super) fn succeeded(
        &mut self,
        link: &Link,
        index: usize,
        cookie: u64,
        outbox: &mut Outbox,
    ) -> io::Result<bool> {
        self.wire(link, index, cookie)?;
        match self.op_of(cookie) {
            Some(Op { work: Work::Read { .. }, .. }) if link.export.structured => {
                Err(violation("a simple reply to a read, though structured ones were agreed upon"))
            }
            Some(Op { work: Work::Read { .. }, .. }) => Ok(true),
            _ => self.wire_done(cookie, outbox).map(|()| false),
        }
    }

    /// A reply without data, or a part of one.
    pub(super) fn replied(
        &mut self,
        (link, index, cookie): (&Link, usize, u64),
        error: Option<u32>,
        last: bool,
        outbox: &mut Outbox,
    ) -> io::Result<()> {
        let wire = self.wire(link, index, cookie)?;
        if error == Some(error::SHUTDOWN) {
            // It has not been done, and will be when the server is back.
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server is shutting down"));
        }
        wire.error = wire.error.or(error);
        if last { self.wire_done(cookie, outbox) } else { Ok(()) }
    }

    /// Hands out the buffer of a read, and the range of it that is going to arrive.
    pub(super) fn lend(
        &mut self,
        (link, index, cookie): (&Link, usize, u64),
        span: Span,
    ) -> io::Result<(AlignedBuf, Range<usize>)> {
        let wire = self.wire(link, index, cookie)?;
        let (offset, len_bytes) = match span {
            Span::Whole => (wire.offset, wire.len_bytes),
            Span::Part { offset, len_bytes } => (offset, len_bytes),
        };
        let (len, wire_end) = (u64::from(len_bytes), wire.offset + u64::from(wire.len_bytes));
        if offset < wire.offset || offset.checked_add(len).is_none_or(|end| end > wire_end) {
            return Err(violation(format!("{len_bytes} bytes at {offset} were not asked for")));
        }
        let is_new = wire.arrived.add(offset, len);
        // Servers send extents, of which the smallest is a sector. Memory is bounded for all others.
        if wire.arrived.parts() > 1 + (wire.len_bytes / SECTOR_BYTES) as usize {
            return Err(violation("a read was answered in crumbs"));
        }
        let Some(Op { offset: start, work: Work::Read { buf, .. }, .. }) = self.op_of(cookie) else {
            return Err(violation("data as a reply to something else than a read"));
        };
        if !is_new {
            return Err(violation(format!("{len_bytes} bytes at {offset} came twice")));
        }
        let from = (offset - *start) as usize;
        // The requests of one read share a connection, so one receiver fills its buffer.
        let buf = buf.take().ok_or_else(|| io::Error::other("the buffer of a read is in use"))?;
        Ok((buf, from..from + len_bytes as usize))
    }

    /// Takes the buffer of a read back, even for a link that has ended. With `last`, all of the
    /// reply has arrived.
    pub(super) fn give_back(
        &mut self,
        (link, cookie): (&Link, u64),
        filled: AlignedBuf,
        last: bool,
        outbox: &mut Outbox,
    ) -> io::Result<()> {
        if let Some(Op { work: Work::Read { buf, .. }, .. }) = self.op_of(cookie) {
            *buf = Some(filled);
        }
        self.check_up(link)?;
        if last { self.wire_done(cookie, outbox) } else { Ok(()) }
    }

    /// The whole reply to a request is there.
    fn wire_done(&mut self, cookie: u64, outbox: &mut Outbox) -> io::Result<()> {
        let is_read = matches!(self.op_of(cookie), Some(Op { work: Work::Read { .. }, .. }));
        let Some(wire) = self.wires.get(&cookie) else { return Ok(()) };
        if is_read && wire.error.is_none() && !wire.arrived.is_all_of(wire.offset, u64::from(wire.len_bytes))
        {
            return Err(violation("a read was answered in part"));
        }
        let wire = self.wires.remove(&cookie).expect("it was there");
        self.loads[wire.index] -= wire.load();
        match wire.target {
            Target::Flush => self.flush_ended(wire.error, outbox),
            Target::Op(seq) => {
                let Some(op) = self.ops.get_mut(&seq) else { return Ok(()) };
                op.error = op.error.or(wire.error);
                op.parts_left -= 1;
                if op.parts_left == 0
                    && let Some(op) = self.ops.remove(&seq)
                {
                    self.finish(op, outbox);
                }
            }
        }
        self.pump(outbox);
        Ok(())
    }
}
