//! Makes the kernel write pages back and drop them.
//!
//! The notification returns when all pages are gone. Until then it waits for whatever holds one: a
//! read that is on its way here, or the write-back itself. So
//!
//! - a thread of its own sends it, which serves no requests;
//! - few requests may wait for it at a time, fewer than can be in flight, or those that it waits
//!   for would never come through;
//! - no request waits for it during which the kernel may hold a page, or blocks write-back: a READ, a
//!   write-back, a WRITE through the cache, a SETATTR of a size. The exception is a WRITE through the
//!   cache that leaves a gap behind the end of a file: it has a thread of its own, which waits for
//!   nobody's page but that file's last one, and the WRITE waits for it only for a while;
//! - that thread has no descriptor but its own: if the daemon is killed meanwhile, the descriptors
//!   of the serving threads are closed, the kernel aborts their requests, and the wait ends.
//!
//! The kernel looks at pages in the order of the file, as many as there are by then. It would follow a
//! program that writes one behind the other for as long as that writes, and everybody who waits for
//! pages with it. So a long range is dropped in pieces, from the last to the first: what is written
//! meanwhile lies behind them, or in one piece.

use super::joined;
use crate::abi::{InvalidateInodeOut, NOTIFY_INVALIDATE_INODE, OUT_HEADER_BYTES, OutHeader};
use crate::done::Done;
use crate::own_table::keep_only;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::{io, thread};
use syncline_fs::types::Ino;
use zerocopy::IntoBytes;

/// The places for requests over /dev/fuse: for writes with all their data, and for others. A thread
/// serves more at a time.
const PLACES_CLASSIC: (usize, usize) = (16, 256);
/// The parts of an io_uring queue's entries that these may take; the rest is for the requests that they wait for.
const PLACES_PART: (usize, usize) = (4, 2);
/// The places for writes through the cache.
const PLACES_CACHED: usize = 1;

/// The pieces of a long range: so many bytes, and this part of those before them if that is more.
/// (A notification takes a microsecond where there are no pages, and there are files of many sizes.)
const PIECE_BYTES: u64 = 64 << 20;
const PIECE_PART: u64 = 32;

/// The most files that wait where all are let go of.
const FILES_AT_ONCE: usize = 1000;

/// Pages of one file to drop.
struct Job {
    ino: Ino,
    ranges: Vec<Range<u64>>,
    /// The requests that wait for it.
    waiting: Vec<Arc<Done>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Those who wait are woken in any case.
        self.waiting.iter().for_each(|done| done.tell());
    }
}

#[derive(Default)]
struct Queue {
    /// One for each file, oldest first.
    jobs: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The thread is taking jobs.
    running: bool,
}

/// The thread that sends notifications, once started.
pub struct LettingGo {
    queue: Arc<Queue>,
    /// The places for requests with data, and for others.
    writes: Places,
    others: Places,
}

impl LettingGo {
    /// For requests that come over io_uring, through queues of so many entries at least, or over
    /// /dev/fuse.
    pub fn new(entries: Option<usize>) -> Self {
        let of_queues = |entries| (entries / PLACES_PART.0, entries / PLACES_PART.1 - PLACES_CACHED);
        let (writes, others) = entries.map_or(PLACES_CLASSIC, of_queues);
        Self { queue: Arc::default(), writes: Places::new(writes), others: Places::new(others) }
    }

    /// For writes through the cache.
    pub fn for_cached_writes() -> Self {
        Self { queue: Arc::default(), writes: Places::new(PLACES_CACHED), others: Places::new(0) }
    }

    /// Starts the thread, with a descriptor of the connection.
    pub fn start(&self, connection: OwnedFd) -> io::Result<()> {
        let (ready, started) = mpsc::channel();
        let (finished, done) = mpsc::channel::<Job>();
        let (descriptor, queue) = (connection.as_raw_fd(), self.queue.clone());
        self.queue.jobs.lock().running = true;
        thread::Builder::new().name("syncline-pages".into()).spawn(move || {
            // `start` waits for this message, so sending can't fail.
            let _ = ready.send(keep_only(Some(descriptor)));
            while let Some(job) = queue.next() {
                let pieces = job.ranges.iter().rev().flat_map(|range| pieces(range).into_iter().rev());
                pieces.for_each(|piece| let_go(descriptor, job.ino, &piece));
                // The receiver ends only after this thread.
                let _ = finished.send(job);
            }
        })?;
        // Waking those who wait takes a descriptor that the other thread does not have.
        thread::Builder::new().name("syncline-told".into()).spawn(move || done.into_iter().for_each(drop))?;
        if started.recv() != Ok(true) {
            // The thread shares our descriptors, so this one has to stay open for as long as the
            // process lives.
            std::mem::forget(connection);
        }
        Ok(())
    }

    /// Ends the thread and completes all jobs: the connection has ended.
    pub fn end(&self) {
        let mut state = self.queue.jobs.lock();
        state.running = false;
        state.jobs.clear();
        self.queue.more.notify_all();
    }

    /// Has the pages of these ranges written back and dropped, and waits for that. Returns false if
    /// it did not wait because too many do already. Never call it for a request during which the
    /// kernel may hold a page, or blocks write-back.
    pub async fn let_go(&self, ino: Ino, ranges: Vec<Range<u64>>) -> bool {
        self.wait(self.writes.take(), ino, ranges).await
    }

    /// The same for all pages of a file, which has so many bytes, and a request without data.
    pub async fn let_go_of_all(&self, ino: Ino, size: u64) -> bool {
        let everything = 0..size;
        self.wait(self.others.take(), ino, vec![everything]).await
    }

    async fn wait(&self, place: Option<Place<'_>>, ino: Ino, ranges: Vec<Range<u64>>) -> bool {
        let done = place.is_some().then(Arc::<Done>::default);
        self.queue.add(ino, ranges, done.clone());
        if let Some(done) = &done {
            done.wait().await;
        }
        done.is_some()
    }

    /// Has the pages of a range written back and dropped some time later.
    pub fn let_go_later(&self, ino: Ino, range: Range<u64>) {
        self.queue.add(ino, vec![range], None);
    }

    /// Has all pages of these files, which have so many bytes, written back and dropped, and waits for
    /// that, on a thread that serves no requests.
    pub async fn let_go_of_files(&self, files: &[(Ino, u64)]) {
        for some in files.chunks(FILES_AT_ONCE) {
            let started = some.iter().map(|&(ino, size)| {
                let done = Arc::<Done>::default();
                let everything = 0..size;
                self.queue.add(ino, vec![everything], Some(done.clone()));
                done
            });
            let started: Vec<_> = started.collect();
            for done in started {
                done.wait().await;
            }
        }
    }
}

impl Drop for LettingGo {
    fn drop(&mut self) {
        self.end();
    }
}

impl Queue {
    fn add(&self, ino: Ino, ranges: Vec<Range<u64>>, done: Option<Arc<Done>>) {
        let mut state = self.jobs.lock();
        if !state.running {
            // A session that is mounted nowhere has no pages.
            done.iter().for_each(|done| done.tell());
            return;
        }
        let known = state.jobs.iter().position(|job| job.ino == ino);
        let index = known.unwrap_or_else(|| {
            state.jobs.push_back(Job { ino, ranges: Vec::new(), waiting: Vec::new() });
            state.jobs.len() - 1
        });
        let job = &mut state.jobs[index];
        job.ranges.extend(ranges);
        job.ranges = joined(std::mem::take(&mut job.ranges));
        job.waiting.extend(done);
        self.more.notify_one();
    }

    /// Waits for the next job; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut state = self.jobs.lock();
        loop {
            if !state.running {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.more.wait(&mut state);
        }
    }
}

/// The places for requests that wait.
struct Places {
    max: usize,
    taken: AtomicUsize,
}

impl Places {
    fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0) }
    }

    /// A place, if one is free.
    fn take(&self) -> Option<Place<'_>> {
        if self.taken.fetch_add(1, Ordering::AcqRel) < self.max {
            return Some(Place(self));
        }
        self.taken.fetch_sub(1, Ordering::AcqRel);
        None
    }
}

/// One of the places.
struct Place<'a>(&'a Places);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pieces of a range, in order. (Offsets are signed in the kernel, so a range without an end stops
/// at the largest one.)
fn pieces(range: &Range<u64>) -> Vec<Range<u64>> {
    let end = range.end.min(i64::MAX as u64);
    let (mut pieces, mut at) = (Vec::new(), range.start);
    while at < end {
        let len = PIECE_BYTES.max(at / PIECE_PART);
        let next = ((at + len) / PIECE_BYTES * PIECE_BYTES).min(end);
        pieces.push(at..next);
        at = next;
    }
    pieces
}

fn let_go(descriptor: RawFd, ino: Ino, range: &Range<u64>) {
    let mut message = [0u8; OUT_HEADER_BYTES + size_of::<InvalidateInodeOut>()];
    let header = OutHeader { len: message.len() as u32, error: NOTIFY_INVALIDATE_INODE, unique: 0 };
    let (offset, len) = (range.start as i64, (range.end - range.start) as i64);
    let body = InvalidateInodeOut { ino, offset, len };
    message[..OUT_HEADER_BYTES].copy_from_slice(header.as_bytes());
    message[OUT_HEADER_BYTES..].copy_from_slice(body.as_bytes());
    // SAFETY: the memory is that of `message`. (Errors need no handling: a file that the kernel
    // does not know has no pages, and neither has a connection that has ended.)
    unsafe { libc::write(descriptor, message.as_ptr().cast(), message.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use std::pin::Pin;

    #[test]
    fn a_long_range_goes_in_pieces() {
        let few = 5..4096;
        assert_eq!(pieces(&few), std::slice::from_ref(&few));
        assert_eq!(pieces(&(0..PIECE_BYTES + 1)), [0..PIECE_BYTES, PIECE_BYTES..PIECE_BYTES + 1]);
        for start in [0, 4096, 12345, 10 << 30, 1 << 50] {
            let all = pieces(&(start..u64::MAX));
            assert!(all.len() < 1000, "{}", all.len());
            assert_eq!((all[0].start, all.last().unwrap().end), (start, i64::MAX as u64));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].end % 4096 == 0));
            let long =
                |piece: &Range<u64>| piece.end - piece.start > PIECE_BYTES.max(piece.start / PIECE_PART);
            assert!(!all.iter().any(long));
        }
        assert!(pieces(&(u64::MAX - 1..u64::MAX)).is_empty());
    }

    #[test]
    fn a_queue_has_entries_for_what_is_waited_for() {
        for entries in 8..=64 {
            let pages = LettingGo::new(Some(entries));
            let waiting = pages.writes.max + pages.others.max + PLACES_CACHED;
            assert!(pages.writes.max >= 2 && pages.others.max >= 3 && waiting <= entries * 3 / 4);
        }
    }

    /// A wait holds up a request, and may be for requests that have yet to come.
    #[test]
    fn few_requests_wait_and_all_are_woken_in_the_end() {
        let pages = LettingGo::new(Some(8));
        pages.queue.jobs.lock().running = true;
        let all = 0..u64::MAX;
        let mut waiting: Vec<Pin<Box<dyn Future<Output = bool> + '_>>> = Vec::new();
        for ino in 0..2 {
            waiting.push(Box::pin(pages.let_go(ino, vec![all.clone()])));
            assert!(block_on(poll_once(waiting.last_mut().unwrap())).is_none());
        }
        assert!(!block_on(pages.let_go(10, vec![all.clone()])), "there are too many");
        // As the thread does with the first job.
        drop(pages.queue.next());
        assert!(block_on(waiting.remove(0)));
        assert!(block_on(poll_once(&mut waiting[0])).is_none(), "its pages are not gone");
        pages.end();
        assert!(waiting.into_iter().all(block_on));
        assert!(block_on(pages.let_go(7, vec![all])), "a session that has ended has no pages");
    }
}
