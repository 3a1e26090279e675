//! Files that are growing, and the size that the kernel has of them.
//!
//! The kernel takes a larger size from the answer to the call that made it. A process that is told
//! that size before, and maps or reads the file up to there, gets SIGBUS or fewer bytes; where the write
//! goes past the cache, it gets NUL bytes out of the page in which the file ended. So:
//!
//! - until a request is about to be answered, everybody is told the size from before it. Not until it
//!   has been: the kernel would take that size from the next caller when the call has returned;
//! - the kernel needs a moment to take an answer: it has to run the thread that asked. It tells us
//!   nothing of that. So others than that thread wait for their answer, until it has run;
//! - a write(2) through the cache may be several WRITEs, and the kernel takes the size after the last
//!   one. While the next one may be a part of the same call, others wait too.
//!
//! A thread of a pid namespace that cannot be seen from here is not waited for.
//!
//! Nobody is told less than the size after a call that had returned when they asked.

use super::PAGE_BYTES;
use crate::processes::Processes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs};
use syncline_fs::types::Ino;

/// How long it takes until an answer has reached the kernel, and between two looks at a thread.
const TAKING: Duration = Duration::from_millis(1);
/// How long the kernel may need to run a thread on a busy machine.
pub const TAKING_MAX: Duration = Duration::from_secs(1);
/// How often a wait checks whether the answer is already known to be taken.
const STEP: Duration = Duration::from_micros(100);
/// How long an answer may take to reach a thread that sleeps. (The thread may instead have taken it, and sleep
/// in its next request.)
const SLEEPING_MAX: Duration = Duration::from_millis(100);
/// The CPU time after which a thread has certainly taken its answer. Taking it needs a few microseconds, but the
/// thread may be preempted meanwhile.
const RUN: Duration = Duration::from_micros(50);
/// Where the kernel has a thread sleep that waits for an answer from FUSE.
const WAITS_FOR_AN_ANSWER: &str = "request_wait_answer";
/// The number of maps that the files are divided among.
const SHARDS: usize = 16;
/// The entries of a map from which on those are removed that are over.
const ENTRIES: usize = 64;
/// The most threads whose newest file is remembered, in each map.
const THREADS: usize = 1024;

/// The files that are growing.
#[derive(Default)]
pub struct Growing {
    shards: [Mutex<HashMap<Ino, File>>; SHARDS],
    /// The file that each thread enlarged last. It has taken the answers for all files that it enlarged
    /// earlier.
    newest: [Mutex<HashMap<u32, Ino>>; SHARDS],
}

/// A request that makes a file larger.
#[derive(Clone)]
pub struct Growth {
    /// The bytes that it writes.
    pub range: Range<u64>,
    /// The size of the file before it.
    pub size: u64,
    /// The thread that sent it; 0 if it is in another pid namespace and cannot be seen from here.
    pub thread: u32,
    /// The kernel takes the size from nothing but its answer: not a direct write, during which it takes
    /// what it is told.
    pub is_cached: bool,
}

struct File {
    /// The size before the requests that are not answered, or before the last one.
    before: u64,
    /// Requests that are not answered.
    open: usize,
    last: Growth,
    /// The last one may be a part of the call that the one before it was a part of.
    is_part: bool,
    /// When the last one was answered.
    answered: Instant,
}

/// The answer about a file's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The size that it has.
    Its,
    /// This one.
    Before(u64),
    /// To be asked again once the kernel has taken this answer.
    Later(Answered),
}

/// A request whose answer the kernel may not have taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    /// The size before it.
    pub before: u64,
    /// When it was answered; `None` if it is not, and may be a part of a call whose other part was.
    pub at: Option<Instant>,
    /// It may continue the call of the request before it.
    pub is_part: bool,
    /// The thread that sent it.
    pub thread: u32,
    /// How long its answer may still be on its way.
    pub wait: Duration,
}

impl Answered {
    /// Waits until the kernel has run the thread since, or the thread is gone or sleeps elsewhere than
    /// where it waits for an answer: on a busy machine ours may still be on its way. Gives up after the
    /// `longest` time, or once `is_open` returns false. `over` ends after a time.
    pub async fn taken<F: Future<Output = ()>>(
        &self,
        longest: Duration,
        looks: &Processes,
        is_open: impl Fn() -> bool,
        over: impl Fn(Duration) -> F,
    ) {
        let thread = self.thread;
        let look = || looks.look(move || seen(thread));
        let mut before = look().await;
        let begun = Instant::now();
        while begun.elapsed() < self.wait {
            if !is_open() {
                return;
            }
            over(STEP).await;
        }
        let begun = Instant::now();
        while begun.elapsed() < longest && is_open() {
            match (before, look().await) {
                (_, Some(None)) => return,
                (Some(Some(before)), Some(Some(now))) if now.has_taken(before, begun.elapsed()) => return,
                // A look took too long.
                (None, None) => return,
                // Its sleep may have been the wait for the answer, unseen from here.
                (None | Some(None), now) => before = now,
                _ => {}
            }
            over(TAKING).await;
        }
    }
}

/// A thread that could run, or sleeps until an answer from FUSE comes.
#[derive(Clone, Copy)]
struct Seen {
    /// How long it has run.
    run: Duration,
    sleeps: bool,
}

impl Seen {
    /// True if the thread has taken an answer that was sent `since` ago, when the thread was seen as `before`.
    fn has_taken(self, before: Self, since: Duration) -> bool {
        let run = self.run.saturating_sub(before.run);
        match self.sleeps {
            // A thread that has run since then sleeps until the answer to its next request comes.
            true => !run.is_zero() || since >= SLEEPING_MAX,
            false => run >= RUN,
        }
    }
}

/// Looks at a thread; `None` if it does neither, or is not seen from here.
fn seen(thread: u32) -> Option<Seen> {
    let read = |what: &str| fs::read_to_string(format!("/proc/{thread}/{what}")).ok();
    // Before the state: once it waits no more, it can run.
    let sleeps = read("wchan").is_some_and(|place| place.starts_with(WAITS_FOR_AN_ANSWER));
    let stat = read("stat")?;
    // The name before the state may contain anything.
    let is_runnable = stat.rsplit_once(") ")?.1.starts_with('R');
    let nanoseconds = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
    (is_runnable || sleeps).then_some(Seen { run: Duration::from_nanos(nanoseconds), sleeps })
}

impl File {
    /// True if a request may be the next part of the call of the last one. The kernel ends a part with
    /// a page that was not complete, or with as many pages as it sends at once.
    fn goes_on(&self, next: &Growth) -> bool {
        let last = &self.last;
        let pages = last.range.end.div_ceil(PAGE_BYTES) - last.range.start / PAGE_BYTES;
        let is_incomplete = pages == 1 && !last.range.start.is_multiple_of(PAGE_BYTES);
        last.thread > 0
            && last.range.end.is_multiple_of(PAGE_BYTES)
            && (is_incomplete || pages >= 32)
            && last.is_cached
            && (last.thread, last.range.end) == (next.thread, next.range.start)
    }

    /// True if nobody has to wait for it any more, or its thread can't be seen, so that nothing could end a
    /// wait early.
    fn is_over(&self, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.answered) >= TAKING_MAX;
        self.open == 0 && (is_old || !self.last.is_cached || self.last.thread == 0)
    }
}

impl Growing {
    /// Called before a request that makes a file larger is carried out. It counts as answered when
    /// what is returned is dropped, which must be before the answer leaves.
    pub fn begin(self: &Arc<Self>, ino: Ino, growth: Growth) -> Unanswered {
        let now = Instant::now();
        self.note_newest(growth.thread, ino);
        let mut files = self.shard(ino).lock();
        if files.len() >= ENTRIES {
            files.retain(|_, file| !file.is_over(now));
        }
        let (before, last) = (growth.size, growth.clone());
        let fresh = || File { before, open: 0, last, is_part: false, answered: now };
        let file = files.entry(ino).or_insert_with(fresh);
        if file.open == 0 {
            // It holds the inode's lock, so its former holder has taken the answer.
            (file.before, file.is_part) = (growth.size, file.goes_on(&growth));
        }
        (file.open, file.last) = (file.open + 1, growth);
        drop(files);
        Unanswered { growing: self.clone(), ino }
    }

    /// Called when a thread makes a file larger. The thread has taken the answer about the file that it made
    /// larger before, so stat(2) of that file need not look at the thread.
    fn note_newest(&self, thread: u32, ino: Ino) {
        if thread == 0 {
            return;
        }
        let mut newest = self.newest[thread as usize % SHARDS].lock();
        if newest.len() >= THREADS {
            newest.clear();
        }
        let before = newest.insert(thread, ino);
        drop(newest);
        if let Some(before) = before.filter(|before| *before != ino) {
            self.take(before, thread);
        }
    }

    /// Called when a thread syncs any file. The thread has taken the answer about the file that it made
    /// larger last, and stat(2) of that file need not wait for the sync.
    pub fn syncs(&self, thread: u32) {
        let newest = self.newest[thread as usize % SHARDS].lock().remove(&thread);
        if let Some(newest) = newest {
            self.take(newest, thread);
        }
    }

    /// The kernel has taken the answer to this thread about this file, if that was the last one.
    fn take(&self, ino: Ino, thread: u32) {
        let mut files = self.shard(ino).lock();
        if files.get(&ino).is_some_and(|file| file.open == 0 && file.last.thread == thread) {
            files.remove(&ino);
        }
    }

    /// The answer to a thread about a file's size, which was looked at before.
    pub fn told(&self, ino: Ino, thread: u32) -> Told {
        let mut files = self.shard(ino).lock();
        let Some(file) = files.get(&ino) else { return Told::Its };
        if file.open > 0 {
            let (before, thread) = (file.before, file.last.thread);
            let open = Answered { before, at: None, is_part: true, thread, wait: TAKING };
            return if file.is_part { Told::Later(open) } else { Told::Before(before) };
        }
        let now = Instant::now();
        if file.is_over(now) {
            files.remove(&ino);
            return Told::Its;
        }
        if file.last.thread == thread {
            return Told::Its;
        }
        let wait = TAKING.saturating_sub(now.saturating_duration_since(file.answered));
        let (before, thread) = (file.before, file.last.thread);
        let (at, is_part) = (Some(file.answered), file.is_part);
        Told::Later(Answered { before, at, is_part, thread, wait })
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, File>> {
        &self.shards[ino as usize % SHARDS]
    }
}

/// A request that makes a file larger, until it is answered.
pub struct Unanswered {
    growing: Arc<Growing>,
    ino: Ino,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(file) = self.growing.shard(self.ino).lock().get_mut(&self.ino) {
            file.open -= 1;
            file.answered = Instant::now();
        }
    }
}

impl fmt::Debug for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unanswered").field("ino", &self.ino).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(range: Range<u64>, size: u64, thread: u32) -> Growth {
        Growth { range, size, thread, is_cached: true }
    }

    /// The size before a write that may not be taken yet.
    fn later(told: Told) -> Option<u64> {
        if let Told::Later(answered) = told { Some(answered.before) } else { None }
    }

    #[test]
    fn nobody_is_told_the_size_of_a_write_before_its_answer() {
        let growing = Arc::<Growing>::default();
        assert_eq!(growing.told(7, 1), Told::Its);
        let write = growing.begin(7, growth(100..300, 100, 1));
        assert_eq!((growing.told(7, 1), growing.told(7, 2)), (Told::Before(100), Told::Before(100)));
        assert_eq!(growing.told(8, 1), Told::Its);
        drop(write);
        assert!(matches!(later(growing.told(7, 2)), Some(100) | None));
        assert_eq!(growing.told(7, 1), Told::Its, "whoever wrote has taken the answer");
        std::thread::sleep(TAKING_MAX);
        assert_eq!(growing.told(7, 2), Told::Its);
        let begun = Instant::now();
        drop(growing.begin(7, growth(300..310, 300, 1)));
        growing.syncs(3);
        let waits = later(growing.told(7, 2)).is_some();
        assert!(waits || begun.elapsed() >= TAKING_MAX, "another thread's sync says nothing");
        growing.syncs(1);
        assert_eq!(growing.told(7, 2), Told::Its, "it syncs, so it has taken the answer");
        drop(growing.begin(7, growth(300..310, 300, 1)));
        drop(growing.begin(8, growth(0..10, 0, 1)));
        assert_eq!(growing.told(7, 2), Told::Its, "it writes another file, so it has taken the answer");
        drop(growing.begin(7, growth(300..310, 300, 0)));
        assert_eq!(growing.told(7, 2), Told::Its, "nobody sees a thread of another pid namespace");
        // Whoever holds the inode's lock next comes after that.
        drop(growing.begin(7, growth(300..400, 300, 1)));
        let write = growing.begin(7, growth(400..500, 400, 3));
        assert_eq!(growing.told(7, 2), Told::Before(400));
        let beside = growing.begin(7, growth(600..700, 500, 4));
        drop(write);
        assert_eq!(growing.told(7, 2), Told::Before(400), "they are not all answered");
        drop(beside);
        // The kernel takes what it is told during a direct write.
        drop(growing.begin(7, Growth { is_cached: false, ..growth(700..800, 700, 1) }));
        assert_eq!(growing.told(7, 2), Told::Its);
    }

    #[test]
    fn a_size_between_the_parts_of_a_call_waits() {
        let growing = Arc::<Growing>::default();
        let after = |last: Growth, next: Growth| {
            drop(growing.begin(7, last));
            let _next = growing.begin(7, next);
            growing.told(7, 9)
        };
        let part = growth(5000..8192, 5000, 1);
        assert_eq!(later(after(part.clone(), growth(8192..10_000, 8192, 1))), Some(8192));
        let long = growth(0..1 << 20, 0, 1);
        assert_eq!(later(after(long, growth(1 << 20..2 << 20, 1 << 20, 1))), Some(1 << 20));
        // Not of somebody else's, somewhere else, or behind one that was the last part.
        assert_eq!(after(part.clone(), growth(8192..10_000, 8192, 2)), Told::Before(8192));
        assert_eq!(after(part, growth(8200..10_000, 8192, 1)), Told::Before(8192));
        assert_eq!(after(growth(5000..8000, 5000, 1), growth(8000..9000, 8000, 1)), Told::Before(8000));
        assert_eq!(after(growth(4096..8192, 4096, 1), growth(8192..9000, 8192, 1)), Told::Before(8192));
    }

    #[test]
    fn an_answer_is_taken_when_its_thread_sleeps_has_run_or_is_gone() {
        let of = |thread| Answered { before: 0, at: None, is_part: false, thread, wait: Duration::ZERO };
        let processes = Processes::default();
        let looks = std::cell::Cell::new(0);
        let over = |_| {
            looks.set(looks.get() + 1);
            std::future::ready(())
        };
        // SAFETY: takes nothing and cannot fail.
        let own = unsafe { libc::gettid() } as u32;
        assert!(seen(own).is_some(), "it runs");
        let (thread, ends) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeping = std::thread::spawn(move || {
            // SAFETY: as above.
            thread.send(unsafe { libc::gettid() } as u32).unwrap();
            let _ = ended.recv();
        });
        let thread = ends.recv().unwrap();
        while seen(thread).is_some() {
            std::thread::yield_now();
        }
        futures_lite::future::block_on(of(thread).taken(TAKING_MAX, &processes, || true, over));
        assert_eq!(looks.get(), 0, "it sleeps");
        drop(end);
        sleeping.join().unwrap();
        futures_lite::future::block_on(of(0).taken(TAKING_MAX, &processes, || true, over));
        assert_eq!(looks.get(), 0, "nobody sees it");
        let long = Answered { wait: Duration::MAX, ..of(own) };
        let is_open = || looks.get() < 3;
        futures_lite::future::block_on(long.taken(TAKING_MAX, &processes, is_open, over));
        assert_eq!(looks.get(), 3, "it is known to be taken");
    }

    #[test]
    fn an_answer_is_taken_when_its_thread_runs_after_a_sleep() {
        let (tell, told) = std::sync::mpsc::channel();
        let (wake, woken) = std::sync::mpsc::channel::<()>();
        let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let end = ends.clone();
        let running = std::thread::spawn(move || {
            // SAFETY: takes nothing and cannot fail.
            tell.send(unsafe { libc::gettid() } as u32).unwrap();
            woken.recv().unwrap();
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let thread = told.recv().unwrap();
        let is_seen_to_run = || seen(thread).is_some();
        while is_seen_to_run() {
            std::thread::yield_now();
        }
        let over = |_| {
            let _ = wake.send(());
            while !is_seen_to_run() {
                std::thread::yield_now();
            }
            std::future::ready(())
        };
        let answered = Answered { before: 0, at: None, is_part: false, thread, wait: STEP };
        let (begun, longest) = (Instant::now(), Duration::from_secs(120));
        futures_lite::future::block_on(answered.taken(longest, &Processes::default(), || true, over));
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        running.join().unwrap();
        assert!(begun.elapsed() < longest, "it has run for long");
    }

    #[test]
    fn memory_is_bounded() {
        let growing = Arc::<Growing>::default();
        for ino in 0..1000 * SHARDS as u64 {
            drop(growing.begin(ino * SHARDS as u64, Growth { is_cached: false, ..growth(0..1, 0, 1) }));
        }
        assert!(growing.shards[0].lock().len() <= ENTRIES);
    }
}
