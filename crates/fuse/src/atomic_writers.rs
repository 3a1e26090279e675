//! Who has an atomic write open: handles of files that are open for writing, and the processes
//! behind them.
//!
//! A handle tells which open file a request came through. When a process dies in the middle of an
//! atomic write, the kernel closes its files one by one, and sends a FLUSH for each before it gives
//! up the process's locks. The write is taken back then, so whoever gets the lock next finds the
//! file as it was. A RELEASE comes later, perhaps too late.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use syncline_fs::Through;
use syncline_fs::types::Ino;

/// Handles are multiples of this: the lowest bit has a meaning of its own.
const STEP: u64 = 2;
/// The flag of a thread that exits, in its `/proc/PID/stat`.
const EXITING: u64 = 4;

/// The atomic writes of a mount.
#[derive(Default)]
pub struct AtomicWriters {
    is_on: bool,
    opened: AtomicU64,
    open: Mutex<BTreeMap<Ino, Writer>>,
    /// The thread that last began an atomic write by a handle, and its process: looked up once, and
    /// while the thread lives.
    beginners: Mutex<BTreeMap<u64, (u32, Option<u64>)>>,
    /// What each handle began last, until it is closed or aborts that.
    begun: Mutex<BTreeMap<u64, Through>>,
    /// Files and handles whose atomic write was taken back by a close, and that go on without
    /// knowing it.
    lost: Mutex<BTreeSet<(Ino, u64)>>,
    /// The number of them, for those who write.
    lost_count: AtomicUsize,
}

/// The owner of an open atomic write.
#[derive(Clone, Copy)]
struct Writer {
    handle: u64,
    /// The process that began it, if that is visible here.
    process: Option<u64>,
}

impl AtomicWriters {
    /// With `is_on`, files that are opened for writing get handles of their own.
    pub fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    /// True if atomic writes are served.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A handle that no other open file has, for an open with these flags; 0 if no atomic write can
    /// begin there.
    pub fn handle(&self, flags: u32) -> u64 {
        let writes = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        if self.is_on && writes { (self.opened.fetch_add(1, Ordering::Relaxed) + 1) * STEP } else { 0 }
    }

    /// True if a handle can begin atomic writes.
    pub fn may_begin(handle: u64) -> bool {
        handle >= STEP
    }

    /// Notes that a thread has begun an atomic write.
    pub fn begun(&self, ino: Ino, handle: u64, thread: u32) {
        let process = self.process_of(handle, thread);
        self.open.lock().insert(ino, Writer { handle, process });
    }

    fn process_of(&self, handle: u64, thread: u32) -> Option<u64> {
        let known = self.beginners.lock().get(&handle).copied();
        if let Some((_, process)) = known.filter(|(beginner, _)| *beginner == thread) {
            return process;
        }
        let process = process(thread);
        self.beginners.lock().insert(handle, (thread, process));
        process
    }

    /// Notes what a handle has begun: what is written and committed by it from now on is that, or
    /// fails with it.
    pub fn keep(&self, handle: u64, begun: Through) {
        self.begun.lock().insert(handle, begun);
    }

    /// What the handle began last.
    pub fn kept(&self, handle: u64) -> Option<Through> {
        self.begun.lock().get(&handle).cloned()
    }

    /// Notes that a handle has aborted this: what it writes from now on is not a part of it.
    pub fn abandon(&self, handle: u64, aborted: &Through) {
        let mut begun = self.begun.lock();
        if begun.get(&handle).is_some_and(|kept| kept.is_beside(aborted) || kept.was_taken_back()) {
            begun.remove(&handle);
        }
    }

    /// Notes that nobody has the open file of a handle any more.
    pub fn closed(&self, ino: Ino, handle: u64) {
        self.forget_loss(ino, handle);
        self.beginners.lock().remove(&handle);
        self.begun.lock().remove(&handle);
    }

    /// Notes that an atomic write has ended.
    pub fn ended(&self, ino: Ino, handle: u64) {
        let mut open = self.open.lock();
        if open.get(&ino).is_some_and(|writer| writer.handle == handle) {
            open.remove(&ino);
        }
    }

    /// Notes that a close took back the atomic write of a handle, which may still be open elsewhere.
    /// What it writes now is not atomic any more, and it has to learn that.
    pub fn lose(&self, ino: Ino, handle: u64) {
        let mut lost = self.lost.lock();
        lost.insert((ino, handle));
        self.lost_count.store(lost.len(), Ordering::Release);
    }

    /// Forgets a loss: the handle has been closed, or has begun another atomic write, or has ended the
    /// lost one.
    pub fn forget_loss(&self, ino: Ino, handle: u64) {
        if self.lost_count.load(Ordering::Acquire) > 0 {
            let mut lost = self.lost.lock();
            lost.remove(&(ino, handle));
            self.lost_count.store(lost.len(), Ordering::Release);
        }
    }

    /// True if the handle's atomic write was taken back without its doing.
    pub fn has_lost(&self, ino: Ino, handle: u64) -> bool {
        self.lost_count.load(Ordering::Acquire) > 0 && self.lost.lock().contains(&(ino, handle))
    }

    /// The handle whose atomic write ends now that `thread` closes a descriptor of `handle`: its
    /// process closes a descriptor of that handle, or it exits, and this is one of its descriptors
    /// of the file. What can't be told counts as that.
    pub fn left_by(&self, ino: Ino, handle: u64, thread: u32) -> Option<u64> {
        let writer = *self.open.lock().get(&ino)?;
        let is_same = match (writer.process, process(thread)) {
            (Some(writer), Some(closer)) => writer == closer,
            _ => true,
        };
        (is_same && (handle == writer.handle || is_exiting(thread))).then_some(writer.handle)
    }
}

/// The process of a thread, if that is visible and has not ended.
fn process(thread: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// True if a thread exits, or is not visible.
fn is_exiting(thread: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{thread}/stat")) else { return true };
    flags(&stat).is_none_or(|flags| flags & EXITING != 0)
}

/// The flags in a line of `/proc/PID/stat`: the seventh field behind the name, which is in
/// parentheses and may contain any character.
fn flags(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const READ: u32 = libc::O_RDONLY as u32;
    const WRITE: u32 = libc::O_RDWR as u32;

    #[test]
    fn handles_of_writers_differ() {
        let writers = AtomicWriters::new(true);
        let (one, other) = (writers.handle(WRITE), writers.handle(libc::O_WRONLY as u32));
        assert!(AtomicWriters::may_begin(one) && AtomicWriters::may_begin(other) && one != other);
        assert_eq!((one % STEP, writers.handle(READ)), (0, 0));
        assert!(!AtomicWriters::may_begin(1));
        assert_eq!(AtomicWriters::new(false).handle(WRITE), 0);
    }

    #[test]
    fn a_close_by_the_owner_ends_it_and_by_others_does_not() {
        let writers = AtomicWriters::new(true);
        let (me, mut other) = (std::process::id(), Command::new("sleep").arg("60").spawn().unwrap());
        writers.begun(7, 2, me);
        assert_eq!(writers.left_by(7, 2, me), Some(2));
        assert_eq!(writers.left_by(7, 4, me), None, "the process lives, and the handle is another one");
        assert_eq!(writers.left_by(7, 2, other.id()), None);
        assert_eq!(writers.left_by(8, 2, me), None);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(writers.left_by(7, 4, other.id()), Some(2), "nobody can tell");
        writers.ended(7, 4);
        assert_eq!(writers.left_by(7, 2, me), Some(2));
        writers.ended(7, 2);
        assert_eq!(writers.left_by(7, 2, me), None);
    }

    /// The thread that began it may end before its process does.
    #[test]
    fn a_process_outlives_its_threads() {
        let writers = AtomicWriters::new(true);
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        // SAFETY: it takes nothing and can't fail.
        let begin = || writers.begun(7, 2, unsafe { libc::gettid() } as u32);
        std::thread::scope(|scope| scope.spawn(begin).join().unwrap());
        assert_eq!(writers.left_by(7, 2, other.id()), None, "a child closes its copy");
        assert_eq!(writers.left_by(7, 2, std::process::id()), Some(2));
        writers.closed(7, 2);
        assert!(writers.beginners.lock().is_empty());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_handle_that_lost_its_write_is_known_until_it_has_learned_of_it() {
        let writers = AtomicWriters::new(true);
        assert!(!writers.has_lost(7, 2));
        writers.lose(7, 2);
        assert!(writers.has_lost(7, 2) && !writers.has_lost(7, 4) && !writers.has_lost(8, 2));
        writers.forget_loss(7, 4);
        assert!(writers.has_lost(7, 2));
        writers.forget_loss(7, 2);
        assert!(!writers.has_lost(7, 2));
    }

    #[test]
    fn names_with_parentheses_and_spaces_hide_no_flags() {
        assert_eq!(flags("12 (a) S 1 (b) (c) R 1 2 3 4 5 4194304 0"), Some(4_194_304));
        assert_eq!(flags("12 (a) R 1 2 3"), None);
    }
}
