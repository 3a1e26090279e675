//! Tracks what each thread is doing since when, and ends the program if an operation hangs.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time for an operation: far longer than any takes on the slowest machine.
const OPERATION_MAX: Duration = Duration::from_secs(120);

/// Records the operations of the threads.
pub struct Watchdog {
    doing: Vec<Mutex<Option<(Instant, String)>>>,
    /// Every operation begun: the number of device events by then, the thread, and a description.
    done: Mutex<Vec<(usize, u64, String)>>,
    ended: AtomicBool,
    failed: AtomicBool,
}

impl Watchdog {
    pub fn over(threads: u64) -> Self {
        let doing = (0..threads).map(|_| Mutex::new(None)).collect();
        Self { doing, done: Mutex::default(), ended: AtomicBool::new(false), failed: AtomicBool::new(false) }
    }

    /// Records what a thread begins to do, and the number of device events so far.
    pub fn note(&self, thread: u64, position: usize, what: String) {
        self.done.lock().expect("no panic under it").push((position, thread, what.clone()));
        *self.doing[thread as usize].lock().expect("no panic under it") = Some((Instant::now(), what));
    }

    /// All operations: number of events before each, its thread, and its description.
    pub fn done(&self) -> Vec<(usize, u64, String)> {
        self.done.lock().expect("no panic under it").clone()
    }

    /// Marks the end of all threads; [`Watchdog::watch`] returns.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Records that a thread has failed, so the others need not continue.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends the program if an operation hangs: a hanging thread can't be cancelled.
    pub fn watch(&self, about: &str) {
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            let hangs = self.doing.iter().any(|doing| {
                let doing = doing.lock().expect("no panic under it");
                doing.as_ref().is_some_and(|(since, _)| since.elapsed() > OPERATION_MAX)
            });
            if hangs {
                eprintln!("{about}: an operation does not end\n{}", self.told());
                std::process::abort();
            }
        }
    }

    fn told(&self) -> String {
        let mut told = String::new();
        for (thread, doing) in self.doing.iter().enumerate() {
            if let Some((since, what)) = &*doing.lock().expect("no panic under it") {
                let _ = writeln!(told, "thread {thread}, for {:?}: {what}", since.elapsed());
            }
        }
        told
    }
}

/// Tells the watchdog when a thread ends, and whether it panicked.
pub struct Guard<'a> {
    pub watchdog: &'a Watchdog,
    pub thread: u64,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.watchdog.doing[self.thread as usize].lock().expect("no panic under it") = None;
        if std::thread::panicking() {
            self.watchdog.fail();
        }
    }
}
