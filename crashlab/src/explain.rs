//! Explains a failing state: the fewest losses that still fail, the models that allow it, and the syncs
//! that would exclude it.

use crate::Error;
use crate::explore::{Explorer, Failing, Judge, Limits, Verdict};
use crate::history::History;
use crate::missing::{Missing, missing};
use crate::model::{MODELS, Model, Part};
use crate::plan::Open;
use crate::state::State;
use std::cell::Cell;

/// Most power cuts tried to find the earliest.
const CUTS_MAX: usize = 100;
/// Most states tried to reduce a failing one.
const TRIES_MAX: usize = 300;

/// A failing state, explained.
pub struct Explained {
    /// The state with the fewest losses found.
    pub failing: Failing,
    /// The models under which it, or one that fails like it, is possible.
    pub models: Vec<&'static str>,
    /// The missing syncs that would exclude the failing states.
    pub missing: Option<Missing>,
}

/// Explains a failing state.
pub fn explain(
    history: &History,
    model: &Model,
    explorer: &Explorer<'_>,
    judge: &dyn Judge,
    failing: &Failing,
    limits: Limits<'_>,
) -> Result<Explained, Error> {
    let failing = reduce(history, model, explorer, failing, limits)?;
    let models = models(history, explorer, &failing.state)?;
    let missing = missing(history, model, judge, &failing.state, limits)?;
    Ok(Explained { failing, models, missing })
}

/// What a power cut after `position` events can take away.
pub(crate) fn open<'a>(history: &'a History, model: &'a Model, position: usize) -> Open<'a> {
    Open::at(model, history.events(), history.recording.begin, position)
}

/// The simplest state that still fails: the earliest power cut, and then the fewest losses.
pub(crate) fn reduce(
    history: &History,
    model: &Model,
    explorer: &Explorer<'_>,
    failing: &Failing,
    limits: Limits<'_>,
) -> Result<Failing, Error> {
    let mut best = failing.clone();
    let tries = Cell::new(0);
    let fails = |best: &mut Failing, state: Option<State>| -> Result<bool, Error> {
        let Some(state) = state else { return Ok(false) };
        tries.set(tries.get() + 1);
        match explorer.verdict(&state)? {
            Verdict::Failed(output) => {
                *best = Failing { state, output, ..best.clone() };
                Ok(true)
            }
            Verdict::Passed => Ok(false),
        }
    };
    // Lets as many changes survive as possible, many at a time first.
    let mut chunk = best.state.lost.len();
    let here = open(history, model, best.state.position);
    while chunk > 0 && tries.get() < TRIES_MAX && !limits.are_reached() {
        let lost: Vec<(usize, Option<Part>)> =
            best.state.lost.iter().map(|(at, part)| (*at, *part)).collect();
        let mut changed = false;
        for survive in lost.chunks(chunk).rev() {
            if tries.get() >= TRIES_MAX || limits.are_reached() {
                break;
            }
            let mut seed = best.state.lost.clone();
            survive.iter().for_each(|(at, _)| {
                seed.remove(at);
            });
            let state = here.close(&seed).filter(|state| state.lost.len() < best.state.lost.len());
            changed |= fails(&mut best, state)?;
        }
        chunk = if changed { chunk.min(best.state.lost.len()) } else { chunk / 2 };
    }
    // A write that is lost is easier to understand than a torn one.
    for (at, part) in best.state.lost.clone() {
        if part.is_some() {
            let mut seed = best.state.lost.clone();
            seed.insert(at, None);
            let state = here.close(&seed).filter(|state| state.lost.len() == best.state.lost.len());
            fails(&mut best, state)?;
        }
    }
    // The earliest cut that still fails: what came after it was not done yet.
    let first = best.state.lost.keys().next().map_or(history.recording.begin, |first| *first);
    for position in (first..best.state.position).take(CUTS_MAX) {
        let before = best.state.lost.range(..position).map(|(at, part)| (*at, *part)).collect();
        let state = open(history, model, position).close(&before);
        if fails(&mut best, state)? {
            break;
        }
    }
    Ok(best)
}

/// The models under which the state is possible, or else one with the same losses that fails too.
fn models(history: &History, explorer: &Explorer<'_>, state: &State) -> Result<Vec<&'static str>, Error> {
    let mut found = Vec::new();
    for model in &MODELS {
        let here = open(history, model, state.position);
        let mut seeds = vec![state.lost.clone(), state.lost.keys().map(|at| (*at, None)).collect()];
        // The filesystem may tear a write elsewhere.
        for at in state.lost.iter().filter(|(_, part)| part.is_some()).map(|(at, _)| at) {
            let parts = model.parts(&history.events()[*at].action);
            seeds.extend(parts.into_iter().map(|part| {
                let mut seed = state.lost.clone();
                seed.insert(*at, Some(part));
                seed
            }));
        }
        for seed in &seeds {
            if let Some(state) = here.close(seed)
                && explorer.verdict(&state)? != Verdict::Passed
            {
                found.push(model.name);
                break;
            }
        }
    }
    Ok(found)
}
