//! What the nemesis does, by chance.

use crate::machine::Cut;
use crate::search::Kind;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// What happens to the host that has the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    None,
    Stop,
    Kill,
    Cut(Cut),
}

impl Trouble {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Stop => "stopped",
            Self::Kill => "killed",
            Self::Cut(Cut::Incoming) => "cut-in",
            Self::Cut(Cut::Outgoing) => "cut-out",
            Self::Cut(Cut::Both) => "cut",
        }
    }

    fn random(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..10) {
            0 => Self::None,
            1..4 => Self::Stop,
            4..6 => Self::Kill,
            6 => Self::Cut(Cut::Incoming),
            7 | 8 => Self::Cut(Cut::Outgoing),
            _ => Self::Cut(Cut::Both),
        }
    }
}

/// The server is killed after this time, for this long.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    pub after: Duration,
    pub down: Duration,
}

/// One round: the image goes to the next host.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The holder works for so long before anything else happens.
    pub works: Duration,
    /// Then this, for so long, and it may go on.
    pub interlude: Option<(Trouble, Duration)>,
    pub trouble: Trouble,
    /// From the trouble to the first try of the next host.
    pub pause: Duration,
    /// By `--takeover`; else by waiting for the end of a host that has died.
    pub takeover: bool,
    /// The first try is killed after this time.
    pub kill_taker: Option<Duration>,
    /// From the takeover to the end of the trouble.
    pub heal_after: Duration,
    pub restarts: Vec<Restart>,
}

impl Plan {
    /// Nothing happens, and the next host waits until the image is free.
    pub fn wait() -> Self {
        Self {
            works: Duration::ZERO,
            interlude: None,
            trouble: Trouble::None,
            pause: Duration::ZERO,
            takeover: false,
            kill_taker: None,
            heal_after: Duration::ZERO,
            restarts: Vec::new(),
        }
    }

    pub fn random(rng: &mut ChaCha8Rng, kind: Kind) -> Self {
        let trouble = Trouble::random(rng);
        let takes_ms = match kind {
            Kind::Nbd => 14_000,
            Kind::Ceph => 1_500,
        };
        let interlude = rng.random_bool(0.3).then(|| {
            loop {
                match Trouble::random(rng) {
                    Trouble::None | Trouble::Kill => {}
                    trouble => break (trouble, millis(rng, 200, 5_000)),
                }
            }
        });
        let restarts = match (kind, rng.random_range(0..4)) {
            (Kind::Ceph, _) | (_, 0) => Vec::new(),
            (Kind::Nbd, count) => (0..count).map(|_| restart(rng, takes_ms)).collect(),
        };
        Self {
            works: millis(rng, 300, 3_000),
            interlude,
            trouble,
            pause: millis(rng, 0, 1_500),
            takeover: trouble != Trouble::Kill || rng.random_bool(0.5),
            kill_taker: rng.random_bool(0.15).then(|| millis(rng, 0, takes_ms)),
            heal_after: millis(rng, 0, 2_000),
            restarts,
        }
    }
}

fn restart(rng: &mut ChaCha8Rng, within_ms: u64) -> Restart {
    Restart { after: millis(rng, 0, within_ms), down: millis(rng, 50, 2_000) }
}

fn millis(rng: &mut ChaCha8Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..to))
}
