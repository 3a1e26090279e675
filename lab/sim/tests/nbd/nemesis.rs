//! Who breaks connections and servers, at moments that the seed picks.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};
use syncline_nbdlab::{Faults, Lab, command};
use syncline_sim::{Interrupted, Simulation, Stalled};

const EIO: u32 = 5;

/// Strikes in a life, at most: each is followed by some milliseconds of reconnecting.
const STRIKES_MAX: u64 = 60;

/// Picks after which a life counts as stalled; an ordinary one takes some ten thousand.
const PICKS_MAX: u64 = 400_000;

/// The strikes that are allowed in a phase of a life.
#[derive(Clone, Copy)]
pub struct May {
    /// The server ends and is restarted.
    pub restart: bool,
    /// Requests fail.
    pub fail: bool,
}

/// The outcome of a piece of work.
pub enum Outcome<T> {
    Ended(T),
    /// The host died before.
    Cut,
}

pub struct Nemesis<'a> {
    lab: &'a Lab,
    rng: ChaCha8Rng,
    /// Picks of the simulation between two strikes, at most.
    gap: u64,
    until_strike: u64,
    /// Picks until the host dies; none: it lives on.
    pub until_cut: Option<u64>,
    pub restarts: u64,
    pub strikes: u64,
}

impl<'a> Nemesis<'a> {
    pub fn new(lab: &'a Lab, mut rng: ChaCha8Rng) -> Self {
        let gap = [100, 600, 4_000, 20_000][rng.random_range(0..4)];
        let faults = Faults {
            reorder: rng.random_bool(0.3),
            delay: Duration::from_micros(if rng.random_bool(0.3) { rng.random_range(0..300) } else { 0 }),
            ..Faults::default()
        };
        lab.faults(|present| *present = faults);
        let until_strike = rng.random_range(0..gap);
        Self { lab, rng, gap, until_strike, until_cut: None, restarts: 0, strikes: 0 }
    }

    /// Runs work until it ends or the host dies, and strikes meanwhile.
    pub fn drive<T: Send + 'static>(
        &mut self,
        simulation: &Simulation,
        work: impl Future<Output = Result<T, String>> + Send + 'static,
        may: May,
    ) -> Result<Outcome<T>, String> {
        let (mut cut, mut picks) = (false, 0);
        let outcome = simulation.run_watched(work, &mut |_| {
            picks += 1;
            if picks > PICKS_MAX {
                return Err(format!("it has not ended after {PICKS_MAX} picks"));
            }
            if let Some(left) = &mut self.until_cut {
                if *left == 0 {
                    cut = true;
                    return Err("the host dies".into());
                }
                *left -= 1;
            }
            if self.strikes == STRIKES_MAX {
                return Ok(());
            }
            if self.until_strike == 0 {
                self.until_strike = self.rng.random_range(0..self.gap);
                self.strike(may);
            } else {
                self.until_strike -= 1;
            }
            Ok(())
        });
        match outcome {
            _ if cut => Ok(Outcome::Cut),
            Ok(result) => result.map(Outcome::Ended),
            Err(Interrupted::Wrong(what)) => Err(what),
            Err(Interrupted::Stalled(Stalled::Stuck)) => Err("everybody waits for something".into()),
            Err(Interrupted::Stalled(Stalled::Busy)) => Err("somebody tries the same for ever".into()),
        }
    }

    fn strike(&mut self, may: May) {
        let Self { lab, rng, .. } = self;
        self.strikes += 1;
        match rng.random_range(0..13) {
            0..4 if may.restart => {
                self.restarts += 1;
                lab.crash();
            }
            4..6 if may.restart => {
                self.restarts += 1;
                let most = if rng.random() { 4 } else { 40 };
                let after = rng.random_range(0..most);
                lab.faults(|faults| faults.crash_after = Some(after));
            }
            6 if may.restart => {
                self.restarts += 1;
                let back = Instant::now() + Duration::from_millis(rng.random_range(1..8));
                lab.faults(|faults| faults.away_until = Some(back));
                lab.crash();
            }
            7 => lab.cut(),
            8 => {
                let after = rng.random_range(1..60_000);
                lab.faults(|faults| faults.cut_sending = Some(after));
            }
            9 => {
                let after = rng.random_range(1..120_000);
                lab.faults(|faults| faults.cut_receiving = Some(after));
            }
            10 => {
                let (reorder, micros) = (rng.random(), rng.random_range(0..300));
                lab.faults(|faults| {
                    (faults.reorder, faults.delay) = (reorder, Duration::from_micros(micros));
                });
            }
            11.. if may.fail => {
                let kind = [command::WRITE, command::WRITE, command::FLUSH, command::FLUSH, command::READ];
                let kind = kind[rng.random_range(0..kind.len())];
                lab.faults(|faults| faults.errors.push((kind, EIO)));
            }
            _ => lab.cut(),
        }
    }
}
