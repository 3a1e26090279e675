//! Takes one workload through every power cut, and through a second one during recovery.

use super::base::Base;
use super::cuts::{Cut, Cuts, Thoroughness};
use super::disk::Image;
use super::judge::{Found, judge};
use super::recover::{Recovered, recover};
use super::run::{Run, run};
use super::step::Workload;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{HashMap, HashSet};
use std::fmt;
use syncline_store::Canary;

/// The power cuts that are tried during recovery.
#[derive(Clone, Copy, Debug)]
pub enum RecoveryCuts {
    /// All of them, at every write that recovery makes.
    All(Thoroughness),
    /// This many for each image, at random.
    Some(usize),
}

/// How thorough an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Decides everything random.
    pub seed: u64,
    /// Thoroughness of the workload's cuts.
    pub cuts: Thoroughness,
    /// Cuts during recovery.
    pub recovery: RecoveryCuts,
    /// A rule to break on purpose.
    pub canary: Option<Canary>,
}

impl Plan {
    /// Exhaustive, for workloads of one operation.
    pub const EXHAUSTIVE: Self = Self {
        seed: 1,
        cuts: Thoroughness { exhaustive_writes: 5, sampled_subsets: 16, tear_each: true, sampled_tears: 4 },
        recovery: RecoveryCuts::All(Thoroughness {
            exhaustive_writes: 3,
            sampled_subsets: 4,
            tear_each: false,
            sampled_tears: 1,
        }),
        canary: None,
    };

    /// For the many workloads of two and three operations.
    pub const BROAD: Self = Self {
        cuts: Thoroughness { exhaustive_writes: 4, sampled_subsets: 12, tear_each: true, sampled_tears: 1 },
        recovery: RecoveryCuts::Some(1),
        ..Self::EXHAUSTIVE
    };
}

/// Statistics of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Figures {
    /// Workloads run.
    pub workloads: u64,
    /// Positions of device logs at which the power was cut.
    pub positions: u64,
    /// Images recovered and compared with the promises, each once in a workload.
    pub images: u64,
    /// Images that no other workload had left before.
    pub distinct: u64,
    /// Distinct images left by a second power cut, during recovery.
    pub recovery_images: u64,
    /// Comparisons of a recovered state with the promises given by then.
    pub comparisons: u64,
}

impl Figures {
    /// Adds other figures.
    pub fn add(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.positions += other.positions;
        self.images += other.images;
        self.distinct += other.distinct;
        self.recovery_images += other.recovery_images;
        self.comparisons += other.comparisons;
    }
}

/// A broken promise, and how to reproduce it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The workload.
    pub workload: Workload,
    /// The seed of the plan.
    pub seed: u64,
    /// Position of the power cut, and the writes that it lost.
    pub cut: String,
    /// The expected state and the one found, in words.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload: {}", self.workload)?;
        writeln!(f, "cut: {}", self.cut)?;
        writeln!(f, "violation: {}", self.what)?;
        write!(
            f,
            "to repeat it: SYNCLINE_WORLD='{}' SYNCLINE_WORLDS_SEED={} cargo test -p syncline-sim --test laboratory one_world -- --nocapture",
            self.workload, self.seed
        )
    }
}

const SHARDS: usize = 64;

/// Images that some workload has already left.
pub struct Seen {
    shards: Vec<Mutex<HashSet<u128>>>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Seen {
    fn is_new(&self, hash: u128) -> bool {
        self.shards[hash as usize % SHARDS].lock().insert(hash)
    }
}

/// Takes one workload through every power cut after its last operation began. Earlier cuts belong
/// to a shorter workload, which the same seed runs in the same way.
pub fn explore(base: &Base, workload: &Workload, plan: Plan, seen: &Seen) -> Result<Figures, Violation> {
    let violation =
        |cut: String, what: String| Violation { workload: workload.clone(), seed: plan.seed, cut, what };
    let run = run(&base.image, &base.state, workload, plan.seed, plan.canary)
        .map_err(|what| violation("none".to_owned(), what))?;
    let mut exploration = Exploration {
        run: &run,
        plan,
        seen,
        found: HashMap::new(),
        judged: HashSet::new(),
        figures: Figures { workloads: 1, ..Figures::default() },
    };
    exploration.all().map_err(|(cut, what)| violation(cut, what))?;
    Ok(exploration.figures)
}

/// Position of the power cut, and the violation.
type Wrong = (String, String);

struct Exploration<'a> {
    run: &'a Run,
    plan: Plan,
    seen: &'a Seen,
    found: HashMap<u128, Found>,
    /// Images that were judged, each with the number of promises given by then.
    judged: HashSet<(u128, usize)>,
    figures: Figures,
}

impl Exploration<'_> {
    fn all(&mut self) -> Result<(), Wrong> {
        let run = self.run;
        let last = run.began.len().saturating_sub(2);
        let whole = run.began.len() == 1;
        let (from, first_sync) = if whole { (0, 0) } else { (run.began[last], run.syncs_before[last]) };
        let mut cuts = Cuts::new(&run.base, &run.events, self.plan.cuts);
        for position in 1..=run.events.len() {
            let changed = cuts.advance() && position > from;
            let promised = run.syncs[first_sync..].iter().any(|sync| sync.given == position);
            if changed || promised {
                self.position(&cuts, position)?;
            }
        }
        Ok(())
    }

    fn position(&mut self, cuts: &Cuts<'_>, position: usize) -> Result<(), Wrong> {
        self.figures.positions += 1;
        let given = self.run.syncs.iter().filter(|sync| sync.given <= position).count();
        cuts.each(self.plan.seed, |image, cut| {
            if !self.judged.insert((image.hash(), given)) {
                return Ok(());
            }
            self.image(image, position).map_err(|what| {
                (format!("after event {position} of {}: {}", self.run.events.len(), cut()), what)
            })
        })
    }

    fn image(&mut self, image: &Image, position: usize) -> Result<(), String> {
        if !self.found.contains_key(&image.hash()) {
            let found = self.recover(image)?;
            self.found.insert(image.hash(), found);
        }
        self.figures.comparisons += 1;
        judge(self.run, &self.found[&image.hash()], position)
    }

    /// Recovers an image. If no workload left it before, recovery is also repeated with power cuts
    /// during it.
    fn recover(&mut self, image: &Image) -> Result<Found, String> {
        let new = self.seen.is_new(image.hash());
        let recovered = recover(image, new, self.plan.canary)?;
        self.figures.images += 1;
        if new {
            self.figures.distinct += 1;
            self.recover_again(image, &recovered)?;
        }
        Ok(recovered.found)
    }

    /// Cuts the power while recovery writes. The state first recovered was not promised to anyone,
    /// but recovery must not disturb the structures it comes from: the second recovery must find
    /// the same state.
    fn recover_again(&mut self, image: &Image, first: &Recovered) -> Result<(), String> {
        match self.plan.recovery {
            RecoveryCuts::All(thoroughness) => {
                let mut cuts = Cuts::new(image, &first.events, thoroughness);
                for position in 1..=first.events.len() {
                    if cuts.advance() {
                        let seed = image.hash() as u64;
                        cuts.each(seed, |image, cut| self.recovered_alike(image, first, position, cut))?;
                    }
                }
                Ok(())
            }
            RecoveryCuts::Some(count) => {
                let mut rng = ChaCha8Rng::seed_from_u64(image.hash() as u64 ^ self.plan.seed);
                let positions = 1..=first.events.len().max(1);
                let mut chosen: Vec<usize> =
                    (0..count).map(|_| rng.random_range(positions.clone())).collect();
                chosen.sort_unstable();
                let mut cuts = Cuts::new(image, &first.events, self.plan.cuts);
                for position in positions.take(first.events.len()) {
                    cuts.advance();
                    for _ in chosen.iter().filter(|chosen| **chosen == position) {
                        let (image, cut) = cuts.any(&mut rng);
                        self.recovered_alike(&image, first, position, &|| cut.clone())?;
                    }
                }
                Ok(())
            }
        }
    }

    fn recovered_alike(
        &mut self,
        image: &Image,
        first: &Recovered,
        position: usize,
        cut: &dyn Fn() -> Cut,
    ) -> Result<(), String> {
        if !self.seen.is_new(image.hash()) {
            return Ok(());
        }
        self.figures.recovery_images += 1;
        let explain = |what: String| {
            let events = first.events.len();
            format!("recovery cut after event {position} of {events}: {}: {what}", cut())
        };
        let second = recover(image, true, self.plan.canary).map_err(explain)?;
        if second.found == first.found {
            return Ok(());
        }
        let difference = super::judge::difference(&second.found.state, &first.found.state, true);
        Err(explain(format!(
            "transaction {} came back, {} the first time; {}",
            second.found.op,
            first.found.op,
            difference.unwrap_or_default()
        )))
    }
}
