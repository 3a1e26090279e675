//! One io_uring and the operations in flight in it.

use crate::oneshot;
use crate::request::{Finished, Request, Step};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::Duration;

/// Submission entries; further ones wait in `backlog`.
const ENTRIES: u32 = 256;
/// Completion entries: the kernel also keeps those that do not fit, but slowly.
const COMPLETIONS: u32 = 4096;
/// Marks completions that nobody waits for.
const NOBODY: u64 = u64::MAX;

/// Called with the result of an entry that was submitted as it was.
pub(crate) type RawDone = Box<dyn FnOnce(i32)>;

/// The waiter for an entry.
enum Waiting {
    Request(Request),
    /// Waits until a descriptor is ready; can be cancelled.
    Ready(oneshot::Sender<io::Result<u32>>),
    /// The worker's own event descriptor.
    Event,
    /// A caller's own entry; can be cancelled.
    Raw(RawDone),
}

impl Waiting {
    fn into_request(self) -> Option<Request> {
        match self {
            Self::Request(request) => Some(request),
            _ => None,
        }
    }
}

/// A place for a waiter. The generation lets a late cancel see that the place has a new owner.
struct Place {
    generation: u32,
    /// Counts the entries of the ring up to this one.
    order: u64,
    waiting: Option<Waiting>,
}

/// The threads that submit to a ring.
#[derive(Clone, Copy)]
pub(crate) enum Issuer {
    /// The one that created it.
    One,
    /// One after the other.
    Several,
}

/// The action that a completed entry requires of the reactor.
pub(crate) enum Event {
    /// A device operation ended.
    Finished(Finished),
    /// The kernel would have to block for it.
    Elsewhere(Request),
    /// A descriptor is ready, or the wait for it failed.
    Ready(oneshot::Sender<io::Result<u32>>, io::Result<u32>),
    /// Another thread woke us.
    Woken,
    /// A caller's own entry ended.
    Raw(RawDone, i32),
    /// Nothing more to do.
    Nothing,
}

/// An io_uring with 128-byte entries, so that it can carry FUSE commands too.
pub(crate) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Entries for which the submission queue had no room.
    backlog: VecDeque<squeue::Entry128>,
    /// Device operations in flight.
    requests: usize,
    /// Other entries in flight.
    others: usize,
    /// Entries made so far.
    made: u64,
    /// The kernel refuses to be entered: nothing more can be submitted.
    refused: bool,
}

/// True if this kernel and sandbox let us have a ring with the features we need.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| match Ring::new(Issuer::Several) {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, "no io_uring: device I/O goes through threads");
            false
        }
    })
}

impl Ring {
    /// A ring for one thread at a time.
    pub(crate) fn new(issuer: Issuer) -> io::Result<Self> {
        let mut ring = Self::build(Some(issuer));
        if ring.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            // A kernel before 6.1 (5.19 for several) does not know these promises.
            ring = Self::build(None);
        }
        let ring = ring?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring lacks timed waits",
            ));
        }
        let (places, free, backlog) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { ring, places, free, backlog, requests: 0, others: 0, made: 0, refused: false })
    }

    fn build(issuer: Option<Issuer>) -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).setup_clamp().dontfork();
        // Completions are processed when we ask for them, rather than by interrupting the running
        // code.
        match issuer {
            Some(Issuer::One) => _ = builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag(),
            Some(Issuer::Several) => _ = builder.setup_coop_taskrun().setup_taskrun_flag(),
            None => {}
        }
        builder.build(ENTRIES)
    }

    /// Device operations in flight.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Other entries in flight.
    pub(crate) fn others(&self) -> usize {
        self.others
    }

    pub(crate) fn start(&mut self, request: Request) {
        let entry = request.entry();
        self.requests += 1;
        self.push(entry.into(), Waiting::Request(request));
    }

    /// Waits until `fd` is ready for `events`; the returned id can cancel the wait.
    pub(crate) fn poll(&mut self, fd: RawFd, events: u32, sender: oneshot::Sender<io::Result<u32>>) -> u64 {
        self.others += 1;
        self.push(opcode::PollAdd::new(types::Fd(fd), events).build().into(), Waiting::Ready(sender))
    }

    /// Waits for wake-ups from other threads.
    pub(crate) fn watch_event(&mut self, fd: RawFd) {
        self.others += 1;
        self.push(opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build().into(), Waiting::Event);
    }

    /// Submits an entry as it is, except for its user data.
    pub(crate) fn raw(&mut self, entry: squeue::Entry128, done: RawDone) -> u64 {
        self.others += 1;
        self.push(entry, Waiting::Raw(done))
    }

    /// Cancels the wait `id`, if it is still there.
    pub(crate) fn cancel(&mut self, id: u64) {
        let place = self.places.get((id as u32) as usize);
        if place.is_some_and(|place| u64::from(place.generation) == id >> 32 && place.waiting.is_some()) {
            self.enqueue(cancel_entry(id));
        }
    }

    /// Cancels everything but device operations and the watch on the event descriptor.
    pub(crate) fn cancel_others(&mut self) {
        let others: Vec<u64> = (0u32..)
            .zip(&self.places)
            .filter(|(_, place)| matches!(place.waiting, Some(Waiting::Ready(_) | Waiting::Raw(_))))
            .map(|(index, place)| id_of(index, place.generation))
            .collect();
        others.into_iter().for_each(|id| self.enqueue(cancel_entry(id)));
    }

    fn push(&mut self, entry: squeue::Entry128, waiting: Waiting) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, order: 0, waiting: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        // The highest generation is left out, so that no id equals NOBODY.
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        place.waiting = Some(waiting);
        self.made += 1;
        place.order = self.made;
        let id = id_of(index, place.generation);
        self.enqueue(entry.user_data(id));
        id
    }

    fn enqueue(&mut self, entry: squeue::Entry128) {
        self.backlog.push_back(entry);
        self.refill();
        if !self.backlog.is_empty() && self.ring.submit().is_ok() {
            self.refill();
        }
    }

    /// Moves entries from the backlog to the submission queue.
    fn refill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the memory that one of our entries refers to is owned by its place until the
            // kernel has completed it (requests own buffers and vectors on the heap, which do not
            // move with the request); for other entries their submitter has promised the same.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits what is queued, in one system call that also waits for the next completion if `wait`
    /// says so, at most for the time given.
    pub(crate) fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        self.refill();
        // Do not wait if there are completions already.
        let wait = wait.filter(|_| self.ring.completion().is_empty() && self.backlog.is_empty());
        look_again(match wait {
            None => self.ring.submit(),
            Some(None) => self.ring.submit_and_wait(1),
            Some(Some(time)) => {
                let time = types::Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        })
    }

    /// Submits what is queued, and waits for so many completions, or fewer if the submission queue had
    /// no room for all.
    pub(crate) fn wait_for(&mut self, completions: usize) -> io::Result<()> {
        self.refill();
        look_again(self.ring.submit_and_wait(if self.backlog.is_empty() { completions } else { 1 }))
    }

    /// Collects the completed entries.
    pub(crate) fn completions(&mut self, into: &mut Vec<(u64, i32)>) {
        into.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    /// Processes one completion.
    pub(crate) fn complete(&mut self, id: u64, result: i32) -> Event {
        if id == NOBODY {
            return Event::Nothing;
        }
        let index = id as u32;
        let Some(waiting) = self.places.get_mut(index as usize).and_then(|place| place.waiting.take()) else {
            debug_assert!(false, "each entry completes once");
            return Event::Nothing;
        };
        self.free.push(index);
        let outcome = || u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        if !matches!(waiting, Waiting::Request(_)) {
            self.others -= 1;
        }
        match waiting {
            Waiting::Request(request) => {
                self.requests -= 1;
                if result == -libc::EAGAIN {
                    return Event::Elsewhere(request);
                }
                match request.advance(outcome().map(|moved| moved as usize)) {
                    Step::Finished(finished) => Event::Finished(finished),
                    Step::Again(request) if self.refused => Event::Elsewhere(request),
                    Step::Again(request) => {
                        self.start(request);
                        Event::Nothing
                    }
                }
            }
            Waiting::Ready(sender) => Event::Ready(sender, outcome()),
            Waiting::Event => Event::Woken,
            Waiting::Raw(done) => Event::Raw(done, result),
        }
    }

    /// Gives up a ring with nothing but device operations in it, which the kernel refused to enter.
    /// Returns the operations that the kernel has not taken: the last ones. The ring must never be entered
    /// again, since their entries are still in its queue.
    pub(crate) fn take_back(&mut self) -> Vec<Request> {
        self.refused = true;
        let untaken = (self.ring.submission().len() + self.backlog.len()) as u64;
        let taken = self.made - untaken;
        let left = self.places.iter_mut().filter(|place| place.order > taken);
        let waiting: Vec<Waiting> = left.filter_map(|place| place.waiting.take()).collect();
        self.requests -= waiting.len();
        waiting.into_iter().filter_map(Waiting::into_request).collect()
    }

    /// Leaks the memory that the kernel may still use: for entries that could not be cancelled.
    pub(crate) fn abandon(&mut self) {
        self.places.drain(..).for_each(std::mem::forget);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.requests > 0 {
            self.abandon();
        }
    }
}

/// Takes what means "look again" for success: timed out, interrupted, or too many completions pending.
fn look_again(entered: io::Result<usize>) -> io::Result<()> {
    match entered.map_err(|error| (error.raw_os_error(), error)) {
        Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => Ok(()),
        Err((_, error)) => Err(error),
    }
}

fn id_of(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

fn cancel_entry(id: u64) -> squeue::Entry128 {
    squeue::Entry128::from(opcode::AsyncCancel::new(id).build()).user_data(NOBODY)
}
