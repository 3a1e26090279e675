//! Chooses the states of a recording to explore, simplest first.

use crate::state::Choice;
use crate::{Recording, State, Stretch, stretches};
use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use syncline_powercut::{Cut, Fate};

/// Options for the choice of states.
#[derive(Clone, Copy, Debug)]
pub struct StateOptions {
    /// Up to this many open writes, every subset of them is explored. Default 6, at most 16.
    pub exhaustive: usize,
    /// Beyond that, this many random subsets. Default 64.
    pub samples: usize,
    /// Ways of tearing each write. Default 2.
    pub torn: usize,
    /// Most states in all, chosen at random. Default: all.
    pub limit: Option<usize>,
    /// Decides all random choices. Default 0.
    pub seed: u64,
}

impl Default for StateOptions {
    fn default() -> Self {
        Self { exhaustive: 6, samples: 64, torn: 2, limit: None, seed: 0 }
    }
}

/// A state to explore, and its stretch.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The stretch.
    pub stretch: Stretch,
    /// The state.
    pub state: State,
}

/// The states to explore, from front to back; within each stretch the easiest to explain come
/// first.
pub fn plan(recording: &Recording, options: StateOptions) -> Vec<Planned> {
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut images = recording.images();
    let mut planned = Vec::new();
    for stretch in stretches(recording) {
        let cut = images.cut(stretch.end);
        let states = states_of(stretch, &cut, options, &mut rng);
        planned.extend(states.into_iter().map(|state| Planned { stretch, state }));
    }
    match options.limit {
        Some(limit) if limit < planned.len() => {
            let mut chosen = index::sample(&mut rng, planned.len(), limit).into_vec();
            chosen.sort_unstable();
            chosen.into_iter().map(|index| planned[index].clone()).collect()
        }
        _ => planned,
    }
}

fn states_of(stretch: Stretch, cut: &Cut, options: StateOptions, rng: &mut ChaCha8Rng) -> Vec<State> {
    let open: Vec<usize> = cut.open().collect();
    let mut seen = HashSet::new();
    let mut states = Vec::new();
    let mut add = |fates: &[Fate]| {
        let state = State::earliest(stretch.begin, &open, fates);
        if seen.insert(state.clone()) {
            states.push(state);
        }
    };
    if open.len() <= options.exhaustive.min(16) {
        for mask in 0..1_u32 << open.len() {
            let kept = |bit: usize| if mask >> bit & 1 == 1 { Fate::Kept } else { Fate::Lost };
            add(&(0..open.len()).map(kept).collect::<Vec<_>>());
        }
    } else {
        for kept in prefixes(open.len(), options.samples) {
            add(&vec![Fate::Kept; kept]);
        }
    }
    for write in tearable(open.len(), options) {
        for _ in 0..options.torn {
            // Once with nothing after it, and once with all others there.
            let mut fates = vec![Fate::Kept; write];
            fates.push(Fate::Torn(rng.random_range(0..1000)));
            add(&fates);
            fates.resize(open.len(), Fate::Kept);
            add(&fates);
        }
    }
    states.sort_by_key(|state| (state.missing(), state.position));
    if open.len() > options.exhaustive.min(16) {
        let seeds = (0..options.samples).map(|_| rng.random_range(0..1 << 20));
        states.extend(seeds.map(|seed| State { position: stretch.end, choice: Choice::Seed(seed) }));
    }
    states
}

/// Numbers of writes after which the power may fail without a loss: all of them, or up to this
/// many, evenly spread.
fn prefixes(writes: usize, most: usize) -> impl Iterator<Item = usize> {
    let parts = most.max(2).min(writes.max(1));
    (0..=parts).map(move |part| writes * part / parts)
}

/// The writes to tear: all, or some evenly spread.
fn tearable(writes: usize, options: StateOptions) -> impl Iterator<Item = usize> {
    let count = writes.min(options.exhaustive.max(options.samples / 4));
    (0..count).map(move |part| writes * part / count.max(1))
}
