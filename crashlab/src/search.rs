//! Looks for a state of a model that has a given tree, among all that the model allows at one moment of a
//! short program.

use crate::Error;
use crate::action::{Action, Ino};
use crate::durable::{Durable, Named};
use crate::explore::Limits;
use crate::history::{History, Survivor};
use crate::losses::Losses;
use crate::model::{Model, NameOrder, Part};
use crate::plan::Plan;
use crate::state::State;
use crate::tree::{Kind, Tree};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Shapes that are searched one by one.
const SHAPES_MAX: usize = 20_000;
/// How long they are searched.
const SEARCH: Duration = Duration::from_secs(20);
/// How long the states of a plan are searched after that.
const PLAN: Duration = Duration::from_secs(10);
/// Steps after which the search for the parts of torn writes is given up.
const STEPS_MAX: usize = 200_000;

/// What becomes of a change that is not there as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Whole,
    /// Some part of a write is there.
    Torn,
    /// The same, and the file has its new size.
    Sized,
    /// The same, and its size is lost.
    InPlace,
    /// The file of a rename has both names.
    Linked,
    /// The file of a rename has no name.
    Left,
    /// What a rename replaces has lost its name.
    Unlinked,
    /// A truncate has left its file with this size.
    Cut(u64),
    /// A name that a file had for a while has left no trace.
    Faded,
    /// The same, of the first name of a new file.
    Unnamed,
}

impl Loss {
    /// The part that is there, as far as the names and sizes tell it.
    fn part(self) -> Option<Part> {
        match self {
            Self::Sized => Some(Part::Size),
            Self::Linked => Some(Part::Linked),
            Self::Unlinked => Some(Part::Unlinked),
            Self::Left => Some(Part::Left),
            Self::Unnamed => Some(Part::Unnamed),
            Self::Cut(size) => Some(Part::Before(size)),
            Self::Whole | Self::Torn | Self::InPlace | Self::Faded => None,
        }
    }
}

impl Loss {
    /// True for a name without a trace.
    fn has_faded(self) -> bool {
        matches!(self, Self::Faded | Self::Unnamed)
    }

    /// True for a lost change that has taken the name of a file all the same.
    fn takes_name(self) -> bool {
        self.has_faded() || self == Self::Unlinked
    }
}

type Losing = BTreeMap<usize, Loss>;

/// All states that a model allows at one moment, by the shapes of their trees: names and attributes,
/// whatever the files contain.
pub struct Allowed<'a> {
    history: &'a History,
    model: &'a Model,
    position: usize,
    torn_at: Option<u64>,
    limits: Limits<'a>,
    passing: Vec<(usize, usize)>,
    named: Option<Named>,
    shapes: HashMap<u128, Vec<Losing>>,
    shapes_left: usize,
}

impl<'a> Allowed<'a> {
    /// Those after `position` events. Writes are torn at blocks, and `torn_at` bytes into them.
    pub fn new(
        history: &'a History,
        model: &'a Model,
        position: usize,
        torn_at: Option<u64>,
        limits: Limits<'a>,
    ) -> Result<Self, Error> {
        let begin = history.recording.begin;
        let mut durable = Durable::new(model, history.events(), begin);
        durable.advance(position);
        let start = history.tree(&State { position: begin, lost: BTreeMap::new() })?;
        let shapes = HashMap::new();
        let (passing, named) = (durable.passing(), durable.tangled_files());
        let mut allowed = Self {
            history,
            model,
            position,
            torn_at,
            limits,
            passing,
            named,
            shapes,
            shapes_left: SHAPES_MAX,
        };
        allowed.add(&durable, begin, Survivor::new(start), Losses::default(), &Losing::new())?;
        Ok(allowed)
    }

    /// False if there were too many to list them all, or no time.
    pub fn is_complete(&self) -> bool {
        self.shapes_left > 0 && !self.limits.are_reached()
    }

    /// Every way to go on from the change at `at`.
    fn add(
        &mut self,
        durable: &Durable<'_>,
        mut at: usize,
        mut survivor: Survivor,
        mut losses: Losses,
        losing: &Losing,
    ) -> Result<(), Error> {
        while at < self.position && self.is_complete() {
            let event = &self.history.events()[at];
            if !event.action.is_change() {
                at += 1;
                continue;
            }
            let is_durable = durable.is(at);
            let is_taken = !is_durable && losses.take(self.model, &event.action, durable.logged(at));
            let can_be_torn = event.action.is_write() || self.model.zeroed(&event.action).is_some();
            let fates: &[Loss] = match can_be_torn {
                _ if durable.is_half(at) => &[Loss::Linked],
                _ if durable.is_left(at) => &[Loss::Left],
                _ if durable.is_sized(at) => &[Loss::Sized],
                false if durable.may_unlink(at) && durable.may_link(at) => {
                    &[Loss::Whole, Loss::Linked, Loss::Unlinked]
                }
                false if durable.may_unlink(at) => &[Loss::Whole, Loss::Unlinked],
                false if !is_durable && durable.may_link(at) => &[Loss::Whole, Loss::Linked],
                _ if is_durable => &[],
                true if is_taken => &[Loss::Whole, Loss::InPlace],
                true if self.model.names == NameOrder::Replacing && event.action.needs_blocks() => {
                    &[Loss::Whole, Loss::Torn, Loss::Sized]
                }
                true => &[Loss::Whole, Loss::Torn],
                false => &[Loss::Whole],
            };
            let linked = |loss: &&Loss| {
                **loss != Loss::Linked || durable.is_half(at) || losses.can_link(&event.action)
            };
            let fades = durable.fading().contains_key(&at).then(|| {
                let unnamed = self.model.allows(&event.action, Part::Unnamed);
                if unnamed { Loss::Unnamed } else { Loss::Faded }
            });
            let cut = durable.cut(at).filter(|_| !is_taken).map(Loss::Cut);
            for loss in fates.iter().filter(linked).chain(&fades).chain(&cut) {
                let (mut survivor, mut losses, mut losing) =
                    (survivor.clone(), losses.clone(), losing.clone());
                let part = loss.part();
                survivor.step(event, &[], Some(part))?;
                match loss {
                    Loss::Faded | Loss::Unnamed => {
                        losses.fade(&event.action);
                        if is_durable {
                            losses.durable(&event.action);
                        }
                    }
                    _ => losses.add(self.model, &event.action, part, durable.logged(at)),
                }
                losing.insert(at, *loss);
                self.add(durable, at + 1, survivor, losses, &losing)?;
            }
            if is_taken {
                return Ok(());
            }
            if is_durable {
                losses.durable(&event.action);
            }
            // Contents are compared later.
            if !event.action.is_write() {
                survivor.step(event, &[], None)?;
            }
            at += 1;
        }
        let is_left =
            |(give, change): &(usize, usize)| losing.contains_key(change) && !losing.contains_key(give);
        let is_undone = |(at, later): (&usize, &usize)| {
            let later = losing.get(later).filter(|later| !later.takes_name());
            losing.get(at).is_some_and(|loss| loss.has_faded()) && later.is_some()
        };
        let are_named = self.named.as_ref().is_none_or(|named| named.are_in(&survivor.tree));
        let is_allowed =
            are_named && !self.passing.iter().any(is_left) && !durable.fading().iter().any(is_undone);
        if self.is_complete() && is_allowed {
            self.shapes_left -= 1;
            self.shapes.entry(survivor.tree.shape_digest()).or_default().push(losing.clone());
        }
        Ok(())
    }

    /// A state with this tree.
    pub fn find(&self, tree: &Tree) -> Result<Option<State>, Error> {
        for losing in self.shapes.get(&tree.shape_digest()).into_iter().flatten() {
            if self.limits.are_reached() {
                break;
            }
            if let Some(state) = self.with_contents(losing, tree)? {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// The state with these losses, if there are parts of its torn writes with which it has this tree.
    fn with_contents(&self, losing: &Losing, tree: &Tree) -> Result<Option<State>, Error> {
        let whole = losing.iter().map(|(at, loss)| (*at, loss.part())).collect();
        let mut state = State { position: self.position, lost: whole };
        let own = self.history.tree(&state)?;
        for (path, ino) in own.walk() {
            let Some(wanted) = at_path(tree, &path) else { return Ok(None) };
            let Some(Kind::File(wanted)) = tree.node(wanted).map(|node| &node.kind) else { continue };
            let Some(parts) = File::new(self, losing, ino, wanted)?.parts()? else { return Ok(None) };
            state.lost.extend(parts.into_iter().map(|(at, part)| (at, Some(part))));
        }
        Ok(Some(state))
    }
}

/// The inode at a path.
fn at_path(tree: &Tree, path: &[u8]) -> Option<Ino> {
    path.split(|byte| *byte == b'/').try_fold(crate::action::ROOT, |dir, name| tree.lookup(dir, name))
}

/// The search for the parts of the torn writes of one file.
struct File<'a> {
    allowed: &'a Allowed<'a>,
    losing: &'a Losing,
    ino: Ino,
    wanted: &'a crate::contents::Contents,
    /// The changes of its contents.
    changes: Vec<usize>,
    steps: usize,
}

impl<'a> File<'a> {
    fn new(
        allowed: &'a Allowed<'a>,
        losing: &'a Losing,
        ino: Ino,
        wanted: &'a crate::contents::Contents,
    ) -> Result<Self, Error> {
        let events = allowed.history.events().iter().enumerate().take(allowed.position);
        let is_own = |action: &Action| {
            action.ino() == Some(ino)
                && matches!(
                    action,
                    Action::Create { .. }
                        | Action::Write { .. }
                        | Action::Truncate { .. }
                        | Action::Zero { .. }
                )
        };
        let changes = events.filter(|(_, event)| is_own(&event.action)).map(|(at, _)| at).collect();
        Ok(Self { allowed, losing, ino, wanted, changes, steps: 0 })
    }

    fn parts(mut self) -> Result<Option<BTreeMap<usize, Part>>, Error> {
        self.go(0, Survivor::new(Tree::default()), BTreeMap::new())
    }

    fn go(
        &mut self,
        next: usize,
        survivor: Survivor,
        parts: BTreeMap<usize, Part>,
    ) -> Result<Option<BTreeMap<usize, Part>>, Error> {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.allowed.limits.are_reached() {
            return Ok(None);
        }
        let Some(at) = self.changes.get(next).copied() else {
            let is_equal =
                survivor.tree.contents(self.ino).is_some_and(|own| own.digest() == self.wanted.digest());
            return Ok(is_equal.then_some(parts));
        };
        let event = &self.allowed.history.events()[at];
        let bytes = self.allowed.history.recording.bytes(&event.action)?;
        let fates: Vec<Option<Option<Part>>> = match self.losing.get(&at) {
            None => vec![None],
            Some(Loss::Whole | Loss::Faded) => vec![Some(None)],
            Some(loss @ (Loss::Cut(_) | Loss::Unnamed)) => vec![Some(loss.part())],
            Some(loss) => {
                let mut parts = self.torn(&event.action);
                let model = self.allowed.model;
                parts.retain(|part| match loss {
                    Loss::Torn => true,
                    Loss::Sized => Model::keeps_size(&event.action, *part),
                    _ => model.is_in_place(&event.action, *part),
                });
                parts.into_iter().map(|part| Some(Some(part))).collect()
            }
        };
        for fate in fates {
            let (mut survivor, mut parts) = (survivor.clone(), parts.clone());
            survivor.step(event, &bytes, fate)?;
            if let Some(Some(part)) = fate {
                parts.insert(at, part);
            }
            if self.can_be(&survivor.tree, next)?
                && let Some(found) = self.go(next + 1, survivor, parts)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// False if blocks that no later change touches differ from what is wanted.
    fn can_be(&self, tree: &Tree, done: usize) -> Result<bool, Error> {
        let (Action::Write { .. }, Some(own)) =
            (&self.allowed.history.events()[self.changes[done]].action, tree.contents(self.ino))
        else {
            return Ok(true);
        };
        let later = |block: u64| {
            self.changes[done + 1..].iter().any(|at| match &self.allowed.history.events()[*at].action {
                action if action.is_write() => action.blocks().contains(&block),
                Action::Truncate { from, to, .. } => block >= from.min(to) / 4096,
                _ => true,
            })
        };
        let blocks = self.allowed.history.events()[self.changes[done]].action.blocks();
        let bytes = |contents: &crate::contents::Contents, block: u64| {
            let mut bytes = contents.read(block * 4096, 4096)?;
            bytes.resize(4096, 0);
            Ok::<_, Error>(bytes)
        };
        for block in blocks {
            if !later(block) && bytes(own, block)? != bytes(self.wanted, block)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The parts of a write that the model allows, the simplest first.
    fn torn(&self, action: &Action) -> Vec<Part> {
        if let Some((first, end, size)) = self.allowed.model.zeroed(action) {
            let within = self.allowed.torn_at.map(|at| first / 4096 * 4096 + at);
            let borders: Vec<u64> = [first].into_iter().chain(within).chain([end]).collect();
            let slices = borders.iter().flat_map(|from| borders.iter().map(|before| (*from, *before)));
            let slices = slices.map(|(from, before)| Part::Slice { from, before, size });
            return slices.filter(|part| self.allowed.model.allows(action, *part)).collect();
        }
        let Action::Write { offset, len, .. } = action else { return Vec::new() };
        let end = offset + u64::from(*len);
        let mut cuts: Vec<u64> = Vec::new();
        for block in action.blocks() {
            cuts.push(block * 4096);
            cuts.extend(self.allowed.torn_at.map(|at| block * 4096 + at));
        }
        cuts.push(end / 4096 * 4096);
        cuts.retain(|cut| (offset + 1..end).contains(cut));
        cuts.dedup();
        let mut parts = vec![Part::Size];
        parts.extend(cuts.iter().flat_map(|cut| [Part::Before(*cut), Part::From(*cut)]));
        let holes = cuts.iter().flat_map(|from| cuts.iter().map(|before| (*from, *before)));
        parts.extend(holes.clone().map(|(from, before)| Part::Without { from, before, size: None }));
        parts.extend(holes.flat_map(|(from, before)| {
            let sizes = cuts.iter().filter(move |size| **size > before);
            sizes.map(move |size| Part::Without { from, before, size: Some(*size) })
        }));
        let borders: Vec<u64> = [*offset].into_iter().chain(cuts).chain([end]).collect();
        for size in borders.iter().skip(1).chain([&0]) {
            for before in borders.iter().filter(|before| *before <= size || *size == 0) {
                let firsts = borders.iter().filter(|from| *from < before);
                let slice = |from: u64| Part::Slice { from, before: *before, size: *size };
                parts.extend(firsts.map(|from| slice(*from)));
                parts.extend((before == offset).then(|| slice(*offset)));
            }
        }
        parts.retain(|part| self.allowed.model.allows(action, *part));
        parts
    }
}

/// A state of the model with this tree, at a power cut after `position` events.
pub fn explanation(
    history: &History,
    model: &Model,
    tree: &Tree,
    position: usize,
    torn_at: Option<u64>,
    stop: &AtomicBool,
) -> Result<Option<State>, Error> {
    let mut is_complete = true;
    let until = Some(Instant::now() + SEARCH);
    let limits = Limits { stop, until, keep_going: true, jobs: 1 };
    for position in moments(history, position) {
        let allowed = Allowed::new(history, model, position, torn_at, limits)?;
        if let Some(state) = allowed.find(tree)? {
            return Ok(Some(state));
        }
        is_complete &= allowed.is_complete();
    }
    if is_complete {
        return Ok(None);
    }
    let (wanted, started) = (tree.digest(), Instant::now());
    let plan = Plan::new(model, history.events(), history.recording.begin, 0);
    for state in plan.filter(|state| state.position >= position) {
        if started.elapsed() > PLAN || stop.load(Ordering::Relaxed) {
            break;
        }
        if history.tree(&state)?.digest() == wanted {
            return Ok(Some(state));
        }
    }
    Ok(None)
}

/// A power cut after `position` events, as the model has it: the event that a program had begun may have
/// happened, as far as the disk goes.
pub fn moments(history: &History, position: usize) -> Vec<usize> {
    match history.events().get(position).map(|event| &event.action) {
        Some(action) if action.is_change() => vec![position + 1],
        Some(Action::Sync { .. } | Action::SyncAll) => vec![position, position + 1],
        _ => vec![position],
    }
}
