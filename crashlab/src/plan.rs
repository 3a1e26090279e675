//! The states that a model allows, the likeliest to fail first.

use crate::action::{Action, Event};
use crate::durable::{Durable, Named};
use crate::losses::Losses;
use crate::model::{Logged, Model, Part};
use crate::state::State;
use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

type Lost = BTreeMap<usize, Option<Part>>;

/// Kinds of states, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
enum Class {
    /// One change is lost, and what can't be without it.
    One,
    /// One write is torn.
    Torn,
    /// The end of the program's changes so far is lost: a kill would do the same.
    Suffix,
    /// All open changes of one inode, or all open writes of a file, are lost.
    Object,
    /// Only one open change is there, and what it can't be without.
    Only,
    /// Two changes are lost.
    Pair,
    /// Any of them.
    Random,
}

const CLASSES: [Class; 7] =
    [Class::One, Class::Torn, Class::Suffix, Class::Object, Class::Only, Class::Pair, Class::Random];

/// The most states of a class for one stretch, in each pass over all classes; where
/// there are more, they are chosen at random, the newest changes above all.
const EACH_MAX: [usize; 3] = [2, 16, 128];
/// Random states for one stretch, in each pass.
const RANDOM: [usize; 3] = [1, 6, 24];

/// A stretch of a program in which nothing becomes durable and nothing is printed: a power cut in it can
/// leave what one at its end can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Its first event.
    pub begin: usize,
    /// The event that ends it, which has not happened yet.
    pub end: usize,
}

/// The stretches of a program.
pub fn stretches(events: &[Event], begin: usize) -> Vec<Stretch> {
    let ends =
        |at: &usize| matches!(events[*at].action, Action::Sync { .. } | Action::SyncAll | Action::Printed(_));
    let mut from = begin.min(events.len());
    let mut found = Vec::new();
    for end in (from..events.len()).filter(ends).chain([events.len()]) {
        found.push(Stretch { begin: from, end });
        from = end + 1;
    }
    found
}

/// What a power cut at the end of a stretch can take away.
pub struct Open<'a> {
    model: &'a Model,
    events: &'a [Event],
    position: usize,
    changes: Vec<usize>,
    /// How each of them is logged.
    logged: HashMap<usize, Logged>,
    /// Those that survive at least as [`Part::Linked`].
    halves: HashSet<usize>,
    /// Writes that survive at least as [`Part::Size`].
    sized: HashSet<usize>,
    /// Renames of which [`Part::Unlinked`] may survive.
    unlinks: HashSet<usize>,
    /// Renames of which a loss leaves [`Part::Left`].
    left: HashSet<usize>,
    /// Renames of which [`Part::Linked`] may survive.
    links: HashSet<usize>,
    /// Truncates that may leave their file with another size.
    cut: HashMap<usize, u64>,
    /// For a change of names that may have left no trace: the later change that has to survive then, and
    /// whether the first change is durable.
    fading: HashMap<usize, (usize, bool)>,
    /// Pairs of changes. The second one can't be lost without the first one.
    passing: Vec<(usize, usize)>,
    /// Files that have to be there, if names are tangled.
    named: Option<Named>,
}

impl<'a> Open<'a> {
    /// After `position` events.
    pub fn at(model: &'a Model, events: &'a [Event], begin: usize, position: usize) -> Self {
        let mut durable = Durable::new(model, events, begin);
        durable.advance(position);
        Self::of(model, events, &durable, position)
    }

    fn of(model: &'a Model, events: &'a [Event], durable: &Durable<'_>, position: usize) -> Self {
        let changes = durable.open();
        let logged = changes.iter().map(|at| (*at, durable.logged(*at))).collect();
        let unlinks = changes.iter().copied().filter(|at| durable.may_unlink(*at)).collect();
        let links = changes.iter().copied().filter(|at| durable.may_link(*at)).collect();
        let left = changes.iter().copied().filter(|at| durable.is_left(*at)).collect();
        let halves = changes.iter().copied().filter(|at| durable.is_half(*at)).collect();
        let sized = changes.iter().copied().filter(|at| durable.is_sized(*at)).collect();
        let cut = changes.iter().filter_map(|at| Some((*at, durable.cut(*at)?))).collect();
        let fading = durable.fading().iter().map(|(at, later)| (*at, (*later, durable.is(*at)))).collect();
        let (passing, named) = (durable.passing(), durable.tangled_files());
        Self {
            model,
            events,
            position,
            changes,
            logged,
            halves,
            sized,
            unlinks,
            links,
            left,
            cut,
            fading,
            passing,
            named,
        }
    }

    /// The state in which these are lost, with everything that can't be without them; `None` if one of
    /// them is durable.
    pub fn close(&self, seed: &Lost) -> Option<State> {
        let mut lost = Lost::new();
        let mut losses = Losses::default();
        let mut faded = HashSet::new();
        let takes_name = |part: &Option<Part>| *part == Some(Part::Unlinked);
        for at in &self.changes {
            let action = &self.events[*at].action;
            if let Some((later, is_durable)) = self.fading.get(at) {
                let unnamed = self.model.allows(action, Part::Unnamed).then_some(Part::Unnamed);
                let is_taken = || match unnamed {
                    Some(_) => losses.names_are_lost(action, self.logged[at]),
                    None => {
                        let logged = self.logged[at];
                        !is_durable && (losses.keep_name(action) || losses.take(self.model, action, logged))
                    }
                };
                let fades = !self.is_lost(seed, *later) && (seed.get(at) == Some(&unnamed) || is_taken());
                if fades {
                    lost.insert(*at, unnamed);
                    faded.insert(*at);
                    losses.fade(action);
                }
                if *is_durable {
                    losses.durable(action);
                }
                if fades || *is_durable && !self.halves.contains(at) {
                    continue;
                }
            }
            match seed.get(at) {
                Some(_) if self.halves.contains(at) => drop(lost.insert(*at, Some(Part::Linked))),
                Some(part) if self.sized.contains(at) => {
                    let part = part.filter(|part| Model::keeps_size(action, *part));
                    lost.insert(*at, part.or(Some(Part::Size)));
                }
                None if self.halves.contains(at) || self.sized.contains(at) => continue,
                part if self.left.contains(at)
                    && (part.is_some() || losses.take(self.model, action, self.logged[at])) =>
                {
                    lost.insert(*at, Some(Part::Left));
                }
                part if losses.take(self.model, action, self.logged[at]) => {
                    let in_place = |part: &Part| {
                        self.model.is_in_place(action, *part)
                            && (*part != Part::Linked || self.links.contains(at) && losses.can_link(action))
                    };
                    lost.insert(*at, part.copied().flatten().filter(in_place));
                }
                Some(Some(Part::Linked)) if !losses.can_link(action) => return None,
                Some(part) => drop(lost.insert(*at, *part)),
                None => continue,
            }
            losses.add(self.model, action, lost.get(at).copied().flatten(), self.logged[at]);
        }
        let is_left =
            |(give, change): &&(usize, usize)| lost.contains_key(change) && !lost.contains_key(give);
        let left: Vec<usize> = self.passing.iter().filter(is_left).map(|(give, _)| *give).collect();
        if !left.is_empty() {
            let mut seed = seed.clone();
            seed.extend(left.into_iter().map(|give| (give, None)));
            return self.close(&seed);
        }
        let is_undone = |(at, (later, _)): &(&usize, &(usize, bool))| {
            let later_lost = lost.get(later).is_some_and(|part| !takes_name(part) && !faded.contains(later));
            lost.contains_key(at) && later_lost && !seed.contains_key(later)
        };
        if let Some((_, (later, _))) = self.fading.iter().find(is_undone) {
            let mut seed = seed.clone();
            seed.insert(*later, None);
            return self.close(&seed);
        }
        let all = seed.keys().all(|at| {
            lost.contains_key(at) || self.fading.get(at).is_some_and(|(_, is_durable)| *is_durable)
        });
        let allows = |at: usize, part: Part| {
            let action = &self.events[at].action;
            let is_possible = match part {
                Part::Unlinked => self.unlinks.contains(&at),
                Part::Linked => self.links.contains(&at),
                Part::Left => self.left.contains(&at),
                Part::Unnamed => self.fading.contains_key(&at),
                Part::Before(size) if action.changes_size() => self.cut.get(&at) == Some(&size),
                _ => true,
            };
            is_possible && self.model.allows(action, part)
        };
        let parts = lost.iter().all(|(at, part)| part.is_none_or(|part| allows(*at, part)));
        let are_named = || {
            // Names take no bytes, so nothing can fail.
            let survive = |named: &Named| named.survive(self.events, self.position, &lost).unwrap_or(false);
            self.named.as_ref().is_none_or(survive)
        };
        (all && parts && are_named()).then_some(State { position: self.position, lost })
    }

    /// True if this change is lost, and the name that it took away is there again.
    fn is_lost(&self, seed: &Lost, at: usize) -> bool {
        let fades = || self.fading.get(&at).is_some_and(|(later, _)| !self.is_lost(seed, *later));
        seed.get(&at).is_some_and(|part| *part != Some(Part::Unlinked) && !fades())
    }

    /// The state in which only this change is there of all that are open, and what it can't be without.
    fn only(&self, kept: usize) -> Option<State> {
        let mut needed = vec![kept];
        for at in self.changes.iter().rev().skip_while(|at| **at >= kept) {
            let mut losses = Losses::default();
            losses.add(self.model, &self.events[*at].action, None, self.logged[at]);
            let takes =
                |later: &usize| losses.take(self.model, &self.events[*later].action, self.logged[later]);
            if needed.iter().any(takes) {
                needed.push(*at);
            }
        }
        let lost = self.changes.iter().filter(|at| !needed.contains(at)).map(|at| (*at, None)).collect();
        self.close(&lost)
    }

    /// The parts of a change that may survive.
    fn parts(&self, at: usize) -> Vec<Part> {
        let mut parts = self.model.parts(&self.events[at].action);
        parts.retain(|part| *part != Part::Linked || self.links.contains(&at));
        parts.extend(self.unlinks.contains(&at).then_some(Part::Unlinked));
        let unnamed =
            self.fading.contains_key(&at) && self.model.allows(&self.events[at].action, Part::Unnamed);
        parts.extend(unnamed.then_some(Part::Unnamed));
        parts.extend(self.cut.get(&at).map(|size| Part::Before(*size)));
        parts
    }

    /// Those of which a part may survive.
    fn torn(&self) -> impl Iterator<Item = usize> {
        self.changes.iter().copied().filter(|at| !self.parts(*at).is_empty())
    }
}

/// Goes through the states of a recording.
pub struct Plan<'a> {
    model: &'a Model,
    events: &'a [Event],
    begin: usize,
    stretches: Vec<Stretch>,
    rng: ChaCha8Rng,
    pass: usize,
    class: usize,
    next: usize,
    durable: Durable<'a>,
    queue: VecDeque<State>,
}

impl<'a> Plan<'a> {
    /// The seed decides all random choices.
    pub fn new(model: &'a Model, events: &'a [Event], begin: usize, seed: u64) -> Self {
        let durable = Durable::new(model, events, begin);
        let (stretches, rng) = (stretches(events, begin), ChaCha8Rng::seed_from_u64(seed));
        Self {
            model,
            events,
            begin,
            stretches,
            rng,
            pass: 0,
            class: 0,
            next: 0,
            durable,
            queue: VecDeque::new(),
        }
    }

    fn fill(&mut self, class: Class, stretch: Stretch) {
        self.durable.advance(stretch.end);
        let (model, events, position) = (self.model, self.events, stretch.end);
        let open = Open::of(model, events, &self.durable, position);
        let states: Vec<Option<State>> = match class {
            Class::Suffix => {
                let kept = open.changes.partition_point(|at| *at < stretch.begin);
                let ends: Vec<usize> = (kept..=open.changes.len()).collect();
                let ends = self.chosen(&ends);
                ends.iter().rev().map(|end| open.close(&all(&open.changes[*end..]))).collect()
            }
            Class::One => self.ones(&open, stretch),
            Class::Object => self.objects(&open),
            Class::Torn => self.torn(&open, stretch),
            Class::Only => self.chosen(&open.changes).iter().map(|at| open.only(*at)).collect(),
            Class::Pair => self.pairs(&open),
            Class::Random => (0..RANDOM[self.pass]).map(|_| self.random(&open)).collect(),
        };
        self.queue.extend(states.into_iter().flatten());
    }

    /// Each change lost alone. Where names are tangled, later ones survive it, so a power cut in the middle of
    /// the stretch leaves other states: each change is lost with those of the stretch as well.
    fn ones(&mut self, open: &Open<'_>, stretch: Stretch) -> Vec<Option<State>> {
        let tail = open.changes.iter().filter(|at| open.named.is_some() && **at >= stretch.begin);
        let tail = all(&tail.copied().collect::<Vec<_>>());
        let mut states = Vec::new();
        for at in self.chosen(&open.changes) {
            states.push(open.close(&all(&[at])));
            if !tail.is_empty() {
                states.push(open.close(&tail.clone().into_iter().chain([(at, None)]).collect()));
            }
        }
        states
    }

    fn objects(&mut self, open: &Open<'_>) -> Vec<Option<State>> {
        let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for at in &open.changes {
            let action = &open.events[*at].action;
            groups.entry(action.ino().unwrap_or_default()).or_default().push(*at);
        }
        let mut states = Vec::new();
        for group in groups.into_values().rev().take(EACH_MAX[self.pass]) {
            let writes: Vec<usize> =
                group.iter().copied().filter(|at| open.events[*at].action.is_write()).collect();
            if writes.len() > 1 && writes.len() < group.len() {
                states.push(open.close(&all(&writes)));
            }
            states.push(open.close(&all(&group)));
        }
        states.push(open.close(&all(&open.changes)));
        states
    }

    fn torn(&mut self, open: &Open<'_>, stretch: Stretch) -> Vec<Option<State>> {
        let torn: Vec<usize> = open.torn().collect();
        let mut states = Vec::new();
        for at in self.chosen(&torn) {
            for part in open.parts(at) {
                // Once with everything else there, and once as the last that arrived.
                states.push(open.close(&Lost::from([(at, Some(part))])));
                if at >= stretch.begin {
                    let later = open.changes.iter().filter(|later| **later > at).map(|later| (*later, None));
                    states.push(open.close(&later.chain([(at, Some(part))]).collect()));
                }
            }
        }
        states
    }

    fn pairs(&mut self, open: &Open<'_>) -> Vec<Option<State>> {
        let count = open.changes.len();
        if count < 2 {
            return Vec::new();
        }
        if count * (count - 1) / 2 <= EACH_MAX[self.pass] {
            let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
            return pairs
                .map(|(one, other)| open.close(&all(&[open.changes[one], open.changes[other]])))
                .collect();
        }
        let pair = |rng: &mut ChaCha8Rng| {
            index::sample(rng, count, 2).iter().map(|at| (open.changes[at], None)).collect()
        };
        (0..EACH_MAX[self.pass]).map(|_| open.close(&pair(&mut self.rng))).collect()
    }

    /// All of them, or the newest ones and some others.
    fn chosen(&mut self, from: &[usize]) -> Vec<usize> {
        let most = EACH_MAX[self.pass];
        if from.len() <= most {
            return from.to_vec();
        }
        let (old, new) = from.split_at(from.len() - most / 2);
        let mut some = index::sample(&mut self.rng, old.len(), most / 2).into_vec();
        some.sort_unstable();
        some.into_iter().map(|at| old[at]).chain(new.iter().copied()).collect()
    }

    fn random(&mut self, open: &Open<'_>) -> Option<State> {
        let share = [0.1, 0.5, 0.9][self.rng.random_range(0..3)];
        let mut lost = Lost::new();
        for at in &open.changes {
            if self.rng.random_bool(share) {
                let parts = open.parts(*at);
                let torn = !parts.is_empty() && self.rng.random_bool(0.2);
                let part = torn.then(|| parts[self.rng.random_range(0..parts.len())]);
                lost.insert(*at, part);
            }
        }
        open.close(&lost)
    }
}

impl Iterator for Plan<'_> {
    type Item = State;

    fn next(&mut self) -> Option<State> {
        loop {
            if let Some(state) = self.queue.pop_front() {
                return Some(state);
            }
            if self.next == self.stretches.len() {
                (self.class, self.next) = (self.class + 1, 0);
                if self.class == CLASSES.len() && self.pass + 1 < EACH_MAX.len() {
                    (self.pass, self.class) = (self.pass + 1, 0);
                }
                self.durable = Durable::new(self.model, self.events, self.begin);
            }
            let (class, stretch) = (CLASSES.get(self.class)?, *self.stretches.get(self.next)?);
            self.next += 1;
            self.fill(*class, stretch);
        }
    }
}

fn all(changes: &[usize]) -> Lost {
    changes.iter().map(|at| (*at, None)).collect()
}
