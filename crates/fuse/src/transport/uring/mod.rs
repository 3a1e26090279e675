//! The transport over io_uring: the ring that carries a worker's device I/O also carries the
//! requests of its CPU.
//!
//! Each entry cycles: the kernel fills it and completes its command, the request is carried out,
//! and the next command sends the answer and asks for the next request, in the same system call
//! that submits any pending I/O and waits. FORGET and INTERRUPT still come over /dev/fuse, which
//! one worker keeps reading.

mod entry;
mod memory;
mod shares;

use super::carry::{Load, carry_out};
use super::classic;
use super::connection::Connection;
use super::halt::Halt;
use super::watch::Watch;
use crate::error::MountError;
use crate::reply::Reply;
use crate::serve::Serve;
use crate::session::Session;
use entry::Entry;
use futures_lite::future;
use io_uring::squeue;
use memory::Area;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use syncline_device::Worker;

pub use shares::{Share, fewest_entries, of_this_machine};

/// How often to check whether the device has ended a read that nobody waits for.
const PAUSE: Duration = Duration::from_millis(1);

/// The queues that one worker serves.
pub struct Queues<F> {
    connection: Rc<Connection>,
    session: Arc<Session<F>>,
    load: Rc<Load>,
    /// The CPU that the worker is bound to.
    cpu: Option<usize>,
    /// Entries that the kernel still uses.
    live: Cell<usize>,
    /// The error with which an entry was lost, if one was.
    lost: Cell<Option<i32>>,
    /// Requests that came before [`Queues::serve`]; none are kept after that. The filesystem may not be ready for
    /// them, and this thread waits for the others meanwhile: a request that has begun would hold its locks.
    early: RefCell<Option<Vec<Live<F>>>>,
    /// No more requests are accepted.
    closed: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl<F: Serve> Queues<F> {
    /// Offers the kernel the entries of `shares`, on the current worker.
    pub async fn register(
        connection: Connection,
        session: Arc<Session<F>>,
        shares: &[Share],
        cpu: Option<usize>,
    ) -> io::Result<Rc<Self>> {
        if !Worker::current().has_ring() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this process may not use io_uring"));
        }
        let queues = Rc::new(Self {
            connection: Rc::new(connection),
            session,
            load: Rc::default(),
            cpu,
            live: Cell::new(0),
            lost: Cell::new(None),
            early: RefCell::new(Some(Vec::new())),
            closed: Cell::new(false),
            waiting: RefCell::default(),
        });
        let payload_bytes = Entry::payload_bytes(queues.session.negotiated().transfer_bytes_max);
        let entries: usize = shares.iter().map(|share| share.entries).sum();
        let area = Area::new(entries * payload_bytes)?;
        let mut payloads = (0..entries).map(|index| area.payload(index, payload_bytes));
        for share in shares {
            for payload in payloads.by_ref().take(share.entries) {
                let entry = Entry::new(share.queue, payload);
                let command = entry.register(queues.connection.descriptor());
                Live::new(&queues, entry).submit(command);
            }
        }
        // The worker submits while we yield. A refusal arrives at once; success is silent until a
        // request comes.
        future::yield_now().await;
        future::yield_now().await;
        match queues.lost.get() {
            Some(errno) => {
                // They hold the queues, which hold them.
                drop(queues.early.take());
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(queues),
        }
    }

    /// Serves until the connection ends and every request has been answered, or until another
    /// thread fails.
    pub async fn serve(self: Rc<Self>, reads_device: bool, halt: &Halt) -> Result<(), MountError> {
        self.early.take().into_iter().flatten().for_each(Live::carry_out);
        let device = async {
            match reads_device {
                true => {
                    let watch = Watch::alone();
                    classic::receive_all(&self.connection, &self.session, &self.load, &watch).await
                }
                false => Ok(()),
            }
        };
        let whole = async { future::try_zip(device, self.ended()).await.map(|_| ()) };
        let halted = async {
            halt.raised().await;
            Err(MountError::connection(io::Error::other("another thread could not go on")))
        };
        let outcome = future::or(whole, halted).await;
        self.closed.set(true);
        // Requests that have begun run to their end, even if nobody waits for the answer any more.
        self.load.idle().await;
        outcome
    }

    /// Waits for the end of a connection that nobody serves.
    pub async fn end_unserved(&self) -> Result<(), MountError> {
        self.closed.set(true);
        // The kernel fails these requests when the connection ends, and does not return their entries.
        let early = self.early.take().into_iter().flatten();
        early.for_each(|request| request.refused(libc::ECONNABORTED));
        self.ended().await
    }

    /// Waits until the kernel has returned every entry, which it does when the connection ends.
    /// Fails if an entry was lost: the kernel would wait for its answer for ever, and so would the
    /// caller.
    async fn ended(&self) -> Result<(), MountError> {
        poll_fn(|context| {
            if let Some(errno) = self.lost.get() {
                return Poll::Ready(Err(MountError::connection(io::Error::from_raw_os_error(errno))));
            }
            if self.live.get() == 0 {
                return Poll::Ready(Ok(()));
            }
            *self.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// An entry that the kernel still uses, or whose request is being carried out.
struct Live<F> {
    entry: Box<Entry>,
    queues: Rc<Queues<F>>,
    /// The kernel has returned the entry. If this is dropped before that, the entry is lost.
    ended: bool,
}

impl<F: Serve> Live<F> {
    fn new(queues: &Rc<Queues<F>>, entry: Box<Entry>) -> Self {
        queues.live.set(queues.live.get() + 1);
        Self { entry, queues: queues.clone(), ended: false }
    }

    fn submit(self, command: squeue::Entry128) {
        // SAFETY: the completion owns the entry, with all memory that the command names, and,
        // through the queues, the descriptor; a FUSE command completes once.
        let submitted = unsafe {
            Worker::current().submit_entry(command, Box::new(move |result| self.completed(result)))
        };
        assert!(submitted.is_ok(), "the worker was seen to have a ring");
    }

    /// Called when a command has completed: a request has come, or no more will.
    fn completed(self, result: i32) {
        if result < 0 {
            return self.refused(-result);
        }
        if self.queues.closed.get() {
            return;
        }
        let queues = self.queues.clone();
        if let Some(early) = queues.early.borrow_mut().as_mut() {
            return early.push(self);
        }
        self.carry_out();
    }

    fn carry_out(mut self) {
        let unique = self.entry.header().unique;
        let Some(request) = self.entry.request() else {
            tracing::error!(unique, "the kernel sent something that is no request");
            return self.answer(unique, Reply::error(libc::EIO));
        };
        let (session, load) = (self.queues.session.clone(), self.queues.load.clone());
        carry_out(&session, &load, request, move |unique, reply| self.answer(unique, reply));
    }

    /// Sends an answer and asks for the next request.
    fn answer(mut self, unique: u64, mut reply: Reply) {
        self.queues.connection.notify(&reply);
        match self.command(unique, &mut reply) {
            Some(command) => self.send(command),
            None => Worker::current().spawn_local(self.answer_later(unique, reply)).detach(),
        }
    }

    /// Waits until the device releases the entry's memory. The data being read is not needed any
    /// more: the request has failed.
    async fn answer_later(mut self, unique: u64, mut reply: Reply) {
        loop {
            Worker::current().sleep(PAUSE).await;
            if let Some(command) = self.command(unique, &mut reply) {
                return self.send(command);
            }
        }
    }

    fn command(&mut self, unique: u64, reply: &mut Reply) -> Option<squeue::Entry128> {
        let fuse = self.queues.connection.descriptor();
        self.entry.answer(unique, reply, fuse)
    }

    fn send(self, command: squeue::Entry128) {
        let cpu = self.queues.cpu.filter(|&cpu| cpu == self.entry.cpu() && self.queues.load.requests() == 1);
        Worker::current().answers(cpu);
        self.submit(command);
    }

    fn refused(mut self, errno: i32) {
        // The errnos with which the kernel reports the end of a connection.
        self.ended = matches!(errno, libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED);
        if !self.ended {
            self.queues.lost.set(Some(errno));
        }
    }
}

impl<F> Drop for Live<F> {
    fn drop(&mut self) {
        if !self.ended && self.queues.lost.get().is_none() {
            self.queues.lost.set(Some(libc::EIO));
        }
        self.queues.live.set(self.queues.live.get() - 1);
        if let Some(waker) = self.queues.waiting.take() {
            waker.wake();
        }
    }
}
