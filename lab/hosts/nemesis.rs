//! The actions of the nemesis, by chance.

use super::machine::Cut;
use super::search::Kind;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// In a search that is no longer than this nothing makes takeovers take longer.
const SHORT: Duration = Duration::from_secs(60);

/// The trouble of the host that has the image.
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

/// When a server loses its power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    Now,
    /// Instead of a flush: all that it was to cover has been answered, and nothing of it is durable.
    BeforeFlush,
    /// Instead of the request after so many others.
    AtRequest(u64),
}

/// After this time, at the moment that comes then, the server loses its power; for so long it is down.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    pub after: Duration,
    pub moment: Moment,
    pub down: Duration,
}

/// One round: the image goes to the next host.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The holder works for so long before anything else happens.
    pub works: Duration,
    /// Meanwhile.
    pub restarts_at_work: Vec<Restart>,
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
            restarts_at_work: Vec::new(),
            interlude: None,
            trouble: Trouble::None,
            pause: Duration::ZERO,
            takeover: false,
            kill_taker: None,
            heal_after: Duration::ZERO,
            restarts: Vec::new(),
        }
    }

    /// One for a search of this length.
    pub fn random(rng: &mut ChaCha8Rng, kind: Kind, search: Duration) -> Self {
        let trouble = Trouble::random(rng);
        let takes = match kind {
            Kind::Nbd => Duration::from_secs(14),
            Kind::Ceph => Duration::from_millis(1_500),
        };
        let interlude = rng.random_bool(0.3).then(|| {
            loop {
                match Trouble::random(rng) {
                    Trouble::None | Trouble::Kill => {}
                    trouble => break (trouble, millis(rng, 200, 5_000)),
                }
            }
        });
        let works = millis(rng, 500, 3_000);
        let mut restarts = |most, within, down| match kind {
            Kind::Ceph => Vec::new(),
            Kind::Nbd => (0..rng.random_range(0..=most)).map(|_| restart(rng, within, down)).collect(),
        };
        // Early and short, so that the writers go on behind most of them.
        let restarts_at_work = restarts(5, works / 2, Duration::from_millis(300));
        // One while the lease is being taken makes the taker wait for it once more.
        let most = if search > SHORT { 3 } else { 0 };
        let restarts = restarts(most, takes, Duration::from_secs(2));
        Self {
            works,
            restarts_at_work,
            interlude,
            trouble,
            pause: millis(rng, 0, 1_500),
            takeover: trouble != Trouble::Kill || rng.random_bool(0.5),
            // The next one starts again.
            kill_taker: rng
                .random_bool(0.15)
                .then(|| rng.random_range(Duration::ZERO..takes.min(search / 5))),
            heal_after: millis(rng, 0, 2_000),
            restarts,
        }
    }
}

fn restart(rng: &mut ChaCha8Rng, within: Duration, down: Duration) -> Restart {
    let moment = match rng.random_range(0..4) {
        0 => Moment::Now,
        1 => Moment::AtRequest(rng.random_range(0..40)),
        _ => Moment::BeforeFlush,
    };
    Restart {
        after: rng.random_range(Duration::ZERO..within),
        moment,
        down: rng.random_range(Duration::ZERO..down),
    }
}

fn millis(rng: &mut ChaCha8Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.random_range(from..to))
}
