//! All trees that a model allows at one moment of a short program.

use crate::Error;
use crate::action::Action;
use crate::durable::Durable;
use crate::history::{History, Survivor};
use crate::model::{Losses, Model, Part};
use crate::plan::Plan;
use crate::state::State;
use crate::tree::Tree;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// States that are searched one by one.
const STATES_MAX: usize = 20_000;
/// How long the states of a plan are searched after that.
const PLAN: Duration = Duration::from_secs(10);

type Lost = BTreeMap<usize, Option<Part>>;

/// The trees that a model allows, each with a state that has it.
pub struct Allowed {
    /// By [digest](crate::Tree::digest_with_links).
    pub states: HashMap<u128, State>,
    /// False if there were too many.
    pub is_complete: bool,
}

impl Allowed {
    /// Those after `position` events. Writes are torn at blocks and `torn_at` bytes into them. After
    /// `states_max` states the search is given up.
    pub fn new(
        history: &History,
        model: &Model,
        position: usize,
        torn_at: Option<u64>,
        states_max: usize,
    ) -> Result<Self, Error> {
        let mut durable = Durable::new(model, history.events(), history.recording.begin);
        durable.advance(position);
        let begin = history.recording.begin;
        let start = history.tree(&State { position: begin, lost: Lost::new() })?;
        let mut search = Search {
            history,
            model,
            durable,
            position,
            torn_at,
            states_left: states_max,
            found: HashMap::new(),
        };
        search.go(begin, Survivor::new(start), Losses::default(), &Lost::new())?;
        Ok(Self { is_complete: search.states_left > 0, states: search.found })
    }
}

/// A state of the model with this tree, at a power cut after `position` events.
pub fn explanation(
    history: &History,
    model: &Model,
    tree: &Tree,
    position: usize,
    torn_at: Option<u64>,
) -> Result<Option<State>, Error> {
    let (wanted, position) = (tree.digest_with_links(), with_begun(history, position));
    let mut allowed = Allowed::new(history, model, position, torn_at, STATES_MAX)?;
    if allowed.is_complete || allowed.states.contains_key(&wanted) {
        return Ok(allowed.states.remove(&wanted));
    }
    let started = Instant::now();
    let plan = Plan::new(model, history.events(), history.recording.begin, 0);
    for state in plan.filter(|state| state.position >= position) {
        if started.elapsed() > PLAN {
            break;
        }
        if history.tree(&state)?.digest_with_links() == wanted {
            return Ok(Some(state));
        }
    }
    Ok(None)
}

/// The change that a program had begun at a power cut may be there as well.
pub fn with_begun(history: &History, position: usize) -> usize {
    let next = history.events().get(position);
    position + usize::from(next.is_some_and(|event| event.action.is_change()))
}

struct Search<'a> {
    history: &'a History,
    model: &'a Model,
    durable: Durable<'a>,
    position: usize,
    torn_at: Option<u64>,
    states_left: usize,
    found: HashMap<u128, State>,
}

impl Search<'_> {
    /// Every way to go on from the change at `at`.
    fn go(
        &mut self,
        mut at: usize,
        mut survivor: Survivor,
        losses: Losses,
        lost: &Lost,
    ) -> Result<(), Error> {
        while at < self.position && self.states_left > 0 {
            let event = &self.history.events()[at];
            if !event.action.is_change() {
                at += 1;
                continue;
            }
            let bytes = self.history.recording.bytes(&event.action)?;
            let is_durable = self.durable.is(at);
            let is_taken = !is_durable && losses.take(self.model, &event.action);
            let parts = if is_taken { vec![None] } else { self.fates(&event.action) };
            for part in parts.into_iter().filter(|_| !is_durable) {
                let (mut survivor, mut losses, mut lost) = (survivor.clone(), losses.clone(), lost.clone());
                survivor.step(event, &bytes, Some(part));
                losses.add(&event.action);
                lost.insert(at, part);
                self.go(at + 1, survivor, losses, &lost)?;
            }
            if is_taken {
                return Ok(());
            }
            survivor.step(event, &bytes, None);
            at += 1;
        }
        if self.states_left > 0 {
            self.states_left -= 1;
            let state = || State { position: self.position, lost: lost.clone() };
            self.found.entry(survivor.tree.digest_with_links()).or_insert_with(state);
        }
        Ok(())
    }

    /// The ways in which a change can be lost.
    fn fates(&self, action: &Action) -> Vec<Option<Part>> {
        let Action::Write { offset, len, .. } = action else { return vec![None] };
        let end = offset + u64::from(*len);
        let first = offset / 4096;
        let blocks = (first..=end / 4096).map(|block| block * 4096);
        let within = (first..=end / 4096).filter_map(|block| self.torn_at.map(|at| block * 4096 + at));
        let cuts: Vec<u64> = blocks.chain(within).filter(|cut| (offset + 1..end).contains(cut)).collect();
        let before = cuts.iter().map(|cut| Part::Before(*cut));
        let parts = before.chain(cuts.iter().map(|cut| Part::From(*cut))).chain([Part::Size]);
        let allowed = parts.filter(|part| self.model.allows(action, *part)).map(Some);
        [None].into_iter().chain(allowed).collect()
    }
}
