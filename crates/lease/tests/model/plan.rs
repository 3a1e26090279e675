//! The plan of a run, and its outcome.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;

/// The trouble that a run may meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Everything that D1 to D4 allow.
    Bounded,
    /// The same without D4: writes may be late by half a minute. Only releases are not.
    Unbounded,
    /// Clocks that differ by more than the allowance: not D2.
    Drifting,
    /// Releases that are late by up to a minute: what L1 needs of D4.
    LateRelease,
    /// Hosts whose clock stands still while they are stopped: not D2.
    Paused,
}

/// One run.
#[derive(Clone)]
pub struct Plan {
    pub seed: u64,
    pub trouble: Trouble,
    pub tells: bool,
    /// Nothing fails and nothing is slow.
    pub quiet: bool,
    pub hosts: usize,
    pub duration_ms: u64,
    pub guard_ms: u64,
    /// A fault, a start or an end comes about this often.
    pub chaos_ns: u64,
    /// One operation in this many may take as long as can be.
    pub late_one_in: u32,
    /// The clocks of two hosts differ by all that is allowed.
    pub extreme_clocks: bool,
    /// A holder writes and flushes about this often.
    pub work_ns: u64,
    pub run_ns: u64,
}

impl Plan {
    pub fn random(seed: u64, trouble: Trouble) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self {
            seed,
            trouble,
            tells: false,
            quiet: false,
            hosts: rng.random_range(2..=4),
            duration_ms: if rng.random() { 4_000 } else { rng.random_range(4_000..15_000) },
            guard_ms: rng.random_range(0..=4_000),
            late_one_in: [400, 40, 8][rng.random_range(0..3)],
            extreme_clocks: rng.random(),
            chaos_ns: rng.random_range(500..8_000) * MS,
            work_ns: if rng.random_range(0..4) == 0 { 5 * SECOND } else { rng.random_range(50..800) * MS },
            run_ns: 150 * SECOND,
        }
    }

    /// The same without anything that goes wrong by itself.
    pub fn quiet(seed: u64, trouble: Trouble) -> Self {
        Self { quiet: true, ..Self::random(seed, trouble) }
    }

    /// L4's limit in true time: by the slowest clock.
    pub fn longest_wait_ns(&self) -> u64 {
        let by_its_clock = (self.duration_ms + self.guard_ms) * 9 / 8 + 2_000;
        by_its_clock * MS * 8 / 7
    }
}

/// The outcome of a run.
#[derive(Default, Debug)]
pub struct Outcome {
    pub broken: Vec<String>,
    pub history: Vec<String>,
    pub acquired: u64,
    pub taken_over: u64,
    /// Holders that lost the lease or found it expired.
    pub lost: u64,
    pub released: u64,
    pub acknowledged: u64,
    /// Writes and flushes that the lease refused.
    pub refused_late: u64,
    /// Claims that were overwritten by another, or came too late.
    pub overtaken: u64,
    /// Writes of former holders that took effect.
    pub late_writes: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.taken_over += other.taken_over;
        self.lost += other.lost;
        self.released += other.released;
        self.acknowledged += other.acknowledged;
        self.refused_late += other.refused_late;
        self.overtaken += other.overtaken;
        self.late_writes += other.late_writes;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acquired, taken_over, lost, released, acknowledged, .. } = self;
        write!(out, "{acquired} holders, {taken_over} by take-over, {lost} lost, {released} released, ")?;
        write!(out, "{acknowledged} flushes acknowledged, {} refused late, ", self.refused_late)?;
        write!(out, "{} claims overtaken, {} late writes", self.overtaken, self.late_writes)
    }
}
