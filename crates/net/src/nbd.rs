//! An export of an NBD server as a device.
//!
//! # Promises
//!
//! They are those of [`syncline_device::Device`], also when the server is restarted or cannot be
//! reached for a while:
//!
//! - A flush that succeeded covers every write that had completed before, as the server promises
//!   with `NBD_CMD_FLUSH`. A server without it is refused.
//! - A server that went away may have forgotten all changes that no flush covered. So the client keeps
//!   them, and writes them again after the reconnect, before anything else (`nbd/kept.rs`). Then it
//!   sends the operations again that were in flight. Callers notice only that it took longer.
//! - A read returns what was written last, wherever changes overlap: two of them are never in
//!   flight at once, and the later call is the later write.
//! - After `wait`, all waiting operations fail, and all later ones too: the device is broken for good,
//!   since it gives up the changes that it kept.
//!
//! # What a client can't promise
//!
//! When a connection breaks without the server's end, the server may still carry out what it had
//! received. A write that was in flight is then done twice, the second time perhaps late: after its
//! repetition was answered, and after another write to the same place. NBD has no means against
//! that. Servers carry out what they have received within moments; Syncline writes a block again
//! only after a checkpoint has released it. A [`Fence`] can wait until the old connection is
//! certainly dead on the server's side too.
//!
//! # Threads
//!
//! A caller sends its request itself (`nbd/outgoing.rs`), and each connection's receiver calls the
//! completions. One manager connects and reconnects (`nbd/manager.rs`). All decisions are made in one
//! place, without I/O (`nbd/state.rs`).

mod breaks;
mod channel;
mod dial;
mod exchange;
mod fence;
mod flushes;
mod handshake;
mod kept;
#[doc(hidden)]
pub mod lab;
mod link;
mod manager;
mod operation;
mod outgoing;
mod own_thread;
mod protocol;
mod receiver;
mod shared;
mod state;
mod tls;
mod wires;

use fence::Guard;
pub use fence::{Fence, ReadBlock};

use crate::counters::{Counters, NetCounters};
use crate::location::{NbdLocation, Wait};
use bytes::Bytes;
use flushes::Waiter;
use manager::{ATTEMPT_MAX, Failure};
use operation::{Breaks, Change, Op, Work};
use parking_lot::{Condvar, Mutex};
use protocol::export;
use rustix::io::Errno;
use shared::Shared;
use state::{Phase, State};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use syncline_device::{AlignedBuf, BLOCK_BYTES, Completion, Device, DeviceError, Operation};

/// How to use an export.
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// Refuse to change anything.
    pub read_only: bool,
    /// Refuse an export that has fewer bytes, now or after a reconnect.
    pub at_least_bytes: u64,
    /// How long the server may be away, unless the location says it.
    pub wait: Wait,
    /// Connections, where the server allows several (`NBD_FLAG_CAN_MULTI_CONN`).
    pub connections: usize,
    /// Bytes of writes that are kept until a flush covers them. At half of it the device flushes
    /// by itself; at all of it writes wait.
    pub kept_bytes: u64,
    /// After this long without any sign of the server's host a TCP connection counts as broken
    /// (TCP_USER_TIMEOUT and keep-alive, in seconds). Until then it may resend what it was given.
    pub dead_after: Duration,
    /// The place of a block whose reads and writes go before all others, and never wait for room: a
    /// lease is in it, which ends if it is not renewed in time.
    pub urgent: Option<u64>,
    /// A rule to break, for tests.
    #[doc(hidden)]
    pub canary: Option<lab::Canary>,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            at_least_bytes: 0,
            wait: Wait::default(),
            connections: 4,
            kept_bytes: 256 << 20,
            dead_after: Duration::from_secs(10),
            urgent: None,
            canary: None,
        }
    }
}

/// An export of an NBD server.
///
/// Threads serve it, so open it after any fork. Dropping it ends the connection when everything
/// that was asked for has been answered.
pub struct NbdDevice {
    shared: Arc<Shared>,
    manager: Option<JoinHandle<()>>,
}

impl NbdDevice {
    /// Connects to the server, once: one that can't be reached now is an error.
    pub fn open(location: &NbdLocation, options: NbdOptions) -> Result<Arc<Self>, DeviceError> {
        let name = location.to_string();
        let failed =
            |source: io::Error| DeviceError::Open { path: location.to_string(), source: Arc::new(source) };
        let (counters, guard) = (Arc::<Counters>::default(), Arc::<Guard>::default());
        let shared = Arc::new(Shared {
            location: location.clone(),
            name,
            options,
            wait: location.wait.unwrap_or(options.wait).limit(),
            state: Mutex::new(State::new(&options, guard.clone(), counters.clone())),
            wake: Condvar::new(),
            counters,
            guard,
            size_bytes: AtomicU64::new(0),
            flags: AtomicU16::new(0),
        });
        let limit = shared.wait.map_or(ATTEMPT_MAX, |wait| wait.min(ATTEMPT_MAX));
        let (link, size_bytes) = manager::attempt(&shared, limit).map_err(|failure| match failure {
            Failure::Again(error) | Failure::Final(error) => failed(error),
        })?;
        tracing::debug!(
            server = shared.name,
            size_bytes,
            connections = link.connections.len(),
            "device opened"
        );
        shared.size_bytes.store(size_bytes, Ordering::Release);
        shared.flags.store(link.export.flags, Ordering::Release);
        let started = link.clone();
        shared.with(|state, outbox| state.link_stands(link, outbox));
        // Only now: it would make a link if there was none.
        let managed = shared.clone();
        let serve = move || {
            own_thread::enter();
            manager::serve(&managed);
        };
        let manager = Builder::new().name("syncline-nbd".into()).spawn(serve).map_err(|error| {
            started.end();
            failed(error)
        })?;
        Ok(Arc::new(Self { shared, manager: Some(manager) }))
    }

    /// Sets the question that is asked after each reconnect before anything is written, and before
    /// anything that waited goes on.
    pub fn set_fence(&self, fence: Arc<dyn Fence>) {
        self.shared.guard.set(fence);
    }

    /// Ends the device for good: all waiting operations fail with this error, and all later ones too.
    /// Nothing that has not left this host leaves it any more. The first reason stays. Does not wait.
    pub fn end(&self, why: io::Error) {
        self.shared.with(|state, outbox| state.end(why, outbox));
    }

    /// The counters so far.
    pub fn counters(&self) -> NetCounters {
        let now = self.shared.state.lock().now();
        self.shared.counters.snapshot(now)
    }

    /// Why it answers nothing any more.
    pub fn broken(&self) -> Option<Arc<io::Error>> {
        match &self.shared.state.lock().phase {
            Phase::Broken { error, .. } => Some(error.clone()),
            _ => None,
        }
    }

    /// Calls `listener` when the device answers nothing any more, before those who wait for it are
    /// told; at once if that was before. It must not wait for the device.
    pub fn on_broken(&self, listener: impl FnOnce(&Arc<io::Error>) + Send + 'static) {
        self.shared.with(|state, outbox| state.on_broken(Box::new(listener), outbox));
    }

    /// The location that it was opened with.
    pub fn location(&self) -> &NbdLocation {
        &self.shared.location
    }

    /// True if it refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Connections in use now; none while the server is away.
    pub fn connections(&self) -> usize {
        match &self.shared.state.lock().phase {
            Phase::Up(link) => link.connections.len(),
            _ => 0,
        }
    }

    /// Writes zeros, with room for them, without sending them where the server can do that.
    pub fn write_zeros(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        self.change(offset, len_bytes, Change::Zero, false, done);
    }

    fn offers(&self, feature: u16) -> bool {
        self.shared.flags.load(Ordering::Acquire) & feature == feature
    }

    /// Checks that a range is made of whole blocks inside the device.
    fn check(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let block = BLOCK_BYTES as u64;
        let aligned = offset.is_multiple_of(block) && len_bytes.is_multiple_of(block);
        let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= self.size_bytes());
        if aligned && inside {
            return Ok(());
        }
        let reason = "the range is not made of whole blocks inside the device";
        Err(DeviceError::io(
            operation,
            offset,
            len_bytes,
            io::Error::new(io::ErrorKind::InvalidInput, reason),
        ))
    }

    fn check_writable(&self, operation: Operation, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        if self.shared.options.read_only {
            let source = io::Error::from(Errno::ROFS);
            return Err(DeviceError::io(operation, offset, len_bytes, source));
        }
        Ok(())
    }

    fn change(&self, offset: u64, len_bytes: u64, change: Change, through: bool, done: Completion<()>) {
        let operation = if matches!(change, Change::Discard) { Operation::Discard } else { Operation::Write };
        let checked = self
            .check(operation, offset, len_bytes)
            .and_then(|()| self.check_writable(operation, offset, len_bytes));
        match checked {
            Err(error) => done(Err(error)),
            Ok(()) if len_bytes == 0 && through => self.flush(done),
            Ok(()) if len_bytes == 0 => done(Ok(())),
            Ok(()) => self.start(offset, len_bytes, Work::Change { change, through, done }),
        }
    }

    fn write_bufs(&self, offset: u64, bufs: Vec<Bytes>, through: bool, done: Completion<()>) {
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        if bufs.iter().any(|buf| !buf.len().is_multiple_of(BLOCK_BYTES)) {
            let reason = "a buffer is not made of whole blocks";
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            return done(Err(DeviceError::io(Operation::Write, offset, len_bytes, source)));
        }
        self.change(offset, len_bytes, Change::Write(bufs.into()), through, done);
    }

    fn start(&self, offset: u64, len_bytes: u64, work: Work) {
        self.shared.with(|state, outbox| state.start(Op::new(offset, len_bytes, work), outbox));
    }
}

impl Device for NbdDevice {
    fn size_bytes(&self) -> u64 {
        self.shared.size_bytes.load(Ordering::Acquire)
    }

    /// False: a server may answer from its page cache with data that a failed write-back has lost.
    fn reads_bypass_caches(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buf: AlignedBuf, done: Completion<AlignedBuf>) {
        let len_bytes = buf.len() as u64;
        match self.check(Operation::Read, offset, len_bytes) {
            Err(error) => done(Err(error)),
            Ok(()) if len_bytes == 0 => done(Ok(buf)),
            Ok(()) => self.start(offset, len_bytes, Work::Read { buf: Some(buf), done }),
        }
    }

    fn write(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.write_bufs(offset, bufs, false, done);
    }

    fn flush(&self, done: Completion<()>) {
        if self.shared.options.read_only && !self.offers(export::FLUSH) {
            // Nothing was written, and such a server has nothing to be told.
            return done(Ok(()));
        }
        let waiter = Waiter { done, asked: Instant::now(), write: None, breaks: Breaks::default() };
        self.shared.with(|state, outbox| state.flush(waiter, outbox));
    }

    /// With FUA it is one request, if no other write waits for a flush. Otherwise the flush is a
    /// second one, since FUA makes nothing else durable.
    fn writes_through(&self) -> bool {
        self.offers(export::FUA)
    }

    fn write_through(&self, offset: u64, bufs: Vec<Bytes>, done: Completion<()>) {
        self.write_bufs(offset, bufs, true, done);
    }

    /// Asks the server for its size over a connection of its own, since it tells it only at the
    /// beginning of one. If it has grown, new connections take the place of those in use.
    fn enlarge(&self, size_bytes: u64, done: Completion<u64>) {
        if let Err(error) = self.check_writable(Operation::Write, 0, size_bytes) {
            return done(Err(error));
        }
        self.shared.with(|state, outbox| state.ask_size(size_bytes, done, outbox));
    }

    fn discards(&self) -> bool {
        self.offers(export::TRIM) || self.offers(export::WRITE_ZEROES | export::FAST_ZERO)
    }

    fn discard(&self, offset: u64, len_bytes: u64, done: Completion<()>) {
        if !self.discards() {
            let source = io::Error::from(Errno::OPNOTSUPP);
            return done(Err(DeviceError::io(Operation::Discard, offset, len_bytes, source)));
        }
        self.change(offset, len_bytes, Change::Discard, false, done);
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        let ends_at_once = {
            let mut state = self.shared.state.lock();
            state.closing = true;
            state.is_idle() && !state.connecting
        };
        self.shared.wake.notify_one();
        // Otherwise the rest is done without us.
        if ends_at_once
            && !own_thread::is_current()
            && let Some(manager) = self.manager.take()
            && manager.join().is_err()
        {
            tracing::error!("the thread of an NBD device panicked");
        }
    }
}
