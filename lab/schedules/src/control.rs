//! The communication between a search, its scheduler and its lives.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

thread_local! {
    // A life runs on one thread, whatever its tasks are.
    static STIRRED: Cell<bool> = const { Cell::new(false) };
}

/// Notes a rare event, such as a device error: the steps that follow deserve a different order more
/// than most.
pub(crate) fn stir() {
    STIRRED.set(true);
}

/// True if a rare event has happened since the last call.
pub(crate) fn was_stirred() -> bool {
    STIRRED.take()
}

/// The seeds to run, and the progress of the current one. Uses atomics of `std`, so that accessing
/// it is not a step of a life.
#[derive(Debug)]
pub struct Control {
    next: AtomicU64,
    end: u64,
    deadline: Option<Instant>,
    seed: AtomicU64,
    quiet: AtomicBool,
    steps: AtomicU64,
    digest: AtomicU64,
    /// Steps of all lives.
    pub(crate) steps_of_all: AtomicU64,
    /// Power cuts judged.
    pub(crate) images: AtomicU64,
    /// Promises judged.
    pub(crate) promises: AtomicU64,
}

impl Control {
    pub(crate) fn new(first: u64, end: u64, deadline: Option<Instant>) -> Self {
        Self {
            next: AtomicU64::new(first),
            end,
            deadline,
            seed: AtomicU64::new(first),
            quiet: AtomicBool::new(true),
            steps: AtomicU64::new(0),
            digest: AtomicU64::new(0),
            steps_of_all: AtomicU64::new(0),
            images: AtomicU64::new(0),
            promises: AtomicU64::new(0),
        }
    }

    /// Begins the next life; returns its seed, or `None` if all are done.
    pub(crate) fn next_seed(&self) -> Option<u64> {
        let seed = self.next.load(Ordering::Relaxed);
        if seed >= self.end || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        self.next.store(seed + 1, Ordering::Relaxed);
        self.seed.store(seed, Ordering::Relaxed);
        self.quiet.store(true, Ordering::Relaxed);
        self.steps.store(0, Ordering::Relaxed);
        self.digest.store(seed, Ordering::Relaxed);
        Some(seed)
    }

    /// The seed of the current life.
    pub fn seed(&self) -> u64 {
        self.seed.load(Ordering::Relaxed)
    }

    /// The end of the range of seeds begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// With `quiet`, the scheduler no longer decides the order of steps and lets each task run on.
    pub fn quiet(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub(crate) fn note_step(&self, task: u64) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.steps_of_all.fetch_add(1, Ordering::Relaxed);
        self.mix(task);
    }

    /// Adds a number to the digest of this life, for comparison with another run of the same seed.
    pub fn mix(&self, number: u64) {
        let digest = self.digest.load(Ordering::Relaxed).rotate_left(7) ^ number;
        self.digest.store(digest.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
    }

    /// Counts images and promises that were judged.
    pub fn judged(&self, images: u64, promises: u64) {
        self.images.fetch_add(images, Ordering::Relaxed);
        self.promises.fetch_add(promises, Ordering::Relaxed);
    }

    /// Number of steps of the current life, and the digest that distinguishes its course from
    /// others.
    pub fn course(&self) -> (u64, u64) {
        (self.steps.load(Ordering::Relaxed), self.digest.load(Ordering::Relaxed))
    }
}
