//! The messages on their way into a connection.
//!
//! The thread that posts a message sends it itself, with the messages that others post meanwhile, for a
//! few batches and as long as the socket has room: that spares a change of threads. The rest, and large
//! messages, go to the connection's own sender, since callers must not wait.

use super::channel::{Channel, Room};
use super::fence::Guard;
use super::protocol::{Command, REQUEST_BYTES, Request};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use syncline_device::DeviceError;

/// Messages that are sent together.
const BATCH: usize = 64;
/// Batches that a caller sends before it leaves the rest to the sender.
const ROUNDS: usize = 4;
/// Messages that have this size together go to the sender from the start: copying them takes longer
/// than waking it. The sender takes no more than this, or one message, at a time, so that an urgent
/// message waits for no more.
const LARGE_BYTES: usize = 256 << 10;

/// A request with its data.
pub(super) struct Message {
    pub(super) header: [u8; REQUEST_BYTES],
    pub(super) data: SmallVec<[Bytes; 2]>,
    /// It changes the export.
    changes: bool,
    /// It is sent before all messages that are not urgent.
    urgent: bool,
    /// Bytes that are sent already.
    sent: usize,
}

/// Why messages were not sent.
pub(super) enum Unsent {
    /// The connection has ended.
    Broke(io::Error),
    /// This host may not write any more.
    Fenced(DeviceError),
}

impl From<io::Error> for Unsent {
    fn from(error: io::Error) -> Self {
        Self::Broke(error)
    }
}

impl Message {
    pub(super) fn new(request: &Request, data: SmallVec<[Bytes; 2]>, urgent: bool) -> Self {
        let changes = !matches!(request.command, Command::Read | Command::Flush);
        Self { header: request.encode(), data, changes, urgent, sent: 0 }
    }

    fn len(&self) -> usize {
        REQUEST_BYTES + self.data.iter().map(Bytes::len).sum::<usize>()
    }

    fn slices<'a>(&'a self, into: &mut SmallVec<[IoSlice<'a>; 8]>) {
        let mut skip = self.sent;
        for part in std::iter::once(&self.header[..]).chain(self.data.iter().map(|data| &data[..])) {
            if skip < part.len() {
                into.push(IoSlice::new(&part[skip..]));
            }
            skip = skip.saturating_sub(part.len());
        }
    }
}

/// The queue of one connection.
#[derive(Default)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    handed_over: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// A thread is sending, or the sender is to.
    busy: bool,
    /// The sender's turn.
    handed_over: bool,
    closed: bool,
}

impl Outgoing {
    /// Sends messages, or leaves them to a thread that sends. Does not wait. Messages for a connection
    /// that has ended are dropped.
    pub(super) fn post(
        &self,
        channel: &Channel,
        guard: &Guard,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<(), Unsent> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Ok(());
        }
        messages.into_iter().for_each(|message| queue.push(message));
        if queue.busy {
            return Ok(());
        }
        queue.busy = true;
        for _ in 0..ROUNDS {
            if queue.messages.iter().take(BATCH).map(Message::len).sum::<usize>() >= LARGE_BYTES {
                break;
            }
            let mut batch = queue.take_batch();
            let pending = MutexGuard::unlocked(&mut queue, || send(channel, guard, &mut batch))?;
            if pending || !batch.is_empty() {
                batch.into_iter().rev().for_each(|message| queue.messages.push_front(message));
                break;
            }
            if queue.messages.is_empty() {
                queue.busy = false;
                return Ok(());
            }
        }
        queue.handed_over = true;
        self.handed_over.notify_one();
        Ok(())
    }

    /// The sender's whole life.
    pub(super) fn serve(&self, channel: &Channel, guard: &Guard) -> Result<(), Unsent> {
        let mut queue = self.queue.lock();
        loop {
            while !queue.handed_over && !queue.closed {
                self.handed_over.wait(&mut queue);
            }
            if queue.closed {
                return Ok(());
            }
            let mut batch = queue.take_batch();
            MutexGuard::unlocked(&mut queue, || {
                while send(channel, guard, &mut batch)? {
                    channel.wait_for_room()?;
                }
                Ok::<_, Unsent>(())
            })?;
            if queue.messages.is_empty() {
                queue.handed_over = false;
                queue.busy = false;
            }
        }
    }

    /// Drops the remaining messages; the sender ends.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.closed = true;
        queue.messages.clear();
        self.handed_over.notify_one();
    }
}

impl Queue {
    /// Adds a message behind the others, or an urgent one in front of those that are not urgent. A
    /// message of which a part is sent stays the first.
    fn push(&mut self, message: Message) {
        if !message.urgent {
            return self.messages.push_back(message);
        }
        let place = self.messages.iter().position(|other| !other.urgent && other.sent == 0);
        self.messages.insert(place.unwrap_or(self.messages.len()), message);
    }

    fn take_batch(&mut self) -> VecDeque<Message> {
        let mut bytes = 0;
        let fits = |message: &&Message| {
            bytes += message.len();
            bytes <= LARGE_BYTES
        };
        let count = self.messages.iter().take(BATCH).take_while(fits).count().max(1);
        self.messages.drain(..count.min(self.messages.len())).collect()
    }
}

/// Sends the front of a batch, and removes it; true if the socket had no room for all of it. Before
/// each part the fence is asked whether changes may be sent: the socket takes a part without waiting,
/// and the next one may come much later.
fn send(channel: &Channel, guard: &Guard, batch: &mut VecDeque<Message>) -> Result<bool, Unsent> {
    loop {
        let mut slices = SmallVec::new();
        batch.iter().for_each(|message| message.slices(&mut slices));
        // Without a message, TLS has something left of one.
        if batch.is_empty() || batch.iter().any(|message| message.changes) {
            guard.may_send().map_err(Unsent::Fenced)?;
        }
        let sent = channel.send(&slices, Room::Take)?;
        drop(slices);
        let mut left = sent.bytes;
        while let Some(first) = batch.front_mut() {
            let rest = first.len() - first.sent;
            if left < rest {
                first.sent += left;
                break;
            }
            left -= rest;
            batch.pop_front();
        }
        if sent.pending || batch.is_empty() {
            return Ok(sent.pending);
        }
        if sent.bytes == 0 {
            return Err(Unsent::Broke(io::ErrorKind::WriteZero.into()));
        }
    }
}
